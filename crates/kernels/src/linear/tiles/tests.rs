use super::*;
use crate::linear::{Order, linear};
use crate::weight::Weight;

/// The order, word by word.
fn by_hand(x: &[f32], w: &[bf16]) -> f32 {
    let small = |v: f32| if v.abs() < f32::MIN_POSITIVE { 0.0_f32.copysign(v) } else { v };
    let upper = |v: f32| f32::from_bits(v.to_bits() & 0xFFFF_0000);
    let mut pieces: Vec<[f32; 3]> = Vec::new();
    for &x in x {
        let first = upper(x);
        let second = upper(x - first);
        pieces.push([first, second, x - first - second]);
    }
    let sums = [0, 1, 2].map(|piece| {
        let mut sum = 0.0;
        for start in (0..x.len()).step_by(INPUTS) {
            let mut parts = [0.0_f32; 2];
            for k in start..x.len().min(start + INPUTS) {
                let [x, w] = [pieces[k][piece], w[k].to_f32()].map(small);
                parts[k % 2] = small(w.mul_add(x, parts[k % 2]));
            }
            sum = small(sum + small(parts[0] + parts[1]));
        }
        sum
    });
    (sums[0] + sums[1]) + sums[2]
}

fn noise(count: usize, seed: u64) -> impl Iterator<Item = u64> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..count).map(move |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    })
}

/// Numbers of any sign and fraction with `exponents`.
fn numbers(count: usize, seed: u64, exponents: std::ops::Range<u32>) -> Vec<f32> {
    let number = |bits: u64| {
        let exponent = exponents.start + (bits >> 40) as u32 % exponents.len() as u32;
        f32::from_bits(bits as u32 & 0x807F_FFFF | exponent << 23)
    };
    noise(count, seed).map(number).collect()
}

/// Whatever the sizes, and the size of the numbers, down to those that count as 0. (On a machine
/// without AMX only that nothing is chosen that is not there.)
#[test]
fn tiles_compute_their_order_and_rows_alone_are_rows_together() {
    if !Order::Tiles.is_available() {
        assert!(std::panic::catch_unwind(|| Order::Tiles.scope(|| ())).is_err());
        return;
    }
    let sizes = [(32, 16), (64, 32), (256, 48), (96, 7), (40, 33), (1, 1), (31, 80), (33, 17)];
    let exponents = [120..130, 90..160, 30..70, 1..40];
    for (inputs, outputs) in sizes {
        for (seed, exponents) in exponents.iter().enumerate() {
            let seed = seed as u64 + 1;
            let most = 33;
            let x = numbers(most * inputs, seed, exponents.clone());
            let w = numbers(outputs * inputs, seed + 10, exponents.clone());
            let w: Vec<bf16> =
                w.iter().map(|w| bf16::from_bits((w.to_bits() >> 16) as u16)).collect();
            let bias = numbers(outputs, seed + 20, exponents.clone());
            let expected: Vec<u32> = x
                .chunks_exact(inputs)
                .flat_map(|x| w.chunks_exact(inputs).map(|w| by_hand(x, w)))
                .zip(bias.iter().cycle())
                .map(|(y, bias)| (y + bias).to_bits())
                .collect();
            for rows in [1, 2, 4, 5, 6, 9, 10, 11, 15, 16, 20, 21, 33] {
                let mut y = vec![f32::NAN; rows * outputs];
                let x = &x[..rows * inputs];
                Order::Tiles.scope(|| {
                    linear(x, inputs, Weight::Bf16(&w), Some(&bias), &mut y);
                });
                let y: Vec<u32> = y.iter().map(|y| y.to_bits()).collect();
                assert_eq!(y, expected[..rows * outputs], "{rows} × {inputs} × {outputs}");
            }
        }
    }
}

/// As near to the true sums as lanes are.
#[test]
fn tiles_are_as_exact_as_lanes() {
    if !Order::Tiles.is_available() {
        return;
    }
    let (inputs, outputs) = (704, 64);
    let x = numbers(inputs, 1, 120..128);
    let w = numbers(outputs * inputs, 2, 118..126);
    let w: Vec<bf16> = w.iter().map(|&w| bf16::from_f32(w)).collect();
    let error = |order: Order| -> f64 {
        let mut y = vec![0.0; outputs];
        order.scope(|| linear(&x, inputs, Weight::Bf16(&w), None, &mut y));
        let exact = w
            .chunks_exact(inputs)
            .map(|w| -> f64 { w.iter().zip(&x).map(|(w, &x)| w.to_f64() * f64::from(x)).sum() });
        y.iter().zip(exact).map(|(&y, exact)| (f64::from(y) - exact).powi(2)).sum::<f64>().sqrt()
    };
    let (tiles, lanes) = (error(Order::Tiles), error(Order::Lanes));
    assert!(tiles > 0.0 && tiles < 3.0 * lanes, "{tiles:e} and {lanes:e}");
}
