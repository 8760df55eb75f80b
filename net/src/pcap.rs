//! `URXE_PCAP=FILE`: capture of sent and received packets as pcapng.
//!
//! A UDP socket does not pass on the headers around its payload, but their content is known. For
//! sent packets it follows from the socket options. For received packets the kernel reports
//! addresses, TOS and TTL, and the ICRC reveals the identification. So the capture has the actual
//! headers, and any reader can verify its ICRCs. The UDP checksum of received packets is unknown;
//! the capture contains a correct one. The link layer is raw IP.

use crate::capture::{Capture, CaptureError, Record};
use crate::clock;
use crate::sync::lock;
use etherparse::{IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header, UdpHeader};
use pcap_file::DataLink;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use rustix::fs::{FlockOperation, flock};
use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// The size of buffered records, in bytes, at which they are written even within a batch.
const SPOOL_LIMIT: usize = 1 << 20;

/// The timestamp resolution: nanoseconds, as the negative power of ten that pcapng requires.
const NANOSECONDS: u8 = 9;

/// A capture file that is being written.
pub(super) struct PcapFile {
    path: PathBuf,
    pid: u32,
    file: Mutex<Spooled>,
}

struct Spooled {
    file: File,
    writer: PcapNgWriter<Spool>,
    spool: Spool,
}

/// Complete records that are not in the file yet.
#[derive(Clone, Default)]
struct Spool(Arc<Mutex<Vec<u8>>>);

impl Spool {
    fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        lock(&self.0)
    }
}

impl Write for Spool {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl PcapFile {
    /// Starts a capture in the file that `URXE_PCAP` names, where `%p` stands for the process ID.
    /// If another process writes that file, this one appends its process ID to the name.
    ///
    /// # Errors
    /// When the file cannot be created or written.
    pub(super) fn open(name: &str) -> Result<PcapFile, CaptureError> {
        if name.is_empty() {
            return Err(CaptureError::Empty);
        }
        let pid = std::process::id();
        let path = PathBuf::from(name.replace("%p", &pid.to_string()));
        let (path, file) = match claim(&path)? {
            Some(file) => (path, file),
            None => {
                let own = PathBuf::from(format!("{}.{pid}", path.display()));
                tracing::warn!(
                    "another process captures to {}: this one captures to {}",
                    path.display(),
                    own.display()
                );
                let file = claim(&own)?.ok_or_else(|| CaptureError::File {
                    path: own.clone(),
                    source: io::Error::from(io::ErrorKind::ResourceBusy),
                })?;
                (own, file)
            }
        };
        Self::start(path.clone(), pid, file).map_err(|source| CaptureError::File { path, source })
    }

    fn start(path: PathBuf, pid: u32, file: File) -> io::Result<PcapFile> {
        file.set_len(0)?;
        let spool = Spool::default();
        let mut writer = PcapNgWriter::new(spool.clone()).map_err(io::Error::other)?;
        writer
            .write_pcapng_block(InterfaceDescriptionBlock {
                linktype: DataLink::RAW,
                snaplen: 0,
                options: vec![
                    InterfaceDescriptionOption::IfName(Cow::Borrowed("urxe")),
                    InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
                ],
            })
            .map_err(io::Error::other)?;
        let mut spooled = Spooled {
            file,
            writer,
            spool,
        };
        spooled.flush()?;
        Ok(PcapFile {
            path,
            pid,
            file: Mutex::new(spooled),
        })
    }

    /// Whether this process opened the file. A forked child leaves it to its parent.
    fn is_ours(&self) -> bool {
        std::process::id() == self.pid
    }
}

impl Capture for PcapFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn record(&self, record: &Record<'_>) -> io::Result<()> {
        let Some(packet) = with_headers(record) else {
            return Err(io::Error::other(
                "the addresses of a packet differ in family",
            ));
        };
        let mut options = vec![EnhancedPacketOption::Flags(record.direction as u32)];
        if let Some(comment) = record.comment {
            options.insert(0, EnhancedPacketOption::Comment(Cow::Borrowed(comment)));
        }
        let mut spooled = lock(&self.file);
        spooled
            .writer
            .write_pcapng_block(EnhancedPacketBlock {
                interface_id: 0,
                timestamp: Duration::from_nanos(clock::wall()),
                original_len: packet.len() as u32,
                data: Cow::Owned(packet),
                options,
            })
            .map_err(io::Error::other)?;
        let full = spooled.spool.bytes().len() > SPOOL_LIMIT;
        if full && self.is_ours() {
            return spooled.flush();
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        if !self.is_ours() {
            return Ok(());
        }
        lock(&self.file).flush()
    }
}

impl Spooled {
    fn flush(&mut self) -> io::Result<()> {
        let mut bytes = self.spool.bytes();
        if bytes.is_empty() {
            return Ok(());
        }
        let written = self.file.write_all(&bytes);
        bytes.clear();
        written
    }
}

/// Opens and locks a file; `None` while another process has it locked. The lock lasts as long as
/// the file is open, which is until the process ends.
fn claim(path: &Path) -> Result<Option<File>, CaptureError> {
    let error = |source: io::Error| CaptureError::File {
        path: path.to_owned(),
        source,
    };
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)
        .map_err(error)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        // The file system has no locks: distinct names are the user's responsibility.
        Err(_) => Ok(Some(file)),
    }
}

/// Returns the packet with IP and UDP headers; `None` when the address families differ.
fn with_headers(record: &Record<'_>) -> Option<Vec<u8>> {
    let payload = record.bytes;
    let udp_len = payload.len() + UdpHeader::LEN;
    let mut packet = Vec::with_capacity(Ipv6Header::LEN + udp_len);
    let (sport, dport) = (record.src.port(), record.dst.port());
    match (record.src.ip(), record.dst.ip()) {
        (IpAddr::V4(src), IpAddr::V4(dst)) => {
            let mut ip = Ipv4Header::new(
                u16::try_from(udp_len).ok()?,
                record.ttl,
                IpNumber::UDP,
                src.octets(),
                dst.octets(),
            )
            .ok()?;
            // Six bits and two bits, so both conversions succeed.
            ip.dscp = (record.tos >> 2).try_into().ok()?;
            ip.ecn = (record.tos & 3).try_into().ok()?;
            let id = record.ip_id.unwrap_or_default();
            ip.identification = id.id;
            ip.dont_fragment = id.dont_fragment;
            ip.header_checksum = ip.calc_header_checksum();
            let udp = UdpHeader::with_ipv4_checksum(sport, dport, &ip, payload).ok()?;
            packet.extend_from_slice(&ip.to_bytes());
            packet.extend_from_slice(&udp.to_bytes());
        }
        (IpAddr::V6(src), IpAddr::V6(dst)) => {
            let ip = Ipv6Header {
                traffic_class: record.tos,
                flow_label: Ipv6FlowLabel::ZERO,
                payload_length: u16::try_from(udp_len).ok()?,
                next_header: IpNumber::UDP,
                hop_limit: record.ttl,
                source: src.octets(),
                destination: dst.octets(),
            };
            let udp = UdpHeader::with_ipv6_checksum(sport, dport, &ip, payload).ok()?;
            packet.extend_from_slice(&ip.to_bytes());
            packet.extend_from_slice(&udp.to_bytes());
        }
        _ => return None,
    }
    packet.extend_from_slice(payload);
    Some(packet)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::Direction;
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};
    use pcap_file::pcapng::{Block, PcapNgReader};

    fn name(part: &str) -> PathBuf {
        std::env::temp_dir().join(format!("urxe-pcap-{part}-{}", std::process::id()))
    }

    fn record<'a>(bytes: &'a [u8], v6: bool) -> Record<'a> {
        let (src, dst) = if v6 {
            ("[2001:db8::1]:49152", "[2001:db8::2]:4791")
        } else {
            ("192.0.2.1:49152", "192.0.2.2:4791")
        };
        Record {
            direction: Direction::Out,
            src: src.parse().unwrap(),
            dst: dst.parse().unwrap(),
            tos: 0x29,
            ttl: 17,
            ip_id: Some(crate::icrc::sent_id(0x718c)),
            comment: Some("a comment"),
            bytes,
        }
    }

    #[test]
    fn capture_is_complete_after_each_flush_and_has_correct_headers() {
        let path = name("headers");
        let capture = PcapFile::open(path.to_str().unwrap()).unwrap();
        capture.record(&record(b"0123456789abcdef", false)).unwrap();
        capture.record(&record(b"0123456789abcdef", true)).unwrap();
        capture.flush().unwrap();
        // The capture is still open, as if the process were killed now.
        let mut reader = PcapNgReader::new(File::open(&path).unwrap()).unwrap();
        let mut packets = Vec::new();
        while let Some(block) = reader.next_block() {
            if let Block::EnhancedPacket(packet) = block.unwrap() {
                packets.push(packet.data.into_owned());
                assert!(packet.options.contains(&EnhancedPacketOption::Flags(2)));
                let age = clock::wall() - packet.timestamp.as_nanos() as u64;
                assert!(age < 60_000_000_000);
            }
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(packets.len(), 2);

        let v4 = SlicedPacket::from_ip(&packets[0]).unwrap();
        let Some(NetSlice::Ipv4(ip)) = v4.net else {
            panic!("no IPv4 header");
        };
        let header = ip.header().to_header();
        assert_eq!(header.identification, 0x718c);
        assert_eq!(header.time_to_live, 17);
        assert_eq!(header.dscp.value() << 2 | header.ecn.value(), 0x29);
        assert!(header.dont_fragment);
        assert_eq!(header.header_checksum, header.calc_header_checksum());
        let Some(TransportSlice::Udp(udp)) = v4.transport else {
            panic!("no UDP header");
        };
        assert_eq!(udp.length(), 24);
        assert_eq!(udp.payload(), b"0123456789abcdef");

        let v6 = SlicedPacket::from_ip(&packets[1]).unwrap();
        let Some(NetSlice::Ipv6(ip)) = v6.net else {
            panic!("no IPv6 header");
        };
        assert_eq!(ip.header().traffic_class(), 0x29);
        assert_eq!(ip.header().hop_limit(), 17);
    }

    #[test]
    fn file_of_another_capture_is_not_overwritten() {
        let path = name("shared");
        let text = path.to_str().unwrap();
        let first = PcapFile::open(text).unwrap();
        first.record(&record(b"0123456789abcdef", false)).unwrap();
        first.flush().unwrap();
        let length = std::fs::metadata(&path).unwrap().len();
        let second = PcapFile::open(text).unwrap();
        assert_eq!(
            second.path.to_str().unwrap(),
            format!("{text}.{}", std::process::id())
        );
        assert_eq!(std::fs::metadata(&path).unwrap().len(), length);
        std::fs::remove_file(&second.path).unwrap();
        drop(first);
        let third = PcapFile::open(text).unwrap();
        assert_eq!(third.path, path);
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn percent_p_is_the_process_id_and_invalid_names_are_errors() {
        let pattern = format!("{}-%p", name("pid").display());
        let capture = PcapFile::open(&pattern).unwrap();
        let own = format!("-{}", std::process::id());
        assert!(capture.path.to_str().unwrap().ends_with(&own));
        std::fs::remove_file(&capture.path).unwrap();
        assert!(matches!(PcapFile::open(""), Err(CaptureError::Empty)));
        let Err(error) = PcapFile::open("/nonexistent/dir/file") else {
            panic!("the directory does not exist");
        };
        assert!(error.to_string().contains("/nonexistent/dir/file"));
    }
}
