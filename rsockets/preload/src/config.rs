//! The configuration file `/etc/rdma/rsocket/preload_config`, which selects programs and sockets.
//! Each line has a program name or its prefix, a domain, a type and a protocol; `*` matches any.

use std::ffi::{CStr, c_char, c_int};
use std::fs;
use std::sync::OnceLock;

use crate::rdma::inside;

const FILE: &str = "/etc/rdma/rsocket/preload_config";

/// A line of the file. `None` matches any value.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Line {
    program: Option<String>,
    domain: Option<c_int>,
    kind: Option<c_int>,
    protocol: Option<c_int>,
}

unsafe extern "C" {
    static program_invocation_short_name: *const c_char;
}

/// Returns whether a socket of this kind should be an rsocket.
pub fn wants(domain: c_int, kind: c_int, protocol: c_int) -> bool {
    static LINES: OnceLock<Vec<Line>> = OnceLock::new();
    let read = || inside(|| parse(&fs::read_to_string(FILE).unwrap_or_default()));
    let lines = LINES.get_or_init(read);
    // SAFETY: the C library's variable points to a string that lives as long as the process.
    let program = unsafe { CStr::from_ptr(program_invocation_short_name) };
    matches(lines, &program.to_string_lossy(), (domain, kind, protocol))
}

fn matches(lines: &[Line], program: &str, (domain, kind, protocol): (c_int, c_int, c_int)) -> bool {
    let protocol = match (protocol, kind) {
        (0, libc::SOCK_STREAM) => libc::IPPROTO_TCP,
        (0, libc::SOCK_DGRAM) => libc::IPPROTO_UDP,
        (given, _) => given,
    };
    let begins = |name: &String| {
        let start = program.get(..name.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(name))
    };
    let fits = |line: &Line| {
        line.program.as_ref().is_none_or(begins)
            && line.domain.is_none_or(|wanted| wanted == domain)
            && line.kind.is_none_or(|wanted| wanted == kind)
            && line.protocol.is_none_or(|wanted| wanted == protocol)
    };
    lines.is_empty() || lines.iter().any(fits)
}

fn parse(text: &str) -> Vec<Line> {
    let line = |line: &str| {
        let mut words = line.split_whitespace();
        let program = words.next().filter(|word| !word.starts_with('#'))?;
        Some(Line {
            program: (program != "*").then(|| program.to_owned()),
            domain: number(
                words.next()?,
                &[("INET", libc::AF_INET), ("INET6", libc::AF_INET6)],
                &["AF_", "PF_"],
            )?,
            kind: number(
                words.next()?,
                &[("STREAM", libc::SOCK_STREAM), ("DGRAM", libc::SOCK_DGRAM)],
                &["SOCK_"],
            )?,
            protocol: number(
                words.next()?,
                &[("TCP", libc::IPPROTO_TCP), ("UDP", libc::IPPROTO_UDP)],
                &["IPPROTO_"],
            )?,
        })
    };
    text.lines().filter_map(line).collect()
}

/// Parses a name with an optional prefix: `Some(None)` for `*`, `None` for an unknown name.
fn number(word: &str, names: &[(&str, c_int)], prefixes: &[&str]) -> Option<Option<c_int>> {
    if word == "*" {
        return Some(None);
    }
    let word = word.to_ascii_uppercase();
    let mut bare = prefixes
        .iter()
        .filter_map(|prefix| word.strip_prefix(prefix));
    let bare = bare.next().unwrap_or(&word);
    let (_, number) = names.iter().find(|(name, _)| *name == bare)?;
    Some(Some(*number))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TCP4: (c_int, c_int, c_int) = (libc::AF_INET, libc::SOCK_STREAM, 0);

    #[test]
    fn an_empty_configuration_selects_all_sockets() {
        assert!(matches(&parse("# nothing\n\n"), "nc", TCP4));
    }

    #[test]
    fn a_line_names_program_and_socket() {
        let lines = parse("iperf INET sock_stream *\nbroken line\ncurl * DGRAM IPPROTO_UDP\n");
        assert_eq!(lines.len(), 2);
        assert!(matches(&lines, "iperf3", TCP4), "the beginning is enough");
        assert!(!matches(&lines, "nc", TCP4));
        assert!(!matches(&lines, "iperf3", (libc::AF_INET6, TCP4.1, 0)));
        assert!(matches(
            &lines,
            "CURL",
            (libc::AF_INET6, libc::SOCK_DGRAM, 0)
        ));
    }

    #[test]
    fn unknown_packets_print_no_line() {
        assert!(parse("nc IB STREAM TCP\nnc INET SEQPACKET *\nnc INET\n").is_empty());
    }
}
