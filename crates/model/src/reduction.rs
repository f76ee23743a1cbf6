//! How far two orders of one sum lie apart, by the sum's length.
//!
//! A logit is a sum of products of sums of products. Addition in floating point is not associative,
//! so each set of kernels has its own last bits; this module shows how many for a single map, before
//! layers mix them.

use burn::tensor::{Device, Tensor, TensorData};
use draftproof_kernels::burn::{self as kernels, Kernels, with_kernels};

use crate::{Error, synthetic::Arbitrary};

/// Sums per length: in so many rows, as a pass that checks four drafted tokens has them…
const ROWS: usize = 5;
/// …and so many outputs.
const OUTPUTS: usize = 64;

/// Sums of `length` products, whose true values have a variance of about 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reduction {
    /// The number of products.
    pub length: usize,
    /// The largest difference between row-invariant and general kernels.
    pub max: f64,
    /// The root of the mean square of that difference.
    pub rms: f64,
    /// The root of the mean square error of the row-invariant kernels, against a sum in f64.
    pub rms_error_row_invariant: f64,
    /// The same of the general kernels.
    pub rms_error_general: f64,
}

/// Sums of `length` products of arbitrary f32 numbers, computed by both sets of kernels. The same
/// numbers every time.
///
/// # Errors
/// If the device does not give its results back.
pub fn measure(length: usize, device: &Device) -> Result<Reduction, Error> {
    let mut numbers = Arbitrary::new(device);
    let mut draw = |count: usize, scale: f32| -> Vec<f32> {
        (0..count).map(|_| scale * numbers.next()).collect()
    };
    let x = draw(ROWS * length, 1.0);
    let weights = draw(OUTPUTS * length, 3.0 / (length.max(1) as f32).sqrt());
    let compute = |which: Kernels| {
        let x = Tensor::<2>::from_data(TensorData::new(x.clone(), [ROWS, length]), device);
        let data = TensorData::new(weights.clone(), [OUTPUTS, length]);
        let weight = Tensor::<2>::from_data(data, device);
        let sums = with_kernels(which, || kernels::linear(x, weight, None));
        let sums: Result<Vec<f32>, _> = sums.try_into_vec_as();
        sums.map_err(|error| Error::Backend(error.to_string()))
    };
    let (ours, general) = (compute(Kernels::RowInvariant)?, compute(Kernels::General)?);
    let sum = |x: &[f32], row: &[f32]| -> f64 {
        row.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum()
    };
    let outputs = || weights.chunks_exact(length.max(1));
    let exact = x.chunks_exact(length.max(1)).flat_map(|x| outputs().map(move |row| sum(x, row)));
    let exact: Vec<f64> = exact.collect();
    let wide = |sums: &[f32]| -> Vec<f64> { sums.iter().map(|&sum| f64::from(sum)).collect() };
    let (ours, general) = (wide(&ours), wide(&general));
    Ok(Reduction {
        length,
        max: ours.iter().zip(&general).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max),
        rms: rms(&ours, &general),
        rms_error_row_invariant: rms(&ours, &exact),
        rms_error_general: rms(&general, &exact),
    })
}

fn rms(a: &[f64], b: &[f64]) -> f64 {
    let squares: f64 = a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum();
    (squares / a.len().max(1) as f64).sqrt()
}

#[cfg(all(test, feature = "cpu"))]
mod tests {
    use super::*;

    /// Both are sums of the same numbers: near the truth, nearer for short sums, and apart.
    #[test]
    fn two_orders_differ_by_rounding_only() {
        let device = crate::device::open("cpu").unwrap();
        let [short, long] = [64, 4096].map(|length| measure(length, &device).unwrap());
        assert_eq!(measure(64, &device).unwrap(), short, "the same numbers every time");
        assert!(long.max > 0.0, "{long:?}");
        for found in [short, long] {
            assert!(found.rms <= found.max, "{found:?}");
            let errors = found.rms_error_row_invariant.max(found.rms_error_general);
            assert!(errors > 0.0 && errors < 1e-5, "{found:?}");
        }
        assert_eq!(measure(1, &device).unwrap().max, 0.0, "one product has one order");
    }
}
