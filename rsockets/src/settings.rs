//! Sizes and options of sockets. What an administrator wants is in the files of `/etc/rdma/rsocket`, as with
//! librdmacm.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;
use urxe_proto::rsocket::stream::{CONTROL_SLOTS, LOW_WATER, Sizes};
use urxe_proto::rsocket::wire::{from_scale, to_scale};

const DIRECTORY: &str = "/etc/rdma/rsocket";

/// The fewest entries of a queue.
const MIN_QUEUE: u16 = 16;
/// The most: what a device has.
const MAX_QUEUE: u16 = urxe_driver::qp::MAX_QP_WR as u16;

/// What is the same for all sockets of the process.
#[derive(Debug)]
pub struct Defaults {
    /// What a new socket has.
    pub settings: Settings,
    /// How long who waits polls before it sleeps.
    pub polling: Duration,
}

/// The sizes that a socket is to have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Work requests of the send queue.
    pub send_queue: u16,
    /// Receives of the receive queue.
    pub receive_queue: u16,
    /// The most bytes that go without the send buffer.
    pub inline: u16,
    /// Bytes of the send buffer.
    pub send_buffer: u32,
    /// Bytes of the receive buffer.
    pub receive_buffer: u32,
    /// Entries for memory that the peer maps.
    pub iomap_entries: u16,
}

impl Settings {
    /// librdmacm's.
    const USUAL: Settings = Settings {
        send_queue: 384,
        receive_queue: 384,
        inline: 64,
        send_buffer: 1 << 17,
        receive_buffer: 1 << 17,
        iomap_entries: 0,
    };

    /// What a stream can have of it.
    pub(super) fn of_stream(&self) -> Sizes {
        const _: () = assert!(MIN_QUEUE > CONTROL_SLOTS);
        Sizes {
            send_queue: self.send_queue.clamp(MIN_QUEUE, MAX_QUEUE),
            receive_queue: self.receive_queue.clamp(MIN_QUEUE, MAX_QUEUE),
            send_buffer: self.send_buffer.max(2 * LOW_WATER),
            // Two halves, aligned as their entries are told.
            receive_buffer: self.receive_buffer.clamp(16, 1 << 30).next_multiple_of(2),
            iomap_entries: self.iomap_entries,
        }
    }

    /// What datagrams can have of it: how many can wait to be sent, and to be received.
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

    /// As many entries for mapped memory as can be told to the peer.
    pub fn set_iomap_entries(&mut self, entries: i32) {
        let entries = u16::try_from(entries).unwrap_or(if entries < 0 { 0 } else { u16::MAX });
        self.iomap_entries = from_scale(to_scale(entries));
    }
}

/// The defaults of this process.
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
    fn files_say_what_new_sockets_have() {
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
            // As many as can be told.
            iomap_entries: 128,
            ..Settings::USUAL
        };
        assert_eq!(read.settings, expected);
    }

    #[test]
    fn sizes_are_made_to_fit() {
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
