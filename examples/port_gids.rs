//! Lists the port state and the GIDs of each device. The GIDs are the addresses of the interface.

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
