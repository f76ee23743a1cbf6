//! GPUs through wgpu.

use burn::{
    backend::{
        CubeDevice, DispatchDevice, WgpuDevice, WgpuDeviceKind,
        wgpu::{RuntimeOptions, graphics::AutoGraphicsApi, try_init_setup},
    },
    tensor::{Device, DeviceType},
};

use super::{Offer, Opened};

/// The adapters of the graphics API that burn settles on: discrete GPUs, then integrated ones, then
/// virtual ones and others, then software.
pub(super) fn offered(kind: DeviceType) -> Vec<Offer> {
    let devices = Device::enumerate(kind);
    let mut adapters: Vec<WgpuDevice> = devices
        .iter()
        .filter_map(|device| match device.as_dispatch() {
            DispatchDevice::Cube(CubeDevice::Wgpu(device)) => Some(device.clone()),
            _ => None,
        })
        .collect();
    adapters.sort_by_key(|device| rank(&device.kind));
    adapters.into_iter().map(offer).collect()
}

fn rank(kind: &WgpuDeviceKind) -> usize {
    match kind {
        WgpuDeviceKind::DiscreteGpu(_) => 0,
        WgpuDeviceKind::IntegratedGpu(_) => 1,
        WgpuDeviceKind::VirtualGpu(_) => 2,
        WgpuDeviceKind::Cpu => 4,
        _ => 3,
    }
}

fn offer(device: WgpuDevice) -> Offer {
    let what = match device.kind {
        WgpuDeviceKind::DiscreteGpu(index) => format!("discrete GPU {index}"),
        WgpuDeviceKind::IntegratedGpu(index) => format!("integrated GPU {index}"),
        WgpuDeviceKind::VirtualGpu(index) => format!("virtual GPU {index}"),
        WgpuDeviceKind::Cpu => "software".into(),
        _ => "other".into(),
    };
    Offer { what, open: Box::new(move || open(&device)) }
}

fn open(device: &WgpuDevice) -> Result<Opened, String> {
    let setup = try_init_setup::<AutoGraphicsApi>(device, RuntimeOptions::default());
    let setup = setup.map_err(|error| error.to_string())?;
    let info = setup.adapter.get_info();
    let cube = CubeDevice::Wgpu(device.clone());
    let client = cube.client();
    let compiler = client.name();
    // It crashes llvmpipe, and SwiftShader returns wrong numbers: no check survives the one.
    if compiler == "wgpu<spirv>" && device.kind == WgpuDeviceKind::Cpu {
        return Err(format!(
            "{} is software, which the SPIR-V compiler of feature vulkan does not support; \
             build with feature wgpu alone",
            info.name
        ));
    }
    Ok(Opened {
        driver: format!("{compiler} on {}, {} {}", info.backend, info.driver, info.driver_info),
        memory: client.properties().memory.max_memory(),
        adapter: info.name,
        device: Device::new(DispatchDevice::Cube(cube)),
    })
}
