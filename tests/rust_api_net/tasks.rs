//! Streams on tokio and on async-io.

use crate::{LONG, TIMEOUT, listener, pattern};
use futures_util::io::{AsyncReadExt, AsyncWriteExt};
use std::io::ErrorKind;
use urxe::net::RdmaStream;

fn on_tokio<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async { tokio::time::timeout(TIMEOUT, future).await.expect("hung") })
}

fn on_async_io<T>(future: impl Future<Output = T>) -> T {
    let timeout = async {
        async_io::Timer::after(TIMEOUT).await;
        panic!("hung")
    };
    async_io::block_on(async_io_race(future, timeout))
}

async fn async_io_race<T>(future: impl Future<Output = T>, other: impl Future<Output = T>) -> T {
    let (future, other) = (std::pin::pin!(future), std::pin::pin!(other));
    match futures_util::future::select(future, other).await {
        futures_util::future::Either::Left((value, _)) => value,
        futures_util::future::Either::Right((value, _)) => value,
    }
}

#[test]
fn a_refused_connection_is_an_error() {
    let (listener, address) = listener();
    drop(listener);
    let error = RdmaStream::connect_blocking(address).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    let connect = RdmaStream::connect(address);
    let error = on_tokio(connect).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    let error = on_async_io(RdmaStream::connect(address)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

/// Two tasks of one thread echo more than the buffers hold, then the ends shut down.
async fn one_thread_serves_both_ends() {
    let (listener, address) = listener();
    let (server, client) =
        futures_util::future::join(listener.accept(), RdmaStream::connect(address)).await;
    let (mut server, client) = (server.unwrap(), client.unwrap());
    let data = pattern(LONG);
    let echo = async {
        let mut buffer = vec![0; 10_000];
        loop {
            match server.read(&mut buffer).await.unwrap() {
                0 => break,
                len => server.write_all(&buffer[..len]).await.unwrap(),
            }
        }
        server.close().await.unwrap();
    };
    let (mut reader, mut writer) = client.into_split();
    let write = async {
        writer.write_all(&data).await.unwrap();
        writer.close().await.unwrap();
        drop(writer);
    };
    let read = async {
        let mut received = Vec::new();
        reader.read_to_end(&mut received).await.unwrap();
        assert!(received == data);
    };
    futures_util::future::join3(echo, write, read).await;
}

#[test]
fn one_thread_serves_both_ends_on_tokio() {
    on_tokio(one_thread_serves_both_ends());
}

#[test]
fn one_thread_serves_both_ends_on_async_io() {
    on_async_io(one_thread_serves_both_ends());
}

#[test]
fn tokio_copies_between_streams() {
    on_tokio(async {
        let (listener, address) = listener();
        let (server, client) = tokio::join!(listener.accept(), RdmaStream::connect(address));
        let (mut server, mut client) = (server.unwrap(), client.unwrap());
        let data = pattern(LONG);
        let send = async {
            tokio::io::copy(&mut &data[..], &mut client).await.unwrap();
            tokio::io::AsyncWriteExt::shutdown(&mut client)
                .await
                .unwrap();
        };
        let mut received = Vec::new();
        let receive = tokio::io::copy(&mut server, &mut received);
        let ((), copied) = tokio::join!(send, receive);
        assert_eq!(copied.unwrap(), LONG as u64);
        assert!(received == data);
    });
}

#[test]
fn a_dropped_connect_leaves_the_listener_usable() {
    on_tokio(async {
        let (listener, address) = listener();
        let mut dropped = Box::pin(RdmaStream::connect(address));
        let polled = futures_util::poll!(dropped.as_mut());
        drop(dropped);
        drop(polled);
        let client = RdmaStream::connect(address).await.unwrap();
        // The dropped one may have been established before.
        while listener.accept().await.unwrap().peer_addr().unwrap() != client.local_addr() {}
    });
}
