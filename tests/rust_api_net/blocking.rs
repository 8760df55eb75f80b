//! Streams as `std::io::Read` and `Write`.

use crate::{LONG, connected, listener, pattern};
use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::thread;
use urxe::net::RdmaStream;

#[test]
fn data_crosses_in_both_directions_at_once() {
    let (server, client) = connected();
    assert_eq!(server.peer_addr().unwrap(), client.local_addr());
    assert_eq!(client.peer_addr().unwrap(), server.local_addr());
    let data = pattern(LONG);
    thread::scope(|scope| {
        for (mut reader, mut writer) in [(&server, &client), (&client, &server)] {
            let data = &data;
            scope.spawn(move || {
                writer.write_all(data).unwrap();
                writer.shutdown_blocking(Shutdown::Write).unwrap();
            });
            scope.spawn(move || {
                let mut received = Vec::new();
                reader.read_to_end(&mut received).unwrap();
                assert!(received == *data);
            });
        }
    });
}

#[test]
fn a_half_closed_stream_still_receives() {
    let (mut server, mut client) = connected();
    client.write_all(b"question").unwrap();
    client.shutdown_blocking(Shutdown::Write).unwrap();
    assert!(client.write(b"more").is_err());
    let mut question = String::new();
    server.read_to_string(&mut question).unwrap();
    server.write_all(b"answer to ").unwrap();
    server.write_all(question.as_bytes()).unwrap();
    drop(server);
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "answer to question");
}

#[test]
fn vectored_calls_use_all_slices() {
    let (mut server, mut client) = connected();
    let data = pattern(1000);
    let slices = [0..1, 1..1, 1..700, 700..1000].map(|range| IoSlice::new(&data[range]));
    assert_eq!(client.write_vectored(&slices).unwrap(), 1000);
    client.shutdown_blocking(Shutdown::Write).unwrap();
    let mut received = vec![0; 1000];
    let mut at = 0;
    while at < 1000 {
        let (first, rest) = received[at..].split_at_mut((1000 - at) / 3);
        let slices = &mut [
            IoSliceMut::new(first),
            IoSliceMut::new(&mut []),
            IoSliceMut::new(rest),
        ];
        let read = server.read_vectored(slices).unwrap();
        assert_ne!(read, 0);
        at += read;
    }
    assert_eq!(received, data);
    assert_eq!(server.read(&mut received).unwrap(), 0);
}

#[test]
fn a_connection_that_is_not_taken_is_closed_with_its_listener() {
    let (listener, address) = listener();
    let mut client = RdmaStream::connect_blocking(address).unwrap();
    drop(listener);
    assert!(matches!(client.read(&mut [0]), Ok(0) | Err(_)));
}
