//! Names and vendor identity of the devices that libibverbs programs see.

use std::str::FromStr;

use super::Personality;

/// Names of a machine's devices: a prefix and consecutive numbers, such as `mlx5_0`, `mlx5_1`, ...
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceNames {
    prefix: String,
    first: u32,
}

/// Reason why a text is not a valid name for the first device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceNameError {
    /// The name contains a character other than letters, digits, `_`, `-` and `.`.
    #[error(
        "a device name begins with a letter and consists of letters, digits, '_', '-' and '.', but '{0}' is in it"
    )]
    Character(char),
    /// The first character is not a letter.
    #[error("a device name begins with a letter, as in mlx5_0")]
    Start,
    /// The name does not end in a number from 0 to 999 without leading zeros.
    #[error("a device name ends in the number of the first device, from 0 to {MAX_NUMBER}, as in mlx5_0")]
    Number,
    /// The name is too long.
    #[error("a device name has at most {MAX_LEN} characters")]
    TooLong,
}

/// Maximum length of the first device's name, 4 less than libibverbs allows, because later devices may have
/// longer numbers.
const MAX_LEN: usize = 59;
/// Maximum number of the first device.
const MAX_NUMBER: u32 = 999;

impl DeviceNames {
    /// Returns the name of the device at `index`.
    pub fn name(&self, index: usize) -> String {
        format!("{}{}", self.prefix, self.first as usize + index)
    }
}

impl Default for DeviceNames {
    /// Returns the names `urxe0`, `urxe1`, ...
    fn default() -> DeviceNames {
        DeviceNames { prefix: "urxe".into(), first: 0 }
    }
}

impl FromStr for DeviceNames {
    type Err = DeviceNameError;

    /// Parses the name of the first device.
    fn from_str(text: &str) -> Result<DeviceNames, DeviceNameError> {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if let Some(other) = text.chars().find(|c| !is_allowed(*c)) {
            return Err(DeviceNameError::Character(other));
        }
        if !text.starts_with(|c: char| c.is_ascii_alphabetic()) {
            return Err(DeviceNameError::Start);
        }
        if text.len() > MAX_LEN {
            return Err(DeviceNameError::TooLong);
        }
        let (prefix, digits) = text.split_at(text.trim_end_matches(|c: char| c.is_ascii_digit()).len());
        let has_leading_zero = digits.len() > 1 && digits.starts_with('0');
        let first = digits.parse().ok().filter(|n| *n <= MAX_NUMBER && !has_leading_zero);
        let first = first.ok_or(DeviceNameError::Number)?;
        Ok(DeviceNames { prefix: prefix.into(), first })
    }
}

/// Vendor identity of a device, as libibverbs and sysfs report it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Identity {
    /// IEEE vendor ID (`ibv_device_attr::vendor_id`); 0xffffff for none, as in the kernel's software
    /// devices.
    pub vendor_id: u32,
    /// Vendor's part number (`ibv_device_attr::vendor_part_id`).
    pub vendor_part_id: u32,
    /// PCI vendor ID; 0xffff for none.
    pub pci_vendor: u16,
    /// PCI device ID.
    pub pci_device: u16,
    /// Device type (`hca_type`).
    pub hca_type: &'static str,
    /// Board identifier (`board_id`).
    pub board_id: &'static str,
}

impl Identity {
    /// Identity without a vendor, the default: programs that recognise a vendor's device use more than its
    /// verbs.
    pub const NO_VENDOR: Identity = Identity {
        vendor_id: 0xff_ffff,
        vendor_part_id: 0,
        pci_vendor: 0xffff,
        pci_device: 0,
        hca_type: "urxe",
        board_id: "urxe",
    };

    /// Identity of a ConnectX-5.
    pub const CONNECTX_5: Identity = Identity {
        vendor_id: 0x02_c9,
        vendor_part_id: 0x1017,
        pci_vendor: 0x15b3,
        pci_device: 0x1017,
        hca_type: "MT4119",
        board_id: "MT_0000000008",
    };

    /// Returns the identity that the given names and personality ask for: [`CONNECTX_5`](Self::CONNECTX_5)
    /// for names that begin with `mlx5_` and for [`Personality::MLX5`], otherwise
    /// [`NO_VENDOR`](Self::NO_VENDOR).
    pub fn of(names: &DeviceNames, personality: &Personality) -> Identity {
        if names.prefix.starts_with("mlx5_") || personality.name == Personality::MLX5.name {
            Identity::CONNECTX_5
        } else {
            Identity::NO_VENDOR
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_count_up_from_the_first_device() {
        let all = |first: &str| {
            let names: DeviceNames = first.parse().unwrap();
            [0, 1, 10].map(|i| names.name(i)).join(" ")
        };
        assert_eq!(all("mlx5_0"), "mlx5_0 mlx5_1 mlx5_10");
        assert_eq!(all("rocep1s0f9"), "rocep1s0f9 rocep1s0f10 rocep1s0f19");
        assert_eq!(DeviceNames::default(), "urxe0".parse().unwrap());
    }

    #[test]
    fn names_that_no_device_can_have_are_refused() {
        let error = |name: &str| name.parse::<DeviceNames>().unwrap_err();
        for (name, character) in [("mlx5/0", '/'), ("mlx5:0", ':'), ("mlx5 0", ' '), ("ml\u{e4}0", '\u{e4}')]
        {
            assert_eq!(error(name), DeviceNameError::Character(character), "{name}");
        }
        for name in ["", "0", "..0", "_0", "-0"] {
            assert_eq!(error(name), DeviceNameError::Start, "{name}");
        }
        for name in ["mlx5_", "mlx5_00", "mlx5_1000", "mlx5_99999999999"] {
            assert_eq!(error(name), DeviceNameError::Number, "{name}");
        }
        assert_eq!(error(&format!("{}0", "a".repeat(59))), DeviceNameError::TooLong);
        let longest = format!("{}0", "a".repeat(58)).parse::<DeviceNames>().unwrap();
        assert!(longest.name(9999).len() < 64);
    }

    #[test]
    fn only_the_name_or_personality_of_mlx5_gives_the_identity_of_a_connectx() {
        let identity = |name: &str, personality| Identity::of(&name.parse().unwrap(), personality);
        assert_eq!(identity("urxe0", &Personality::DEFAULT), Identity::NO_VENDOR);
        assert_eq!(identity("mlx4_0", &Personality::RXE), Identity::NO_VENDOR);
        assert_eq!(identity("mlx5_3", &Personality::DEFAULT), Identity::CONNECTX_5);
        assert_eq!(identity("urxe0", &Personality::MLX5), Identity::CONNECTX_5);
    }
}
