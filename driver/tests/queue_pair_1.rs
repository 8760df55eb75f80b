//! Queue pair 1: connections over real sockets, within this process and with child processes of
//! this test program.

#[path = "../../tests/common/own_network.rs"]
mod own_network;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;
use urxe_driver::gsi::{Gsi, Handler};
use urxe_driver::path;
use urxe_net::LocalAddress;
use urxe_proto::cm::wire::{
    Ece, Info, PrivateData, RejectReason, ServiceId, SidrStatus, Transport,
};
use urxe_proto::cm::{
    Accept, Address, Awaited, CommId, Connect, Event, ListenAt, Resolve, SidrAnswer, State,
};
use urxe_proto::ids::{Gid, QKey, Qpn};
use urxe_proto::mtu::Mtu;
use urxe_proto::psn::Psn;

/// Timeout of each wait.
const LIMIT: Duration = Duration::from_secs(60);

/// A handler that forwards events to a channel.
#[derive(Debug)]
struct Notes(Mutex<mpsc::Sender<Event>>);

impl Handler for Notes {
    fn handle(&self, _gsi: &Gsi, event: Event) {
        // The receiver may have been dropped.
        let _ = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .send(event);
    }
}

fn notes() -> (Arc<dyn Handler>, mpsc::Receiver<Event>) {
    let (sender, receiver) = mpsc::channel();
    (Arc::new(Notes(Mutex::new(sender))), receiver)
}

fn gsi() -> &'static Gsi {
    path::get().gsi().unwrap()
}

/// Returns a number that is unique among all processes of these tests.
fn number() -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let low = NEXT.fetch_add(1, Ordering::Relaxed) & 0xfff;
    std::process::id() << 12 | low
}

/// Returns a loopback address that no other test uses.
fn address() -> LocalAddress {
    let [_, a, b, c] = number().to_be_bytes();
    LocalAddress::new(Ipv4Addr::new(127, 64 | a, b, c).into(), 1)
}

fn service() -> ServiceId {
    ServiceId(number().into())
}

fn gid(address: LocalAddress) -> Gid {
    Gid::from_ip(address.ip())
}

/// Returns the path from an address to itself.
fn way(local: LocalAddress) -> Address {
    Address {
        local: gid(local),
        remote: gid(local),
        remote_qpn: Qpn::GSI,
        traffic_class: 0,
    }
}

fn wanted(local: LocalAddress, service: ServiceId) -> Connect {
    Connect {
        address: way(local),
        service,
        ca_guid: 1,
        transport: Transport::Rc,
        qpn: Qpn::new(number()),
        ece: Ece::default(),
        starting_psn: Psn::new(number()),
        responder_resources: 1,
        initiator_depth: 1,
        flow_control: true,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: false,
        path_mtu: Mtu::B1024,
        packet_rate: 7,
        flow_label: 0,
        hop_limit: 64,
        sl: 0,
        packet_life_time: 4,
        ack_delay: 4,
        // 268 ms: packets are lost only to a process that has just been killed.
        remote_response_timeout: 16,
        local_response_timeout: 16,
        max_cm_retries: 15,
        private_data: PrivateData::new(b"please").unwrap(),
    }
}

fn acceptance() -> Accept {
    Accept {
        ca_guid: 1,
        qpn: Qpn::new(number()),
        ece: Ece::default(),
        starting_psn: Psn::new(number()),
        responder_resources: 1,
        initiator_depth: 1,
        ack_delay: 4,
        flow_control: true,
        rnr_retry_count: 7,
        srq: false,
        private_data: PrivateData::new(b"welcome").unwrap(),
    }
}

#[track_caller]
fn next(events: &mpsc::Receiver<Event>) -> Event {
    events.recv_timeout(LIMIT).expect("an event")
}

/// A handler that reports an event and then panics.
#[derive(Debug)]
struct Panics(Mutex<mpsc::Sender<()>>);

impl Handler for Panics {
    fn handle(&self, _gsi: &Gsi, _event: Event) {
        let events = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        events.send(()).unwrap();
        // Unwinds as a panic does, but prints no message, which is slow.
        std::panic::resume_unwind(Box::new("as this test has it"));
    }
}

#[test]
fn a_panicking_handler_does_not_stop_other_events() {
    let (gsi, address) = (gsi(), address());
    let at = [ListenAt::One(gid(address))];
    let (sender, events) = mpsc::channel();
    let panics = Arc::new(Panics(Mutex::new(sender)));
    let (bad, good) = (service(), service());
    let _bad = gsi.listen(bad, &at, [address], 8, panics).unwrap();
    let (handler, requests) = notes();
    let _good = gsi.listen(good, &at, [address], 8, handler).unwrap();
    for service in [bad, good] {
        let (handler, _events) = notes();
        gsi.connect(address, &wanted(address, service), handler)
            .unwrap();
        if service == bad {
            events.recv_timeout(LIMIT).expect("no first event");
        }
    }
    assert!(matches!(next(&requests), Event::Request { .. }));
}

#[test]
fn a_process_connects_to_itself_and_disconnects() {
    let (gsi, address, service) = (gsi(), address(), service());
    let (handler, requests) = notes();
    let at = [ListenAt::One(gid(address))];
    let listener = gsi.listen(service, &at, [address], 8, handler).unwrap();
    let (handler, client_events) = notes();
    let client = gsi.connect(address, &wanted(address, service), handler);
    let client = client.unwrap();
    let Event::Request {
        id: server, req, ..
    } = next(&requests)
    else {
        panic!("no request");
    };
    assert_eq!(req.private_data[..7], *b"please\0");
    let (handler, server_events) = notes();
    gsi.adopt(server, handler).unwrap();
    gsi.accept(server, &acceptance()).unwrap();
    assert!(matches!(next(&client_events), Event::Reply { .. }));
    gsi.ready(client, &PrivateData::default()).unwrap();
    assert!(matches!(next(&server_events), Event::Ready { .. }));
    let mine = gsi.parameters(client).unwrap();
    let theirs = gsi.parameters(server).unwrap();
    assert_eq!(mine.remote_qpn, theirs.local_qpn);
    assert_eq!(mine.sq_psn, theirs.rq_psn);
    gsi.disconnect(client, &PrivateData::default()).unwrap();
    let event = next(&server_events);
    assert!(matches!(event, Event::DisconnectRequest { .. }));
    gsi.disconnect(server, &PrivateData::default()).unwrap();
    assert!(matches!(next(&client_events), Event::Disconnected { .. }));
    assert!(matches!(next(&client_events), Event::TimeWaitExit { .. }));
    assert!(matches!(next(&server_events), Event::TimeWaitExit { .. }));
    assert_eq!(gsi.state(client), State::Idle);
    assert_eq!(gsi.state(server), State::Idle);
    // The handlers of ended connections have been dropped.
    assert!(client_events.recv_timeout(LIMIT).is_err());
    assert!(server_events.recv_timeout(LIMIT).is_err());
    drop(listener);
    assert!(requests.recv_timeout(LIMIT).is_err());
}

#[test]
fn a_request_without_a_listener_is_rejected() {
    let (gsi, address) = (gsi(), address());
    let (handler, events) = notes();
    let wanted = wanted(address, service());
    gsi.connect(address, &wanted, handler).unwrap();
    let Event::Rejected { reason, last, .. } = next(&events) else {
        panic!("not rejected");
    };
    assert_eq!((reason, last), (RejectReason::INVALID_SERVICE_ID, true));
}

#[test]
fn a_request_waits_250_ms_for_a_listener() {
    let (gsi, address) = (gsi(), address());
    // Up to 20 attempts, since a busy machine may not schedule the test within the wait.
    for _ in 0..20 {
        let service = service();
        let (handler, _events) = notes();
        let wanted = wanted(address, service);
        gsi.connect(address, &wanted, handler).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let (handler, requests) = notes();
        let at = [ListenAt::AllV4];
        let _listener = gsi.listen(service, &at, [address], 8, handler).unwrap();
        if let Ok(event) = requests.recv_timeout(Duration::from_secs(1)) {
            assert!(matches!(event, Event::Request { .. }));
            return;
        }
    }
    panic!("no request was received");
}

#[test]
fn a_request_to_a_missing_peer_is_unreachable() {
    let (gsi, address) = (gsi(), address());
    let (handler, events) = notes();
    let no_host = Gid::from_ip([127, 78, 0, 1].into());
    let wanted = Connect {
        address: Address {
            remote: no_host,
            ..way(address)
        },
        remote_response_timeout: 8,
        max_cm_retries: 2,
        ..wanted(address, service())
    };
    gsi.connect(address, &wanted, handler).unwrap();
    let event = next(&events);
    let awaited = Awaited::Rep;
    assert!(matches!(event, Event::TimedOut { awaited: a, .. } if a == awaited));
}

#[test]
fn a_datagram_service_is_resolved() {
    let (gsi, address, service) = (gsi(), address(), service());
    let (handler, requests) = notes();
    let at = [ListenAt::AllV4];
    let _listener = gsi.listen(service, &at, [address], 8, handler).unwrap();
    let (handler, events) = notes();
    let wanted = Resolve {
        address: way(address),
        service,
        response_timeout: 16,
        max_retries: 15,
        private_data: PrivateData::default(),
    };
    gsi.resolve(address, &wanted, handler).unwrap();
    let Event::ResolutionRequest { id, .. } = next(&requests) else {
        panic!("no request");
    };
    let answer = SidrAnswer {
        status: SidrStatus::VALID,
        info: Info::default(),
        qpn: Qpn::new(0x1234),
        qkey: QKey(5),
        private_data: PrivateData::default(),
    };
    gsi.answer(id, &answer).unwrap();
    let Event::Resolved { rep, .. } = next(&events) else {
        panic!("not resolved");
    };
    assert_eq!((rep.qpn, rep.qkey), (Qpn::new(0x1234), QKey(5)));
}

#[test]
fn a_service_has_one_listener_on_a_host() {
    let (gsi, address, service) = (gsi(), address(), service());
    let at = [ListenAt::AllV4, ListenAt::AllV6];
    let listener = gsi.listen(service, &at, [address], 8, notes().0).unwrap();
    let again = gsi.listen(service, &at[1..], [address], 8, notes().0);
    assert_eq!(again.unwrap_err().errno(), libc::EADDRINUSE);
    drop(listener);
    let server = Server::start(address);
    let again = gsi.listen(server.service, &at, [address], 8, notes().0);
    assert!(again.is_ok(), "one address, and all others");
    let one = [ListenAt::One(gid(address))];
    let again = gsi.listen(server.service, &one, [address], 8, notes().0);
    assert_eq!(again.unwrap_err().errno(), libc::EADDRINUSE);
}

/// The environment variable with the address and the service of a child process.
const CHILD: &str = "URXE_TEST_CM_CHILD";

/// The test that acts as a child process when `CHILD` is set.
const ROLE: &str = "process_exit_disconnects_its_connections";

/// A handler that accepts every connection, and confirms every disconnection.
#[derive(Debug)]
struct AcceptAll;

impl Handler for AcceptAll {
    fn handle(&self, gsi: &Gsi, event: Event) {
        match event {
            Event::Request { id, .. } => {
                // The client may have given up already.
                let _ = gsi.adopt(id, Arc::new(AcceptAll));
                let _ = gsi.accept(id, &acceptance());
            }
            Event::DisconnectRequest { id, .. } => {
                gsi.disconnect(id, &PrivateData::default()).unwrap();
            }
            _ => {}
        }
    }
}

/// Listens until the standard input is closed.
fn listen_as(argument: &str) {
    let (address, service) = argument.split_once(' ').unwrap();
    let address = LocalAddress::new(address.parse::<IpAddr>().unwrap(), 1);
    let service = ServiceId(service.parse().unwrap());
    let at = [ListenAt::One(gid(address))];
    let listener = gsi().listen(service, &at, [address], 8, Arc::new(AcceptAll));
    let _listener = listener.unwrap();
    println!("\nlistening");
    std::io::stdout().flush().unwrap();
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// A child process that listens.
struct Server {
    process: Child,
    /// Open as long as the child is to live.
    input: Option<ChildStdin>,
    /// Open so that the child can write as long as it lives.
    _output: BufReader<ChildStdout>,
    service: ServiceId,
}

impl Server {
    fn start(address: LocalAddress) -> Server {
        let service = service();
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", ROLE])
            .args(["--nocapture", "--test-threads=1"])
            .env(CHILD, format!("{} {}", address.ip(), service.0))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let mut lines = output.by_ref().lines().map_while(Result::ok);
        assert!(lines.any(|line| line == "listening"), "the child is gone");
        let input = process.stdin.take();
        Server {
            process,
            input,
            _output: output,
            service,
        }
    }

    /// Kills the process with SIGKILL.
    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Lets the process exit by itself.
    fn stop(&mut self) {
        self.input = None;
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Connects to a child process.
#[track_caller]
fn connected(address: LocalAddress, server: &Server) -> (CommId, mpsc::Receiver<Event>) {
    let (handler, events) = notes();
    let wanted = wanted(address, server.service);
    let id = gsi().connect(address, &wanted, handler).unwrap();
    let event = next(&events);
    assert!(matches!(event, Event::Reply { .. }), "{event:?}");
    gsi().ready(id, &PrivateData::default()).unwrap();
    (id, events)
}

/// The clients exceed the backlog, and what the socket holds at once.
#[test]
fn a_listener_serves_500_simultaneous_clients() {
    let (gsi, address, service) = (gsi(), address(), service());
    let at = [ListenAt::One(gid(address))];
    let willing = Arc::new(AcceptAll);
    let _listener = gsi.listen(service, &at, [address], 64, willing).unwrap();
    let (handler, events) = notes();
    let clients: Vec<_> = (0..500)
        .map(|_| {
            let handler = Arc::clone(&handler);
            // Dropped requests are repeated after a second, up to 15 times; a busy machine needs
            // that.
            let wanted = Connect {
                remote_response_timeout: 18,
                local_response_timeout: 18,
                ..wanted(address, service)
            };
            gsi.connect(address, &wanted, handler).unwrap()
        })
        .collect();
    let mut served = std::collections::BTreeSet::new();
    while served.len() < clients.len() {
        match next(&events) {
            Event::Reply { id, .. } => {
                gsi.ready(id, &PrivateData::default()).unwrap();
                assert!(served.insert(id));
            }
            other => panic!("{other:?}"),
        }
    }
    for id in clients {
        gsi.abandon(id);
    }
}

/// Connections succeed whichever process owns queue pair 1.
#[test]
fn processes_that_share_an_address_find_each_other_s_listeners() {
    let address = address();
    let servers: Vec<_> = (0..3).map(|_| Server::start(address)).collect();
    for server in servers.iter().chain(&servers) {
        let (id, events) = connected(address, server);
        gsi().disconnect(id, &PrivateData::default()).unwrap();
        assert!(matches!(next(&events), Event::Disconnected { .. }));
    }
}

#[test]
fn same_host_peers_answer_for_a_killed_process() {
    let address = address();
    let mut servers: Vec<_> = (0..4).map(|_| Server::start(address)).collect();
    // A process of another test may take the slot of a killed one, and does not answer for it.
    while !answered_for(address, servers.remove(0)) {
        assert!(servers.len() > 1, "no server answers");
    }
    connected(address, &servers[0]);
}

/// Kills a process with an open connection. Returns whether another process answered for it.
fn answered_for(address: LocalAddress, mut server: Server) -> bool {
    let (id, events) = connected(address, &server);
    server.kill();
    gsi().disconnect(id, &PrivateData::default()).unwrap();
    let answered = match next(&events) {
        Event::Disconnected { .. } => true,
        Event::TimedOut {
            awaited: Awaited::Drep,
            ..
        } => false,
        other => panic!("{other:?}"),
    };
    // The listener ended with its process.
    let (handler, events) = notes();
    let wanted = wanted(address, server.service);
    gsi().connect(address, &wanted, handler).unwrap();
    let event = next(&events);
    let rejected = matches!(event, Event::Rejected { reason, .. }
        if reason == RejectReason::INVALID_SERVICE_ID);
    assert!(rejected, "{event:?}");
    answered
}

#[test]
fn process_exit_disconnects_its_connections() {
    if let Ok(argument) = std::env::var(CHILD) {
        return listen_as(&argument);
    }
    let address = address();
    let mut server = Server::start(address);
    let (_, events) = connected(address, &server);
    server.stop();
    // The RTU may not have arrived before the process ended; then the peer rejects.
    let event = next(&events);
    let is_reported = matches!(
        event,
        Event::DisconnectRequest { .. } | Event::Rejected { .. }
    );
    assert!(is_reported, "{event:?}");
}
