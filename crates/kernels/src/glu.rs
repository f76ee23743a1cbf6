//! Gated activations: `act(gate) · up`, value by value.

use crate::{
    isa::Isa,
    math,
    simd::{Kernel, LANES, Simd},
};

/// The function of the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x / (1 + e^−x)`: swiglu.
    Silu,
    /// GELU in its tanh form: geglu.
    GeluTanh,
}

/// `out = act(gate) · up`.
///
/// # Panics
/// If the lengths differ.
pub fn glu(activation: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) {
    assert_eq!(gate.len(), up.len(), "a gate for each value");
    assert_eq!(gate.len(), out.len(), "an output for each value");
    out.copy_from_slice(gate);
    glu_in_place(Isa::current(), activation, out, up);
}

/// `gate = act(gate) · up`.
pub(crate) fn glu_in_place(isa: Isa, activation: Activation, gate: &mut [f32], up: &[f32]) {
    assert_eq!(gate.len(), up.len(), "a gate for each value");
    isa.run(Glu { activation, gate, up });
}

struct Glu<'a> {
    activation: Activation,
    gate: &'a mut [f32],
    up: &'a [f32],
}

impl Kernel for Glu<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let (gates, gate_part) = self.gate.as_chunks_mut::<LANES>();
        let (ups, up_part) = self.up.as_chunks::<LANES>();
        for (gate, up) in gates.iter_mut().zip(ups) {
            let y = gated(simd, self.activation, simd.load(gate), simd.load(up));
            simd.store(y, gate);
        }
        if !gate_part.is_empty() {
            let (gate, up) = (simd.load_part(gate_part), simd.load_part(up_part));
            let mut lanes = [0.0; LANES];
            simd.store(gated(simd, self.activation, gate, up), &mut lanes);
            gate_part.copy_from_slice(&lanes[..gate_part.len()]);
        }
    }
}

#[inline(always)]
fn gated<S: Simd>(simd: S, activation: Activation, gate: S::V, up: S::V) -> S::V {
    let active = match activation {
        Activation::Silu => math::silu(simd, gate),
        Activation::GeluTanh => math::gelu_tanh(simd, gate),
    };
    simd.mul(active, up)
}
