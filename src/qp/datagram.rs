//! Queue pairs for datagrams, and multicast groups.
#![forbid(unsafe_code)]

use super::core::Core;
use super::destination::{DatagramAddress, Destination};
use super::error::BuildError;
use crate::cq::CompletionQueue;
use crate::device::Device;
use crate::work::{BatchError, PostError, ReceiveRequest, SendRequest};
use urxe_driver as driver;
use urxe_driver::qp::{ModifyError, MulticastError};
use urxe_driver::route::RouteError;
use urxe_proto::ids::{Gid, QKey, Qpn};
use urxe_proto::psn::Psn;
use urxe_proto::qp::{AddressVector, AttrMask, QpAttr, QpState};
use urxe_proto::rc::Counters;

/// A queue pair for datagrams: messages of one packet to and from any other such queue pair.
/// (An `ibv_qp` of `IBV_QPT_UD` in RTS.) Threads may share it.
///
/// A datagram may be lost. It is dropped if the receiver has no receive posted, or one that is too
/// short: a receive needs [`GRH_BYTES`](crate::GRH_BYTES) for the header before the data. A
/// datagram longer than the path MTU is not sent, and its completion does not report that.
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
/// // A datagram carries the sender's address, but not its Q_Key.
/// let sender = received.sender().expect("it is a datagram");
/// assert_eq!((sender.gid, sender.qpn), (a.address().gid, a.qpn()));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct DatagramQueuePair {
    pub(super) core: Core,
    gid: Gid,
}

impl DatagramQueuePair {
    /// The protection domain.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// # let qp = || pd.queue_pair(&cq, &cq).build_datagram(QKey(7));
    /// # let (a, b) = (qp()?, qp()?);
    /// a.post_receive(ReceiveRequest::into(a.pd().buffer(GRH_BYTES + 64)?))?;
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn pd(&self) -> &crate::ProtectionDomain {
        &self.core.pd
    }

    /// The completion queue of sends.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// # let qp = || pd.queue_pair(&cq, &cq).build_datagram(QKey(7));
    /// # let (a, b) = (qp()?, qp()?);
    /// a.post_send(&a.destination(&b.address())?, SendRequest::send(b"hello"))?;
    /// a.send_cq().wait()?.result?;
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn send_cq(&self) -> &CompletionQueue {
        self.core.send_cq()
    }

    /// The completion queue of receives.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// # let qp = || pd.queue_pair(&cq, &cq).build_datagram(QKey(7));
    /// # let (a, b) = (qp()?, qp()?);
    /// b.post_receive(ReceiveRequest::into(pd.buffer(GRH_BYTES + 64)?))?;
    /// a.post_send(&a.destination(&b.address())?, SendRequest::send(b"hello").unsignaled())?;
    /// assert_eq!(b.recv_cq().wait()?.data()?, b"hello");
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn recv_cq(&self) -> &CompletionQueue {
        self.core.recv_cq()
    }

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

    /// The queue pair number.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// # let qp = || pd.queue_pair(&cq, &cq).build_datagram(QKey(7));
    /// # let (a, b) = (qp()?, qp()?);
    /// assert_eq!(a.qpn(), a.address().qpn);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn qpn(&self) -> Qpn {
        self.core.qp.qpn()
    }

    /// The address that other queue pairs send to.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// # let qp = || pd.queue_pair(&cq, &cq).build_datagram(QKey(7));
    /// # let (a, b) = (qp()?, qp()?);
    /// // For the programs that send to it:
    /// println!("{:?}", a.address());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn address(&self) -> DatagramAddress {
        DatagramAddress {
            gid: self.gid,
            qpn: self.qpn(),
            qkey: self.attributes().qkey,
        }
    }

    /// The state: RTS, unless it failed. (`ibv_query_qp`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::QpState;
    ///
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// # let qp = || pd.queue_pair(&cq, &cq).build_datagram(QKey(7));
    /// # let (a, b) = (qp()?, qp()?);
    /// assert_eq!(a.state(), QpState::Rts);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn state(&self) -> QpState {
        self.attributes().state
    }

    /// The maximum of inline data in a work request, in bytes; longer data must be registered.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// # let qp = || pd.queue_pair(&cq, &cq).build_datagram(QKey(7));
    /// # let (a, b) = (qp()?, qp()?);
    /// b.post_receive(ReceiveRequest::into(pd.buffer(GRH_BYTES + 4096)?))?;
    /// let message = vec![7; a.max_inline()];
    /// a.post_send(&a.destination(&b.address())?, SendRequest::send(&message[..]).unsignaled())?;
    /// assert_eq!(cq.wait()?.data()?, message);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn max_inline(&self) -> usize {
        self.core.qp.cap().max_inline as usize
    }

    /// All attributes. (`ibv_query_qp`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// # let qp = || pd.queue_pair(&cq, &cq).build_datagram(QKey(7));
    /// # let (a, b) = (qp()?, qp()?);
    /// assert_eq!(a.attributes().qkey, QKey(7));
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn attributes(&self) -> QpAttr {
        self.core.qp.attributes()
    }

    /// The counters of packets and errors.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// # let qp = || pd.queue_pair(&cq, &cq).build_datagram(QKey(7));
    /// # let (a, b) = (qp()?, qp()?);
    /// println!("{:?}", a.counters());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn counters(&self) -> Counters {
        self.core.qp.counters()
    }

    /// Resolves the route to a queue pair or a group. (`ibv_create_ah`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// # let qp = || pd.queue_pair(&cq, &cq).build_datagram(QKey(7));
    /// # let (a, b) = (qp()?, qp()?);
    /// let to_b = a.destination(&b.address())?;
    /// assert_eq!(to_b.address(), b.address());
    /// let nowhere = DatagramAddress::new(urxe::Gid::default(), b.qpn(), QKey(7));
    /// assert!(matches!(a.destination(&nowhere), Err(urxe::RouteError::NoPeerGid)));
    /// # Ok::<(), urxe::Error>(())
    /// ```
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

    /// The destination for an address vector.
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

    /// The device that the queue pair belongs to.
    pub(crate) fn device(&self) -> Device {
        self.core.pd.context().device()
    }

    /// Posts a receive. (`ibv_post_recv`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// # let qp = || pd.queue_pair(&cq, &cq).build_datagram(QKey(7));
    /// # let (a, b) = (qp()?, qp()?);
    /// // The first bytes of the buffer are for a header.
    /// b.post_receive(ReceiveRequest::into(pd.buffer(GRH_BYTES + 64)?))?;
    /// a.post_send(&a.destination(&b.address())?, SendRequest::send(b"hello").unsignaled())?;
    /// assert_eq!(cq.wait()?.data()?, b"hello");
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn post_receive(&self, request: ReceiveRequest) -> Result<(), PostError> {
        self.core.post_receive(request)
    }

    /// Posts a datagram and transmits it. (`ibv_post_send`.)
    ///
    /// `request` is a [`SendRequest::send`] or [`SendRequest::send_with_imm`].
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// # let qp = || pd.queue_pair(&cq, &cq).build_datagram(QKey(7));
    /// # let (a, b) = (qp()?, qp()?);
    /// b.post_receive(ReceiveRequest::into(pd.buffer(GRH_BYTES + 64)?))?;
    /// let to_b = a.destination(&b.address())?;
    /// a.post_send(&to_b, SendRequest::send_with_imm(b"hello", 42).unsignaled())?;
    /// assert_eq!(cq.wait()?.result?.imm, Some(42));
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`PostError`].
    pub fn post_send(&self, to: &Destination, request: SendRequest<'_>) -> Result<(), PostError> {
        self.core.post_send(request, Some(to))
    }

    /// Posts several datagrams to one destination and transmits them together. (`ibv_post_send`
    /// with a list.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// # let qp = || pd.queue_pair(&cq, &cq).build_datagram(QKey(7));
    /// # let (a, b) = (qp()?, qp()?);
    /// let to_b = a.destination(&b.address())?;
    /// for _ in 0..2 {
    ///     b.post_receive(ReceiveRequest::into(pd.buffer(GRH_BYTES + 64)?))?;
    /// }
    /// a.post_sends(&to_b, [b"one", b"two"].map(|data| SendRequest::send(data).unsignaled()))?;
    /// assert_eq!(cq.wait()?.data()?, b"one");
    /// assert_eq!(cq.wait()?.data()?, b"two");
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`BatchError`]: the work requests before the invalid one have been posted.
    pub fn post_sends<'r>(
        &self,
        to: &Destination,
        requests: impl IntoIterator<Item = SendRequest<'r>>,
    ) -> Result<(), BatchError> {
        self.core.post_sends(requests, Some(to))
    }

    /// Joins a multicast group: an IPv4-mapped or IPv6 group address. (`ibv_attach_mcast`.)
    ///
    /// The queue pair also receives its own datagrams to the group.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use std::net::Ipv4Addr;
    ///
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// # let qp = || pd.queue_pair(&cq, &cq).build_datagram(QKey(7));
    /// # let (a, b) = (qp()?, qp()?);
    /// let group = Ipv4Addr::new(239, 1, 2, 5).into();
    /// b.attach(group)?;
    /// b.post_receive(ReceiveRequest::into(pd.buffer(GRH_BYTES + 64)?))?;
    /// let to_all = a.destination(&DatagramAddress::group(group, QKey(7)))?;
    /// a.post_send(&to_all, SendRequest::send(b"hello").unsignaled())?;
    /// assert_eq!(cq.wait()?.sender().expect("it is a datagram").sent_to, group);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`MulticastError`].
    pub fn attach(&self, group: Gid) -> Result<(), MulticastError> {
        self.core.qp.attach(group)
    }

    /// Leaves a multicast group. (`ibv_detach_mcast`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use std::net::Ipv4Addr;
    /// use urxe::MulticastError;
    ///
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// # let qp = || pd.queue_pair(&cq, &cq).build_datagram(QKey(7));
    /// # let (a, b) = (qp()?, qp()?);
    /// let group = Ipv4Addr::new(239, 1, 2, 6).into();
    /// a.attach(group)?;
    /// a.detach(group)?;
    /// // It is no longer a member.
    /// assert!(matches!(a.detach(group), Err(MulticastError::NotAttached(_))));
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`MulticastError`].
    pub fn detach(&self, group: Gid) -> Result<(), MulticastError> {
        self.core.qp.detach(group)
    }

    /// Resumes sending after a failed send. (`ibv_modify_qp` from SQE to RTS.)
    ///
    /// A failed send leads to the state SQE, in which only receives are processed.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::{ModifyError, QpState};
    ///
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// # let qp = || pd.queue_pair(&cq, &cq).build_datagram(QKey(7));
    /// # let (a, b) = (qp()?, qp()?);
    /// assert_eq!(a.state(), QpState::Rts);
    /// a.fail()?;
    /// // Only the state SQE can be left in this way.
    /// assert!(matches!(a.resume(), Err(ModifyError::Transition(_))));
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`ModifyError::Transition`] if the queue pair is not in SQE.
    pub fn resume(&self) -> Result<(), ModifyError> {
        self.core.go_to(QpState::Rts)
    }

    /// Enters the error state: all outstanding work requests complete as flushed.
    /// (`ibv_modify_qp` to ERR.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// # let qp = || pd.queue_pair(&cq, &cq).build_datagram(QKey(7));
    /// # let (a, b) = (qp()?, qp()?);
    /// a.post_receive(ReceiveRequest::into(pd.buffer(GRH_BYTES + 64)?))?;
    /// a.fail()?;
    /// assert_eq!(cq.wait()?.result.unwrap_err().status, WcStatus::WrFlushErr);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// See [`ModifyError`].
    pub fn fail(&self) -> Result<(), ModifyError> {
        self.core.go_to(QpState::Err)
    }
}
