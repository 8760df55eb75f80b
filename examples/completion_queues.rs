//! Two ways to wait for completions: polling, and sleeping until a notification.

use std::error::Error;
use std::thread;
use urxe::{ConnectOptions, ReceiveRequest, RemoteAccess, SendRequest};

fn main() -> Result<(), Box<dyn Error>> {
    let context = urxe::device("urxe_lo")?.open()?;
    let pd = context.pd();
    let (polled, armed) = (context.completion_queue()?, context.completion_queue()?);
    let a = pd.queue_pair(&polled, &polled).build()?;
    let b = pd.queue_pair(&armed, &armed).build()?;
    let (endpoint_a, endpoint_b) = (a.endpoint(), b.endpoint());
    let memory = pd.register(64, RemoteAccess::empty())?;
    b.post_receive(ReceiveRequest::into(memory.slice(..)?))?;
    let a = a.connect(&endpoint_b, &ConnectOptions::default())?;
    let _b = b.connect(&endpoint_a, &ConnectOptions::default())?;

    // Sleeps until there is a completion. An event loop would poll the queue's descriptor instead.
    let sleeper = thread::spawn(move || armed.wait());
    a.post_send(SendRequest::send(b"wake up"))?;
    let sent = loop {
        if let Some(completion) = polled.poll() {
            break completion;
        }
    };
    println!("polled: {:?}", sent.result?.opcode);
    let received = sleeper.join().expect("the thread does not panic")?;
    println!("slept: {}", String::from_utf8_lossy(&received.data()?));
    Ok(())
}

#[test]
fn it_works() -> Result<(), Box<dyn Error>> {
    main()
}
