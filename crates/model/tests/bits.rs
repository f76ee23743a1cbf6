use draftproof_decode::{
    LanguageModel, Token,
    lm::{Pass, Rows},
};
use draftproof_kernels::team;
use draftproof_model::{Model, Role, machine::Order};

use crate::support::{CHECKPOINTS, Reference, cpu, feed, golden, open};

/// The rows of a text, one token a pass: what every other way must give, to the last bit.
fn one_by_one(model: &mut dyn LanguageModel, text: &[Token]) -> Vec<Vec<f32>> {
    let sequence = model.open().unwrap();
    let rows = text.iter().map(|token| feed(model, sequence, &[*token]).row(0).to_vec()).collect();
    model.close(sequence);
    rows
}

fn assert_same(found: &Rows, expected: &[Vec<f32>], first: usize, about: &str) {
    for i in 0..found.len() {
        let bits = |row: &[f32]| row.iter().map(|z| z.to_bits()).collect::<Vec<_>>();
        assert!(bits(found.row(i)) == bits(&expected[first + i]), "{about}, row {}", first + i);
    }
}

/// Any cut of the text into passes, alone or beside other sequences, on one thread or two.
pub(crate) fn assert_bits(model: &mut dyn LanguageModel, text: &[Token], about: &str) {
    let expected = one_by_one(model, text);
    for sizes in [vec![text.len()], vec![2], vec![5], vec![1, 9], vec![17, 1, 3], vec![33]] {
        for threads in [1, 2] {
            let about = format!("{about}, passes of {sizes:?}, {threads} threads");
            let alone = model.open().unwrap();
            let mut at = 0;
            for size in sizes.iter().cycle() {
                let end = text.len().min(at + size);
                let pass = &text[at..end];
                let rows = team::with_threads(threads, || feed(model, alone, pass));
                assert_same(&rows, &expected, at, &about);
                at = end;
                if at == text.len() {
                    break;
                }
            }
            model.close(alone);
        }
    }
    // Three sequences of different lengths share each pass.
    let sequences = [(); 3].map(|()| model.open().unwrap());
    for (start, size) in [(0, 7), (7, 1), (8, 4), (12, 19)] {
        let batch: Vec<Pass<'_>> = sequences
            .iter()
            .zip([0, 1, 2])
            .map(|(&sequence, shorter)| {
                let tokens = &text[start..start + size - shorter.min(size - 1)];
                Pass { sequence, tokens, rows: tokens.len() }
            })
            .collect();
        let rows = model.forward(&batch).unwrap();
        assert_same(&rows[0], &expected, start, &format!("{about}, in company"));
        for &sequence in &sequences {
            // The shorter ones catch up alone.
            let held = model.len(sequence).unwrap();
            if held < start + size {
                feed(model, sequence, &text[held..start + size]);
            }
        }
    }
    sequences.into_iter().for_each(|sequence| model.close(sequence));
}

#[test]
fn golden_rows_depend_on_their_prefix_only() {
    for name in CHECKPOINTS {
        // Several windows long.
        let reference = Reference::of(name);
        let text = [reference.ids("input_ids"), reference.ids("greedy_ids")].concat();
        assert_eq!(text.len(), 56);
        assert_bits(&mut open(name), &text, name);
    }
}

#[test]
fn rows_of_block_quantised_weights_depend_on_their_prefix_only() {
    let file = golden("llama-gguf").join("llama-tiny-q8_0.gguf");
    let model = Model::open(&file, &cpu()).unwrap();
    let reference = Reference::of("llama");
    let text = [reference.ids("input_ids"), reference.ids("greedy_ids")].concat();
    assert_bits(&mut model.into_language_model(), &text, "Q8_0");
}

#[test]
fn fable_rows_depend_on_their_prefix_only() {
    assert_fable("lanes");
}

/// The other order of summing, where the machine has it; its last bits are its own.
#[test]
fn fable_rows_by_tiles_depend_on_their_prefix_only() {
    if !Order::Tiles.is_available() {
        eprintln!("no AMX on this machine: nothing was tried");
        return;
    }
    Order::Tiles.scope(|| assert_fable("tiles"));
    let row = |order: Order| {
        let mut model =
            Model::builtin("fable", Role::Target, &cpu()).unwrap().into_language_model();
        let sequence = model.open().unwrap();
        order.scope(|| feed(&mut model, sequence, &[Token(7)]).row(0).to_vec())
    };
    let (lanes, tiles) = (row(Order::Lanes), row(Order::Tiles));
    assert_ne!(lanes, tiles);
    assert!(lanes.iter().zip(&tiles).all(|(a, b)| (a - b).abs() < 1e-3));
}

fn assert_fable(order: &str) {
    for role in [Role::Target, Role::Draft] {
        let model = Model::builtin("fable", role, &cpu()).unwrap();
        let tokenizer = model.tokenizer().unwrap().clone();
        let prompts = include_str!("../../../models/fable/prompts.txt");
        let mut text = tokenizer.encode(prompts).unwrap();
        text.truncate(200);
        assert_eq!(text.len(), 200);
        assert_bits(&mut model.into_language_model(), &text, &format!("fable {role:?}, {order}"));
    }
}
