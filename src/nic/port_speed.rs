//! Speeds of a port.

use std::fmt;
use std::str::FromStr;

/// Speed that a port reports: one that adapters have, with the codes of `ibv_port_attr`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PortSpeed {
    gbps: u16,
    width: u8,
    lane: u8,
}

impl PortSpeed {
    /// 100 Gb/s: four lanes of EDR.
    pub const GBPS_100: PortSpeed = PortSpeed { gbps: 100, width: 2, lane: 32 };

    /// 200 Gb/s: four lanes of HDR.
    pub const GBPS_200: PortSpeed = PortSpeed { gbps: 200, width: 2, lane: 64 };

    /// All speeds, as the kernel's drivers encode those of Ethernet ports (`ib_get_eth_speed`).
    pub const ALL: [PortSpeed; 7] = [
        PortSpeed { gbps: 10, width: 1, lane: 4 },
        PortSpeed { gbps: 25, width: 1, lane: 32 },
        PortSpeed { gbps: 40, width: 2, lane: 4 },
        PortSpeed { gbps: 50, width: 1, lane: 64 },
        PortSpeed::GBPS_100,
        PortSpeed::GBPS_200,
        PortSpeed { gbps: 400, width: 2, lane: 128 },
    ];

    /// Returns the speed in gigabits per second.
    pub const fn gbps(self) -> u16 {
        self.gbps
    }

    /// Returns the number of lanes.
    pub const fn lanes(self) -> u16 {
        if self.width == 1 { 1 } else { 4 }
    }

    /// Returns the code of the link width (`active_width`).
    pub const fn width(self) -> u8 {
        self.width
    }

    /// Returns the code of the speed per lane (`active_speed`).
    pub const fn lane(self) -> u8 {
        self.lane
    }
}

impl fmt::Display for PortSpeed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}G", self.gbps)
    }
}

impl FromStr for PortSpeed {
    type Err = String;

    fn from_str(text: &str) -> Result<PortSpeed, String> {
        PortSpeed::ALL.into_iter().find(|speed| speed.to_string() == text).ok_or_else(|| {
            let all = PortSpeed::ALL.map(|speed| speed.to_string()).join(", ");
            format!("'{text}' is not a speed: write one of {all}")
        })
    }
}
