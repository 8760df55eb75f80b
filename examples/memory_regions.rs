//! Exercise 3: three memory regions of one protection domain, each with other rights for the peer. What a
//! region does not grant, the peer does not get.

use std::error::Error;
use urxe::{ConnectOptions, RemoteAccess, SendRequest, WcStatus};

fn main() -> Result<(), Box<dyn Error>> {
    let context = urxe::device("urxe_lo")?.open()?;
    let pd = context.pd();
    let private = pd.register(4096, RemoteAccess::empty())?;
    let readable = pd.register(4096, RemoteAccess::READ)?;
    let open = pd.register(4096, RemoteAccess::READ | RemoteAccess::WRITE)?;
    open.write(0, b"written by the owner")?;

    let cq = context.completion_queue()?;
    for (name, region, wanted) in [
        ("nothing", &private, WcStatus::RemAccessErr),
        ("reading", &readable, WcStatus::RemAccessErr),
        ("reading and writing", &open, WcStatus::Success),
    ] {
        // A queue pair that was refused is in error, so each attempt has two of its own.
        let (a, b) = (
            pd.queue_pair(&cq, &cq).build()?,
            pd.queue_pair(&cq, &cq).build()?,
        );
        let (at_a, at_b) = (a.endpoint(), b.endpoint());
        let a = a.connect(&at_b, &ConnectOptions::default())?;
        let _b = b.connect(&at_a, &ConnectOptions::default())?;
        a.post_send(SendRequest::write(b"written by the peer", &region.remote()))?;
        let status = match cq.wait()?.result {
            Ok(_) => WcStatus::Success,
            Err(error) => error.status,
        };
        println!("a write where the peer may do {name}: {status:?}");
        if status != wanted {
            return Err("the rights do not hold".into());
        }
    }
    if open.to_vec(..19)? != b"written by the peer" {
        return Err("nothing was written".into());
    }
    Ok(())
}

#[test]
fn it_works() -> Result<(), Box<dyn Error>> {
    main()
}
