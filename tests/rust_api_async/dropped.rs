//! Futures that are dropped in each of their states.

use crate::{connected, memory, on_both};
use futures_util::FutureExt;
use urxe::{MemoryRegion, MoveErrorKind, QueuePair, SendRequest};

on_both! {
    a_future_that_was_never_polled_posts_nothing,
    a_future_that_waits_for_room_is_dropped_without_effect,
    a_posted_request_owns_its_memory_after_its_future_is_dropped,
    a_completion_that_no_future_takes_is_dropped,
    a_dropped_accept_leaves_the_next_request,
}

/// Returns the region, and whether a work request owns a part of it. A region in use cannot move to
/// another protection domain.
fn in_use(qp: &QueuePair, region: MemoryRegion) -> (MemoryRegion, bool) {
    match region.move_to(qp.pd()) {
        Ok(region) => (region, false),
        Err(error) => {
            assert!(matches!(error.source, MoveErrorKind::InUse));
            (error.region, true)
        }
    }
}

async fn a_future_that_was_never_polled_posts_nothing() {
    let [server, client] = connected().await;
    let (first, second) = (memory(&server, 8), memory(&server, 8));
    let qp = server.queue_pair();
    drop(qp.receive(first.slice(..).unwrap()));
    let outbox = memory(&client, 8);
    let send = client.queue_pair().send(outbox.slice(..).unwrap());
    let receive = qp.receive(second.slice(..).unwrap());
    let ((sent, _), (received, _)) = tokio::join!(send, receive);
    sent.unwrap();
    received.unwrap();
    assert!(!in_use(qp, first).1);
}

async fn a_future_that_waits_for_room_is_dropped_without_effect() {
    let [server, client] = connected().await;
    let capacity = 128;
    let inbox = memory(&server, 8);
    let qp = server.queue_pair();
    let mut posted: Vec<_> = (0..capacity + 2)
        .map(|_| Box::pin(qp.receive(inbox.slice(..).unwrap())))
        .collect();
    for receive in &mut posted {
        assert!(receive.as_mut().now_or_never().is_none());
    }
    // The last but one is dropped while it waits; the last one takes the first free place.
    drop(posted.remove(capacity));
    let outbox = memory(&client, 8);
    let send = async {
        for _ in 0..=capacity {
            let (sent, _) = client.queue_pair().send(outbox.slice(..).unwrap()).await;
            sent.unwrap();
        }
    };
    let receive = futures_util::future::join_all(posted);
    let (received, ()) = tokio::join!(receive, send);
    for (received, _) in received {
        assert_eq!(received.unwrap().byte_len, 8);
    }
    assert!(!in_use(qp, inbox).1);
}

async fn a_posted_request_owns_its_memory_after_its_future_is_dropped() {
    let [server, client] = connected().await;
    let qp = server.queue_pair();
    let (first, second) = (memory(&server, 8), memory(&server, 8));
    let mut abandoned = qp.receive(first.slice(..).unwrap());
    assert!((&mut abandoned).now_or_never().is_none());
    drop(abandoned);
    let (first, owned) = in_use(qp, first);
    assert!(owned, "the queue pair owns the memory of the receive");

    // The first message arrives in the abandoned receive, the second one in the next.
    let receive = qp.receive(second.slice(..).unwrap());
    let send = async {
        for message in [b"message1", b"message2"] {
            let sent = client.queue_pair().execute(SendRequest::send(message));
            sent.await.unwrap().result.unwrap();
        }
    };
    let ((received, _), ()) = tokio::join!(receive, send);
    received.unwrap();
    assert_eq!(first.to_vec(..).unwrap(), b"message1");
    assert_eq!(second.to_vec(..).unwrap(), b"message2");
    let (_, owned) = in_use(qp, first);
    assert!(!owned, "the completion releases the memory");
}

async fn a_completion_that_no_future_takes_is_dropped() {
    let [server, client] = connected().await;
    let qp = server.queue_pair();
    let (first, second) = (memory(&server, 8), memory(&server, 8));
    let mut early = qp.receive(first.slice(..).unwrap());
    assert!((&mut early).now_or_never().is_none());
    let receive = qp.receive(second.slice(..).unwrap());
    let send = async {
        for message in [b"message1", b"message2"] {
            let sent = client.queue_pair().execute(SendRequest::send(message));
            sent.await.unwrap().result.unwrap();
        }
    };
    // The task of the second receive finds both completions.
    let ((received, _), ()) = tokio::join!(receive, send);
    received.unwrap();
    drop(early);
    assert!(!in_use(qp, first).1);
    assert!(qp.recv_cq().poll().is_none());
}

async fn a_dropped_accept_leaves_the_next_request() {
    let listener = urxe::cm::Listener::bind("127.0.0.1:0").unwrap();
    assert!(listener.accept().now_or_never().is_none());
    let connect = urxe::connect(listener.local_addr());
    let (server, client) = tokio::join!(listener.accept(), connect);
    assert_eq!(server.unwrap().peer_addr(), client.unwrap().local_addr());
}
