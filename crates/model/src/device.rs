//! Device names. The only file that asks which features this build has.

use burn::tensor::Device;

use crate::Error;

/// The names that [`open`] takes in this build.
#[must_use]
pub fn available() -> &'static [&'static str] {
    &[
        #[cfg(feature = "cpu")]
        "cpu",
    ]
}

/// The burn device called `name`.
///
/// # Errors
/// If this build has no device of that name; the message lists those it has.
pub fn open(name: &str) -> Result<Device, Error> {
    match name {
        #[cfg(feature = "cpu")]
        "cpu" => Ok(Device::flex()),
        _ => Err(Error::Device { name: name.into(), available: available().join(", ") }),
    }
}

/// Whether rows on the device called `name` are independent bit for bit, with the kernels that are
/// chosen now.
///
/// # Errors
/// As [`open`].
pub fn row_invariant(name: &str) -> Result<bool, Error> {
    Ok(draftproof_kernels::burn::row_invariant(&open(name)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_listed_name_opens_and_no_other() {
        for name in available() {
            assert!(open(name).is_ok(), "{name}");
        }
        let message = open("tpu").unwrap_err().to_string();
        assert!(message.contains("\"tpu\"") && message.contains("cpu"), "{message}");
        assert!(open("").is_err());
    }

    #[cfg(feature = "cpu")]
    #[test]
    fn the_cpu_keeps_its_bits() {
        assert!(row_invariant("cpu").unwrap());
        assert!(row_invariant("tpu").is_err());
    }
}
