//! LoopCD: the last loop of a looped transformer, extrapolated from an earlier one ("Decoding Looped
//! Transformers Better for (Almost) Free", arXiv 2610.02185).
//!
//! ```text
//! logits: z' = z_R + w·(z_R − z_k)      hidden: h' = h_R + w·(h_R − h_k), then one readout
//! ```
//! Loops are counted from 1; k is a completed loop before the last. This changes the *target*: whatever
//! is drafted, the text follows the guided law. Temperature and filters come after it.

use draftproof_decode::exp::{self, exp};

/// How a target is guided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guidance {
    /// The reference loop k, from 1 to R − 1.
    pub reference: usize,
    /// What is extrapolated.
    pub form: Form,
    /// How far.
    pub strength: Strength,
}

/// What is extrapolated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Logits: both loops are read out, each with its own keys and values behind the loop.
    Logits,
    /// Completed-loop states, before the last norm and the layers behind the loop.
    Hidden,
}

/// How far is extrapolated: w.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Strength {
    /// The same at every position.
    Fixed(f32),
    /// `w_max·(1 − (p₁ − p₂))` for the two largest probabilities of the unguided last loop, at every
    /// position.
    Adaptive(f32),
}

impl Strength {
    /// w, or w_max.
    #[must_use]
    pub fn most(self) -> f32 {
        match self {
            Self::Fixed(w) | Self::Adaptive(w) => w,
        }
    }

    /// w at a position with these unguided logits, of the whole vocabulary and at temperature 1.
    ///
    /// A row without a law (NaN, nothing finite) gives NaN, which whoever uses the row will find.
    #[must_use]
    pub fn at(self, unguided: &[f32]) -> f32 {
        match self {
            Self::Fixed(w) => w,
            Self::Adaptive(most) => {
                let [first, second] = largest(unguided);
                let total = exp::sum(unguided, first);
                (f64::from(most) * (1.0 - (1.0 - exp(second - first)) / total)) as f32
            }
        }
    }
}

/// The largest logit and the next one, which may be as large.
fn largest(logits: &[f32]) -> [f64; 2] {
    let mut two = [f64::NEG_INFINITY; 2];
    for logit in logits.iter().map(|&logit| f64::from(logit)) {
        if logit > two[0] || logit.is_nan() {
            two = [logit, two[0]];
        } else if logit > two[1] {
            two[1] = logit;
        }
    }
    two
}

/// `last + w·(last − reference)`, value by value in f32, into `last`.
pub fn extrapolate(last: &mut [f32], reference: &[f32], w: f32) {
    for (last, reference) in last.iter_mut().zip(reference) {
        *last += w * (*last - reference);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worked_example() {
        let mut last = [2.1, 2.0];
        extrapolate(&mut last, &[2.0, 1.0], 0.5);
        assert!((last[0] - 2.15).abs() < 1e-6 && (last[1] - 2.5).abs() < 1e-6, "{last:?}");
        // Both loops prefer token 0, the guided law token 1.
        assert!(last[1] > last[0]);
    }

    /// `W(h + w(h − k)) = Wh + w(Wh − Wk)`: with a linear readout the two forms are one law. With a norm
    /// before it, as in every family here, they are two (see `tests/looped.rs` for the models).
    #[test]
    fn the_forms_agree_where_the_readout_is_linear() {
        const W: [[f32; 2]; 3] = [[1.0, -2.0], [0.5, 3.0], [-1.5, 0.25]];
        let [last, reference] = [[0.75, -1.25], [0.5, 0.5]];
        let forms = |norm: bool| {
            let read = |state: [f32; 2]| {
                let square = state.iter().map(|x| x * x).sum::<f32>() / 2.0;
                let scale = if norm { square.sqrt().recip() } else { 1.0 };
                W.map(|row| row.iter().zip(state).map(|(w, x)| w * x * scale).sum::<f32>())
            };
            let mut logits = read(last);
            extrapolate(&mut logits, &read(reference), 0.5);
            let mut state = last;
            extrapolate(&mut state, &reference, 0.5);
            let pairs = logits.into_iter().zip(read(state));
            pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
        };
        assert!(forms(false) < 1e-6, "{}", forms(false));
        assert!(forms(true) > 0.1, "{}", forms(true));
    }

    #[test]
    fn adaptive_strength_is_largest_where_two_tokens_are_tied() {
        let w = Strength::Adaptive(2.0);
        assert_eq!(w.at(&[1.0, 1.0, f32::NEG_INFINITY]), 2.0);
        assert_eq!(w.at(&[500.0, 1.0, -3.0]), 0.0);
        assert_eq!(w.at(&[3.0]), 0.0);
        // p = (1/2, 1/4, 1/4): the whole vocabulary counts, not the two alone.
        let half = 2_f32.ln();
        assert!((w.at(&[0.0, half, 0.0]) - 1.5).abs() < 1e-6);
        assert!((w.at(&[half, 0.0, 0.0]) - 1.5).abs() < 1e-6);
        assert!(w.at(&[1.0, f32::NAN]).is_nan());
        assert!(w.at(&[f32::NEG_INFINITY; 2]).is_nan());
        assert_eq!(Strength::Fixed(0.3).at(&[f32::NAN]), 0.3);
    }
}
