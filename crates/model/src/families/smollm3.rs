//! SmolLM3: Llama without rotation on some layers, which may have a window.

use super::{
    Family,
    llama::{self, Defaults},
    ropes, windows,
};
use crate::{
    Error,
    config::{Fields, LayerConfig, TransformerConfig},
};

pub(super) const FAMILY: Family = Family {
    model_type: "smollm3",
    architecture: "SmolLM3ForCausalLM",
    reads: &["attention_bias", "mlp_bias", "no_rope_layers"],
    aliases: &[],
    parse,
};

fn parse(fields: Fields<'_>) -> Result<TransformerConfig, Error> {
    let defaults =
        Defaults { context: 32_768, tied_head: true, kv_heads: Some(4), ..Defaults::LLAMA };
    let ropes = vec![ropes::one(fields, 2_000_000.0)?];
    let mut config = llama::plain(fields, &defaults, ropes)?;
    drop_ropes(fields, &mut config.layers)?;
    let rotated: Vec<bool> = config.layers.iter().map(|layer| layer.rope.is_some()).collect();
    let window = windows::switched_size(fields, None)?;
    windows::set(fields, &mut config.layers, window, |layer| !rotated[layer])?;
    Ok(config)
}

/// `no_rope_layers` is 1 for layers that rotate, in spite of its name, and 0 for those that do not;
/// in its absence every `no_rope_layer_interval`-th does not.
fn drop_ropes(fields: Fields<'_>, layers: &mut [LayerConfig]) -> Result<(), Error> {
    let interval = fields.size("no_rope_layer_interval")?.unwrap_or(4);
    let list = fields.list("no_rope_layers")?;
    if let Some(list) = list
        && list.len() != layers.len()
    {
        let expected = format!("a number for each of {} layers", layers.len());
        return Err(fields.error("no_rope_layers", expected, list.len()));
    }
    if list.is_none() && interval == 0 {
        return Err(fields.error("no_rope_layer_interval", "at least 1", interval));
    }
    for (i, layer) in layers.iter_mut().enumerate() {
        let rotates = match list.map(|list| &list[i]) {
            None => !(i + 1).is_multiple_of(interval),
            Some(flag) => match flag.as_u64() {
                Some(flag @ 0..=1) => flag == 1,
                _ => return Err(fields.error("no_rope_layers", "only 0 and 1", flag)),
            },
        };
        layer.rope = layer.rope.filter(|_| rotates);
    }
    Ok(())
}
