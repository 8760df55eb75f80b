//! A peer that implements the connection manager protocol itself: the errors that urxe reports to
//! its application, and the messages that it sends to the peer.

use crate::skip_test::skip_test;
use crate::{End, TIMEOUT, any_port, connecting};
use std::env;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::process::Command;
use urxe::cm::{Error, Listener, Options, RejectReason};
use urxe_proto::cm::wire::mad::GSI_QKEY;
use urxe_proto::cm::wire::{
    Answered, Ece, Info, IpHeader, Message, PortSpace, PrivateData, Rej, Rep, Req, ServiceId,
    Transport, path,
};
use urxe_proto::icrc::{self, Flow};
use urxe_proto::ids::{Gid, PKey, QKey, Qpn};
use urxe_proto::mtu::Mtu;
use urxe_proto::psn::Psn;
use urxe_proto::wire::{Deth, Header, Opcode, Packet, UDP_PORT};

/// The address of urxe. Each test's peer has an address of its own.
const OURS: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// The length of the headers (BTH and DETH) before a MAD; the ICRC follows it.
const HEADERS: usize = 20;
const MAD: usize = 256;

/// Queue pair 1 of another host.
struct Foreign {
    socket: UdpSocket,
    address: Ipv4Addr,
}

impl Foreign {
    fn at(address: Ipv4Addr) -> Foreign {
        let socket = UdpSocket::bind((address, UDP_PORT)).unwrap();
        socket.set_read_timeout(Some(TIMEOUT)).unwrap();
        Foreign { socket, address }
    }

    fn send(&self, transaction: u64, message: &Message) {
        let mad = message.to_mad(transaction);
        let packet = Packet {
            header: Header {
                deth: Some(Deth {
                    qkey: GSI_QKEY,
                    src_qp: Qpn::GSI,
                }),
                ..Header::new(Opcode::UdSendOnly, Qpn::GSI, Psn::new(0))
            },
            payload: &mad,
        };
        let mut bytes = vec![0; packet.len()];
        packet.emit(&mut bytes);
        let to = SocketAddr::from((OURS, UDP_PORT));
        let flow = Flow::new(SocketAddr::from((self.address, UDP_PORT)), to).unwrap();
        bytes.extend(icrc::compute(&flow, 0, true, &bytes));
        self.socket.send_to(&bytes, to).unwrap();
    }

    fn receive(&self) -> (u64, Message) {
        let mut bytes = [0; 2048];
        let (len, _) = self.socket.recv_from(&mut bytes).expect("a message");
        assert_eq!(len, HEADERS + MAD + icrc::LEN);
        Message::parse(&bytes[HEADERS..][..MAD]).unwrap()
    }

    /// Receives a REJ.
    fn rejection(&self) -> Rej {
        match self.receive() {
            (_, Message::Rej(rej)) => rej,
            (_, other) => panic!("{other:?}"),
        }
    }

    /// Returns a valid REQ.
    fn request(&self, id: u32, port: u16) -> Req {
        let header = IpHeader {
            source: (self.address, 4660).into(),
            destination: OURS.into(),
        };
        Req {
            local_comm_id: id,
            service: ServiceId::of_port(PortSpace::Tcp, port),
            ca_guid: 7,
            qkey: QKey(0),
            qpn: Qpn::new(0x1000 + id),
            responder_resources: 1,
            initiator_depth: 1,
            remote_response_timeout: 20,
            transport: Transport::Rc,
            flow_control: true,
            ece: Ece::default(),
            starting_psn: Psn::new(5),
            local_response_timeout: 20,
            retry_count: 7,
            pkey: PKey::DEFAULT,
            path_mtu: Mtu::B1024 as u8,
            rnr_retry_count: 7,
            max_cm_retries: 15,
            srq: false,
            primary: path::Path {
                local_lid: path::LID_PERMISSIVE,
                remote_lid: path::LID_PERMISSIVE,
                local_gid: Gid::from_ip(self.address.into()),
                remote_gid: Gid::from_ip(OURS.into()),
                flow_label: 0,
                packet_rate: 7,
                traffic_class: 0,
                hop_limit: 64,
                sl: 0,
                subnet_local: false,
                local_ack_timeout: 18,
            },
            alternate: path::Path::default(),
            private_data: PrivateData::new(&header.to_bytes()).unwrap(),
        }
    }
}

/// Adds an address to which urxe can send requests from [`OURS`]. It belongs to no interface, and
/// is no loopback address, which would lead back to urxe's own device.
fn reachable_address() -> Option<Ipv4Addr> {
    const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
    if env::var_os("TESTS_HAVE_THEIR_OWN_NETWORK").is_none() {
        skip_test("needs the right to make network namespaces");
        return None;
    }
    let added = Command::new("ip")
        .args(["route", "add", "local", &ADDRESS.to_string(), "dev", "lo"])
        .args(["src", &OURS.to_string()])
        .status();
    match added {
        Ok(status) if status.success() => Some(ADDRESS),
        other => {
            skip_test(&format!("needs ip (iproute2): {other:?}"));
            None
        }
    }
}

#[test]
fn each_reject_reason_of_the_peer_is_reported() {
    let Some(address) = reachable_address() else {
        return;
    };
    let foreign = Foreign::at(address);
    let reasons = RejectReason::ALL.iter().map(|(reason, _)| *reason);
    // Reason 4 (timeout) is sent by the requesting end, so it gets no response.
    for reason in reasons.filter(|reason| *reason != RejectReason::TIMEOUT) {
        let client = connecting((foreign.address, 4242).into(), Options::default());
        let (transaction, message) = foreign.receive();
        let Message::Req(req) = message else {
            panic!("{message:?}");
        };
        let rej = Message::Rej(Rej {
            local_comm_id: 0,
            remote_comm_id: req.local_comm_id,
            answered: Answered::Req,
            reason,
            info: Info::default(),
            private_data: PrivateData::new(b"because").unwrap(),
        });
        foreign.send(transaction, &rej);
        let (_, refused) = client.join().unwrap();
        match refused {
            Err(Error::Rejected {
                reason: shown,
                private_data,
            }) => {
                assert_eq!(shown, reason);
                assert!(private_data.starts_with(b"because"));
            }
            other => panic!("{reason}: {other:?}"),
        }
    }
}

#[test]
fn each_invalid_request_is_rejected_with_its_reason() {
    let foreign = Foreign::at([127, 0, 0, 3].into());
    let listener = Listener::bind(any_port()).unwrap();
    let port = listener.local_addr().port();
    let good = foreign.request(1, port);
    let elsewhere = path::Path {
        remote_gid: Gid::from_ip(Ipv4Addr::new(192, 0, 2, 7).into()),
        ..good.primary
    };
    let nothing: &[u8] = &[];
    let ours = Gid::from_ip(OURS.into()).0;
    for (reason, info, req) in [
        (
            RejectReason::INVALID_TRANSPORT,
            nothing,
            Req {
                transport: Transport::Rd,
                ..good
            },
        ),
        (
            RejectReason::INVALID_PATH_MTU,
            &[Mtu::B4096 as u8],
            Req {
                path_mtu: 6,
                ..good
            },
        ),
        (
            RejectReason::PRIMARY_GID,
            &ours,
            Req {
                primary: elsewhere,
                ..good
            },
        ),
        (
            RejectReason::CONSUMER,
            nothing,
            Req {
                private_data: PrivateData::default(),
                ..good
            },
        ),
    ] {
        foreign.send(1, &Message::Req(req));
        let rej = foreign.rejection();
        assert_eq!((rej.reason, &*rej.info), (reason, info));
        assert_eq!(rej.remote_comm_id, 1);
        assert_eq!(rej.answered, Answered::Req);
    }
    assert!(
        listener.try_next().unwrap().is_none(),
        "no program has to know"
    );
    // The valid request reaches the application.
    foreign.send(2, &Message::Req(foreign.request(2, port)));
    let request = listener
        .next_timeout(TIMEOUT)
        .unwrap()
        .expect("the request is valid");
    request.reject(b"").unwrap();
    assert_eq!(foreign.rejection().reason, RejectReason::CONSUMER);
}

#[test]
fn a_rep_without_a_request_is_rejected() {
    let foreign = Foreign::at([127, 0, 0, 4].into());
    // The listener keeps the socket open.
    let listener = Listener::bind(any_port()).unwrap();
    let req = foreign.request(1, listener.local_addr().port());
    foreign.send(1, &Message::Req(req));
    let request = listener.next_timeout(TIMEOUT).unwrap().expect("a request");
    let server = End::on(&request.device());
    let _accepting = request.start_accepting(server.qp(), &Options::default());
    let (_, message) = foreign.receive();
    let Message::Rep(ours) = message else {
        panic!("{message:?}");
    };
    // With a communication ID that this process has not assigned.
    let rep = Message::Rep(Rep {
        local_comm_id: 9,
        remote_comm_id: ours.local_comm_id ^ 0xffff,
        qpn: Qpn::new(0x2000),
        ..ours
    });
    foreign.send(3, &rep);
    let rej = loop {
        // The REP is retransmitted.
        match foreign.receive() {
            (_, Message::Rej(rej)) => break rej,
            (_, Message::Rep(_)) => {}
            (_, other) => panic!("{other:?}"),
        }
    };
    assert_eq!(rej.reason, RejectReason::INVALID_COMM_ID);
    assert_eq!(rej.remote_comm_id, 9);
    assert_eq!(rej.answered, Answered::Rep);
}
