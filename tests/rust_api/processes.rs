//! Connections between two processes.

use crate::end::{ALL, End, pattern, status};
use std::env;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use urxe::{
    ConnectOptions, Endpoint, PreparedQueuePair, QueuePair, ReceiveRequest, RemoteAccess,
    RemoteRegion, SendRequest, WcStatus,
};

/// The variable with the TCP address of the first process, set for the second one.
const CONNECT_TO: &str = "RUST_API_TEST_CONNECT_TO";

#[test]
fn one_sided_operations_complete_while_the_target_makes_no_calls() {
    if let Ok(address) = env::var(CONNECT_TO) {
        return target(&mut TcpStream::connect(address).unwrap());
    }
    const LEN: usize = 3 << 20;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = "processes::one_sided_operations_complete_while_the_target_makes_no_calls";
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", name])
        .env(CONNECT_TO, listener.local_addr().unwrap().to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    let end = End::new();
    let qp = connect_over(&mut peer, end.qp().build().unwrap());
    let mut remote = [0; RemoteRegion::BYTES];
    peer.read_exact(&mut remote).unwrap();
    let there = RemoteRegion::from_bytes(&remote);
    let from = end.filled(LEN, 5);
    let back = end.pd.register(LEN, RemoteAccess::empty()).unwrap();
    let before = end.pd.register(8, RemoteAccess::empty()).unwrap();
    let before = before.word(0).unwrap();
    let data = there.slice(8..).unwrap();
    qp.post_sends([
        SendRequest::write(from.slice(..).unwrap(), &data).id(1),
        SendRequest::read(back.slice(..).unwrap(), &data).id(2),
        SendRequest::fetch_add(&before, there.word(0).unwrap(), 41).id(3),
        SendRequest::send(b"finished").id(4),
    ])
    .unwrap();
    for wr_id in 1..=4 {
        let completion = end.completion();
        assert_eq!(
            (completion.wr_id, status(&completion)),
            (wr_id, WcStatus::Success)
        );
    }
    assert!(back.to_vec(..).unwrap() == pattern(LEN, 5));
    assert_eq!(before.load(Ordering::Acquire), 1);
    // The target calls the library only from now on.
    peer.write_all(&[1]).unwrap();
    assert!(child.wait().unwrap().success());
}

/// The second process: registers memory, makes no calls for a time, and then checks the memory.
fn target(peer: &mut TcpStream) {
    const LEN: usize = 3 << 20;
    let end = End::new();
    let memory = end.pd.register(8 + LEN, ALL).unwrap();
    let counter = memory.word(0).unwrap();
    counter.store(1, Ordering::Release);
    let message = end.pd.register(8, RemoteAccess::empty()).unwrap();
    let prepared = end.qp().build().unwrap();
    prepared
        .post_receive(ReceiveRequest::into(message.slice(..).unwrap()))
        .unwrap();
    let _qp = connect_over(peer, prepared);
    peer.write_all(&memory.remote().to_bytes()).unwrap();
    peer.read_exact(&mut [0]).unwrap();
    assert!(memory.to_vec(8..).unwrap() == pattern(LEN, 5));
    assert_eq!(counter.load(Ordering::Acquire), 42);
    assert_eq!(end.completion().data().unwrap(), b"finished");
}

/// Exchanges endpoints with the other process and connects.
fn connect_over(peer: &mut TcpStream, prepared: PreparedQueuePair) -> QueuePair {
    peer.write_all(&prepared.endpoint().to_bytes()).unwrap();
    let mut theirs = [0; Endpoint::BYTES];
    peer.read_exact(&mut theirs).unwrap();
    let theirs = Endpoint::from_bytes(&theirs).unwrap();
    let qp = prepared
        .connect(&theirs, &ConnectOptions::default())
        .unwrap();
    peer.write_all(&[1]).unwrap();
    peer.read_exact(&mut [0]).unwrap();
    qp
}
