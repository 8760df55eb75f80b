//! The counters of a device in this process, and their public names: those of Linux's sysfs for a
//! port, those of the kernel's rxe, and those of NIC vendors' diagnostics.
//!
//! On the path of packets, each queue pair has counters of its own, under the lock that it holds
//! anyway. A reader adds them up. A queue pair that is destroyed adds its counters to those of its
//! device. Only rare events are counted with the device at once.

use crate::lock_order::{Ordered, Rank};
use crate::per_process::PerProcess;
use crate::sync::{Mutex, lock};
use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use urxe_net::{Counter, SendReport};
use urxe_proto::ids::Qpn;
use urxe_proto::qp::Counters;
use urxe_proto::wire::Packet;
use urxe_proto::work::WcStatus;

/// The counters of each device that this process has used, by its name. They remain when the device
/// is closed.
static DEVICES: PerProcess<Mutex<BTreeMap<String, Arc<DeviceCounters>>>> = PerProcess::new();

/// Returns the counters of a device.
pub(crate) fn of_device(name: &str) -> Arc<DeviceCounters> {
    let mut devices = lock(DEVICES.get(Mutex::default));
    Arc::clone(devices.entry(name.to_owned()).or_default())
}

/// Returns the counters of all devices, each with its name.
pub(crate) fn of_all_devices() -> Vec<(String, Arc<DeviceCounters>)> {
    let devices = lock(DEVICES.get(Mutex::default));
    let own = |(name, counters): (&String, &Arc<_>)| (name.clone(), Arc::clone(counters));
    devices.iter().map(own).collect()
}

/// The packets and bytes of a queue pair. Bytes are counted from the BTH to the ICRC.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Traffic {
    sent: Amount,
    sent_multicast: u64,
    /// Packets that the kernel did not accept.
    not_sent: u64,
    received: Amount,
    received_multicast: u64,
    /// Packets that the queue pair refused, to a group that it is attached to.
    bad_multicast: u64,
}

#[derive(Clone, Copy, Default, Debug)]
struct Amount {
    packets: u64,
    bytes: u64,
}

/// The packets and bytes of a queue pair in both directions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Amounts {
    pub(crate) sent_packets: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) received_packets: u64,
    pub(crate) received_bytes: u64,
}

impl Traffic {
    /// Returns the packets and bytes.
    pub(crate) fn amounts(&self) -> Amounts {
        Amounts {
            sent_packets: self.sent.packets,
            sent_bytes: self.sent.bytes,
            received_packets: self.received.packets,
            received_bytes: self.received.bytes,
        }
    }

    /// Counts a batch that was sent.
    pub(crate) fn sent(&mut self, report: &SendReport, multicast: bool) {
        self.sent.packets += report.packets;
        self.sent.bytes += report.bytes;
        self.not_sent += report.lost;
        if multicast {
            self.sent_multicast += report.packets;
        }
    }

    /// Counts packets that were dropped since the socket was not writable for `WRITABLE_TIMEOUT`.
    pub(crate) fn stall_timed_out(&mut self, packets: u64) {
        self.not_sent += packets;
    }

    /// Counts a packet for the queue pair; `taken` is whether it was accepted.
    pub(crate) fn received(&mut self, packet: &Packet<'_>, taken: bool) {
        self.received.packets += 1;
        self.received.bytes += (packet.len() + urxe_proto::icrc::LEN) as u64;
        if packet.header.bth.dest_qp == Qpn::MULTICAST {
            self.received_multicast += 1;
            self.bad_multicast += u64::from(!taken);
        }
    }
}

/// The counters of queue pairs.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct QpTotals {
    /// The counters of the protocol state machines.
    pub(crate) transport: Counters,
    /// The counters of packets to and from the network.
    pub(crate) traffic: Traffic,
}

impl AddAssign<&QpTotals> for QpTotals {
    fn add_assign(&mut self, other: &QpTotals) {
        self.transport += &other.transport;
        let (mine, other) = (&mut self.traffic, &other.traffic);
        mine.sent.packets += other.sent.packets;
        mine.sent.bytes += other.sent.bytes;
        mine.sent_multicast += other.sent_multicast;
        mine.not_sent += other.not_sent;
        mine.received.packets += other.received.packets;
        mine.received.bytes += other.received.bytes;
        mine.received_multicast += other.received_multicast;
        mine.bad_multicast += other.bad_multicast;
    }
}

/// Objects of a device that are counted while they exist. The device itself knows its contexts,
/// queue pairs and connection manager identifiers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Resource {
    /// A protection domain.
    Pd,
    /// A completion queue.
    Cq,
    /// A memory region.
    Mr,
    /// A shared receive queue.
    Srq,
}

/// The count of one object, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct ResourceCount {
    device: Arc<DeviceCounters>,
    kind: Resource,
}

impl Drop for ResourceCount {
    fn drop(&mut self) {
        self.device.resources[self.kind as usize].fetch_sub(1, Ordering::Relaxed);
    }
}

/// Completions in error, by their status.
#[derive(Default, Debug)]
struct Failures([Counter; WcStatus::GeneralErr as usize + 1]);

impl Failures {
    fn add(&self, status: WcStatus) {
        self.0[status as usize].add(1);
    }

    fn of(&self, status: WcStatus) -> u64 {
        self.0[status as usize].get()
    }
}

/// The counters of one device since the process started, for all contexts that opened it.
#[derive(Default, Debug)]
pub(crate) struct DeviceCounters {
    /// The counters of queue pairs that were destroyed. A reader that adds up holds this lock
    /// for that time, and so does the destruction of a queue pair: each is counted exactly once.
    pub(crate) past: Mutex<QpTotals>,
    sends_failed: Failures,
    receives_failed: Failures,
    /// Completions that were lost because their queue was full.
    pub(crate) cq_overruns: Counter,
    /// How often the interface went down.
    pub(crate) link_downed: Counter,
    /// Packets with a wrong partition key, and those with a wrong queue key. Sums of the queue
    /// pairs' counters: programs read them for each queue pair that they make.
    violations: [Counter; 2],
    /// The objects that exist, by their kind.
    resources: [AtomicU64; Resource::Srq as usize + 1],
}

impl DeviceCounters {
    /// Counts an object until the returned value is dropped.
    pub(crate) fn count(self: &Arc<Self>, kind: Resource) -> ResourceCount {
        self.resources[kind as usize].fetch_add(1, Ordering::Relaxed);
        let device = Arc::clone(self);
        ResourceCount { device, kind }
    }

    /// Returns the number of objects of this kind that exist.
    pub(crate) fn existing(&self, kind: Resource) -> u64 {
        self.resources[kind as usize].load(Ordering::Relaxed)
    }

    /// Counts the violations of a queue pair between two readings of its
    /// [`Counters::key_violations`].
    #[cold]
    pub(crate) fn count_key_violations(&self, before: [u64; 2], after: [u64; 2]) {
        for (sum, (before, after)) in self.violations.iter().zip(before.into_iter().zip(after)) {
            sum.add(after - before);
        }
    }

    /// Returns the numbers of received packets with a wrong partition key and with a wrong queue
    /// key.
    pub(crate) fn key_violations(&self) -> [u64; 2] {
        [0, 1].map(|kind: usize| self.violations[kind].get())
    }

    /// Counts a send that ended in error.
    #[cold]
    pub(crate) fn send_failed(&self, status: WcStatus) {
        self.sends_failed.add(status);
    }

    /// Counts a receive that ended in error.
    #[cold]
    pub(crate) fn receive_failed(&self, status: WcStatus) {
        self.receives_failed.add(status);
    }

    /// Returns the sums over all queue pairs, destroyed ones included. `live` returns the sums over
    /// those that exist, and is called while none can be destroyed.
    pub(crate) fn totals(&self, live: impl FnOnce() -> QpTotals) -> QpTotals {
        let past = Ordered::take(Rank::PastCounters, || lock(&self.past));
        let mut totals = live();
        totals += &past;
        totals
    }

    /// Returns the readings of the device. `live` returns the sums over the queue pairs that exist,
    /// and is called while none can be destroyed; `bad` is the number of datagrams for the device's
    /// addresses that were dropped.
    pub(crate) fn read(&self, live: impl FnOnce() -> QpTotals, bad: u64) -> DeviceReadings {
        let totals = self.totals(live);
        DeviceReadings {
            port: self.port(&totals.traffic, bad),
            hw: self.hw(&totals),
            diagnostic: self.diagnostic(&totals),
            transport: totals.transport.named().collect(),
        }
    }

    /// Returns the counters below `ports/N/counters` in sysfs. Those of a cable or a switch are 0:
    /// there is none.
    fn port(&self, traffic: &Traffic, bad: u64) -> Readings {
        /// The unit of the data counters: 4 bytes (16.1.3.5).
        const WORD: u64 = 4;
        vec![
            ("VL15_dropped", 0),
            ("excessive_buffer_overrun_errors", 0),
            ("link_downed", self.link_downed.get()),
            ("link_error_recovery", 0),
            ("local_link_integrity_errors", 0),
            ("multicast_rcv_packets", traffic.received_multicast),
            ("multicast_xmit_packets", traffic.sent_multicast),
            ("port_rcv_constraint_errors", 0),
            ("port_rcv_data", traffic.received.bytes / WORD),
            ("port_rcv_errors", bad),
            ("port_rcv_packets", traffic.received.packets),
            ("port_rcv_remote_physical_errors", 0),
            ("port_rcv_switch_relay_errors", 0),
            ("port_xmit_constraint_errors", 0),
            ("port_xmit_data", traffic.sent.bytes / WORD),
            ("port_xmit_discards", traffic.not_sent),
            ("port_xmit_packets", traffic.sent.packets),
            ("port_xmit_wait", 0),
            ("symbol_error", 0),
            (
                "unicast_rcv_packets",
                traffic.received.packets - traffic.received_multicast,
            ),
            (
                "unicast_xmit_packets",
                traffic.sent.packets - traffic.sent_multicast,
            ),
        ]
    }

    /// Returns the counters by the names of the kernel's rxe, `ports/N/hw_counters`.
    fn hw(&self, totals: &QpTotals) -> Readings {
        let QpTotals { transport, traffic } = totals;
        let retries =
            transport.timeouts + transport.responses_lost + transport.sequence_naks_received;
        vec![
            ("sent_pkts", traffic.sent.packets),
            ("rcvd_pkts", transport.received_packets),
            ("duplicate_request", transport.duplicates),
            ("out_of_seq_request", transport.out_of_sequence),
            ("rcvd_rnr_err", transport.rnr_naks_received),
            ("send_rnr_err", transport.rnr_naks_sent),
            ("rcvd_seq_err", transport.sequence_naks_received),
            ("ack_deferred", transport.responses_deferred),
            ("retry_exceeded_err", transport.retries_exceeded),
            ("retry_rnr_exceeded_err", transport.rnr_retries_exceeded),
            ("completer_retry_err", retries),
            ("send_err", traffic.not_sent),
            ("link_downed", self.link_downed.get()),
            ("rdma_sends", transport.sends_done),
            ("rdma_recvs", transport.receives_done),
        ]
    }

    /// Returns the counters by the names of NIC vendors' diagnostics: of the responder (`rq`) and
    /// of the requester (`sq`).
    fn diagnostic(&self, totals: &QpTotals) -> Readings {
        use WcStatus as S;
        let QpTotals { transport, traffic } = totals;
        let (rq, sq) = (&self.receives_failed, &self.sends_failed);
        vec![
            // Local length, queue pair operation and protection errors; flushed work requests.
            ("rq_num_lle", rq.of(S::LocLenErr)),
            ("rq_num_lqpoe", rq.of(S::LocQpOpErr)),
            ("rq_num_lpe", rq.of(S::LocProtErr)),
            ("rq_num_wrfe", rq.of(S::WrFlushErr)),
            // Local access errors of the peer's WRITE with immediate.
            ("rq_num_lae", rq.of(S::LocAccessErr)),
            // NAKs that the responder sent: invalid request, remote access, remote operation.
            ("rq_num_rire", transport.invalid_request_naks_sent),
            ("rq_num_rae", transport.remote_access_naks_sent),
            ("rq_num_roe", transport.remote_operation_naks_sent),
            ("rq_num_rnr", transport.rnr_naks_sent),
            ("rq_num_oos", transport.out_of_sequence),
            ("rq_num_dup", transport.duplicates),
            ("rq_num_mce", traffic.bad_multicast),
            ("sq_num_lle", sq.of(S::LocLenErr)),
            ("sq_num_lqpoe", sq.of(S::LocQpOpErr)),
            ("sq_num_lpe", sq.of(S::LocProtErr)),
            ("sq_num_wrfe", sq.of(S::WrFlushErr)),
            ("sq_num_mwbe", sq.of(S::MwBindErr)),
            ("sq_num_bre", sq.of(S::BadRespErr)),
            ("sq_num_rire", sq.of(S::RemInvReqErr)),
            ("sq_num_rae", sq.of(S::RemAccessErr)),
            ("sq_num_roe", sq.of(S::RemOpErr)),
            ("sq_num_rnr", transport.rnr_naks_received),
            ("sq_num_oos", transport.sequence_naks_received),
            ("sq_num_to", transport.timeouts),
            ("sq_num_tree", sq.of(S::RetryExcErr)),
            ("sq_num_rree", sq.of(S::RnrRetryExcErr)),
            ("num_cqovf", self.cq_overruns.get()),
            // Requests behind a gap for which there was no room.
            ("oos_drop_count", transport.out_of_order_dropped),
            // Congestion: CNPs and ECN marks at the notification point, CNPs at the reaction point.
            ("np_cnp_sent", transport.cnps_sent),
            ("np_ecn_marked_roce_packets", transport.ecn_marked),
            ("rp_cnp_handled", transport.cnps_received),
        ]
    }
}

/// Counters by name.
pub(crate) type Readings = Vec<(&'static str, u64)>;

/// The readings of a device, by group.
#[derive(Clone, Debug)]
pub(crate) struct DeviceReadings {
    pub(crate) port: Readings,
    pub(crate) hw: Readings,
    pub(crate) diagnostic: Readings,
    pub(crate) transport: Readings,
}
