//! Unreliable connections, datagrams and multicast.

use crate::end::End;
use urxe::{
    ConnectOptions, DatagramAddress, DatagramQueuePair, GRH_BYTES, Gid, PostError, QKey, QpState,
    ReceiveRequest, RemoteAccess, SendRequest, WcOpcode, WcStatus,
};

const QKEY: QKey = QKey(0x1234);

impl End {
    fn datagrams(&self) -> DatagramQueuePair {
        self.qp().build_datagram(QKEY).unwrap()
    }

    /// Returns a receive for a datagram of up to `len` bytes.
    fn receive(&self, len: usize) -> ReceiveRequest {
        let region = self.pd.register(GRH_BYTES + len, RemoteAccess::empty());
        ReceiveRequest::into(region.unwrap().slice(..).unwrap())
    }
}

fn group(address: &str) -> Gid {
    Gid::from_ip(address.parse().unwrap())
}

#[test]
fn an_unreliable_connection_supports_send_and_write_but_not_read() {
    let (here, there) = (End::new(), End::new());
    let a = here.qp().build_unreliable().unwrap();
    let b = there.qp().build_unreliable().unwrap();
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    let a = a.connect(&at_b, &ConnectOptions::default()).unwrap();
    let b = b.connect(&at_a, &ConnectOptions::default()).unwrap();

    let memory = there.pd.register(10_000, RemoteAccess::all()).unwrap();
    b.post_receive(ReceiveRequest::into(memory.slice(..).unwrap()))
        .unwrap();
    let data = vec![9; 10_000];
    let from = here
        .pd
        .register_vec(data.clone(), RemoteAccess::empty())
        .unwrap();
    a.post_send(SendRequest::send(from.slice(..).unwrap()))
        .unwrap();
    assert_eq!(there.completion().data().unwrap(), data);
    here.completion().result.unwrap();

    b.post_receive(ReceiveRequest::empty()).unwrap();
    let write = SendRequest::write_with_imm(b"over it", &memory.remote(), 5);
    a.post_send(write).unwrap();
    let notified = there.completion().result.unwrap();
    assert_eq!(
        (notified.opcode, notified.imm),
        (WcOpcode::RecvWriteImm, Some(5))
    );
    assert_eq!(notified.src_qp, None);
    let mut start = [0; 8];
    memory.read(0, &mut start).unwrap();
    assert_eq!(&start, b"over it\x09");

    let into = from.slice(..8).unwrap();
    let refused = a.post_send(SendRequest::read(into, &memory.remote()));
    assert!(matches!(refused, Err(PostError::Driver(_))));
}

#[test]
fn a_datagram_carries_the_address_to_reply_to() {
    let (here, there) = (End::new(), End::new());
    let (a, b) = (here.datagrams(), there.datagrams());
    b.post_receive(there.receive(100).id(3)).unwrap();
    a.post_receive(here.receive(100)).unwrap();
    let to_b = a.destination(&b.address()).unwrap();
    a.post_send(&to_b, SendRequest::send_with_imm(b"question", 8))
        .unwrap();
    // The destination may be dropped once the datagram is posted.
    drop(to_b);
    let asked = there.completion();
    assert_eq!(asked.wr_id, 3);
    assert_eq!(asked.data().unwrap(), b"question");
    assert_eq!(asked.result.unwrap().imm, Some(8));
    let sender = asked.sender().unwrap();
    assert_eq!(sender.sent_to, b.address().gid);
    let back = DatagramAddress::new(sender.gid, sender.qpn, QKEY);
    assert_eq!(back, a.address());
    let to_a = b.destination(&back).unwrap();
    b.post_send(&to_a, SendRequest::send(b"answer")).unwrap();
    let completions = [here.completion(), here.completion()];
    let answer = completions.iter().find(|c| c.sender().is_some()).unwrap();
    assert_eq!(answer.data().unwrap(), b"answer");
}

#[test]
fn invalid_datagrams_and_destinations_are_errors() {
    let end = End::new();
    let qp = end.datagrams();
    let to = qp.destination(&qp.address()).unwrap();
    let memory = end.pd.register(8, RemoteAccess::all()).unwrap();
    let write = SendRequest::write(b"12345678", &memory.remote());
    assert!(matches!(
        qp.post_send(&to, write),
        Err(PostError::Driver(_))
    ));
    let address = qp.address();
    let without_gid = DatagramAddress::new(Gid::default(), address.qpn, address.qkey);
    assert_eq!(
        qp.destination(&without_gid).unwrap_err().errno(),
        libc::EINVAL
    );
    let not_a_group = qp.attach(qp.address().gid).unwrap_err();
    assert_eq!(not_a_group.errno(), libc::EINVAL);
    // A destination of another protection domain.
    let other = End::new();
    let stranger = other.datagrams();
    let refused = stranger.post_send(&to, SendRequest::send(b"hello"));
    assert!(matches!(refused, Err(PostError::Driver(_))));
}

#[test]
fn a_member_receives_the_datagrams_of_its_group_until_it_leaves() {
    let ends = [End::new(), End::new()];
    let qps = ends.each_ref().map(End::datagrams);
    let group = group("239.47.91.20");
    for (end, qp) in ends.iter().zip(&qps) {
        qp.attach(group).unwrap();
        for _ in 0..2 {
            qp.post_receive(end.receive(8)).unwrap();
        }
    }
    let all = qps[0]
        .destination(&DatagramAddress::group(group, QKEY))
        .unwrap();
    let send = |text: &'static [u8]| {
        let request = SendRequest::send(text).unsignaled();
        qps[0].post_send(&all, request).unwrap();
    };
    send(b"both");
    for end in &ends {
        let received = end.completion();
        assert_eq!(received.data().unwrap(), b"both");
        assert_eq!(received.sender().unwrap().sent_to, group);
    }
    qps[1].detach(group).unwrap();
    send(b"one");
    assert_eq!(ends[0].completion().data().unwrap(), b"one");
    assert!(ends[1].cq.poll().is_none());
}

#[test]
fn a_failed_queue_pair_flushes_posted_requests() {
    let end = End::new();
    let (a, b) = (end.datagrams(), End::new());
    let peer = b.datagrams();
    let to = a.destination(&peer.address()).unwrap();
    let to_a = peer.destination(&a.address()).unwrap();
    let foreign = b.pd.register(8, RemoteAccess::empty()).unwrap();
    // Memory of another protection domain is an error of the post itself.
    let request = SendRequest::send(foreign.slice(..).unwrap());
    assert_eq!(
        a.post_send(&to, request).unwrap_err(),
        PostError::OtherProtectionDomain
    );
    assert_eq!(a.state(), QpState::Rts);
    a.fail().unwrap();
    a.post_send(&to, SendRequest::send(b"late")).unwrap();
    let flushed = end.completion().result.unwrap_err();
    assert_eq!(flushed.status, WcStatus::WrFlushErr);
    peer.post_send(&to_a, SendRequest::send(b"to the dead").unsignaled())
        .unwrap();
    assert_eq!(a.state(), QpState::Err);
}
