//! The names of the layout test for the connection manager's headers, in the format of
//! `layout_list`.

use urxe_verbs::ffi::*;

use super::layout::{Structure, constants, structures};

/// The headers that define it.
pub const HEADERS: [&str; 3] = ["rdma/rdma_cma.h", "infiniband/sa.h", "stddef.h"];

/// The structures of rdma-core 44 (Debian 12). Later versions added only events and flags.
pub fn structures_since_44() -> Vec<Structure> {
    structures! {
    struct ibv_sa_path_rec {
        dgid, sgid, dlid, slid, raw_traffic, flow_label, hop_limit, traffic_class, reversible,
        numb_path, pkey, sl, mtu_selector, mtu, rate_selector, rate, packet_life_time_selector,
        packet_life_time, preference,
    }
    struct ibv_path_record {
        service_id, dgid, sgid, dlid, slid, flowlabel_hoplimit, tclass, reversible_numpath, pkey,
        qosclass_sl, mtu, rate, packetlifetime, preference, reserved,
    }
    struct ibv_path_data { flags, reserved, path }
    struct rdma_event_channel { fd }
    struct rdma_conn_param {
        private_data, private_data_len, responder_resources, initiator_depth, flow_control,
        retry_count, rnr_retry_count, srq, qp_num,
    }
    struct rdma_ud_param { private_data, private_data_len, ah_attr, qp_num, qkey }
    struct rdma_cm_event { id, listen_id, event, status, param, param.conn, param.ud }
    struct rdma_ib_addr { sgid, dgid, pkey }
    struct rdma_addr {
        src.addr = src_addr, src.sin = src_sin, src.sin6 = src_sin6, src.storage = src_storage,
        dst.addr = dst_addr, dst.sin = dst_sin, dst.sin6 = dst_sin6, dst.storage = dst_storage,
        addr, addr.ibaddr,
    }
    struct rdma_route { addr, path_rec, num_paths }
    struct rdma_cm_id {
        verbs, channel, context, qp, route, ps, port_num, event, send_cq_channel, send_cq,
        recv_cq_channel, recv_cq, srq, pd, qp_type,
    }
    struct rdma_addrinfo {
        ai_flags, ai_family, ai_qp_type, ai_port_space, ai_src_len, ai_dst_len, ai_src_addr,
        ai_dst_addr, ai_src_canonname, ai_dst_canonname, ai_route_len, ai_route, ai_connect_len,
        ai_connect, ai_next,
    }
    struct rdma_cm_join_mc_attr_ex { comp_mask, join_flags, addr }
    }
}

/// Constants of rdma-core 44.
pub const CONSTANTS_SINCE_44: &[(&str, i64)] = constants! {
    RDMA_CM_EVENT_ADDR_RESOLVED, RDMA_CM_EVENT_ADDR_ERROR, RDMA_CM_EVENT_ROUTE_RESOLVED,
    RDMA_CM_EVENT_ROUTE_ERROR, RDMA_CM_EVENT_CONNECT_REQUEST, RDMA_CM_EVENT_CONNECT_RESPONSE,
    RDMA_CM_EVENT_CONNECT_ERROR, RDMA_CM_EVENT_UNREACHABLE, RDMA_CM_EVENT_REJECTED,
    RDMA_CM_EVENT_ESTABLISHED, RDMA_CM_EVENT_DISCONNECTED, RDMA_CM_EVENT_DEVICE_REMOVAL,
    RDMA_CM_EVENT_MULTICAST_JOIN, RDMA_CM_EVENT_MULTICAST_ERROR, RDMA_CM_EVENT_ADDR_CHANGE,
    RDMA_CM_EVENT_TIMEWAIT_EXIT, RDMA_PS_IPOIB, RDMA_PS_TCP, RDMA_PS_UDP, RDMA_PS_IB,
    RDMA_IB_IP_PS_MASK, RDMA_IB_IP_PORT_MASK, RDMA_IB_IP_PS_TCP, RDMA_IB_IP_PS_UDP, RDMA_IB_PS_IB,
    RDMA_UDP_QKEY, RDMA_MAX_RESP_RES, RDMA_MAX_INIT_DEPTH, RAI_PASSIVE, RAI_NUMERICHOST,
    RAI_NOROUTE, RAI_FAMILY, RDMA_CM_JOIN_MC_ATTR_ADDRESS, RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
    RDMA_CM_JOIN_MC_ATTR_RESERVED, RDMA_MC_JOIN_FLAG_FULLMEMBER,
    RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER, RDMA_MC_JOIN_FLAG_RESERVED, RDMA_OPTION_ID,
    RDMA_OPTION_IB, RDMA_OPTION_ID_TOS, RDMA_OPTION_ID_REUSEADDR, RDMA_OPTION_ID_AFONLY,
    RDMA_OPTION_ID_ACK_TIMEOUT, RDMA_OPTION_IB_PATH, IBV_PATH_RECORD_REVERSIBLE, IBV_PATH_FLAG_GMP,
    IBV_PATH_FLAG_PRIMARY, IBV_PATH_FLAG_ALTERNATE, IBV_PATH_FLAG_OUTBOUND, IBV_PATH_FLAG_INBOUND,
    IBV_PATH_FLAG_INBOUND_REVERSE, IBV_PATH_FLAG_BIDIRECTIONAL,
};

/// Constants added after rdma-core 44.
pub const NEWER_CONSTANTS: &[(&str, i64)] = constants! {
    RDMA_CM_EVENT_ADDRINFO_RESOLVED, RDMA_CM_EVENT_ADDRINFO_ERROR, RDMA_CM_EVENT_USER,
    RDMA_CM_EVENT_INTERNAL, RAI_SA, RAI_DNS,
};
