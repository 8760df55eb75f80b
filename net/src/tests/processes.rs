//! Real processes, started from this test program, that share an address, some of which die.

use super::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

/// The environment variable that makes a process a child; its value is the address.
const CHILD: &str = "URXE_TEST_CHILD_ADDRESS";

/// The test that acts as the child when [`CHILD`] is set.
const ROLE: &str = "tests::processes::a_process_answers_until_nobody_holds_its_input";

/// In a packet behind its number: the QPN to reply to, and in a reply the number of datagrams that
/// another process forwarded to the child.
const RETURN_QPN: std::ops::Range<usize> = 16..20;
const DETOURS: std::ops::Range<usize> = 20..24;
const PACKET: usize = 64;

fn word(bytes: &[u8], at: std::ops::Range<usize>) -> u32 {
    u32::from_be_bytes(bytes[at].try_into().unwrap())
}

#[test]
fn a_process_answers_until_nobody_holds_its_input() {
    if let Ok(address) = std::env::var(CHILD) {
        return answer_at(LocalAddress::new(address.parse::<IpAddr>().unwrap(), 1));
    }
    let address = own_address();
    let mut all = [Answerer::start(address)];
    Asker::new(address).round(&mut all, 8);
    all.into_iter().for_each(Answerer::stop);
}

/// Replies to every packet, until the other end of the standard input is closed.
fn answer_at(address: LocalAddress) {
    let shared = Shared::new(Options::default()).unwrap();
    let endpoint = shared.open(address).unwrap();
    let mut receive = RecvBatch::new();
    let mut send = SendBatch::default();
    let mut questions = Vec::new();
    println!("\nslot {}", shared.slot());
    std::io::stdout().flush().unwrap();
    let stdin = std::io::stdin();
    loop {
        let mut fds = [
            PollFd::new(&stdin, PollFlags::IN),
            PollFd::from_borrowed_fd(endpoint.fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(endpoint.service_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(shared.fd(), PollFlags::IN),
        ];
        let pause = endpoint.next_deadline() - now();
        let timeout = Timespec::try_from(pause.min(Duration::from_secs(60))).unwrap();
        poll(&mut fds, Some(&timeout)).unwrap();
        if !fds[0].revents().is_empty() {
            return endpoint.leave();
        }
        let mut take = |d: &Datagram<'_>| {
            if is_for(&endpoint, d) {
                let return_qpn = Qpn::new(word(d.bytes, RETURN_QPN));
                questions.push((d.src.ip(), return_qpn, number_of(d.bytes)));
            }
        };
        while endpoint.recv(&mut receive, &mut take).unwrap() > 0 {}
        while shared.recv_forwarded(&mut receive, &mut take).unwrap() > 0 {}
        endpoint.service(&mut receive, &mut take).unwrap();
        let detours = shared.counters().forwarded_in.get() as u32;
        for (peer, qpn, number) in questions.drain(..) {
            let path = endpoint.path(peer, PathOptions::default()).unwrap();
            send.begin(&path);
            let room = send.stage(PACKET).unwrap();
            write_packet(room, qpn, number);
            room[DETOURS].copy_from_slice(&detours.to_be_bytes());
            send.commit();
        }
        send.flush();
    }
}

struct Answerer {
    process: Child,
    /// Held open so that the child can write for as long as it lives.
    _output: BufReader<ChildStdout>,
    qpn: Qpn,
    asked: u32,
    detours: u32,
}

impl Answerer {
    fn start(address: LocalAddress) -> Answerer {
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", ROLE])
            .args(["--nocapture", "--test-threads=1"])
            .env(CHILD, address.ip().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let slot = loop {
            let mut line = String::new();
            assert_ne!(output.read_line(&mut line).unwrap(), 0, "the child is gone");
            if let Some(slot) = line.trim().strip_prefix("slot ") {
                break slot.parse::<u32>().unwrap();
            }
        };
        Answerer {
            process,
            _output: output,
            qpn: Qpn::new(slot << QPN_BITS | 7),
            asked: 0,
            detours: 0,
        }
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    fn tell_to_stop(&mut self) {
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
        self.tell_to_stop();
        assert!(self.process.wait().unwrap().success());
    }
}

/// The endpoint that sends the questions, on an address of its own.
struct Asker {
    shared: Arc<Shared>,
    endpoint: Endpoint,
    receive: RecvBatch,
    send: SendBatch,
    target: LocalAddress,
    /// The number of the next question. Each has its own.
    next: u32,
}

impl Asker {
    fn new(target: LocalAddress) -> Asker {
        let shared = Shared::new(Options::default()).unwrap();
        let endpoint = shared.open(own_address()).unwrap();
        Asker {
            shared,
            endpoint,
            receive: RecvBatch::new(),
            send: SendBatch::default(),
            target,
            next: 0,
        }
    }

    /// Sends `count` questions to each process. Returns the numbers of the questions, each with the
    /// index of the process that is to reply.
    fn ask(&mut self, all: &mut [Answerer], count: u32) -> Vec<(u32, usize)> {
        let me = Qpn::new(self.shared.qpns().start() + 7);
        let mut open = Vec::new();
        for (who, answerer) in all.iter_mut().enumerate() {
            for i in 0..count {
                // Different flows, which the kernel's hash would distribute.
                let options = PathOptions {
                    flow_key: who as u32 * 4 + i % 4,
                    ..PathOptions::default()
                };
                let path = self.endpoint.path(self.target.ip(), options).unwrap();
                self.send.begin(&path);
                let room = self.send.stage(PACKET).unwrap();
                write_packet(room, answerer.qpn, self.next);
                room[RETURN_QPN].copy_from_slice(&me.get().to_be_bytes());
                self.send.commit();
                open.push((self.next, who));
                self.next += 1;
            }
            answerer.asked += count;
        }
        let report = self.send.flush();
        assert_eq!(report.lost, 0);
        open
    }

    /// Waits for the replies to all questions. None may be missing.
    fn hear(&mut self, all: &mut [Answerer], open: Vec<(u32, usize)>) {
        let open = self.hear_for(Duration::from_secs(10), all, open);
        assert!(open.is_empty(), "no answer to {open:?}");
    }

    /// Waits for replies, and returns the questions without one.
    fn hear_for(
        &mut self,
        time: Duration,
        all: &mut [Answerer],
        mut open: Vec<(u32, usize)>,
    ) -> Vec<(u32, usize)> {
        let start = Instant::now();
        while !open.is_empty() && start.elapsed() < time {
            let mut take = |d: &Datagram<'_>| {
                let number = number_of(d.bytes);
                if is_for(&self.endpoint, d)
                    && let Some(at) = open.iter().position(|(n, _)| *n == number)
                {
                    let (_, who) = open.swap_remove(at);
                    all[who].detours = all[who].detours.max(word(d.bytes, DETOURS));
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
    /// are lost, whether they were for it or misdirected, so single questions may stay without a
    /// reply.
    fn hear_survivors(&mut self, all: &mut [Answerer], open: Vec<(u32, usize)>) {
        let start = Instant::now();
        let mut heard = vec![false; all.len()];
        while heard.iter().any(|h| !h) {
            assert!(start.elapsed() < Duration::from_secs(10), "no survivor");
            let mut take = |d: &Datagram<'_>| {
                let number = number_of(d.bytes);
                if is_for(&self.endpoint, d)
                    && let Some((_, who)) = open.iter().find(|(n, _)| *n == number)
                {
                    heard[*who] = true;
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

    fn round(&mut self, all: &mut [Answerer], count: u32) {
        let open = self.ask(all, count);
        self.hear(all, open);
    }

    /// Sends questions until no datagram is forwarded any more.
    fn until_steered(&mut self, all: &mut [Answerer]) {
        let start = Instant::now();
        loop {
            let before: u32 = all.iter().map(|a| a.detours).sum();
            for _ in 0..20 {
                self.round(all, 8);
            }
            let after: u32 = all.iter().map(|a| a.detours).sum();
            if after == before {
                return;
            }
            assert!(
                start.elapsed() < Duration::from_secs(10),
                "datagrams still take detours"
            );
        }
    }
}

#[test]
fn the_death_of_processes_costs_the_others_nothing() {
    let address = own_address();
    let mut asker = Asker::new(address);
    let mut all: Vec<Answerer> = (0..8).map(|_| Answerer::start(address)).collect();
    asker.round(&mut all, 8);
    asker.until_steered(&mut all);

    for victims in [[0, 3, 5], [4, 2, 1]] {
        // Questions are in flight to all processes while some die.
        let mut open = asker.ask(&mut all, 8);
        for at in victims {
            all.remove(at).kill();
            open.retain(|(_, who)| *who != at);
            // The indices of the later processes shift by one.
            for (_, who) in &mut open {
                if *who > at {
                    *who -= 1;
                }
            }
        }
        asker.hear_survivors(&mut all, open);
        asker.round(&mut all, 8);
        // New processes take the free slots, and are used at once.
        for _ in 0..3 {
            let new = Answerer::start(address);
            assert!(all.iter().all(|old| old.qpn != new.qpn));
            all.push(new);
            asker.round(&mut all, 8);
        }
        asker.until_steered(&mut all);
    }
    for answerer in all {
        answerer.stop();
    }
}

#[test]
fn processes_that_end_take_nothing_of_the_others_along() {
    let address = own_address();
    let mut asker = Asker::new(address);
    let mut all: Vec<Answerer> = (0..6).map(|_| Answerer::start(address)).collect();
    asker.until_steered(&mut all);
    while all.len() > 2 {
        // Two end at the same time, while the others receive questions.
        let mut ending = [all.remove(0), all.remove(1)];
        ending.iter_mut().for_each(Answerer::tell_to_stop);
        let mut open = Vec::new();
        let mut lives = |answerer: &mut Answerer| answerer.process.try_wait().unwrap().is_none();
        while ending.iter_mut().any(&mut lives) {
            open.extend(asker.ask(&mut all, 4));
            open = asker.hear_for(Duration::from_millis(2), &mut all, open);
        }
        asker.hear(&mut all, open);
        asker.round(&mut all, 8);
        ending.into_iter().for_each(Answerer::stop);
    }
    all.into_iter().for_each(Answerer::stop);
}

#[test]
fn a_process_that_is_stopped_holds_up_nobody_and_goes_on_later() {
    use rustix::process::Signal;
    let address = own_address();
    let mut asker = Asker::new(address);
    let mut all: Vec<Answerer> = (0..3).map(|_| Answerer::start(address)).collect();
    asker.until_steered(&mut all);
    all[0].halt();
    // Meanwhile the order changes: one process ends, one starts.
    all.remove(1).kill();
    let open = asker.ask(&mut all[..1], 8);
    all.push(Answerer::start(address));
    // Until the program includes the new process, the kernel may give its datagrams to the stopped
    // one, which does not read them. The transport would retransmit them.
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < Duration::from_secs(10), "it is held up");
        let again = asker.ask(&mut all[1..], 8);
        let time = Duration::from_millis(20);
        if asker.hear_for(time, &mut all[1..], again).is_empty() {
            break;
        }
    }
    for _ in 0..20 {
        asker.round(&mut all[1..], 8);
    }
    all[0].signal(Signal::CONT);
    asker.hear(&mut all[..1], open);
    asker.until_steered(&mut all);
    for answerer in all {
        answerer.stop();
    }
}
