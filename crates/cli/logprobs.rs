//! Log-probabilities of emitted tokens: of the raw logits, and under the contract.
//!
//! *Raw* is `z − ln Σ exp z` of the model's logits, before any setting. *Contract* is `ln(w/W)` of
//! the law that the token was drawn from; a token that the contract excludes has none. Both belong to
//! the target, for accepted, residual and bonus tokens alike, so they do not depend on the draft.

use draftproof_decode::{Dist, Token};
use serde_json::{Value, json};

/// The entry of one token, with the `top` largest logits beside it.
pub(crate) fn entry(token: Token, law: &Dist, logits: &[f32], top: usize) -> Value {
    let normaliser = log_normaliser(logits);
    let one = |token: Token| {
        let raw = logits.get(token.index()).map(|&z| f64::from(z) - normaliser);
        let contract = law.probability(token).ln();
        // JSON has no −∞; null says that there is no such probability.
        let finite = |x: f64| x.is_finite().then_some(x);
        json!({"token": token.0, "raw": raw.and_then(finite), "contract": finite(contract)})
    };
    let mut entry = one(token);
    if top > 0 {
        let likeliest = likeliest(logits, top);
        entry["top"] = likeliest.into_iter().map(one).collect();
    }
    entry
}

/// ln Σ exp z.
pub(crate) fn log_normaliser(logits: &[f32]) -> f64 {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let sum: f64 = logits.iter().map(|&z| (f64::from(z) - max).exp()).sum();
    max + sum.ln()
}

/// The tokens of the `top` largest logits, ties by id.
fn likeliest(logits: &[f32], top: usize) -> Vec<Token> {
    let mut ranked: Vec<usize> =
        (0..logits.len()).filter(|&i| logits[i] > f32::NEG_INFINITY).collect();
    ranked.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    ranked.into_iter().take(top).map(Token::at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raw_and_contract_are_told_apart() {
        let law = Dist::dense(vec![3, 1, 0]).expect("a law");
        let logits = [2f32.ln(), 1f32.ln(), 1f32.ln()];
        let entry = entry(Token(0), &law, &logits, 3);
        let close =
            |value: &Value, p: f64| (value.as_f64().expect("a number") - p.ln()).abs() < 1e-6;
        assert!(close(&entry["raw"], 0.5) && close(&entry["contract"], 0.75));
        let top = entry["top"].as_array().expect("a list");
        let ids: Vec<u64> = top.iter().filter_map(|entry| entry["token"].as_u64()).collect();
        assert_eq!(ids, [0, 1, 2]);
        assert!(close(&top[2]["raw"], 0.25) && top[2]["contract"].is_null());
    }
}
