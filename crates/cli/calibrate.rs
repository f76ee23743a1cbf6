//! `draftproof watermark calibrate`: thresholds of a key's detector, from texts.

use std::{fs::File, io::BufReader, path::Path};

use anyhow::{Context, Result, bail};
use draftproof_decode::{
    Token,
    watermark::detect::{Calibration, Detector, Evidence},
};
use draftproof_model::Model;
use draftproof_verification::audit::Samples;

use crate::{
    args::CalibrateArguments,
    measure::OutFile,
    settings,
    watermark::{check_tokenizer, open_keys},
};

/// Plain text is cut into texts of this many tokens.
const CUT: usize = 512;

pub(crate) fn run(arguments: &CalibrateArguments) -> Result<()> {
    let file = &arguments.watermark_key;
    let ring = open_keys(file)?;
    let key = ring.current();
    let model = settings::open_cpu(&arguments.model)?;
    check_tokenizer(file, key, &model)?;
    let out = OutFile::create(&arguments.output)?;
    let detector = Detector::new(key, arguments.false_positive_rate);
    let evidence = |path: &Path| -> Result<Vec<Evidence>> {
        let texts = texts(path, &model)?;
        Ok(texts.iter().map(|text| detector.evidence(text, model.eos())).collect())
    };
    let (unmarked, marked) = (evidence(&arguments.human)?, evidence(&arguments.generated)?);
    let tokenizer = model.identity().tokenizer.clone();
    let rate = arguments.false_positive_rate;
    let calibration = Calibration::fit(key, tokenizer, rate, &unmarked, &marked)?;
    out.finish(&calibration.to_json())?;
    eprintln!(
        "draftproof: {}: key {}, false-positive rate {rate}, {} texts without a mark and {} with it",
        arguments.output.display(),
        key.id,
        unmarked.len(),
        marked.len()
    );
    for class in &calibration.classes {
        eprintln!(
            "from {} usable positions: {:.1} % of the marked pieces are found ({} and {} pieces)",
            class.from,
            100.0 * class.found,
            class.unmarked,
            class.marked
        );
    }
    Ok(())
}

/// The texts of a file: JSON lines with `tokens` or `text` (`.jsonl`), or one long plain text.
fn texts(path: &Path, model: &Model) -> Result<Vec<Vec<Token>>> {
    let name = || path.display().to_string();
    let encode = |text: &str| -> Result<Vec<Token>> {
        let Some(tokenizer) = model.tokenizer() else {
            bail!("{} has no tokenizer; give `tokens`", model.name());
        };
        Ok(tokenizer.encode_bare(text)?)
    };
    if path.extension().is_none_or(|extension| extension != "jsonl") {
        let text = encode(&settings::read_text(path)?).with_context(name)?;
        return Ok(text.chunks(CUT).map(<[Token]>::to_vec).collect());
    }
    let samples = Samples::read(BufReader::new(File::open(path).with_context(name)?));
    match samples.with_context(name)? {
        Samples::Tokens(texts) => Ok(texts),
        Samples::Text(texts) => {
            texts.iter().map(|text| encode(text)).collect::<Result<_>>().with_context(name)
        }
    }
}
