//! The acknowledge extended transport header, AETH (9.3, 9.7.5.2).

use super::layout::{LOW_24, Layout};
use std::time::Duration;
use zerocopy::network_endian::U32;

/// The acknowledge extended transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Aeth {
    /// The outcome of the request.
    pub syndrome: Syndrome,
    /// The message sequence number: messages completed by the responder, modulo 2^24 (9.7.7).
    pub msn: u32,
}

impl Default for Aeth {
    /// An acknowledgement with 0 credits and MSN 0: all zeroes on the wire.
    fn default() -> Self {
        Aeth {
            syndrome: Syndrome::Ack(Credits::from_count(0)),
            msn: 0,
        }
    }
}

impl Layout for Aeth {
    /// Syndrome (8 bits), MSN (24 bits).
    type Raw = U32;
    const NAME: &'static str = "AETH";

    #[inline]
    fn from_raw(raw: &U32) -> Self {
        let raw = raw.get();
        Aeth {
            syndrome: Syndrome::from_byte((raw >> 24) as u8),
            msn: raw & LOW_24,
        }
    }

    #[inline]
    fn to_raw(&self) -> U32 {
        U32::new(u32::from(self.syndrome.to_byte()) << 24 | (self.msn & LOW_24))
    }
}

/// The outcome of a request (9.7.5.2).
///
/// On the wire the top 3 bits are the kind and the low 5 bits the value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Syndrome {
    /// ACK, with the responder's end-to-end credits.
    Ack(Credits),
    /// RNR NAK: no receive was posted; retry after this time.
    RnrNak(RnrTimer),
    /// NAK: the request was refused.
    Nak(NakCode),
    /// A reserved syndrome: the whole byte.
    Reserved(u8),
}

const KIND: u8 = 0xe0;
const VALUE: u8 = 0x1f;
const KIND_ACK: u8 = 0x00;
const KIND_RNR_NAK: u8 = 0x20;
const KIND_NAK: u8 = 0x60;

impl Syndrome {
    /// Decodes a byte from the wire.
    #[inline]
    pub const fn from_byte(byte: u8) -> Self {
        let value = byte & VALUE;
        match byte & KIND {
            KIND_ACK => Self::Ack(Credits(value)),
            KIND_RNR_NAK => Self::RnrNak(RnrTimer(value)),
            KIND_NAK => Self::Nak(NakCode::from_code(value)),
            _ => Self::Reserved(byte),
        }
    }

    /// Encodes the syndrome as a byte for the wire.
    #[inline]
    pub const fn to_byte(self) -> u8 {
        match self {
            Self::Ack(credits) => KIND_ACK | credits.0,
            Self::RnrNak(timer) => KIND_RNR_NAK | timer.0,
            Self::Nak(code) => KIND_NAK | (code.code() & VALUE),
            Self::Reserved(byte) => byte,
        }
    }
}

/// The reason of a NAK (9.7.5.2).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum NakCode {
    /// PSN sequence error: earlier packets were lost. The PSN of the NAK is the first missing one.
    PsnSequence,
    /// The request is invalid, or not supported.
    InvalidRequest,
    /// The key, range or permission of the memory is invalid.
    RemoteAccess,
    /// The responder failed to complete the request.
    RemoteOperational,
    /// Reliable datagrams only.
    InvalidRd,
    /// A reserved code: 5 to 31.
    Reserved(u8),
}

impl NakCode {
    /// Decodes the low 5 bits of a syndrome.
    #[inline]
    pub const fn from_code(code: u8) -> Self {
        match code {
            0 => Self::PsnSequence,
            1 => Self::InvalidRequest,
            2 => Self::RemoteAccess,
            3 => Self::RemoteOperational,
            4 => Self::InvalidRd,
            other => Self::Reserved(other),
        }
    }

    /// Encodes the code as the low 5 bits of a syndrome.
    #[inline]
    pub const fn code(self) -> u8 {
        match self {
            Self::PsnSequence => 0,
            Self::InvalidRequest => 1,
            Self::RemoteAccess => 2,
            Self::RemoteOperational => 3,
            Self::InvalidRd => 4,
            Self::Reserved(other) => other,
        }
    }
}

/// End-to-end credits: the number of receives posted at the responder, as a 5-bit code (9.7.7).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Credits(u8);

/// The counts of codes 0 to 30: each power of two, and the midpoint to the next.
const CREDIT_COUNTS: [u32; 31] = [
    0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768,
];

impl Credits {
    /// The responder does not report credits, for example because its receives are shared.
    pub const INVALID: Credits = Credits(31);

    /// Encodes `count` receives, rounded down to the nearest code.
    #[inline]
    pub const fn from_count(count: u32) -> Self {
        match count {
            0..=3 => Credits(count as u8),
            32768.. => Credits(30),
            _ => {
                // Two codes for each power of two: the second bit selects the midpoint.
                let log = count.ilog2();
                let half = (count >> (log - 1)) & 1;
                Credits((2 * log + half) as u8)
            }
        }
    }

    /// The number of receives; `None` when the responder does not report credits.
    pub const fn count(self) -> Option<u32> {
        if self.0 == Self::INVALID.0 {
            None
        } else {
            Some(CREDIT_COUNTS[self.0 as usize])
        }
    }

    /// The code, 0 to 31.
    pub const fn code(self) -> u8 {
        self.0
    }
}

/// The delay after an RNR NAK, as a 5-bit code (9.7.5.2.8); `min_rnr_timer` in verbs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct RnrTimer(u8);

/// The delays of the codes, in units of 10 microseconds.
const RNR_TIMER_10US: [u32; 32] = [
    65_536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

impl RnrTimer {
    /// The highest code.
    pub const MAX_CODE: u8 = VALUE;

    /// Takes the low 5 bits of `code`.
    pub const fn new(code: u8) -> Self {
        RnrTimer(code & Self::MAX_CODE)
    }

    /// The code, 0 to 31.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The delay. Code 0 is the longest, not the shortest.
    pub const fn duration(self) -> Duration {
        Duration::from_micros(10 * RNR_TIMER_10US[self.0 as usize] as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_byte_decodes_to_a_syndrome_and_encodes_back() {
        for byte in 0..=u8::MAX {
            assert_eq!(Syndrome::from_byte(byte).to_byte(), byte);
        }
    }

    #[test]
    fn syndrome_kinds_match_the_specification() {
        assert_eq!(Syndrome::from_byte(0x1f), Syndrome::Ack(Credits::INVALID));
        assert_eq!(
            Syndrome::from_byte(0x2c),
            Syndrome::RnrNak(RnrTimer::new(12))
        );
        assert_eq!(
            Syndrome::from_byte(0x60),
            Syndrome::Nak(NakCode::PsnSequence)
        );
        assert_eq!(Syndrome::from_byte(0x64), Syndrome::Nak(NakCode::InvalidRd));
        assert_eq!(
            Syndrome::from_byte(0x65),
            Syndrome::Nak(NakCode::Reserved(5))
        );
        assert_eq!(Syndrome::from_byte(0x45), Syndrome::Reserved(0x45));
        assert_eq!(Syndrome::from_byte(0x80), Syndrome::Reserved(0x80));
    }

    #[test]
    fn syndrome_is_the_first_byte_and_msn_the_other_three() {
        let bytes = [0x61, 0x12, 0x34, 0x56];
        let (aeth, _) = Aeth::parse(&bytes).unwrap();
        assert_eq!(aeth.syndrome, Syndrome::Nak(NakCode::InvalidRequest));
        assert_eq!(aeth.msn, 0x12_3456);
        let mut out = [0; 4];
        aeth.emit(&mut out);
        assert_eq!(out, bytes);
        Aeth {
            msn: 0xff00_0001,
            ..aeth
        }
        .emit(&mut out);
        assert_eq!(out, [0x61, 0, 0, 1]);
    }

    #[test]
    fn credit_codes_round_trip_through_their_counts() {
        for code in 0..31 {
            let credits = Credits(code);
            assert_eq!(Credits::from_count(credits.count().unwrap()), credits);
        }
        assert_eq!(Credits::INVALID.count(), None);
    }

    proptest! {
        #[test]
        fn credits_round_down_to_the_nearest_code(count in prop_oneof![0u32..40_000, any::<u32>()]) {
            let credits = Credits::from_count(count);
            prop_assert!(credits.count().unwrap() <= count);
            if credits.code() < 30 {
                prop_assert!(Credits(credits.code() + 1).count().unwrap() > count);
            }
        }
    }

    #[test]
    fn rnr_timers_match_the_specification() {
        // Hundredths of a millisecond, as printed in the specification.
        let table = [
            "655.36", "0.01", "0.02", "0.03", "0.04", "0.06", "0.08", "0.12", "0.16", "0.24",
            "0.32", "0.48", "0.64", "0.96", "1.28", "1.92", "2.56", "3.84", "5.12", "7.68",
            "10.24", "15.36", "20.48", "30.72", "40.96", "61.44", "81.92", "122.88", "163.84",
            "245.76", "327.68", "491.52",
        ];
        for (code, ms) in table.iter().enumerate() {
            let hundredths: u64 = ms.replace('.', "").parse().unwrap();
            let timer = RnrTimer::new(code as u8);
            assert_eq!(
                timer.duration(),
                Duration::from_micros(10 * hundredths),
                "{code}"
            );
        }
    }
}
