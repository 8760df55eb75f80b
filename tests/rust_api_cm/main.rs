//! The connection manager of the safe Rust API: listeners, requests, routes, connections, events,
//! private data, and each error.

mod foreign;
#[path = "../common/own_network.rs"]
mod own_network;
mod services;
#[path = "../common/skip_test.rs"]
mod skip_test;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::thread;
use std::time::Duration;
use urxe::cm::{
    Connection, Error, Event, Listener, Options, Pending, RejectReason, Request, Route,
};
use urxe::{
    CompletionQueue, Context, Mtu, PreparedQueuePair, ProtectionDomain, ReceiveRequest,
    RemoteAccess, SendRequest, WcStatus,
};

/// The time after which a wait counts as hung.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The lengths of private data in a request and in an acceptance.
const PRIVATE_DATA_LEN: (usize, usize) = (56, 196);

fn any_port() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// The protection domain and completion queue of one end.
struct End {
    pd: ProtectionDomain,
    cq: CompletionQueue,
}

impl End {
    fn on(device: &urxe::Device) -> End {
        let context: Context = device.open().unwrap();
        End {
            pd: context.pd(),
            cq: context.completion_queue().unwrap(),
        }
    }

    fn qp(&self) -> PreparedQueuePair {
        self.pd.queue_pair(&self.cq, &self.cq).build().unwrap()
    }
}

fn next(listener: &Listener) -> Request {
    let request = listener.next_timeout(TIMEOUT).unwrap();
    request.expect("no request arrived")
}

fn event(connection: &Connection) -> Event {
    let event = connection.next_timeout(TIMEOUT).unwrap();
    event.expect("no event arrived")
}

/// Connects in a new thread.
fn connecting(
    to: SocketAddr,
    options: Options,
) -> thread::JoinHandle<(End, Result<Connection, Error>)> {
    thread::spawn(move || {
        let route = Route::resolve(to).unwrap();
        let end = End::on(&route.device());
        let qp = end.qp();
        let connection = route.connect(qp, &options);
        (end, connection)
    })
}

/// Returns both ends of a connection.
fn connected() -> [(End, Connection); 2] {
    let listener = Listener::bind(any_port()).unwrap();
    let client = connecting(listener.local_addr(), Options::default());
    let request = next(&listener);
    let server = End::on(&request.device());
    let connection = request.accept(server.qp(), &Options::default()).unwrap();
    let (end, client) = client.join().unwrap();
    [(end, client.unwrap()), (server, connection)]
}

#[test]
fn private_data_and_addresses_reach_the_peer() {
    let listener = Listener::bind(any_port()).unwrap();
    let client = connecting(
        listener.local_addr(),
        Options::with_private_data(&[7; PRIVATE_DATA_LEN.0]),
    );
    let request = next(&listener);
    assert_eq!(request.private_data(), [7; PRIVATE_DATA_LEN.0]);
    assert_eq!(request.local_addr(), Some(listener.local_addr()));
    let peer = request.peer_addr().unwrap();
    let server = End::on(&request.device());
    let options = Options::with_private_data(b"welcome");
    let accepted = request.accept(server.qp(), &options).unwrap();
    let (_end, connection) = client.join().unwrap();
    let connection = connection.unwrap();
    assert_eq!(connection.private_data()[..8], *b"welcome\0");
    assert_eq!(connection.private_data().len(), PRIVATE_DATA_LEN.1);
    assert_eq!(accepted.private_data(), [7; PRIVATE_DATA_LEN.0]);
    assert_eq!(connection.local_addr(), Some(peer));
    assert_eq!(connection.peer_addr(), Some(listener.local_addr()));
    assert_eq!(accepted.peer_addr(), Some(peer));
}

#[test]
fn a_connection_uses_the_smaller_limits_of_both_ends() {
    let listener = Listener::bind(any_port()).unwrap();
    let to = listener.local_addr();
    let client = thread::spawn(move || {
        let route = Route::resolve(to).unwrap();
        let end = End::on(&route.device());
        let qp = end.pd.queue_pair(&end.cq, &end.cq);
        let qp = qp.path_mtu(Mtu::B512).responder_resources(3);
        let mut options = Options::default();
        options.max_rd_atomic = 5;
        let connection = route.connect(qp.build().unwrap(), &options).unwrap();
        (end, connection)
    });
    let request = next(&listener);
    let server = End::on(&request.device());
    let qp = server.pd.queue_pair(&server.cq, &server.cq);
    let qp = qp.responder_resources(4).build().unwrap();
    let memory = server.pd.register(4096, RemoteAccess::READ).unwrap();
    let receive = ReceiveRequest::into(memory.slice(..).unwrap());
    qp.post_receive(receive).unwrap();
    let accepted = request.accept(qp, &Options::default()).unwrap();
    let (end, connection) = client.join().unwrap();

    let (ours, theirs) = (
        connection.queue_pair().attributes(),
        accepted.queue_pair().attributes(),
    );
    assert_eq!((ours.path_mtu, theirs.path_mtu), (Mtu::B512, Mtu::B512));
    assert_eq!((ours.max_rd_atomic, theirs.max_dest_rd_atomic), (4, 4));
    assert_eq!((ours.max_dest_rd_atomic, theirs.max_rd_atomic), (3, 3));

    let qp = connection.queue_pair();
    qp.post_send(SendRequest::send(b"over the connection"))
        .unwrap();
    end.cq.wait().unwrap().result.unwrap();
    assert_eq!(
        server.cq.wait().unwrap().data().unwrap(),
        b"over the connection"
    );
    let copy = end.pd.register(4, RemoteAccess::empty()).unwrap();
    let read = SendRequest::read(copy.slice(..).unwrap(), &memory.remote());
    qp.post_send(read).unwrap();
    assert_eq!(end.cq.wait().unwrap().data().unwrap(), b"over");
}

#[test]
fn both_ends_get_the_events_of_a_disconnection() {
    let [(end, client), (_server, accepted)] = connected();
    let memory = end.pd.register(8, RemoteAccess::empty()).unwrap();
    let receive = ReceiveRequest::into(memory.slice(..).unwrap());
    client.queue_pair().post_receive(receive).unwrap();
    assert!(client.try_next().unwrap().is_none());
    client.disconnect().unwrap();
    let flushed = end.cq.wait().unwrap().result.unwrap_err();
    assert_eq!(flushed.status, WcStatus::WrFlushErr);
    assert_eq!(event(&accepted), Event::Disconnected);
    let state = accepted.queue_pair().state();
    assert_eq!(state, urxe::QpState::Err);
    accepted.disconnect().unwrap();
    assert_eq!(event(&client), Event::Disconnected);
    assert_eq!(event(&client), Event::TimeWaitExit);
    assert_eq!(event(&accepted), Event::TimeWaitExit);
}

#[test]
fn dropping_a_connection_disconnects_it() {
    let [(_end, client), (_server, accepted)] = connected();
    drop(client);
    assert_eq!(event(&accepted), Event::Disconnected);
}

#[test]
fn the_descriptor_is_readable_while_events_are_pending() {
    let readable = |fd: &dyn AsFd, timeout: Duration| {
        let fd = fd.as_fd();
        let timeout = Timespec::try_from(timeout).unwrap();
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)).unwrap() == 1
    };
    let listener = Listener::bind(any_port()).unwrap();
    assert!(!readable(&listener, Duration::ZERO));
    let client = connecting(listener.local_addr(), Options::default());
    assert!(readable(&listener, TIMEOUT));
    let request = listener.try_next().unwrap().unwrap();
    assert!(!readable(&listener, Duration::ZERO));
    assert!(listener.try_next().unwrap().is_none());
    let server = End::on(&request.device());
    let accepted = request.accept(server.qp(), &Options::default()).unwrap();
    drop(client.join().unwrap());
    assert!(readable(&accepted, TIMEOUT));
    assert_eq!(accepted.try_next().unwrap(), Some(Event::Disconnected));
}

#[test]
fn the_client_sets_the_type_of_service_and_each_end_its_ack_timeout() {
    let listener = Listener::bind(any_port()).unwrap();
    let mut options = Options::default();
    options.type_of_service = 0x68;
    options.ack_timeout = Some(18);
    let client = connecting(listener.local_addr(), options);
    let request = next(&listener);
    let server = End::on(&request.device());
    let mut options = Options::default();
    options.ack_timeout = Some(20);
    let accepted = request.accept(server.qp(), &options).unwrap();
    let (_end, connection) = client.join().unwrap();
    let connection = connection.unwrap();
    for (qp, timeout) in [(connection.queue_pair(), 18), (accepted.queue_pair(), 20)] {
        let attributes = qp.attributes();
        assert_eq!(attributes.av.traffic_class, 0x68);
        assert_eq!(attributes.timeout, timeout);
    }
    let route = Route::resolve(listener.local_addr()).unwrap();
    let mut options = Options::default();
    options.ack_timeout = Some(32);
    let error = route.connect(server.qp(), &options).unwrap_err();
    assert_eq!(error.errno(), libc::EINVAL);
}

/// Calls `try_finish` whenever the descriptor is readable, until the connection is established.
fn finish(mut pending: Pending) -> Connection {
    loop {
        match pending.try_finish().unwrap() {
            Some(connection) => {
                assert!(matches!(pending.try_finish(), Err(Error::Finished)));
                return connection;
            }
            None => {
                poll(&mut [PollFd::new(&pending, PollFlags::IN)], None).unwrap();
            }
        }
    }
}

#[test]
fn one_thread_can_establish_both_ends() {
    let listener = Listener::bind(any_port()).unwrap();
    let route = Route::resolve(listener.local_addr()).unwrap();
    let end = End::on(&route.device());
    let mut ours = route
        .start_connecting(end.qp(), &Options::with_private_data(b"hello"))
        .unwrap();
    assert!(
        ours.try_finish().unwrap().is_none(),
        "the request is not accepted yet"
    );
    let request = next(&listener);
    let theirs = request
        .start_accepting(end.qp(), &Options::with_private_data(b"welcome"))
        .unwrap();
    let ours = finish(ours);
    assert!(ours.private_data().starts_with(b"welcome"));
    let theirs = finish(theirs);
    assert!(theirs.private_data().starts_with(b"hello"));
    drop(ours);
    assert_eq!(event(&theirs), Event::Disconnected);
}

#[test]
fn dropping_a_pending_connection_abandons_it() {
    let listener = Listener::bind(any_port()).unwrap();
    let route = Route::resolve(listener.local_addr()).unwrap();
    let end = End::on(&route.device());
    let pending = route
        .start_connecting(end.qp(), &Options::default())
        .unwrap();
    let request = next(&listener);
    drop(pending);
    let accepting = request.start_accepting(end.qp(), &Options::default());
    // The rejection arrives before or after the acceptance.
    if let Ok(accepting) = accepting {
        let error = accepting.finish().unwrap_err();
        assert!(
            matches!(error, Error::Disconnected | Error::Rejected { .. }),
            "{error}"
        );
    }
}

#[test]
fn a_request_is_rejected_explicitly_or_by_dropping_it() {
    let listener = Listener::bind(any_port()).unwrap();
    for word in [Some(&b"no"[..]), None] {
        let client = connecting(listener.local_addr(), Options::default());
        let request = next(&listener);
        match word {
            Some(word) => request.reject(word).unwrap(),
            None => drop(request),
        }
        let (_, rejected) = client.join().unwrap();
        let error = rejected.unwrap_err();
        assert_eq!(error.errno(), libc::ECONNREFUSED);
        let Error::Rejected {
            reason,
            private_data,
        } = error
        else {
            panic!("{error}");
        };
        assert_eq!(reason, RejectReason::CONSUMER);
        let word = word.unwrap_or_default();
        assert_eq!(&private_data[..word.len()], word);
    }
}

#[test]
fn a_connection_to_a_closed_port_is_rejected() {
    let listener = Listener::bind(any_port()).unwrap();
    let address = listener.local_addr();
    drop(listener);
    let (_, rejected) = connecting(address, Options::default()).join().unwrap();
    let Error::Rejected { reason, .. } = rejected.unwrap_err() else {
        panic!("not rejected");
    };
    assert_eq!(reason, RejectReason::INVALID_SERVICE_ID);
}

#[test]
fn accepting_an_abandoned_request_is_an_error_or_a_disconnection() {
    let listener = Listener::bind(any_port()).unwrap();
    let client = connecting(listener.local_addr(), Options::default());
    let request = next(&listener);
    let server = End::on(&request.device());
    // The client drops its connection while the server accepts.
    drop(listener);
    let qp = server.qp();
    let accepting = thread::spawn(move || request.accept(qp, &Options::default()));
    let (_end, connection) = client.join().unwrap();
    drop(connection);
    // The connection was established and then ended, or was never established.
    match accepting.join().unwrap() {
        Ok(connection) => assert_eq!(event(&connection), Event::Disconnected),
        Err(error) => assert!(
            matches!(error, Error::Disconnected | Error::Rejected { .. }),
            "{error}"
        ),
    }
}

#[test]
fn local_errors_are_returned_before_a_request_is_sent() {
    let listener = Listener::bind(any_port()).unwrap();
    let taken = Listener::bind(listener.local_addr()).unwrap_err();
    assert_eq!(taken.errno(), libc::EADDRNOTAVAIL);
    let elsewhere = Listener::bind("192.0.2.1:7").unwrap_err();
    assert_eq!(elsewhere.errno(), libc::EADDRNOTAVAIL);

    let route = Route::resolve(listener.local_addr()).unwrap();
    let end = End::on(&route.device());
    let long = Options::with_private_data(&[0; PRIVATE_DATA_LEN.0 + 1]);
    let error = route.connect(end.qp(), &long).unwrap_err();
    assert_eq!(error.errno(), libc::EINVAL);

    let route = Route::resolve(listener.local_addr()).unwrap();
    let unreliable = end.pd.queue_pair(&end.cq, &end.cq).build_unreliable();
    let error = route.connect(unreliable.unwrap(), &Options::default());
    assert!(matches!(error, Err(Error::NotReliable)));
    assert!(listener.try_next().unwrap().is_none());
}

#[test]
fn the_source_of_a_route_may_be_chosen() {
    let listener = Listener::bind(any_port()).unwrap();
    let source = Listener::bind(any_port()).unwrap();
    let from = source.local_addr();
    let error = Route::resolve_from(from, listener.local_addr()).unwrap_err();
    assert_eq!(error.errno(), libc::EADDRNOTAVAIL);
    drop(source);
    let route = Route::resolve_from(from, listener.local_addr()).unwrap();
    assert_eq!(route.local_addr(), Some(from));
    let first = urxe::devices().unwrap().remove(0);
    assert_eq!(route.device().name(), first.name());
}
