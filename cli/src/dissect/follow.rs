//! Follows each connection of a capture, and collects what is found.

use std::time::Duration;

use urxe_proto::cm::wire::Message;
use urxe_proto::wire::Operation;

use super::connections::{Connection, assign};
use super::finding::{Finding, Kind};
use super::packet::Packet;
use super::requests::{Counts, Requests};

/// A connection with what was found in it.
#[derive(Debug)]
pub struct Followed {
    pub connection: Connection,
    /// Of the requests of each end.
    pub counts: [Counts; 2],
    /// Congestion notifications, by direction.
    pub cnps: [u64; 2],
    /// Packets that a router marked, by direction.
    pub marked: [u64; 2],
}

/// Follows all connections. Returns the findings in the order of the capture.
pub fn follow(packets: &[Packet]) -> (Vec<Followed>, Vec<Finding>) {
    let mut findings = Vec::new();
    let connections = assign(packets).into_iter().enumerate();
    let followed = connections
        .map(|(index, connection)| {
            let (followed, own) = follow_one(packets, connection);
            findings.extend(own.into_iter().map(|finding| Finding {
                connection: Some(index),
                ..finding
            }));
            followed
        })
        .collect();
    findings.sort_by_key(|finding| finding.frame);
    (followed, findings)
}

fn follow_one(packets: &[Packet], connection: Connection) -> (Followed, Vec<Finding>) {
    let mut requests = [Requests::new(connection.mtu), Requests::new(connection.mtu)];
    let mut findings = Vec::new();
    let (mut cnps, mut marked) = ([0; 2], [0; 2]);
    let is_datagram = connection.is_datagrams();
    let is_loop = connection.is_loop();
    for &(i, direction) in &connection.packets {
        let packet = &packets[i];
        marked[direction] += u64::from(packet.congestion);
        findings.extend(congestion(packet, cnps[direction], marked[direction]));
        if let Some(Message::Rej(rej)) = packet.cm.as_deref() {
            let text = format!("connection rejected: {:?}", rej.reason);
            findings.push(Finding::new(Kind::Reject, packet.frame, packet.time, text));
        }
        let operation = packet.operation();
        if operation == Operation::Cnp {
            cnps[direction] += 1;
        } else if is_datagram {
            requests[direction].datagram(packet);
        } else if operation.is_request() {
            requests[direction].request(packet);
        } else if operation.is_response() {
            requests[if is_loop { 0 } else { 1 - direction }].response(packet);
        }
    }
    let last = connection.packets.last().map(|&(i, _)| &packets[i]);
    let end = last.map_or((0, Duration::ZERO), |packet| (packet.frame, packet.time));
    let counts = requests.map(|requests| {
        let (counts, own) = requests.finish(connection.transport, end);
        findings.extend(own);
        counts
    });
    let followed = Followed {
        connection,
        counts,
        cnps,
        marked,
    };
    (followed, findings)
}

/// Returns a finding for the first congestion notification and the first mark.
fn congestion(packet: &Packet, cnps: u64, marked: u64) -> Option<Finding> {
    let text = match packet.operation() {
        Operation::Cnp if cnps == 0 => "first congestion notification (CNP)",
        _ if packet.congestion && marked == 1 => "first packet that a router marked (ECN)",
        _ => return None,
    };
    Some(Finding::new(
        Kind::Congestion,
        packet.frame,
        packet.time,
        text,
    ))
}
