//! Memory regions with different remote access rights: the peer may use only the rights granted.

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
    for (rights, region, expected) in [
        ("no remote access", &private, WcStatus::RemAccessErr),
        ("remote READ", &readable, WcStatus::RemAccessErr),
        ("remote READ and WRITE", &open, WcStatus::Success),
    ] {
        // An access error leaves the queue pair in the error state, so each attempt uses new ones.
        let (a, b) = (
            pd.queue_pair(&cq, &cq).build()?,
            pd.queue_pair(&cq, &cq).build()?,
        );
        let (endpoint_a, endpoint_b) = (a.endpoint(), b.endpoint());
        let a = a.connect(&endpoint_b, &ConnectOptions::default())?;
        let _b = b.connect(&endpoint_a, &ConnectOptions::default())?;
        a.post_send(SendRequest::write(b"written by the peer", &region.remote()))?;
        let status = match cq.wait()?.result {
            Ok(_) => WcStatus::Success,
            Err(error) => error.status,
        };
        println!("WRITE to a region with {rights}: {status:?}");
        if status != expected {
            return Err(format!("expected {expected:?}").into());
        }
    }
    if open.to_vec(..19)? != b"written by the peer" {
        return Err("the WRITE has no effect".into());
    }
    Ok(())
}

#[test]
fn it_works() -> Result<(), Box<dyn Error>> {
    main()
}
