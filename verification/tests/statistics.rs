//! The statistics themselves: against numbers computed elsewhere, and against their own promises.
//!
//! Pinned values were made with scipy 1.17.1 and, where named, mpmath 1.4.1 at 40 digits, from the
//! textbook definitions and not from this crate.

use draftproof_decode::noise::{ChaCha, Seed};
use draftproof_verification::{
    battery,
    bound::{empirical, total_variation},
    e_value::{concentration, critical_chi_square, ln_e_value},
    goodness::{
        Cells, Counts, Fit, Uniform, chi_square_quantile, chi_square_sf, exact_multinomial,
        homogeneity, kolmogorov_sf, kolmogorov_smirnov, likelihood_ratio, monte_carlo_multinomial,
        pearson,
    },
    power::{
        detectable_tv, gate_detectable_tv, needed_samples, noncentral_cdf, noncentrality,
        noncentrality_per_sample,
    },
};
use num_traits::ToPrimitive;

fn close(found: f64, expected: f64, relative: f64) {
    let error = (found - expected).abs() / expected.abs();
    assert!(error < relative, "{found}, expected {expected}: relative error {error:e}");
}

const P: [f64; 4] = [0.1, 0.2, 0.3, 0.4];
const COUNTS: [u64; 4] = [130, 180, 310, 380];

/// mpmath: `gammainc(df/2, x/2, inf, regularized=True)`.
#[test]
fn chi_square_tails() {
    for (x, df, expected) in [
        (3.84, 1, 0.050_043_521_248_705_1),
        (44.8, 3, 1.020_401_833_270_712e-9),
        (60.0, 15, 2.522_085_078_696_144e-7),
        (200.0, 63, 3.617_001_866_995_257e-16),
        (500.0, 63, 2.832_653_336_438_2e-69),
        (1500.0, 1000, 1.045_464_038_597_966e-22),
    ] {
        close(chi_square_sf(x, df), expected, 1e-9);
    }
    // scipy: chi2.isf(1e-9, df).
    for (df, expected) in [
        (1, 37.324_893_051_362),
        (3, 44.841_275_330_562),
        (15, 73.630_000_143_547),
        (63, 155.074_256_984_802),
    ] {
        close(chi_square_quantile(df, 1e-9), expected, 1e-9);
    }
    assert_eq!(chi_square_sf(0.0, 5), 1.0);
    assert_eq!(chi_square_sf(9.0, 0), 1.0);
}

/// scipy: `ncx2.cdf`.
#[test]
fn noncentral_chi_square() {
    for (x, df, lambda, expected) in [
        (20.0, 3, 10.0, 0.851_379_278_949_586),
        (150.0, 63, 87.0, 0.516_714_865_731_274),
        (300.0, 255, 232.0, 8.547_076_030_124e-9),
        (10.0, 1, 31.5, 0.007_138_677_289_465_6),
        (3.84, 1, 0.0, 1.0 - 0.050_043_521_248_705),
    ] {
        close(noncentral_cdf(x, df, lambda), expected, 1e-7);
    }
    assert!(noncentral_cdf(1000.0, 1023, 593.0) < 1e-20);
}

/// scipy: the root of `ncx2.sf(chi2.isf(α, df), df, λ) − power` by `brentq`.
#[test]
fn needed_noncentrality() {
    for (df, alpha, power, expected) in [
        (1, 1e-3, 0.99, 31.549_280_334),
        (7, 1e-6, 0.999, 82.111_734_315),
        (63, 1e-9, 0.99, 150.641_714_876),
        (255, 1e-9, 0.99, 245.454_403_336),
        (1023, 1e-9, 1.0 - 1e-6, 592.785_444_682),
    ] {
        close(noncentrality(df, alpha, power), expected, 1e-7);
    }
    // n for an even shift on 64 cells at (1e-6, 1e-3): 354 thousand for 0.01.
    let n = 354_000;
    close(detectable_tv(63, 1e-6, 0.999, n), 0.01, 2e-3);
    // The gate needs a little more than the chi-square test.
    let gate = gate_detectable_tv(63, 1e-9, 0.99, n);
    let chi_square = detectable_tv(63, 1e-9, 0.99, n);
    assert!(gate > chi_square && gate < 1.05 * chi_square, "{gate} {chi_square}");
    close(needed_samples(63, 1e-9, 0.99, gate) as f64, n as f64, 1e-4);
}

/// scipy: `chisquare`, `power_divergence(lambda_="log-likelihood")`, `chi2_contingency`.
#[test]
fn statistics_of_counts() {
    let x2 = pearson(&P, &COUNTS);
    close(x2.value, 12.333_333_333_333, 1e-12);
    close(x2.p_value(), 0.006_324_313_876_263, 1e-10);
    let g = likelihood_ratio(&P, &COUNTS);
    close(g.value, 11.631_709_540_446, 1e-12);
    close(g.p_value(), 0.008_757_386_196_452, 1e-10);
    let two = homogeneity(&COUNTS, &[90, 210, 320, 400]);
    close(two.value, 10.054_936_131_407, 1e-12);
    close(two.p_value(), 0.018_104_884_216_691, 1e-10);
    assert_eq!(homogeneity(&[5, 0, 5], &[50, 0, 50]).df, 1);
    assert!(homogeneity(&[5, 0, 5], &[50, 0, 50]).value < 1e-20);
}

/// scipy: `kstwobign.sf`.
#[test]
fn kolmogorov() {
    for (x, expected) in [
        (0.3, 0.999_990_694_198_666),
        (0.5, 0.963_945_243_664_875),
        (0.9, 0.392_730_707_940_654),
        (1.0, 0.269_999_671_677_355),
        (1.5, 0.022_217_962_616_525),
        (3.0, 3.045_995_948_942_5e-8),
    ] {
        close(kolmogorov_sf(x), expected, 1e-9);
    }
    // Largest difference after the third of 1000: |0.62 − 0.60|.
    let (statistic, p_value) = kolmogorov_smirnov(&P, &[130, 180, 310, 380]);
    close(statistic, 1000f64.sqrt() * 0.03, 1e-9);
    close(p_value, kolmogorov_sf(statistic), 1e-12);
}

/// By a Python loop over all count vectors with scipy's `multinomial.pmf`.
#[test]
fn multinomial_tests() {
    let exact = |p: &[f64], counts: &[u64]| exact_multinomial(p, counts, 1_000_000);
    close(exact(&P, &[4, 2, 3, 3]).expect("small"), 0.096_841_469_44, 1e-9);
    close(exact(&[0.25; 4], &[8, 1, 1, 0]).expect("small"), 0.001_663_208_007_812_5, 1e-9);
    assert_eq!(exact_multinomial(&P, &COUNTS, 1_000_000), None);
    // The simulated one estimates the p-value of G: near for moderate n, and never 0.
    let g = likelihood_ratio(&P, &COUNTS).p_value();
    let simulated = monte_carlo_multinomial(&P, &COUNTS, 20_000, 7);
    assert!((simulated - g).abs() < 0.004, "{simulated}, by the chi-square {g}");
    assert_eq!(monte_carlo_multinomial(&P, &[0, 0, 0, 400], 99, 1), 0.01);
}

/// Draws counts of `n` outcomes of p.
fn draw(uniform: &mut Uniform, p: &[f64], n: u64) -> Vec<u64> {
    let mut counts = vec![0; p.len()];
    for _ in 0..n {
        let mut u = uniform.next();
        let cell = p.iter().position(|p| {
            u -= p;
            u < 0.0
        });
        counts[cell.unwrap_or(p.len() - 1)] += 1;
    }
    counts
}

/// At the deviation that a check states as detectable, spread evenly (the hardest shape), the gate
/// rejects with the stated probability: 400 simulations at a stated 0.99; 380 is 7 deviations less.
#[test]
fn the_stated_power_is_had() {
    let (cells, alpha, n) = (16usize, 1e-9, 20_000);
    let tv = gate_detectable_tv(cells - 1, alpha, 0.99, n);
    let p = vec![1.0 / cells as f64; cells];
    let shifted: Vec<f64> = (0..cells)
        .map(|i| p[i] + 2.0 * tv / cells as f64 * if i % 2 == 0 { 1.0 } else { -1.0 })
        .collect();
    let lambda = n as f64 * noncentrality_per_sample(&p, &shifted);
    close(lambda, 4.0 * n as f64 * tv * tv, 1e-9);
    let mixture = concentration(n, cells - 1, alpha);
    let mut uniform = Uniform::new(11);
    let (mut rejected, mut agreed) = (0, 0);
    for _ in 0..400 {
        let counts = draw(&mut uniform, &shifted, n);
        let rejects = ln_e_value(&p, &counts, mixture) >= -f64::ln(alpha);
        let critical = critical_chi_square(cells - 1, alpha);
        rejected += u32::from(rejects);
        agreed += u32::from(rejects == (pearson(&p, &counts).value >= critical));
    }
    println!("rejected {rejected} of 400; as the critical X² says in {agreed}");
    assert!(rejected >= 380, "{rejected} of 400");
    assert!(agreed >= 390, "{agreed} of 400");
}

/// Under the null the e-value passes 1/α in no more than α of the runs: at α = 0.05, of 2 000 runs
/// 100 are expected at most; 180 is 8 deviations more.
#[test]
fn the_stated_level_is_kept() {
    let mut uniform = Uniform::new(5);
    let mixture = concentration(500, 3, 0.05);
    let rejected = (0..2_000)
        .filter(|_| ln_e_value(&P, &draw(&mut uniform, &P, 500), mixture) >= 20f64.ln())
        .count();
    println!("{rejected} of 2000 at 0.05");
    assert!(rejected < 180, "{rejected} of 2000 at 0.05");
}

/// The certificate covers the true distance, here under a law that is off by 0.05.
#[test]
fn the_bound_covers() {
    let shifted = [0.15, 0.2, 0.3, 0.35];
    let mut uniform = Uniform::new(3);
    for _ in 0..500 {
        let counts = draw(&mut uniform, &shifted, 2_000);
        let bound = total_variation(empirical(&P, &counts, 0), 4, 2_000, 1e-6);
        assert!((0.05..0.2).contains(&bound), "{bound}");
    }
}

/// One impossible outcome is enough, whatever the counts are.
#[test]
fn impossible_outcomes_reject() {
    let law = [(0, 0.25), (1, 0.25), (2, 0.5), (3, 0.0)].into();
    let cells = Cells::new(&law, 0.01);
    assert_eq!(cells.of(&3), None);
    let mut counts = Counts::new(3);
    for i in 0..100_000 {
        counts.add(cells.of(&[0, 1, 2, 2][i % 4]));
    }
    assert_eq!(Fit::new(cells.probabilities(), &counts, 1e-9).p_value(), 1.0);
    counts.add(cells.of(&3));
    assert_eq!(Fit::new(cells.probabilities(), &counts, 1e-9).p_value(), 0.0);
}

/// Pools come from p, keep neighbours together, and lose nothing.
#[test]
fn pools() {
    let law: std::collections::BTreeMap<u32, f64> =
        (0..100).map(|i| (i, if i == 50 { 0.505 } else { 0.005 })).collect();
    let cells = Cells::new(&law, 0.02);
    let sum: f64 = cells.probabilities().iter().sum();
    assert!((sum - 1.0).abs() < 1e-12);
    assert!(cells.probabilities().iter().all(|&p| p >= 0.02 - 1e-12));
    assert_eq!(cells.of(&50), Some(0));
    assert_eq!(cells.outcomes()[1], [0, 1, 2, 3]);
    assert_eq!(cells.outcomes().concat().len(), 100);
    // Too little for a pool of its own joins another cell.
    let few = [(0, 0.9), (1, 0.099), (2, 0.001)].into();
    assert_eq!(Cells::new(&few, 0.05).probabilities(), [0.9, 0.1]);
}

/// The meta-test: texts of the real engine, a nearly continuous statistic, 1 000 seeds. Its
/// p-values are uniform (Kolmogorov and Smirnov; false alarm 1e-6), and those of the same counts
/// against a law that is off by 0.03 are not.
#[test]
fn p_values_are_uniform_under_the_null() {
    const TEXTS: u64 = 600;
    let scene = battery::scene("block/model");
    let law = scene.target_law().expect("a law");
    let law = law.iter().map(|(text, p)| (text.clone(), p.to_f64().expect("finite"))).collect();
    let cells = Cells::new(&law, 50.0 / TEXTS as f64);
    let p = cells.probabilities();
    let mut wrong = p.to_vec();
    let last = wrong.len() - 1;
    wrong[0] -= 0.03;
    wrong[last] += 0.03;
    let mut stage = scene.stage(None).expect("settings");
    let mut histograms = [vec![0; 20], vec![0; 20]];
    for seed in 0..1_000 {
        let mut counts = Counts::new(p.len());
        for sequence in 0..TEXTS {
            let run = stage.run(Seed { seed, sequence }, &mut ChaCha).expect("runs");
            counts.add(cells.of(&run.tokens));
        }
        assert_eq!(counts.impossible, 0);
        for (histogram, p) in histograms.iter_mut().zip([p, &wrong]) {
            let p_value = pearson(p, &counts.cells).p_value();
            histogram[((p_value * 20.0) as usize).min(19)] += 1;
        }
    }
    let uniform = [0.05; 20];
    let p_values = histograms.map(|histogram| kolmogorov_smirnov(&uniform, &histogram).1);
    println!("{} cells; p-values of the p-values: {p_values:?}", p.len());
    assert!(p_values[0] > 1e-6, "not uniform: {}", p_values[0]);
    assert!(p_values[1] < 1e-6, "the control passes: {}", p_values[1]);
}
