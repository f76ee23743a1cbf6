//! [`Place`]: where a model runs.

use burn::tensor::Device;

#[cfg(feature = "remote")]
use crate::remote::Link;
use crate::{Error, device};

/// What the names of workers begin with.
pub const REMOTE: &str = "remote:";

/// Where a model runs.
#[derive(Clone, Debug)]
pub enum Place {
    /// On a device of this machine.
    Here(Device),
    /// On a worker.
    #[cfg(feature = "remote")]
    There(Link),
}

impl From<&Device> for Place {
    fn from(device: &Device) -> Self {
        Self::Here(device.clone())
    }
}

impl Place {
    /// The place called `name`: a [device](device::open), or `remote:ws://host:port`, whose worker
    /// may ask for `token`.
    ///
    /// # Errors
    /// As [`device::open`]; if the URL is none of a worker, or this build cannot reach workers.
    pub fn open(name: &str, token: Option<String>) -> Result<Self, Error> {
        let Some(url) = name.strip_prefix(REMOTE) else {
            return device::open(name).map(Self::Here);
        };
        #[cfg(feature = "remote")]
        return Link::new(url, token).map(Self::There);
        #[cfg(not(feature = "remote"))]
        {
            let _ = token;
            let message = "this build lacks remote; build with --features remote".into();
            Err(Error::Remote { url: url.into(), message })
        }
    }
}
