//! What looped families have in common.

use crate::{
    Error,
    config::{Fields, MAX_LAYERS},
    loops::MAX_LOOPS,
};

/// A number of loops.
pub(super) fn count(fields: Fields<'_>, field: &str) -> Result<usize, Error> {
    let loops = fields.needed_size(field)?;
    match loops {
        1..=MAX_LOOPS => Ok(loops),
        _ => Err(fields.error(field, format!("from 1 to {MAX_LOOPS} loops"), loops)),
    }
}

/// The layers before, in and after the loop, where the file counts each by itself.
pub(super) fn sections(fields: Fields<'_>) -> Result<[usize; 3], Error> {
    let section = |field: &str| match fields.needed_size(field)? {
        layers @ 0..=MAX_LAYERS => Ok(layers),
        layers => Err(fields.error(field, format!("at most {MAX_LAYERS} layers"), layers)),
    };
    let prelude = section("n_layers_in_prelude")?;
    let core = section("n_layers_in_recurrent_block")?;
    if core == 0 {
        return Err(fields.error("n_layers_in_recurrent_block", "at least one layer", core));
    }
    Ok([prelude, core, section("n_layers_in_coda")?])
}

/// The deviation with which weights are drawn, and initial states.
pub(super) fn std(hidden: usize) -> f64 {
    (2.0 / (5.0 * hidden as f64)).sqrt()
}

/// Refuses what the arithmetic of a family does not have, unless the field is absent or null.
pub(super) fn only(
    fields: Fields<'_>,
    expected: &[(&str, serde_json::Value)],
) -> Result<(), Error> {
    for (field, expected) in expected {
        match fields.get(field) {
            Some(found) if found != expected => {
                return Err(fields.error(field, expected.to_string(), found));
            }
            _ => {}
        }
    }
    Ok(())
}
