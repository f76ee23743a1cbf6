//! `generation_config.json`: what the authors of a model recommend for sampling.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{
    Error,
    config::{Ids, read},
};

/// Recommended sampling; None where the file is silent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationConfig {
    /// Whether to sample; greedy otherwise.
    pub do_sample: Option<bool>,
    /// Temperature.
    pub temperature: Option<f64>,
    /// Keep the k most probable tokens; 0 is off.
    pub top_k: Option<u64>,
    /// Keep the most probable tokens up to this mass.
    pub top_p: Option<f64>,
    /// Keep tokens at least this probable, relative to the most probable one.
    pub min_p: Option<f64>,
    /// Locally typical mass.
    pub typical_p: Option<f64>,
    /// Divides the logits of tokens that occurred.
    pub repetition_penalty: Option<f64>,
    /// Forbids to repeat a sequence of so many tokens; 0 is off.
    pub no_repeat_ngram_size: Option<u64>,
    /// The id that begins a text.
    pub bos: Option<u32>,
    /// The ids that end a text.
    pub eos: Vec<u32>,
    /// The texts that end a text.
    pub stop_strings: Vec<String>,
    /// Other settings of the file that would change the law of the text, as `name = value`. Nobody
    /// here acts on them: whoever adopts this configuration has to say so.
    pub unused: Vec<String>,
}

/// Fields that change which tokens come out, beyond those above, with the value that does nothing.
const LAW: [(&str, &str); 18] = [
    ("assistant_confidence_threshold", "null"),
    ("bad_words_ids", "null"),
    ("begin_suppress_tokens", "null"),
    ("diversity_penalty", "0.0"),
    ("encoder_no_repeat_ngram_size", "0"),
    ("encoder_repetition_penalty", "1.0"),
    ("epsilon_cutoff", "0.0"),
    ("eta_cutoff", "0.0"),
    ("forced_bos_token_id", "null"),
    ("forced_eos_token_id", "null"),
    ("guidance_scale", "null"),
    ("min_new_tokens", "null"),
    ("num_beams", "1"),
    ("penalty_alpha", "null"),
    ("sequence_bias", "null"),
    ("suppress_tokens", "null"),
    ("top_h", "null"),
    ("watermarking_config", "null"),
];

#[derive(Deserialize)]
struct Raw {
    do_sample: Option<bool>,
    temperature: Option<f64>,
    top_k: Option<u64>,
    top_p: Option<f64>,
    min_p: Option<f64>,
    typical_p: Option<f64>,
    repetition_penalty: Option<f64>,
    no_repeat_ngram_size: Option<u64>,
    bos_token_id: Option<u32>,
    eos_token_id: Option<Ids>,
    stop_strings: Option<Strings>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a text or a list of texts")]
enum Strings {
    One(String),
    Several(Vec<String>),
}

impl GenerationConfig {
    /// Reads a `generation_config.json`; `file` names it in errors.
    ///
    /// # Errors
    /// If it is no JSON object, a field has the wrong type, or a number is out of its range.
    pub fn parse(file: &str, bytes: &[u8]) -> Result<Self, Error> {
        let raw: Map<String, Value> =
            serde_json::from_slice(bytes).map_err(|source| Error::json(file, source))?;
        let fields: Raw = read(file, &raw)?;
        let at_least_zero = [
            ("temperature", fields.temperature),
            ("top_p", fields.top_p),
            ("min_p", fields.min_p),
            ("typical_p", fields.typical_p),
            ("repetition_penalty", fields.repetition_penalty),
        ];
        for (field, number) in at_least_zero {
            if let Some(number) = number
                && !(number >= 0.0 && number.is_finite())
            {
                return Err(Error::field(file, field, "a number from 0", number));
            }
        }
        Ok(Self {
            do_sample: fields.do_sample,
            temperature: fields.temperature,
            top_k: fields.top_k,
            top_p: fields.top_p,
            min_p: fields.min_p,
            typical_p: fields.typical_p,
            repetition_penalty: fields.repetition_penalty,
            no_repeat_ngram_size: fields.no_repeat_ngram_size,
            bos: fields.bos_token_id,
            eos: fields.eos_token_id.map(Ids::into_vec).unwrap_or_default(),
            stop_strings: match fields.stop_strings {
                None => Vec::new(),
                Some(Strings::One(text)) => vec![text],
                Some(Strings::Several(texts)) => texts,
            },
            unused: unused(&raw),
        })
    }
}

fn unused(raw: &Map<String, Value>) -> Vec<String> {
    LAW.iter()
        .filter_map(|(name, neutral)| {
            let value = raw.get(*name)?;
            let text = value.to_string();
            let same = value.as_f64().is_some_and(|v| neutral.parse() == Ok(v));
            (!value.is_null() && text != *neutral && !same).then(|| format!("{name} = {text}"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<GenerationConfig, Error> {
        GenerationConfig::parse("generation_config.json", text.as_bytes())
    }

    #[test]
    fn a_hub_file_is_read() {
        let config = parse(
            r#"{"do_sample": true, "temperature": 0.6, "top_p": 0.95, "top_k": 20,
                "repetition_penalty": 1, "bos_token_id": 5, "eos_token_id": [7, 9],
                "transformers_version": "4.51.0", "num_beams": 1, "epsilon_cutoff": 0}"#,
        )
        .unwrap();
        assert_eq!(config.temperature, Some(0.6));
        assert_eq!(config.top_k, Some(20));
        assert_eq!(config.top_p, Some(0.95));
        assert_eq!(config.repetition_penalty, Some(1.0));
        assert_eq!((config.bos, config.eos), (Some(5), vec![7, 9]));
        assert_eq!(config.unused, [""; 0]);
        assert_eq!(parse(r#"{"eos_token_id": 3}"#).unwrap().eos, [3]);
        for (text, expected) in [(r#""end""#, &["end"][..]), (r#"["a", "b"]"#, &["a", "b"])] {
            let config = parse(&format!(r#"{{"stop_strings": {text}}}"#)).unwrap();
            assert_eq!(config.stop_strings, expected);
        }
        assert_eq!(parse("{}").unwrap(), GenerationConfig::default());
    }

    #[test]
    fn settings_that_nobody_honours_are_listed() {
        let config = parse(r#"{"num_beams": 4, "suppress_tokens": [1, 2], "top_h": null}"#);
        assert_eq!(config.unwrap().unused, ["num_beams = 4", "suppress_tokens = [1,2]"]);
    }

    #[test]
    fn wrong_types_and_ranges_are_errors() {
        for text in [
            "",
            "[]",
            r#"{"temperature": "hot"}"#,
            r#"{"temperature": -1}"#,
            r#"{"top_k": -1}"#,
            r#"{"top_k": 1.5}"#,
            r#"{"eos_token_id": "x"}"#,
            r#"{"eos_token_id": -1}"#,
            r#"{"stop_strings": 7}"#,
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
