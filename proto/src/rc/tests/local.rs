//! Local operations: binding memory windows and invalidating keys.

use super::*;
use crate::host::WindowBind;
use crate::ids::LKey;
use WcStatus::{LocQpOpErr, MwBindErr, Success, WrFlushErr};

fn bind(key: u32) -> SendOp {
    SendOp::BindMw(WindowBind {
        window: RKey(key),
        new_key: RKey(key + 1),
        region: LKey(LOCAL),
        addr: base(LOCAL),
        len: 8,
        access: Access::REMOTE_READ,
    })
}

fn invalidate(key: u32) -> SendOp {
    SendOp::LocalInv(RKey(key))
}

/// The keys of the executed operations, with the number of sends completed at the time.
fn carried_out(end: &Endpoint) -> Vec<(u32, usize)> {
    end.host.local.borrow().clone()
}

#[test]
fn local_operations_take_no_psn_and_complete_at_once_in_an_empty_queue() {
    let mut end = Endpoint::new();
    end.post(1, bind(7), SIGNALED, &[]);
    end.post(2, invalidate(8), SIGNALED, &[]);
    end.post(3, invalidate(9), UNSIGNALED, &[]);
    end.post_signaled(4, SendOp::Send, 1);
    assert_eq!(end.poll_one().psn(), OWN_PSN);
    let opcodes: Vec<_> = end.host.sends.iter().map(|c| c.opcode).collect();
    assert_eq!(opcodes, [WcOpcode::BindMw, WcOpcode::LocalInv]);
    assert_eq!(end.done(), [(1, Success), (2, Success)]);
    end.deliver(ack(0), &[]);
    assert_eq!(end.done(), [(4, Success)]);
    assert_eq!(end.qp.deadline(), Time::NEVER);
}

#[test]
fn bind_is_executed_before_acknowledgements_and_completes_in_order() {
    let mut end = Endpoint::new();
    end.post(1, SendOp::Send, UNSIGNALED, &[sge(LOCAL, 0, 1)]);
    end.post(2, bind(7), SIGNALED, &[]);
    end.post_signaled(3, write_to(0), 1);
    let packets = end.poll();
    assert_eq!(packets.len(), 2);
    // The completion of the bind waits for this ACK, which is therefore requested.
    assert!(packets[0].header.bth.ack_req);
    assert_eq!(carried_out(&end), [(7, 0)]);
    assert!(end.done().is_empty());
    end.deliver(ack(0), &[]);
    assert_eq!(end.done(), [(2, Success)]);
    end.deliver(ack(1), &[]);
    assert_eq!(end.done(), [(3, Success)]);
}

#[test]
fn local_invalidate_waits_for_all_earlier_work_requests() {
    let mut end = Endpoint::new();
    end.post_signaled(1, SendOp::Send, 1);
    end.post_signaled(2, read_from(0), 1);
    end.post(3, invalidate(7), UNSIGNALED, &[]);
    end.post_signaled(4, SendOp::Send, 1);
    assert_eq!(end.poll().len(), 2);
    end.deliver(ack(0), &[]);
    assert!(end.poll().is_empty());
    assert_eq!(carried_out(&end), []);
    end.deliver(answer(Opcode::RcReadResponseOnly, 1, UNLIMITED), &[5]);
    assert_eq!(end.poll_one().psn(), OWN_PSN + 2);
    assert_eq!(carried_out(&end), [(7, 2)]);
}

#[test]
fn fenced_bind_waits_for_reads() {
    let mut end = Endpoint::new();
    end.post_signaled(1, read_from(0), 1);
    end.post(2, bind(7), SIGNALED | SendFlags::FENCE, &[]);
    assert_eq!(end.poll().len(), 1);
    assert_eq!(carried_out(&end), []);
    end.deliver(answer(Opcode::RcReadResponseOnly, 0, UNLIMITED), &[5]);
    assert!(end.poll().is_empty());
    assert_eq!(carried_out(&end), [(7, 1)]);
    assert_eq!(end.done(), [(1, Success), (2, Success)]);
}

#[test]
fn going_back_does_not_repeat_a_local_operation() {
    let mut end = Endpoint::new();
    end.post_signaled(1, write_to(0), 1);
    end.post(2, bind(7), SIGNALED, &[]);
    end.post_signaled(3, write_to(0), 1);
    assert_eq!(end.poll().len(), 2);
    end.deliver(nak(0, NakCode::PsnSequence), &[]);
    assert_eq!(end.poll().len(), 2);
    assert_eq!(carried_out(&end), [(7, 0)]);
    end.deliver(ack(1), &[]);
    assert_eq!(end.done(), [(1, Success), (2, Success), (3, Success)]);
}

#[test]
fn failed_bind_completes_after_earlier_work_requests() {
    let mut end = Endpoint::new();
    end.post_signaled(1, write_to(0), 1);
    end.post(2, bind(NO_KEY), UNSIGNALED, &[]);
    end.post_signaled(3, write_to(0), 1);
    assert_eq!(end.poll().len(), 1);
    assert!(end.done().is_empty());
    end.deliver(ack(0), &[]);
    assert_eq!(end.done(), [(1, Success), (2, MwBindErr), (3, WrFlushErr)]);
    assert_eq!(end.qp.state(), QpState::Err);
}

#[test]
fn failed_invalidation_is_an_operation_error() {
    let mut end = Endpoint::new();
    end.post(1, invalidate(NO_KEY), UNSIGNALED, &[]);
    assert!(end.poll().is_empty());
    assert_eq!(end.done(), [(1, LocQpOpErr)]);
    assert_eq!(end.qp.state(), QpState::Err);
}

#[test]
fn draining_completes_a_begun_local_operation_and_begins_no_other() {
    let mut end = Endpoint::new();
    end.post_signaled(1, write_to(0), 1);
    end.post(2, bind(7), SIGNALED, &[]);
    assert_eq!(end.poll().len(), 1);
    end.modify(
        QpState::Sqd,
        AttrMask::EN_SQD_ASYNC_NOTIFY,
        &QpAttr {
            en_sqd_async_notify: true,
            ..attributes()
        },
    );
    end.post(3, bind(8), SIGNALED, &[]);
    assert!(end.poll().is_empty() && end.events().is_empty());
    end.deliver(ack(0), &[]);
    assert_eq!(end.done(), [(1, Success), (2, Success)]);
    assert!(end.poll().is_empty());
    assert_eq!(end.events(), [QpEvent::SendQueueDrained]);
    assert_eq!(carried_out(&end), [(7, 0)]);
    end.enter(QpState::Rts);
    assert!(end.poll().is_empty());
    assert_eq!(end.done(), [(3, Success)]);
}
