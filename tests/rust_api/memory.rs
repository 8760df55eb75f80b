//! The safe Rust API over the loopback interface: memory windows, and regions that are registered
//! anew.

use crate::end::PATIENCE;
use urxe::{
    Completion, CompletionQueue, ConnectOptions, Done, MemoryRegion, MemoryWindow, MoveErrorKind,
    PostError, ProtectionDomain, QueuePair, ReceiveRequest, RemoteAccess, RemoteRegion,
    SendRequest, WcOpcode, WcStatus, WindowType,
};

const NONE: RemoteAccess = RemoteAccess::empty();

/// One end of a connection.
struct End {
    pd: ProtectionDomain,
    cq: CompletionQueue,
    qp: QueuePair,
}

impl End {
    fn completion(&self) -> Completion {
        let completion = self.cq.wait_timeout(PATIENCE).unwrap();
        completion.expect("no completion came")
    }

    fn run(&self, request: SendRequest<'_>) -> Result<Done, WcStatus> {
        self.qp.post_send(request).unwrap();
        let result = self.completion().result;
        result.map_err(|error| error.status)
    }

    /// Writes the byte to the first of a peer's memory.
    fn write(&self, byte: u8, to: &RemoteRegion) -> Result<Done, WcStatus> {
        self.run(SendRequest::write(&[byte], to))
    }

    /// Binds the bytes of the region from `start` to `end`.
    fn bind(
        &self,
        window: &MemoryWindow,
        region: &MemoryRegion,
        start: usize,
        end: usize,
    ) -> RemoteRegion {
        let piece = region.slice(start..end).unwrap();
        let (bind, remote) = window.bind(piece, RemoteAccess::WRITE);
        assert_eq!(self.run(bind).unwrap().opcode, WcOpcode::BindMw);
        remote
    }
}

fn pair() -> (End, End) {
    let end = || {
        let context = urxe::device("urxe_lo").unwrap().open().unwrap();
        let (pd, cq) = (context.pd(), context.completion_queue().unwrap());
        let qp = pd.queue_pair(&cq, &cq).build().unwrap();
        (pd, cq, qp)
    };
    let ((pd_a, cq_a, a), (pd_b, cq_b, b)) = (end(), end());
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    let options = ConnectOptions::default();
    let a = a.connect(&at_b, &options).unwrap();
    let b = b.connect(&at_a, &options).unwrap();
    let a = End {
        pd: pd_a,
        cq: cq_a,
        qp: a,
    };
    (
        a,
        End {
            pd: pd_b,
            cq: cq_b,
            qp: b,
        },
    )
}

#[test]
fn a_peer_reaches_what_the_window_is_bound_to_until_it_is_unbound() {
    for kind in [WindowType::One, WindowType::Two] {
        let (a, b) = pair();
        let region = b.pd.register(100, NONE).unwrap();
        let window = b.pd.window(kind);
        let first = b.bind(&window, &region, 10, 20);
        a.write(1, &first).unwrap();
        assert_eq!(region.to_vec(9..12).unwrap(), [0, 1, 0]);
        b.run(window.unbind()).unwrap();
        let second = b.bind(&window, &region, 50, 60);
        assert_ne!(first.rkey, second.rkey);
        a.write(2, &second).unwrap();
        assert_eq!(region.to_vec(50..51).unwrap(), [2]);
        b.run(window.unbind()).unwrap();
        assert_eq!(a.write(3, &second), Err(WcStatus::RemAccessErr));
    }
}

#[test]
fn binding_and_unbinding_keep_their_order_among_other_work() {
    let (a, b) = pair();
    let region = b.pd.register(100, NONE).unwrap();
    let window = b.pd.window(WindowType::Two);
    let here = a.pd.register(20, RemoteAccess::WRITE).unwrap();
    // The peer is told while the window is bound: the message goes after the bind.
    let (bind, remote) = window.bind(region.slice(..10).unwrap(), RemoteAccess::WRITE);
    let message = remote.to_bytes();
    let tell = SendRequest::write(&message, &here.remote());
    let unbind = window.unbind();
    let requests = [bind, tell, unbind].map(SendRequest::unsignaled);
    b.qp.post_sends(requests).unwrap();
    let (again, second) = window.bind(region.slice(20..).unwrap(), RemoteAccess::WRITE);
    b.run(again).unwrap();
    let mut told = [0; RemoteRegion::BYTES];
    here.read(0, &mut told).unwrap();
    assert_eq!(RemoteRegion::from_bytes(&told), remote);
    a.write(5, &second).unwrap();
    assert_eq!(region.to_vec(20..21).unwrap(), [5]);
    assert_eq!(a.write(5, &remote), Err(WcStatus::RemAccessErr));
}

#[test]
fn a_peer_takes_the_key_back_with_its_last_message() {
    let (a, b) = pair();
    let region = b.pd.register(100, NONE).unwrap();
    let window = b.pd.window(WindowType::Two);
    let remote = b.bind(&window, &region, 0, 100);
    b.qp.post_receive(ReceiveRequest::empty()).unwrap();
    a.run(SendRequest::send_with_invalidate(&[], remote.rkey))
        .unwrap();
    let done = b.completion().result.unwrap();
    assert_eq!(
        (done.opcode, done.invalidated),
        (WcOpcode::Recv, Some(remote.rkey))
    );
    // It can be bound again at once.
    let remote = b.bind(&window, &region, 0, 100);
    a.write(9, &remote).unwrap();
}

#[test]
fn a_window_that_is_bound_or_foreign_is_refused() {
    let (a, b) = pair();
    let region = b.pd.register(100, NONE).unwrap();
    let foreign = a.pd.window(WindowType::Two);
    let (bind, _) = foreign.bind(region.slice(..).unwrap(), RemoteAccess::READ);
    assert_eq!(b.qp.post_send(bind), Err(PostError::OtherProtectionDomain));
    let window = b.pd.window(WindowType::Two);
    let piece = a.pd.register(1, NONE).unwrap().slice(..).unwrap();
    let (bind, _) = window.bind(piece, RemoteAccess::READ);
    assert_eq!(b.qp.post_send(bind), Err(PostError::OtherProtectionDomain));
    let window = b.pd.window(WindowType::Two);
    b.bind(&window, &region, 0, 100);
    let (again, _) = window.bind(region.slice(..).unwrap(), RemoteAccess::READ);
    assert_eq!(b.run(again), Err(WcStatus::MwBindErr));
}

#[test]
fn keys_lead_nowhere_when_window_or_region_is_dropped() {
    let (a, b) = pair();
    let region = b.pd.register(100, NONE).unwrap();
    let window = b.pd.window(WindowType::One);
    let remote = b.bind(&window, &region, 0, 100);
    a.write(1, &remote).unwrap();
    drop(region);
    assert_eq!(a.write(2, &remote), Err(WcStatus::RemAccessErr));

    let (a, b) = pair();
    let region = b.pd.register(100, NONE).unwrap();
    let window = b.pd.window(WindowType::Two);
    let remote = b.bind(&window, &region, 0, 100);
    a.write(1, &remote).unwrap();
    drop(window);
    assert_eq!(a.write(2, &remote), Err(WcStatus::RemAccessErr));
    assert_eq!(region.to_vec(..1).unwrap(), [1]);
}

#[test]
fn access_changes_at_once_and_not_under_a_window() {
    let (a, b) = pair();
    let region = b.pd.register(100, NONE).unwrap();
    region.set_access(RemoteAccess::WRITE).unwrap();
    a.write(1, &region.remote()).unwrap();
    let window = b.pd.window(WindowType::One);
    b.bind(&window, &region, 0, 100);
    assert_eq!(region.set_access(NONE).unwrap_err().errno(), libc::EBUSY);
    drop(window);
    region.set_access(NONE).unwrap();
    assert_eq!(a.write(2, &region.remote()), Err(WcStatus::RemAccessErr));
    assert_eq!(region.to_vec(..1).unwrap(), [1]);
}

#[test]
fn a_region_moves_to_another_domain_when_nothing_uses_it() {
    let (a, b) = pair();
    let region =
        b.pd.context()
            .pd()
            .register(100, RemoteAccess::WRITE)
            .unwrap();
    let piece = region.slice(..1).unwrap();
    let refused = region.move_to(&b.pd).unwrap_err();
    assert!(matches!(refused.source, MoveErrorKind::InUse));
    let region = refused.region;
    drop(piece);
    let before = region.remote();
    let region = region.move_to(&b.pd).unwrap();
    assert_eq!(region.remote(), before);
    a.write(7, &region.remote()).unwrap();
    assert_eq!(region.to_vec(..1).unwrap(), [7]);
}
