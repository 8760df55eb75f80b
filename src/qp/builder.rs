//! Queue pairs in the making.
#![forbid(unsafe_code)]

use super::{BuildError, Core, DatagramQueuePair, PreparedQueuePair, Settings};
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

/// A queue pair in the making. (`ibv_qp_init_attr`.)
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

    /// Lets its messages take receives from a shared queue. Then it has no receive queue of its own,
    /// and the capacities of one mean nothing. (`srq` of `ibv_qp_init_attr`.)
    pub fn receives_from(mut self, shared: &'a SharedReceiveQueue) -> Self {
        self.shared = Some(shared);
        self
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

    /// How many bytes of inline data a work request has at most, 0 to 1024; more are permitted if
    /// they fit in the place of its pieces of memory, of 16 bytes each. (Default 256.)
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

    /// Makes a queue pair of a reliable connection. (`ibv_create_qp`, and `ibv_modify_qp` to INIT.)
    ///
    /// # Errors
    /// See [`BuildError`].
    pub fn build(self) -> Result<PreparedQueuePair, BuildError> {
        self.make(QpType::Rc)?.prepare()
    }

    /// Makes a queue pair of an unreliable connection: what it sends arrives whole or not at all,
    /// nobody is told of losses, and there are no READs and no atomics. Both ends must be such.
    /// (`ibv_create_qp` with `IBV_QPT_UC`, and `ibv_modify_qp` to INIT.)
    ///
    /// # Errors
    /// See [`BuildError`].
    pub fn build_unreliable(self) -> Result<PreparedQueuePair, BuildError> {
        self.make(QpType::Uc)?.prepare()
    }

    /// Makes a queue pair for datagrams, which is ready at once. It takes those with its `qkey`, a
    /// number that its peers know; with the top bit set it is kept for privileged programs, by
    /// convention. Of the options, those for capacities and the GID count. (`ibv_create_qp` with
    /// `IBV_QPT_UD`, and `ibv_modify_qp` to INIT, RTR and RTS.)
    ///
    /// # Errors
    /// See [`BuildError`].
    pub fn build_datagram(self, qkey: QKey) -> Result<DatagramQueuePair, BuildError> {
        DatagramQueuePair::start(self.make(QpType::Ud)?, qkey)
    }

    fn make(self, service: QpType) -> Result<Core, BuildError> {
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
        // A shared queue has its room once for all of its queue pairs.
        let (share, room, receives, outstanding) = match self.shared {
            None => (
                None,
                self.cap.max_recv_wr,
                ReceivesFrom::Own(recv_cq),
                Outstanding::new(self.cap.max_send_wr, self.cap.max_recv_wr),
            ),
            Some(srq) => (
                Some(srq.share(self.recv_cq)?),
                0,
                ReceivesFrom::Shared(Arc::clone(srq.driver()), recv_cq),
                Outstanding::sharing(self.cap.max_send_wr, srq.receives()),
            ),
        };
        let mut reservations = vec![
            self.send_cq.reserve(self.cap.max_send_wr)?,
            self.recv_cq.reserve(room)?,
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
            share,
            settings: self.settings,
            pd: self.pd.clone(),
            _reservations: reservations,
        })
    }
}
