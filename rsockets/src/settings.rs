//! Sizes and options of sockets. The administrator's defaults are files in `/etc/rdma/rsocket`, as
//! with librdmacm.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;
use urxe_proto::rsocket::stream::{CONTROL_SLOTS, LOW_WATER, Sizes};
use urxe_proto::rsocket::wire::{from_scale, to_scale};

const DIRECTORY: &str = "/etc/rdma/rsocket";

/// The minimum length of a queue.
const MIN_QUEUE: u16 = 16;
/// The maximum length of a queue: that of devices.
const MAX_QUEUE: u16 = urxe_driver::qp::MAX_QP_WR as u16;

/// The settings of the process.
#[derive(Debug)]
pub struct Defaults {
    /// The settings of a new socket.
    pub settings: Settings,
    /// The time for which a waiting thread polls before it sleeps.
    pub polling: Duration,
}

/// The sizes of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// The length of the send queue in work requests.
    pub send_queue: u16,
    /// The length of the receive queue in work requests.
    pub receive_queue: u16,
    /// The largest inline data in bytes.
    pub inline: u16,
    /// The size of the send buffer in bytes.
    pub send_buffer: u32,
    /// The size of the receive buffer in bytes.
    pub receive_buffer: u32,
    /// The number of entries for memory mapped by the peer.
    pub iomap_entries: u16,
}

impl Settings {
    /// The defaults of librdmacm.
    const USUAL: Settings = Settings {
        send_queue: 384,
        receive_queue: 384,
        inline: 64,
        send_buffer: 1 << 17,
        receive_buffer: 1 << 17,
        iomap_entries: 0,
    };

    /// Returns these sizes within the limits of streams.
    pub(super) fn of_stream(&self) -> Sizes {
        const _: () = assert!(MIN_QUEUE > CONTROL_SLOTS);
        Sizes {
            send_queue: self.send_queue.clamp(MIN_QUEUE, MAX_QUEUE),
            receive_queue: self.receive_queue.clamp(MIN_QUEUE, MAX_QUEUE),
            send_buffer: self.send_buffer.max(2 * LOW_WATER),
            // Two halves, each with the alignment of its entries.
            receive_buffer: self.receive_buffer.clamp(16, 1 << 30).next_multiple_of(2),
            iomap_entries: self.iomap_entries,
        }
    }

    /// Returns the number of datagrams that can wait to be sent and to be received.
    pub(super) fn of_datagrams(&self) -> (u16, u16) {
        let fitting = |queue: u16, buffer: u32| {
            let slots = u16::try_from(buffer / LOW_WATER).unwrap_or(u16::MAX);
            queue.min(slots).clamp(1, MAX_QUEUE)
        };
        (
            fitting(self.send_queue, self.send_buffer),
            fitting(self.receive_queue, self.receive_buffer),
        )
    }

    /// Sets the number of entries for mapped memory, within the limit of the protocol.
    pub fn set_iomap_entries(&mut self, entries: i32) {
        let entries = u16::try_from(entries).unwrap_or(if entries < 0 { 0 } else { u16::MAX });
        self.iomap_entries = from_scale(to_scale(entries));
    }
}

/// Returns the defaults of this process.
pub fn defaults() -> &'static Defaults {
    static DEFAULTS: OnceLock<Defaults> = OnceLock::new();
    DEFAULTS.get_or_init(|| read(Path::new(DIRECTORY)))
}

fn read(directory: &Path) -> Defaults {
    let number = |name: &str| -> Option<u32> {
        let text = fs::read_to_string(directory.join(name)).ok()?;
        text.split_whitespace().next()?.parse().ok()
    };
    let short = |name: &str| Some(u16::try_from(number(name)?).unwrap_or(u16::MAX));
    let usual = Settings::USUAL;
    let mut settings = Settings {
        send_queue: short("sqsize_default").unwrap_or(usual.send_queue),
        receive_queue: short("rqsize_default").unwrap_or(usual.receive_queue),
        inline: short("inline_default").unwrap_or(usual.inline),
        send_buffer: number("wmem_default").unwrap_or(usual.send_buffer),
        receive_buffer: number("mem_default").unwrap_or(usual.receive_buffer),
        iomap_entries: 0,
    };
    settings.set_iomap_entries(short("iomap_size").unwrap_or(0).into());
    Defaults {
        settings,
        polling: Duration::from_micros(number("polling_time").unwrap_or(10).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_define_the_defaults() {
        let directory = std::env::temp_dir().join(format!("urxe-rsocket-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        assert_eq!(read(&directory).settings, Settings::USUAL);
        for (name, text) in [
            ("sqsize_default", "100\n"),
            ("mem_default", "65536"),
            ("iomap_size", "200"),
            ("polling_time", "77"),
            ("rqsize_default", "many"),
        ] {
            fs::write(directory.join(name), text).unwrap();
        }
        let read = read(&directory);
        fs::remove_dir_all(&directory).unwrap();
        assert_eq!(read.polling, Duration::from_micros(77));
        let expected = Settings {
            send_queue: 100,
            receive_buffer: 65536,
            // The maximum of the protocol.
            iomap_entries: 128,
            ..Settings::USUAL
        };
        assert_eq!(read.settings, expected);
    }

    #[test]
    fn sizes_are_limited() {
        let small = Settings {
            send_queue: 1,
            receive_queue: u16::MAX,
            send_buffer: 0,
            receive_buffer: 7,
            ..Settings::USUAL
        };
        let sizes = small.of_stream();
        assert_eq!(
            (sizes.send_queue, sizes.receive_queue),
            (MIN_QUEUE, MAX_QUEUE)
        );
        assert_eq!((sizes.send_buffer, sizes.receive_buffer), (4096, 16));
        assert_eq!(Settings::USUAL.of_datagrams(), (64, 64));
    }
}
