use burn::tensor::Tensor;
use draftproof_decode::{
    LanguageModel, Token,
    lm::{Pass, Rows},
};
use draftproof_model::{
    Form, Guidance, InitialState, Model, Runner, Strength, TransformerModel, initial_state::CUT,
};

use crate::{
    bits::assert_bits,
    laws::assert_fork,
    support::{
        Copy, LOOPED, Reference, TOLERANCE, bits, cpu, distance, feed, golden, greedy, open,
    },
};

const R: usize = 4;

/// The transformer of a model that is none of a worker's.
fn here(runner: Runner) -> TransformerModel {
    match runner {
        Runner::Here(model) => *model,
        #[cfg(feature = "remote")]
        Runner::There(_) => unreachable!("the model was opened here"),
    }
}

fn guided(reference: usize, form: Form, strength: Strength) -> Guidance {
    Guidance { reference, form, strength }
}

/// The rows of the text cut into passes.
fn rows(model: &mut TransformerModel, ids: &[Token], cuts: &[usize]) -> Vec<Rows> {
    let sequence = model.open().unwrap();
    let mut done = 0;
    let mut all = Vec::new();
    for &count in cuts {
        all.push(feed(model, sequence, &ids[done..done + count]));
        done += count;
    }
    model.close(sequence);
    all
}

fn assert_near(model: &mut TransformerModel, name: &str, expected: &Rows, tolerance: f32) {
    let ids = Reference::of(name).ids("input_ids");
    for cuts in [&[24][..], &[8, 5, 1, 7, 3], &[1; 24]] {
        let mut done = 0;
        for rows in rows(model, &ids, cuts) {
            let far = distance(&rows, expected, done);
            assert!(far < tolerance, "{name} {cuts:?}: {far:e}");
            done += rows.len();
        }
    }
}

#[test]
fn every_loop_reads_out_as_the_reference() {
    for name in LOOPED {
        let loops = Reference::of(name).flat("loop_logits");
        let row = loops.len() / R;
        let mut model = here(open(name));
        assert_eq!(model.loops(), Some(R));
        for k in 1..=R {
            model.set_loops(name, k, None).unwrap();
            let expected = Rows::new(320, loops[(k - 1) * row..k * row].to_vec());
            assert_near(&mut model, name, &expected, TOLERANCE);
        }
    }
}

#[test]
fn guided_logits_and_text_are_the_reference() {
    use Form::{Hidden, Logits};
    let (fixed, adaptive) = (Strength::Fixed(0.3), Strength::Adaptive(1.0));
    for name in LOOPED {
        let reference = Reference::of(name);
        let prompt = reference.ids("input_ids");
        let mut model = here(open(name));
        for (form, strength, logits, greedy_ids, tolerance) in [
            (Logits, fixed, "guided_logits_fixed", "greedy_ids_fixed", TOLERANCE),
            (Logits, adaptive, "guided_logits_adaptive", "greedy_ids_adaptive", 5e-4),
            (Hidden, fixed, "guided_hidden", "greedy_ids_hidden", TOLERANCE),
        ] {
            model.set_loops(name, R, Some(guided(1, form, strength))).unwrap();
            assert_near(&mut model, name, &reference.rows(logits), tolerance);
            let expected = reference.ids(greedy_ids);
            assert_eq!(greedy(&mut model, &prompt, 32), expected, "{name} {greedy_ids}");
        }
    }
    let reference = Reference::of("huginn");
    let mut model = here(open("huginn"));
    model.set_loops("huginn", R, Some(guided(2, Hidden, fixed))).unwrap();
    assert_near(&mut model, "huginn", &reference.rows("guided_hidden_k2"), TOLERANCE);
    let prompt = reference.ids("input_ids");
    assert_eq!(greedy(&mut model, &prompt, 32), reference.ids("greedy_ids_hidden_k2"));
}

/// A norm or a coda stands between a completed state and the head in each of them, so the two forms are
/// two laws; where the readout is linear they are one (`guidance`'s own tests).
#[test]
fn the_forms_are_two_laws() {
    for name in LOOPED {
        let mut model = here(open(name));
        let ids = Reference::of(name).ids("input_ids");
        let [hidden, logits] = [Form::Hidden, Form::Logits].map(|form| {
            model.set_loops(name, R, Some(guided(1, form, Strength::Fixed(0.5)))).unwrap();
            rows(&mut model, &ids, &[ids.len()]).remove(0)
        });
        let far = distance(&hidden, &logits, 0);
        assert!(far > 1e-2, "{name}: {far}");
    }
}

#[test]
fn given_initial_states_are_the_reference() {
    for name in ["huginn", "parcae"] {
        let reference = Reference::of(name);
        let mut model = here(open(name));
        let noise = reference.flat("noise");
        let noise = Tensor::<1>::from_floats(noise.as_slice(), &cpu()).reshape([56, 64]);
        model.set_initial_states(noise).unwrap();
        assert_near(&mut model, name, &reference.rows("noise_logits_full"), TOLERANCE);
        let prompt = reference.ids("input_ids");
        assert_eq!(greedy(&mut model, &prompt, 32), reference.ids("noise_greedy_ids"), "{name}");
        let guidance = guided(1, Form::Logits, Strength::Fixed(0.3));
        model.set_loops(name, R, Some(guidance)).unwrap();
        assert_near(&mut model, name, &reference.rows("noise_guided_logits_fixed"), TOLERANCE);
        assert_eq!(model.context(), 56);
    }
    assert!(here(open("ouro")).set_initial_states(Tensor::zeros([4, 64], &cpu())).is_err());
}

/// Those whose state does not begin with the text.
const BEGIN: [&str; 2] = ["huginn", "parcae"];
const NOISE: InitialState = InitialState::Noise(7);

fn beginning(name: &str, state: InitialState) -> Model {
    let mut model = Model::open(&golden(name), &cpu()).unwrap();
    model.set_initial_state(state).unwrap();
    assert_eq!(model.initial_state(), Some(state));
    model
}

fn deviation(name: &str) -> f64 {
    let model = Model::open(&golden(name), &cpu()).unwrap();
    model.config().transformer.loops.as_ref().unwrap().noise.unwrap()
}

/// The rows of [`NOISE`] at some positions.
fn noise_rows(name: &str, positions: &[usize]) -> Tensor<2> {
    let (deviation, mut rows) = (deviation(name), vec![0.0; 64 * positions.len()]);
    for (row, &position) in rows.chunks_exact_mut(64).zip(positions) {
        NOISE.fill(position, deviation, row);
    }
    Tensor::<1>::from_floats(rows.as_slice(), &cpu()).reshape([positions.len(), 64])
}

fn all_bits(model: &mut TransformerModel, ids: &[Token], cuts: &[usize]) -> Vec<u32> {
    rows(model, ids, cuts).iter().flat_map(bits).collect()
}

/// A sequence that went elsewhere and came back, and its fork, have the rows of one that never did.
fn assert_cuts(model: &mut TransformerModel, ids: &[Token], expected: &[u32], what: &str) {
    for cut in [1, 7, 23] {
        let sequence = model.open().unwrap();
        let tail: Vec<Token> = ids[cut..].iter().map(|t| Token(319 - t.0)).collect();
        feed(model, sequence, &ids[..cut]);
        feed(model, sequence, &tail);
        model.truncate(sequence, cut).unwrap();
        let fork = model.fork(sequence).unwrap();
        let pass = |sequence| Pass { sequence, tokens: &ids[cut..], rows: ids.len() - cut };
        for rows in model.forward(&[pass(sequence), pass(fork)]).unwrap() {
            assert!(bits(&rows) == expected[cut * 320..], "{what} {cut}");
        }
    }
}

/// So the reference's forward with noise is ours, by [`given_initial_states_are_the_reference`]: its rows
/// are the generator's, and the law of those that the public code drew is the generator's too.
#[test]
fn noise_is_its_rows_given() {
    let every: Vec<usize> = (0..56).collect();
    for name in BEGIN {
        let drawn = Reference::of(name).flat("noise");
        let deviation = deviation(name);
        let most = drawn.iter().fold(0.0, |most, x| f64::from(x.abs()).max(most));
        let square = drawn.iter().map(|x| f64::from(x * x)).sum::<f64>() / drawn.len() as f64;
        assert!(most > 2.9 * deviation && most < CUT * deviation * (1.0 + 1e-6), "{name} {most}");
        // 3 584 values: four standard errors are 0.11 of the square.
        let square = square / (0.973_337 * deviation * deviation);
        assert!((square - 1.0).abs() < 0.11, "{name} {square}");

        let ids = Reference::of(name).ids("input_ids");
        let mut noisy = here(beginning(name, NOISE).into_language_model());
        let mut given = here(open(name));
        given.set_initial_states(noise_rows(name, &every)).unwrap();
        let guidance = guided(2, Form::Logits, Strength::Adaptive(1.0));
        for guidance in [None, Some(guidance)] {
            noisy.set_loops(name, R, guidance).unwrap();
            given.set_loops(name, R, guidance).unwrap();
            let expected = all_bits(&mut given, &ids, &[24]);
            for cuts in [&[24][..], &[8, 5, 1, 7, 3], &[1; 24]] {
                let found = all_bits(&mut noisy, &ids, cuts);
                assert!(found == expected, "{name} {cuts:?} {guidance:?}");
            }
        }
    }
}

/// Any cut, company, threads, rollbacks and forks. The last part is the fault that this must find: noise
/// by the place in a pass changes every row from the second pass on.
#[test]
fn noisy_rows_depend_on_their_prefix_only() {
    for name in BEGIN {
        let reference = Reference::of(name);
        let text = [reference.ids("input_ids"), reference.ids("noise_greedy_ids")].concat();
        let mut model = beginning(name, NOISE).into_language_model();
        assert_bits(&mut model, &text, name);
        assert_fork(&mut model, name);

        let mut model = here(model);
        let ids = &text[..24];
        let expected = all_bits(&mut model, ids, &[24]);
        assert_cuts(&mut model, ids, &expected, name);

        let by_place: Vec<usize> = (0..8).chain(0..16).collect();
        model.set_initial_states(noise_rows(name, &by_place)).unwrap();
        assert_eq!(model.initial_state(), None);
        let wrong = all_bits(&mut model, ids, &[8, 16]);
        let pairs: Vec<bool> =
            wrong.chunks(320).zip(expected.chunks(320)).map(|(a, b)| a == b).collect();
        assert_eq!(pairs, [vec![true; 8], vec![false; 16]].concat(), "{name}");
    }
}

/// Sequences of several settings share a pass, and none goes on under another's.
#[test]
fn a_sequence_keeps_what_it_began_with() {
    let states = [InitialState::Zeros, NOISE, InitialState::Noise(8)];
    for name in BEGIN {
        let ids = Reference::of(name).ids("input_ids");
        let plain = all_bits(&mut here(open(name)), &ids, &[24]);
        let alone = states.map(|state| {
            all_bits(&mut here(beginning(name, state).into_language_model()), &ids, &[24])
        });
        assert!(alone[0] == plain && alone[1] != plain, "{name}");
        assert!(alone[2] != alone[1] && alone[2] != plain, "{name}");

        let mut model = here(open(name));
        let sequences = states.map(|state| model.open_from(state).unwrap());
        feed(&mut model, sequences[1], &ids[..9]);
        let fork = model.fork(sequences[1]).unwrap();
        let batch =
            [(0, sequences[0], 0), (1, sequences[1], 9), (2, sequences[2], 0), (1, fork, 9)];
        let passes = batch.map(|(_, sequence, held)| Pass {
            sequence,
            tokens: &ids[held..],
            rows: 24 - held,
        });
        let found = model.forward(&passes).unwrap();
        for ((state, _, held), rows) in batch.into_iter().zip(found) {
            assert!(bits(&rows) == alone[state][held * 320..], "{name} {state}");
        }

        model.set_initial_state(name, NOISE).unwrap();
        assert!(model.len(sequences[1]).is_err(), "what was open is closed");
        assert!(all_bits(&mut model, &ids, &[24]) == alone[1], "{name}");
        model.set_initial_state(name, InitialState::Zeros).unwrap();
        assert!(all_bits(&mut model, &ids, &[24]) == plain, "{name}");
    }
}

#[test]
fn what_has_no_initial_state_is_refused() {
    for name in ["ouro", "looped-qwen3", "llama"] {
        let mut model = Model::open(&golden(name), &cpu()).unwrap();
        assert_eq!(model.initial_state(), None);
        for state in [InitialState::Zeros, NOISE] {
            let message = model.set_initial_state(state).unwrap_err().to_string();
            assert!(message.contains("whose state does not begin with the text"), "{message}");
        }
        let mut model = here(model.into_language_model());
        assert!(model.open_from(NOISE).is_err() && model.open_from(InitialState::Zeros).is_ok());
    }
    // Huginn's files say how wide its noise is; where they do not, it is as wide as its weights.
    let copy = Copy::of("huginn");
    let noise = |std: serde_json::Value| {
        copy.edit("config.json", |json| json["init_values"]["std"] = std);
        copy.open().unwrap().config().transformer.loops.as_ref().unwrap().noise
    };
    assert_eq!(noise(0.5.into()), Some(0.5 * 8.0));
    assert_eq!(noise(serde_json::Value::Null), Some((2.0_f64 / (5.0 * 64.0)).sqrt() * 8.0));
    assert_eq!(noise(0.into()), None);
    // Whose code draws other noise than this, or none.
    let copy = Copy::of("parcae");
    copy.edit("config.json", |json| json["state_init"] = "unit".into());
    let mut model = copy.open().unwrap();
    let message = model.set_initial_state(NOISE).unwrap_err().to_string();
    assert!(message.contains("expected zeros") && message.contains("noise:7"), "{message}");
    model.set_initial_state(InitialState::Zeros).unwrap();
}

/// What a checkpoint does not say, its user may: the same rows and the same identity of weights as from
/// a file that says it, and another configuration than without.
#[test]
fn fields_may_come_from_the_user() {
    let copy = Copy::of("looped-qwen3");
    let mut said = serde_json::Map::new();
    copy.edit("config.json", |json| {
        let loop_cfg = json.remove("loop_cfg").unwrap();
        said.insert("loop_cfg".into(), loop_cfg);
    });
    let plain = copy.open().unwrap();
    assert_eq!(plain.loops(), None);
    let model = Model::open_with(copy.path(), &cpu(), &said).unwrap();
    assert_eq!(model.identity().weights, plain.identity().weights);
    assert_ne!(model.identity().config, plain.identity().config);
    let ids = Reference::of("looped-qwen3").ids("input_ids");
    let [found, expected] = [model.into_language_model(), open("looped-qwen3")]
        .map(|model| bits(&rows(&mut here(model), &ids, &[ids.len()])[0]));
    assert!(found == expected);
    said["loop_cfg"]["end"] = 99.into();
    let refused = Model::open_with(copy.path(), &cpu(), &said).unwrap_err().to_string();
    assert!(refused.contains("loop_cfg") && refused.contains("end 99"), "{refused}");
}

#[test]
fn all_layers_of_qwen3_may_loop() {
    let copy = Copy::of("looped-qwen3");
    copy.edit("config.json", |json| {
        json["loop_cfg"] = serde_json::json!({"start": 0, "end": 4, "K": 4, "damping": 1.0});
    });
    let mut model = here(copy.open().unwrap().into_language_model());
    let reference = Reference::read(&golden("looped-qwen3").join("reference-full.safetensors"));
    assert_near(&mut model, "looped-qwen3", &reference.rows("logits_full"), TOLERANCE);
    // One loop without damping is the plain model, bit for bit.
    let ids = reference.ids("input_ids");
    model.set_loops("looped-qwen3", 1, None).unwrap();
    let once = rows(&mut model, &ids, &[24]);
    copy.edit("config.json", |json| drop(json.remove("loop_cfg")));
    let mut plain = here(copy.open().unwrap().into_language_model());
    assert_eq!(plain.loops(), None);
    assert_eq!(bits(&once[0]), bits(&rows(&mut plain, &ids, &[24])[0]));
}

/// Cuts, rollbacks, forks and company leave the bits alone, whatever the guidance.
#[test]
fn guided_rows_depend_on_their_prefix_only() {
    let strengths = [Strength::Fixed(0.3), Strength::Adaptive(1.0)];
    for name in LOOPED {
        let ids = Reference::of(name).ids("input_ids");
        let mut model = here(open(name));
        for form in [Form::Logits, Form::Hidden] {
            for strength in strengths {
                model.set_loops(name, R, Some(guided(2, form, strength))).unwrap();
                let expected = all_bits(&mut model, &ids, &[1; 24]);
                for cuts in [&[24][..], &[8, 5, 1, 7, 3]] {
                    let found = all_bits(&mut model, &ids, cuts);
                    assert!(found == expected, "{name} {form:?} {strength:?} {cuts:?}");
                }
                let what = format!("{name} {form:?} {strength:?}");
                assert_cuts(&mut model, &ids, &expected, &what);
            }
        }
    }
}

#[test]
fn no_weight_is_no_guidance() {
    for name in LOOPED {
        let ids = Reference::of(name).ids("input_ids");
        let mut model = here(open(name));
        let plain = bits(&rows(&mut model, &ids, &[24])[0]);
        for strength in [Strength::Fixed(0.0), Strength::Adaptive(0.0)] {
            for form in [Form::Logits, Form::Hidden] {
                model.set_loops(name, R, Some(guided(1, form, strength))).unwrap();
                assert_eq!(model.guidance(), None);
                assert!(bits(&rows(&mut model, &ids, &[24])[0]) == plain, "{name}");
            }
        }
    }
}

#[test]
fn an_early_exit_is_the_model_with_fewer_loops() {
    for name in LOOPED {
        let ids = Reference::of(name).ids("input_ids");
        let mut model = here(open(name));
        model.set_loops(name, R, Some(guided(1, Form::Logits, Strength::Fixed(1.0)))).unwrap();
        let mut early = model.early_exit(name, 2).unwrap();
        let found = bits(&rows(&mut early, &ids, &[24])[0]);
        model.set_loops(name, 2, None).unwrap();
        assert!(found == bits(&rows(&mut model, &ids, &[24])[0]), "{name}");
        if BEGIN.contains(&name) {
            // From the same noise.
            model.set_loops(name, R, None).unwrap();
            model.set_initial_state(name, NOISE).unwrap();
            let noisy = bits(&rows(&mut model.early_exit(name, 2).unwrap(), &ids, &[24])[0]);
            model.set_loops(name, 2, None).unwrap();
            assert_eq!(model.initial_state(), Some(NOISE));
            assert!(noisy == bits(&rows(&mut model, &ids, &[24])[0]) && noisy != found, "{name}");
        }
        assert!(model.early_exit(name, 2).is_err() && model.early_exit(name, 0).is_err());
    }
}

#[test]
fn settings_that_do_not_fit_are_refused() {
    let mut model = here(open("ouro"));
    let fixed = |reference, w| Some(guided(reference, Form::Logits, Strength::Fixed(w)));
    for (loops, guidance, about) in [
        (0, None, "loops"),
        (2000, None, "loops"),
        (4, fixed(4, 0.3), "reference loop"),
        (4, fixed(0, 0.3), "reference loop"),
        (4, fixed(1, -0.1), "weight"),
        (4, fixed(1, f32::NAN), "weight"),
        (4, fixed(1, f32::INFINITY), "weight"),
    ] {
        let message = model.set_loops("ouro", loops, guidance).unwrap_err().to_string();
        assert!(message.contains(about), "{message}");
    }
    let message = here(open("llama")).set_loops("llama", 2, None).unwrap_err().to_string();
    assert!(message.contains("looped transformer"), "{message}");
    // A cache of one setting cannot be continued under another.
    let sequence = model.open().unwrap();
    model.set_loops("ouro", 3, None).unwrap();
    assert!(model.len(sequence).is_err());
}

#[test]
fn ouro_may_be_tied_and_share_key_heads() {
    let copy = Copy::of("ouro");
    copy.edit("config.json", |json| json["tie_word_embeddings"] = true.into());
    copy.edit_weights("model.safetensors", |json, data| {
        let at = json["lm_head.weight"]["data_offsets"].clone();
        let from = json["model.embed_tokens.weight"]["data_offsets"].clone();
        let range = |v: &serde_json::Value| {
            v[0].as_u64().unwrap() as usize..v[1].as_u64().unwrap() as usize
        };
        let rows = data[range(&from)].to_vec();
        data[range(&at)].copy_from_slice(&rows);
    });
    let model = Model::open(copy.path(), &cpu()).unwrap();
    assert!(model.config().transformer.tied_head);
    copy.edit("config.json", |json| json["num_key_value_heads"] = 2.into());
    let message = copy.refusal();
    assert!(message.contains("k_proj") && message.contains("[32, 64]"), "{message}");
}
