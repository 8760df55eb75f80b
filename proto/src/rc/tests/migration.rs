//! Path migration (17.2.8): the paths of packets sent and accepted, and that no request is lost.

use super::*;
use crate::qp::PathMigState;
use PathMigState::{Armed, Migrated, Rearm};
use WcStatus::Success;

const PATHS: AttrMask = AttrMask::ALT_PATH.union(AttrMask::PATH_MIG_STATE);

fn other_gid() -> Gid {
    Gid::from_ip(std::net::Ipv4Addr::new(198, 51, 100, 9).into())
}

impl Endpoint {
    fn change(&mut self, attr: &QpAttr, mask: AttrMask) -> Result<(), TransitionError> {
        self.qp.modify(attr, mask, self.now, &mut self.host)
    }

    /// Loads the path on which the peer is [`other_gid`], and sets the state REARM.
    fn rearm(&mut self) {
        let attr = QpAttr {
            alt_av: AddressVector {
                dgid: other_gid(),
                ..attributes().av
            },
            alt_port: 1,
            alt_timeout: 15,
            path_mig_state: Rearm,
            ..QpAttr::default()
        };
        self.change(&attr, PATHS).unwrap();
    }

    /// An end in ARMED, reached by a packet from the peer without other effect.
    fn armed() -> Self {
        let mut end = Self::new();
        end.rearm();
        end.post_signaled(9, SendOp::Send, 1);
        end.poll();
        end.deliver(ack(0).with_mig_req(false), &[]);
        assert_eq!(end.done(), [(9, Success)]);
        assert_eq!(end.path_state(), Armed);
        end
    }

    fn path_state(&self) -> PathMigState {
        self.qp.attributes().path_mig_state
    }

    fn deliver_from(&mut self, from: Gid, header: Header) {
        let header = header.with_payload_len(0);
        let packet = Packet {
            header,
            payload: &[],
        };
        self.qp
            .handle_packet(self.now, source(from), &packet, &mut self.host);
    }

    /// Runs the timers until the end migrates. Returns the packets that it then sends.
    fn exhaust_retries(&mut self) -> Vec<Sent> {
        loop {
            assert_eq!(self.qp.state(), QpState::Rts);
            self.wait_for_deadline();
            let sent = self.poll();
            if self.qp.take_migrated() {
                return sent;
            }
        }
    }
}

#[test]
fn requests_and_responses_have_mig_req_0_unless_migrated() {
    let mut end = Endpoint::new();
    end.post_signaled(1, SendOp::Send, 1);
    assert!(end.poll_one().header.bth.mig_req);
    end.deliver(request(Opcode::RcWriteOnly, 0).with_reth(NOTHING), &[]);
    assert!(end.poll_one().header.bth.mig_req);
    end.rearm();
    end.post_signaled(2, SendOp::Send, 1);
    assert!(!end.poll_one().header.bth.mig_req);
    end.deliver(request(Opcode::RcWriteOnly, 1).with_reth(NOTHING), &[]);
    assert!(!end.poll_one().header.bth.mig_req);
}

const NOTHING: Reth = Reth {
    addr: 0,
    rkey: RKey(0),
    length: 0,
};

#[test]
fn requests_and_responses_with_mig_req_0_arm() {
    let mut end = Endpoint::new();
    end.rearm();
    let write = request(Opcode::RcWriteOnly, 0).with_reth(NOTHING);
    end.deliver(write, &[]);
    assert_eq!(end.path_state(), Rearm);
    let write = request(Opcode::RcWriteOnly, 1).with_reth(NOTHING);
    end.deliver(write.with_mig_req(false), &[]);
    assert_eq!(end.path_state(), Armed);
}

#[test]
fn retry_counter_restarts_on_the_alternate_path() {
    let mut end = Endpoint::armed();
    end.post_signaled(1, SendOp::Send, 2 * MTU);
    end.post_signaled(2, SendOp::Send, 1);
    end.poll();
    let mut sent = end.exhaust_retries();
    assert_eq!(end.events(), [QpEvent::PathMigrated]);
    assert_eq!(end.path_state(), Migrated);
    assert_eq!(end.qp.attributes().av.dgid, other_gid());
    assert_eq!(end.qp.counters().retries_exceeded, 0);
    assert!(end.done().is_empty());

    // The same number of retries again, by the timeout of that path.
    let start = end.now;
    while end.qp.state() == QpState::Rts {
        end.wait_for_deadline();
        sent.extend(end.poll());
    }
    assert!(sent.len() > 3);
    assert!(sent.iter().all(|packet| packet.header.bth.mig_req));
    assert_eq!(
        end.now.since(start),
        Duration::from_nanos(4096 << 15) * 4 * 4
    );
    assert_eq!(
        end.done(),
        [(1, WcStatus::RetryExcErr), (2, WcStatus::WrFlushErr)]
    );
    assert_eq!(end.qp.counters().retries_exceeded, 1);
}

/// A round trip clearly longer than the defaults used before one was measured.
const LONG_ROUND_TRIP: Duration = Duration::from_millis(60);

impl Endpoint {
    /// Measures [`LONG_ROUND_TRIP`] with a request at `offset` from the first PSN.
    fn measure(&mut self, offset: u32) {
        self.post_signaled(8, SendOp::Send, 1);
        self.poll();
        self.advance(LONG_ROUND_TRIP);
        self.deliver(ack(offset).with_mig_req(false), &[]);
        assert_eq!(self.done(), [(8, Success)]);
    }

    /// An end with the ACK timeout of the alternate path.
    fn on_the_alternate_path() -> Endpoint {
        Endpoint::with(|attr| attr.timeout = 15)
    }

    /// The time from an unanswered packet to the probe.
    fn time_to_first_probe(&mut self) -> Duration {
        self.post_signaled(7, SendOp::Send, 1);
        assert_eq!(self.poll().len(), 1);
        self.qp.deadline().since(self.now)
    }
}

#[test]
fn path_change_resets_the_round_trip_estimate() {
    let unmeasured = Endpoint::on_the_alternate_path().time_to_first_probe();
    let moves: [fn(&mut Endpoint); 2] = [
        // The application migrates.
        |end| {
            let attr = QpAttr {
                path_mig_state: Migrated,
                ..QpAttr::default()
            };
            end.change(&attr, AttrMask::PATH_MIG_STATE).unwrap();
        },
        // The peer has migrated.
        |end| end.deliver_from(other_gid(), ack(1)),
    ];
    for migrate in moves {
        let mut end = Endpoint::armed();
        end.measure(1);
        migrate(&mut end);
        assert!(end.qp.take_migrated());
        assert_eq!(end.time_to_first_probe(), unmeasured);
    }
    // The retries were exhausted.
    let mut end = Endpoint::armed();
    end.measure(1);
    end.post_signaled(1, SendOp::Send, 1);
    end.poll();
    assert_eq!(end.exhaust_retries().len(), 1);
    end.deliver_from(other_gid(), ack(2));
    assert_eq!(end.done(), [(1, Success)]);
    assert_eq!(end.time_to_first_probe(), unmeasured);
}

#[test]
fn packet_sent_on_the_old_path_is_no_sample_for_the_new_path() {
    let unmeasured = Endpoint::on_the_alternate_path().time_to_first_probe();
    let mut end = Endpoint::armed();
    end.post_signaled(1, SendOp::Send, 1);
    end.poll();
    let attr = QpAttr {
        path_mig_state: Migrated,
        ..QpAttr::default()
    };
    end.change(&attr, AttrMask::PATH_MIG_STATE).unwrap();
    end.advance(LONG_ROUND_TRIP);
    end.deliver_from(peer_gid(), ack(1).with_mig_req(false));
    assert_eq!(end.done(), [(1, Success)]);
    assert_eq!(end.time_to_first_probe(), unmeasured);
}

#[test]
fn new_address_vector_in_sqd_resets_the_round_trip_estimate() {
    let unmeasured = Endpoint::new().time_to_first_probe();
    let mut end = Endpoint::new();
    end.measure(0);
    end.enter(QpState::Sqd);
    let mut attr = attributes();
    attr.av.dgid = other_gid();
    end.change(&attr, AttrMask::AV).unwrap();
    end.enter(QpState::Rts);
    assert_eq!(end.time_to_first_probe(), unmeasured);
}

#[test]
fn reset_clears_the_round_trip_estimate() {
    let unmeasured = Endpoint::new().time_to_first_probe();
    let mut end = Endpoint::new();
    end.measure(0);
    assert!(end.time_to_first_probe() > unmeasured);
    end.enter(QpState::Reset);
    let mut end = end.connected(|_| ());
    assert_eq!(end.time_to_first_probe(), unmeasured);
}

#[test]
fn packets_lost_on_the_old_path_are_retransmitted_on_the_new_path() {
    let mut end = Endpoint::armed();
    end.post_signaled(1, SendOp::Send, 2 * MTU);
    end.poll();
    let retransmitted = end.exhaust_retries();
    // The timeout reduced the window of the old path; the new path starts with a new window.
    let psns: Vec<_> = retransmitted.iter().map(Sent::psn).collect();
    assert_eq!(psns, [OWN_PSN + 1, OWN_PSN + 2]);
    end.deliver_from(other_gid(), ack(2));
    assert_eq!(end.done(), [(1, Success)]);
    assert_eq!(end.qp.state(), QpState::Rts);
}

#[test]
fn repeated_naks_without_progress_cause_migration() {
    let mut end = Endpoint::armed();
    end.post_signaled(1, SendOp::Send, 2 * MTU);
    end.poll();
    for _ in 0..4 {
        end.deliver(nak(1, NakCode::PsnSequence).with_mig_req(false), &[]);
        assert_eq!(end.poll().len(), 2);
        end.advance(ms(1));
    }
    assert!(end.qp.take_migrated());
    assert_eq!(end.qp.state(), QpState::Rts);
}

#[test]
fn response_on_the_alternate_path_causes_migration_and_is_accepted() {
    let mut end = Endpoint::armed();
    end.post_signaled(1, SendOp::Send, 1);
    end.poll();
    end.deliver_from(other_gid(), ack(1));
    assert_eq!(end.done(), [(1, Success)]);
    assert_eq!(end.events(), [QpEvent::PathMigrated]);
    assert!(end.qp.take_migrated());
}

#[test]
fn packets_on_the_alternate_path_are_dropped_unless_rearmed() {
    let mut end = Endpoint::new();
    end.rearm();
    end.post_signaled(1, SendOp::Send, 1);
    end.poll();
    end.deliver_from(other_gid(), ack(0));
    assert!(end.done().is_empty());
    assert_eq!(end.qp.counters().wrong_source, 1);
    assert_eq!(end.events(), [QpEvent::PathMigrationRefused]);
}

#[test]
fn reset_clears_the_alternate_path() {
    let mut end = Endpoint::armed();
    end.enter(QpState::Reset);
    assert_eq!(end.path_state(), Migrated);
    let attr = attributes();
    end.modify(QpState::Init, INIT, &attr);
    end.modify(QpState::Rtr, RTR, &attr);
    end.modify(QpState::Rts, RTS, &attr);
    let attr = QpAttr {
        path_mig_state: Rearm,
        ..attr
    };
    assert_eq!(
        end.change(&attr, AttrMask::PATH_MIG_STATE),
        Err(TransitionError::NoAlternatePath)
    );
}

#[test]
fn alternate_path_is_loaded_at_rtr_and_rearmed_at_rts() {
    let mut end = Endpoint::reset();
    let attr = QpAttr {
        alt_av: AddressVector {
            dgid: other_gid(),
            ..attributes().av
        },
        alt_port: 1,
        path_mig_state: Rearm,
        ..attributes()
    };
    end.modify(QpState::Init, INIT, &attr);
    end.modify(QpState::Rtr, RTR | AttrMask::ALT_PATH, &attr);
    assert_eq!(end.path_state(), Migrated);
    end.modify(QpState::Rts, RTS | AttrMask::PATH_MIG_STATE, &attr);
    assert_eq!(end.path_state(), Rearm);
}
