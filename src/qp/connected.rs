//! Queue pairs of connections, reliable and unreliable.
#![forbid(unsafe_code)]

use super::{BuildError, Core};
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
    /// Takes it from RESET to INIT.
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
            // Unlike any earlier connection's, so that packets of those are not mistaken.
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

/// What an unreliable connection is told on its way to RTR.
const UNRELIABLE_RESPONDER: AttrMask = AttrMask::STATE
    .union(AttrMask::AV)
    .union(AttrMask::PATH_MTU)
    .union(AttrMask::DEST_QPN)
    .union(AttrMask::RQ_PSN);
/// What it is told on its way to RTS.
const UNRELIABLE_REQUESTER: AttrMask = AttrMask::STATE.union(AttrMask::SQ_PSN);
/// What a reliable connection is told on its way to RTR.
const RESPONDER: AttrMask = UNRELIABLE_RESPONDER
    .union(AttrMask::MAX_DEST_RD_ATOMIC)
    .union(AttrMask::MIN_RNR_TIMER);
/// What it is told on its way to RTS.
const REQUESTER: AttrMask = UNRELIABLE_REQUESTER
    .union(AttrMask::TIMEOUT)
    .union(AttrMask::RETRY_CNT)
    .union(AttrMask::RNR_RETRY)
    .union(AttrMask::MAX_QP_RD_ATOMIC);

/// A queue pair of a connection that is not connected yet. Receives may be posted, so that they
/// are there when the peer begins. (A `ibv_qp` in INIT.)
#[derive(Debug)]
pub struct PreparedQueuePair {
    core: Core,
    endpoint: Endpoint,
}

impl PreparedQueuePair {
    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.core.qp.qpn()
    }

    /// What the peer must know to connect to it.
    pub fn endpoint(&self) -> Endpoint {
        self.endpoint
    }

    /// Posts a receive. (`ibv_post_recv`.)
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn post_receive(&self, request: ReceiveRequest) -> Result<(), PostError> {
        self.core.post_receive(request)
    }

    /// Its service.
    pub(crate) fn service(&self) -> QpType {
        self.core.qp.service()
    }

    /// The device that it is of.
    pub(crate) fn device(&self) -> Device {
        self.core.pd.context().device()
    }

    /// Whether it takes receives from a shared queue.
    pub(crate) fn shares_receives(&self) -> bool {
        self.core.share.is_some()
    }

    /// How many READs and atomics of the peer's it can answer at a time.
    pub(crate) fn responder_resources(&self) -> u8 {
        self.core.settings.responder_resources
    }

    /// The largest path MTU that it may use.
    pub(crate) fn path_mtu(&self) -> Mtu {
        self.endpoint.path_mtu
    }

    /// Connects it with these attributes for RTR and RTS.
    pub(crate) fn connect_with(
        self,
        steps: &[(QpAttr, AttrMask)],
    ) -> Result<QueuePair, ModifyError> {
        for (attr, mask) in steps {
            self.core.qp.modify(attr, *mask)?;
        }
        Ok(QueuePair { core: self.core })
    }

    /// Connects it to a peer, which connects to it in turn: it sends nothing itself. From now on it
    /// takes requests, and sends may be posted. (`ibv_modify_qp` to RTR and RTS.)
    ///
    /// # Errors
    /// See [`ModifyError`]. The queue pair is gone then.
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
                hop_limit: options.hop_limit,
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

/// A connected queue pair. Threads may share it and post at the same time. (A `ibv_qp` in RTS.)
///
/// When a work request fails it goes to error, and what is posted then is flushed: completions tell.
/// Dropping it destroys it; the program sees no more completions of it then, those in the
/// completion queue included. (`ibv_destroy_qp`.)
#[derive(Debug)]
pub struct QueuePair {
    core: Core,
}

impl QueuePair {
    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.core.qp.qpn()
    }

    /// Its state: RTS, unless it failed or drains. (`ibv_query_qp`.)
    pub fn state(&self) -> QpState {
        // By way of the lock, under which completions are made: once a failure's completion is seen,
        // this says so too.
        self.attributes().state
    }

    /// All its attributes. (`ibv_query_qp`.)
    pub fn attributes(&self) -> QpAttr {
        self.core.qp.attributes()
    }

    /// What happened on it, in numbers.
    pub fn counters(&self) -> Counters {
        self.core.qp.counters()
    }

    /// Posts a receive. (`ibv_post_recv`.)
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn post_receive(&self, request: ReceiveRequest) -> Result<(), PostError> {
        self.core.post_receive(request)
    }

    /// Posts a work request to the send queue; its packets go out at once. (`ibv_post_send`.)
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn post_send(&self, request: SendRequest<'_>) -> Result<(), PostError> {
        self.core.post_send(request, None)
    }

    /// Posts several work requests, whose packets go out together. (`ibv_post_send` with a list.)
    ///
    /// # Errors
    /// See [`BatchError`]: those before the one that is wrong have been posted.
    pub fn post_sends<'r>(
        &self,
        requests: impl IntoIterator<Item = SendRequest<'r>>,
    ) -> Result<(), BatchError> {
        self.core.post_sends(requests, None)
    }

    /// Lets it finish what it has begun to send, and begin nothing more until
    /// [`QueuePair::resume`]. An event, [`SqDrained`](crate::EventType::SqDrained), tells when.
    /// (`ibv_modify_qp` to SQD.)
    ///
    /// # Errors
    /// [`ModifyError::Transition`] when it is not in RTS, as after a failure.
    pub fn drain(&self) -> Result<(), ModifyError> {
        let attr = QpAttr {
            state: QpState::Sqd,
            en_sqd_async_notify: true,
            ..QpAttr::default()
        };
        let mask = AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY;
        self.core.qp.modify(&attr, mask)
    }

    /// Lets it send again after [`QueuePair::drain`]. (`ibv_modify_qp` to RTS.)
    ///
    /// # Errors
    /// [`ModifyError::Transition`] when it failed meanwhile, or drains still.
    pub fn resume(&self) -> Result<(), ModifyError> {
        self.core.go_to(QpState::Rts)
    }

    /// Takes it to error: all that is outstanding completes as flushed. The peer is not told, and
    /// finds that nobody answers. (`ibv_modify_qp` to ERR.)
    ///
    /// # Errors
    /// See [`ModifyError`].
    pub fn fail(&self) -> Result<(), ModifyError> {
        self.core.go_to(QpState::Err)
    }

    /// Takes it back to where it can be connected anew, with the same number and a new first PSN.
    /// What is outstanding ends without completions. With a shared receive queue an event tells that
    /// it took its last receive there for now, [`QpLastWqeReached`](crate::EventType::QpLastWqeReached),
    /// unless it had failed before. (`ibv_modify_qp` to RESET and INIT; with a shared receive queue by
    /// way of ERR.)
    ///
    /// # Errors
    /// See [`BuildError`]. The queue pair is gone then.
    pub fn reset(self) -> Result<PreparedQueuePair, BuildError> {
        self.core.halt()?;
        self.core.outstanding.clear();
        self.core.prepare()
    }
}
