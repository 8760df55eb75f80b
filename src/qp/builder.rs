//! The builder of queue pairs.
#![forbid(unsafe_code)]

use super::connected::PreparedQueuePair;
use super::core::{Core, Settings};
use super::datagram::DatagramQueuePair;
use super::error::BuildError;
use crate::cq::CompletionQueue;
use crate::mr::RemoteAccess;
use crate::outstanding::Outstanding;
use crate::pd::ProtectionDomain;
use crate::srq::SharedReceiveQueue;
use std::sync::Arc;
use urxe_driver::qp::{QpCap, QpInit, ReceivesFrom};
use urxe_proto::ids::QKey;
use urxe_proto::mtu::Mtu;
use urxe_proto::qp::QpType;

impl ProtectionDomain {
    /// Returns a builder for a queue pair with these completion queues. (`ibv_create_qp`.)
    ///
    /// Both may be the same queue.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let qp = pd.queue_pair(&cq, &cq).max_send_wr(256).build()?;
    /// println!("queue pair {:?}", qp.qpn());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn queue_pair<'a>(
        &'a self,
        send_cq: &'a CompletionQueue,
        recv_cq: &'a CompletionQueue,
    ) -> QueuePairBuilder<'a> {
        QueuePairBuilder::new(self, send_cq, recv_cq)
    }
}

/// A builder for a queue pair. (`ibv_qp_init_attr`.)
///
/// ```
/// use urxe::{Mtu, QKey, RemoteAccess};
///
/// # fn main() -> urxe::Result<()> {
/// # let context = urxe::device("urxe_lo")?.open()?;
/// # let (pd, cq) = (context.pd(), context.completion_queue()?);
/// let qp = pd
///     .queue_pair(&cq, &cq)
///     .max_send_wr(256)
///     .max_recv_wr(16)
///     .max_recv_sge(1)
///     .max_inline(128)
///     .remote_access(RemoteAccess::READ)
///     .path_mtu(Mtu::B1024)
///     .responder_resources(4)
///     .build()?;
/// assert_eq!(qp.endpoint().path_mtu, Mtu::B1024);
/// let unreliable = pd.queue_pair(&cq, &cq).build_unreliable()?;
/// let datagrams = pd.queue_pair(&cq, &cq).build_datagram(QKey(7))?;
/// assert!(datagrams.max_inline() > 0);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "nothing is made until it is built"]
pub struct QueuePairBuilder<'a> {
    pd: &'a ProtectionDomain,
    send_cq: &'a CompletionQueue,
    recv_cq: &'a CompletionQueue,
    shared: Option<&'a SharedReceiveQueue>,
    cap: QpCap,
    settings: Settings,
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
            shared: None,
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

    /// Takes receives from a shared receive queue. (`srq` of `ibv_qp_init_attr`.)
    ///
    /// The queue pair then has no receive queue of its own, and the options of one have no effect.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let shared = pd.shared_receive_queue().build()?;
    /// let a = pd.queue_pair(&cq, &cq).receives_from(&shared).build()?;
    /// let b = pd.queue_pair(&cq, &cq).receives_from(&shared).build()?;
    /// // One receive, for the first message to either of them.
    /// shared.post_receive(ReceiveRequest::into(pd.buffer(4096)?))?;
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn receives_from(mut self, shared: &'a SharedReceiveQueue) -> Self {
        self.shared = Some(shared);
        self
    }

    /// The maximum of outstanding work requests in the send queue, 0 to 32,768. (Default 128.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::{BuildError, CreateError};
    ///
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let qp = pd.queue_pair(&cq, &cq).max_send_wr(256).build()?;
    /// let error = pd.queue_pair(&cq, &cq).max_send_wr(1_000_000).build().unwrap_err();
    /// assert!(matches!(error, BuildError::Create(CreateError::Capacity)));
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn max_send_wr(mut self, max: u32) -> Self {
        self.cap.max_send_wr = max;
        self
    }

    /// The maximum of outstanding work requests in the receive queue, 0 to 32,768. (Default 128.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let qp = pd.queue_pair(&cq, &cq).max_recv_wr(1).build()?;
    /// qp.post_receive(ReceiveRequest::empty())?;
    /// assert!(qp.post_receive(ReceiveRequest::empty()).is_err());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn max_recv_wr(mut self, max: u32) -> Self {
        self.cap.max_recv_wr = max;
        self
    }

    /// The maximum of memory slices in a work request for the send queue, 0 to 32. (Default 4.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// // Each message is sent from one slice or buffer, or inline.
    /// let qp = pd.queue_pair(&cq, &cq).max_send_sge(1).build()?;
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn max_send_sge(mut self, max: u32) -> Self {
        self.cap.max_send_sge = max;
        self
    }

    /// The maximum of memory slices in a receive, 0 to 32. (Default 4.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let qp = pd.queue_pair(&cq, &cq).max_recv_sge(1).build()?;
    /// let memory = pd.register(64, RemoteAccess::empty())?;
    /// let slices = [memory.slice(..32)?, memory.slice(32..)?];
    /// assert!(qp.post_receive(ReceiveRequest::into(slices)).is_err());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn max_recv_sge(mut self, max: u32) -> Self {
        self.cap.max_recv_sge = max;
        self
    }

    /// The maximum of inline data in a work request, 0 to 1024 bytes. (Default 256.)
    ///
    /// The actual limit is higher if the memory slices of a work request, at 16 bytes each, need
    /// more space.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let qp = pd.queue_pair(&cq, &cq).max_inline(512).build_datagram(QKey(7))?;
    /// assert!(qp.max_inline() >= 512);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn max_inline(mut self, max: u32) -> Self {
        self.cap.max_inline = max;
        self
    }

    /// The operations that the peer may use on regions that permit them. (Default: all.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// // The peer may only READ, also from regions that permit more.
    /// let qp = pd.queue_pair(&cq, &cq).remote_access(RemoteAccess::READ).build()?;
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn remote_access(mut self, access: RemoteAccess) -> Self {
        self.settings.access = access;
        self
    }

    /// The index of the GID that is the queue pair's address. (Default 0.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::Gid;
    ///
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let (index, address) = context.device().gids()[0];
    /// let qp = pd.queue_pair(&cq, &cq).gid_index(index as u8).build()?;
    /// assert_eq!(qp.endpoint().gid, Gid::from_ip(address));
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn gid_index(mut self, index: u8) -> Self {
        self.settings.gid_index = index;
        self
    }

    /// The largest path MTU to use. (Default: the largest that fits the interface.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::Mtu;
    ///
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let qp = pd.queue_pair(&cq, &cq).path_mtu(Mtu::B1024).build()?;
    /// assert_eq!(qp.endpoint().path_mtu, Mtu::B1024);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn path_mtu(mut self, mtu: Mtu) -> Self {
        self.settings.path_mtu = Some(mtu);
        self
    }

    /// The maximum of the peer's READs and atomics to answer at a time, 0 to 128. (Default 16.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let qp = pd.queue_pair(&cq, &cq).responder_resources(4).build()?;
    /// assert_eq!(qp.endpoint().responder_resources, 4);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn responder_resources(mut self, count: u8) -> Self {
        self.settings.responder_resources = count;
        self
    }

    /// Creates a queue pair of a reliable connection. (`ibv_create_qp`, `ibv_modify_qp` to INIT.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let qp = pd.queue_pair(&cq, &cq).build()?;
    /// // For the peer, which needs it to connect:
    /// let endpoint = qp.endpoint();
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`BuildError`].
    pub fn build(self) -> Result<PreparedQueuePair, BuildError> {
        self.create(QpType::Rc)?.prepare()
    }

    /// Creates a queue pair of an unreliable connection. (`ibv_create_qp` with `IBV_QPT_UC`,
    /// `ibv_modify_qp` to INIT.)
    ///
    /// A message arrives whole or not at all, and losses are not reported. READs and atomics are
    /// not available. Both ends must be of this type.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let qp = || pd.queue_pair(&cq, &cq).build_unreliable();
    /// let (a, b) = (qp()?, qp()?);
    /// let (endpoint_a, endpoint_b) = (a.endpoint(), b.endpoint());
    /// let a = a.connect(&endpoint_b, &ConnectOptions::default())?;
    /// let b = b.connect(&endpoint_a, &ConnectOptions::default())?;
    /// b.post_receive(ReceiveRequest::into(pd.buffer(64)?))?;
    /// a.post_send(SendRequest::send(b"hello").unsignaled())?;
    /// assert_eq!(cq.wait()?.data()?, b"hello");
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`BuildError`].
    pub fn build_unreliable(self) -> Result<PreparedQueuePair, BuildError> {
        self.create(QpType::Uc)?.prepare()
    }

    /// Creates a queue pair for datagrams, ready to send and receive. (`ibv_create_qp` with
    /// `IBV_QPT_UD`, `ibv_modify_qp` to INIT, RTR and RTS.)
    ///
    /// It accepts datagrams that carry `qkey`. By convention, values with the top bit set are for
    /// privileged programs. Of the options, only the capacities and the GID index apply.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let qp = || pd.queue_pair(&cq, &cq).build_datagram(QKey(7));
    /// let (a, b) = (qp()?, qp()?);
    /// b.post_receive(ReceiveRequest::into(pd.buffer(GRH_BYTES + 64)?))?;
    /// a.post_send(&a.destination(&b.address())?, SendRequest::send(b"hello").unsignaled())?;
    /// assert_eq!(cq.wait()?.data()?, b"hello");
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`BuildError`].
    pub fn build_datagram(self, qkey: QKey) -> Result<DatagramQueuePair, BuildError> {
        DatagramQueuePair::start(self.create(QpType::Ud)?, qkey)
    }

    fn create(self, service: QpType) -> Result<Core, BuildError> {
        let context = self.pd.context();
        if !context.is(self.send_cq.context()) || !context.is(self.recv_cq.context()) {
            return Err(BuildError::OtherContext);
        }
        if self
            .shared
            .is_some_and(|srq| !context.is(srq.pd().context()))
        {
            return Err(BuildError::OtherContext);
        }
        let recv_cq = Arc::clone(self.recv_cq.driver());
        // A shared receive queue reserves its entries once for all of its queue pairs.
        let (attachment, recv_entries, receives, outstanding) = match self.shared {
            None => (
                None,
                self.cap.max_recv_wr,
                ReceivesFrom::Own(recv_cq),
                Outstanding::new(self.cap.max_send_wr, self.cap.max_recv_wr),
            ),
            Some(srq) => (
                Some(srq.attach(self.recv_cq)?),
                0,
                ReceivesFrom::Shared(Arc::clone(srq.driver()), recv_cq),
                Outstanding::shared(self.cap.max_send_wr, srq.receives()),
            ),
        };
        let mut reservations = [
            self.send_cq.reserve(self.cap.max_send_wr)?,
            self.recv_cq.reserve(recv_entries)?,
        ];
        let init = QpInit {
            service,
            send_cq: Some(Arc::clone(self.send_cq.driver())),
            receives,
            cap: self.cap,
            signal_all: false,
            block_own_multicast: false,
        };
        let qp = context.driver().create_qp(self.pd.driver(), init)?;
        let outstanding = Arc::new(outstanding);
        for reservation in &mut reservations {
            reservation.attach(qp.qpn(), &outstanding);
        }
        Ok(Core {
            qp,
            outstanding,
            attachment,
            settings: self.settings,
            pd: self.pd.clone(),
            reservations,
        })
    }
}
