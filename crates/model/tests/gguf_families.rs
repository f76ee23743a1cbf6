use draftproof_decode::LanguageModel;
use draftproof_model::{Model, WeightType};

use crate::{
    gguf_convert::{Matrices, convert, fraction},
    gguf_file::{GgufFile, GgufTensor, number, text_item},
    support::{Copy, Reference, TOLERANCE, cpu, distance, feed, golden, greedy, logits},
};

/// Golden folders, what llama.cpp calls their family, and the file without losses.
fn files() -> [(&'static str, GgufFile); 6] {
    let mut mistral = convert("mistral", "llama", Matrices::F32);
    mistral.items.push(("llama.attention.sliding_window".into(), number(8)));
    [
        ("phi3", convert("phi3", "phi3", Matrices::F32)),
        ("gpt2", convert("gpt2", "gpt2", Matrices::F32)),
        ("smollm3", every_fourth(convert("smollm3", "smollm3", Matrices::F32))),
        ("mistral", mistral),
        ("qwen2", convert("qwen2", "qwen2", Matrices::F32)),
        ("qwen3", convert("qwen3", "qwen3", Matrices::F32)),
    ]
}

/// A file of three layers, the last of which does not rotate, with a fourth that changes nothing put
/// before it: there the layers that do not rotate are every fourth, and files cannot say otherwise.
fn every_fourth(mut file: GgufFile) -> GgufFile {
    *file.item("smollm3.block_count") = number(4);
    let idle = file.tensors.iter().filter(|tensor| tensor.name.starts_with("blk.2."));
    let idle = idle.cloned().map(|mut tensor| {
        if ["attn_output", "ffn_down"].iter().any(|name| tensor.name.contains(name)) {
            tensor.data.fill(0);
        }
        tensor
    });
    let idle: Vec<_> = idle.collect();
    assert_eq!(idle.len(), 9);
    for tensor in &mut file.tensors {
        tensor.name = tensor.name.replace("blk.2.", "blk.3.");
    }
    file.tensors.extend(idle);
    file
}

fn worst(name: &str, model: Model) -> f32 {
    let reference = Reference::of(name);
    let mut model = model.into_language_model();
    let sequence = model.open().unwrap();
    let rows = feed(&mut model, sequence, &reference.ids("input_ids"));
    distance(&rows, &reference.rows("logits_full"), 0)
}

#[test]
fn logits_and_greedy_text_are_those_of_transformers() {
    for (name, file) in files() {
        let worst = worst(name, file.open().unwrap());
        assert!(worst < TOLERANCE, "{name}: {worst:e}");
        let reference = Reference::of(name);
        let (prompt, expected) = (reference.ids("input_ids"), reference.ids("greedy_ids"));
        let mut model = file.open().unwrap().into_language_model();
        assert_eq!(greedy(&mut model, &prompt, expected.len()), expected, "{name}");
    }
}

#[test]
fn a_file_and_a_folder_of_the_same_weights_give_the_same_bits() {
    for (name, file) in files() {
        let folder = Model::open(&golden(name), &cpu()).unwrap();
        let model = file.open().unwrap();
        assert_eq!(model.config().model_type, name);
        assert_eq!(model.eos(), folder.eos(), "{name}");
        if name != "smollm3" {
            assert_eq!(model.parameters(), folder.parameters(), "{name}");
        }
        assert_eq!(logits(name, model), logits(name, folder), "{name}");
    }
}

/// Parts of fused matrices are whole rows of blocks; what is narrower than f32 is its values.
#[test]
fn narrow_types_give_the_bits_of_their_values() {
    for (name, architecture) in [("phi3", "phi3"), ("gpt2", "gpt2"), ("smollm3", "smollm3")] {
        for (matrices, shown) in [(Matrices::F16, "f16"), (Matrices::Q8, "Q8_0")] {
            let narrow = convert(name, architecture, matrices);
            let wide = narrow.clone().widened().open().unwrap();
            assert_eq!(wide.weight_type(), WeightType::F32);
            let narrow = narrow.open().unwrap();
            assert_eq!(narrow.weight_type().to_string(), shown);
            assert_eq!(logits(name, narrow), logits(name, wide), "{name}, {shown}");
        }
    }
    // The values are near, of logits up to 11: a fault in reading could hide from its own reader.
    for (matrices, tolerance) in [(Matrices::F16, 0.05), (Matrices::Q8, 1.0)] {
        for name in ["phi3", "gpt2"] {
            let worst = worst(name, convert(name, name, matrices).open().unwrap());
            println!("{name}, {matrices:?}: {worst:e}");
            assert!(worst < tolerance, "{name}, {matrices:?}: {worst:e}");
        }
    }
}

/// Some converters write the embedding again as the head.
#[test]
fn a_head_that_is_there_is_used() {
    let mut file = convert("gpt2", "gpt2", Matrices::F32);
    let head =
        GgufTensor { name: "output.weight".into(), ..file.tensor("token_embd.weight").clone() };
    file.tensors.push(head);
    let folder = Model::open(&golden("gpt2"), &cpu()).unwrap();
    assert_eq!(logits("gpt2", file.open().unwrap()), logits("gpt2", folder));
    let twice = file.tensor("output.weight").data.chunks_exact(4);
    let twice = twice.map(|b| 2.0 * f32::from_le_bytes(b.try_into().unwrap()));
    file.tensor("output.weight").data = twice.flat_map(f32::to_le_bytes).collect();
    assert!(worst("gpt2", file.open().unwrap()) > 0.1);
}

/// A window of 0 is none, as is silence, except where a family means something by it.
#[test]
fn windows_are_what_the_file_says() {
    const WINDOW: &str = "phi3.attention.sliding_window";
    let mut file = convert("phi3", "phi3", Matrices::F32);
    let none = logits("phi3", file.open().unwrap());
    *file.item(WINDOW) = number(8);
    let eight = Copy::of("phi3");
    eight.edit("config.json", |config| _ = config.insert("sliding_window".into(), 8.into()));
    let found = logits("phi3", file.open().unwrap());
    assert_eq!(found, logits("phi3", eight.open().unwrap()));
    assert_ne!(found, none);
    file.items.retain(|(key, _)| key != WINDOW);
    assert_eq!(logits("phi3", file.open().unwrap()), none);

    let mut file = convert("mistral", "llama", Matrices::F32);
    let silent = file.open().unwrap();
    assert_eq!(silent.config().model_type, "llama");
    let endless = Copy::of("mistral");
    let null = serde_json::Value::Null;
    endless.edit("config.json", |config| _ = config.insert("sliding_window".into(), null));
    let expected = logits("mistral", endless.open().unwrap());
    assert_eq!(logits("mistral", silent), expected);
    file.items.push(("llama.attention.sliding_window".into(), number(0)));
    assert_eq!(logits("mistral", file.open().unwrap()), expected);
}

#[test]
fn the_epsilon_of_layer_norms_is_read() {
    let mut file = convert("gpt2", "gpt2", Matrices::F32);
    *file.item("gpt2.attention.layer_norm_epsilon") = fraction(0.5);
    let folder = Copy::of("gpt2");
    folder.edit("config.json", |config| _ = config.insert("layer_norm_epsilon".into(), 0.5.into()));
    let found = logits("gpt2", file.open().unwrap());
    assert_eq!(found, logits("gpt2", folder.open().unwrap()));
    let folder = Model::open(&golden("gpt2"), &cpu()).unwrap();
    assert_ne!(found, logits("gpt2", folder));
}

#[test]
fn what_a_family_does_not_have_is_refused() {
    let refused = |name: &str, change: &dyn Fn(&mut GgufFile), needles: &[&str]| {
        let mut file = convert(name, name, Matrices::F32);
        change(&mut file);
        let message = file.refusal();
        for needle in needles {
            assert!(message.contains(needle), "{name}: {needle}: {message}");
        }
    };
    let put = |key: &'static str, item: Vec<u8>| {
        move |file: &mut GgufFile| file.items.push((key.into(), item.clone()))
    };
    let tensor = |name: &'static str| {
        let data = 1_f32.to_le_bytes().repeat(8);
        move |file: &mut GgufFile| {
            let tensor =
                GgufTensor { name: name.into(), dims: vec![8], kind: 0, data: data.clone() };
            file.tensors.push(tensor);
        }
    };
    // Whatever is asked first.
    for name in ["rope_factors_long.weight", "rope_factors_short.weight"] {
        let stretch = tensor(name);
        refused("phi3", &stretch, &[name, "longrope", "not supported"]);
        let both = |file: &mut GgufFile| {
            stretch(file);
            put("phi3.rope.scaling.attn_factor", fraction(1.2))(file);
        };
        refused("phi3", &both, &[name, "longrope", "not supported"]);
    }
    let factor = put("phi3.rope.scaling.attn_factor", fraction(1.2));
    refused("phi3", &factor, &["phi3.rope.scaling.attn_factor"]);
    let longrope = put("phi3.rope.scaling.type", text_item("longrope"));
    refused("phi3", &longrope, &["rope.scaling.type", "longrope"]);
    // Heads of which only a part is rotated.
    let part = |file: &mut GgufFile| *file.item("phi3.rope.dimension_count") = number(12);
    refused("phi3", &part, &["phi3.rope.dimension_count", "16", "12"]);
    let unfused = |file: &mut GgufFile| {
        file.tensor("blk.1.attn_qkv.weight").name = "blk.1.attn_q.weight".into()
    };
    refused("phi3", &unfused, &["blk.1.attn_qkv.weight", "no such tensor"]);
    let halved = |file: &mut GgufFile| {
        let up = file.tensor("blk.1.ffn_up.weight");
        up.dims[1] /= 2;
        up.data.truncate(up.data.len() / 2);
    };
    refused("phi3", &halved, &["blk.1.ffn_up.weight", "[256, 64]", "[128, 64]"]);
    refused("smollm3", &put("smollm3.attention.sliding_window", number(8)), &["sliding_window"]);
    // As the folder has it.
    let turned = |file: &mut GgufFile| file.tensor("blk.0.attn_qkv.weight").dims.reverse();
    refused("gpt2", &turned, &["blk.0.attn_qkv.weight", "[192, 64]", "[64, 192]"]);
    let lost = |name: &'static str| {
        move |file: &mut GgufFile| file.tensors.retain(|tensor| tensor.name != name)
    };
    for name in ["position_embd.weight", "output_norm.bias", "blk.2.attn_qkv.bias"] {
        refused("gpt2", &lost(name), &[name, "no such tensor"]);
    }
    refused("gpt2", &put("gpt2.rope.freq_base", fraction(1e4)), &["rope_theta", "learned"]);
    refused("gpt2", &tensor("rope_freqs.weight"), &["rope_freqs.weight", "one rotation"]);
    let short = |file: &mut GgufFile| *file.item("gpt2.context_length") = number(64);
    refused("gpt2", &short, &["position_embd.weight", "[64, 64]", "[128, 64]"]);
}

#[test]
fn an_unknown_architecture_is_told_what_there_is() {
    let mut file = convert("phi3", "phi3", Matrices::F32);
    *file.item("general.architecture") = text_item("phi2");
    let message = file.refusal();
    for name in
        ["llama", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "smollm3", "gpt2", "\"phi2\""]
    {
        assert!(message.contains(name), "{name}: {message}");
    }
}
