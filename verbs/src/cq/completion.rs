//! Conversion of completions.

use urxe_proto::work::{Completion, Extra, IpVersion};

use crate::ffi::*;

/// The service level bit for a datagram that arrived in a UDP packet.
const UDP: u8 = 1 << 3;

/// Converts a completion for `ibv_poll_cq`.
pub(super) fn to_ibv_wc(completion: &Completion) -> ibv_wc {
    ibv_wc {
        wr_id: completion.wr_id,
        status: completion.status as ibv_wc_status,
        opcode: completion.opcode as ibv_wc_opcode,
        vendor_err: 0,
        byte_len: completion.byte_len,
        imm: wc_imm(completion),
        qp_num: completion.qpn.get(),
        src_qp: completion.src_qp.get(),
        wc_flags: wc_flags(completion),
        pkey_index: 0,
        slid: 0,
        sl: wc_sl(completion),
        dlid_path_bits: 0,
    }
}

/// Returns the immediate data, in network byte order, or the invalidated key, in host order.
pub(crate) fn wc_imm(completion: &Completion) -> ibv_wc_imm {
    match completion.extra {
        Extra::None => ibv_wc_imm { imm_data: 0 },
        Extra::Imm(data) => ibv_wc_imm {
            imm_data: data.to_be(),
        },
        Extra::Invalidated(key) => ibv_wc_imm {
            invalidated_rkey: key.0,
        },
    }
}

pub(crate) fn wc_flags(completion: &Completion) -> ibv_wc_flags {
    let extra = match completion.extra {
        Extra::None => 0,
        Extra::Imm(_) => IBV_WC_WITH_IMM,
        Extra::Invalidated(_) => IBV_WC_WITH_INV,
    };
    extra
        | if completion.grh.is_some() {
            IBV_WC_GRH
        } else {
            0
        }
}

/// Returns the value of `sl` in a completion.
///
/// RoCE has no service level. In the receive completion of a datagram, NICs report the type of the
/// network header there: bit 3 for UDP, and in the bits below it 1 for IPv6 or 2 for IPv4. UCX
/// before 1.19 reads this value to find out which header the first 40 bytes of the receive hold.
pub(crate) fn wc_sl(completion: &Completion) -> u8 {
    match completion.grh {
        None => 0,
        Some(IpVersion::V6) => UDP | 0x1,
        Some(IpVersion::V4) => UDP | 0x2,
    }
}
