//! Text as it comes: whole characters only, as soon as they are decided, the same bytes that JSON
//! holds; and readers who go away early.

use std::{
    fs::OpenOptions,
    io::{self, Read},
    process::{Child, Output, Stdio},
};

use crate::{
    harness::{DRAFTERS, Finished, Run, draftproof, generate, golden, text, with_drafter},
    tiny::{self, EOS, Tiny},
};

/// Starts the run with both outputs in pipes.
fn start(run: Run) -> Child {
    let mut command = run.into_command();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the program starts")
}

/// What came with each read; one write never comes in two of them, since a pipe holds much more.
fn chunks(child: &mut Child) -> Vec<Vec<u8>> {
    let mut pipe = child.stdout.take().expect("a pipe");
    let (mut chunks, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        match pipe.read(&mut buffer).expect("readable") {
            0 => return chunks,
            count => chunks.push(buffer[..count].to_vec()),
        }
    }
}

fn finish(child: Child) -> Finished {
    Finished::new("a run in pipes".into(), child.wait_with_output().expect("it ends"))
}

/// Words that cut characters of two, three and four bytes, one that is cut short by the next, and
/// one that the end cuts short.
fn cut_characters() -> (Tiny, Vec<u32>, String) {
    let words: [&[u8]; 17] = [
        b"x",
        b"\xD1",
        b"\x84",
        b"\xC3\xA9\xE6",
        b"\x97",
        b"\xA5a",
        b"\xF0",
        b"\x9F",
        b"\xA6\x8A",
        b"b",
        b"\xE2\x82",
        b"c",
        b"\x80",
        b"d",
        b"\xF0\x9F\xA6",
        b"e",
        b"\xC3",
    ];
    let path: Vec<u32> = (tiny::FIRST..).take(words.len()).chain([EOS]).collect();
    let expected = "\u{444}\u{e9}\u{65e5}a\u{1f98a}b\u{fffd}c\u{fffd}d\u{fffd}e\u{fffd}";
    (Tiny::new(&words).path(&path), path, expected.into())
}

#[test]
fn characters_are_never_split() {
    let (model, path, expected) = cut_characters();
    let model = model.write();
    for drafter in DRAFTERS {
        for draft_len in ["1", "2", "5", "16"] {
            let run = || {
                let run = generate("--seed 1 --temperature 0 --draft-len").arg(draft_len);
                with_drafter(run.ids(&path[..1]).model(&model), drafter, model.path())
            };
            let mut child = start(run());
            for chunk in chunks(&mut child) {
                assert!(std::str::from_utf8(&chunk).is_ok(), "{drafter} {draft_len}: {chunk:?}");
            }
            assert_eq!(finish(child).code, 0);
            assert_eq!(run().ok().stdout, expected, "{drafter} {draft_len}");
            assert_eq!(text(&run().json()), expected, "{drafter} {draft_len}");
        }
    }
}

/// A limit may fall inside a character: what there is of it comes out as U+FFFD, once.
#[test]
fn a_character_cut_by_the_limit_is_replaced() {
    let (model, path, expected) = cut_characters();
    let model = model.write();
    let whole: Vec<char> = expected.chars().collect();
    for (max, complete, cut) in
        [(0, 0, false), (1, 0, true), (2, 1, false), (3, 2, true), (7, 4, true)]
    {
        let run = generate("--seed 1 --temperature 0 --max-tokens").arg(max.to_string());
        let run = run.ids(&path[..1]).model(&model).draft(&model).ok();
        let mut expected: String = whole[..complete].iter().collect();
        expected.extend(cut.then_some(char::REPLACEMENT_CHARACTER));
        assert_eq!(run.stdout, expected, "{max}");
    }
}

/// Random weights write random bytes.
#[test]
fn stdout_has_the_bytes_of_the_json_text() {
    let mut replaced = 0;
    for seed in 0..4 {
        let words = format!("--seed {seed} --max-tokens 120 --ignore-eos --draft-len 3");
        let run = || {
            let run = generate(&words).arg("Once").model(&golden("pair-target"));
            run.draft(&golden("pair-draft"))
        };
        let printed = run().ok().stdout;
        assert_eq!(printed, text(&run().json()), "{seed}");
        replaced += printed.matches(char::REPLACEMENT_CHARACTER).count();
    }
    assert!(replaced > 0, "nothing was cut");
}

/// The reader waits for the first token; the last one is hundreds of passes later.
#[test]
fn text_comes_while_it_is_made() {
    let run = generate("--seed 1 --drafter none --max-tokens 120 --ignore-eos").arg("Once");
    let chunks = chunks(&mut start(run));
    assert!(chunks.len() > 1, "all came at once");
}

/// More text than a pipe holds, so that the program must still write when the reader is gone.
fn more_than_a_pipe_holds() -> Tiny {
    let word = "many words ".repeat(500);
    Tiny::new(&[word.as_bytes(), b"."]).path(&[2, 2])
}

#[test]
fn a_closed_pipe_is_success() {
    let model = more_than_a_pipe_holds().write();
    let flags = ["", "--show-draft", "--json", "--n 3", "--n 40 --json", "--drafter none"];
    for flags in flags {
        for read_first in [false, true] {
            let run = generate("--seed 1 --max-tokens 60").words(flags).ids(&[2]).model(&model);
            let mut child = start(run);
            let mut pipe = child.stdout.take().expect("a pipe");
            if read_first {
                pipe.read_exact(&mut [0; 100]).expect("text");
            }
            drop(pipe);
            let finished = finish(child);
            assert_eq!(finished.code, 0, "{flags}: {finished:?}");
            assert!(!finished.stderr.contains("draftproof: "), "{flags}: {finished:?}");
        }
    }
    let trace = model.path().join("trace.jsonl");
    let run = generate("--seed 1 --max-tokens 60 --trace").arg(&trace).ids(&[2]);
    run.model(&model).ok();
    let other_commands = [
        draftproof("contract").model(&model),
        draftproof("contract --json").model(&model),
        draftproof("replay").arg(&trace),
        draftproof("--help"),
    ];
    for run in other_commands {
        let mut child = start(run);
        drop(child.stdout.take());
        assert_eq!(finish(child).code, 0);
    }
    let whole = generate("--seed 1 --max-tokens 60").ids(&[2]).model(&model).ok();
    assert_eq!(whole.stdout.len(), 60 * 5500);
}

/// Messages are not worth a failure: the text is there.
#[test]
fn a_closed_stderr_does_not_end_the_run() {
    let model = Tiny::letters(4).noisy(1).write();
    for flags in ["--seed 1", "--seed 1 --top-p 7", "--seed 1 --draft-len x"] {
        let run = generate(flags).words("--max-tokens 9").ids(&[2]).model(&model);
        let mut command = run.into_command();
        let (reader, writer) = io::pipe().expect("a pipe");
        drop(reader);
        let output: Output = command.stdin(Stdio::null()).stderr(writer).output().expect("it runs");
        let expected = if flags == "--seed 1" { (0, 9) } else { (2, 0) };
        assert_eq!((output.status.code(), output.stdout.len()), (Some(expected.0), expected.1));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_told() {
    let model = Tiny::letters(4).noisy(1).write();
    for flags in ["", "--json", "--n 2"] {
        let run = generate("--seed 1 --max-tokens 5").words(flags).ids(&[2]).model(&model);
        let mut command = run.into_command();
        let full = OpenOptions::new().write(true).open("/dev/full").expect("/dev/full");
        let output = command.stdin(Stdio::null()).stdout(full).output().expect("it runs");
        Finished::new(flags.into(), output).failed(&["No space left on device"]);
    }
}
