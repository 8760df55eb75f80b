//! Path migration of an unreliable connection (17.2.8).
//!
//! It has no acknowledgements to time out, so it migrates when its program requests it or its peer
//! does.

use super::*;
use crate::qp::{PathMigState, TransitionError};
use PathMigState::{Armed, Migrated, Rearm};

fn other_gid() -> Gid {
    Gid::from(std::net::Ipv4Addr::new(198, 51, 100, 9))
}

fn armed() -> Endpoint {
    let mut end = Endpoint::new();
    let attr = QpAttr {
        alt_av: AddressVector {
            dgid: other_gid(),
            ..attributes().av
        },
        alt_port: 1,
        path_mig_state: Rearm,
        ..attributes()
    };
    let mask = AttrMask::ALT_PATH | AttrMask::PATH_MIG_STATE;
    end.qp.modify(&attr, mask, end.now, &mut end.host).unwrap();
    end.deliver(packet(UcSendOnly, 0).with_mig_req(false), &[]);
    assert_eq!(end.qp.attributes().path_mig_state, Armed);
    end.host.receives.post(1, &[sge(LOCAL, 0, 8)]).unwrap();
    end
}

fn request_migration(end: &mut Endpoint) -> Result<(), TransitionError> {
    let mask = AttrMask::PATH_MIG_STATE;
    end.qp.modify(&attributes(), mask, end.now, &mut end.host)
}

#[test]
fn packets_have_mig_req_0_until_the_program_requests_migration() {
    let mut end = armed();
    end.post(1, SendOp::Send, 1);
    assert!(!end.poll()[0].header.bth.mig_req);
    request_migration(&mut end).unwrap();
    assert!(end.qp.take_migrated());
    assert_eq!(end.qp.attributes().av.dgid, other_gid());
    end.post(2, SendOp::Send, 1);
    assert!(end.poll()[0].header.bth.mig_req);
    assert_eq!(end.host.events, [QpEvent::PathMigrated]);
}

#[test]
fn message_on_the_alternate_path_is_received_and_causes_migration() {
    let mut end = armed();
    let message = packet(UcSendOnly, 1);
    let message = Packet {
        header: message,
        payload: &[],
    };
    end.qp
        .handle_packet(end.now, other_gid(), &message, &mut end.host);
    assert_eq!(end.host.receptions.len(), 1);
    assert_eq!(end.qp.attributes().path_mig_state, Migrated);
    assert!(end.qp.take_migrated());
}
