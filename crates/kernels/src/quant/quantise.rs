//! Values to blocks: the simple formats, whose scales follow from the least and largest value.
//!
//! The rules are those of the reference functions in llama.cpp (`quantize_row_q4_0_ref` and its
//! like), so that a copy made here has the blocks that a file made there has. They round each value
//! to the nearest step; formats of 256 values need a search for their scales and are only read.

use half::f16;

use super::BlockFormat;

/// The values of a block.
const VALUES: usize = 32;

impl BlockFormat {
    /// The formats that [`quantise`] writes.
    pub const WRITTEN: [Self; 5] = [Self::Q4_0, Self::Q4_1, Self::Q5_0, Self::Q5_1, Self::Q8_0];
}

/// The blocks of `values`, or None if the format is not one of [`BlockFormat::WRITTEN`].
///
/// # Panics
/// If the values are not whole blocks.
#[must_use]
pub fn quantise(values: &[f32], format: BlockFormat) -> Option<Vec<u8>> {
    let write: fn(&[f32; VALUES], &mut Vec<u8>) = match format {
        BlockFormat::Q4_0 => |block, out| centred(block, 4, out),
        BlockFormat::Q5_0 => |block, out| centred(block, 5, out),
        BlockFormat::Q4_1 => |block, out| from_least(block, 4, out),
        BlockFormat::Q5_1 => |block, out| from_least(block, 5, out),
        BlockFormat::Q8_0 => bytes,
        _ => return None,
    };
    let size = format.row_bytes(values.len());
    let size = size.unwrap_or_else(|| panic!("{} values are no {format} blocks", values.len()));
    let mut out = Vec::with_capacity(size);
    values.as_chunks().0.iter().for_each(|block| write(block, &mut out));
    Some(out)
}

/// d, and one signed byte a value.
fn bytes(block: &[f32; VALUES], out: &mut Vec<u8>) {
    let most = block.iter().fold(0.0_f32, |most, x| most.max(x.abs()));
    let d = most / 127.0;
    out.extend(f16::from_f32(d).to_le_bytes());
    out.extend(block.map(|x| (x * inverse(d)).round() as i8 as u8));
}

/// d, and `bits` bits a value around the middle, which is 0: the value that is largest in magnitude
/// is the lowest step, the only one without a counterpart.
fn centred(block: &[f32; VALUES], bits: u32, out: &mut Vec<u8>) {
    let mut farthest = 0.0_f32;
    for &x in block {
        if x.abs() > farthest.abs() {
            farthest = x;
        }
    }
    let middle = (1 << (bits - 1)) as f32;
    let d = farthest / -middle;
    out.extend(f16::from_f32(d).to_le_bytes());
    pack(block.map(|x| (x * inverse(d) + middle + 0.5) as u8), bits, out);
}

/// d and the least value m, and `bits` bits a value above m.
fn from_least(block: &[f32; VALUES], bits: u32, out: &mut Vec<u8>) {
    let least = block.iter().fold(f32::INFINITY, |least, &x| least.min(x));
    let most = block.iter().fold(f32::NEG_INFINITY, |most, &x| most.max(x));
    let d = (most - least) / ((1 << bits) - 1) as f32;
    out.extend(f16::from_f32(d).to_le_bytes());
    out.extend(f16::from_f32(least).to_le_bytes());
    pack(block.map(|x| ((x - least) * inverse(d) + 0.5) as u8), bits, out);
}

fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// The fifth bits of all values, if they have five, then the halves of bytes: value i with value
/// i + 16.
fn pack(steps: [u8; VALUES], bits: u32, out: &mut Vec<u8>) {
    let steps = steps.map(|step| step.min((1 << bits) - 1));
    if bits == 5 {
        let high = steps.iter().enumerate();
        let high = high.fold(0_u32, |high, (i, step)| high | u32::from(step >> 4) << i);
        out.extend(high.to_le_bytes());
    }
    let (low, up) = steps.split_at(VALUES / 2);
    out.extend(low.iter().zip(up).map(|(low, up)| low & 15 | up << 4));
}
