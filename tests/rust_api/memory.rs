//! Memory windows, and changes of regions: their access rights and protection domain.

use crate::end::TIMEOUT;
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
        let completion = self.cq.wait_timeout(TIMEOUT).unwrap();
        completion.expect("no completion arrived")
    }

    fn run(&self, request: SendRequest<'_>) -> Result<Done, WcStatus> {
        self.qp.post_send(request).unwrap();
        let result = self.completion().result;
        result.map_err(|error| error.status)
    }

    /// Writes one byte to the start of the peer's memory.
    fn write(&self, byte: u8, to: &RemoteRegion) -> Result<Done, WcStatus> {
        self.run(SendRequest::write(&[byte], to))
    }

    /// Binds the bytes `start..end` of the region.
    fn bind(
        &self,
        window: &MemoryWindow,
        region: &MemoryRegion,
        start: usize,
        end: usize,
    ) -> RemoteRegion {
        let slice = region.slice(start..end).unwrap();
        let (bind, remote) = window.bind(slice, RemoteAccess::WRITE);
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
fn a_window_gives_access_to_its_bytes_until_it_is_unbound() {
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
fn bind_and_invalidate_execute_in_order_with_other_requests() {
    let (a, b) = pair();
    let region = b.pd.register(100, NONE).unwrap();
    let window = b.pd.window(WindowType::Two);
    let here = a.pd.register(20, RemoteAccess::WRITE).unwrap();
    // The description is written to the peer between the bind and the invalidation.
    let (bind, remote) = window.bind(region.slice(..10).unwrap(), RemoteAccess::WRITE);
    let message = remote.to_bytes();
    let description = SendRequest::write(&message, &here.remote());
    let unbind = window.unbind();
    let requests = [bind, description, unbind].map(SendRequest::unsignaled);
    b.qp.post_sends(requests).unwrap();
    let (again, second) = window.bind(region.slice(20..).unwrap(), RemoteAccess::WRITE);
    b.run(again).unwrap();
    let mut written = [0; RemoteRegion::BYTES];
    here.read(0, &mut written).unwrap();
    assert_eq!(RemoteRegion::from_bytes(&written), remote);
    a.write(5, &second).unwrap();
    assert_eq!(region.to_vec(20..21).unwrap(), [5]);
    assert_eq!(a.write(5, &remote), Err(WcStatus::RemAccessErr));
}

#[test]
fn send_with_invalidate_invalidates_the_key() {
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
    // The window is unbound, so it can be bound again.
    let remote = b.bind(&window, &region, 0, 100);
    a.write(9, &remote).unwrap();
}

#[test]
fn binding_a_bound_window_or_one_of_another_domain_is_an_error() {
    let (a, b) = pair();
    let region = b.pd.register(100, NONE).unwrap();
    let foreign = a.pd.window(WindowType::Two);
    let (bind, _) = foreign.bind(region.slice(..).unwrap(), RemoteAccess::READ);
    assert_eq!(b.qp.post_send(bind), Err(PostError::OtherProtectionDomain));
    let window = b.pd.window(WindowType::Two);
    let slice = a.pd.register(1, NONE).unwrap().slice(..).unwrap();
    let (bind, _) = window.bind(slice, RemoteAccess::READ);
    assert_eq!(b.qp.post_send(bind), Err(PostError::OtherProtectionDomain));
    let window = b.pd.window(WindowType::Two);
    b.bind(&window, &region, 0, 100);
    let (again, _) = window.bind(region.slice(..).unwrap(), RemoteAccess::READ);
    assert_eq!(b.run(again), Err(WcStatus::MwBindErr));
}

#[test]
fn dropping_the_window_or_region_invalidates_the_key() {
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
fn set_access_is_effective_at_once_and_fails_while_a_window_is_bound() {
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
fn a_region_moves_to_another_domain_only_when_unused() {
    let (a, b) = pair();
    let region =
        b.pd.context()
            .pd()
            .register(100, RemoteAccess::WRITE)
            .unwrap();
    let slice = region.slice(..1).unwrap();
    let error = region.move_to(&b.pd).unwrap_err();
    assert!(matches!(error.source, MoveErrorKind::InUse));
    let region = error.region;
    drop(slice);
    let before = region.remote();
    let region = region.move_to(&b.pd).unwrap();
    assert_eq!(region.remote(), before);
    a.write(7, &region.remote()).unwrap();
    assert_eq!(region.to_vec(..1).unwrap(), [7]);
}
