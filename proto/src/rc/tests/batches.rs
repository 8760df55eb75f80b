//! Batches of the sink (`Transmit::next_batch`): which packets wait for a whole one.

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
