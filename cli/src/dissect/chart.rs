//! A page with a sequence chart of each connection, without anything from the network.

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Value, json};
use urxe_proto::wire::{Operation, Syndrome};

use super::dissection::Dissection;
use super::finding::Finding;
use super::packet::Packet;
use super::report::{end, title};

/// The page, with a placeholder for the data.
const PAGE: &str = include_str!("chart.html");
const PLACEHOLDER: &str = "/*DATA*/";

/// The most packets of one connection in the page, which more packets make slow.
const MAX_PACKETS: usize = 20_000;

/// Returns the page.
pub fn page(file: &Path, dissection: &Dissection) -> String {
    let connections: Vec<Value> = (0..dissection.connections.len())
        .map(|i| connection(i, dissection))
        .collect();
    let data = json!({
        "file": file.file_name().map(|name| name.to_string_lossy()),
        "packets": dissection.roce(),
        "right": dissection.right,
        "wrong": dissection.wrong,
        "connections": connections,
        "findings": dissection.findings.iter().map(finding).collect::<Vec<_>>(),
    });
    // A script ends at the first `</`, also within a string.
    let data = data.to_string().replace('<', "\\u003c");
    PAGE.replacen(PLACEHOLDER, &data, 1)
}

fn connection(index: usize, dissection: &Dissection) -> Value {
    let connection = &dissection.connections[index].connection;
    let mut notes: HashMap<u64, Vec<&Finding>> = HashMap::new();
    for finding in &dissection.findings {
        if finding.connection == Some(index) {
            notes.entry(finding.frame).or_default().push(finding);
        }
    }
    let packets: Vec<Value> = connection
        .packets
        .iter()
        .take(MAX_PACKETS)
        .map(|&(i, direction)| {
            let packet = &dissection.packets[i];
            let texts: Vec<String> = notes
                .get(&packet.frame)
                .into_iter()
                .flatten()
                .map(|finding| describe(finding))
                .collect();
            let fault = notes
                .get(&packet.frame)
                .is_some_and(|list| list.iter().any(|finding| finding.kind.is_fault()));
            json!([
                packet.frame,
                packet.time.as_secs_f64(),
                direction,
                packet.label(),
                class(packet),
                texts,
                fault
            ])
        })
        .collect();
    json!({
        "title": title(connection),
        "ends": connection.ends.map(end),
        "total": connection.packets.len(),
        "packets": packets,
    })
}

fn describe(finding: &Finding) -> String {
    let section = finding
        .section
        .map_or(String::new(), |section| format!(" ({section})"));
    format!("{}: {}{section}", finding.kind.name(), finding.text)
}

fn finding(finding: &Finding) -> Value {
    json!([
        finding.frame,
        finding.connection,
        describe(finding),
        finding.kind.is_fault()
    ])
}

/// The style class of a packet.
fn class(packet: &Packet) -> &'static str {
    match (
        packet.operation(),
        packet.header.aeth.map(|aeth| aeth.syndrome),
    ) {
        (_, Some(Syndrome::Nak(_) | Syndrome::RnrNak(_) | Syndrome::Reserved(_))) => "nak",
        (Operation::Ack, _) => "ack",
        (Operation::ReadResponse | Operation::AtomicAck, _) => "response",
        (Operation::Cnp, _) => "nak",
        _ => "request",
    }
}
