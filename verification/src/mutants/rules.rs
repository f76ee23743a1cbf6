//! Wrong rules of token-by-token verification.

use draftproof_decode::{
    Dist, Token,
    dist::{Fraction, acceptance, residual},
    law::Law,
    noise::{Lane, Noise},
    verify::{Block, Next, Verdict, Verifier},
};
use ruint::aliases::U256;

/// The rejection rule with its formulas replaceable.
#[derive(Clone, Copy)]
pub(super) struct WrongRule {
    pub(super) name: &'static str,
    /// The chance to accept x at place i of γ.
    pub(super) accept: fn(&Judged<'_>) -> Fraction,
    /// The law after a rejection.
    pub(super) replace: for<'a> fn(&Judged<'a>) -> Box<dyn Law + 'a>,
    /// One coin for the whole block.
    pub(super) shared_coin: bool,
}

/// What a formula may look at.
pub(super) struct Judged<'a> {
    pub(super) p: &'a Dist,
    pub(super) q: &'a Dist,
    pub(super) x: Token,
    pub(super) place: usize,
    pub(super) gamma: usize,
    /// The target's law behind the whole block.
    pub(super) bonus: &'a Dist,
}

impl std::fmt::Debug for WrongRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl Verifier for WrongRule {
    fn name(&self) -> &'static str {
        self.name
    }

    fn verify(&self, block: &Block<'_>, noise: &mut dyn Noise) -> Verdict {
        let Block { proposals, target, round, .. } = *block;
        let gamma = proposals.len();
        let mut laws = Vec::new();
        // Given that one coin was below all chances so far, it is uniform below the least of them.
        let mut least = Fraction::new(1, 1);
        for (place, proposal) in proposals.iter().enumerate() {
            let (p, bonus) = match (target.law(place), target.law(gamma)) {
                (Ok(p), Ok(bonus)) => (p, bonus),
                (Err(unusable), _) | (_, Err(unusable)) => {
                    return Verdict { accepted: place, next: Err(unusable), laws };
                }
            };
            let (x, q) = (proposal.token(), proposal.q());
            let judged = Judged { p: &p, q, x, place, gamma, bonus: &bonus };
            let chance = capped((self.accept)(&judged));
            let asked = if self.shared_coin { ratio(chance, least) } else { chance };
            let accepted = noise.decide(round.key(place, Lane::Accept), asked);
            if !accepted {
                let key = round.key(place, Lane::Residual);
                let next = noise.draw(key, (self.replace)(&judged).as_ref());
                laws.push(p);
                return Verdict { accepted: place, next: Ok(Next::residual(next)), laws };
            }
            if less(chance, least) {
                least = chance;
            }
            laws.push(p);
        }
        let next = target.law(gamma).map(|p| {
            let next = noise.draw(round.key(gamma, Lane::Bonus), &p);
            laws.push(p);
            Next::bonus(next)
        });
        Verdict { accepted: gamma, next, laws }
    }
}

fn capped(chance: Fraction) -> Fraction {
    if chance.numerator > chance.denominator { Fraction::new(1, 1) } else { chance }
}

/// a < b, for denominators below 2^125.
fn less(a: Fraction, b: Fraction) -> bool {
    a.numerator * b.denominator < b.numerator * a.denominator
}

/// a / b, for the same.
fn ratio(a: Fraction, b: Fraction) -> Fraction {
    Fraction { numerator: a.numerator * b.denominator, denominator: a.denominator * b.numerator }
}

fn right_accept(judged: &Judged<'_>) -> Fraction {
    acceptance(judged.p, judged.q, judged.x)
}

fn right_residual<'a>(judged: &Judged<'a>) -> Box<dyn Law + 'a> {
    // A mutant of the acceptance rule may reject where the right rule cannot.
    residual(judged.p, judged.q)
        .map_or_else(|| Box::new(judged.p.clone()) as Box<dyn Law + 'a>, |r| Box::new(r))
}

fn certain() -> Fraction {
    Fraction::new(1, 1)
}

/// The law of given weights, or `otherwise` if there are none.
fn law_or(vocab: usize, weights: Vec<(Token, u64)>, otherwise: &Dist) -> Box<dyn Law> {
    let (ids, weights): (Vec<u32>, Vec<u64>) =
        weights.into_iter().filter(|&(_, w)| w > 0).map(|(t, w)| (t.0, w)).unzip();
    Box::new(Dist::sparse(vocab, ids, weights).unwrap_or_else(|_| otherwise.clone()))
}

/// A probability in units of 2^-40: what mutants that compute in floats need.
fn units(probability: f64) -> u64 {
    (probability * 2f64.powi(40)) as u64
}

fn without(p: &Dist, x: Token) -> Box<dyn Law> {
    law_or(p.vocab(), p.support().filter(|&(t, _)| t != x).collect(), p)
}

/// softmax(max(0, p − q)) instead of a division by the sum: every token gets some mass.
fn softmax_residual(p: &Dist, q: &Dist) -> Box<dyn Law> {
    let excess = |t: Token| (p.probability(t) - q.probability(t)).max(0.0).exp();
    let weights = (0..p.vocab()).map(Token::at).map(|t| (t, units(excess(t)))).collect();
    law_or(p.vocab(), weights, p)
}

/// The j-th kept token of p minus the j-th kept token of q, whatever their ids are.
fn residual_by_index(p: &Dist, q: &Dist) -> Box<dyn Law> {
    let q_list: Vec<f64> = q.support().map(|(t, _)| q.probability(t)).collect();
    let weights = p
        .support()
        .enumerate()
        .map(|(j, (t, _))| {
            let q_j = q_list.get(j).copied().unwrap_or(0.0);
            (t, units((p.probability(t) - q_j).max(0.0)))
        })
        .collect();
    law_or(p.vocab(), weights, p)
}

/// A fresh draft, tested again, until one is accepted.
fn retried(p: &Dist, q: &Dist) -> Box<dyn Law> {
    let weights = p.support().map(|(t, _)| (t, units(p.probability(t).min(q.probability(t)))));
    law_or(p.vocab(), weights.collect(), p)
}

/// "Same token as an independent draw from the target, or ratio": two chances to be accepted.
fn two_chances(judged: &Judged<'_>) -> Fraction {
    let ratio = capped(right_accept(judged));
    let (same, total) = (U256::from(judged.p.weight(judged.x)), U256::from(judged.p.total()));
    Fraction {
        numerator: same * ratio.denominator + (total - same) * ratio.numerator,
        denominator: total * ratio.denominator,
    }
}

fn upside_down(judged: &Judged<'_>) -> Fraction {
    let ratio = right_accept(judged);
    if ratio.numerator.is_zero() {
        return certain();
    }
    Fraction { numerator: ratio.denominator, denominator: ratio.numerator }
}

/// `u ≤ a` for a u of 24 bits: one grid point more than `u < a`, and so one even for a = 0.
fn not_strict(judged: &Judged<'_>) -> Fraction {
    let ratio = capped(right_accept(judged));
    let points = (ratio.numerator << 24usize) / ratio.denominator;
    Fraction { numerator: points + U256::from(1), denominator: U256::from(1u64 << 24) }
}

/// Medusa's typical acceptance (Cai et al. 2401.10774): p(x) > min(ε, δ·exp(−H(p))).
fn typical(judged: &Judged<'_>) -> Fraction {
    let p = judged.p;
    let threshold = (0.3 * (-p.entropy_bits() * std::f64::consts::LN_2).exp()).min(0.09);
    Fraction::new(u128::from(p.probability(judged.x) > threshold), 1)
}

fn lenient(judged: &Judged<'_>) -> Fraction {
    let ratio = right_accept(judged);
    Fraction {
        numerator: ratio.numerator * U256::from(5),
        denominator: ratio.denominator * U256::from(4),
    }
}

fn same_as_target(judged: &Judged<'_>) -> Fraction {
    Fraction::new(u128::from(judged.p.weight(judged.x)), u128::from(judged.p.total()))
}

const RIGHT: WrongRule = WrongRule {
    name: "rejection, written again",
    accept: right_accept,
    replace: right_residual,
    shared_coin: false,
};

/// The rule as it should be, in this file's form: the base that mutants differ from in one thing.
pub(super) const BASE: WrongRule = RIGHT;

pub(super) const ALL_ACCEPTED: WrongRule =
    WrongRule { name: "F1 everything accepted", accept: |_| certain(), ..RIGHT };
pub(super) const SOFTMAX_RESIDUAL: WrongRule = WrongRule {
    name: "F2 residual through a softmax",
    replace: |j| softmax_residual(j.p, j.q),
    ..RIGHT
};
pub(super) const TARGET_AFTER_REJECTION: WrongRule = WrongRule {
    name: "F3 target's law after a rejection",
    replace: |j| Box::new(j.p.clone()),
    ..RIGHT
};
pub(super) const ONLY_WITHOUT_DRAFTED: WrongRule = WrongRule {
    name: "F5 residual only without the drafted token",
    replace: |j| without(j.p, j.x),
    ..RIGHT
};
pub(super) const TWO_CHANCES: WrongRule =
    WrongRule { name: "F8 same token or ratio", accept: two_chances, ..RIGHT };
pub(super) const UPSIDE_DOWN: WrongRule =
    WrongRule { name: "F12 ratio upside down", accept: upside_down, ..RIGHT };
pub(super) const SHARED_COIN: WrongRule =
    WrongRule { name: "F13 one coin for all places", shared_coin: true, ..RIGHT };
pub(super) const BY_INDEX: WrongRule =
    WrongRule { name: "residual by list index", replace: |j| residual_by_index(j.p, j.q), ..RIGHT };
pub(super) const BONUS_AFTER_REJECTION: WrongRule = WrongRule {
    name: "bonus row after a rejection",
    replace: |j| Box::new(j.bonus.clone()),
    ..RIGHT
};
pub(super) const FIRST_UNCHECKED: WrongRule = WrongRule {
    name: "first drafted token never checked",
    accept: |j| if j.place == 0 { certain() } else { right_accept(j) },
    ..RIGHT
};
pub(super) const LAST_UNCHECKED: WrongRule = WrongRule {
    name: "last drafted token never checked",
    accept: |j| if j.place + 1 == j.gamma { certain() } else { right_accept(j) },
    ..RIGHT
};
pub(super) const NOT_STRICT: WrongRule =
    WrongRule { name: "acceptance with <= on 24 bits", accept: not_strict, ..RIGHT };
pub(super) const TYPICAL: WrongRule = WrongRule {
    name: "typical acceptance",
    accept: typical,
    replace: |j| Box::new(j.p.clone()),
    ..RIGHT
};
pub(super) const LENIENT: WrongRule =
    WrongRule { name: "lenient ratio, p/(0.8 q)", accept: lenient, ..RIGHT };
pub(super) const RETRIED: WrongRule =
    WrongRule { name: "draft again until accepted", replace: |j| retried(j.p, j.q), ..RIGHT };
pub(super) const MATCH_REDRAWN: WrongRule = WrongRule {
    name: "exact match, mismatch drawn again",
    accept: same_as_target,
    replace: |j| Box::new(j.p.clone()),
    ..RIGHT
};
