//! What a device is and what fits on it.

use ::burn::tensor::Device;

/// The most bytes that one tensor may have on the device, if it sets a limit.
#[must_use]
pub fn largest_tensor(device: &Device) -> Option<u64> {
    #[cfg(feature = "cube")]
    if let ::burn::backend::DispatchDevice::Cube(device) = device.as_dispatch() {
        return Some(device.client().properties().memory.max_page_size);
    }
    let _ = device;
    None
}

/// Bytes of memory in use on the device and bytes set aside for use, if it counts them: those of the
/// calling thread, since each has its own.
#[must_use]
pub fn memory(device: &Device) -> Option<(u64, u64)> {
    #[cfg(feature = "cube")]
    if let ::burn::backend::DispatchDevice::Cube(device) = device.as_dispatch() {
        return Some(super::cube::memory(&device.client()));
    }
    let _ = device;
    None
}

/// Whether kernels on the device read [blocks](crate::quant) as they lie; elsewhere they must be
/// expanded when they are loaded.
#[must_use]
pub fn reads_blocks(device: &Device) -> bool {
    super::row_invariant(device) && !reads_words(device)
}

/// Whether kernels on the device read bf16 by words of two, so that rows must be whole words.
pub(super) fn reads_words(device: &Device) -> bool {
    #[cfg(feature = "cube")]
    if let ::burn::backend::DispatchDevice::Cube(_) = device.as_dispatch() {
        return true;
    }
    let _ = device;
    false
}
