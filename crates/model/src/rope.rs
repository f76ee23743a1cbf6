//! Rotary position embedding: frequencies, their scalings, and a table that grows with the text.
//!
//! The frequencies and angles are rounded to f32 where transformers rounds them, since at position
//! 100 000 one rounding of `position · frequency` moves the angle by milliradians: a model is what
//! its reference computes.

use std::ops::Range;

use burn::tensor::{Device, Int, Tensor, TensorData};

/// How positions stretch beyond the trained context.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum RopeScaling {
    /// Not at all.
    None,
    /// Every frequency divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Low frequencies divided by `factor`, high ones kept, a linear blend between.
    Llama3 {
        /// The divisor of the low frequencies.
        factor: f64,
        /// Wavelengths above `original / low` are scaled.
        low: f64,
        /// Wavelengths below `original / high` are kept.
        high: f64,
        /// The context before scaling.
        original: f64,
    },
    /// YaRN: frequencies that turn rarely within the trained context divided by `factor`, those that
    /// turn often kept, a linear blend over the pairs between; cosines and sines enlarged.
    ///
    /// Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models",
    /// arXiv 2309.00071.
    Yarn {
        /// The divisor of the low frequencies.
        factor: f64,
        /// The context before scaling.
        original: f64,
        /// Frequencies with more turns than this within `original` are kept.
        fast: f64,
        /// Frequencies with fewer turns than this are divided.
        slow: f64,
        /// Whether the blend begins and ends at whole pairs.
        truncate: bool,
        /// What cosines and sines are multiplied by.
        attention: f64,
    },
}

/// Frequencies of the rotation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base of the geometric series of wavelengths.
    pub theta: f64,
    /// Stretching beyond the trained context.
    pub scaling: RopeScaling,
}

impl RopeConfig {
    /// Radians per position of each pair of a head of `dim` values.
    #[must_use]
    pub fn frequencies(&self, dim: usize) -> Vec<f32> {
        (0..dim / 2)
            .map(|i| {
                let exponent = (2 * i) as f64 / dim as f64;
                let plain = self.theta.powf(exponent).recip() as f32;
                self.scale(f64::from(plain), i, dim) as f32
            })
            .collect()
    }

    /// What cosines and sines are multiplied by.
    #[must_use]
    pub fn amplitude(&self) -> f32 {
        match self.scaling {
            RopeScaling::Yarn { attention, .. } => attention as f32,
            _ => 1.0,
        }
    }

    /// The scaled frequency of pair `pair` of a head of `dim` values.
    fn scale(&self, frequency: f64, pair: usize, dim: usize) -> f64 {
        match self.scaling {
            RopeScaling::None => frequency,
            RopeScaling::Linear { factor } => frequency / factor,
            RopeScaling::Llama3 { factor, low, high, original } => {
                let wavelength = std::f64::consts::TAU / frequency;
                if wavelength < original / high {
                    frequency
                } else if wavelength > original / low {
                    frequency / factor
                } else {
                    let kept = (original / wavelength - low) / (high - low);
                    (1.0 - kept) * frequency / factor + kept * frequency
                }
            }
            RopeScaling::Yarn { factor, original, fast, slow, truncate, .. } => {
                // The pair, not rounded, that makes so many turns within the trained context.
                let pair_of = |turns: f64| {
                    let ratio = (original / (turns * std::f64::consts::TAU)).ln();
                    dim as f64 * ratio / (2.0 * self.theta.ln())
                };
                let (first, last) = (pair_of(fast), pair_of(slow));
                let whole = if truncate { (first.floor(), last.ceil()) } else { (first, last) };
                let (first, last) = (whole.0.max(0.0), whole.1.min((dim - 1) as f64));
                // As transformers does where the two are one.
                let width = if first == last { 0.001 } else { last - first };
                let divided = ((pair as f64 - first) / width).clamp(0.0, 1.0);
                divided * frequency / factor + (1.0 - divided) * frequency
            }
        }
    }

    /// The table for heads of `dim` values and positions below `context`, still empty.
    #[must_use]
    pub fn init(&self, dim: usize, context: usize, device: &Device) -> Rope {
        let (frequencies, amplitude) = (self.frequencies(dim), self.amplitude());
        Rope { frequencies, amplitude, context, device: device.clone(), table: None }
    }
}

/// Cosines and sines by position, computed as far as they were needed.
#[derive(Clone, Debug)]
pub struct Rope {
    frequencies: Vec<f32>,
    amplitude: f32,
    context: usize,
    device: Device,
    /// Cosines, sines.
    table: Option<[Tensor<2>; 2]>,
}

/// Positions that the first table covers.
const FIRST: usize = 512;

impl Rope {
    /// Cosines and sines at `positions`, all below `end` ≤ context.
    ///
    /// # Shapes
    /// - positions: `[n]`
    /// - output: cosines and sines, `[n, dim/2]`
    pub fn rows(&mut self, positions: Tensor<1, Int>, end: usize) -> [Tensor<2>; 2] {
        self.with_table(end, |angles| angles.clone().select(0, positions.clone()))
    }

    /// Cosines and sines at positions that follow each other: views of the table.
    ///
    /// # Shapes
    /// - output: cosines and sines, `[range.len(), dim/2]`
    pub fn range(&mut self, range: Range<usize>) -> [Tensor<2>; 2] {
        let view = |angles: &Tensor<2>| angles.clone().narrow(0, range.start, range.len());
        self.with_table(range.end, view)
    }

    /// What `rows` takes from the table of cosines and from that of sines, which reach up to `end`.
    fn with_table(&mut self, end: usize, rows: impl Fn(&Tensor<2>) -> Tensor<2>) -> [Tensor<2>; 2] {
        let covered = self.table.as_ref().map_or(0, |[cos, _]| cos.dims()[0]);
        if covered < end {
            // Doubling: the work of all growths stays proportional to the text.
            let count = end.max(2 * covered).max(FIRST).min(self.context.max(end));
            self.table = Some(self.compute(count));
        }
        self.table.as_ref().expect("it was just made").each_ref().map(rows)
    }

    fn compute(&self, count: usize) -> [Tensor<2>; 2] {
        let shape = [count, self.frequencies.len()];
        let mut cos = Vec::with_capacity(count * self.frequencies.len());
        let mut sin = Vec::with_capacity(count * self.frequencies.len());
        for position in 0..count {
            for &frequency in &self.frequencies {
                let angle = f64::from(position as f32 * frequency);
                cos.push(angle.cos() as f32 * self.amplitude);
                sin.push(angle.sin() as f32 * self.amplitude);
            }
        }
        [cos, sin].map(|angles| Tensor::from_data(TensorData::new(angles, shape), &self.device))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LLAMA3: RopeScaling =
        RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 64.0 };

    #[test]
    fn scalings_divide_what_they_should() {
        let plain = RopeConfig { theta: 10_000.0, scaling: RopeScaling::None }.frequencies(16);
        assert_eq!(plain[0], 1.0);
        let linear = RopeConfig { theta: 10_000.0, scaling: RopeScaling::Linear { factor: 4.0 } };
        for (a, b) in plain.iter().zip(linear.frequencies(16)) {
            assert_eq!(a / 4.0, b);
        }
        let scaled = RopeConfig { theta: 10_000.0, scaling: LLAMA3 }.frequencies(16);
        assert_eq!(scaled[0], plain[0]);
        assert_eq!(scaled[7], plain[7] / 8.0);
        assert!(scaled.iter().zip(&plain).any(|(s, p)| *s < *p && *s > p / 8.0));
        // The first pair turns 2.4 times within 15 positions, the last less than once.
        let yarn = |truncate| RopeConfig {
            theta: 10_000.0,
            scaling: RopeScaling::Yarn {
                factor: 8.0,
                original: 15.0,
                fast: 2.0,
                slow: 0.5,
                truncate,
                attention: 1.25,
            },
        };
        for truncate in [true, false] {
            let scaled = yarn(truncate).frequencies(16);
            assert_eq!((scaled[0], scaled[7]), (plain[0], plain[7] / 8.0));
            assert!(scaled[1] < plain[1] && scaled[1] > plain[1] / 8.0);
        }
        assert_ne!(yarn(true).frequencies(16)[1], yarn(false).frequencies(16)[1]);
        assert_eq!(yarn(true).amplitude(), 1.25);
    }

    #[test]
    fn a_grown_table_has_the_rows_of_a_fresh_one() {
        let device = Device::default();
        let config = RopeConfig { theta: 10_000.0, scaling: LLAMA3 };
        let at = |rope: &mut Rope, position: i64| -> Vec<f32> {
            let ids = Tensor::<1, Int>::from_data([position], &device);
            let host = |t: Tensor<2>| t.try_into_vec_as::<f32>().unwrap();
            let at = position as usize;
            let rows = rope.rows(ids, at + 1).map(host);
            assert_eq!(rope.range(at..at + 1).map(host), rows);
            rows.concat()
        };
        let mut grown = config.init(16, 5000, &device);
        let early = at(&mut grown, 3);
        let late = at(&mut grown, 4999);
        assert_eq!(early, at(&mut grown, 3));
        assert_eq!(late, at(&mut config.init(16, 5000, &device), 4999));
        assert_ne!(early, late);
    }
}
