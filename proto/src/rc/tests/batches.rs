//! Batches of the sink (`Transmit::place_in_batch`): which packets wait for a whole one.

use super::*;
use WcStatus::Success;

/// The packets in a batch. The first window, of 16 packets, is no multiple.
const BATCH: u32 = 3;

impl Endpoint {
    fn poll_in_batches(&mut self) -> Vec<Sent> {
        let mut sink = Sink::new(self.now, usize::MAX).in_batches(BATCH);
        assert!(!(self.qp).poll_transmit(self.now, &mut self.host, &mut sink));
        sink.packets
    }
}

#[test]
fn packets_that_fill_no_batch_wait_for_room_in_the_window() {
    let mut end = Endpoint::new();
    end.post_signaled(1, SendOp::Send, 40 * MTU);
    let packets = end.poll_in_batches();
    assert_eq!(packets.len(), 15);
    assert!(packets.iter().any(|packet| packet.header.bth.ack_req));
    end.deliver(ack(4), &[]);
    // The window is 21 packets, of which 10 are in flight.
    assert_eq!(end.poll_in_batches().len(), 9);
}

#[test]
fn last_packets_of_the_queue_do_not_wait_for_a_batch() {
    let mut end = Endpoint::new();
    end.post_signaled(1, SendOp::Send, 16 * MTU);
    assert_eq!(end.poll_in_batches().len(), 16);
    end.deliver(ack(15), &[]);
    assert_eq!(end.done(), [(1, Success)]);
}

#[test]
fn packets_up_to_the_next_write_are_a_batch() {
    let mut end = Endpoint::new();
    // Of the second WRITE, the first packet and the two behind it have room.
    end.post_signaled(1, write_to(0), 13 * MTU);
    end.post_signaled(2, write_to(0), 9 * MTU);
    let packets = end.poll_in_batches();
    assert_eq!(packets.len(), 15);
    end.deliver(ack(12), &[]);
    assert_eq!(end.poll_in_batches().len(), 7);
}

#[test]
fn short_packets_do_not_wait_for_a_batch() {
    let mut end = Endpoint::new();
    end.qp.require_send_quanta(true);
    end.qp.renew_send_quantum(4 * MTU as u32);
    for wr_id in 0..6 {
        end.post_signaled(wr_id, SendOp::Send, 1);
    }
    assert_eq!(end.poll_in_batches().len(), 4);
}

#[test]
fn quantum_is_renewed_before_it_divides_a_batch() {
    let mut end = Endpoint::new();
    end.qp.require_send_quanta(true);
    end.qp.renew_send_quantum(4 * MTU as u32);
    end.post_signaled(1, SendOp::Send, 9 * MTU);
    assert_eq!(end.poll_in_batches().len(), 3);
    assert!(end.qp.needs_send_quantum());
    end.qp.renew_send_quantum(4 * MTU as u32);
    assert_eq!(end.poll_in_batches().len(), 3);
}

#[test]
fn rest_of_a_quantum_is_sent_if_no_other_is_to_be_had() {
    let mut end = Endpoint::new();
    end.qp.require_send_quanta(true);
    end.qp.renew_send_quantum(4 * MTU as u32);
    end.post_signaled(1, SendOp::Send, 9 * MTU);
    assert_eq!(end.poll_in_batches().len(), 3);
    assert!(end.qp.refuse_send_quantum());
    let packets = end.poll_in_batches();
    assert_eq!(packets.len(), 1);
    assert!(
        packets[0].header.bth.ack_req,
        "the last packet of the quantum"
    );
    assert!(end.qp.needs_send_quantum());
    assert!(!end.qp.refuse_send_quantum(), "nothing is left");
}

/// The limits of the driver: 64 packets of 4096 bytes.
fn with_window_of_64_packets() -> Endpoint {
    let config = RcConfig {
        service: QpType::Rc,
        qpn: Qpn::new(0x11),
        send: SendQueueSize {
            max_wr: 64,
            max_sge: 4,
            max_inline: 512,
        },
        signal_all: false,
        window: WindowLimits::fixed(256 << 10),
        out_of_order_bytes: 1 << 20,
        congestion: Algorithm::default(),
    };
    let end = Endpoint {
        qp: RcQp::new(config).unwrap(),
        host: TestHost::new(),
        now: Time(1_000_000_000),
    };
    end.connected(|attr| attr.path_mtu = Mtu::B4096)
}

/// Posts SENDs of `len` bytes until the send queue is full, and sends. Returns the number of packets, and the number of
/// those up to the last with AckReq.
fn send_full_queue(end: &mut Endpoint, len: usize) -> (u32, u32) {
    while end.qp.send_queue_room() > 0 {
        end.post(1, SendOp::Send, UNSIGNALED, &[sge(LOCAL, 0, len)]);
    }
    let mut sink = Sink::new(end.now, usize::MAX).in_batches(15);
    assert!(!(end.qp).poll_transmit(end.now, &mut end.host, &mut sink));
    let packets = sink.packets;
    let last = packets.iter().rposition(|packet| packet.header.bth.ack_req);
    (packets.len() as u32, last.map_or(0, |last| last as u32 + 1))
}

/// Reduces the window while packets of SENDs of `len` bytes wait for a batch. Returns the number of
/// packets that the next ACK lets the requester send.
fn packets_after_a_reduction(len: usize) -> u32 {
    let mut end = with_window_of_64_packets();
    let mut sent = 0;
    while end.qp.congestion_window() < 64 {
        sent += send_full_queue(&mut end, len).0;
        end.advance(Duration::from_micros(100));
        end.deliver(ack(sent - 1), &[]);
    }
    let (_, requested) = send_full_queue(&mut end, len);
    for _ in 0..3 {
        end.advance(Duration::from_micros(30));
        end.deliver(Header::cnp(Qpn::new(0x11)), &[]);
    }
    assert_eq!(end.qp.congestion_window(), 8);
    end.deliver(ack(sent + requested - 1), &[]);
    send_full_queue(&mut end, len).0
}

#[test]
fn window_that_shrinks_while_packets_wait_for_a_batch_does_not_stop_the_requester() {
    assert!(packets_after_a_reduction(32 * 4096) > 0);
    // The last packet of each message is shorter, and ends a batch.
    for full in 1..32 {
        assert!(packets_after_a_reduction(full * 4096 + 1000) > 0, "{full}");
    }
}
