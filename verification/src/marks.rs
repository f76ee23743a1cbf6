//! Watermarks of scenes: under one key, or under a key that is drawn anew for each text.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex},
};

use draftproof_decode::{
    Token,
    dist::Fraction,
    noise::{Lane, Noise, RoundKey, Seed},
    watermark::{GValues, Key, Mode, Scheme, StoredKey, Watermark},
};

use crate::exact::paths::Paths;

/// The watermark of a scene.
#[derive(Clone, Debug)]
pub enum Mark {
    /// Under one key: the text follows the law that this key gives.
    OneKey(Watermark),
    /// Under a key that is drawn anew for each text, in mode `fast`: the text follows the law
    /// without the watermark.
    AnyKey(Arc<FreshKeys>),
}

impl Mark {
    /// Mode `exact` under the key of this number: three layers, a context of one token, so that
    /// contexts repeat inside a block.
    #[must_use]
    pub fn one_key(number: u64) -> Self {
        let layers = (0..3).map(|layer| (number * 3 + layer).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let key = Key::new(layers.map(u64::cast_signed).collect());
        let stored = StoredKey::new(scheme(3), key, "2026-01-01".into(), None);
        Self::OneKey(Watermark::new(&stored.expect("a key of three layers"), Mode::Exact))
    }

    /// Mode `fast` under all keys, of `depth` layers.
    #[must_use]
    pub fn any_key(depth: usize) -> Self {
        Self::AnyKey(Arc::new(FreshKeys { depth, drawn: Mutex::default() }))
    }

    /// The watermark as the engine takes it.
    #[must_use]
    pub fn watermark(&self) -> Watermark {
        match self {
            Self::OneKey(watermark) => watermark.clone(),
            Self::AnyKey(keys) => keys.watermark(Lot::Residual),
        }
    }
}

fn scheme(depth: usize) -> Scheme {
    Scheme { depth, context_len: 1, ..Scheme::default() }
}

/// A key drawn anew for each text, bit by bit as the text asks for it.
#[derive(Debug)]
pub struct FreshKeys {
    depth: usize,
    drawn: Mutex<Drawn>,
}

/// Which of the two independent keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lot {
    /// That of drafts and of bonus draws.
    Draft,
    /// That of draws after a rejection.
    Residual,
}

/// Where bits come from.
#[derive(Clone, Debug)]
pub enum Source {
    /// Both values of each, on a walk over all paths.
    Paths(Paths),
    /// A hash of the text's seed.
    Seed(Seed),
}

#[derive(Debug, Default)]
struct Drawn {
    source: Option<Source>,
    bits: HashMap<(Lot, Vec<Token>, u32), u64>,
}

impl FreshKeys {
    /// Forgets the key of the text before.
    pub fn begin(&self, source: Source) {
        *self.drawn() = Drawn { source: Some(source), bits: HashMap::new() };
    }

    /// The watermark of these keys in mode `fast`, with `residual` for draws after a rejection.
    #[must_use]
    pub fn watermark(self: &Arc<Self>, residual: Lot) -> Watermark {
        let values = |lot| Arc::new(Values { keys: Arc::clone(self), lot });
        let (draft, residual) = (values(Lot::Draft), values(residual));
        Watermark::from_values(scheme(self.depth), Mode::Fast, "any".into(), draft, residual)
    }

    fn drawn(&self) -> std::sync::MutexGuard<'_, Drawn> {
        self.drawn.lock().expect("a run that panics ends the check")
    }

    fn bits(&self, lot: Lot, context: &[Token], id: u32) -> u64 {
        let mut drawn = self.drawn();
        if let Some(&bits) = drawn.bits.get(&(lot, context.to_vec(), id)) {
            return bits;
        }
        let address = context.iter().fold(u64::from(id), |hash, token| {
            hash.wrapping_mul(1 << 20).wrapping_add(u64::from(token.0) + 1)
        });
        let bit = |layer: usize| match drawn.source.as_mut().expect("a text has begun") {
            Source::Seed(seed) => {
                let words = [seed.seed, seed.sequence, lot as u64, address, layer as u64];
                mixed(&words) & 1
            }
            Source::Paths(paths) => {
                // Addresses of their own: no round of a text starts there.
                let seed = Seed { seed: u64::MAX, sequence: lot as u64 };
                let offset = layer as u32;
                let key = RoundKey { seed, round_start: address, offset, lane: Lane::Draft };
                u64::from(paths.coin(key, Fraction::new(1, 2)))
            }
        };
        let bits = (0..self.depth).map(bit).enumerate().fold(0, |bits, (l, bit)| bits | bit << l);
        drawn.bits.insert((lot, context.to_vec(), id), bits);
        bits
    }
}

/// A hash whose bits pass for coins: the finaliser of `SplitMix64` over each word.
pub(crate) fn mixed(words: &[u64]) -> u64 {
    words.iter().fold(0x243f_6a88_85a3_08d3, |hash, word| {
        let mut z = (hash ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

/// The bits of one of the two keys.
struct Values {
    keys: Arc<FreshKeys>,
    lot: Lot,
}

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Values({:?})", self.lot)
    }
}

impl GValues for Values {
    fn depth(&self) -> usize {
        self.keys.depth
    }

    fn fill(&self, context: &[Token], ids: &[u32], bits: &mut [u64]) {
        for (bits, &id) in bits.iter_mut().zip(ids) {
            *bits = self.keys.bits(self.lot, context, id);
        }
    }
}
