//! A reactor of the program: the futures need no runtime.

use crate::TIMEOUT;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll, Wake, Waker};
use urxe::cm::{Listener, Options, Route};
use urxe::reactor::{Reactor, Readiness};
use urxe::{ErrorKind, RemoteAccess};

/// A descriptor, and the waker of the task that waits for it.
#[derive(Debug)]
struct Source {
    fd: OwnedFd,
    waker: Mutex<Option<Waker>>,
}

#[derive(Debug)]
struct Handle(Arc<Source>);

/// A reactor around poll(2), which one thread calls when its task has nothing to do.
#[derive(Clone, Debug, Default)]
struct PollReactor(Arc<Mutex<Vec<Weak<Source>>>>);

impl Reactor for PollReactor {
    fn watch(&self, fd: OwnedFd) -> io::Result<Box<dyn Readiness>> {
        let waker = Mutex::default();
        let source = Arc::new(Source { fd, waker });
        self.0.lock().unwrap().push(Arc::downgrade(&source));
        Ok(Box::new(Handle(source)))
    }
}

fn is_readable(fds: &mut [PollFd<'_>], timeout: Timespec) -> bool {
    poll(fds, Some(&timeout)).unwrap() > 0
}

impl Readiness for Handle {
    fn poll_readable(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut fds = [PollFd::new(&self.0.fd, PollFlags::IN)];
        if is_readable(&mut fds, Timespec::default()) {
            return Poll::Ready(Ok(()));
        }
        *self.0.waker.lock().unwrap() = Some(context.waker().clone());
        Poll::Pending
    }
}

struct Awake;

impl Wake for Awake {
    fn wake(self: Arc<Self>) {}
}

impl PollReactor {
    fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let waker = Waker::from(Arc::new(Awake));
        let mut future = pin!(future);
        loop {
            if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return value;
            }
            let sources: Vec<_> = self
                .0
                .lock()
                .unwrap()
                .iter()
                .filter_map(Weak::upgrade)
                .collect();
            let mut fds: Vec<_> = sources
                .iter()
                .map(|one| PollFd::new(&one.fd, PollFlags::IN))
                .collect();
            let timeout = Timespec::try_from(TIMEOUT).unwrap();
            assert!(is_readable(&mut fds, timeout), "hung");
            let ready: Vec<_> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            for (source, _) in sources.iter().zip(ready).filter(|(_, ready)| *ready) {
                if let Some(waker) = source.waker.lock().unwrap().take() {
                    waker.wake();
                }
            }
        }
    }
}

#[test]
fn a_program_s_own_reactor_drives_all_futures() {
    let reactor = PollReactor::default();
    reactor.block_on(async {
        let listener = Listener::bind("127.0.0.1:0").unwrap();
        listener.use_reactor(reactor.clone());
        let server = async {
            let request = listener.next_request().await.unwrap();
            let context = request.device().open().unwrap();
            let (pd, cq) = (context.pd(), context.completion_queue().unwrap());
            cq.use_reactor(reactor.clone());
            let qp = pd.queue_pair(&cq, &cq).build().unwrap();
            let pending = request.start_accepting(qp, &Options::default()).unwrap();
            pending.use_reactor(reactor.clone());
            pending.await.unwrap()
        };
        let client = async {
            let route = Route::resolve(listener.local_addr()).unwrap();
            let context = route.device().open().unwrap();
            let (pd, cq) = (context.pd(), context.completion_queue().unwrap());
            cq.use_reactor(reactor.clone());
            let qp = pd.queue_pair(&cq, &cq).build().unwrap();
            let pending = route.start_connecting(qp, &Options::default()).unwrap();
            pending.use_reactor(reactor.clone());
            pending.await.unwrap()
        };
        let (server, client) = tokio::join!(server, client);
        let inbox = server
            .queue_pair()
            .pd()
            .register(8, RemoteAccess::empty())
            .unwrap();
        let outbox = client
            .queue_pair()
            .pd()
            .register(8, RemoteAccess::empty())
            .unwrap();
        for _ in 0..100 {
            let receive = server.queue_pair().receive(inbox.slice(..).unwrap());
            let send = client.queue_pair().send(outbox.slice(..).unwrap());
            let ((received, _), (sent, _)) = tokio::join!(receive, send);
            assert_eq!(received.unwrap().byte_len, 8);
            sent.unwrap();
        }
    });
}

/// A reactor that has shut down.
#[derive(Debug)]
struct Broken;

impl Reactor for Broken {
    fn watch(&self, _: OwnedFd) -> io::Result<Box<dyn Readiness>> {
        Err(io::Error::from_raw_os_error(libc::EMFILE))
    }
}

#[test]
fn the_error_of_a_reactor_is_the_error_of_the_future() {
    let context = urxe::device("urxe_lo").unwrap().open().unwrap();
    let cq = context.completion_queue().unwrap();
    cq.use_reactor(Broken);
    let error = PollReactor::default().block_on(cq.next()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ResourceLimit);
    // Another reactor takes its place.
    cq.use_reactor(PollReactor::default());
    let polled = pin!(cq.next())
        .poll(&mut Context::from_waker(Waker::noop()))
        .is_pending();
    assert!(polled);
}
