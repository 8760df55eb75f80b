//! Names of states, events and statuses. They are rdma-core's strings, because scripts search for
//! these in the output of programs.

use std::ffi::{CStr, c_char};

use libc::c_uint;

use super::entry;
use super::ffi::{ibv_event_type, ibv_node_type, ibv_port_state, ibv_wc_status, ibv_wr_opcode};

const UNKNOWN: &CStr = c"unknown";

/// Names by `ibv_node_type`, from `IBV_NODE_CA` = 1.
const NODE_TYPES: [&CStr; 7] = [
    c"InfiniBand channel adapter",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC UDP",
    c"unspecified",
];

/// Names by `ibv_port_state`.
const PORT_STATES: [&CStr; 6] = [
    c"no state change (NOP)",
    c"down",
    c"init",
    c"armed",
    c"active",
    c"active defer",
];

/// Names by `ibv_event_type`.
const EVENT_TYPES: [&CStr; 21] = [
    c"CQ error",
    c"local work queue catastrophic error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration request error",
    c"local catastrophic error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ catastrophic error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal",
    c"Device link speed change",
];

/// Names by `ibv_wc_status`.
const WC_STATUSES: [&CStr; 24] = [
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory management operation error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"aborted error",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"TM error",
    c"TM software rendezvous",
];

/// Names by `ibv_wr_opcode`; 12 and 13 are not assigned.
const WR_OPCODES: [&CStr; 16] = [
    c"rdma-write",
    c"rdma-write-with-imm",
    c"send",
    c"send-with-imm",
    c"rdma-read",
    c"atomic-cmp-and-swp",
    c"atomic-fetch-and-add",
    c"local-inv",
    c"bind-mw",
    c"send-with-inv",
    c"tso",
    c"driver1",
    UNKNOWN,
    UNKNOWN,
    c"flush",
    c"atomic-write",
];

/// Names by `rdma_cm_event_type`.
const CM_EVENTS: [&CStr; 20] = [
    c"RDMA_CM_EVENT_ADDR_RESOLVED",
    c"RDMA_CM_EVENT_ADDR_ERROR",
    c"RDMA_CM_EVENT_ROUTE_RESOLVED",
    c"RDMA_CM_EVENT_ROUTE_ERROR",
    c"RDMA_CM_EVENT_CONNECT_REQUEST",
    c"RDMA_CM_EVENT_CONNECT_RESPONSE",
    c"RDMA_CM_EVENT_CONNECT_ERROR",
    c"RDMA_CM_EVENT_UNREACHABLE",
    c"RDMA_CM_EVENT_REJECTED",
    c"RDMA_CM_EVENT_ESTABLISHED",
    c"RDMA_CM_EVENT_DISCONNECTED",
    c"RDMA_CM_EVENT_DEVICE_REMOVAL",
    c"RDMA_CM_EVENT_MULTICAST_JOIN",
    c"RDMA_CM_EVENT_MULTICAST_ERROR",
    c"RDMA_CM_EVENT_ADDR_CHANGE",
    c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
    c"RDMA_CM_EVENT_ADDRINFO_RESOLVED",
    c"RDMA_CM_EVENT_ADDRINFO_ERROR",
    c"RDMA_CM_EVENT_USER",
    c"RDMA_CM_EVENT_INTERNAL",
];

/// Returns the name at an index, or «unknown»: a program may pass any number.
fn pick(call: &'static str, names: &[&'static CStr], index: Option<usize>) -> *const c_char {
    entry::value(call, UNKNOWN.as_ptr(), || {
        index
            .and_then(|index| names.get(index))
            .unwrap_or(&UNKNOWN)
            .as_ptr()
    })
}

/// Returns the name of a node type, as a static C string (`ibv_node_type_str(3)`).
pub extern "C" fn ibv_node_type_str(node_type: ibv_node_type) -> *const c_char {
    let index = usize::try_from(node_type)
        .ok()
        .and_then(|code| code.checked_sub(1));
    pick("ibv_node_type_str", &NODE_TYPES, index)
}

/// Returns the name of a port state, as a static C string (`ibv_port_state_str(3)`).
pub extern "C" fn ibv_port_state_str(port_state: ibv_port_state) -> *const c_char {
    pick(
        "ibv_port_state_str",
        &PORT_STATES,
        Some(port_state as usize),
    )
}

/// Returns the name of an asynchronous event, as a static C string (`ibv_event_type_str(3)`).
pub extern "C" fn ibv_event_type_str(event: ibv_event_type) -> *const c_char {
    pick("ibv_event_type_str", &EVENT_TYPES, Some(event as usize))
}

/// Returns the name of a completion status, as a static C string.
pub extern "C" fn ibv_wc_status_str(status: ibv_wc_status) -> *const c_char {
    pick("ibv_wc_status_str", &WC_STATUSES, Some(status as usize))
}

/// Returns the name of a work request opcode, as a static C string.
pub extern "C" fn ibv_wr_opcode_str(opcode: ibv_wr_opcode) -> *const c_char {
    pick("ibv_wr_opcode_str", &WR_OPCODES, Some(opcode as usize))
}

/// Returns the name of a connection manager event, as a static C string (`rdma_event_str(3)`).
pub extern "C" fn rdma_event_str(event: c_uint) -> *const c_char {
    entry::value("rdma_event_str", c"UNKNOWN EVENT".as_ptr(), || {
        CM_EVENTS
            .get(event as usize)
            .unwrap_or(&c"UNKNOWN EVENT")
            .as_ptr()
    })
}

#[cfg(test)]
mod tests {
    use super::super::ffi::*;
    use super::*;

    fn text(name: *const c_char) -> &'static str {
        // SAFETY: every name is one of the literals above, which are null-terminated and static.
        unsafe { CStr::from_ptr(name) }
            .to_str()
            .expect("the literals are ASCII")
    }

    #[test]
    fn names_match_their_codes() {
        assert_eq!(
            text(ibv_node_type_str(IBV_NODE_CA)),
            "InfiniBand channel adapter"
        );
        assert_eq!(text(ibv_node_type_str(IBV_NODE_UNSPECIFIED)), "unspecified");
        assert_eq!(text(ibv_port_state_str(IBV_PORT_ACTIVE)), "active");
        assert_eq!(
            text(ibv_event_type_str(IBV_EVENT_GID_CHANGE)),
            "GID table change"
        );
        assert_eq!(
            text(ibv_wc_status_str(IBV_WC_RETRY_EXC_ERR)),
            "transport retry counter exceeded"
        );
        assert_eq!(text(ibv_wr_opcode_str(IBV_WR_ATOMIC_WRITE)), "atomic-write");
        assert_eq!(text(rdma_event_str(9)), "RDMA_CM_EVENT_ESTABLISHED");
    }

    #[test]
    fn codes_without_a_name_are_unknown() {
        for code in [-1, 0, 8, c_int::MAX, c_int::MIN] {
            assert_eq!(text(ibv_node_type_str(code)), "unknown");
        }
        assert_eq!(text(ibv_port_state_str(6)), "unknown");
        assert_eq!(text(ibv_event_type_str(21)), "unknown");
        assert_eq!(text(ibv_wc_status_str(c_uint::MAX)), "unknown");
        assert_eq!(text(ibv_wr_opcode_str(13)), "unknown");
        assert_eq!(text(rdma_event_str(20)), "UNKNOWN EVENT");
    }

    use libc::c_int;
}
