//! The connection manager's messages as Wireshark dissects them: those that establish and end
//! connections, and the header of the RDMA IP CM service.

#[path = "common/require.rs"]
#[expect(dead_code, reason = "other tests need other things")]
mod require;
#[path = "common/skip_test.rs"]
mod skip_test;

use require::{TSHARK, require};
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use urxe_proto::cm::wire::mad::GSI_QKEY;
use urxe_proto::cm::wire::{
    Answered, Drep, Dreq, Ece, Info, IpHeader, Message, PortSpace, PrivateData, Rej, RejectReason,
    Rep, Req, Rtu, ServiceId, Transport, path,
};
use urxe_proto::icrc::{self, Flow};
use urxe_proto::ids::{Gid, PKey, QKey, Qpn};
use urxe_proto::mtu::Mtu;
use urxe_proto::psn::Psn;
use urxe_proto::ud::NetworkHeader;
use urxe_proto::wire::{Deth, Grh, Header, Opcode, Packet, UDP_PORT};

const CLIENT: [u8; 4] = [192, 0, 2, 1];
const SERVER: [u8; 4] = [192, 0, 2, 2];
const SOURCE_PORT: u16 = 49152;
const UDP_LEN: usize = 8;
const IPV4_LEN: usize = 20;

/// Returns the header of a pcap file of raw IP (LINKTYPE_RAW) in native byte order.
fn file_header() -> Vec<u8> {
    let mut header = 0xa1b2_c3d4u32.to_ne_bytes().to_vec();
    header.extend(2u16.to_ne_bytes());
    header.extend(4u16.to_ne_bytes());
    for word in [0u32, 0, 0xffff, 101] {
        header.extend(word.to_ne_bytes());
    }
    header
}

/// Returns the datagram with a MAD from queue pair 1 to queue pair 1.
fn datagram(mad: &[u8]) -> Vec<u8> {
    let packet = Packet {
        header: Header {
            deth: Some(Deth {
                qkey: GSI_QKEY,
                src_qp: Qpn::GSI,
            }),
            ..Header::new(Opcode::UdSendOnly, Qpn::GSI, Psn::new(0))
        },
        payload: mad,
    };
    let mut bytes = vec![0; packet.len()];
    packet.emit(&mut bytes);
    let client = SocketAddr::from((CLIENT, SOURCE_PORT));
    let flow = Flow::new(client, SocketAddr::from((SERVER, UDP_PORT))).unwrap();
    bytes.extend(icrc::compute(&flow, 0, true, &bytes));
    let udp_len = (UDP_LEN + bytes.len()) as u16;
    let network = NetworkHeader {
        source: Gid::from_ip(CLIENT.into()),
        destination: Gid::from_ip(SERVER.into()),
        traffic_class: 0,
        flow_label: 0,
        hop_limit: 64,
    };
    let mut datagram = network.bytes(udp_len)[Grh::LEN - IPV4_LEN..].to_vec();
    // The UDP checksum 0 means none.
    for word in [SOURCE_PORT, UDP_PORT, udp_len, 0] {
        datagram.extend(word.to_be_bytes());
    }
    datagram.extend(bytes);
    datagram
}

fn capture(name: &str, message: &Message) -> PathBuf {
    let datagram = datagram(&message.to_mad(0x0102_0304_0506_0708));
    let mut file = file_header();
    for word in [0, 0, datagram.len() as u32, datagram.len() as u32] {
        file.extend(word.to_ne_bytes());
    }
    file.extend(datagram);
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cm-{name}.pcap"));
    std::fs::write(&path, file).unwrap();
    path
}

fn tshark(capture: &Path, arguments: &[&str]) -> String {
    let output = Command::new("tshark")
        .args(["-n", "-r"])
        .arg(capture)
        .args(arguments)
        .output()
        .expect("tshark is there");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// Checks that Wireshark finds these values and no errors.
#[track_caller]
fn assert_read(name: &str, message: &Message, expected: &[(&str, &str)]) {
    if !require(&[TSHARK]) {
        return;
    }
    let capture = capture(name, message);
    let suspect = "_ws.malformed || _ws.short || _ws.expert.severity == error";
    assert_eq!(tshark(&capture, &["-Y", suspect]), "");
    let common = [
        ("infiniband.bth.destqp", "0x000001"),
        ("infiniband.deth.q_key", "0x0000000080010000"),
        ("infiniband.deth.srcqp", "0x00000001"),
        ("infiniband.mad.mgmtclass", "0x07"),
        ("infiniband.mad.classversion", "0x02"),
        ("infiniband.mad.method", "0x03"),
        ("infiniband.mad.transactionid", "0x0102030405060708"),
    ];
    let expected: Vec<_> = common.iter().chain(expected).collect();
    let mut arguments = vec!["-T", "fields", "-E", "separator=|"];
    arguments.extend(expected.iter().flat_map(|(field, _)| ["-e", field]));
    let found = tshark(&capture, &arguments);
    let found: Vec<_> = found.trim_end().split('|').collect();
    assert_eq!(found.len(), expected.len());
    for ((field, value), found) in expected.into_iter().zip(found) {
        assert_eq!(found, *value, "{field}");
    }
}

#[test]
fn req_with_the_rdma_ip_cm_header_is_dissected() {
    let header = IpHeader {
        source: SocketAddr::from((CLIENT, 4660)),
        destination: IpAddr::from(SERVER),
    };
    let private_data = [&header.to_bytes()[..], b"for the program"].concat();
    let req = Req {
        local_comm_id: 0x1122_3344,
        service: ServiceId::of_port(PortSpace::Tcp, 7471),
        ca_guid: 0x0a0b_0c0d_0e0f_1011,
        qkey: QKey(0),
        qpn: Qpn::new(0x12_3456),
        responder_resources: 5,
        initiator_depth: 6,
        remote_response_timeout: 20,
        transport: Transport::Uc,
        flow_control: true,
        ece: Ece::default(),
        starting_psn: Psn::new(0x65_4321),
        local_response_timeout: 21,
        retry_count: 7,
        pkey: PKey::DEFAULT,
        path_mtu: Mtu::B1024 as u8,
        rnr_retry_count: 6,
        max_cm_retries: 15,
        srq: true,
        primary: path::Path {
            local_lid: path::LID_PERMISSIVE,
            remote_lid: path::LID_PERMISSIVE,
            local_gid: Gid::from_ip(CLIENT.into()),
            remote_gid: Gid::from_ip(SERVER.into()),
            flow_label: 0x1_2345,
            packet_rate: 7,
            traffic_class: 0x60,
            hop_limit: 64,
            sl: 3,
            subnet_local: false,
            local_ack_timeout: 18,
        },
        alternate: path::Path::default(),
        private_data: PrivateData::new(&private_data).unwrap(),
    };
    let expected = [
        ("infiniband.mad.attributeid", "0x0010"),
        ("infiniband.cm.req", "0x11223344"),
        ("infiniband.cm.req.serviceid.protocol", "0x06"),
        ("infiniband.cm.req.serviceid.dport", "0x1d2f"),
        ("infiniband.cm.req.localcaguid", "0x0a0b0c0d0e0f1011"),
        ("infiniband.cm.req.localqpn", "0x123456"),
        ("infiniband.cm.req.responderres", "0x05"),
        ("infiniband.cm.req.initdepth", "0x06"),
        ("infiniband.cm.req.remoteresptout", "0x14"),
        ("infiniband.cm.req.transpsvctype", "0x01"),
        ("infiniband.cm.req.e2eflowctrl", "0x01"),
        ("infiniband.cm.req.startpsn", "0x654321"),
        ("infiniband.cm.req.localresptout", "0x15"),
        ("infiniband.cm.req.retrcount", "0x07"),
        ("infiniband.cm.req.pkey", "0xffff"),
        ("infiniband.cm.req.pppmtu", "0x03"),
        ("infiniband.cm.req.rnrretrcount", "0x06"),
        ("infiniband.cm.req.maxcmretr", "0x0f"),
        ("infiniband.cm.req.srq", "0x01"),
        ("infiniband.cm.req.prim_locallid", "65535"),
        ("infiniband.cm.req.prim_remotelid", "65535"),
        ("infiniband.cm.req.prim_localgid_ipv4", "192.0.2.1"),
        ("infiniband.cm.req.prim_remotegid_ipv4", "192.0.2.2"),
        // Flow label and packet rate share four bytes; Wireshark reads them from the first.
        ("infiniband.cm.req.prim_tfcclass", "0x60"),
        ("infiniband.cm.req.prim_hoplim", "0x40"),
        ("infiniband.cm.req.prim_sl", "0x03"),
        ("infiniband.cm.req.prim_subnetlocal", "0x00"),
        ("infiniband.cm.req.prim_localacktout", "0x12"),
        ("infiniband.cm.req.alt_locallid", "0"),
        ("infiniband.cm.req.ip_cm.majv", "0x00"),
        ("infiniband.cm.req.ip_cm.ipv", "0x04"),
        ("infiniband.cm.req.ip_cm.sport", "0x1234"),
        ("infiniband.cm.req.ip_cm.sip4", "192.0.2.1"),
        ("infiniband.cm.req.ip_cm.dip4", "192.0.2.2"),
    ];
    assert_read("req", &Message::Req(req), &expected);
}

#[test]
fn rep_is_dissected() {
    let rep = Rep {
        local_comm_id: 0x5566_7788,
        remote_comm_id: 0x1122_3344,
        qkey: QKey(0x0a0b_0c0d),
        qpn: Qpn::new(0x12_3456),
        eecn: 0x11_2233,
        ece: Ece::default(),
        starting_psn: Psn::new(0x65_4321),
        responder_resources: 5,
        initiator_depth: 6,
        target_ack_delay: 15,
        failover_accepted: 1,
        flow_control: true,
        rnr_retry_count: 6,
        srq: true,
        ca_guid: 0x0a0b_0c0d_0e0f_1011,
        private_data: PrivateData::default(),
    };
    let expected = [
        ("infiniband.mad.attributeid", "0x0013"),
        ("infiniband.cm.rep", "0x55667788"),
        ("infiniband.cm.rep.remotecommid", "0x11223344"),
        ("infiniband.cm.rep.localqkey", "0x0a0b0c0d"),
        ("infiniband.cm.rep.localqpn", "0x123456"),
        ("infiniband.cm.rep.localeecn", "0x112233"),
        ("infiniband.cm.rep.startpsn", "0x654321"),
        ("infiniband.cm.rep.respres", "0x05"),
        ("infiniband.cm.rep.initdepth", "0x06"),
        ("infiniband.cm.rep.tgtackdelay", "0x0f"),
        ("infiniband.cm.rep.failoveracc", "0x01"),
        ("infiniband.cm.rep.e2eflowctrl", "0x01"),
        ("infiniband.cm.rep.rnrretrcount", "0x06"),
        ("infiniband.cm.rep.srq", "0x01"),
        ("infiniband.cm.rep.localcaguid", "0x0a0b0c0d0e0f1011"),
    ];
    assert_read("rep", &Message::Rep(rep), &expected);
}

#[test]
fn rtu_is_dissected() {
    let rtu = Rtu {
        local_comm_id: 0x1122_3344,
        remote_comm_id: 0x5566_7788,
        private_data: PrivateData::default(),
    };
    let expected = [
        ("infiniband.mad.attributeid", "0x0014"),
        ("infiniband.cm.rtu.localcommid", "0x11223344"),
        ("infiniband.cm.rtu.remotecommid", "0x55667788"),
    ];
    assert_read("rtu", &Message::Rtu(rtu), &expected);
}

#[test]
fn rej_is_dissected() {
    let rej = Rej {
        local_comm_id: 0x1122_3344,
        remote_comm_id: 0x5566_7788,
        answered: Answered::Rep,
        reason: RejectReason::CONSUMER,
        info: Info::new(&[1, 2, 3]).unwrap(),
        private_data: PrivateData::default(),
    };
    let expected = [
        ("infiniband.mad.attributeid", "0x0012"),
        ("infiniband.cm.rej.localcommid", "0x11223344"),
        ("infiniband.cm.rej.remotecommid", "0x55667788"),
        ("infiniband.cm.rej.msgrej", "0x01"),
        ("infiniband.cm.rej.rejinfolen", "0x03"),
        ("infiniband.cm.rej.reason", "0x001c"),
    ];
    assert_read("rej", &Message::Rej(rej), &expected);
}

#[test]
fn dreq_and_drep_are_dissected() {
    let dreq = Dreq {
        local_comm_id: 0x1122_3344,
        remote_comm_id: 0x5566_7788,
        remote_qpn: Qpn::new(0x12_3456),
        private_data: PrivateData::default(),
    };
    let expected = [
        ("infiniband.mad.attributeid", "0x0015"),
        ("infiniband.cm.dreq.localcommid", "0x11223344"),
        ("infiniband.cm.dreq.remotecommid", "0x55667788"),
        ("infiniband.cm.req.remoteqpneecn", "0x123456"),
    ];
    assert_read("dreq", &Message::Dreq(dreq), &expected);
    let drep = Drep {
        local_comm_id: 0x5566_7788,
        remote_comm_id: 0x1122_3344,
        private_data: PrivateData::default(),
    };
    let expected = [
        ("infiniband.mad.attributeid", "0x0016"),
        ("infiniband.cm.drsp.localcommid", "0x55667788"),
        ("infiniband.cm.drsp.remotecommid", "0x11223344"),
    ];
    assert_read("drep", &Message::Drep(drep), &expected);
}
