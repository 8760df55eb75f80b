//! Destinations of datagrams.
#![forbid(unsafe_code)]

use std::sync::Arc;
use urxe_driver as driver;
use urxe_driver::AddressHandle;
use urxe_proto::ids::{Gid, QKey, Qpn};

/// The destination of a datagram: a queue pair or a multicast group.
///
/// ```
/// # use urxe::prelude::*;
/// # let context = urxe::device("urxe_lo")?.open()?;
/// # let (pd, cq) = (context.pd(), context.completion_queue()?);
/// # let qp = || pd.queue_pair(&cq, &cq).build_datagram(QKey(7));
/// # let (a, b) = (qp()?, qp()?);
/// let address = b.address();
/// let destination = a.destination(&DatagramAddress::new(address.gid, address.qpn, QKey(7)))?;
/// assert_eq!(destination.address(), address);
/// # Ok::<(), urxe::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub struct DatagramAddress {
    /// The address of the queue pair's port, or of the group.
    pub gid: Gid,
    /// The queue pair number; [`Qpn::MULTICAST`] for a group.
    pub qpn: Qpn,
    /// The Q_Key that the receiver requires.
    pub qkey: QKey,
}

impl DatagramAddress {
    /// The length of the encoding.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// # let qp = || pd.queue_pair(&cq, &cq).build_datagram(QKey(7));
    /// # let (a, b) = (qp()?, qp()?);
    /// let bytes: [u8; DatagramAddress::BYTES] = a.address().to_bytes();
    /// assert_eq!(DatagramAddress::from_bytes(&bytes), Some(a.address()));
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub const BYTES: usize = 24;

    /// Returns the address as bytes in network order, for the programs that send to it.
    ///
    /// ```
    /// use urxe::{DatagramAddress, QKey};
    ///
    /// # fn main() -> urxe::Result<()> {
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let qp = pd.queue_pair(&cq, &cq).build_datagram(QKey(7))?;
    /// let bytes = qp.address().to_bytes();
    /// // In another program:
    /// assert_eq!(DatagramAddress::from_bytes(&bytes), Some(qp.address()));
    /// # Ok(())
    /// # }
    /// ```
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..16].copy_from_slice(&self.gid.0);
        bytes[16..20].copy_from_slice(&self.qpn.get().to_be_bytes());
        bytes[20..].copy_from_slice(&self.qkey.0.to_be_bytes());
        bytes
    }

    /// Decodes the result of [`DatagramAddress::to_bytes`]; `None` if the queue pair number has
    /// more than 24 bits.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// # let qp = || pd.queue_pair(&cq, &cq).build_datagram(QKey(7));
    /// # let (a, b) = (qp()?, qp()?);
    /// let received = a.address().to_bytes();
    /// let to_a = b.destination(&DatagramAddress::from_bytes(&received).expect("24 bits"))?;
    /// assert_eq!(to_a.address(), a.address());
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Option<DatagramAddress> {
        let (gid, numbers) = bytes.split_first_chunk::<16>()?;
        let (qpn, qkey) = numbers.split_first_chunk::<4>()?;
        let qpn = u32::from_be_bytes(*qpn);
        Some(DatagramAddress {
            gid: Gid(*gid),
            qpn: (qpn < 1 << 24).then(|| Qpn::new(qpn))?,
            qkey: QKey(u32::from_be_bytes(*qkey.first_chunk()?)),
        })
    }

    /// Returns the address of a queue pair.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::{Gid, Qpn};
    /// use std::net::Ipv4Addr;
    ///
    /// let address = DatagramAddress::new(Ipv4Addr::LOCALHOST.into(), Qpn::new(0x11), QKey(7));
    /// assert_eq!(address.gid, Gid::from(Ipv4Addr::LOCALHOST));
    /// ```
    pub const fn new(gid: Gid, qpn: Qpn, qkey: QKey) -> DatagramAddress {
        DatagramAddress { gid, qpn, qkey }
    }

    /// Returns the address of a multicast group. All members must use the same Q_Key.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use std::net::Ipv4Addr;
    ///
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// # let qp = || pd.queue_pair(&cq, &cq).build_datagram(QKey(7));
    /// # let (a, b) = (qp()?, qp()?);
    /// let group = DatagramAddress::group(Ipv4Addr::new(239, 1, 2, 4).into(), QKey(7));
    /// b.attach(group.gid)?;
    /// b.post_receive(ReceiveRequest::into(pd.buffer(GRH_BYTES + 64)?))?;
    /// a.post_send(&a.destination(&group)?, SendRequest::send(b"to all").unsignaled())?;
    /// assert_eq!(cq.wait()?.data()?, b"to all");
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn group(gid: Gid, qkey: QKey) -> DatagramAddress {
        DatagramAddress {
            gid,
            qpn: Qpn::MULTICAST,
            qkey,
        }
    }
}

/// A datagram address with its route. (`ibv_ah`, and `wr.ud` of `ibv_send_wr`.)
///
/// Posted datagrams keep their own reference to it.
///
/// ```
/// # use urxe::prelude::*;
/// # let context = urxe::device("urxe_lo")?.open()?;
/// # let (pd, cq) = (context.pd(), context.completion_queue()?);
/// # let qp = || pd.queue_pair(&cq, &cq).build_datagram(QKey(7));
/// # let (a, b) = (qp()?, qp()?);
/// let to_b: Destination = a.destination(&b.address())?;
/// for message in ["one", "two"] {
///     b.post_receive(ReceiveRequest::into(pd.buffer(GRH_BYTES + 64)?))?;
///     a.post_send(&to_b, SendRequest::send(message.as_bytes()).unsignaled())?;
///     assert_eq!(cq.wait()?.data()?, message.as_bytes());
/// }
/// # Ok::<(), urxe::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Destination {
    pub(super) handle: Arc<AddressHandle>,
    pub(super) address: DatagramAddress,
}

impl Destination {
    /// The address.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// # let qp = || pd.queue_pair(&cq, &cq).build_datagram(QKey(7));
    /// # let (a, b) = (qp()?, qp()?);
    /// assert_eq!(a.destination(&b.address())?.address(), b.address());
    /// # Ok::<(), urxe::Error>(())
    /// ```
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
