use std::{fs, path::PathBuf};

use draftproof_model::{Model, load::Gguf};
use tempfile::TempDir;

use crate::{
    gguf_convert::{Matrices, convert},
    gguf_file::{GgufFile, bytes_of, number},
    support::{cpu, logits},
};

const Q8: &str = "llama-tiny-q8_0.gguf";

/// Files in a folder of their own, which a test may damage.
struct Split {
    folder: TempDir,
    parts: Vec<GgufFile>,
}

impl Split {
    /// The tensors of `file` in as many files as there are numbers, with so many in each.
    fn new(file: &GgufFile, sizes: &[usize]) -> Self {
        assert_eq!(sizes.iter().sum::<usize>(), file.tensors.len());
        let mut rest = &file.tensors[..];
        let mut parts = Vec::new();
        for (no, size) in sizes.iter().enumerate() {
            let (tensors, more) = rest.split_at(*size);
            rest = more;
            let mut items = if no == 0 { file.items.clone() } else { Vec::new() };
            items.push(("split.no".into(), small(no as u16)));
            items.push(("split.count".into(), small(sizes.len() as u16)));
            let all = [5_u32, file.tensors.len() as u32].map(u32::to_le_bytes).concat();
            items.push(("split.tensors.count".into(), all));
            parts.push(GgufFile { items, tensors: tensors.to_vec() });
        }
        Self { folder: tempfile::tempdir().unwrap(), parts }
    }

    /// The golden file in three.
    fn golden() -> Self {
        Self::new(&GgufFile::golden(Q8), &[10, 5, 15])
    }

    /// Where file `number`, from 1, lies.
    fn path(&self, number: usize) -> PathBuf {
        self.folder.path().join(format!("a-{number:05}-of-{:05}.gguf", self.parts.len()))
    }

    fn write(&self) {
        for (i, part) in self.parts.iter().enumerate() {
            fs::write(self.path(i + 1), part.bytes()).unwrap();
        }
    }

    /// What becomes of it by whichever file it is named: the first message; all are refused.
    fn refusal(&self) -> String {
        let open =
            |i: usize| Model::open(&self.path(i), &cpu()).map(|_| ()).unwrap_err().to_string();
        let messages = (1..=self.parts.len()).filter(|&i| self.path(i).exists()).map(open);
        let messages: Vec<_> = messages.collect();
        assert!(messages.iter().all(|message| message.contains(".gguf: ")), "{messages:?}");
        messages[0].clone()
    }
}

/// Type and value of a number of two bytes, as llama.cpp writes them.
fn small(number: u16) -> Vec<u8> {
    [&2_u32.to_le_bytes()[..], &number.to_le_bytes()].concat()
}

#[test]
fn a_split_file_is_the_whole_file() {
    let converted = |name| convert(name, name, Matrices::F32);
    for (name, file) in
        [("llama", GgufFile::golden(Q8)), ("phi3", converted("phi3")), ("gpt2", converted("gpt2"))]
    {
        let count = file.tensors.len();
        let whole = file.open().unwrap();
        let (identity, parameters) = (whole.identity().clone(), whole.parameters());
        let expected = logits(name, whole);
        // The first may have nothing but metadata.
        for sizes in [&[count - 7, 7][..], &[5, 6, count - 11], &[0, 9, count - 9], &[count]] {
            let split = Split::new(&file, sizes);
            split.write();
            for i in 1..=sizes.len() {
                let model = Model::open(&split.path(i), &cpu()).unwrap();
                assert_eq!(*model.identity(), identity, "{name}, {sizes:?}, {i}");
                assert_eq!(model.parameters(), parameters);
                assert_eq!(logits(name, model), expected, "{name}, {sizes:?}, {i}");
            }
        }
    }
}

#[test]
fn the_tokenizer_is_that_of_the_first_file() {
    let split = Split::golden();
    split.write();
    let whole = GgufFile::golden(Q8).open().unwrap();
    let model = Model::open(&split.path(3), &cpu()).unwrap();
    let encode = |model: &Model| model.tokenizer().unwrap().encode("Once upon a time").unwrap();
    assert_eq!(encode(&model), encode(&whole));
}

#[test]
fn names_of_all_files_follow_from_one() {
    let names = Gguf::shards("q4/a b-00002-of-00003.gguf").unwrap();
    let expected = [1, 2, 3].map(|i| format!("q4/a b-0000{i}-of-00003.gguf"));
    assert_eq!(names, expected);
    assert_eq!(Gguf::shards("a-00001-of-99999.gguf"), None);
    assert_eq!(Gguf::shards("a.gguf"), None);
}

#[test]
fn missing_files_are_named() {
    for lost in 1..=3 {
        let split = Split::golden();
        split.write();
        fs::remove_file(split.path(lost)).unwrap();
        let message = split.refusal();
        let name = format!("a-{lost:05}-of-00003.gguf");
        assert!(message.contains(&name) && message.contains("no such file"), "{message}");
        // Whichever is there is not asked in its place.
        fs::create_dir(split.path(lost)).unwrap();
        let other = if lost == 1 { 2 } else { 1 };
        let message = Model::open(&split.path(other), &cpu()).unwrap_err().to_string();
        assert!(message.contains(&name) && message.contains("a folder"), "{message}");
    }
    let split = Split::golden();
    split.write();
    let bytes = fs::read(split.path(2)).unwrap();
    fs::write(split.path(2), &bytes[..bytes.len() - 300]).unwrap();
    let message = split.refusal();
    assert!(message.contains("a-00002-of-00003.gguf"), "{message}");
    assert!(message.contains("end of the file"), "{message}");
}

fn spoilt(change: impl Fn(&mut Vec<GgufFile>), needles: &[&str]) {
    let mut split = Split::golden();
    change(&mut split.parts);
    split.write();
    let message = split.refusal();
    for needle in needles {
        assert!(message.contains(needle), "{needle}: {message}");
    }
}

#[test]
fn files_that_do_not_belong_together_are_refused() {
    let second = "a-00002-of-00003.gguf";
    // In one of them, or in all alike.
    for count in [0, 1, 2, 4, 4097, u16::MAX] {
        let found = count.to_string();
        let put = |part: &mut GgufFile| *part.item("split.count") = small(count);
        spoilt(|parts| put(&mut parts[1]), &[second, "split.count", &found]);
        spoilt(|parts| parts.iter_mut().for_each(put), &["00001-of", "split.count", &found]);
    }
    for no in [0, 2, 3, u16::MAX] {
        let put = |parts: &mut Vec<GgufFile>| *parts[1].item("split.no") = small(no);
        spoilt(put, &[second, "split.no", &no.to_string()]);
    }
    let huge = [10_u32.to_le_bytes().to_vec(), u64::MAX.to_le_bytes().to_vec()].concat();
    spoilt(|parts| *parts[0].item("split.count") = huge.clone(), &["split.count"]);
    spoilt(|parts| *parts[0].item("split.no") = huge.clone(), &["split.no"]);
    spoilt(|parts| parts[1] = parts[0].clone(), &[second, "split.no"]);
    spoilt(|parts| parts.swap(1, 2), &[second, "split.no", "found 2"]);
    for key in ["split.no", "split.count"] {
        spoilt(|parts| parts[1].items.retain(|(name, _)| name != key), &[second, key, "none"]);
    }
    // The same tensor twice, none at all, one too few.
    let twice = |parts: &mut Vec<GgufFile>| {
        let tensor = parts[0].tensors[3].clone();
        parts[2].tensors.push(tensor);
    };
    let name = GgufFile::golden(Q8).tensors[3].name.clone();
    spoilt(twice, &["a-00003-of-00003.gguf", &name, "another file", "a-00001-of-00003.gguf"]);
    spoilt(|parts| parts[1].tensors.clear(), &["split.tensors.count", "25", "found 30"]);
    let fewer = |parts: &mut Vec<GgufFile>| {
        let lost = parts[1].tensors.pop().unwrap();
        assert_eq!(lost.name, "blk.1.ffn_up.weight");
        parts.iter_mut().for_each(|part| *part.item("split.tensors.count") = number(29));
    };
    spoilt(fewer, &["blk.1.ffn_up.weight", "no such tensor"]);
    let alone = |parts: &mut Vec<GgufFile>| *parts[2].item("split.tensors.count") = number(29);
    spoilt(alone, &["a-00003-of-00003.gguf", "split.tensors.count", "a-00001-of-00003.gguf"]);
    // A wrong shape is told of the file that has it.
    let turned = |parts: &mut Vec<GgufFile>| parts[1].tensors[4].dims.reverse();
    spoilt(turned, &[second, "shape"]);
    let other = |parts: &mut Vec<GgufFile>| {
        parts[1].items.push(("llama.block_count".into(), number(4)));
    };
    spoilt(other, &[second, "llama.block_count", "a-00001-of-00003.gguf"]);
    let new = |parts: &mut Vec<GgufFile>| {
        parts[1].items.push(("llama.rope.freq_base".into(), number(7)));
        parts[0].items.retain(|(key, _)| key != "llama.rope.freq_base");
    };
    spoilt(new, &[second, "llama.rope.freq_base"]);
}

/// What the others are called follows from a name; a file that says it is one of several and whose
/// name does not is refused, and no other file is looked at.
#[test]
fn a_file_under_another_name_is_refused() {
    let split = Split::golden();
    split.write();
    for name in ["model.gguf", "a-00001-of-00004.gguf", "a-1-of-3.gguf", "a-00004-of-00003.gguf"] {
        let path = split.folder.path().join(name);
        fs::write(&path, split.parts[0].bytes()).unwrap();
        let message = Model::open(&path, &cpu()).unwrap_err().to_string();
        assert!(message.contains(name), "{name}: {message}");
        assert!(message.contains("00001-of-00003") || message.contains("split.count"), "{message}");
    }
    // A whole file may be called anything, but is no part of another.
    fs::write(split.path(2), bytes_of(Q8)).unwrap();
    assert!(Model::open(&split.path(2), &cpu()).is_ok());
    let message = Model::open(&split.path(1), &cpu()).unwrap_err().to_string();
    assert!(message.contains("a-00002-of-00003.gguf: split.count"), "{message}");
    fs::write(split.path(2), split.parts[1].bytes()).unwrap();
    // The way to the file is no part of its name.
    let around = split.folder.path().join("x-00001-of-00009.gguf");
    fs::create_dir(&around).unwrap();
    assert!(Model::open(&around.join("..").join("a-00002-of-00003.gguf"), &cpu()).is_ok());
}
