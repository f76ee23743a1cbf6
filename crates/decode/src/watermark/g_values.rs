//! The pseudorandom bits ("g-values") of tokens, in both public variants of SynthID-Text.
//!
//! All hashing is in `i64` with wrapping arithmetic: `f(h, x) = (h + x)·6364136223846793005 + 1`,
//! folded over the context, then the token, then (for each layer afresh) the layer's number of the
//! key. Variant `hf` starts from 1 and reads a bit of a table at the result; variant `gdm` starts
//! from a hash of the key and turns the result twelve times more (`f(k, 1) >> 5`, an arithmetic
//! shift) before it takes a bit. The hash is a linear congruential generator: **not** a
//! cryptographic pseudorandom function.

use std::fmt;

use rand_mt::Mt;
use ruint::aliases::U256;
use sha2::{Digest, Sha256};

use super::{Key, Scheme, Variant};
use crate::{
    Token,
    vector::{Loop, widest},
};

/// Bits of tokens after a context.
pub trait GValues: fmt::Debug + Send + Sync {
    /// The number of layers, at most 64.
    fn depth(&self) -> usize;

    /// Sets bit `l` of `bits[j]` to the bit of token `ids[j]` in layer `l`.
    fn fill(&self, context: &[Token], ids: &[u32], bits: &mut [u64]);

    /// The bits of one token.
    fn bits(&self, context: &[Token], token: Token) -> u64 {
        let mut bits = [0];
        self.fill(context, &[token.0], &mut bits);
        bits[0]
    }
}

const MULTIPLIER: i64 = 6_364_136_223_846_793_005;

#[inline(always)]
fn step(hash: i64, x: i64) -> i64 {
    hash.wrapping_add(x).wrapping_mul(MULTIPLIER).wrapping_add(1)
}

/// The bits of a key.
#[derive(Clone)]
pub struct Hashed {
    start: i64,
    layers: Vec<i64>,
    kind: Kind,
}

impl fmt::Debug for Hashed {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hashed({} layers)", self.layers.len())
    }
}

#[derive(Clone)]
enum Kind {
    Gdm,
    /// One byte a bit.
    Hf(Vec<u8>),
}

impl Hashed {
    /// The bits of `key` under the scheme's variant.
    #[must_use]
    pub fn new(scheme: &Scheme, key: &Key) -> Self {
        let layers = key.layers().to_vec();
        match scheme.variant {
            Variant::Gdm => Self { start: start(&layers), layers, kind: Kind::Gdm },
            Variant::Hf => {
                let table = scheme.table.unwrap_or(Scheme::HF_TABLE);
                Self { start: 1, layers, kind: Kind::Hf(sampling_table(table.size, table.seed)) }
            }
        }
    }

    /// The hash of a context, which all its tokens share.
    #[must_use]
    pub(super) fn context_hash(&self, context: &[Token]) -> i64 {
        context.iter().fold(self.start, |hash, token| step(hash, i64::from(token.0)))
    }
}

impl Hashed {
    /// Names the n-grams that share all bits for a reason that is no chance: they have one hash, or
    /// (variant `hf`, a table of a power of two) one hash modulo the table.
    #[must_use]
    pub fn class(&self, context: &[Token], token: Token) -> u64 {
        let hash = step(self.context_hash(context), i64::from(token.0)).cast_unsigned();
        match &self.kind {
            Kind::Hf(table) if table.len().is_power_of_two() => hash % table.len() as u64,
            Kind::Hf(_) | Kind::Gdm => hash,
        }
    }
}

/// Variant `gdm`: SHA-256 of the numbers (little-endian), as a big-endian integer, modulo 2^63 − 1.
pub(super) fn start(layers: &[i64]) -> i64 {
    let mut hash = Sha256::new();
    layers.iter().for_each(|layer| hash.update(layer.to_le_bytes()));
    let digest = U256::from_be_bytes::<32>(hash.finalize().into());
    let start: u64 = (digest % U256::from(i64::MAX)).to();
    start.cast_signed()
}

/// Variant `hf`: what `torch.randint(0, 2)` of a CPU generator with this seed gives, the low bits of
/// MT19937. (On a GPU, transformers fills it from another generator: such texts look unmarked here.)
pub(super) fn sampling_table(size: usize, seed: u32) -> Vec<u8> {
    let mut generator = Mt::new(seed);
    (0..size).map(|_| (generator.next_u32() & 1) as u8).collect()
}

impl GValues for Hashed {
    fn depth(&self) -> usize {
        self.layers.len()
    }

    fn fill(&self, context: &[Token], ids: &[u32], bits: &mut [u64]) {
        let (context, layers) = (self.context_hash(context), &self.layers[..]);
        match &self.kind {
            Kind::Gdm => widest(Iterated { context, layers, ids, bits }),
            Kind::Hf(table) => {
                for (bits, &id) in bits.iter_mut().zip(ids) {
                    let token = step(context, i64::from(id));
                    *bits = layers.iter().enumerate().fold(0, |bits, (l, &layer)| {
                        let place = step(token, layer).rem_euclid(table.len() as i64);
                        bits | u64::from(table[place as usize]) << l
                    });
                }
            }
        }
    }
}

/// The twelve further turns of variant `gdm`, for several tokens side by side.
struct Iterated<'a> {
    context: i64,
    layers: &'a [i64],
    ids: &'a [u32],
    bits: &'a mut [u64],
}

impl Loop for Iterated<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        // Enough chains side by side to hide the latency of a multiplication.
        const LANES: usize = 64;
        for (ids, bits) in self.ids.chunks(LANES).zip(self.bits.chunks_mut(LANES)) {
            let (mut tokens, mut found) = ([0; LANES], [0; LANES]);
            for (token, &id) in tokens.iter_mut().zip(ids) {
                *token = step(self.context, i64::from(id));
            }
            for (l, &layer) in self.layers.iter().enumerate() {
                let mut hashes = [0; LANES];
                for lane in 0..LANES {
                    hashes[lane] = step(tokens[lane], layer);
                }
                for _ in 0..12 {
                    for hash in &mut hashes {
                        *hash = step(*hash, 1) >> 5;
                    }
                }
                for lane in 0..LANES {
                    found[lane] |= (hashes[lane].cast_unsigned() >> 30 & 1) << l;
                }
            }
            bits.copy_from_slice(&found[..bits.len()]);
        }
    }
}
