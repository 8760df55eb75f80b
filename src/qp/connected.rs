//! Queue pairs of reliable and unreliable connections.
#![forbid(unsafe_code)]

use super::core::Core;
use super::error::BuildError;
use crate::cq::CompletionQueue;
use crate::device::Device;
use crate::endpoint::{ConnectOptions, Endpoint};
use crate::work::{BatchError, PostError, ReceiveRequest, SendRequest};
use urxe_driver as driver;
use urxe_driver::qp::ModifyError;
use urxe_proto::host::Access;
use urxe_proto::ids::Qpn;
use urxe_proto::mtu::Mtu;
use urxe_proto::psn::Psn;
use urxe_proto::qp::{AddressVector, AttrMask, QpAttr, QpState, QpType};
use urxe_proto::rc::Counters;

impl Core {
    /// Moves the queue pair from RESET to INIT.
    pub(super) fn prepare(self) -> Result<PreparedQueuePair, BuildError> {
        let attr = QpAttr {
            state: QpState::Init,
            access: Access::from_bits_truncate(self.settings.access.bits()),
            port: driver::device::PORT,
            ..QpAttr::default()
        };
        let mask = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
        self.qp.modify(&attr, mask)?;
        let device = self.pd.context().device();
        let endpoint = Endpoint {
            gid: self.gid(&device)?,
            qpn: self.qp.qpn(),
            // Random, so that delayed packets of an earlier connection do not match.
            psn: Psn::new(rand::random()),
            path_mtu: self
                .settings
                .path_mtu
                .unwrap_or_else(|| device.active_mtu()),
            responder_resources: self.settings.responder_resources,
        };
        Ok(PreparedQueuePair {
            core: self,
            endpoint,
        })
    }
}

/// The attributes of an unreliable connection for the transition to RTR.
const UNRELIABLE_RESPONDER: AttrMask = AttrMask::STATE
    .union(AttrMask::AV)
    .union(AttrMask::PATH_MTU)
    .union(AttrMask::DEST_QPN)
    .union(AttrMask::RQ_PSN);
/// The attributes of an unreliable connection for the transition to RTS.
const UNRELIABLE_REQUESTER: AttrMask = AttrMask::STATE.union(AttrMask::SQ_PSN);
/// The attributes of a reliable connection for the transition to RTR.
const RESPONDER: AttrMask = UNRELIABLE_RESPONDER
    .union(AttrMask::MAX_DEST_RD_ATOMIC)
    .union(AttrMask::MIN_RNR_TIMER);
/// The attributes of a reliable connection for the transition to RTS.
const REQUESTER: AttrMask = UNRELIABLE_REQUESTER
    .union(AttrMask::TIMEOUT)
    .union(AttrMask::RETRY_CNT)
    .union(AttrMask::RNR_RETRY)
    .union(AttrMask::MAX_QP_RD_ATOMIC);

/// A queue pair that is not connected yet. (An `ibv_qp` in INIT.)
///
/// Receives may be posted already, so that they are in place when the peer starts to send.
///
/// ```
/// use urxe::prelude::*;
///
/// # fn main() -> urxe::Result<()> {
/// # let context = urxe::device("urxe_lo")?.open()?;
/// # let (pd, cq) = (context.pd(), context.completion_queue()?);
/// let (a, b) = (pd.queue_pair(&cq, &cq).build()?, pd.queue_pair(&cq, &cq).build()?);
/// b.post_receive(ReceiveRequest::into(pd.buffer(64)?))?;
/// // Usually the peer is another program, which gets the endpoint from this one.
/// let (endpoint_a, endpoint_b) = (a.endpoint(), b.endpoint());
/// let a = a.connect(&endpoint_b, &ConnectOptions::default())?;
/// let b = b.connect(&endpoint_a, &ConnectOptions::default())?;
/// assert_eq!((a.qpn(), b.qpn()), (endpoint_a.qpn, endpoint_b.qpn));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct PreparedQueuePair {
    pub(super) core: Core,
    endpoint: Endpoint,
}

impl PreparedQueuePair {
    /// The protection domain.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let qp = pd.queue_pair(&cq, &cq).build()?;
    /// qp.post_receive(ReceiveRequest::into(qp.pd().buffer(4096)?))?;
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn pd(&self) -> &crate::ProtectionDomain {
        &self.core.pd
    }

    /// The queue pair number.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let qp = pd.queue_pair(&cq, &cq).build()?;
    /// assert_eq!(qp.qpn(), qp.endpoint().qpn);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn qpn(&self) -> Qpn {
        self.core.qp.qpn()
    }

    /// The values that the peer needs to connect to this queue pair.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let qp = pd.queue_pair(&cq, &cq).build()?;
    /// // The peer decodes these bytes, and connects to the endpoint.
    /// let bytes = qp.endpoint().to_bytes();
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    /// Posts a receive. (`ibv_post_recv`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let qp = pd.queue_pair(&cq, &cq).build()?;
    /// // The receive is in place before the peer can send.
    /// qp.post_receive(ReceiveRequest::into(pd.buffer(4096)?))?;
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn post_receive(&self, request: ReceiveRequest) -> Result<(), PostError> {
        self.core.post_receive(request)
    }

    /// The transport service.
    pub(crate) fn service(&self) -> QpType {
        self.core.qp.service()
    }

    /// Injects faults into the packets that it sends once it is connected.
    #[cfg(feature = "testing")]
    pub(crate) fn inject_faults(&self, faults: driver::qp::FaultSpec) {
        self.core.qp.inject_faults(faults);
    }

    /// The device that the queue pair belongs to.
    pub(crate) fn device(&self) -> Device {
        self.core.pd.context().device()
    }

    /// Returns whether it takes receives from a shared receive queue.
    pub(crate) fn has_shared_receives(&self) -> bool {
        self.core.attachment.is_some()
    }

    /// The peer's READs and atomics that it can answer at a time.
    pub(crate) fn responder_resources(&self) -> u8 {
        self.core.settings.responder_resources
    }

    /// The largest path MTU to use.
    pub(crate) fn path_mtu(&self) -> Mtu {
        self.endpoint.path_mtu
    }

    /// Connects with these attributes for RTR and RTS.
    pub(crate) fn connect_with(
        self,
        steps: &[(QpAttr, AttrMask)],
    ) -> Result<QueuePair, ModifyError> {
        for (attr, mask) in steps {
            self.core.qp.modify(attr, *mask)?;
        }
        Ok(QueuePair { core: self.core })
    }

    /// Connects to a peer, which must connect to this end in turn. (`ibv_modify_qp` to RTR and
    /// RTS.)
    ///
    /// The call sends no packet. From now on the queue pair answers requests, and sends may be
    /// posted.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let qp = || pd.queue_pair(&cq, &cq).build();
    /// let (a, b) = (qp()?, qp()?);
    /// let (endpoint_a, endpoint_b) = (a.endpoint(), b.endpoint());
    /// let options = ConnectOptions::default().retry_cnt(3);
    /// let (a, b) = (a.connect(&endpoint_b, &options)?, b.connect(&endpoint_a, &options)?);
    /// b.post_receive(ReceiveRequest::into(pd.buffer(64)?))?;
    /// a.post_send(SendRequest::send(b"hello").unsignaled())?;
    /// assert_eq!(cq.wait()?.data()?, b"hello");
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`ModifyError`]. The queue pair is destroyed on an error.
    pub fn connect(
        self,
        peer: &Endpoint,
        options: &ConnectOptions,
    ) -> Result<QueuePair, ModifyError> {
        let (local, settings) = (&self.endpoint, &self.core.settings);
        let mut attr = QpAttr {
            state: QpState::Rtr,
            av: AddressVector {
                dgid: peer.gid,
                sgid_index: settings.gid_index,
                flow_label: options.flow_label,
                traffic_class: options.traffic_class,
                is_global: true,
                port: driver::device::PORT,
                ..AddressVector::default()
            },
            path_mtu: local.path_mtu.min(peer.path_mtu),
            dest_qpn: peer.qpn,
            rq_psn: peer.psn,
            sq_psn: local.psn,
            max_dest_rd_atomic: local.responder_resources,
            max_rd_atomic: options.max_rd_atomic.min(peer.responder_resources),
            min_rnr_timer: options.min_rnr_timer,
            timeout: options.timeout,
            retry_cnt: options.retry_cnt,
            rnr_retry: options.rnr_retry,
            ..QpAttr::default()
        };
        let (responder, requester) = match self.core.qp.service() {
            QpType::Uc => (UNRELIABLE_RESPONDER, UNRELIABLE_REQUESTER),
            _ => (RESPONDER, REQUESTER),
        };
        self.core.qp.modify(&attr, responder)?;
        attr.state = QpState::Rts;
        self.core.qp.modify(&attr, requester)?;
        Ok(QueuePair { core: self.core })
    }
}

/// A connected queue pair. Threads may share it and post concurrently. (An `ibv_qp` in RTS.)
///
/// When a work request fails, the queue pair enters the error state, and work requests posted from
/// then on complete as flushed. A failed send of an unreliable connection leads to the state SQE,
/// in which only receives are processed.
///
/// Dropping it destroys it, and discards its completions that have not been polled.
/// (`ibv_destroy_qp`.)
///
/// ```
/// use urxe::prelude::*;
/// use urxe::{QpState, WcStatus};
///
/// # fn main() -> urxe::Result<()> {
/// # let context = urxe::device("urxe_lo")?.open()?;
/// # let (pd, cq) = (context.pd(), context.completion_queue()?);
/// # let (a, b) = (pd.queue_pair(&cq, &cq).build()?, pd.queue_pair(&cq, &cq).build()?);
/// # let (endpoint_a, endpoint_b) = (a.endpoint(), b.endpoint());
/// # let a = a.connect(&endpoint_b, &ConnectOptions::default())?;
/// # let b = b.connect(&endpoint_a, &ConnectOptions::default())?;
/// let memory = pd.register(16, RemoteAccess::WRITE)?;
/// let (left, right) = (memory.remote().slice(..8)?, memory.remote().slice(8..)?);
/// a.post_sends([
///     SendRequest::write(b"one", &left).unsignaled(),
///     SendRequest::write(b"two", &right).id(2),
/// ])?;
/// // The second completes after the first.
/// assert_eq!(cq.wait()?.wr_id, 2);
/// assert_eq!((memory.to_vec(..3)?, memory.to_vec(8..11)?), (b"one".into(), b"two".into()));
/// println!("{:?}", a.counters());
///
/// // Outstanding work requests complete with an error.
/// b.post_receive(ReceiveRequest::empty())?;
/// b.fail()?;
/// assert_eq!(cq.wait()?.result.unwrap_err().status, WcStatus::WrFlushErr);
/// assert_eq!(b.state(), QpState::Err);
/// let b = b.reset()?;
/// assert_eq!(b.qpn(), endpoint_b.qpn);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct QueuePair {
    pub(super) core: Core,
}

impl QueuePair {
    /// The protection domain.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// let qp = b.into_queue_pair();
    /// qp.post_receive(ReceiveRequest::into(qp.pd().buffer(4096)?))?;
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn pd(&self) -> &crate::ProtectionDomain {
        &self.core.pd
    }

    /// The completion queue of the sends.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// let memory = b.pd().register(8, RemoteAccess::WRITE)?;
    /// a.post_send(SendRequest::write(b"hello", &memory.remote()))?;
    /// a.send_cq().wait()?.result?;
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn send_cq(&self) -> &CompletionQueue {
        self.core.send_cq()
    }

    /// The completion queue of the receives.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// b.post_receive(ReceiveRequest::into(b.pd().buffer(64)?))?;
    /// a.post_send(SendRequest::send(b"hello"))?;
    /// assert_eq!(b.recv_cq().wait()?.data()?, b"hello");
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn recv_cq(&self) -> &CompletionQueue {
        self.core.recv_cq()
    }

    /// The queue pair number.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// b.post_receive(ReceiveRequest::into(b.pd().buffer(64)?))?;
    /// a.post_send(SendRequest::send(b"hello"))?;
    /// assert_eq!(b.cq().wait()?.qpn, b.qpn());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn qpn(&self) -> Qpn {
        self.core.qp.qpn()
    }

    /// The state: RTS, unless it failed or is draining. (`ibv_query_qp`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::QpState;
    ///
    /// let (a, b) = urxe::testing::pair()?;
    /// assert_eq!(a.state(), QpState::Rts);
    /// a.fail()?;
    /// assert_eq!(a.state(), QpState::Err);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn state(&self) -> QpState {
        // Reads under the lock that completions are made under: once a failed completion is
        // visible, so is the error state.
        self.attributes().state
    }

    /// The maximum of inline data in a work request, in bytes; longer data must be registered.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// b.post_receive(ReceiveRequest::into(b.pd().buffer(4096)?))?;
    /// let message = vec![7; a.max_inline()];
    /// a.post_send(SendRequest::send(message.as_slice()))?;
    /// assert_eq!(b.cq().wait()?.data()?, message);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn max_inline(&self) -> usize {
        self.core.qp.cap().max_inline as usize
    }

    /// All attributes. (`ibv_query_qp`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// let attributes: urxe::QpAttr = a.attributes();
    /// assert_eq!((attributes.dest_qpn, attributes.retry_cnt), (b.qpn(), 7));
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn attributes(&self) -> QpAttr {
        self.core.qp.attributes()
    }

    /// The counters of packets, retransmissions and errors.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// b.post_receive(ReceiveRequest::into(b.pd().buffer(64)?))?;
    /// a.post_send(SendRequest::send(b"hello"))?;
    /// a.cq().wait()?.result?;
    /// let counters: urxe::Counters = a.counters();
    /// println!("{} packets were retransmitted", counters.retransmitted);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn counters(&self) -> Counters {
        self.core.qp.counters()
    }

    /// Posts a receive. (`ibv_post_recv`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// for id in 0..4 {
    ///     b.post_receive(ReceiveRequest::into(b.pd().buffer(64)?).id(id))?;
    /// }
    /// a.post_send(SendRequest::send(b"hello"))?;
    /// // Messages consume receives in the order of posting.
    /// assert_eq!(b.cq().wait()?.wr_id, 0);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn post_receive(&self, request: ReceiveRequest) -> Result<(), PostError> {
        self.core.post_receive(request)
    }

    /// Posts a work request to the send queue and starts to transmit it. (`ibv_post_send`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// let memory = b.pd().register(64, RemoteAccess::READ | RemoteAccess::WRITE)?;
    /// a.post_send(SendRequest::write(b"hello", &memory.remote()).unsignaled())?;
    /// a.post_send(SendRequest::read(a.pd().buffer(5)?, &memory.remote()))?;
    /// assert_eq!(a.cq().wait()?.data()?, b"hello");
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn post_send(&self, request: SendRequest<'_>) -> Result<(), PostError> {
        self.core.post_send(request, None)
    }

    /// Posts several work requests and transmits them together. (`ibv_post_send` with a list.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// let memory = b.pd().register(64, RemoteAccess::WRITE)?;
    /// b.post_receive(ReceiveRequest::empty())?;
    /// // The data, and a notification of the peer's program after it.
    /// a.post_sends([
    ///     SendRequest::write(b"hello", &memory.remote()).unsignaled(),
    ///     SendRequest::send(b""),
    /// ])?;
    /// b.cq().wait()?.result?;
    /// assert_eq!(memory.to_vec(..5)?, b"hello");
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`BatchError`]: the work requests before the invalid one have been posted.
    pub fn post_sends<'r>(
        &self,
        requests: impl IntoIterator<Item = SendRequest<'r>>,
    ) -> Result<(), BatchError> {
        self.core.post_sends(requests, None)
    }

    /// Finishes the work requests that have started, and starts no others until
    /// [`QueuePair::resume`]. (`ibv_modify_qp` to SQD.)
    ///
    /// The event [`SqDrained`](crate::EventType::SqDrained) reports the end.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::{EventType, QpState};
    ///
    /// let (a, b) = urxe::testing::pair()?;
    /// a.drain()?;
    /// assert_eq!(a.context().events().wait()?.kind, EventType::SqDrained);
    /// assert_eq!(a.state(), QpState::Sqd);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ModifyError::Transition`] if the queue pair is not in RTS, as after a failure.
    pub fn drain(&self) -> Result<(), ModifyError> {
        let attr = QpAttr {
            state: QpState::Sqd,
            en_sqd_async_notify: true,
            ..QpAttr::default()
        };
        let mask = AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY;
        self.core.qp.modify(&attr, mask)
    }

    /// Resumes sending after [`QueuePair::drain`], or from SQE. (`ibv_modify_qp` to RTS.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::QpState;
    ///
    /// let (a, b) = urxe::testing::pair()?;
    /// a.drain()?;
    /// a.context().events().wait()?;
    /// a.resume()?;
    /// assert_eq!(a.state(), QpState::Rts);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ModifyError::Transition`] if the queue pair is in the error state or still draining.
    pub fn resume(&self) -> Result<(), ModifyError> {
        self.core.go_to(QpState::Rts)
    }

    /// Enters the error state: all outstanding work requests complete as flushed.
    /// (`ibv_modify_qp` to ERR.)
    ///
    /// No packet informs the peer; its requests time out.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// b.post_receive(ReceiveRequest::into(b.pd().buffer(64)?))?;
    /// b.fail()?;
    /// // The receive completes, so its buffer returns.
    /// let completion = b.cq().wait()?;
    /// assert_eq!(completion.result.unwrap_err().status, WcStatus::WrFlushErr);
    /// assert!(completion.buffer.is_some());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`ModifyError`].
    pub fn fail(&self) -> Result<(), ModifyError> {
        self.core.go_to(QpState::Err)
    }

    /// Returns to INIT, with the same number and a new initial PSN. (`ibv_modify_qp` to RESET and
    /// INIT.)
    ///
    /// Outstanding work requests are discarded without completions. With a shared receive queue
    /// the queue pair passes through ERR. Unless it had failed before, the event
    /// [`QpLastWqeReached`](crate::EventType::QpLastWqeReached) then reports that it consumes no
    /// more receives.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// let (a, b) = urxe::testing::pair()?;
    /// let (a, b) = (a.into_queue_pair().reset()?, b.into_queue_pair().reset()?);
    /// let (endpoint_a, endpoint_b) = (a.endpoint(), b.endpoint());
    /// let a = a.connect(&endpoint_b, &ConnectOptions::default())?;
    /// let b = b.connect(&endpoint_a, &ConnectOptions::default())?;
    /// b.post_receive(ReceiveRequest::empty())?;
    /// a.post_send(SendRequest::send(b""))?;
    /// a.send_cq().wait()?.result?;
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`BuildError`]. The queue pair is destroyed on an error.
    pub fn reset(self) -> Result<PreparedQueuePair, BuildError> {
        self.core.reset()?;
        self.core.outstanding.clear();
        self.core.prepare()
    }
}
