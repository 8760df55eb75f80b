//! Exercise 2: the port of each device, and its GIDs: the addresses of the interface.

use std::error::Error;
use urxe::Gid;

fn main() -> Result<(), Box<dyn Error>> {
    for device in urxe::devices()? {
        println!("{}: {:?}", device.name(), device.port_state());
        for (index, address) in device.gids() {
            println!("  GID {index}: {} ({address})", Gid::from_ip(address));
        }
    }
    Ok(())
}

#[test]
fn it_works() -> Result<(), Box<dyn Error>> {
    main()
}
