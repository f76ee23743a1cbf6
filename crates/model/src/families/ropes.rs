//! Rotary positions as files write them: in the hub's layout (`rope_theta` and `rope_scaling`), or
//! all of it in `rope_parameters`. A file that has both must say the same twice.

use serde_json::{Map, Value};

use crate::{
    Error,
    config::Fields,
    rope::{RopeConfig, RopeScaling},
};

/// What one object says.
#[derive(Clone, Copy)]
struct Layout {
    theta: Option<f64>,
    scaling: RopeScaling,
}

/// The rotation that all layers share.
pub(super) fn one(fields: Fields<'_>, default_theta: f64) -> Result<RopeConfig, Error> {
    let new = object(fields, "rope_parameters", fields.get("rope_parameters"))?;
    global(fields, new, default_theta)
}

/// The rotations of layers without and with a window.
pub(super) fn global_and_local(
    fields: Fields<'_>,
    default_thetas: [f64; 2],
) -> Result<[RopeConfig; 2], Error> {
    let parameters = fields.get("rope_parameters");
    let part = |kind: &str| {
        let part = parameters.and_then(|parameters| parameters.get(kind));
        let name = format!("rope_parameters.{kind}");
        match part.filter(|part| !part.is_null()) {
            // Both, or the file means something else.
            None if parameters.is_some() => Err(fields.error(&name, "an object", "none")),
            part => object(fields, &name, part),
        }
    };
    let local = combine(
        fields,
        ("rope_local_base_freq", default_thetas[1]),
        None,
        part("sliding_attention")?,
    )?;
    Ok([global(fields, part("full_attention")?, default_thetas[0])?, local])
}

/// The rotation of which the hub's layout has all the fields.
fn global(
    fields: Fields<'_>,
    new: Option<Layout>,
    default_theta: f64,
) -> Result<RopeConfig, Error> {
    let hub = object(fields, "rope_scaling", fields.get("rope_scaling"))?;
    combine(fields, ("rope_theta", default_theta), hub, new)
}

fn combine(
    fields: Fields<'_>,
    (theta_field, default_theta): (&str, f64),
    hub: Option<Layout>,
    new: Option<Layout>,
) -> Result<RopeConfig, Error> {
    let said = new.or(hub);
    let top = fields.positive(theta_field)?.or(hub.and_then(|hub| hub.theta));
    let config = RopeConfig {
        theta: said.and_then(|said| said.theta).or(top).unwrap_or(default_theta),
        scaling: said.map_or(RopeScaling::None, |said| said.scaling),
    };
    if let Some(hub) = hub
        && hub.scaling != config.scaling
    {
        let expected = format!("{:?} as in rope_parameters", config.scaling);
        return Err(fields.error("rope_scaling", expected, format!("{:?}", hub.scaling)));
    }
    if let Some(theta) = top
        && theta != config.theta
    {
        let expected = format!("{} as in rope_parameters", config.theta);
        return Err(fields.error(theta_field, expected, theta));
    }
    Ok(config)
}

fn object(fields: Fields<'_>, name: &str, found: Option<&Value>) -> Result<Option<Layout>, Error> {
    match found {
        None => Ok(None),
        Some(Value::Object(raw)) => Object { fields, name, raw }.read().map(Some),
        Some(other) => Err(fields.error(name, "an object or null", other)),
    }
}

/// An object of parameters; `name` is what errors call it.
#[derive(Clone, Copy)]
struct Object<'a> {
    fields: Fields<'a>,
    name: &'a str,
    raw: &'a Map<String, Value>,
}

impl<'a> Object<'a> {
    fn get(self, key: &str) -> Option<&'a Value> {
        self.raw.get(key).filter(|value| !value.is_null())
    }

    fn error(self, key: &str, expected: impl Into<String>, found: impl ToString) -> Error {
        self.fields.error(&format!("{}.{key}", self.name), expected, found)
    }

    fn positive(self, key: &str) -> Result<Option<f64>, Error> {
        let Some(found) = self.get(key) else { return Ok(None) };
        match found.as_f64() {
            Some(number) if number > 0.0 && number.is_finite() => Ok(Some(number)),
            _ => Err(self.error(key, "a positive number", found)),
        }
    }

    fn needed(self, key: &str) -> Result<f64, Error> {
        self.positive(key)?.ok_or_else(|| self.error(key, "a positive number", "none"))
    }

    fn read(self) -> Result<Layout, Error> {
        if let Some(factor) = self.get("partial_rotary_factor")
            && factor.as_f64() != Some(1.0)
        {
            return Err(self.error("partial_rotary_factor", "1", factor));
        }
        Ok(Layout { theta: self.positive("rope_theta")?, scaling: self.scaling()? })
    }

    /// Refuses keys that the type has no use for.
    fn only(self, keys: &[&str]) -> Result<(), Error> {
        const COMMON: [&str; 4] = ["rope_theta", "rope_type", "type", "partial_rotary_factor"];
        let known = |key: &str| COMMON.contains(&key) || keys.contains(&key);
        match self.raw.iter().find(|(key, value)| !value.is_null() && !known(key)) {
            Some((key, found)) => Err(self.error(key, "no such parameter of this type", found)),
            None => Ok(()),
        }
    }

    fn scaling(self) -> Result<RopeScaling, Error> {
        let (kind, old) = (self.get("rope_type"), self.get("type"));
        if let (Some(kind), Some(old)) = (kind, old)
            && kind != old
        {
            return Err(self.error("type", format!("{kind} as rope_type"), old));
        }
        let found = kind.or(old).unwrap_or(&Value::Null);
        match found.as_str() {
            Some("default") => {
                self.only(&["original_max_position_embeddings"])?;
                Ok(RopeScaling::None)
            }
            Some("linear") => {
                self.only(&["factor", "original_max_position_embeddings"])?;
                Ok(RopeScaling::Linear { factor: self.needed("factor")? })
            }
            Some("llama3") => self.llama3(),
            Some("yarn") => self.yarn(),
            None if found.is_null() && self.only(&[]).is_ok() => Ok(RopeScaling::None),
            _ => {
                let expected = "\"default\", \"linear\", \"llama3\" or \"yarn\"";
                Err(self.error("rope_type", expected, found))
            }
        }
    }

    fn llama3(self) -> Result<RopeScaling, Error> {
        const ORIGINAL: &str = "original_max_position_embeddings";
        self.only(&["factor", "low_freq_factor", "high_freq_factor", ORIGINAL])?;
        let (low, high) = (self.needed("low_freq_factor")?, self.needed("high_freq_factor")?);
        if high <= low {
            let expected = format!("more than low_freq_factor {low}");
            return Err(self.error("high_freq_factor", expected, high));
        }
        let (factor, original) = (self.needed("factor")?, self.needed(ORIGINAL)?);
        Ok(RopeScaling::Llama3 { factor, low, high, original })
    }

    fn yarn(self) -> Result<RopeScaling, Error> {
        const ORIGINAL: &str = "original_max_position_embeddings";
        let optional = ["attention_factor", "mscale", "mscale_all_dim", "beta_fast", "beta_slow"];
        self.only(&[&["factor", "truncate", ORIGINAL], &optional[..]].concat())?;
        let [attention, mscale, mscale_all, fast, slow] = optional.map(|key| self.positive(key));
        let (factor, original) = (self.needed("factor")?, self.needed(ORIGINAL)?);
        let grown = |scale: f64| if factor > 1.0 { 0.1 * scale * factor.ln() + 1.0 } else { 1.0 };
        let attention = match (attention?, mscale?, mscale_all?) {
            (Some(attention), _, _) => attention,
            (None, Some(scale), Some(all)) => grown(scale) / grown(all),
            _ => grown(1.0),
        };
        let truncate = match self.get("truncate") {
            None => true,
            Some(Value::Bool(truncate)) => *truncate,
            Some(found) => return Err(self.error("truncate", "true or false", found)),
        };
        Ok(RopeScaling::Yarn {
            factor,
            original,
            fast: fast?.unwrap_or(32.0),
            slow: slow?.unwrap_or(1.0),
            truncate,
            attention,
        })
    }
}
