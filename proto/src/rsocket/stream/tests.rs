//! Two streams over vectors, and a link between them that delivers in order.

use super::*;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};

const SIZES: Sizes = Sizes {
    send_queue: 16,
    receive_queue: 8,
    send_buffer: 5000,
    receive_buffer: 3000,
    iomap_entries: 4,
};

/// The advertised addresses of each side's memory.
const BUFFER: RemoteBuffer = RemoteBuffer {
    addr: 0x10_0000,
    key: RKey(1),
};
const TARGET_LIST: RemoteBuffer = RemoteBuffer {
    addr: 0x20_0000,
    key: RKey(2),
};

struct List(Vec<u8>);

impl Targets for List {
    fn entry(&self, index: usize) -> Area {
        let entry = &self.0[index * Area::BYTES..][..Area::BYTES];
        Area::from_bytes(entry.first_chunk().unwrap(), Order::NATIVE)
    }
}

/// An RDMA WRITE in flight.
struct Packet {
    addr: u64,
    key: RKey,
    bytes: Vec<u8>,
    imm: Option<u32>,
    number: u64,
}

struct End {
    stream: Stream,
    send_buffer: Vec<u8>,
    receive_buffer: Vec<u8>,
    list: List,
    out: VecDeque<Packet>,
}

impl End {
    fn new(sizes: &Sizes, peer: ConnData) -> Self {
        End {
            stream: Stream::new(sizes, BUFFER, peer),
            send_buffer: vec![0; sizes.send_buffer as usize],
            receive_buffer: vec![0; sizes.receive_buffer as usize],
            list: List(vec![0; 2 * 16 + 4 * 24]),
            out: VecDeque::new(),
        }
    }

    fn send(&mut self, data: &[u8], inline: u32) -> usize {
        let Some(write) = self.stream.send(data.len() as u32, inline) else {
            return 0;
        };
        let data = &data[..write.len as usize];
        let mut bytes = Vec::new();
        match write.staging {
            Staging::Inline => bytes.extend(data),
            Staging::Buffer(pieces) => {
                for piece in pieces {
                    let from = bytes.len();
                    let part = &data[from..from + piece.len as usize];
                    self.send_buffer[piece.offset as usize..][..part.len()].copy_from_slice(part);
                    bytes.extend(part);
                }
            }
        }
        self.out.push_back(Packet {
            addr: write.addr,
            key: write.key,
            bytes,
            imm: write.imm,
            number: write.number,
        });
        data.len()
    }

    fn notify(&mut self) {
        while let Some(write) = self.stream.credit_update() {
            self.post(write);
        }
    }

    fn post(&mut self, write: ControlWrite) {
        self.out.push_back(Packet {
            addr: write.addr,
            key: write.key,
            bytes: write.entry.map_or(Vec::new(), |entry| entry.to_vec()),
            imm: write.imm,
            number: write.number,
        });
    }

    fn shut_down(&mut self, how: Shutdown) {
        if let Some(control) = self.stream.shut_down(how) {
            let write = self.stream.send_control(control).unwrap();
            self.post(write);
        }
    }

    fn arrived(&mut self, packet: &Packet) {
        if !packet.bytes.is_empty() {
            let (at, memory) = match packet.key {
                RKey(1) => (packet.addr - BUFFER.addr, &mut self.receive_buffer),
                RKey(2) => (packet.addr - TARGET_LIST.addr, &mut self.list.0),
                other => panic!("an unknown key: {other:?}"),
            };
            memory[at as usize..][..packet.bytes.len()].copy_from_slice(&packet.bytes);
        }
        if let Some(imm) = packet.imm {
            let written = packet.bytes.len() as u32;
            self.stream.received(imm, written, &self.list).unwrap();
        }
    }

    fn read(&mut self, most: usize) -> Vec<u8> {
        let mut read = Vec::new();
        while let Some(piece) = self.stream.next_piece()
            && read.len() < most
        {
            let len = piece.len.min((most - read.len()) as u32);
            read.extend(&self.receive_buffer[piece.offset as usize..][..len as usize]);
            self.stream.consumed(len);
        }
        read
    }
}

fn pair_of(sizes: &Sizes) -> [End; 2] {
    let peer_data =
        ConnData::parse(&connection_data(sizes, BUFFER, TARGET_LIST).to_bytes()).unwrap();
    [End::new(sizes, peer_data), End::new(sizes, peer_data)]
}

fn pair() -> [End; 2] {
    pair_of(&SIZES)
}

/// Delivers the oldest write of `from` to `to`, and completes it.
fn deliver([from, to]: [&mut End; 2]) -> bool {
    let Some(packet) = from.out.pop_front() else {
        return false;
    };
    to.arrived(&packet);
    from.stream.completed(packet.number, true);
    true
}

/// Delivers all writes, and those sent in response, until nothing is in flight.
fn settle([a, b]: &mut [End; 2]) {
    loop {
        a.notify();
        b.notify();
        let worked = deliver([a, b]);
        if !(deliver([b, a]) || worked) {
            return;
        }
    }
}

#[test]
fn bytes_arrive_in_order_for_any_sizes() {
    for seed in 0..60 {
        let mut random = SmallRng::seed_from_u64(seed);
        let sizes = Sizes {
            send_queue: random.random_range(6..40),
            receive_queue: random.random_range(2..40),
            send_buffer: random.random_range(LOW_WATER..9000),
            receive_buffer: 2 * random.random_range(1..3000),
            iomap_entries: 0,
        };
        let mut ends = pair_of(&sizes);
        let data: Vec<u8> = (0..20_000).map(|_| random.random()).collect();
        let (mut sent, mut read) = ([0; 2], [Vec::new(), Vec::new()]);
        let mut steps = 0;
        while read.iter().any(|read| read.len() < data.len()) {
            steps += 1;
            assert!(steps < 2_000_000, "no progress with seed {seed}");
            let side = random.random_range(0..2);
            let [a, b] = &mut ends;
            let (me, other) = if side == 0 { (a, b) } else { (b, a) };
            match random.random_range(0..4) {
                0 => {
                    let most = random.random_range(1..4000).min(data.len() - sent[side]);
                    let inline = random.random_range(0..100);
                    sent[side] += me.send(&data[sent[side]..][..most], inline);
                }
                1 => read[side].extend(me.read(random.random_range(1..4000))),
                2 => me.notify(),
                _ => drop(deliver([me, other])),
            }
        }
        assert!(read.iter().all(|read| *read == data), "seed {seed}");
    }
}

#[test]
fn sender_stops_without_room_and_continues_when_the_peer_reads() {
    let mut ends = pair();
    settle(&mut ends);
    let mut sent = 0;
    while ends[0].stream.can_send() {
        sent += ends[0].send(&[7; 2000], 0);
        settle(&mut ends);
    }
    assert_eq!(sent, 3000, "both halves are full");
    assert_eq!(ends[1].read(1499).len(), 1499);
    settle(&mut ends);
    assert!(!ends[0].stream.can_send(), "no half is empty");
    assert_eq!(ends[1].read(1).len(), 1);
    settle(&mut ends);
    assert!(ends[0].stream.can_send());
}

#[test]
fn sender_stops_without_credit() {
    let mut ends = pair();
    settle(&mut ends);
    let mut messages = 0;
    while ends[0].stream.can_send() {
        messages += ends[0].send(&[1], 64);
        settle(&mut ends);
    }
    assert_eq!(messages, 8);
    ends[1].read(4);
    settle(&mut ends);
    assert!(ends[0].stream.can_send());
}

#[test]
fn peek_consumes_nothing() {
    let mut ends = pair();
    ends[0].send(b"hello", 64);
    ends[0].send(b" world", 64);
    settle(&mut ends);
    let pieces = ends[1].stream.pieces(8);
    let lens: Vec<u32> = pieces.iter().map(|piece| piece.len).collect();
    assert_eq!(lens, [5, 3]);
    assert_eq!(ends[1].read(100), b"hello world");
    assert!(ends[1].stream.pieces(8).is_empty());
}

#[test]
fn shutdown_of_one_direction_delivers_its_data_and_leaves_the_other_open() {
    let mut ends = pair();
    ends[0].send(b"last words", 64);
    ends[0].shut_down(Shutdown::Write);
    assert!(!ends[0].stream.can_send() && ends[0].stream.is_readable());
    settle(&mut ends);
    assert!(!ends[1].stream.is_readable());
    assert_eq!(ends[1].read(100), b"last words");
    ends[1].send(b"answer", 64);
    settle(&mut ends);
    assert_eq!(ends[0].read(100), b"answer");
    ends[1].shut_down(Shutdown::Write);
    settle(&mut ends);
    for end in &ends {
        assert_eq!(end.stream.phase(), Phase::Disconnected);
    }
}

#[test]
fn disconnect_closes_both_directions_and_keeps_received_data() {
    let mut ends = pair();
    ends[0].send(b"data", 64);
    ends[0].shut_down(Shutdown::Both);
    assert_eq!(
        ends[0].stream.phase(),
        Phase::Connected,
        "until the message has arrived"
    );
    settle(&mut ends);
    for end in &ends {
        assert_eq!(end.stream.phase(), Phase::Disconnected);
        assert!(!end.stream.is_readable() && !end.stream.is_writable());
    }
    assert_eq!(ends[1].read(100), b"data");
}

#[test]
fn failed_work_request_fails_the_stream() {
    let [mut end, _] = pair();
    end.send(b"data", 64);
    let packet = end.out.pop_front().unwrap();
    end.stream.completed(packet.number, false);
    assert_eq!(end.stream.phase(), Phase::Failed);
    assert!(end.stream.is_drained());
}

#[test]
fn protocol_violations_fail_the_stream() {
    let fails = |messages: &[u32]| {
        let [mut end, _] = pair();
        let results = messages
            .iter()
            .map(|imm| end.stream.received(*imm, 0, &end.list));
        let error = results.collect::<Result<(), _>>().unwrap_err();
        assert_eq!(end.stream.phase(), Phase::Failed);
        error
    };
    let data = |len| Message::Data(len).to_imm();
    assert_eq!(fails(&[data(1501)]), StreamError::TooMuch(1501));
    assert_eq!(fails(&[data(1500), data(1)]), StreamError::TooMuch(1));
    assert_eq!(fails(&[data(0); 10]), StreamError::TooMany);
    assert_eq!(fails(&[0x2000_0000]), StreamError::Unknown(0x2000_0000));
}

#[test]
fn entries_are_written_in_the_byte_order_of_the_peer() {
    let mut peer_data = connection_data(&SIZES, BUFFER, TARGET_LIST);
    peer_data.order = Order::Big;
    let mut end = End::new(&SIZES, peer_data);
    let write = end.stream.credit_update().unwrap();
    let area = Area::from_bytes(&write.entry.unwrap(), Order::Big);
    assert_eq!(
        (area.addr, area.len),
        (BUFFER.addr + 1500, 1500),
        "the second half"
    );
    assert_eq!(write.addr, TARGET_LIST.addr + 16, "the second entry");
}

#[test]
fn target_is_read_when_its_own_message_arrives() {
    let [mut end, _] = pair();
    let bytes = Area::BYTES as u32;
    let credits = Message::Credits(100).to_imm();
    let at = |addr| BUFFER.area(addr, 1500).to_bytes(Order::NATIVE);
    assert_eq!(end.send(&[0; 1500], 1500), 1500);
    // The first entry is still incomplete when the message of the second arrives.
    end.list.0[..16].copy_from_slice(&at(77));
    end.list.0[16..32].copy_from_slice(&at(1500));
    end.stream.received(credits, bytes, &end.list).unwrap();
    assert_eq!(end.send(&[0; 1500], 1500), 1500);
    assert_eq!(end.out.pop_back().unwrap().addr, BUFFER.addr + 1500);
    assert!(!end.stream.can_send());
    end.list.0[..16].copy_from_slice(&at(0));
    end.stream.received(credits, 0, &end.list).unwrap();
    assert!(!end.stream.can_send(), "credit alone gives no room");
    end.stream.received(credits, bytes, &end.list).unwrap();
    assert_eq!(end.send(&[0; 1500], 1500), 1500);
    assert_eq!(end.out.pop_back().unwrap().addr, BUFFER.addr);
}

#[test]
fn mapped_memory_entries_follow_the_targets_and_use_no_credit() {
    let [mut end, _] = pair();
    let entry = IomapEntry::default();
    let write = end.stream.advertise_iomap(2, &entry).unwrap();
    assert_eq!(write.addr, TARGET_LIST.addr + 32 + 2 * 24);
    assert_eq!(end.stream.advertise_iomap(4, &entry), None);
    let credit = (end.stream.sending.sent, end.stream.sending.granted);
    assert_eq!(credit, (0, 8));
    assert!(!end.stream.is_drained());
    end.stream.completed(write.number, true);
    assert!(end.stream.is_drained());
}

#[test]
fn keepalive_consumes_no_receive_of_the_peer() {
    let [mut end, _] = pair();
    let write = end.stream.send_control(Control::KeepAlive).unwrap();
    assert_eq!((write.imm, write.entry), (None, None));
    for _ in 1..CONTROL_SLOTS {
        end.stream.send_control(Control::KeepAlive).unwrap();
    }
    assert_eq!(end.stream.send_control(Control::KeepAlive), None);
}
