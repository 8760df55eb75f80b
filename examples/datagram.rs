//! Exercise 8: datagrams. One queue pair asks, and the other answers to whom the question came from.

use std::error::Error;
use urxe::{DatagramAddress, GRH_BYTES, QKey, ReceiveRequest, RemoteAccess, SendRequest};

/// Both must have the same.
const QKEY: QKey = QKey(0x1111_1111);

fn main() -> Result<(), Box<dyn Error>> {
    let context = urxe::device("urxe_lo")?.open()?;
    let pd = context.pd();
    let (sent, asked, answered) = (
        context.completion_queue()?,
        context.completion_queue()?,
        context.completion_queue()?,
    );
    let client = pd.queue_pair(&sent, &answered).build_datagram(QKEY)?;
    let server = pd.queue_pair(&sent, &asked).build_datagram(QKEY)?;
    for qp in [&client, &server] {
        // The header with the addresses comes before the data.
        let room = pd.register(GRH_BYTES + 64, RemoteAccess::empty())?;
        qp.post_receive(ReceiveRequest::into(room.slice(..)?))?;
    }

    let to_server = client.destination(&server.address())?;
    client.post_send(&to_server, SendRequest::send(b"Who is there?"))?;
    sent.wait()?.result?;
    let question = asked.wait()?;
    println!("{}", String::from_utf8_lossy(&question.data()?));

    let sender = question.sender().ok_or("a datagram has a sender")?;
    let back = server.destination(&DatagramAddress::new(sender.gid, sender.qpn, QKEY))?;
    server.post_send(&back, SendRequest::send(b"A datagram."))?;
    sent.wait()?.result?;
    let answer = answered.wait()?;
    println!("{}", String::from_utf8_lossy(&answer.data()?));
    assert_eq!(answer.data()?, b"A datagram.");
    Ok(())
}

#[test]
fn it_works() -> Result<(), Box<dyn Error>> {
    main()
}
