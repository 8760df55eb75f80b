//! The report as text and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};
use urxe_proto::wire::Transport;

use super::connections::{Connection, End};
use super::datagram::Icrc;
use super::dissection::Dissection;
use super::finding::Finding;
use super::follow::Followed;
use super::packet::Packet;
use super::requests::Counts;
use crate::devices::align;

/// The most findings of one kind in one connection that are listed. JSON has all.
const MAX_LISTED: usize = 20;

pub fn text(dissection: &Dissection, packets: bool) -> String {
    let mut text = summary(dissection);
    for (i, followed) in dissection.connections.iter().enumerate() {
        text += &connection(i, followed);
    }
    if packets {
        text += "\nPackets\n";
        text += &table(&packet_rows(dissection));
    }
    if !dissection.findings.is_empty() {
        text += "\nFindings\n";
        text += &findings(dissection);
    }
    text
}

fn summary(dissection: &Dissection) -> String {
    let Dissection {
        frames,
        right,
        wrong,
        truncated,
        malformed,
        copies,
        ..
    } = dissection;
    let mut text = format!(
        "{} RoCEv2 packets in {frames} frames and {:.6} s; ICRC: {right} right, {wrong} wrong",
        dissection.roce(),
        dissection.duration.as_secs_f64(),
    );
    let others = [
        (
            truncated,
            "not verifiable, because the packets are truncated",
        ),
        (malformed, "malformed packets"),
        (copies, "packets captured twice, counted once"),
    ];
    for (count, what) in others.into_iter().filter(|&(&count, _)| count > 0) {
        let _ = write!(text, "; {count} {what}");
    }
    text.push('\n');
    text
}

fn connection(index: usize, followed: &Followed) -> String {
    let connection = &followed.connection;
    let mut text = format!("\n{} {}", index + 1, title(connection));
    if let Some(mtu) = connection.mtu {
        let _ = write!(text, ", path MTU {mtu}");
    }
    if let Some(service) = &connection.service {
        let _ = write!(text, ", {service}");
    }
    text.push('\n');
    let arrow = |to: End| format!("requests to {}", end(to));
    let mut rows = vec![vec![
        String::new(),
        arrow(connection.ends[1]),
        arrow(connection.ends[0]),
    ]];
    let [there, back] = &followed.counts;
    for ((name, there), (_, back)) in named(there).into_iter().zip(named(back)) {
        rows.push(vec![name.into(), there.to_string(), back.to_string()]);
    }
    for (name, [there, back]) in [("cnps", followed.cnps), ("ecn_marked", followed.marked)] {
        rows.push(vec![name.into(), there.to_string(), back.to_string()]);
    }
    // A row of zeroes says nothing.
    rows.retain(|row| row[0].is_empty() || row[1..] != ["0", "0"]);
    text + &table(&rows)
}

/// The counts with their names in the output.
fn named(counts: &Counts) -> [(&'static str, u64); 9] {
    let Counts {
        requests,
        messages,
        bytes,
        retransmitted,
        missing,
        acks,
        naks,
        rnr_naks,
        responses,
    } = *counts;
    [
        ("requests", requests),
        ("messages", messages),
        ("bytes", bytes),
        ("retransmitted", retransmitted),
        ("missing", missing),
        ("acks", acks),
        ("naks", naks),
        ("rnr_naks", rnr_naks),
        ("responses", responses),
    ]
}

/// Names a connection by its transport and its ends.
pub fn title(connection: &Connection) -> String {
    let [a, b] = connection.ends;
    let arrow = match a.qpn {
        Some(_) => "<->",
        None => "->",
    };
    format!(
        "{} {} {arrow} {}",
        transport(connection.transport),
        end(a),
        end(b)
    )
}

fn transport(transport: Transport) -> &'static str {
    match transport {
        Transport::Rc => "RC",
        Transport::Uc => "UC",
        Transport::Ud => "UD",
        Transport::Xrc => "XRC",
        Transport::Cnp => "CNP",
        Transport::Manufacturer => "probes",
    }
}

pub fn end(end: End) -> String {
    match end.qpn {
        Some(qpn) => format!("{} QP {:#x}", end.ip, qpn.get()),
        None => end.ip.to_string(),
    }
}

fn packet_rows(dissection: &Dissection) -> Vec<Vec<String>> {
    let row = |packet: &Packet| {
        vec![
            packet.frame.to_string(),
            seconds(packet.time),
            packet.src.to_string(),
            packet.dst.to_string(),
            format!("QP {:#x}", packet.header.bth.dest_qp.get()),
            packet.label(),
        ]
    };
    let headings = ["frame", "time", "from", "to", "queue pair", "packet"].map(String::from);
    let rows = dissection.packets.iter().map(row);
    std::iter::once(headings.to_vec()).chain(rows).collect()
}

fn findings(dissection: &Dissection) -> String {
    let headings = ["frame", "time", "conn", "kind", "PSN", "what"].map(String::from);
    let mut rows = vec![headings.to_vec()];
    let mut listed: BTreeMap<_, usize> = BTreeMap::new();
    for finding in &dissection.findings {
        let count = listed
            .entry((finding.connection, finding.kind))
            .or_default();
        *count += 1;
        if *count <= MAX_LISTED {
            rows.push(finding_row(finding));
        }
    }
    let mut text = table(&rows);
    for ((connection, kind), count) in listed {
        if count > MAX_LISTED {
            let connection =
                connection.map_or(String::new(), |i| format!(" of connection {}", i + 1));
            let _ = writeln!(
                text,
                "  {} more of kind {}{connection}: see --json",
                count - MAX_LISTED,
                kind.name(),
            );
        }
    }
    text
}

fn finding_row(finding: &Finding) -> Vec<String> {
    let psn = match (finding.psn, finding.count) {
        (None, _) => String::new(),
        (Some(psn), 1) => psn.to_string(),
        (Some(psn), count) => format!("{psn}-{} ({count})", psn + (count - 1)),
    };
    let section = finding
        .section
        .map_or(String::new(), |section| format!(" ({section})"));
    vec![
        finding.frame.to_string(),
        seconds(finding.time),
        finding
            .connection
            .map_or(String::new(), |i| (i + 1).to_string()),
        finding.kind.name().to_owned(),
        psn,
        format!("{}{section}", finding.text),
    ]
}

fn seconds(time: Duration) -> String {
    format!("{:.6}", time.as_secs_f64())
}

fn table(rows: &[Vec<String>]) -> String {
    align(rows)
        .into_iter()
        .map(|line| format!("  {line}\n"))
        .collect()
}

pub fn json(dissection: &Dissection, packets: bool) -> String {
    let connections: Vec<Value> = dissection.connections.iter().map(connection_json).collect();
    let mut report = json!({
        "frames": dissection.frames,
        "packets": dissection.roce(),
        "seconds": dissection.duration.as_secs_f64(),
        "icrc": {
            "right": dissection.right,
            "wrong": dissection.wrong,
            "truncated": dissection.truncated,
        },
        "malformed": dissection.malformed,
        "copies": dissection.copies,
        "faultless": dissection.is_faultless(),
        "connections": connections,
        "findings": dissection.findings.iter().map(finding_json).collect::<Vec<_>>(),
    });
    if packets {
        report["list"] = dissection.packets.iter().map(packet_json).collect();
    }
    format!("{report}\n")
}

fn connection_json(followed: &Followed) -> Value {
    let connection = &followed.connection;
    let ends = connection
        .ends
        .map(|end| json!({"address": end.ip, "qp": end.qpn.map(|qpn| qpn.get())}));
    let directions: Vec<Value> = (0..2)
        .map(|i| {
            let mut counts: serde_json::Map<_, _> = named(&followed.counts[i])
                .map(|(name, count)| (name.to_owned(), json!(count)))
                .into_iter()
                .collect();
            counts.insert("cnps".into(), json!(followed.cnps[i]));
            counts.insert("ecn_marked".into(), json!(followed.marked[i]));
            Value::Object(counts)
        })
        .collect();
    json!({
        "transport": transport(connection.transport),
        "ends": ends,
        "mtu": connection.mtu,
        "service": connection.service,
        "packets": connection.packets.len(),
        "directions": directions,
    })
}

fn finding_json(finding: &Finding) -> Value {
    json!({
        "frame": finding.frame,
        "seconds": finding.time.as_secs_f64(),
        "connection": finding.connection.map(|i| i + 1),
        "kind": finding.kind.name(),
        "fault": finding.kind.is_fault(),
        "psn": finding.psn.map(|psn| psn.get()),
        "count": finding.count,
        "text": finding.text,
        "section": finding.section,
    })
}

fn packet_json(packet: &Packet) -> Value {
    json!({
        "frame": packet.frame,
        "seconds": packet.time.as_secs_f64(),
        "source": packet.src,
        "destination": packet.dst,
        "qp": packet.header.bth.dest_qp.get(),
        "opcode": packet.header.bth.opcode as u8,
        "psn": packet.header.bth.psn.get(),
        "icrc": match packet.icrc {
            Icrc::Right => "right",
            Icrc::Wrong { .. } => "wrong",
            Icrc::Truncated => "truncated",
        },
        "label": packet.label(),
    })
}
