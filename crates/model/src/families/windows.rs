//! Which layers see a sliding window only: `sliding_window`, `use_sliding_window`, `layer_types`.

use serde_json::Value;

use crate::{
    Error,
    config::{Fields, LayerConfig},
};

/// The window's size; null is none, and an absent field is `default`.
pub(super) fn size(fields: Fields<'_>, default: Option<usize>) -> Result<Option<usize>, Error> {
    match fields.size("sliding_window")? {
        None if !fields.has("sliding_window") => Ok(default),
        size => Ok(size),
    }
}

/// The window's size where `use_sliding_window` must switch it on.
pub(super) fn switched_size(
    fields: Fields<'_>,
    default: Option<usize>,
) -> Result<Option<usize>, Error> {
    match fields.flag("use_sliding_window")? {
        Some(true) => size(fields, default),
        _ => Ok(None),
    }
}

/// For families without windows: there may be a size only if it is switched off.
pub(super) fn refuse(fields: Fields<'_>) -> Result<(), Error> {
    let switched_off = fields.flag("use_sliding_window")? == Some(false);
    match fields.get("sliding_window") {
        Some(found) if !switched_off => Err(fields.error("sliding_window", "null", found)),
        _ => Ok(()),
    }
}

/// Gives the window to the layers that `layer_types` calls sliding or, if the file is silent, to
/// those that are so `by_default`.
pub(super) fn set(
    fields: Fields<'_>,
    layers: &mut [LayerConfig],
    window: Option<usize>,
    by_default: impl Fn(usize) -> bool,
) -> Result<(), Error> {
    let types = fields.list("layer_types")?;
    if let Some(types) = types
        && types.len() != layers.len()
    {
        let expected = format!("a type for each of {} layers", layers.len());
        return Err(fields.error("layer_types", expected, types.len()));
    }
    for (i, layer) in layers.iter_mut().enumerate() {
        let slides = match types.map(|types| &types[i]) {
            None => window.is_some() && by_default(i),
            Some(Value::String(kind)) if kind == "full_attention" => false,
            Some(Value::String(kind)) if kind == "sliding_attention" && window.is_some() => true,
            Some(other) => {
                let sliding = if window.is_some() { " or \"sliding_attention\"" } else { "" };
                let expected = format!("only \"full_attention\"{sliding}");
                return Err(fields.error("layer_types", expected, other));
            }
        };
        layer.window = window.filter(|_| slides);
    }
    Ok(())
}

/// Gives the window to every layer; the other fields must not say anything else.
pub(super) fn everywhere(
    fields: Fields<'_>,
    layers: &mut [LayerConfig],
    window: Option<usize>,
) -> Result<(), Error> {
    if window.is_some() && fields.flag("use_sliding_window")? == Some(false) {
        return Err(fields.error("use_sliding_window", "true, or no sliding_window", false));
    }
    set(fields, layers, window, |_| true)?;
    if layers.iter().any(|layer| layer.window != window) {
        let expected = "only \"sliding_attention\", since there is a sliding_window";
        return Err(fields.error("layer_types", expected, "\"full_attention\""));
    }
    Ok(())
}
