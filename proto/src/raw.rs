//! Raw packets: whole Ethernet frames, written and read by the program.
//!
//! The specification leaves them to the implementation. The rules for datagrams apply (9.8.3),
//! without the transport headers.

use crate::host::Host;
use crate::ids::Qpn;
use crate::mtu::Mtu;
use crate::placement::MessageInfo;
use crate::qp::{QpAttr, QpType};
use crate::queue::{NoMemory, SendQueueSize};
use crate::time::Time;
use crate::unreliable::{Core, Service, UnreliableQp};
use crate::work::Extra;
use std::ops::RangeInclusive;

/// The length of an Ethernet header, in bytes. The interface pads short frames.
const MIN_FRAME: usize = 14;

/// The parameters of a raw packet queue pair.
#[derive(Clone, Copy, Debug)]
pub struct RawConfig {
    /// The queue pair number, which appears in no packet.
    pub qpn: Qpn,
    /// The limits of the send queue.
    pub send: SendQueueSize,
    /// Whether every work request generates a completion.
    pub signal_all: bool,
    /// The longest frame, in bytes, Ethernet header included.
    pub max_frame: usize,
}

/// A raw packet queue pair.
pub type RawQp = UnreliableQp<Raw>;

/// The raw packet service: its maximum frame length.
#[derive(Debug)]
pub struct Raw {
    max_frame: usize,
}

impl Service for Raw {
    fn frames(&self) -> Option<RangeInclusive<usize>> {
        Some(MIN_FRAME..=self.max_frame)
    }
}

impl UnreliableQp<Raw> {
    /// Returns a queue pair in RESET.
    ///
    /// # Errors
    /// [`NoMemory`] when the send queue could not be allocated.
    pub fn new(config: RawConfig) -> Result<Self, NoMemory> {
        let initial = QpAttr {
            path_mtu: Mtu::B4096,
            ..QpAttr::default()
        };
        Ok(UnreliableQp {
            core: Core::new(
                QpType::RawPacket,
                config.qpn,
                config.send,
                config.signal_all,
                initial,
            )?,
            service: Raw {
                max_frame: config.max_frame,
            },
        })
    }

    /// Handles a frame for this queue pair.
    ///
    /// The frame is dropped, and counted, when the queue pair does not receive or no receive fits.
    pub fn handle_frame<H: Host>(&mut self, now: Time, frame: &[u8], host: &mut H) {
        let core = &mut self.core;
        if !core.base.attr.state.handles_packets() {
            core.base.counters.dropped_in_state += 1;
            return;
        }
        let message = MessageInfo {
            src_qp: Qpn::default(),
            extra: Extra::None,
            grh: None,
            solicited: false,
        };
        core.deliver_message(now, &[frame], message, host);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Transmit;
    use crate::qp::{AttrMask, QpState};
    use crate::testing::{LOCAL, NO_KEY, TestHost, pattern, sge};
    use crate::work::{Payload, SendFlags, SendOp, SendWr, Sge, WcStatus};

    const NOW: Time = Time(1);
    const MAX: usize = 1514;

    #[derive(Default)]
    struct Frames {
        staged: Vec<u8>,
        sent: Vec<Vec<u8>>,
    }

    impl Transmit for Frames {
        fn stage(&mut self, len: usize) -> Option<&mut [u8]> {
            self.staged = vec![0; len];
            Some(&mut self.staged)
        }

        fn commit(&mut self) {
            self.sent.push(std::mem::take(&mut self.staged));
        }

        fn cancel(&mut self) {}

        fn now(&self) -> Time {
            NOW
        }
    }

    fn go(qp: &mut RawQp, state: QpState, mask: AttrMask, host: &mut TestHost) {
        let attr = QpAttr {
            state,
            ..QpAttr::default()
        };
        qp.modify(&attr, mask | AttrMask::STATE, NOW, host).unwrap();
    }

    fn ready(host: &mut TestHost) -> RawQp {
        let send = SendQueueSize {
            max_wr: 4,
            max_sge: 1,
            max_inline: 64,
        };
        let mut qp = RawQp::new(RawConfig {
            qpn: Qpn::new(9),
            send,
            signal_all: true,
            max_frame: MAX,
        })
        .unwrap();
        go(&mut qp, QpState::Init, AttrMask::PORT, host);
        go(&mut qp, QpState::Rtr, AttrMask::empty(), host);
        go(&mut qp, QpState::Rts, AttrMask::empty(), host);
        qp
    }

    fn post(qp: &mut RawQp, wr_id: u64, op: SendOp, sges: &[Sge], host: &mut TestHost) -> bool {
        let wr = SendWr {
            wr_id,
            op,
            flags: SendFlags::empty(),
            payload: Payload::Sges(sges),
            dest: None,
        };
        qp.post_send(&wr, NOW, host).is_ok()
    }

    fn statuses(host: &TestHost) -> Vec<(u64, WcStatus)> {
        host.sends.iter().map(|wc| (wc.wr_id, wc.status)).collect()
    }

    #[test]
    fn frames_are_sent_unchanged() {
        let (mut host, mut out) = (TestHost::new(), Frames::default());
        let mut qp = ready(&mut host);
        for len in [MIN_FRAME, MAX] {
            assert!(post(
                &mut qp,
                1,
                SendOp::Send,
                &[sge(LOCAL, 5, len)],
                &mut host
            ));
        }
        assert!(!qp.poll_transmit(NOW, &mut host, &mut out));
        let expected = |len| {
            (5..5 + len)
                .map(|at| pattern(LOCAL, at))
                .collect::<Vec<_>>()
        };
        assert_eq!(out.sent, [expected(MIN_FRAME), expected(MAX)]);
        assert_eq!(statuses(&host), [(1, WcStatus::Success); 2]);
    }

    #[test]
    fn invalid_frame_moves_the_queue_pair_to_sqe() {
        for (bad, status) in [
            (sge(LOCAL, 0, MIN_FRAME - 1), WcStatus::LocLenErr),
            (sge(LOCAL, 0, MAX + 1), WcStatus::LocLenErr),
            (sge(NO_KEY, 0, 100), WcStatus::LocProtErr),
        ] {
            let (mut host, mut out) = (TestHost::new(), Frames::default());
            let mut qp = ready(&mut host);
            assert!(post(&mut qp, 1, SendOp::Send, &[bad], &mut host));
            assert!(post(
                &mut qp,
                2,
                SendOp::Send,
                &[sge(LOCAL, 0, 60)],
                &mut host
            ));
            qp.poll_transmit(NOW, &mut host, &mut out);
            assert_eq!(statuses(&host), [(1, status), (2, WcStatus::WrFlushErr)]);
            assert_eq!((qp.state(), out.sent.len()), (QpState::Sqe, 0));
            go(&mut qp, QpState::Rts, AttrMask::empty(), &mut host);
            assert!(post(
                &mut qp,
                3,
                SendOp::Send,
                &[sge(LOCAL, 0, 60)],
                &mut host
            ));
            qp.poll_transmit(NOW, &mut host, &mut out);
            assert_eq!(out.sent.len(), 1);
        }
    }

    #[test]
    fn only_send_is_supported() {
        let mut host = TestHost::new();
        let mut qp = ready(&mut host);
        assert!(!post(&mut qp, 1, SendOp::SendImm(1), &[], &mut host));
    }

    #[test]
    fn frame_without_a_fitting_receive_is_dropped() {
        let mut host = TestHost::new();
        let mut qp = ready(&mut host);
        qp.handle_frame(NOW, &[1; 60], &mut host);
        host.receives.post(7, &[sge(LOCAL, 0, 64)]).unwrap();
        qp.handle_frame(NOW, &[2; 65], &mut host);
        assert!(host.receptions.is_empty());
        qp.handle_frame(NOW, &[3; 60], &mut host);
        let (completion, solicited) = host.receptions[0];
        assert_eq!((completion.wr_id, completion.byte_len), (7, 60));
        assert_eq!(
            (completion.status, completion.grh),
            (WcStatus::Success, None)
        );
        assert!(!solicited);
        assert_eq!(host.bytes(LOCAL, 0, 60), [3; 60]);
        let counters = qp.counters();
        assert_eq!((counters.no_receive, counters.receive_too_small), (1, 1));
    }

    #[test]
    fn no_frame_is_received_before_rtr() {
        let mut host = TestHost::new();
        let mut qp = ready(&mut host);
        go(&mut qp, QpState::Reset, AttrMask::empty(), &mut host);
        go(&mut qp, QpState::Init, AttrMask::PORT, &mut host);
        host.receives.post(7, &[sge(LOCAL, 0, 64)]).unwrap();
        qp.handle_frame(NOW, &[1; 60], &mut host);
        assert!(host.receptions.is_empty());
    }
}
