//! Exercise 6: a thread that takes asynchronous events, and a queue pair that makes one.

use std::error::Error;
use std::thread;
use urxe::{ConnectOptions, EventSource, EventType};

fn main() -> Result<(), Box<dyn Error>> {
    let context = urxe::device("urxe_lo")?.open()?;
    let events = context.events().clone();
    let waiting = thread::spawn(move || {
        loop {
            let event = events.next()?;
            println!("{:?} of {:?}", event.kind, event.source);
            if event.kind == EventType::SqDrained {
                return Ok::<_, std::io::Error>(event);
            }
        }
    });

    let (pd, cq) = (context.pd(), context.completion_queue()?);
    let a = pd.queue_pair(&cq, &cq).build()?;
    let b = pd.queue_pair(&cq, &cq).build()?;
    let (at_a, at_b) = (a.endpoint(), b.endpoint());
    let a = a.connect(&at_b, &ConnectOptions::default())?;
    let _b = b.connect(&at_a, &ConnectOptions::default())?;
    // The event says that nothing is under way any more.
    a.drain()?;
    let event = waiting.join().expect("it does not panic")?;
    assert_eq!(event.source, EventSource::QueuePair(a.qpn()));
    Ok(())
}

#[test]
fn it_works() -> Result<(), Box<dyn Error>> {
    main()
}
