//! The link speed that a device reports.

use std::str::FromStr;

/// The speed of a link, in Gbit/s, which a virtual device only reports.
///
/// Each value is that of an InfiniBand link with a number of lanes of one generation, because verbs
/// and sysfs express a speed as such. The assignment is that of the kernel's Ethernet devices, except
/// for 40 Gbit/s.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Speed {
    /// 10 Gbit/s.
    G10,
    /// 25 Gbit/s.
    G25,
    /// 40 Gbit/s, about the bandwidth of loopback.
    #[default]
    G40,
    /// 50 Gbit/s.
    G50,
    /// 100 Gbit/s.
    G100,
    /// 200 Gbit/s.
    G200,
    /// 400 Gbit/s.
    G400,
}

/// The speed of one lane; the values of `active_speed` (14.2.5.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum LaneSpeed {
    /// 10 Gbit/s.
    Qdr = 4,
    /// 10.3 Gbit/s.
    Fdr10 = 8,
    /// 25.8 Gbit/s.
    Edr = 32,
    /// 53.1 Gbit/s.
    Hdr = 64,
    /// 106.3 Gbit/s.
    Ndr = 128,
}

/// The number of lanes; the values of `active_width` (14.2.5.6).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Width {
    /// One lane.
    X1 = 1,
    /// Two lanes.
    X2 = 16,
    /// Four lanes.
    X4 = 2,
}

/// An error in the text of a speed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}` is no speed: give 10G, 25G, 40G, 50G, 100G, 200G or 400G")]
pub struct SpeedError(String);

impl Speed {
    /// All speeds.
    const ALL: [Self; 7] = [
        Self::G10,
        Self::G25,
        Self::G40,
        Self::G50,
        Self::G100,
        Self::G200,
        Self::G400,
    ];

    /// Returns the speed in Gbit/s.
    pub fn gigabits(self) -> u32 {
        match self {
            Self::G10 => 10,
            Self::G25 => 25,
            Self::G40 => 40,
            Self::G50 => 50,
            Self::G100 => 100,
            Self::G200 => 200,
            Self::G400 => 400,
        }
    }

    /// Returns the number of lanes and the speed of each.
    pub fn lanes(self) -> (Width, LaneSpeed) {
        match self {
            Self::G10 => (Width::X1, LaneSpeed::Fdr10),
            Self::G25 => (Width::X1, LaneSpeed::Edr),
            Self::G40 => (Width::X4, LaneSpeed::Qdr),
            Self::G50 => (Width::X2, LaneSpeed::Edr),
            Self::G100 => (Width::X4, LaneSpeed::Edr),
            Self::G200 => (Width::X4, LaneSpeed::Hdr),
            Self::G400 => (Width::X4, LaneSpeed::Ndr),
        }
    }

    /// Returns the text of the file `rate` in sysfs, such as `100 Gb/sec (4X EDR)`.
    pub fn sysfs_rate(self) -> String {
        let (width, lane) = self.lanes();
        let width = match width {
            Width::X1 => "1X",
            Width::X2 => "2X",
            Width::X4 => "4X",
        };
        let lane = match lane {
            LaneSpeed::Qdr => "QDR",
            LaneSpeed::Fdr10 => "FDR10",
            LaneSpeed::Edr => "EDR",
            LaneSpeed::Hdr => "HDR",
            LaneSpeed::Ndr => "NDR",
        };
        format!("{} Gb/sec ({width} {lane})", self.gigabits())
    }
}

impl FromStr for Speed {
    type Err = SpeedError;

    /// Parses the speed in Gbit/s with the suffix `G`.
    fn from_str(text: &str) -> Result<Self, SpeedError> {
        let number = text.strip_suffix(['G', 'g']).and_then(|n| n.parse().ok());
        let mut all = Self::ALL.into_iter();
        all.find(|speed| number == Some(speed.gigabits()))
            .ok_or_else(|| SpeedError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_the_products_of_width_and_lane() {
        for speed in Speed::ALL {
            let (width, lane) = speed.lanes();
            let lanes = match width {
                Width::X1 => 1,
                Width::X2 => 2,
                Width::X4 => 4,
            };
            let each = match lane {
                LaneSpeed::Qdr | LaneSpeed::Fdr10 => 10,
                LaneSpeed::Edr => 25,
                LaneSpeed::Hdr => 50,
                LaneSpeed::Ndr => 100,
            };
            assert_eq!(lanes * each, speed.gigabits());
            let text = format!("{}G", speed.gigabits());
            assert_eq!(text.parse(), Ok(speed));
        }
        assert_eq!(Speed::G100.sysfs_rate(), "100 Gb/sec (4X EDR)");
    }

    #[test]
    fn other_texts_are_no_speeds() {
        for text in ["", "G", "100", "30G", "-10G", "100GG"] {
            assert_eq!(text.parse::<Speed>(), Err(SpeedError(text.to_owned())));
        }
    }
}
