//! Sends to a socket that has no room, as with a slow interface.

mod common;
#[path = "../../tests/common/own_network.rs"]
mod own_network;

use common::{ALL, Buffer, End};
use std::mem::MaybeUninit;
use std::process::Command;
use std::sync::Arc;
use urxe_driver::ah::Destination;
use urxe_driver::{AddressHandle, Qp};
use urxe_proto::ids::{QKey, Qpn};
use urxe_proto::qp::{AddressVector, AttrMask, QpAttr, QpState, QpType};
use urxe_proto::queue::PostError;
use urxe_proto::work::{Payload, SendFlags, SendOp, SendWr};

const QKEY: QKey = QKey(0x1111_1111);
const LEN: u32 = 4096;

/// More datagrams than the largest socket buffer has room for.
const MAX_DATAGRAMS: usize = 20_000;

/// Posts to a full socket. On average less than one sleep per post is allowed, since another thread
/// may hold a lock.
const POSTS: i64 = 100;

fn tc(arguments: &str) {
    let status = Command::new("tc").args(arguments.split(' ')).status();
    assert!(status.expect("tc of iproute2").success(), "tc {arguments}");
}

/// A UD queue pair that sends to its own address.
struct Sender {
    end: End,
    buffer: Buffer,
    handle: Arc<AddressHandle>,
    posted: usize,
    completed: usize,
}

impl Sender {
    fn new() -> Self {
        let end = End::of(QpType::Ud, None, 256);
        make_ready(&end.qp);
        let buffer = Buffer::new(&end.pd, LEN as usize, ALL);
        let vector = AddressVector {
            dgid: end.gid(),
            is_global: true,
            port: 1,
            ..AddressVector::default()
        };
        let handle = end.context.create_ah(&end.pd, vector).unwrap();
        Sender {
            end,
            buffer,
            handle,
            posted: 0,
            completed: 0,
        }
    }

    fn post(&mut self) -> Result<(), PostError> {
        let sges = [self.buffer.sge(0, LEN)];
        let wr = SendWr {
            wr_id: self.posted as u64,
            op: SendOp::Send,
            flags: SendFlags::SIGNALED,
            payload: Payload::Sges(&sges),
            dest: None,
        };
        let to = Destination {
            handle: &self.handle,
            // No queue pair has this number, so the datagrams are dropped on arrival.
            qpn: Qpn::new(0xff_fffe),
            qkey: QKEY,
        };
        self.end.qp.start_posting().post_to(&wr, &to)?;
        self.posted += 1;
        Ok(())
    }

    /// Posts until the send queue is full, which happens only when the socket accepts nothing.
    fn fill(&mut self) {
        let mut slept = 0;
        for _ in 0..MAX_DATAGRAMS {
            // Polls are not counted: they sleep when other threads need the processor.
            let before = sleeps();
            let posted = self.post();
            slept += sleeps() - before;
            assert!(slept < POSTS, "{slept} times in {} posts", self.posted);
            match (posted, self.take_completions()) {
                (Err(PostError::Full), 0) => return,
                (Ok(()) | Err(PostError::Full), _) => {}
                (Err(error), _) => panic!("{error}"),
            }
        }
        panic!("the socket took {MAX_DATAGRAMS} datagrams");
    }

    fn take_completions(&mut self) -> usize {
        let mut some = [None; 64];
        let count = self.end.cq.poll(&mut some);
        self.completed += count;
        count
    }

    fn wait_for_completions(&mut self) {
        while self.completed < self.posted {
            self.end.completion();
            self.completed += 1;
        }
    }
}

fn make_ready(qp: &Arc<Qp>) {
    let attr = QpAttr {
        qkey: QKEY,
        ..QpAttr::default()
    };
    let init = AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY;
    for (state, mask) in [
        (QpState::Init, init),
        (QpState::Rtr, AttrMask::empty()),
        (QpState::Rts, AttrMask::SQ_PSN),
    ] {
        qp.modify(&QpAttr { state, ..attr }, mask | AttrMask::STATE)
            .unwrap();
    }
}

/// Returns how often this thread has slept (voluntary context switches).
fn sleeps() -> i64 {
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: `usage` has room for one `rusage`. The call fills it on success, which is asserted
    // before `assume_init`.
    let usage = unsafe {
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()), 0);
        usage.assume_init()
    };
    usage.ru_nvcsw
}

/// A post holds the table of memory regions, so a post that sleeps would block other threads that
/// register memory. The second queue pair has nothing staged and no timeout, so only the kernel's
/// report of room resumes it.
#[test]
fn a_full_socket_does_not_block_post_and_sending_resumes() {
    tc("qdisc add dev lo root tbf rate 8kbit burst 128kb limit 1gb");
    let mut first = Sender::new();
    first.fill();
    let mut slept = 0;
    for _ in 0..POSTS {
        let before = sleeps();
        // A post succeeds when a dropped batch has freed entries of the send queue.
        let _ = first.post();
        slept += sleeps() - before;
        first.take_completions();
    }
    assert!(slept < POSTS, "{slept} times in {POSTS} posts");
    let mut second = Sender::new();
    second.post().unwrap();
    assert_eq!(second.take_completions(), 0);
    tc("qdisc del dev lo root");
    second.wait_for_completions();
    first.wait_for_completions();
}
