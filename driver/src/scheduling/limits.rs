//! The constants of scheduling.
//!
//! | decision | constants |
//! |---|---|
//! | when an empty poll yields the processor | [`EMPTY_POLLS_BEFORE_YIELD`] |
//! | when polls of several threads get receive sockets of their own | [`BUSY_RECEIVER_SPINS`] to [`POLLS_BEFORE_FLUSH`] |
//! | how long a completion waits for a write that the program polls for | [`WRITE_POLLS`], [`WRITE_TIMEOUT`], [`MAX_MISSES`] |
//! | when a blocking call receives before it sleeps | [`SKIPPED_RECEIVES`] |
//! | when the progress thread receives for a program that stopped polling | [`CHECK_INTERVAL`] to [`BUSY_POLLS`] |
//! | for how long it then receives | [`RECEIVE_PERIOD`] |
//! | how long it busy-polls before it sleeps | [`BUSY_POLL`] to [`LONG_MESSAGE`] |
//! | when a thread sleeps under contention instead of yielding | [`LONG_YIELD_THRESHOLD`] to [`POLL_SLEEP`] |
//! | when an empty poll yields to a peer on its processor | [`SHARED_PROCESSOR_YIELD`] |
//! | which sends are coalesced | [`SENDS_AT_ONCE`] to [`MAX_BACK_OFF`] |
//! | which acknowledgements are delayed | [`PROMPT_REPLY_TIME`], [`PROMPT_REPLY_COUNT`] |
//! | how much is in flight to one process of this host | [`SEND_QUANTUM`] to [`MIN_PROBE_INTERVAL`] |
//! | the bytes that one queue pair sends before the next is served | [`TX_BUDGET`], [`FLUSH_CHARGE`] |
//! | how much is received before a queue pair is destroyed | [`FINAL_BATCHES`] |
//! | how long a batch waits for space in its socket's send buffer | [`WRITABLE_TIMEOUT`] |

use std::time::Duration;

/// Consecutive empty polls before each further one yields the processor: the peer may be waiting
/// for it. On an idle processor a yield costs a system call.
pub(crate) const EMPTY_POLLS_BEFORE_YIELD: u32 = 64;

/// Checks of a poll's completion queue while another thread receives, before the poll yields the
/// processor. That thread may have been preempted.
pub(crate) const BUSY_RECEIVER_SPINS: u32 = 64;

/// Polls that found the receiver locked by a poll with another affinity, before a process opens
/// more receive sockets.
pub(crate) const CONTENDED_POLLS: u32 = 1000;

/// The time within which they occur. Threads that collide rarely keep one socket.
pub(crate) const CONTENTION_PERIOD: Duration = Duration::from_secs(1);

/// Polls of a receive socket between two that also receive from the sockets that no poll receives
/// from.
pub(crate) const POLLS_BEFORE_CHECK: u32 = 32;

/// Polls between two that also flush what queue pairs with other affinities have deferred: their
/// program may poll only one of its completion queues.
pub(crate) const POLLS_BEFORE_FLUSH: u64 = 256;

/// Consecutive empty polls before a completion is returned to an application that polls memory. The
/// unit is polls, since the peer's answer takes longer where polls take longer.
pub(crate) const WRITE_POLLS: u32 = 64;

/// The longest time to wait for the peer's write, even while packets keep arriving.
pub(crate) const WRITE_TIMEOUT: Duration = Duration::from_millis(1);

/// Consecutive misses (no write arrived) after which an application no longer counts as one that
/// polls memory.
pub(crate) const MAX_MISSES: u32 = 8;

/// Blocking calls that sleep without receiving first, after one that received and found nothing.
pub(crate) const SKIPPED_RECEIVES: u32 = 15;

/// Time without a call of the program after which the progress thread receives its packets.
pub(crate) const CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// The upper bound of that time where a check is expensive.
pub(crate) const MAX_CHECK_INTERVAL: Duration = Duration::from_millis(8);

/// The least ratio of the interval between two checks to the cost of one.
pub(crate) const INTERVAL_PER_COST: u32 = 20;

/// The longest interval between two checks of a program that was polling at each of the last
/// checks, in units of [`CHECK_INTERVAL`]. A check costs the program more than it costs the
/// progress thread: an interrupt, two thread switches, and on a virtual machine the host's share.
pub(crate) const MAX_CHECK_BACK_OFF: u32 = 4;

/// The number of polls within [`CHECK_INTERVAL`] that make the program count as polling all the
/// time. A program that waits for events polls once or twice for each, and its completion queue is
/// armed while it waits.
pub(crate) const BUSY_POLLS: u64 = 8;

/// Empty polls after the last request for a notification from which on the program counts as one
/// that polls. A program that sleeps until the notification makes one or two for each queue.
pub(crate) const EMPTY_POLLS_AFTER_ARM: u64 = 256;

/// Time for which the progress thread receives after it found packets that the program did not
/// receive. An application that polls memory for its peer's write is such a program. It may still
/// poll for completions of sends, which arrive at once. For each such period one packet had to wait
/// for [`CHECK_INTERVAL`].
pub(crate) const RECEIVE_PERIOD: Duration = Duration::from_millis(100);

/// Busy-poll time before the progress thread sleeps, if the gap between the last two packets was
/// shorter: a wake-up takes a large part of it. A thread with longer gaps never busy-polls.
pub(crate) const BUSY_POLL: Duration = Duration::from_micros(50);

/// The busy-poll time in empty polls, where a poll takes long, as on an emulated machine: there the
/// peer's answer takes longer as well.
pub(crate) const BUSY_POLL_EMPTY_POLLS: u32 = 20;

/// The upper bound of the busy-poll time.
pub(crate) const MAX_BUSY_POLL: Duration = Duration::from_micros(500);

/// Bytes received at once that make a packet count as part of a long message, with more to follow.
/// The thread then yields to a thread of the program that is in a call even under contention: a
/// program that polls memory receives the rest faster in its own calls than the two threads do by
/// alternating.
pub(crate) const LONG_MESSAGE: u64 = 16 << 10;

/// A `sched_yield` of at least this duration has given the processor to a thread that keeps it.
/// Where a thread that yields forfeits its time slice, its next chance to run may be the
/// scheduler's next tick.
pub(crate) const LONG_YIELD_THRESHOLD: Duration = Duration::from_micros(500);

/// Time for which the progress thread leaves packets to a thread of the program that is in a post
/// or a poll. It sleeps instead of yielding: that thread may poll memory when its call ends, and
/// would then not give the processor back.
pub(crate) const CONTENTION_SLEEP: Duration = Duration::from_micros(20);

/// The longest time after a long yield in which a thread sleeps between packets instead of
/// yielding, if few packets arrive. It doubles with each trial while contention persists.
pub(crate) const CONTENTION: Duration = Duration::from_millis(100);

/// The upper bound of the factor by which that time and the number of wake-ups grow while
/// contention persists. A trial then costs a sixteenth of the wake-ups.
pub(crate) const MAX_CONTENTION_FACTOR: u32 = 16;

/// The additional cost of a packet that wakes a thread, compared with one that a poll receives.
pub(crate) const WAKE_UP_COST: Duration = Duration::from_micros(20);

/// The most packets between two trials of busy polling under contention. A failed trial costs up to
/// [`MAX_BUSY_POLL`].
pub(crate) const MAX_SPIN_BACK_OFF: u32 = 64;

/// The longest sleep of a program's poll under contention. A packet ends it. It replaces a yield
/// that takes [`LONG_YIELD_THRESHOLD`], five times as long, or more.
pub(crate) const POLL_SLEEP: Duration = Duration::from_micros(100);

/// The duration from which on an empty poll with a yield gave the processor to another thread.
pub(crate) const SHARED_PROCESSOR_YIELD: Duration = Duration::from_micros(5);

/// Posts after each poll whose sends are transmitted at once.
pub(crate) const SENDS_AT_ONCE: u32 = 2;

/// Batch limit of coalesced sends.
pub(crate) const MAX_COALESCED_SENDS: u32 = 32;

/// Batch limit of coalesced sends in bytes of data: about what the kernel takes in one UDP GSO
/// send. A message of that size is never deferred.
pub(crate) const MAX_COALESCED_BYTES: u64 = 60_000;

/// Longest time that the first deferred send waits while the application keeps posting.
pub(crate) const MAX_DEFERRAL: Duration = Duration::from_micros(20);

/// How often packets for others wake a thread in a blocking call before it leaves receiving to
/// them: their calls return more often. A thread that waits for connections is an example.
pub(crate) const MAX_DRIVES_FOR_OTHERS: u32 = 64;

/// If no thread of the program receives for longer than this, on average, while others wait, each
/// that leaves wakes the progress thread. That takes some tens of microseconds.
pub(crate) const LONG_ABSENCE: Duration = Duration::from_micros(100);

/// A post follows closely if it begins within this time after the last post returned. A peer's
/// answer takes longer.
pub(crate) const COALESCE_INTERVAL: Duration = Duration::from_micros(5);

/// The least time until the flush timer expires. The longest is twice that.
pub(crate) const FLUSH_TIMEOUT: Duration = Duration::from_micros(100);

/// First back-off, for which nothing is deferred after a flush timeout.
pub(crate) const MIN_BACK_OFF: Duration = Duration::from_millis(1);

/// Longest back-off.
pub(crate) const MAX_BACK_OFF: Duration = Duration::from_millis(128);

/// Longest time from a message to the post that answers it promptly.
pub(crate) const PROMPT_REPLY_TIME: Duration = Duration::from_micros(20);

/// Consecutive messages with a prompt answer before an ACK is delayed.
pub(crate) const PROMPT_REPLY_COUNT: u32 = 2;

/// What a connection to a process of this host sends before others to that process, in bytes:
/// several batches, and enough for a READ request.
pub(crate) const SEND_QUANTUM: u32 = 64 << 10;

/// The limit of bytes in flight to a process of this host: a part of a processor's cache.
pub(crate) const MAX_IN_FLIGHT: u32 = 512 << 10;

/// The limit for a process with the smallest receive buffer, in bytes: the window of one
/// connection.
pub(crate) const MIN_IN_FLIGHT: u32 = 256 << 10;

/// Most bytes in flight of all unreliable connections to same-host peers: what fits a receive
/// buffer of the default `rmem_max`, with room for other traffic.
pub(crate) const MAX_UNRELIABLE_IN_FLIGHT: u32 = 192 << 10;

/// Shortest interval of flow-control probes in bytes: a few packets, however many connections there
/// are.
pub(crate) const MIN_PROBE_INTERVAL: u32 = 8 << 10;

/// Bytes that a queue pair sends before the next one is served.
pub(crate) const TX_BUDGET: u64 = 1 << 20;

/// Least charge in bytes for one flush to the kernel, however small the batch: datagrams to many
/// destinations need one flush each.
pub(crate) const FLUSH_CHARGE: u64 = 16 << 10;

/// Bytes of a received batch after which its queue pairs may send: a peer whose window was full
/// continues while the rest of the batch is handled.
pub(crate) const ANSWER_INTERVAL: usize = 96 << 10;

/// The most batches that a thread receives from a socket before it destroys a queue pair: other
/// queue pairs' packets may arrive faster than it handles them.
pub(crate) const FINAL_BATCHES: usize = 16;

/// Longest time that a batch waits for space in the socket's send buffer. It is then dropped, and
/// the transport recovers its packets as it does those that the network lost.
pub(crate) const WRITABLE_TIMEOUT: Duration = Duration::from_millis(16);
