//! GPUs through CUDA.

use burn::{
    backend::DispatchDevice,
    tensor::{Device, DeviceType},
};

use super::{Offer, Opened};

pub(super) fn offered() -> Vec<Offer> {
    let devices = Device::enumerate(DeviceType::Cuda);
    devices
        .iter()
        .enumerate()
        .map(|(index, device)| {
            let device = device.clone();
            let open = move || open(&device);
            Offer { what: format!("CUDA device {index}"), open: Box::new(open) }
        })
        .collect()
}

fn open(device: &Device) -> Result<Opened, String> {
    let DispatchDevice::Cube(cube) = device.as_dispatch() else {
        return Err("expected a CubeCL device".into());
    };
    let client = cube.client();
    Ok(Opened {
        driver: format!("{} on {}", client.name(), client.properties().identity.fingerprint),
        memory: client.properties().memory.max_memory(),
        adapter: client.properties().identity.name.clone(),
        device: device.clone(),
    })
}
