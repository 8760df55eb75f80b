//! Two processes.

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

/// Where the second process of [`two_processes_talk_and_a_target_need_not_call_in`] finds the first.
const MEET_AT: &str = "RUST_API_TEST_MEET_AT";

#[test]
fn two_processes_talk_and_a_target_need_not_call_in() {
    if let Ok(address) = env::var(MEET_AT) {
        return target(&mut TcpStream::connect(address).unwrap());
    }
    const LEN: usize = 3 << 20;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = "processes::two_processes_talk_and_a_target_need_not_call_in";
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", name])
        .env(MEET_AT, listener.local_addr().unwrap().to_string())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    let end = End::new();
    let qp = introduce(&mut peer, end.qp().build().unwrap());
    let mut told = [0; RemoteRegion::BYTES];
    peer.read_exact(&mut told).unwrap();
    let there = RemoteRegion::from_bytes(&told);
    let from = end.filled(LEN, 5);
    let back = end.pd.register(LEN, RemoteAccess::empty()).unwrap();
    let before = end.pd.register(8, RemoteAccess::empty()).unwrap();
    let before = before.word(0).unwrap();
    let data = there.slice(8..).unwrap();
    qp.post_sends([
        SendRequest::write(from.slice(..).unwrap(), &data).id(1),
        SendRequest::read(back.slice(..).unwrap(), &data).id(2),
        SendRequest::fetch_add(&before, there.word(0).unwrap(), 41).id(3),
        SendRequest::send(b"look now").id(4),
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
    // Only now does the target look.
    peer.write_all(&[1]).unwrap();
    assert!(child.wait().unwrap().success());
}

/// The second process: shows memory, looks away, and then sees what has become of it.
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
    let _qp = introduce(peer, prepared);
    peer.write_all(&memory.remote().to_bytes()).unwrap();
    peer.read_exact(&mut [0]).unwrap();
    assert!(memory.to_vec(8..).unwrap() == pattern(LEN, 5));
    assert_eq!(counter.load(Ordering::Acquire), 42);
    assert_eq!(end.completion().data().unwrap(), b"look now");
}

/// Exchanges endpoints with another process, and connects.
fn introduce(peer: &mut TcpStream, prepared: PreparedQueuePair) -> QueuePair {
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
