//! Queue pairs, whose states are types: what a state does not permit does not compile.
#![forbid(unsafe_code)]

use crate::cq::{CompletionQueue, CqError, Reservation};
use crate::endpoint::{ConnectOptions, Endpoint};
use crate::mr::RemoteAccess;
use crate::outstanding::{Outstanding, WorkQueue};
use crate::pd::ProtectionDomain;
use crate::work::{BatchError, Data, PostError, ReceiveRequest, SendRequest, elements};
use std::sync::Arc;
use urxe_driver as driver;
use urxe_driver::qp::{CreateError, MAX_SGE, ModifyError, QpCap, QpInit};
use urxe_proto::host::Access;
use urxe_proto::ids::{Gid, Qpn};
use urxe_proto::mtu::Mtu;
use urxe_proto::psn::Psn;
use urxe_proto::qp::{AddressVector, AttrMask, QpAttr, QpState, QpType};
use urxe_proto::rc::Counters;
use urxe_proto::work::{Payload, SendWr, Sge};

/// Why a queue pair cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A completion queue belongs to another opened device.
    #[error("the completion queues must be made from the same opened device as the queue pair")]
    OtherContext,
    /// The port has no such GID.
    #[error("{device} has no GID with index {index}: `urxe devices` lists them")]
    NoSuchGid {
        /// The device.
        device: String,
        /// The index asked for.
        index: u8,
    },
    /// A completion queue has no room for its completions.
    #[error(transparent)]
    Cq(#[from] CqError),
    /// It cannot be created.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// It cannot be initialised.
    #[error(transparent)]
    Modify(#[from] ModifyError),
}

impl BuildError {
    /// The `errno` that a verbs program would get.
    pub fn errno(&self) -> i32 {
        match self {
            Self::OtherContext | Self::NoSuchGid { .. } => libc::EINVAL,
            Self::Cq(error) => error.errno(),
            Self::Create(error) => error.errno(),
            Self::Modify(error) => error.errno(),
        }
    }
}

/// A queue pair in the making. (`ibv_qp_init_attr`.)
#[derive(Debug)]
#[must_use = "nothing is made until it is built"]
pub struct QueuePairBuilder<'a> {
    pd: &'a ProtectionDomain,
    send_cq: &'a CompletionQueue,
    recv_cq: &'a CompletionQueue,
    cap: QpCap,
    settings: Settings,
}

/// What a queue pair keeps through a reset.
#[derive(Clone, Copy, Debug)]
struct Settings {
    access: RemoteAccess,
    gid_index: u8,
    /// The largest that the program wants; `None` for what the interface can carry.
    path_mtu: Option<Mtu>,
    responder_resources: u8,
}

impl<'a> QueuePairBuilder<'a> {
    pub(crate) fn new(
        pd: &'a ProtectionDomain,
        send_cq: &'a CompletionQueue,
        recv_cq: &'a CompletionQueue,
    ) -> Self {
        QueuePairBuilder {
            pd,
            send_cq,
            recv_cq,
            cap: QpCap {
                max_send_wr: 128,
                max_recv_wr: 128,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline: 256,
            },
            settings: Settings {
                access: RemoteAccess::all(),
                gid_index: 0,
                path_mtu: None,
                responder_resources: 16,
            },
        }
    }

    /// How many work requests the send queue holds, 0 to 32,768. (Default 128.)
    pub fn max_send_wr(mut self, max: u32) -> Self {
        self.cap.max_send_wr = max;
        self
    }

    /// How many work requests the receive queue holds, 0 to 32,768. (Default 128.)
    pub fn max_recv_wr(mut self, max: u32) -> Self {
        self.cap.max_recv_wr = max;
        self
    }

    /// How many pieces of memory a work request for the send queue has at most, 0 to 32.
    /// (Default 4.)
    pub fn max_send_sge(mut self, max: u32) -> Self {
        self.cap.max_send_sge = max;
        self
    }

    /// How many pieces of memory a receive has at most, 0 to 32. (Default 4.)
    pub fn max_recv_sge(mut self, max: u32) -> Self {
        self.cap.max_recv_sge = max;
        self
    }

    /// How many bytes of inline data a work request has at most, 0 to 1024. (Default 256.)
    pub fn max_inline(mut self, max: u32) -> Self {
        self.cap.max_inline = max;
        self
    }

    /// What the peer may do by this queue pair, to regions that permit it. (Default: everything.)
    pub fn remote_access(mut self, access: RemoteAccess) -> Self {
        self.settings.access = access;
        self
    }

    /// Which GID of the port is its address. (Default 0.)
    pub fn gid_index(mut self, index: u8) -> Self {
        self.settings.gid_index = index;
        self
    }

    /// The largest path MTU that it may use. (Default: what the interface can carry.)
    pub fn path_mtu(mut self, mtu: Mtu) -> Self {
        self.settings.path_mtu = Some(mtu);
        self
    }

    /// How many READs and atomics of the peer's it can answer at a time, 0 to 128. (Default 16.)
    pub fn responder_resources(mut self, count: u8) -> Self {
        self.settings.responder_resources = count;
        self
    }

    /// Makes it. (`ibv_create_qp`, and `ibv_modify_qp` to INIT.)
    ///
    /// # Errors
    /// See [`BuildError`].
    pub fn build(self) -> Result<PreparedQueuePair, BuildError> {
        let context = self.pd.context();
        if !context.is(self.send_cq.context()) || !context.is(self.recv_cq.context()) {
            return Err(BuildError::OtherContext);
        }
        let mut reservations = vec![
            self.send_cq.reserve(self.cap.max_send_wr)?,
            self.recv_cq.reserve(self.cap.max_recv_wr)?,
        ];
        let init = QpInit {
            service: QpType::Rc,
            send_cq: Arc::clone(self.send_cq.driver()),
            recv_cq: Arc::clone(self.recv_cq.driver()),
            srq: None,
            cap: self.cap,
            signal_all: false,
        };
        let qp = context.driver().create_qp(self.pd.driver(), init)?;
        let outstanding = Outstanding::new(self.cap.max_send_wr, self.cap.max_recv_wr);
        let outstanding = Arc::new(outstanding);
        for reservation in &mut reservations {
            reservation.attach(qp.qpn(), &outstanding);
        }
        Core {
            qp,
            outstanding,
            settings: self.settings,
            pd: self.pd.clone(),
            _reservations: reservations,
        }
        .prepare()
    }
}

/// What a queue pair is in every state. Dropping it destroys the queue pair; the order of the fields
/// is that in which the rest goes then.
#[derive(Debug)]
struct Core {
    qp: Arc<driver::Qp>,
    outstanding: Arc<Outstanding>,
    settings: Settings,
    pd: ProtectionDomain,
    /// Its room in its completion queues, which live as long.
    _reservations: Vec<Reservation>,
}

impl Core {
    /// Takes it from RESET to INIT.
    fn prepare(self) -> Result<PreparedQueuePair, BuildError> {
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

    fn gid(&self, device: &crate::Device) -> Result<Gid, BuildError> {
        let index = self.settings.gid_index;
        let gid = device.0.gid(usize::from(index));
        gid.ok_or_else(|| BuildError::NoSuchGid {
            device: device.name().to_owned(),
            index,
        })
    }

    fn go_to(&self, state: QpState) -> Result<(), ModifyError> {
        let attr = QpAttr {
            state,
            ..QpAttr::default()
        };
        self.qp.modify(&attr, AttrMask::STATE)
    }

    fn post_receive(&self, request: ReceiveRequest) -> Result<(), PostError> {
        let cap = self.qp.cap();
        request.check(self.pd.driver().id(), &cap)?;
        // The lock goes before what could not be posted is dropped.
        let mut refused = None;
        let mut ring = self.outstanding.ring(WorkQueue::Receive);
        let result = if ring.is_full() {
            refused = Some(request.slices);
            Err(PostError::QueueFull {
                capacity: cap.max_recv_wr,
            })
        } else {
            let entry = ring.push(request.wr_id, request.slices, true);
            let mut array = [Sge::default(); MAX_SGE as usize];
            let sges = elements(&entry.buffers, &mut array);
            let posted = self.qp.post_receive(entry.id().to_driver(), sges);
            if posted.is_err() {
                refused = ring.take_back().map(|entry| entry.buffers);
            }
            posted.map_err(PostError::from)
        };
        drop(ring);
        drop(refused);
        result
    }

    /// Posts work requests that have been checked, and tells how many, and why not the next.
    fn post_sends<'r>(
        &self,
        requests: impl IntoIterator<Item = SendRequest<'r>>,
    ) -> (usize, Option<PostError>) {
        // What could not be posted is dropped last, outside of the locks: memory may be
        // deregistered then, for which posting must have ended.
        let mut refused = None;
        let mut error = None;
        let mut count = 0;
        let mut ring = self.outstanding.ring(WorkQueue::Send);
        let mut posting = self.qp.start_posting();
        for request in requests {
            if ring.is_full() {
                error = Some(PostError::QueueFull {
                    capacity: self.qp.cap().max_send_wr,
                });
                refused = Some(request.data);
                break;
            }
            let signaled = request
                .flags
                .contains(urxe_proto::work::SendFlags::SIGNALED);
            let (buffers, inline) = match request.data {
                Data::Slices(slices) => (slices, None),
                Data::Inline(bytes) => (Vec::new(), Some(bytes)),
            };
            let entry = ring.push(request.wr_id, buffers, signaled);
            let mut array = [Sge::default(); MAX_SGE as usize];
            let payload = match inline {
                Some(bytes) => Payload::Inline(bytes),
                None => Payload::Sges(elements(&entry.buffers, &mut array)),
            };
            let posted = posting.post(&SendWr {
                wr_id: entry.id().to_driver(),
                op: request.op,
                flags: request.flags,
                payload,
                dest: None,
            });
            if let Err(why) = posted {
                error = Some(why.into());
                refused = ring.take_back().map(|entry| Data::Slices(entry.buffers));
                break;
            }
            count += 1;
        }
        // Completions may be taken while the packets go out.
        drop(ring);
        drop(posting);
        drop(refused);
        (count, error)
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // In RESET nothing completes any more, whoever is still at work on it.
        if let Err(error) = self.go_to(QpState::Reset) {
            tracing::debug!(%error, qp = %self.qp.qpn(), "a queue pair could not be reset");
        }
        self.qp.destroy();
    }
}

/// A reliable connected queue pair that is not connected yet. Receives may be posted, so that they
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
        let responder = AttrMask::STATE
            | AttrMask::AV
            | AttrMask::PATH_MTU
            | AttrMask::DEST_QPN
            | AttrMask::RQ_PSN
            | AttrMask::MAX_DEST_RD_ATOMIC
            | AttrMask::MIN_RNR_TIMER;
        self.core.qp.modify(&attr, responder)?;
        attr.state = QpState::Rts;
        let requester = AttrMask::STATE
            | AttrMask::TIMEOUT
            | AttrMask::RETRY_CNT
            | AttrMask::RNR_RETRY
            | AttrMask::SQ_PSN
            | AttrMask::MAX_QP_RD_ATOMIC;
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
        request.check(self.core.pd.driver().id(), &self.core.qp.cap())?;
        match self.core.post_sends([request]) {
            (_, Some(error)) => Err(error),
            (_, None) => Ok(()),
        }
    }

    /// Posts several work requests, whose packets go out together. (`ibv_post_send` with a list.)
    ///
    /// # Errors
    /// See [`BatchError`]: those before the one that is wrong have been posted.
    pub fn post_sends<'r>(
        &self,
        requests: impl IntoIterator<Item = SendRequest<'r>>,
    ) -> Result<(), BatchError> {
        let (pd, cap) = (self.core.pd.driver().id(), self.core.qp.cap());
        // Collected before posting begins, during which none of the program's code may run.
        let mut checked = Vec::new();
        let mut wrong = None;
        for request in requests {
            if let Err(error) = request.check(pd, &cap) {
                wrong = Some(error);
                break;
            }
            checked.push(request);
        }
        let (posted, error) = self.core.post_sends(checked);
        match error.or(wrong) {
            Some(source) => Err(BatchError { posted, source }),
            None => Ok(()),
        }
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
    /// What is outstanding ends without completions. (`ibv_modify_qp` to RESET and INIT.)
    ///
    /// # Errors
    /// See [`BuildError`]. The queue pair is gone then.
    pub fn reset(self) -> Result<PreparedQueuePair, BuildError> {
        self.core.go_to(QpState::Reset)?;
        self.core.outstanding.clear();
        self.core.prepare()
    }
}
