//! A test of a program's own protocol over a bad network: an echo server that must answer each
//! request once and in order, whatever the network does.
//!
//!     cargo run --release --example lossy_echo --features testing

use std::thread;
use std::time::Duration;
use urxe::testing::{Faults, Peer};
use urxe::{ReceiveRequest, Result, SendRequest, WorkQueue};

const REQUESTS: u64 = 200;

/// The code under test: receives requests and sends them back.
fn serve(peer: &Peer) -> Result<()> {
    peer.post_receive(ReceiveRequest::into(peer.pd().buffer(8)?))?;
    let mut served = 0;
    while served < REQUESTS {
        let completion = peer.cq().wait()?;
        completion.result?;
        // The completion of a SEND returns its buffer too; that one is dropped.
        if completion.queue == WorkQueue::Receive {
            let request = completion.buffer.expect("each receive has a buffer");
            peer.post_receive(ReceiveRequest::into(peer.pd().buffer(8)?))?;
            peer.post_send(SendRequest::send(request))?;
            served += 1;
        }
    }
    Ok(())
}

/// Waits for a message. The completions of SENDs arrive in the same queue.
fn receive(peer: &Peer) -> Result<Vec<u8>> {
    loop {
        let completion = peer.cq().wait()?;
        let data = completion.data()?;
        if completion.queue == WorkQueue::Receive {
            return Ok(data);
        }
    }
}

fn main() -> Result<()> {
    let network = Faults::seeded(42)
        .loss(0.05)
        .duplication(0.05)
        .reordering(0.05)
        .corruption(0.01)
        .delay(Duration::from_micros(200), Duration::from_micros(100));
    let (client, server) = network.pair()?;
    let server = thread::spawn(move || serve(&server).map(|()| server));
    for n in 0..REQUESTS {
        client.post_receive(ReceiveRequest::into(client.pd().buffer(8)?))?;
        client.post_send(SendRequest::send(&n.to_be_bytes()))?;
        assert_eq!(receive(&client)?, n.to_be_bytes());
    }
    let server = server.join().expect("the server does not panic")?;
    let again = client.counters().retransmitted + server.counters().retransmitted;
    println!("{REQUESTS} requests were answered once, in order; {again} packets were sent again");
    Ok(())
}

#[test]
fn the_example_runs() {
    main().unwrap();
}
