//! Destinations of datagrams.
#![forbid(unsafe_code)]

use std::sync::Arc;
use urxe_driver as driver;
use urxe_driver::AddressHandle;
use urxe_proto::ids::{Gid, QKey, Qpn};

/// The destination of a datagram: a queue pair or a multicast group.
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
    pub const fn new(gid: Gid, qpn: Qpn, qkey: QKey) -> DatagramAddress {
        DatagramAddress { gid, qpn, qkey }
    }

    /// Returns the address of a multicast group. All members must use the same Q_Key.
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
#[derive(Clone, Debug)]
pub struct Destination {
    pub(super) handle: Arc<AddressHandle>,
    pub(super) address: DatagramAddress,
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
