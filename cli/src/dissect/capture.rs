//! Reads the frames of a capture file, pcap or pcapng.

use std::fs::File;
use std::io::{self, BufReader, Read as _, Seek as _};
use std::path::Path;
use std::time::Duration;

use pcap_file::pcap::PcapReader;
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::{Block, PcapNgReader};
use pcap_file::{DataLink, PcapError, TsResolution};

/// The first bytes of a pcapng file, in both byte orders: the type of the section header.
const PCAPNG: [u8; 4] = [0x0a, 0x0d, 0x0d, 0x0a];

/// One frame.
pub struct Frame<'a> {
    /// The number in the file, from 1, as in Wireshark.
    pub number: u64,
    /// The time since 1970.
    pub time: Duration,
    pub link: DataLink,
    /// The number of the interface in the file.
    pub interface: u32,
    /// The captured bytes, from the link layer's header.
    pub bytes: &'a [u8],
}

/// Why a file is not read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    #[error("cannot read {path}: {source}")]
    File {
        path: String,
        #[source]
        source: io::Error,
    },
    #[error(
        "{0} is not a capture file: expected pcap or pcapng, as `urxe run --pcap`, tcpdump -w and \
         Wireshark write them"
    )]
    Format(String),
}

/// Calls `each` for every frame. Returns why reading ended before the end of the file, if it did:
/// the file of a capture that was killed ends within a frame.
///
/// # Errors
/// When the file cannot be opened, or is not a capture.
pub fn read(path: &Path, mut each: impl FnMut(Frame<'_>)) -> Result<Option<String>, ReadError> {
    let file_error = |source| ReadError::File {
        path: path.display().to_string(),
        source,
    };
    let mut file = File::open(path).map_err(file_error)?;
    let mut magic = [0; 4];
    match file.read_exact(&mut magic) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Err(ReadError::Format(path.display().to_string()));
        }
        read => read.map_err(file_error)?,
    }
    file.rewind().map_err(file_error)?;
    let file = BufReader::new(file);
    let format = |_| ReadError::Format(path.display().to_string());
    match magic {
        PCAPNG => Ok(read_pcapng(
            PcapNgReader::new(file).map_err(format)?,
            &mut each,
        )),
        _ => Ok(read_pcap(PcapReader::new(file).map_err(format)?, &mut each)),
    }
}

fn read_pcap<R: io::Read>(
    mut reader: PcapReader<R>,
    each: &mut impl FnMut(Frame<'_>),
) -> Option<String> {
    let header = reader.header();
    let mut number = 0;
    while let Some(packet) = reader.next_raw_packet() {
        let packet = match packet {
            Ok(packet) => packet,
            Err(error) => return Some(explain(&error, number)),
        };
        number += 1;
        let fraction = match header.ts_resolution {
            TsResolution::MicroSecond => u64::from(packet.ts_frac) * 1000,
            TsResolution::NanoSecond => packet.ts_frac.into(),
        };
        each(Frame {
            number,
            time: Duration::from_secs(packet.ts_sec.into()) + Duration::from_nanos(fraction),
            link: header.datalink,
            interface: 0,
            bytes: &packet.data,
        });
    }
    None
}

fn read_pcapng<R: io::Read>(
    mut reader: PcapNgReader<R>,
    each: &mut impl FnMut(Frame<'_>),
) -> Option<String> {
    let mut number = 0;
    // The interfaces of the current section.
    let mut interfaces: Vec<(DataLink, u8)> = Vec::new();
    while let Some(block) = reader.next_block() {
        let block = match block {
            Ok(block) => block,
            Err(error) => return Some(explain(&error, number)),
        };
        let (id, ticks, bytes) = match &block {
            Block::SectionHeader(_) => {
                interfaces.clear();
                continue;
            }
            Block::InterfaceDescription(description) => {
                interfaces.push((description.linktype, resolution(description)));
                continue;
            }
            // The crate takes the ticks for nanoseconds, whatever the interface's resolution.
            Block::EnhancedPacket(packet) => (
                packet.interface_id,
                packet.timestamp.as_nanos(),
                &packet.data,
            ),
            // Has no time.
            Block::SimplePacket(packet) => (0, 0, &packet.data),
            _ => continue,
        };
        number += 1;
        let Some(&(link, resolution)) = interfaces.get(id as usize) else {
            return Some(format!(
                "frame {number} names the interface {id}, which the file does not describe"
            ));
        };
        each(Frame {
            number,
            time: time_of(ticks, resolution),
            link,
            interface: id,
            bytes,
        });
    }
    None
}

/// Returns the resolution of an interface's timestamps as pcapng encodes it; 6, microseconds, where
/// it is absent.
fn resolution(description: &InterfaceDescriptionBlock<'_>) -> u8 {
    let options = description.options.iter();
    let mut resolutions = options.filter_map(|option| match option {
        InterfaceDescriptionOption::IfTsResol(resolution) => Some(*resolution),
        _ => None,
    });
    resolutions.next().unwrap_or(6)
}

/// Converts ticks: a negative power of 10, or of 2 if the top bit is set.
fn time_of(ticks: u128, resolution: u8) -> Duration {
    let base: u128 = if resolution & 0x80 == 0 { 10 } else { 2 };
    let Some(per_second) = base.checked_pow(u32::from(resolution & 0x7f)) else {
        return Duration::ZERO;
    };
    let seconds = u64::try_from(ticks / per_second).unwrap_or(0);
    // The rest is below `per_second`; beyond 2^64 ticks a second its low bits are below 1 ns.
    let rest = (ticks % per_second) as f64 / per_second as f64;
    Duration::from_secs(seconds) + Duration::from_nanos((rest * 1e9).round() as u64)
}

fn explain(error: &PcapError, frames: u64) -> String {
    match error {
        PcapError::IoError(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            format!("the file ends within frame {}", frames + 1)
        }
        error => format!("the file is damaged after frame {frames}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_follow_the_resolution_of_the_interface() {
        let time = Duration::from_micros(1_700_000_000_123_456);
        assert_eq!(time_of(time.as_micros(), 6), time);
        assert_eq!(time_of(time.as_nanos(), 9), time);
        // 2^-10 s.
        assert_eq!(time_of(1536, 0x8a), Duration::from_millis(1500));
        assert_eq!(time_of(1, 0x7f), Duration::ZERO);
    }
}
