//! Static rates: conversion of the specification's codes (IBA 9.11.1, `ibv_rate`) to multiples of
//! 2.5 Gbit/s and to Mbit/s.

use libc::c_int;

use super::entry;
use super::ffi::*;

/// A rate: its code, its multiple of 2.5 Gbit/s if it has one, and its signalling rate in Mbit/s.
struct Rate(ibv_rate, Option<c_int>, c_int);

/// The known rates. Signalling rates since FDR are not multiples of 2.5 Gbit/s; some have a nominal
/// multiple nevertheless.
const RATES: [Rate; 23] = [
    Rate(IBV_RATE_2_5_GBPS, Some(1), 2_500),
    Rate(IBV_RATE_5_GBPS, Some(2), 5_000),
    Rate(IBV_RATE_10_GBPS, Some(4), 10_000),
    Rate(IBV_RATE_20_GBPS, Some(8), 20_000),
    Rate(IBV_RATE_30_GBPS, Some(12), 30_000),
    Rate(IBV_RATE_40_GBPS, Some(16), 40_000),
    Rate(IBV_RATE_60_GBPS, Some(24), 60_000),
    Rate(IBV_RATE_80_GBPS, Some(32), 80_000),
    Rate(IBV_RATE_120_GBPS, Some(48), 120_000),
    Rate(IBV_RATE_14_GBPS, None, 14_062),
    Rate(IBV_RATE_56_GBPS, None, 56_250),
    Rate(IBV_RATE_112_GBPS, None, 112_500),
    Rate(IBV_RATE_168_GBPS, None, 168_750),
    Rate(IBV_RATE_25_GBPS, None, 25_781),
    Rate(IBV_RATE_100_GBPS, None, 103_125),
    Rate(IBV_RATE_200_GBPS, None, 206_250),
    Rate(IBV_RATE_300_GBPS, None, 309_375),
    Rate(IBV_RATE_28_GBPS, Some(11), 28_125),
    Rate(IBV_RATE_50_GBPS, Some(20), 53_125),
    Rate(IBV_RATE_400_GBPS, Some(160), 425_000),
    Rate(IBV_RATE_600_GBPS, Some(240), 637_500),
    Rate(IBV_RATE_800_GBPS, Some(320), 850_000),
    Rate(IBV_RATE_1200_GBPS, Some(480), 1_275_000),
];

/// The value for «no such rate» in multiples and Mbit/s.
const NO_RATE: c_int = -1;

/// Returns a rate as a multiple of 2.5 Gbit/s; -1 if it is not one (`ibv_rate_to_mult(3)`).
pub extern "C" fn ibv_rate_to_mult(rate: ibv_rate) -> c_int {
    entry::value("ibv_rate_to_mult", NO_RATE, || {
        RATES
            .iter()
            .find(|known| known.0 == rate)
            .and_then(|known| known.1)
            .unwrap_or(NO_RATE)
    })
}

/// Returns the rate for a multiple of 2.5 Gbit/s; `IBV_RATE_MAX` if there is none.
pub extern "C" fn mult_to_ibv_rate(mult: c_int) -> ibv_rate {
    entry::value("mult_to_ibv_rate", IBV_RATE_MAX, || {
        RATES
            .iter()
            .find(|known| known.1 == Some(mult))
            .map_or(IBV_RATE_MAX, |known| known.0)
    })
}

/// Returns a rate in Mbit/s; -1 for an unknown one (`ibv_rate_to_mbps(3)`).
pub extern "C" fn ibv_rate_to_mbps(rate: ibv_rate) -> c_int {
    entry::value("ibv_rate_to_mbps", NO_RATE, || {
        RATES
            .iter()
            .find(|known| known.0 == rate)
            .map_or(NO_RATE, |known| known.2)
    })
}

/// Returns the rate for a number of Mbit/s; `IBV_RATE_MAX` if there is none.
pub extern "C" fn mbps_to_ibv_rate(mbps: c_int) -> ibv_rate {
    entry::value("mbps_to_ibv_rate", IBV_RATE_MAX, || {
        RATES
            .iter()
            .find(|known| known.2 == mbps)
            .map_or(IBV_RATE_MAX, |known| known.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rate_comes_back_from_its_multiple_and_its_mbps() {
        for Rate(code, mult, mbps) in RATES {
            assert_eq!(ibv_rate_to_mbps(code), mbps);
            assert_eq!(mbps_to_ibv_rate(mbps), code);
            assert_eq!(ibv_rate_to_mult(code), mult.unwrap_or(NO_RATE));
            if let Some(mult) = mult {
                assert_eq!(mult_to_ibv_rate(mult), code);
            }
        }
    }

    #[test]
    fn unknown_rates_convert_to_an_error_or_the_maximum() {
        assert_eq!(ibv_rate_to_mult(IBV_RATE_MAX), NO_RATE);
        assert_eq!(ibv_rate_to_mbps(999), NO_RATE);
        assert_eq!(mult_to_ibv_rate(-1), IBV_RATE_MAX);
        assert_eq!(mbps_to_ibv_rate(1), IBV_RATE_MAX);
    }
}
