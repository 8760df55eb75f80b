//! Lists the devices of this host.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    for device in urxe::devices()? {
        let guid = u64::from_be_bytes(device.guid());
        println!(
            "{} on interface {}, node GUID {guid:016x}",
            device.name(),
            device.interface()
        );
    }
    Ok(())
}

#[test]
fn it_works() -> Result<(), Box<dyn Error>> {
    main()
}
