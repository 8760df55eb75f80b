//! A parsed packet with its place in the capture.

use std::net::IpAddr;
use std::time::Duration;

use urxe_proto::cm::wire::Message;
use urxe_proto::ids::Qpn;
use urxe_proto::wire::{self, Header, Operation, ParseError, Syndrome};

use super::datagram::{Datagram, Icrc};

/// A packet of the capture.
#[derive(Debug)]
pub struct Packet {
    pub frame: u64,
    /// The time since the first frame.
    pub time: Duration,
    pub src: IpAddr,
    pub dst: IpAddr,
    pub icrc: Icrc,
    /// With the same headers it identifies the packet.
    pub checksum: u32,
    /// Whether a router marked congestion.
    pub congestion: bool,
    pub header: Header,
    /// The length of the payload, without the pad.
    pub len: usize,
    /// The connection manager's message, if it is one.
    pub cm: Option<Box<Message>>,
}

impl Packet {
    /// Parses a datagram; `None` if the capture lacks a part of the headers.
    ///
    /// # Errors
    /// The rule that the packet violates.
    pub fn parse(
        datagram: &Datagram<'_>,
        frame: u64,
        time: Duration,
    ) -> Result<Option<Self>, ParseError> {
        // What was not captured is payload; its length counts, its content does not.
        let mut filled;
        let bytes = if datagram.bytes.len() < datagram.len {
            filled = datagram.bytes.to_vec();
            filled.resize(datagram.len, 0);
            &filled[..]
        } else {
            datagram.bytes
        };
        let parsed = wire::Packet::parse(bytes);
        let captured = datagram.bytes.len();
        let header = match parsed {
            Ok(parsed) => parsed.header,
            Err(_) if captured < datagram.len => return Ok(None),
            Err(error) => return Err(error),
        };
        if captured < header.len() {
            return Ok(None);
        }
        let parsed = parsed?;
        let is_mad = header.bth.dest_qp == Qpn::GSI && captured == datagram.len;
        let cm = is_mad
            .then(|| Message::parse(parsed.payload).ok())
            .flatten();
        Ok(Some(Self {
            frame,
            time,
            src: datagram.src.ip(),
            dst: datagram.dst.ip(),
            icrc: datagram.icrc,
            checksum: datagram.checksum,
            congestion: datagram.congestion,
            header,
            len: parsed.payload.len(),
            cm: cm.map(|(_, message)| Box::new(message)),
        }))
    }

    pub fn operation(&self) -> Operation {
        self.header.bth.opcode.info().operation
    }

    /// A short name, with what matters of the headers.
    pub fn label(&self) -> String {
        let bth = &self.header.bth;
        let info = bth.opcode.info();
        if let Some(message) = &self.cm {
            return format!("CM {}", format!("{:?}", message.attribute()).to_uppercase());
        }
        let mut label = match info.operation {
            Operation::Ack => String::new(),
            _ => short(info.name).to_owned(),
        };
        if let Some(aeth) = self.header.aeth {
            if !label.is_empty() && !matches!(aeth.syndrome, Syndrome::Ack(_)) {
                label.push(' ');
            }
            label += &match aeth.syndrome {
                Syndrome::Ack(_) if label.is_empty() => "ACK".to_owned(),
                Syndrome::Ack(_) => String::new(),
                Syndrome::RnrNak(timer) => format!("RNR NAK {:?}", timer.duration()),
                Syndrome::Nak(code) => format!("NAK {}", nak_name(code)),
                Syndrome::Reserved(byte) => format!("reserved syndrome {byte:#04x}"),
            };
        }
        label += &format!(" PSN {}", bth.psn);
        if let Some(reth) = self.header.reth {
            label += &format!(" of {} bytes", reth.length);
        } else if self.len > 0 {
            label += &format!(", {} bytes", self.len);
        }
        label
    }
}

/// The name of an opcode without its transport.
fn short(name: &str) -> &str {
    let transports = ["RC ", "UC ", "UD ", "XRC ", "RDMA "];
    let mut name = name;
    for transport in transports {
        name = name.strip_prefix(transport).unwrap_or(name);
    }
    name
}

/// The name of a NAK code in the specification.
pub fn nak_name(code: wire::NakCode) -> String {
    match code {
        wire::NakCode::PsnSequence => "PSN sequence error".to_owned(),
        wire::NakCode::InvalidRequest => "invalid request".to_owned(),
        wire::NakCode::RemoteAccess => "remote access error".to_owned(),
        wire::NakCode::RemoteOperational => "remote operational error".to_owned(),
        wire::NakCode::InvalidRd => "invalid RD request".to_owned(),
        wire::NakCode::Reserved(code) => format!("reserved code {code}"),
    }
}
