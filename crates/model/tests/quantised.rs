//! Drafts made of the target: the same model with fewer bits a weight.

use draftproof_decode::{LanguageModel, Token, lm::Rows};
use draftproof_model::{BlockFormat, Model, Role, WeightType, machine};

use crate::{
    bits::assert_bits,
    support::{CHECKPOINTS, bits, cpu, distance, feed, golden},
};

fn rows(model: &mut Model, text: &[Token]) -> Rows {
    let model = model.language_model();
    let sequence = model.open().unwrap();
    let rows = feed(model, sequence, text);
    model.close(sequence);
    rows
}

fn text(model: &Model) -> Vec<Token> {
    let vocab = model.vocab();
    (0..40).map(|i| Token::at((7 * i * i + 3 * i + 1) % vocab)).collect()
}

/// Every family: the copy obeys the bit law, is not the model, is nearest with the most bits, and leaves
/// the model as it was.
#[test]
fn a_copy_is_nearer_with_more_bits() {
    for name in CHECKPOINTS {
        let mut model = Model::open(&golden(name), &cpu()).unwrap();
        let text = text(&model);
        let before = rows(&mut model, &text);
        let mut far = |format| {
            let mut copy = model.quantised(format).unwrap();
            assert_eq!(copy.weight_type(), WeightType::Blocks(format));
            assert!(copy.pass_bytes() < model.pass_bytes(), "{name} {format}");
            assert!(copy.identity().weights != model.identity().weights);
            assert_bits(copy.language_model(), &text, &format!("{name} in {format}"));
            let found = rows(&mut copy, &text);
            distance(&found, &before, 0)
        };
        let [q4, q5, q8] = [BlockFormat::Q4_0, BlockFormat::Q5_0, BlockFormat::Q8_0].map(&mut far);
        assert!(0.0 < q8 && q8 < q5.min(q4), "{name}: {q8} {q5} {q4}");
        assert_eq!(bits(&rows(&mut model, &text)), bits(&before), "{name}");
    }
}

/// 5 472 256 of fable's weights are in matrices of whole blocks, 13 · 256 in the vectors of norms.
#[test]
fn bytes_are_those_of_the_blocks() {
    let fable = Model::builtin("fable", Role::Target, &cpu()).unwrap();
    for format in BlockFormat::WRITTEN {
        let copy = fable.quantised(format).unwrap();
        let matrices = fable.parameters() - 13 * 256;
        let expected = matrices / 32 * format.bytes() as u64 + 13 * 256 * 4;
        assert_eq!(copy.pass_bytes(), expected, "{format}");
        assert_eq!(copy.bytes_run(), expected);
        // Each value costs half a byte more, a few vectors nothing.
        let cost = copy.pass_cost() - expected as f64 - 0.5 * matrices as f64;
        assert!((0.0..13_000.0).contains(&cost), "{format}: {cost}");
        assert_eq!(copy.parameters(), fable.parameters());
    }
    let again = fable.quantised(BlockFormat::Q8_0).unwrap();
    let mut twice = again.quantised(BlockFormat::Q8_0).unwrap();
    let (mut again, text) = (again, text(&fable));
    assert_eq!(bits(&rows(&mut again, &text)), bits(&rows(&mut twice, &text)));
}

/// Layers that run again count again, in the bytes they have.
#[test]
fn bytes_of_a_pass_count_every_loop() {
    let mut model = Model::open(&golden("ouro"), &cpu()).unwrap();
    let run = |model: &Model| model.bytes_run();
    let [all, once] = [None, Some(1)].map(|loops| {
        model.set_loops(loops, None).unwrap();
        run(&model)
    });
    assert_eq!(once, model.pass_bytes());
    model.set_loops(Some(3), None).unwrap();
    assert_eq!(2 * (all - once), 3 * (run(&model) - once), "four loops and three");
    let copy = model.quantised(BlockFormat::Q8_0).unwrap();
    assert!(4 * run(&copy) < 2 * run(&model), "f32 to 8.5 bits: {} of {}", run(&copy), run(&model));
}

#[test]
fn what_cannot_be_copied_is_refused() {
    let fable = Model::builtin("fable", Role::Target, &cpu()).unwrap();
    let refused = fable.quantised(BlockFormat::Q4_K).unwrap_err().to_string();
    assert!(refused.contains("expected one of Q4_0") && refused.contains("Q4_K"), "{refused}");
    let general = machine::Kernels::General;
    let refused = draftproof_kernels::burn::with_kernels(general, || {
        fable.quantised(BlockFormat::Q8_0).unwrap_err().to_string()
    });
    assert!(refused.contains("row-invariant kernels of the CPU"), "{refused}");
}
