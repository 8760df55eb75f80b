//! Connections, events, completions and operations as futures.

use crate::{connected, memory, on_both};
use futures_util::{FutureExt, StreamExt};
use urxe::cm::{Event, Listener, Options, Route};
use urxe::{ErrorKind, ReceiveRequest, SendRequest, WcOpcode, WcStatus};

on_both! {
    operations_return_the_result_and_the_buffer,
    completions_of_posted_requests_are_a_stream,
    the_peer_s_disconnection_is_an_event,
    a_rejected_connection_is_an_error,
    connections_are_made_with_chosen_queue_pairs,
    asynchronous_events_are_a_stream,
}

async fn operations_return_the_result_and_the_buffer() {
    let [server, client] = connected().await;
    let (here, there) = (memory(&client, 64), memory(&server, 64));
    here.write(0, b"a message").unwrap();
    let receive = server.queue_pair().receive(there.slice(..32).unwrap());
    let send = client.queue_pair().send(here.slice(..9).unwrap());
    let ((received, inbox), (sent, outbox)) = tokio::join!(receive, send);
    assert_eq!(sent.unwrap().opcode, WcOpcode::Send);
    assert_eq!(received.unwrap().byte_len, 9);
    assert_eq!((inbox.len(), outbox.len()), (32, 9));
    assert_eq!(there.to_vec(..9).unwrap(), b"a message");

    let qp = client.queue_pair();
    let target = there.remote().slice(32..41).unwrap();
    let (written, _) = qp.write(here.slice(..9).unwrap(), &target).await;
    assert_eq!(written.unwrap().opcode, WcOpcode::Write);
    let (read, copy) = qp.read(here.slice(9..18).unwrap(), &target).await;
    assert_eq!(read.unwrap().byte_len, 9);
    assert_eq!((copy.offset(), copy.len()), (9, 9));
    assert_eq!(here.to_vec(9..18).unwrap(), b"a message");

    let word = there.remote().word(56).unwrap();
    let old = here.word(56).unwrap();
    let added = qp.execute(SendRequest::fetch_add(&old, word, 3).id(5));
    let added = added.await.unwrap();
    assert_eq!(added.wr_id, 5);
    assert_eq!(added.result.unwrap().opcode, WcOpcode::FetchAdd);

    // The peer has no such memory: the operation fails, and later ones are flushed.
    drop((there, inbox));
    let (denied, _) = qp.read(here.slice(..9).unwrap(), &target).await;
    let denied = denied.unwrap_err();
    assert_eq!(denied.status(), Some(WcStatus::RemAccessErr));
    assert_eq!(denied.kind(), ErrorKind::PermissionDenied);
    let (flushed, _) = qp.send(here.slice(..9).unwrap()).await;
    assert_eq!(flushed.unwrap_err().kind(), ErrorKind::Flushed);
    let (invalid, _) = qp.write(here.slice(..64).unwrap(), &target).await;
    assert_eq!(invalid.unwrap_err().kind(), ErrorKind::InvalidInput);
}

async fn completions_of_posted_requests_are_a_stream() {
    let [server, client] = connected().await;
    let there = memory(&server, 64);
    for id in 0..4 {
        let slice = there.slice(id * 16..(id + 1) * 16).unwrap();
        let request = ReceiveRequest::into(slice).id(id as u64);
        server.queue_pair().post_receive(request).unwrap();
    }
    let mut cq = server.queue_pair().recv_cq().clone();
    assert!(StreamExt::next(&mut cq).now_or_never().is_none());
    let outbox = memory(&client, 8);
    for _ in 0..4 {
        let (sent, _) = client.queue_pair().send(outbox.slice(..).unwrap()).await;
        sent.unwrap();
    }
    for id in 0..2 {
        assert_eq!(cq.next().await.unwrap().wr_id, id);
    }
    let rest: Vec<_> = cq.take(2).map(|one| one.unwrap().wr_id).collect().await;
    assert_eq!(rest, [2, 3]);
}

async fn the_peer_s_disconnection_is_an_event() {
    let [server, client] = connected().await;
    let next = server.next_event();
    let (event, ()) = tokio::join!(next, async { client.disconnect().unwrap() });
    assert_eq!(event.unwrap(), Event::Disconnected);
    server.disconnect().unwrap();
    assert_eq!(client.next_event().await.unwrap(), Event::Disconnected);
}

async fn a_rejected_connection_is_an_error() {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let reject = async {
        let request = listener.next_request().await.unwrap();
        request.reject(b"no").unwrap();
    };
    let connect = urxe::connect(listener.local_addr());
    let ((), refused) = tokio::join!(reject, connect);
    let error = urxe::Error::from(refused.unwrap_err());
    assert_eq!(error.kind(), ErrorKind::Refused);
}

async fn connections_are_made_with_chosen_queue_pairs() {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let server = async {
        let request = listener.next_request().await.unwrap();
        assert!(request.private_data().starts_with(b"small"));
        let context = request.device().open().unwrap();
        let (pd, cq) = (context.pd(), context.completion_queue().unwrap());
        let qp = pd.queue_pair(&cq, &cq).max_recv_wr(1).build().unwrap();
        let pending = request.start_accepting(qp, &Options::default()).unwrap();
        pending.await.unwrap()
    };
    let client = async {
        let route = Route::resolve(listener.local_addr()).unwrap();
        let context = route.device().open().unwrap();
        let (pd, cq) = (context.pd(), context.completion_queue().unwrap());
        let qp = pd.queue_pair(&cq, &cq).max_send_wr(1).build().unwrap();
        let options = Options::default().private_data(b"small");
        route.start_connecting(qp, &options).unwrap().await.unwrap()
    };
    let (server, client) = tokio::join!(server, client);
    assert_eq!(server.local_addr(), client.peer_addr());
}

async fn asynchronous_events_are_a_stream() {
    let [server, _client] = connected().await;
    let mut events = server.queue_pair().pd().context().events().clone();
    // A connection raises an event when its first packet arrives; the rest are caused here.
    while let Some(Some(event)) = events.next().now_or_never().map(Result::ok) {
        assert_ne!(event.kind, urxe::EventType::SqDrained);
    }
    let drained = async {
        while StreamExt::next(&mut events).await.unwrap().unwrap().kind
            != urxe::EventType::SqDrained
        {}
    };
    let drain = async { server.queue_pair().drain().unwrap() };
    tokio::join!(drained, drain);
}
