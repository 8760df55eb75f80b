//! Queue pairs for datagrams, and multicast groups.
#![forbid(unsafe_code)]

use super::{BuildError, Core};
use crate::device::Device;
use crate::work::{BatchError, PostError, ReceiveRequest, SendRequest};
use std::sync::Arc;
use urxe_driver as driver;
use urxe_driver::AddressHandle;
use urxe_driver::qp::{ModifyError, MulticastError};
use urxe_driver::route::RouteError;
use urxe_proto::ids::{Gid, QKey, Qpn};
use urxe_proto::psn::Psn;
use urxe_proto::qp::{AddressVector, AttrMask, QpAttr, QpState};
use urxe_proto::rc::Counters;

/// What others must know to send a datagram to a queue pair, or to all that are in a group.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DatagramAddress {
    /// Its address, or the group's.
    pub gid: Gid,
    /// Its number; [`Qpn::MULTICAST`] for a group.
    pub qpn: Qpn,
    /// The key that it takes datagrams with.
    pub qkey: QKey,
}

impl DatagramAddress {
    /// That of a multicast group: all members must have the same key.
    pub fn group(gid: Gid, qkey: QKey) -> DatagramAddress {
        DatagramAddress {
            gid,
            qpn: Qpn::MULTICAST,
            qkey,
        }
    }
}

/// Where datagrams go: an address, and the way there. Datagrams that wait to be sent keep what they
/// need of it. (`ibv_ah`, and `wr.ud` of `ibv_send_wr`.)
#[derive(Clone, Debug)]
pub struct Destination {
    handle: Arc<AddressHandle>,
    address: DatagramAddress,
}

impl Destination {
    /// The address.
    pub fn address(&self) -> DatagramAddress {
        self.address
    }

    pub(super) fn driver(&self) -> driver::ah::Destination<'_> {
        driver::ah::Destination {
            handle: &self.handle,
            qpn: self.address.qpn,
            qkey: self.address.qkey,
        }
    }
}

/// A queue pair for datagrams: messages of one packet, to and from any such queue pair. Threads may
/// share it. (A `ibv_qp` of `IBV_QPT_UD` in RTS.)
///
/// A datagram may be lost, and is when the receiver has no receive posted, or one that is too
/// short: it needs room for the [`GRH_BYTES`](crate::GRH_BYTES) of the header that come before the data.
/// A datagram that is longer than the MTU is not sent; its completion does not tell.
///
/// ```
/// use urxe::{GRH_BYTES, QKey, ReceiveRequest, RemoteAccess, SendRequest};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let context = urxe::device("urxe_lo")?.open()?;
/// let pd = context.pd();
/// let (cq_a, cq_b) = (context.completion_queue()?, context.completion_queue()?);
/// let a = pd.queue_pair(&cq_a, &cq_a).build_datagram(QKey(7))?;
/// let b = pd.queue_pair(&cq_b, &cq_b).build_datagram(QKey(7))?;
///
/// let memory = pd.register(GRH_BYTES + 100, RemoteAccess::empty())?;
/// b.post_receive(ReceiveRequest::into(memory.slice(..)?))?;
/// let to_b = a.destination(&b.address())?;
/// a.post_send(&to_b, SendRequest::send(b"hello"))?;
///
/// let received = cq_b.wait()?;
/// assert_eq!(received.data()?, b"hello");
/// // The sender tells its address with every datagram, but not its key.
/// let sender = received.sender().expect("it is a datagram");
/// assert_eq!((sender.gid, sender.qpn), (a.address().gid, a.qpn()));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct DatagramQueuePair {
    core: Core,
    gid: Gid,
}

impl DatagramQueuePair {
    pub(super) fn start(core: Core, qkey: QKey) -> Result<Self, BuildError> {
        let gid = core.gid(&core.pd.context().device())?;
        let mut attr = QpAttr {
            state: QpState::Init,
            port: driver::device::PORT,
            qkey,
            sq_psn: Psn::new(rand::random()),
            ..QpAttr::default()
        };
        let place = AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY;
        core.qp.modify(&attr, AttrMask::STATE | place)?;
        attr.state = QpState::Rtr;
        core.qp.modify(&attr, AttrMask::STATE)?;
        attr.state = QpState::Rts;
        core.qp.modify(&attr, AttrMask::STATE | AttrMask::SQ_PSN)?;
        Ok(DatagramQueuePair { core, gid })
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.core.qp.qpn()
    }

    /// What others must know to send to it.
    pub fn address(&self) -> DatagramAddress {
        DatagramAddress {
            gid: self.gid,
            qpn: self.qpn(),
            qkey: self.attributes().qkey,
        }
    }

    /// Its state: RTS, unless it failed. (`ibv_query_qp`.)
    pub fn state(&self) -> QpState {
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

    /// The way to an address, or a group, from this queue pair's own. (`ibv_create_ah`.)
    ///
    /// # Errors
    /// See [`RouteError`].
    pub fn destination(&self, address: &DatagramAddress) -> Result<Destination, RouteError> {
        let av = AddressVector {
            dgid: address.gid,
            sgid_index: self.core.settings.gid_index,
            is_global: true,
            port: driver::device::PORT,
            ..AddressVector::default()
        };
        self.destination_by(av, address.qpn, address.qkey)
    }

    /// The way that an address vector tells.
    pub(crate) fn destination_by(
        &self,
        av: AddressVector,
        qpn: Qpn,
        qkey: QKey,
    ) -> Result<Destination, RouteError> {
        let pd = &self.core.pd;
        let address = DatagramAddress {
            gid: av.dgid,
            qpn,
            qkey,
        };
        Ok(Destination {
            handle: pd.context().driver().create_ah(pd.driver(), av)?,
            address,
        })
    }

    /// The device that it is of.
    pub(crate) fn device(&self) -> Device {
        self.core.pd.context().device()
    }

    /// Posts a receive. (`ibv_post_recv`.)
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn post_receive(&self, request: ReceiveRequest) -> Result<(), PostError> {
        self.core.post_receive(request)
    }

    /// Posts a datagram, a [`SendRequest::send`] or [`SendRequest::send_with_imm`]; it goes out at
    /// once. (`ibv_post_send`.)
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn post_send(&self, to: &Destination, request: SendRequest<'_>) -> Result<(), PostError> {
        self.core.post_send(request, Some(to))
    }

    /// Posts several to one destination, which go out together. (`ibv_post_send` with a list.)
    ///
    /// # Errors
    /// See [`BatchError`]: those before the one that is wrong have been posted.
    pub fn post_sends<'r>(
        &self,
        to: &Destination,
        requests: impl IntoIterator<Item = SendRequest<'r>>,
    ) -> Result<(), BatchError> {
        self.core.post_sends(requests, Some(to))
    }

    /// Lets it take what goes to a multicast group: an IPv4 group, mapped, or an IPv6 group. It gets
    /// its own datagrams to the group too. (`ibv_attach_mcast`.)
    ///
    /// # Errors
    /// See [`MulticastError`].
    pub fn attach(&self, group: Gid) -> Result<(), MulticastError> {
        self.core.qp.attach(group)
    }

    /// Ends that. (`ibv_detach_mcast`.)
    ///
    /// # Errors
    /// See [`MulticastError`].
    pub fn detach(&self, group: Gid) -> Result<(), MulticastError> {
        self.core.qp.detach(group)
    }

    /// Lets it send again after a send failed, in which case only receives go on: its state is SQE
    /// then. (`ibv_modify_qp` from SQE to RTS.)
    ///
    /// # Errors
    /// [`ModifyError::Transition`] when it is not in SQE.
    pub fn resume(&self) -> Result<(), ModifyError> {
        self.core.go_to(QpState::Rts)
    }

    /// Takes it to error: all that is outstanding completes as flushed. (`ibv_modify_qp` to ERR.)
    ///
    /// # Errors
    /// See [`ModifyError`].
    pub fn fail(&self) -> Result<(), ModifyError> {
        self.core.go_to(QpState::Err)
    }
}
