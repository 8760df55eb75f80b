//! Real processes, started from this test program, that share an address, some of which die.

use super::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

/// The environment variable that makes a process a child; its value is the address.
const CHILD: &str = "URXE_TEST_CHILD_ADDRESS";

/// The environment variable with the number of a child's receive sockets.
const CHILD_SOCKETS: &str = "URXE_TEST_CHILD_SOCKETS";

/// The test that acts as the child when [`CHILD`] is set.
const ROLE: &str = "tests::processes::process_replies_until_its_input_is_closed";

/// In a packet behind its number: the QPN to reply to, and in a reply the number of datagrams that
/// another process forwarded to the child.
const RETURN_QPN: std::ops::Range<usize> = 16..20;
const FORWARDED: std::ops::Range<usize> = 20..24;
const PACKET: usize = 64;

fn word(bytes: &[u8], at: std::ops::Range<usize>) -> u32 {
    u32::from_be_bytes(bytes[at].try_into().unwrap())
}

#[test]
fn process_replies_until_its_input_is_closed() {
    if let Ok(address) = std::env::var(CHILD) {
        return serve_at(LocalAddress::new(address.parse::<IpAddr>().unwrap(), 1));
    }
    let address = own_address();
    let mut all = [Server::start(address)];
    Client::new(address).round(&mut all, 8);
    all.into_iter().for_each(Server::stop);
}

/// Replies to every packet, until the other end of the standard input is closed.
fn serve_at(address: LocalAddress) {
    let shared = Shared::new(Options::default()).unwrap();
    let endpoint = shared.open(address).unwrap();
    let count = std::env::var(CHILD_SOCKETS).unwrap().parse().unwrap();
    endpoint.add_receive_sockets(count).unwrap();
    let mut receive = RecvBatch::new();
    let mut send = SendBatch::default();
    let mut requests = Vec::new();
    println!("\nslot {}", shared.slot());
    std::io::stdout().flush().unwrap();
    let stdin = std::io::stdin();
    loop {
        let mut fds = vec![
            PollFd::new(&stdin, PollFlags::IN),
            PollFd::from_borrowed_fd(endpoint.service_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(shared.fd(), PollFlags::IN),
        ];
        let receivers = (0..count).filter_map(|number| endpoint.fd_of(number));
        fds.extend(receivers.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        let pause = endpoint.next_deadline() - now();
        let timeout = Timespec::try_from(pause.min(Duration::from_secs(60))).unwrap();
        poll(&mut fds, Some(&timeout)).unwrap();
        if !fds[0].revents().is_empty() {
            return endpoint.leave();
        }
        let mut take = |d: &Datagram<'_>| {
            if is_for(&endpoint, d) {
                let return_qpn = Qpn::new(word(d.bytes, RETURN_QPN));
                requests.push((d.src.ip(), return_qpn, number_of(d.bytes)));
            }
        };
        for number in 0..count {
            while endpoint.fill(number, &mut receive).unwrap() > 0 {
                endpoint.deliver(number, &mut receive, &mut take);
            }
        }
        while shared.recv_forwarded(&mut receive, &mut take).unwrap() > 0 {}
        endpoint.service(&mut receive, &mut take).unwrap();
        let forwarded = shared.counters().forwarded_in.get() as u32;
        for (peer, qpn, number) in requests.drain(..) {
            let path = endpoint.path(peer, PathOptions::default()).unwrap();
            send.begin(&path);
            let buffer = send.stage(PACKET).unwrap();
            write_packet(buffer, qpn, number);
            buffer[FORWARDED].copy_from_slice(&forwarded.to_be_bytes());
            send.commit();
        }
        send.flush();
    }
}

struct Server {
    process: Child,
    /// Held open so that the child can write for as long as it lives.
    _output: BufReader<ChildStdout>,
    slot: u32,
    sent: u32,
    forwarded: u32,
}

impl Server {
    fn start(address: LocalAddress) -> Server {
        Server::with_sockets(address, 1)
    }

    /// Starts a process with `count` receive sockets.
    fn with_sockets(address: LocalAddress, count: usize) -> Server {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", ROLE])
            .args(["--nocapture", "--test-threads=1"])
            .env(CHILD, address.ip().to_string())
            .env(CHILD_SOCKETS, count.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let slot = loop {
            let mut line = String::new();
            assert_ne!(
                output.read_line(&mut line).unwrap(),
                0,
                "the child has ended"
            );
            if let Some(slot) = line.trim().strip_prefix("slot ") {
                break slot.parse::<u32>().unwrap();
            }
        };
        Server {
            process,
            _output: output,
            slot,
            sent: 0,
            forwarded: 0,
        }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    fn close_input(&mut self) {
        drop(self.process.stdin.take());
    }

    /// Stops the child until it gets SIGCONT, and waits until all its threads have stopped.
    fn halt(&self) {
        use rustix::process::{Pid, Signal, WaitOptions, waitpid};
        self.signal(Signal::STOP);
        let pid = Pid::from_child(&self.process);
        let (_, status) = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().unwrap();
        assert!(status.stopped(), "{status:?}");
    }

    /// Kills the child with SIGKILL.
    fn kill(mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    fn stop(mut self) {
        self.close_input();
        assert!(self.process.wait().unwrap().success());
    }
}

/// The endpoint that sends the requests, on an address of its own.
struct Client {
    shared: Arc<Shared>,
    endpoint: Endpoint,
    receive: RecvBatch,
    send: SendBatch,
    target: LocalAddress,
    /// The number of the next request. Each has its own.
    next: u32,
}

impl Client {
    fn new(target: LocalAddress) -> Client {
        let shared = Shared::new(Options::default()).unwrap();
        let endpoint = shared.open(own_address()).unwrap();
        Client {
            shared,
            endpoint,
            receive: RecvBatch::new(),
            send: SendBatch::default(),
            target,
            next: 0,
        }
    }

    /// Sends `count` requests to each process. Returns the numbers of the requests, each with the
    /// index of the process that is to reply.
    fn send_requests(&mut self, all: &mut [Server], count: u32) -> Vec<(u32, usize)> {
        let me = Qpn::new(self.shared.qpns().start() + 7);
        let mut open = Vec::new();
        for (server_index, server) in all.iter_mut().enumerate() {
            for i in 0..count {
                // Different flows, which the kernel's hash would distribute.
                let options = PathOptions {
                    flow_key: server_index as u32 * 4 + i % 4,
                    ..PathOptions::default()
                };
                let path = self.endpoint.path(self.target.ip(), options).unwrap();
                self.send.begin(&path);
                let buffer = self.send.stage(PACKET).unwrap();
                let qpn = Qpn::new(server.slot << QPN_BITS | (7 + i));
                write_packet(buffer, qpn, self.next);
                buffer[RETURN_QPN].copy_from_slice(&me.get().to_be_bytes());
                self.send.commit();
                open.push((self.next, server_index));
                self.next += 1;
            }
            server.sent += count;
        }
        let report = self.send.flush();
        assert_eq!(report.lost, 0);
        open
    }

    /// Waits for the replies to all requests. None may be missing.
    fn collect(&mut self, all: &mut [Server], open: Vec<(u32, usize)>) {
        let open = self.collect_for(Duration::from_secs(60), all, open);
        assert!(open.is_empty(), "no answer to {open:?}");
    }

    /// Waits for replies, and returns the requests without one.
    fn collect_for(
        &mut self,
        time: Duration,
        all: &mut [Server],
        mut open: Vec<(u32, usize)>,
    ) -> Vec<(u32, usize)> {
        let start = Instant::now();
        while !open.is_empty() && start.elapsed() < time {
            let mut take = |d: &Datagram<'_>| {
                let number = number_of(d.bytes);
                if is_for(&self.endpoint, d)
                    && let Some(at) = open.iter().position(|(n, _)| *n == number)
                {
                    let (_, server_index) = open.swap_remove(at);
                    all[server_index].forwarded =
                        all[server_index].forwarded.max(word(d.bytes, FORWARDED));
                }
            };
            let mut busy = self.endpoint.recv(&mut self.receive, &mut take).unwrap() > 0;
            busy |= self
                .shared
                .recv_forwarded(&mut self.receive, &mut take)
                .unwrap()
                > 0;
            self.endpoint.service(&mut self.receive, &mut take).unwrap();
            if !busy {
                std::thread::sleep(Duration::from_micros(100));
            }
        }
        open
    }

    /// Waits for a reply from each survivor. The datagrams in the socket buffer of a dead process
    /// are lost, whether they were for it or misdirected, so single requests may stay without a
    /// reply.
    fn collect_survivors(&mut self, all: &mut [Server], open: Vec<(u32, usize)>) {
        let start = Instant::now();
        let mut received = vec![false; all.len()];
        while received.iter().any(|h| !h) {
            assert!(start.elapsed() < Duration::from_secs(60), "no survivor");
            let mut take = |d: &Datagram<'_>| {
                let number = number_of(d.bytes);
                if is_for(&self.endpoint, d)
                    && let Some((_, server_index)) = open.iter().find(|(n, _)| *n == number)
                {
                    received[*server_index] = true;
                }
            };
            self.endpoint.recv(&mut self.receive, &mut take).unwrap();
            self.shared
                .recv_forwarded(&mut self.receive, &mut take)
                .unwrap();
            self.endpoint.service(&mut self.receive, &mut take).unwrap();
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    fn round(&mut self, all: &mut [Server], count: u32) {
        let open = self.send_requests(all, count);
        self.collect(all, open);
    }

    /// Sends requests until no datagram is forwarded any more.
    fn send_until_steered(&mut self, all: &mut [Server]) {
        let start = Instant::now();
        loop {
            let before: u32 = all.iter().map(|a| a.forwarded).sum();
            for _ in 0..20 {
                self.round(all, 8);
            }
            let after: u32 = all.iter().map(|a| a.forwarded).sum();
            if after == before {
                return;
            }
            assert!(
                start.elapsed() < Duration::from_secs(60),
                "datagrams are still forwarded"
            );
        }
    }
}

#[test]
fn killed_processes_do_not_disturb_the_others() {
    let address = own_address();
    let mut client = Client::new(address);
    let sockets = [1, 4, 1, 2, 1, 16, 8, 1];
    let start = |count| Server::with_sockets(address, count);
    let mut all: Vec<Server> = sockets.into_iter().map(start).collect();
    client.round(&mut all, 8);
    client.send_until_steered(&mut all);

    for victims in [[0, 3, 5], [4, 2, 1]] {
        // Questions are in flight to all processes while some die.
        let mut open = client.send_requests(&mut all, 8);
        for at in victims {
            all.remove(at).kill();
            open.retain(|(_, server_index)| *server_index != at);
            // The indices of the later processes shift by one.
            for (_, server_index) in &mut open {
                if *server_index > at {
                    *server_index -= 1;
                }
            }
        }
        client.collect_survivors(&mut all, open);
        client.round(&mut all, 8);
        // New processes take the free slots, and are used at once.
        for count in [1, 2, 4] {
            let new = start(count);
            assert!(all.iter().all(|old| old.slot != new.slot));
            all.push(new);
            client.round(&mut all, 8);
        }
        client.send_until_steered(&mut all);
    }
    for server in all {
        server.stop();
    }
}

#[test]
fn ending_processes_lose_no_datagrams_of_the_others() {
    let address = own_address();
    let mut client = Client::new(address);
    let sockets = [1, 4, 1, 1, 2, 1].into_iter();
    let mut all: Vec<Server> = sockets
        .map(|count| Server::with_sockets(address, count))
        .collect();
    client.send_until_steered(&mut all);
    while all.len() > 2 {
        // Two end at the same time, while the others receive requests.
        let mut ending = [all.remove(0), all.remove(1)];
        ending.iter_mut().for_each(Server::close_input);
        let mut open = Vec::new();
        let mut lives = |server: &mut Server| server.process.try_wait().unwrap().is_none();
        while ending.iter_mut().any(&mut lives) {
            open.extend(client.send_requests(&mut all, 4));
            open = client.collect_for(Duration::from_millis(2), &mut all, open);
        }
        client.collect(&mut all, open);
        client.round(&mut all, 8);
        ending.into_iter().for_each(Server::stop);
    }
    all.into_iter().for_each(Server::stop);
}

#[test]
fn stopped_process_does_not_delay_the_others_and_continues() {
    stop_a_process(1);
}

/// A process that joins does not learn from the stopped one how many sockets that has.
#[test]
fn stopped_process_with_many_sockets_does_not_delay_the_others() {
    stop_a_process(MAX_RECEIVE_SOCKETS);
}

/// Stops a process with this number of sockets, while others end and start.
fn stop_a_process(sockets: usize) {
    use rustix::process::Signal;
    let address = own_address();
    let mut client = Client::new(address);
    let mut all: Vec<Server> = [sockets, 1, 1]
        .map(|count| Server::with_sockets(address, count))
        .into();
    client.send_until_steered(&mut all);
    all[0].halt();
    // Meanwhile the socket indices change: one process ends, one starts.
    all.remove(1).kill();
    let open = client.send_requests(&mut all[..1], 8);
    all.push(Server::start(address));
    // Until the program includes the new process, the kernel may give its datagrams to the stopped
    // one, which does not read them. The transport would retransmit them.
    let start = Instant::now();
    loop {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "the processes are delayed"
        );
        let again = client.send_requests(&mut all[1..], 8);
        let time = Duration::from_millis(20);
        if client.collect_for(time, &mut all[1..], again).is_empty() {
            break;
        }
    }
    for _ in 0..20 {
        client.round(&mut all[1..], 8);
    }
    all[0].signal(Signal::CONT);
    client.collect(&mut all[..1], open);
    client.send_until_steered(&mut all);
    for server in all {
        server.stop();
    }
}
