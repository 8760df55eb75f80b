//! Every operation of a reliable connection, then those of an unreliable connection, which has no
//! READ and no atomics. Both ends are in this program; `hello` is an example with two programs.

use std::error::Error;
use std::sync::atomic::Ordering;
use urxe::{
    CompletionQueue, ConnectOptions, Context, MemoryRegion, PreparedQueuePair, ProtectionDomain,
    QueuePair, ReceiveRequest, RemoteAccess, SendRequest,
};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// The responder: the memory that the peer accesses, and the queue pair that receives.
struct Target {
    memory: MemoryRegion,
    qp: QueuePair,
    cq: CompletionQueue,
}

fn main() -> Result<()> {
    let context = urxe::device("urxe_lo")?.open()?;
    let pd = context.pd();
    let rights = RemoteAccess::READ | RemoteAccess::WRITE | RemoteAccess::ATOMIC;
    let cqs = cqs(&context)?;
    let ends = [
        pd.queue_pair(&cqs[0], &cqs[0]).build()?,
        pd.queue_pair(&cqs[1], &cqs[1])
            .remote_access(rights)
            .build()?,
    ];
    let (sender, target) = connect(ends, &pd, &cqs[1], rights)?;
    move_data(&sender, &cqs[0], &target)?;
    read_and_count(&sender, &cqs[0], &target, &pd)?;
    println!("reliable connection: SEND, WRITE, READ and atomics succeeded");

    let cqs = self::cqs(&context)?;
    let ends = [
        pd.queue_pair(&cqs[0], &cqs[0]).build_unreliable()?,
        pd.queue_pair(&cqs[1], &cqs[1])
            .remote_access(RemoteAccess::WRITE)
            .build_unreliable()?,
    ];
    let (sender, target) = connect(ends, &pd, &cqs[1], RemoteAccess::WRITE)?;
    move_data(&sender, &cqs[0], &target)?;
    println!("unreliable connection: SEND and WRITE succeeded");
    Ok(())
}

fn cqs(context: &Context) -> Result<[CompletionQueue; 2]> {
    Ok([context.completion_queue()?, context.completion_queue()?])
}

fn connect(
    [a, b]: [PreparedQueuePair; 2],
    pd: &ProtectionDomain,
    cq: &CompletionQueue,
    rights: RemoteAccess,
) -> Result<(QueuePair, Target)> {
    let (endpoint_a, endpoint_b) = (a.endpoint(), b.endpoint());
    let target = Target {
        memory: pd.register(4096, rights)?,
        qp: b.connect(&endpoint_a, &ConnectOptions::default())?,
        cq: cq.clone(),
    };
    Ok((a.connect(&endpoint_b, &ConnectOptions::default())?, target))
}

/// SENDs and WRITEs. A WRITE without immediate data makes no completion at the target, so a SEND
/// follows it as a notification.
fn move_data(sender: &QueuePair, done: &CompletionQueue, target: &Target) -> Result<()> {
    let (messages, written) = (target.memory.slice(..64)?, target.memory.slice(64..128)?);
    let place = target.memory.remote().slice(64..128)?;
    let receive = || {
        target
            .qp
            .post_receive(ReceiveRequest::into(messages.clone()))
    };

    receive()?;
    sender.post_send(SendRequest::send(b"send"))?;
    assert_eq!(target.cq.wait()?.data()?, b"send");
    done.wait()?.result?;

    receive()?;
    sender.post_send(SendRequest::send_with_imm(b"send with immediate", 4711))?;
    let received = target.cq.wait()?;
    assert_eq!(received.data()?, b"send with immediate");
    assert_eq!(received.result?.imm, Some(4711));
    done.wait()?.result?;

    receive()?;
    sender.post_send(SendRequest::write_with_imm(b"with imm", &place, 4712))?;
    assert_eq!(target.cq.wait()?.result?.imm, Some(4712));
    let mut bytes = [0; 8];
    written.read(0, &mut bytes)?;
    assert_eq!(&bytes, b"with imm");
    done.wait()?.result?;

    receive()?;
    sender.post_send(SendRequest::write(b"no words", &place))?;
    sender.post_send(SendRequest::send(b"notification"))?;
    target.cq.wait()?.result?;
    written.read(0, &mut bytes)?;
    assert_eq!(&bytes, b"no words");
    done.wait()?.result?;
    done.wait()?.result?;
    Ok(())
}

/// READ and the atomics, which make no completion at the target.
fn read_and_count(
    sender: &QueuePair,
    done: &CompletionQueue,
    target: &Target,
    pd: &ProtectionDomain,
) -> Result<()> {
    let word = target.memory.word(128)?;
    word.store(40, Ordering::Release);
    let copy = pd.register(8, RemoteAccess::empty())?;
    let place = target.memory.remote();
    sender.post_send(SendRequest::read(copy.slice(..)?, &place.slice(128..136)?))?;
    assert_eq!(done.wait()?.data()?, 40_u64.to_ne_bytes());

    let old = copy.word(0)?;
    sender.post_send(SendRequest::compare_swap(&old, place.word(128)?, 40, 100))?;
    done.wait()?.result?;
    assert_eq!(old.load(Ordering::Acquire), 40);
    sender.post_send(SendRequest::fetch_add(&old, place.word(128)?, 2))?;
    done.wait()?.result?;
    assert_eq!(old.load(Ordering::Acquire), 100);
    assert_eq!(word.load(Ordering::Acquire), 102);
    Ok(())
}

#[test]
fn it_works() -> Result<()> {
    main()
}
