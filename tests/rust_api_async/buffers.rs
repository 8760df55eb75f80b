//! Futures that own a buffer, and return it with the result.

use crate::{connected, memory, on_both};
use futures_util::FutureExt;
use urxe::SendRequest;

on_both! {
    a_buffer_travels_and_returns,
    a_buffer_that_cannot_be_posted_returns,
    the_buffer_of_a_dropped_future_returns_to_its_pool,
}

async fn a_buffer_travels_and_returns() {
    let [server, client] = connected().await;
    let (server, client) = (server.queue_pair(), client.queue_pair());
    let message = client.pd().buffer_from(b"hello".to_vec()).unwrap();
    let inbox = server.pd().buffer(64).unwrap();
    let ((sent, message), (received, inbox)) =
        tokio::join!(client.send(message), server.receive(inbox));
    sent.unwrap();
    assert_eq!(received.unwrap().byte_len, 5);
    assert_eq!([&*message, &*inbox], [b"hello"; 2]);
    assert_eq!(inbox.capacity(), 64);
}

async fn a_buffer_that_cannot_be_posted_returns() {
    let [server, client] = connected().await;
    let (server, client) = (server.queue_pair(), client.queue_pair());
    let foreign = client.pd().context().pd();
    let (sent, message) = client.send(foreign.buffer_from(vec![7; 5]).unwrap()).await;
    let error = sent.unwrap_err();
    assert!(error.to_string().contains("protection domain"), "{error}");
    assert_eq!(*message, [7; 5]);
    let (received, inbox) = server.receive(foreign.buffer(9).unwrap()).await;
    received.unwrap_err();
    assert_eq!(inbox.capacity(), 9);
}

async fn the_buffer_of_a_dropped_future_returns_to_its_pool() {
    let [server, client] = connected().await;
    let inbox = memory(&server, 8);
    let (server, client) = (server.queue_pair(), client.queue_pair());
    let pool = server.pd().buffer_pool(1, 8).unwrap();
    let mut receive = Box::pin(server.receive(pool.take().unwrap()));
    assert!(receive.as_mut().now_or_never().is_none());
    drop(receive);
    assert_eq!(pool.available(), 0, "the receive is posted");
    client.execute(SendRequest::send(b"first")).await.unwrap();
    let second = server.receive(inbox.slice(..).unwrap());
    let send = client.execute(SendRequest::send(b"second"));
    let ((received, _), sent) = tokio::join!(second, send);
    received.unwrap();
    sent.unwrap();
    assert_eq!(pool.available(), 1);
}
