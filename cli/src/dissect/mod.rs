//! `urxe dissect`: verifies and explains the RoCEv2 packets of a capture file.

mod capture;
mod chart;
mod connections;
mod datagram;
mod dissection;
mod finding;
mod follow;
mod packet;
mod report;
mod requests;
mod responses;
mod sequence;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use capture::{Frame, ReadError};
use datagram::{Contents, Datagram, Icrc};
use dissection::Dissection;
use finding::{Finding, Kind, section_of};
use packet::Packet;

/// The longest time between two captures of the same packet at interfaces of a host.
const FORWARDING_TIME: Duration = Duration::from_millis(10);

/// The exit status when a rule is broken or an ICRC is wrong.
const FAULT: u8 = 1;
/// The exit status when the file cannot be read or the page cannot be written; that of a wrong
/// argument.
const UNREADABLE: u8 = 2;

/// Verify and explain a capture: ICRCs, retransmissions, NAKs, broken rules
#[derive(clap::Args)]
#[command(
    after_help = "Reads pcap and pcapng files of urxe, tcpdump and Wireshark, with Ethernet, Linux \
                  cooked, raw IP or loopback link layers. Section numbers refer to the InfiniBand \
                  Architecture Specification, volume 1.\n\n\
                  Exit status: 0 if the file was read; 2 if it cannot be read. With --check: 1 if \
                  an ICRC is wrong, a packet is malformed or a rule is broken, and also if there \
                  is no RoCEv2 packet."
)]
pub struct Arguments {
    /// Capture file
    file: PathBuf,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
    /// List each packet
    #[arg(long)]
    packets: bool,
    /// Fail if an ICRC is wrong, a packet is malformed or a rule is broken, for CI
    #[arg(long)]
    check: bool,
    /// Write a page with a sequence chart of each connection to FILE
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Dissects the file and prints the report.
pub fn dissect(arguments: &Arguments) -> ExitCode {
    let dissection = match read(&arguments.file) {
        Ok(dissection) => dissection,
        Err(error) => {
            eprintln!("urxe dissect: {error}");
            return ExitCode::from(UNREADABLE);
        }
    };
    let text = match arguments.json {
        true => report::json(&dissection, arguments.packets),
        false => report::text(&dissection, arguments.packets),
    };
    // A failed write means that the reader closed the pipe, which is no error.
    let _ = io::stdout().write_all(text.as_bytes());
    if let Some(cut) = &dissection.cut {
        eprintln!("urxe dissect: {cut}; the report covers the packets before it");
    }
    if dissection.unsupported > 0 {
        eprintln!(
            "urxe dissect: {} frames have a link layer that is not supported; capture Ethernet, \
             cooked, raw IP or loopback frames",
            dissection.unsupported
        );
    }
    if let Some(page) = &arguments.html
        && let Err(error) = fs::write(page, chart::page(&arguments.file, &dissection))
    {
        eprintln!("urxe dissect: cannot write {}: {error}", page.display());
        return ExitCode::from(UNREADABLE);
    }
    match arguments.check && !dissection.is_faultless() {
        true => ExitCode::from(FAULT),
        false => ExitCode::SUCCESS,
    }
}

fn read(file: &Path) -> Result<Dissection, ReadError> {
    let mut reader = Reader::default();
    let cut = capture::read(file, |frame| reader.frame(&frame))?;
    let mut dissection = reader.dissection;
    dissection.cut = cut;
    let (connections, findings) = follow::follow(&dissection.packets);
    dissection.connections = connections;
    dissection.findings.extend(findings);
    dissection.findings.sort_by_key(|finding| finding.frame);
    Ok(dissection)
}

/// Collects the packets of a file.
#[derive(Default)]
struct Reader {
    dissection: Dissection,
    start: Option<Duration>,
    seen: Seen,
}

impl Reader {
    fn frame(&mut self, frame: &Frame<'_>) {
        let start = *self.start.get_or_insert(frame.time);
        // Frames of several interfaces may be out of order. Those before the first one get time 0.
        let time = frame.time.saturating_sub(start);
        let dissection = &mut self.dissection;
        dissection.frames += 1;
        dissection.duration = dissection.duration.max(time);
        if !datagram::is_supported(frame.link) {
            dissection.unsupported += 1;
            return;
        }
        match datagram::contents(frame.link, frame.bytes) {
            Contents::Other => (),
            Contents::Fragment(src, dst) => {
                dissection.malformed += 1;
                let text = format!("an IP fragment from {src} to {dst}");
                let finding = Finding::new(Kind::Malformed, frame.number, time, text);
                dissection.findings.push(finding.section("A17.3.1"));
            }
            Contents::Roce(datagrams) => {
                for datagram in datagrams {
                    if self.seen.is_copy(&datagram, frame, time) {
                        self.dissection.copies += 1;
                    } else {
                        self.datagram(&datagram, frame.number, time);
                    }
                }
            }
        }
    }

    fn datagram(&mut self, datagram: &Datagram<'_>, frame: u64, time: Duration) {
        let dissection = &mut self.dissection;
        match datagram.icrc {
            Icrc::Right => dissection.right += 1,
            Icrc::Truncated => dissection.truncated += 1,
            Icrc::Wrong { received, expected } => {
                dissection.wrong += 1;
                let (src, dst) = (datagram.src.ip(), datagram.dst.ip());
                let text = format!(
                    "the ICRC from {src} to {dst} is {received:08x}, expected {expected:08x}"
                );
                let finding = Finding::new(Kind::WrongIcrc, frame, time, text);
                dissection.findings.push(finding.section("A17.3.3"));
                // A receiver drops such a packet, so it belongs to no connection.
                return;
            }
        }
        match Packet::parse(datagram, frame, time) {
            Ok(packet) => dissection.packets.extend(packet),
            Err(error) => {
                dissection.malformed += 1;
                let finding = Finding::new(Kind::Malformed, frame, time, error.to_string());
                dissection
                    .findings
                    .push(finding.section(section_of(&error)));
            }
        }
    }
}

/// Recognises copies of a packet. A capture of all interfaces contains a packet once for each
/// interface that it passes, and twice if the host sends it to itself.
#[derive(Default)]
struct Seen {
    /// The place and the time of the latest capture, by source port, ICRC and PSN.
    last: HashMap<(u16, u32, [u8; 4]), (Place, Duration)>,
}

/// Where a frame was captured.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    interface: u32,
    /// The interface and the direction in the header of a cooked capture.
    cooked: [u8; 6],
}

impl Seen {
    fn is_copy(&mut self, datagram: &Datagram<'_>, frame: &Frame<'_>, time: Duration) -> bool {
        let Some(&psn) = datagram.bytes.get(8..12).and_then(|psn| psn.first_chunk()) else {
            return false;
        };
        if datagram.checksum == 0 {
            return false;
        }
        let place = Place {
            interface: frame.interface,
            cooked: datagram::cooked_place(frame.link, frame.bytes),
        };
        let key = (datagram.src.port(), datagram.checksum, psn);
        let elsewhere = self.last.get(&key).is_some_and(|&(first, at)| {
            first != place && time.saturating_sub(at) < FORWARDING_TIME
        });
        if !elsewhere {
            self.last.insert(key, (place, time));
        }
        elsewhere
    }
}
