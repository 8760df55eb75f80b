//! Flow steering: rules that select the frames of a raw packet queue pair.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The header that a [`Pattern`] matches.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Header {
    /// Destination, source, type of the payload, and VLAN tag: 16 bytes. An absent tag is 0; the
    /// type is the one after the tag.
    Ethernet,
    /// The 20 bytes of an IPv4 header without options.
    Ipv4,
    /// The 40 bytes of an IPv6 header.
    Ipv6,
    /// The first 4 bytes of a TCP header: both ports.
    Tcp,
    /// The first 4 bytes of a UDP header: both ports.
    Udp,
}

/// A value that a header must have in the bits of a mask.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pattern {
    header: Header,
    value: [u8; LONGEST],
    mask: [u8; LONGEST],
}

/// The length of the longest header in bytes.
const LONGEST: usize = 40;

impl Pattern {
    /// Returns a pattern that any header of this kind matches.
    pub fn any(header: Header) -> Self {
        Pattern {
            header,
            value: [0; LONGEST],
            mask: [0; LONGEST],
        }
    }

    /// Adds the condition that the bytes from `at` on equal `value` in the bits of `mask`. Bytes
    /// beyond the longest header are ignored.
    pub fn with(mut self, at: usize, value: &[u8], mask: &[u8]) -> Self {
        for ((to, value), (to_mask, mask)) in self.value[at.min(LONGEST)..]
            .iter_mut()
            .zip(value)
            .zip(self.mask[at.min(LONGEST)..].iter_mut().zip(mask))
        {
            *to = value & mask;
            *to_mask = *mask;
        }
        self
    }

    fn matches(&self, headers: &Headers<'_>) -> bool {
        let Some(bytes) = headers.get(self.header) else {
            return false;
        };
        let pairs = bytes.iter().zip(&self.mask).zip(&self.value);
        pairs
            .into_iter()
            .all(|((byte, mask), value)| byte & mask == *value)
    }
}

/// The frames that a flow selects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Select {
    /// Frames that match all of these patterns.
    Matching(Vec<Pattern>),
    /// All frames.
    All,
    /// Frames to a group address.
    Multicast,
}

/// The action for a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// The queue pair receives the frame.
    Deliver,
    /// The frame is dropped.
    Drop,
}

/// The counters of flows.
#[derive(Debug, Default)]
pub struct FlowCounter {
    /// The number of frames.
    pub packets: AtomicU64,
    /// The number of bytes of these frames.
    pub bytes: AtomicU64,
}

/// A rule for received frames.
#[derive(Clone, Debug)]
pub struct Flow {
    /// The priority. Of the rules that a frame matches, the one with the lowest number applies; of
    /// several with that number, the oldest.
    pub priority: u16,
    /// The frames to which it applies.
    pub select: Select,
    /// The action for these frames.
    pub action: Action,
    /// The counter of these frames.
    pub counter: Option<Arc<FlowCounter>>,
}

impl Flow {
    fn matches(&self, headers: &Headers<'_>) -> bool {
        match &self.select {
            Select::All => true,
            Select::Multicast => headers.ethernet[0] & 1 != 0,
            Select::Matching(patterns) => patterns.iter().all(|pattern| pattern.matches(headers)),
        }
    }
}

/// The rules of one queue pair.
#[derive(Debug, Default)]
pub(super) struct Flows {
    /// The rules with their numbers, by priority, then by age.
    rules: Vec<(u64, Flow)>,
    next: u64,
}

impl Flows {
    /// Adds a rule; returns its number.
    pub(super) fn add(&mut self, flow: Flow) -> u64 {
        let number = self.next;
        self.next += 1;
        let at = self
            .rules
            .partition_point(|(_, other)| other.priority <= flow.priority);
        self.rules.insert(at, (number, flow));
        number
    }

    /// Removes the rule with this number.
    pub(super) fn remove(&mut self, number: u64) {
        self.rules.retain(|(other, _)| *other != number);
    }

    /// Returns whether there are no rules.
    pub(super) fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Returns the action for a frame, and counts it. A frame that no rule selects is dropped.
    pub(super) fn classify(&self, frame: &[u8]) -> Action {
        let Some(headers) = Headers::of(frame) else {
            return Action::Drop;
        };
        let rule = self.rules.iter().find(|(_, flow)| flow.matches(&headers));
        let Some((_, flow)) = rule else {
            return Action::Drop;
        };
        if let Some(counter) = &flow.counter {
            counter.packets.fetch_add(1, Ordering::Relaxed);
            counter
                .bytes
                .fetch_add(frame.len() as u64, Ordering::Relaxed);
        }
        flow.action
    }
}

/// The headers of a frame.
pub(super) struct Headers<'a> {
    pub(super) ethernet: [u8; 16],
    pub(super) ipv4: Option<&'a [u8]>,
    pub(super) ipv6: Option<&'a [u8]>,
    pub(super) tcp: Option<&'a [u8]>,
    pub(super) udp: Option<&'a [u8]>,
}

const VLAN: [u8; 2] = [0x81, 0x00];
const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
const TCP: u8 = 6;
const UDP: u8 = 17;

impl<'a> Headers<'a> {
    /// Parses a frame; returns `None` if it is shorter than an Ethernet header.
    pub(super) fn of(frame: &'a [u8]) -> Option<Self> {
        let (addresses, rest) = frame.split_at_checked(12)?;
        let (mut kind, mut rest) = rest.split_first_chunk::<2>()?;
        let mut tag = &[0; 2];
        if *kind == VLAN {
            (tag, rest) = rest.split_first_chunk()?;
            (kind, rest) = rest.split_first_chunk()?;
        }
        let mut ethernet = [0; 16];
        ethernet[..12].copy_from_slice(addresses);
        ethernet[12..14].copy_from_slice(kind);
        ethernet[14..].copy_from_slice(tag);
        let ipv4 = rest.get(..20).filter(|_| *kind == IPV4);
        let ipv6 = rest.get(..40).filter(|_| *kind == IPV6);
        let upper = match (ipv4, ipv6) {
            (Some(ip), _) => {
                let length = usize::from(ip[0] & 15) * 4;
                // Only the first fragment contains the ports.
                let first = ip[6] & 0x1f == 0 && ip[7] == 0;
                rest.get(length..).filter(|_| first).map(|up| (ip[9], up))
            }
            (_, Some(ip)) => Some((ip[6], &rest[40..])),
            _ => None,
        };
        let ports = |protocol| {
            let (_, upper) = upper.filter(|(its, _)| *its == protocol)?;
            upper.get(..4)
        };
        Some(Headers {
            ethernet,
            ipv4,
            ipv6,
            tcp: ports(TCP),
            udp: ports(UDP),
        })
    }

    fn get(&self, header: Header) -> Option<&[u8]> {
        match header {
            Header::Ethernet => Some(&self.ethernet),
            Header::Ipv4 => self.ipv4,
            Header::Ipv6 => self.ipv6,
            Header::Tcp => self.tcp,
            Header::Udp => self.udp,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame to a group, from station 2: IPv4 from 1.1.1.1 to 2.2.2.2, UDP from port 1234 to
    /// 5678.
    fn frame(tag: &[u8]) -> Vec<u8> {
        let mut frame = vec![1, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        frame.extend(tag);
        frame.extend([8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0]);
        frame.extend([1, 1, 1, 1, 2, 2, 2, 2]);
        frame.extend([0x04, 0xd2, 0x16, 0x2e, 0, 8, 0, 0]);
        frame
    }

    fn flow(priority: u16, select: Select, action: Action) -> Flow {
        Flow {
            priority,
            select,
            action,
            counter: None,
        }
    }

    fn takes(pattern: Pattern, frame: &[u8]) -> bool {
        let mut flows = Flows::default();
        flows.add(flow(0, Select::Matching(vec![pattern]), Action::Deliver));
        flows.classify(frame) == Action::Deliver
    }

    #[test]
    fn fields_count_where_the_mask_has_bits() {
        let plain = frame(&[]);
        let destination = Pattern::any(Header::Ethernet);
        assert!(takes(destination.with(0, &[1, 9], &[255, 0]), &plain));
        assert!(!takes(destination.with(0, &[1, 9], &[255, 255]), &plain));
        let address = Pattern::any(Header::Ipv4).with(16, &[2, 2, 2, 2], &[255; 4]);
        assert!(takes(address, &plain));
        assert!(!takes(address.with(8, &[63], &[255]), &plain));
        let port = |port: u16| Pattern::any(Header::Udp).with(2, &port.to_be_bytes(), &[255; 2]);
        assert!(takes(port(5678), &plain) && !takes(port(5679), &plain));
    }

    #[test]
    fn a_missing_header_does_not_match() {
        for header in [Header::Ipv6, Header::Tcp] {
            assert!(!takes(Pattern::any(header), &frame(&[])));
        }
        let mut fragment = frame(&[]);
        fragment[21] = 9;
        assert!(takes(Pattern::any(Header::Ipv4), &fragment));
        assert!(!takes(Pattern::any(Header::Udp), &fragment));
    }

    #[test]
    fn headers_inside_a_vlan_are_matched() {
        let tagged = frame(&[0x81, 0, 0x20, 7]);
        let vlan = Pattern::any(Header::Ethernet).with(14, &[0x20, 7], &[0x0f, 255]);
        assert!(takes(vlan, &tagged) && !takes(vlan, &frame(&[])));
        assert!(takes(Pattern::any(Header::Udp), &tagged));
    }

    #[test]
    fn the_rule_with_the_lowest_number_decides() {
        let mut flows = Flows::default();
        let udp = Select::Matching(vec![Pattern::any(Header::Udp)]);
        assert_eq!(flows.classify(&frame(&[])), Action::Drop);
        flows.add(flow(5, Select::All, Action::Deliver));
        assert_eq!(flows.classify(&frame(&[])), Action::Deliver);
        let drops = flows.add(flow(4, udp, Action::Drop));
        assert_eq!(flows.classify(&frame(&[])), Action::Drop);
        flows.remove(drops);
        assert_eq!(flows.classify(&frame(&[])), Action::Deliver);
    }

    #[test]
    fn multicast_frames_match_and_are_counted() {
        let counter = Arc::new(FlowCounter::default());
        let mut flows = Flows::default();
        flows.add(Flow {
            counter: Some(Arc::clone(&counter)),
            ..flow(0, Select::Multicast, Action::Deliver)
        });
        let mut single = frame(&[]);
        single[0] = 0;
        assert_eq!(flows.classify(&single), Action::Drop);
        assert_eq!(flows.classify(&frame(&[])), Action::Deliver);
        assert_eq!(counter.packets.load(Ordering::Relaxed), 1);
        assert_eq!(counter.bytes.load(Ordering::Relaxed), single.len() as u64);
    }

    #[test]
    fn truncated_frames_are_parsed_safely() {
        let whole = frame(&[0x81, 0, 0, 7]);
        for len in 0..whole.len() {
            assert!(!takes(Pattern::any(Header::Tcp), &whole[..len]));
        }
    }
}
