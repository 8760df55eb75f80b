//! Asynchronous events: a thread waits for them while a queue pair drains.

use std::error::Error;
use std::thread;
use urxe::{ConnectOptions, EventSource, EventType};

fn main() -> Result<(), Box<dyn Error>> {
    let context = urxe::device("urxe_lo")?.open()?;
    let events = context.events().clone();
    let waiting = thread::spawn(move || {
        loop {
            let event = events.wait()?;
            println!("{:?} of {:?}", event.kind, event.source);
            if event.kind == EventType::SqDrained {
                return Ok::<_, std::io::Error>(event);
            }
        }
    });

    let (pd, cq) = (context.pd(), context.completion_queue()?);
    let a = pd.queue_pair(&cq, &cq).build()?;
    let b = pd.queue_pair(&cq, &cq).build()?;
    let (endpoint_a, endpoint_b) = (a.endpoint(), b.endpoint());
    let a = a.connect(&endpoint_b, &ConnectOptions::default())?;
    let _b = b.connect(&endpoint_a, &ConnectOptions::default())?;
    // The event reports that no send work request is in progress any more.
    a.drain()?;
    let event = waiting.join().expect("the thread does not panic")?;
    assert_eq!(event.source, EventSource::QueuePair(a.qpn()));
    Ok(())
}

#[test]
fn it_works() -> Result<(), Box<dyn Error>> {
    main()
}
