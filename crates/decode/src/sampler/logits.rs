//! [`Logits`]: a row as the model gave it, until a step changes it.
//!
//! Most rows are never changed, so they are read where they lie; what changes them computes in f64.

use crate::vector::{Loop, widest};

/// None is NaN or +∞.
#[derive(Debug)]
pub(super) enum Logits<'a> {
    /// The model's own, and the largest of them.
    Given(&'a [f32], f32),
    /// None of these is −0, so that ties are ties to the last bit.
    Changed(Vec<f64>),
}

/// Calls `$body` with the slice of `$logits`, whatever its type.
macro_rules! each_kind {
    ($logits:expr, $slice:ident => $body:expr) => {
        match $logits {
            $crate::sampler::logits::Logits::Given($slice, _) => $body,
            $crate::sampler::logits::Logits::Changed($slice) => $body,
        }
    };
}
pub(super) use each_kind;

/// An f32 or f64.
pub(super) trait Logit: Copy + Into<f64> {}

impl<Z: Copy + Into<f64>> Logit for Z {}

impl<'a> Logits<'a> {
    /// The model's `row`; or the place of its first logit that is NaN or +∞.
    pub(super) fn of(row: &'a [f32]) -> Result<Self, usize> {
        if let Some(largest) = widest(LargestUsable(row)) {
            return Ok(Self::Given(row, largest));
        }
        Err(row.iter().position(|z| !is_usable(z)).expect("one of them is not usable"))
    }

    pub(super) fn len(&self) -> usize {
        each_kind!(self, z => z.len())
    }

    /// Whether there is one above −∞.
    pub(super) fn any_finite(&self) -> bool {
        each_kind!(self, z => z.iter().any(|&z| tie(z) > f64::NEG_INFINITY))
    }

    /// The largest, −∞ of none.
    pub(super) fn largest(&self) -> f64 {
        match self {
            Self::Given(_, largest) => f64::from(*largest),
            Self::Changed(z) => widest(Largest(z)),
        }
    }

    /// The first place of the largest.
    pub(super) fn place_of_largest(&self) -> usize {
        let largest = self.largest();
        each_kind!(self, z => widest(Find(z, largest))).expect("the largest is one of them")
    }

    /// All of them, to be changed.
    pub(super) fn own(&mut self) -> &mut Vec<f64> {
        if let Self::Given(row, _) = *self {
            *self = Self::Changed(row.iter().map(|&z| tie(z)).collect());
        }
        match self {
            Self::Changed(logits) => logits,
            Self::Given(..) => unreachable!("they are changed now"),
        }
    }

    /// Only those at `places`.
    pub(super) fn keep(&mut self, places: &[usize]) {
        let kept = each_kind!(self, z => places.iter().map(|&place| tie(z[place])).collect());
        *self = Self::Changed(kept);
    }
}

/// A logit of which −0 and 0 are the same also to the last bit.
#[inline(always)]
pub(super) fn tie(z: impl Logit) -> f64 {
    z.into() + 0.0
}

/// Neither NaN nor +∞: `< ∞` is false for those alone.
#[inline(always)]
fn is_usable(z: &f32) -> bool {
    *z < f32::INFINITY
}

/// The largest of a row, −∞ of none, if all of it is usable.
struct LargestUsable<'a>(&'a [f32]);

impl Loop for LargestUsable<'_> {
    type Output = Option<f32>;

    #[inline(always)]
    fn run(self) -> Option<f32> {
        let (mut lanes, mut unusable) = ([f32::NEG_INFINITY; 16], 0u32);
        let (blocks, rest) = self.0.as_chunks::<16>();
        for block in blocks {
            for (lane, z) in lanes.iter_mut().zip(block) {
                unusable |= u32::from(!is_usable(z));
                *lane = if *z > *lane { *z } else { *lane };
            }
        }
        let usable = unusable == 0 && rest.iter().all(is_usable);
        usable.then(|| lanes.iter().chain(rest).copied().fold(f32::NEG_INFINITY, f32::max))
    }
}

struct Largest<'a>(&'a [f64]);

impl Loop for Largest<'_> {
    type Output = f64;

    #[inline(always)]
    fn run(self) -> f64 {
        let mut lanes = [f64::NEG_INFINITY; 8];
        let (blocks, rest) = self.0.as_chunks::<8>();
        for block in blocks {
            for (lane, &z) in lanes.iter_mut().zip(block) {
                *lane = if z > *lane { z } else { *lane };
            }
        }
        lanes.iter().chain(rest).copied().fold(f64::NEG_INFINITY, f64::max)
    }
}

/// The first place of a value.
struct Find<'a, Z>(&'a [Z], f64);

impl<Z: Logit> Loop for Find<'_, Z> {
    type Output = Option<usize>;

    #[inline(always)]
    fn run(self) -> Option<usize> {
        const BLOCK: usize = 64;
        let Self(logits, value) = self;
        let is_it = |&z: &Z| z.into() == value;
        let mut blocks = logits.chunks(BLOCK).enumerate();
        // Without an early end a block is a few vectors.
        let (block, logits) =
            blocks.find(|(_, block)| block.iter().fold(false, |any, z| any | is_it(z)))?;
        Some(block * BLOCK + logits.iter().position(is_it)?)
    }
}
