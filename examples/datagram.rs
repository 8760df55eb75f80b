//! Datagrams: one queue pair sends a request, and the other replies to its sender.

use std::error::Error;
use urxe::{DatagramAddress, GRH_BYTES, QKey, ReceiveRequest, RemoteAccess, SendRequest};

/// The Q_Key, which both queue pairs must share.
const QKEY: QKey = QKey(0x1111_1111);

fn main() -> Result<(), Box<dyn Error>> {
    let context = urxe::device("urxe_lo")?.open()?;
    let pd = context.pd();
    let (sent, requests, replies) = (
        context.completion_queue()?,
        context.completion_queue()?,
        context.completion_queue()?,
    );
    let client = pd.queue_pair(&sent, &replies).build_datagram(QKEY)?;
    let server = pd.queue_pair(&sent, &requests).build_datagram(QKEY)?;
    for qp in [&client, &server] {
        // A receive buffer starts with the header that holds the addresses.
        let buffer = pd.register(GRH_BYTES + 64, RemoteAccess::empty())?;
        qp.post_receive(ReceiveRequest::into(buffer.slice(..)?))?;
    }

    let to_server = client.destination(&server.address())?;
    client.post_send(&to_server, SendRequest::send(b"request"))?;
    sent.wait()?.result?;
    let request = requests.wait()?;
    println!("server: {}", String::from_utf8_lossy(&request.data()?));

    let sender = request.sender().ok_or("a datagram has a sender")?;
    let to_client = server.destination(&DatagramAddress::new(sender.gid, sender.qpn, QKEY))?;
    server.post_send(&to_client, SendRequest::send(b"reply"))?;
    sent.wait()?.result?;
    let reply = replies.wait()?;
    println!("client: {}", String::from_utf8_lossy(&reply.data()?));
    assert_eq!(reply.data()?, b"reply");
    Ok(())
}

#[test]
fn it_works() -> Result<(), Box<dyn Error>> {
    main()
}
