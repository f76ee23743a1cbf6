//! Golden folders as GGUF files, in the layout that llama.cpp's converter gives their family.

use std::fs;

use half::f16;
use safetensors::SafeTensors;
use serde_json::{Map, Value};

use crate::{
    gguf_file::{GgufFile, GgufTensor, number, text_item},
    support::golden,
};

/// The types of matrices; vectors, and positions that are learned, stay F32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Matrices {
    F32,
    F16,
    Q8,
}

/// The golden folder `name`, whose family llama.cpp calls `architecture`.
pub(crate) fn convert(name: &str, architecture: &str, matrices: Matrices) -> GgufFile {
    let folder = golden(name);
    let config: Map<String, Value> =
        serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap();
    let bytes = fs::read(folder.join("model.safetensors")).unwrap();
    let weights = SafeTensors::deserialize(&bytes).unwrap();
    // The pairs of a query or key head lie side by side where llama.cpp rotates neighbours.
    let paired = ["llama", "smollm3"].contains(&architecture);
    let size = |key: &str| config[key].as_u64().unwrap() as usize;
    let mut names = weights.names();
    names.sort_unstable();
    let tensors = names.into_iter().map(|name| {
        let tensor = weights.tensor(name).unwrap();
        let values = tensor.data().chunks_exact(4);
        let values = values.map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect();
        let mut stored = Stored { shape: tensor.shape().to_vec(), values };
        if architecture == "gpt2" && name.contains(".c_") && name.ends_with(".weight") {
            stored = stored.transposed();
        }
        for (map, heads) in [("q_proj", "num_attention_heads"), ("k_proj", "num_key_value_heads")] {
            if paired && name.contains(map) {
                stored = stored.paired(size(heads));
            }
        }
        stored.tensor(rename(name), matrices)
    });
    GgufFile { items: items(architecture, &config), tensors: tensors.collect() }
}

/// Type and value of a number with a fraction.
pub(crate) fn fraction(number: f32) -> Vec<u8> {
    [6_u32.to_le_bytes(), number.to_le_bytes()].concat()
}

fn items(architecture: &str, config: &Map<String, Value>) -> Vec<(String, Vec<u8>)> {
    let mut items = vec![("general.architecture".to_owned(), text_item(architecture))];
    let mut put = |key: &str, item| items.push((format!("{architecture}.{key}"), item));
    let whole = |key: &str| config.get(key).and_then(Value::as_u64).map(|n| number(n as u32));
    for (key, fields) in [
        ("context_length", ["max_position_embeddings", "n_ctx"]),
        ("embedding_length", ["hidden_size", "n_embd"]),
        ("block_count", ["num_hidden_layers", "n_layer"]),
        ("feed_forward_length", ["intermediate_size", "n_inner"]),
        ("attention.head_count", ["num_attention_heads", "n_head"]),
        ("attention.head_count_kv", ["num_key_value_heads", ""]),
    ] {
        if let Some(item) = fields.into_iter().find_map(whole) {
            put(key, item);
        }
    }
    for (key, field) in [
        ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
        ("attention.layer_norm_epsilon", "layer_norm_epsilon"),
        ("rope.freq_base", "rope_theta"),
    ] {
        if let Some(found) = config.get(field).and_then(Value::as_f64) {
            put(key, fraction(found as f32));
        }
    }
    let size = |key: &str| config[key].as_u64().unwrap() as u32;
    match architecture {
        "gpt2" => put("feed_forward_length", number(4 * size("n_embd"))),
        "qwen2" | "qwen3" => {}
        _ => put("rope.dimension_count", number(size("hidden_size") / size("num_attention_heads"))),
    }
    if let Some(item) = config.get("head_dim").and_then(Value::as_u64) {
        put("attention.key_length", number(item as u32));
        put("attention.value_length", number(item as u32));
    }
    if architecture == "phi3" {
        let original = size("original_max_position_embeddings");
        put("rope.scaling.original_context_length", number(original));
        // No window, as it is written there.
        put("attention.sliding_window", number(0));
    }
    for id in ["bos_token_id", "eos_token_id"] {
        items.push((format!("tokenizer.ggml.{id}"), number(size(id))));
    }
    items
}

/// What llama.cpp calls a tensor.
fn rename(name: &str) -> String {
    const PARTS: [(&str, &str); 24] = [
        ("transformer.h.", "blk."),
        ("model.layers.", "blk."),
        ("transformer.wte.", "token_embd."),
        ("transformer.wpe.", "position_embd."),
        ("transformer.ln_f.", "output_norm."),
        ("model.embed_tokens.", "token_embd."),
        ("model.norm.", "output_norm."),
        ("lm_head.", "output."),
        (".post_attention_layernorm.", ".ffn_norm."),
        (".input_layernorm.", ".attn_norm."),
        (".self_attn.qkv_proj.", ".attn_qkv."),
        (".self_attn.q_proj.", ".attn_q."),
        (".self_attn.k_proj.", ".attn_k."),
        (".self_attn.v_proj.", ".attn_v."),
        (".self_attn.q_norm.", ".attn_q_norm."),
        (".self_attn.k_norm.", ".attn_k_norm."),
        (".self_attn.o_proj.", ".attn_output."),
        (".mlp.gate_up_proj.", ".ffn_up."),
        (".mlp.gate_proj.", ".ffn_gate."),
        (".mlp.up_proj.", ".ffn_up."),
        (".mlp.down_proj.", ".ffn_down."),
        (".attn.c_attn.", ".attn_qkv."),
        (".attn.c_proj.", ".attn_output."),
        (".mlp.c_fc.", ".ffn_up."),
    ];
    let name = PARTS.iter().fold(name.to_owned(), |name, (from, to)| name.replace(from, to));
    let name = name.replace(".mlp.c_proj.", ".ffn_down.");
    name.replace(".ln_1.", ".attn_norm.").replace(".ln_2.", ".ffn_norm.")
}

/// Values, row by row.
struct Stored {
    shape: Vec<usize>,
    values: Vec<f32>,
}

impl Stored {
    fn transposed(self) -> Self {
        let [rows, columns] = self.shape[..] else { panic!("a matrix") };
        let at = |column: usize| (0..rows).map(move |row| row * columns + column);
        let values = (0..columns).flat_map(at).map(|i| self.values[i]).collect();
        Self { shape: vec![columns, rows], values }
    }

    /// The halves of each head's rows, one row of each in turn.
    fn paired(self, heads: usize) -> Self {
        let rows: Vec<&[f32]> = self.values.chunks(self.shape[1]).collect();
        let half = rows.len() / heads / 2;
        let pair = |head: &[&[f32]], i: usize| [head[i], head[half + i]].concat();
        let head = |head: &[&[f32]]| (0..half).flat_map(|i| pair(head, i)).collect::<Vec<f32>>();
        let values = rows.chunks(2 * half).flat_map(head).collect();
        Self { shape: self.shape, values }
    }

    fn tensor(self, name: String, matrices: Matrices) -> GgufTensor {
        let plain = self.shape.len() == 1 || name.starts_with("position_embd");
        let matrices = if plain { Matrices::F32 } else { matrices };
        let values = self.values.iter();
        let (kind, data) = match matrices {
            Matrices::F32 => (0, values.flat_map(|value| value.to_le_bytes()).collect()),
            Matrices::F16 => {
                (1, values.flat_map(|value| f16::from_f32(*value).to_le_bytes()).collect())
            }
            Matrices::Q8 => (8, self.values.chunks_exact(32).flat_map(q8).collect()),
        };
        let dims = self.shape.iter().rev().map(|&size| size as u64).collect();
        GgufTensor { name, dims, kind, data }
    }
}

/// A block: a scale and 32 whole numbers of a byte.
fn q8(values: &[f32]) -> Vec<u8> {
    let largest = values.iter().fold(0_f32, |largest, value| largest.max(value.abs()));
    let scale = largest / 127.0;
    let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
    let mut block = f16::from_f32(scale).to_le_bytes().to_vec();
    block.extend(values.iter().map(|value| ((value * inverse).round() as i8).cast_unsigned()));
    block
}
