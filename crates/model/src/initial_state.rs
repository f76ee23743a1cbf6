//! [`InitialState`]: what a looped transformer's state begins with, where that is not the text.
//!
//! The public code of Huginn and Parcae draws noise for each pass as a whole, so there the law of a
//! token depends on how the text before it was cut into passes. Here a value is a function of seed,
//! absolute position and channel: a row depends on its prefix only, as with zeros.
//!
//! # Law
//! Normal with mean 0 and the deviation that the public code has, `sqrt(2 / (5·hidden))` (Huginn: as
//! its `init_values` say, times the scale of its embedding; Parcae: if `state_init` is `like-init`), cut
//! at [`CUT`] deviations. Values beyond are drawn again, which is the law of the public code's inverse
//! distribution function.
//!
//! # Bits
//! The same on every machine: ChaCha20 (key: seed, 64 zero bits, `draftproof state`; stream: position;
//! words from 0 on), Marsaglia's polar method in f64 on pairs from a grid of 2^52 points in (−1, 1),
//! with [`ln`] and IEEE's square root, rounded to f32 once at the end.

use std::{fmt, str::FromStr};

use draftproof_decode::ln::ln;
use rand_chacha::ChaCha20Rng;
use rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

use crate::{Error, loops::Recurrence};

/// Noise is cut at so many deviations.
pub const CUT: f64 = 3.0;

/// What the state of every position begins with; as text `zeros` or `noise:SEED`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InitialState {
    /// Nothing.
    #[default]
    Zeros,
    /// Noise of this seed, keyed by position.
    Noise(u64),
}

impl InitialState {
    /// The state at an absolute position; `deviation` is that of noise before it is cut.
    pub fn fill(self, position: usize, deviation: f64, row: &mut [f32]) {
        match self {
            Self::Zeros => row.fill(0.0),
            Self::Noise(seed) => {
                let mut normals = Normals::new(seed, position as u64);
                row.fill_with(|| (deviation * normals.within_cut()) as f32);
            }
        }
    }

    /// Whether a model of this recurrence and noise can begin so; `name` is the model's in the message.
    pub(crate) fn check(
        self,
        name: &str,
        recurrence: Option<Recurrence>,
        deviation: Option<f64>,
    ) -> Result<(), Error> {
        const EXPECTED: &str = "a looped transformer whose state does not begin with the text";
        let error = |expected: &str, found: &str| {
            let (model, expected, found) = (name.into(), expected.into(), found.into());
            Err(Error::Setting { model, setting: "initial state", expected, found })
        };
        match recurrence {
            None => error(EXPECTED, "one whose layers run once"),
            Some(recurrence) if !recurrence.has_initial_state() => {
                error(EXPECTED, "one whose state does")
            }
            Some(_) if self != Self::Zeros && deviation.is_none() => {
                error("zeros, since the model's own code draws none or another", &self.to_string())
            }
            Some(_) => Ok(()),
        }
    }
}

impl fmt::Display for InitialState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Zeros => f.write_str("zeros"),
            Self::Noise(seed) => write!(f, "noise:{seed}"),
        }
    }
}

impl FromStr for InitialState {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let seed = || text.strip_prefix("noise:")?.parse().ok();
        match text {
            "zeros" => Ok(Self::Zeros),
            _ => seed().map(Self::Noise).ok_or_else(|| {
                "expected zeros or noise:SEED with a whole number from 0, such as noise:7".into()
            }),
        }
    }
}

/// Standard normal variates of one seed and position.
struct Normals {
    words: ChaCha20Rng,
    /// The second of a pair.
    spare: Option<f64>,
}

impl Normals {
    fn new(seed: u64, position: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[16..].copy_from_slice(b"draftproof state");
        let mut words = ChaCha20Rng::from_seed(key);
        words.set_stream(position);
        Self { words, spare: None }
    }

    /// An odd multiple of 2^-52 in (−1, 1): exact, never 0, as often above as below.
    fn uniform(&mut self) -> f64 {
        const UNIT: f64 = 1.0 / (1_u64 << 52) as f64;
        ((self.words.next_u64() >> 12 << 1) | 1) as f64 * UNIT - 1.0
    }

    fn next(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        loop {
            let (u, v) = (self.uniform(), self.uniform());
            let square = u * u + v * v;
            if square < 1.0 {
                let factor = (-2.0 * ln(square) / square).sqrt();
                self.spare = Some(v * factor);
                return u * factor;
            }
        }
    }

    fn within_cut(&mut self) -> f64 {
        loop {
            let value = self.next();
            if value.abs() <= CUT {
                return value;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;

    fn row(seed: u64, position: usize, deviation: f64, hidden: usize) -> Vec<f32> {
        let mut row = vec![f32::NAN; hidden];
        InitialState::Noise(seed).fill(position, deviation, &mut row);
        row
    }

    /// The values are those of an independent program: `tests/golden/initial_state.py`.
    #[test]
    fn value_stability() {
        let pins = [
            (7, 0, 1.0, [0x3f02_518c, 0xbea2_c05f, 0x3fbb_e9d8, 0x3f4a_2399]),
            (7, 1, 1.0, [0xbe82_5ed0, 0xbf24_d573, 0x3e63_8a5f, 0x3e1b_d5a6]),
            ((1 << 63) + 9, 4095, 0.625, [0xbe8d_68aa, 0xbe74_351c, 0x3ec2_fd4e, 0xbe98_ceaa]),
        ];
        for (seed, position, deviation, bits) in pins {
            let expected: [f32; 4] = bits.map(f32::from_bits);
            assert_eq!(row(seed, position, deviation, 4), expected, "{seed} {position}");
        }
        let rows = (0..256).flat_map(|position| row(7, position, 0.625, 65));
        let bytes: Vec<u8> = rows.flat_map(f32::to_le_bytes).collect();
        let digest: String = Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(digest, "a8c28573f60d6d4211d870c5aca5c7ba33fa122e5c32bf95ec8927c890e6513c");
    }

    /// 2^20 values: the cut holds for every one, and the law is the cut normal's. By Dvoretzky, Kiefer
    /// and Wolfowitz the distribution function errs by more than 0.0033 with probability 2e-10, the
    /// moments by more than 6.5 standard errors with 3e-10: false alarm below 1e-9.
    #[test]
    fn noise_is_a_cut_normal() {
        const N: usize = 1 << 20;
        let values: Vec<f64> =
            (0..N / 64).flat_map(|position| row(1, position, 1.0, 64)).map(f64::from).collect();
        assert!(values.iter().all(|x| x.abs() <= CUT && *x != 0.0));
        assert!(values.iter().any(|x| *x > 2.99) && values.iter().any(|x| *x < -2.99));
        // Φ(3) − Φ(−3), and Φ elsewhere.
        const WITHIN: f64 = 0.997_300_203_936_739_8;
        let below = |phi: f64| (phi - (1.0 - WITHIN) / 2.0) / WITHIN;
        for (at, phi) in [
            (0.0, 0.5),
            (0.25, 0.598_706_325_682_923_7),
            (0.5, 0.691_462_461_274_013_1),
            (1.0, 0.841_344_746_068_542_9),
            (1.5, 0.933_192_798_731_141_9),
            (2.0, 0.977_249_868_051_820_8),
            (2.5, 0.993_790_334_674_224),
        ] {
            let share = |side: &dyn Fn(f64) -> bool| {
                values.iter().filter(|x| side(**x)).count() as f64 / N as f64
            };
            let (left, right) = (share(&|x| x <= at), share(&|x| x >= -at));
            for found in [left, right] {
                assert!((found - below(phi)).abs() < 0.0033, "{at}: {found} {}", below(phi));
            }
        }
        let moment = |power: i32| values.iter().map(|x| x.powi(power)).sum::<f64>() / N as f64;
        // E x² and E x⁴ under the cut; the error of a mean of x is σ/√N, of x² sqrt(E x⁴ − (E x²)²)/√N.
        const SECOND: f64 = 0.973_337;
        const FOURTH: f64 = 2.680_046;
        let root = (N as f64).sqrt();
        assert!(moment(1).abs() < 6.5 * SECOND.sqrt() / root, "{}", moment(1));
        let error = (FOURTH - SECOND * SECOND).sqrt() / root;
        assert!((moment(2) - SECOND).abs() < 6.5 * error, "{}", moment(2));
    }

    /// Neither neighbours in a row nor the same channel of neighbouring positions are correlated: the mean
    /// of 2^18 products of independent values errs by more than 6.5/512 with probability 1e-10.
    #[test]
    fn values_do_not_lean_on_each_other() {
        let rows: Vec<Vec<f32>> = (0..1 << 12).map(|position| row(2, position, 1.0, 65)).collect();
        let mean = |step: usize, other: &dyn Fn(usize) -> Vec<f32>| {
            let products = rows.iter().enumerate().flat_map(|(position, row)| {
                let other = other(position);
                (0..64).map(move |i| f64::from(row[i]) * f64::from(other[i + step]))
            });
            products.sum::<f64>() / f64::from(1 << 18)
        };
        for found in [
            mean(1, &|position| rows[position].clone()),
            mean(0, &|position| row(2, position + 1, 1.0, 65)),
            mean(0, &|position| row(3, position, 1.0, 65)),
        ] {
            assert!(found.abs() < 6.5 / 512.0, "{found}");
        }
    }

    #[test]
    fn seed_and_position_are_the_whole_address() {
        let one = row(7, 5, 0.1, 64);
        assert_eq!(one, row(7, 5, 0.1, 64));
        assert_eq!(one[..9], row(7, 5, 0.1, 9));
        for bit in 0..64 {
            assert_ne!(one, row(7 ^ (1 << bit), 5, 0.1, 64), "{bit}");
        }
        for bit in 0..20 {
            assert_ne!(one, row(7, 5 ^ (1 << bit), 0.1, 64), "{bit}");
        }
    }

    #[test]
    fn what_is_said_is_what_is_read() {
        for state in [InitialState::Zeros, InitialState::Noise(0), InitialState::Noise(u64::MAX)] {
            assert_eq!(state.to_string().parse(), Ok(state));
        }
        for wrong in
            ["", "zero", "noise", "noise:", "noise:-1", "noise:x", "noise:18446744073709551616"]
        {
            let message = wrong.parse::<InitialState>().unwrap_err();
            assert!(message.contains("zeros or noise:SEED"), "{wrong}");
        }
    }
}
