//! Two connections that share a receive queue, and the event for a low number of receives. All four
//! ends are in this program.

use std::error::Error;
use urxe::{ConnectOptions, EventType, ReceiveRequest, RemoteAccess, SendRequest};

const RECEIVES: usize = 8;
const LIMIT: u32 = 4;
const SIZE: usize = 32;

fn main() -> Result<(), Box<dyn Error>> {
    let context = urxe::device("urxe_lo")?.open()?;
    let pd = context.pd();
    let (sent, received) = (context.completion_queue()?, context.completion_queue()?);
    let shared = pd
        .shared_receive_queue()
        .max_wr(RECEIVES as u32)
        .max_sge(1)
        .build()?;
    let mut connections = Vec::new();
    for _ in 0..2 {
        let from = pd.queue_pair(&sent, &sent).build()?;
        let to = pd
            .queue_pair(&sent, &received)
            .receives_from(&shared)
            .build()?;
        let (endpoint_from, endpoint_to) = (from.endpoint(), to.endpoint());
        let from = from.connect(&endpoint_to, &ConnectOptions::default())?;
        connections.push((
            from,
            to.connect(&endpoint_from, &ConnectOptions::default())?,
        ));
    }
    let memory = pd.register(RECEIVES * SIZE, RemoteAccess::empty())?;
    for n in 0..RECEIVES {
        let slice = memory.slice(n * SIZE..(n + 1) * SIZE)?;
        shared.post_receive(ReceiveRequest::into(slice).id(n as u64))?;
    }
    shared.set_limit(LIMIT)?;

    // The connections alternate. Each message consumes the oldest receive.
    let mut by = [0, 0];
    for n in 0..RECEIVES {
        let (from, to) = &connections[n % 2];
        let text = format!("message {n}");
        from.post_send(SendRequest::send(text.as_bytes()))?;
        sent.wait()?.result?;
        let completion = received.wait()?;
        assert_eq!((completion.wr_id, completion.qpn), (n as u64, to.qpn()));
        assert_eq!(completion.data()?, text.as_bytes());
        by[n % 2] += 1;
    }
    println!(
        "{} messages over the first connection, {} over the second",
        by[0], by[1]
    );
    // Other events may come first.
    loop {
        let event = context.events().wait()?;
        println!("{:?} of {:?}", event.kind, event.source);
        if event.kind == EventType::SrqLimitReached {
            return Ok(());
        }
    }
}

#[test]
fn it_works() -> Result<(), Box<dyn Error>> {
    main()
}
