//! Device names, what this build contains and what this machine offers. The only module of the crate
//! that asks which features are on.
//!
//! | name | what it is |
//! |---|---|
//! | `cpu` | the processor, through burn's flex |
//! | `wgpu`, `wgpu:N` | a GPU through wgpu: Vulkan, Metal, DX12 or WebGPU; `wgpu` is `wgpu:0`, the best |
//! | `vulkan`, `vulkan:N` | the same, on Vulkan alone |
//! | `cuda`, `cuda:N` | a GPU through NVIDIA's CUDA |
//!
//! Any device but the processor, which is what they are compared with, has to solve small problems
//! before it is handed out ([`check`](draftproof_kernels::burn::check)), once in a process.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "wgpu")]
mod wgpu;

use std::{
    collections::BTreeMap,
    panic::{self, AssertUnwindSafe},
    sync::{Mutex, PoisonError},
};

use burn::tensor::Device;
use draftproof_kernels::burn as kernels;

use crate::Error;

/// A kind of device: a feature of the build.
#[derive(Debug)]
struct Kind {
    name: &'static str,
    /// Whether this build has it.
    built: bool,
    /// The devices of this machine, the best first.
    offered: fn() -> Vec<Offer>,
}

/// A device that is there, not opened yet.
struct Offer {
    /// What can be said before it is opened.
    what: String,
    open: Box<dyn Fn() -> Result<Opened, String>>,
}

/// An open device and what is known of it.
#[derive(Clone, Debug)]
struct Opened {
    device: Device,
    /// The hardware's own name.
    adapter: String,
    driver: String,
    memory: Option<u64>,
}

/// The name of the processor.
pub const CPU: &str = "cpu";

const KINDS: &[Kind] = &[
    Kind { name: CPU, built: cfg!(feature = "cpu"), offered: cpu },
    Kind {
        name: "wgpu",
        built: cfg!(feature = "wgpu"),
        #[cfg(feature = "wgpu")]
        offered: || wgpu::offered(burn::tensor::DeviceType::Wgpu),
        #[cfg(not(feature = "wgpu"))]
        offered: Vec::new,
    },
    Kind {
        name: "vulkan",
        built: cfg!(feature = "vulkan"),
        #[cfg(feature = "vulkan")]
        offered: || wgpu::offered(burn::tensor::DeviceType::Vulkan),
        #[cfg(not(feature = "vulkan"))]
        offered: Vec::new,
    },
    Kind {
        name: "cuda",
        built: cfg!(feature = "cuda"),
        #[cfg(feature = "cuda")]
        offered: cuda::offered,
        #[cfg(not(feature = "cuda"))]
        offered: Vec::new,
    },
];

fn cpu() -> Vec<Offer> {
    #[cfg(feature = "cpu")]
    {
        let open = || {
            let driver = format!("flex, {:?}", draftproof_kernels::isa::Isa::current());
            let (device, adapter) = (Device::flex(), processor());
            Ok(Opened { device, adapter, driver, memory: memory_of_host() })
        };
        vec![Offer { what: "processor".into(), open: Box::new(open) }]
    }
    #[cfg(not(feature = "cpu"))]
    Vec::new()
}

/// The processor's name, where the system tells it.
#[must_use]
pub fn processor() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
    name.unwrap_or(std::env::consts::ARCH).trim().to_owned()
}

#[cfg(feature = "cpu")]
fn memory_of_host() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kibibytes = info.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    Some(kibibytes.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? << 10)
}

/// The kinds of device that this build contains.
#[must_use]
pub fn available() -> Vec<&'static str> {
    KINDS.iter().filter(|kind| kind.built).map(|kind| kind.name).collect()
}

/// The kinds that this build lacks: the names of the features that would add them.
#[must_use]
pub fn missing() -> Vec<&'static str> {
    KINDS.iter().filter(|kind| !kind.built).map(|kind| kind.name).collect()
}

/// What is known of a device.
#[derive(Clone, Debug)]
pub struct DeviceFacts {
    /// The name that [`open`] takes.
    pub name: String,
    /// The hardware's own name.
    pub adapter: String,
    /// The library and driver that run it.
    pub driver: String,
    /// Bytes of its memory, if it tells.
    pub memory: Option<u64>,
    /// The most bytes of one tensor, if there is a limit.
    pub largest_tensor: Option<u64>,
    /// Whether its kernels keep rows independent bit for bit.
    pub row_invariant: bool,
    /// Whether it solved the small problems; the processor is what others are compared with.
    pub checked: bool,
}

impl DeviceFacts {
    fn new(name: String, opened: Opened) -> Self {
        Self {
            adapter: opened.adapter,
            driver: opened.driver,
            memory: opened.memory,
            largest_tensor: kernels::largest_tensor(&opened.device),
            row_invariant: kernels::row_invariant(&opened.device),
            checked: name != CPU,
            name,
        }
    }
}

/// All devices that this build can use on this machine; an error for one that is there and cannot be
/// used.
#[must_use]
pub fn offered() -> Vec<Result<DeviceFacts, Error>> {
    let mut all = Vec::new();
    for kind in KINDS {
        for (index, offer) in (kind.offered)().into_iter().enumerate() {
            let name = match kind.name {
                CPU => CPU.to_owned(),
                kind => format!("{kind}:{index}"),
            };
            all.push(acquire(&name, &offer).map(|opened| DeviceFacts::new(name, opened)));
        }
    }
    all
}

/// The burn device called `name`.
///
/// # Errors
/// If this build or this machine has no device of that name (the message lists what there is), or if
/// the device cannot be opened or computes wrongly.
pub fn open(name: &str) -> Result<Device, Error> {
    find(name).map(|(_, opened)| opened.device)
}

/// What is known of the device called `name`, with the kernels that are chosen now.
///
/// # Errors
/// As [`open`].
pub fn facts(name: &str) -> Result<DeviceFacts, Error> {
    find(name).map(|(full, opened)| DeviceFacts::new(full, opened))
}

/// A device by its name, with its full name.
fn find(name: &str) -> Result<(String, Opened), Error> {
    let (kind, index) = match name.split_once(':') {
        Some((kind, index)) => (kind, index.parse::<usize>().ok()),
        None => (name, Some(0)),
    };
    let unknown = || Error::Device {
        name: name.into(),
        available: available().join(", "),
        missing: missing().join(", "),
    };
    let found = KINDS.iter().find(|known| known.built && known.name == kind);
    let (Some(kind), Some(index)) = (found, index) else { return Err(unknown()) };
    if kind.name == CPU && name != CPU {
        return Err(unknown());
    }
    let offers = (kind.offered)();
    let Some(offer) = offers.get(index) else {
        let list =
            |(index, offer): (usize, &Offer)| format!("{}:{index} ({})", kind.name, offer.what);
        let offered: Vec<String> = offers.iter().enumerate().map(list).collect();
        let offered = if offered.is_empty() { "none".into() } else { offered.join(", ") };
        return Err(Error::NoSuchDevice { name: name.into(), kind: kind.name, offered });
    };
    let full = if kind.name == CPU { name.into() } else { format!("{}:{index}", kind.name) };
    acquire(&full, offer).map(|opened| (full, opened))
}

/// Opens and checks a device, once in a process: a device can be set up only once, and what it
/// computed then it computes again.
fn acquire(name: &str, offer: &Offer) -> Result<Opened, Error> {
    static OPENED: Mutex<BTreeMap<String, Opened>> = Mutex::new(BTreeMap::new());
    let mut all = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(opened) = all.get(name) {
        return Ok(opened.clone());
    }
    let failed =
        |message| Error::DeviceOpen { name: name.into(), what: offer.what.clone(), message };
    let opened = contain(&offer.open).and_then(|opened| opened).map_err(failed)?;
    if name != CPU {
        let checked = contain(|| kernels::check::check(&opened.device)).map_err(failed)?;
        checked.map_err(|fault| Error::DeviceFault {
            name: name.into(),
            adapter: opened.adapter.clone(),
            fault,
        })?;
    }
    all.insert(name.into(), opened.clone());
    Ok(opened)
}

/// What `body` returns, or the message of its panic: libraries of devices panic where a driver fails.
fn contain<T>(body: impl Fn() -> T) -> Result<T, String> {
    panic::catch_unwind(AssertUnwindSafe(body)).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        text.unwrap_or("it gave up without a message").into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_opens_or_says_what_is_there() {
        for name in available() {
            match open(name) {
                Ok(_) => {}
                Err(Error::NoSuchDevice { offered, .. }) => assert_eq!(offered, "none"),
                Err(error) => panic!("{name}: {error}"),
            }
        }
        let message = open("tpu").unwrap_err().to_string();
        assert!(message.contains("\"tpu\"") && message.contains("cpu"), "{message}");
        for name in ["", "cpu:0", "cpu:", "wgpu:x", "wgpu:-1", "wgpu:", ":0"] {
            assert!(matches!(open(name), Err(Error::Device { .. })), "{name}");
        }
    }

    #[test]
    fn every_offer_opens_under_its_name() {
        let offers = offered();
        assert!(!offers.is_empty());
        for offer in offers {
            let facts = offer.unwrap();
            assert!(open(&facts.name).is_ok(), "{facts:?}");
            assert!(!facts.adapter.is_empty() && !facts.driver.is_empty(), "{facts:?}");
            assert!(facts.row_invariant, "{facts:?}");
        }
    }

    #[cfg(feature = "cpu")]
    #[test]
    fn the_cpu_keeps_its_bits() {
        assert!(facts("cpu").unwrap().row_invariant);
        assert!(facts("tpu").is_err());
    }

    #[test]
    fn a_panic_of_a_library_is_an_error() {
        assert_eq!(contain(|| 1), Ok(1));
        assert_eq!(contain(|| -> u8 { panic!("no {}", "driver") }), Err("no driver".into()));
    }
}
