//! Multicast groups.

use super::error::Error;
use super::service::QKEY;
use crate::qp::{DatagramAddress, DatagramQueuePair, Destination};
use std::net::IpAddr;
use urxe_proto::ids::Gid;

/// Membership of a queue pair in a multicast group, until this is dropped. (`rdma_join_multicast`
/// and `rdma_leave_multicast`.)
///
/// The queue pair receives the datagrams sent to the group, including its own.
///
/// ```
/// use urxe::cm::{Membership, QKEY};
/// use urxe::{GRH_BYTES, ReceiveRequest, RemoteAccess, SendRequest};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let context = urxe::device("urxe_lo")?.open()?;
/// let (pd, cq) = (context.pd(), context.completion_queue()?);
/// let qp = pd.queue_pair(&cq, &cq).build_datagram(QKEY)?;
/// let memory = pd.register(GRH_BYTES + 64, RemoteAccess::empty())?;
/// qp.post_receive(ReceiveRequest::into(memory.slice(..)?).id(1))?;
/// let membership = Membership::join(&qp, "239.1.2.3".parse()?)?;
/// qp.post_send(membership.destination(), SendRequest::send(b"to all"))?;
/// let completions = [cq.wait()?, cq.wait()?];
/// assert!(completions.iter().any(|one| one.data().is_ok_and(|data| data == b"to all")));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Membership<'a> {
    qp: &'a DatagramQueuePair,
    group: Gid,
    destination: Destination,
}

impl<'a> Membership<'a> {
    /// Joins a group, on the interface of the queue pair's device.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::cm::{Membership, QKEY};
    ///
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let qp = pd.queue_pair(&cq, &cq).build_datagram(QKEY)?;
    /// let membership = Membership::join(&qp, "239.1.2.7".parse().unwrap())?;
    /// // Dropping it leaves the group.
    /// drop(membership);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::OtherQKey`] if the queue pair has another Q_Key than [`QKEY`]; [`Error::Multicast`]
    /// if `group` is not a multicast address or the system does not permit it.
    pub fn join(qp: &'a DatagramQueuePair, group: IpAddr) -> Result<Membership<'a>, Error> {
        if qp.address().qkey != QKEY {
            return Err(Error::OtherQKey);
        }
        let group = Gid::from_ip(group);
        qp.attach(group)?;
        let address = DatagramAddress::group(group, QKEY);
        match qp.destination(&address) {
            Ok(destination) => Ok(Membership {
                qp,
                group,
                destination,
            }),
            Err(error) => {
                qp.detach(group)?;
                Err(error.into())
            }
        }
    }

    /// The group as a destination, with the route to it.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::cm::{Membership, QKEY};
    ///
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let qp = pd.queue_pair(&cq, &cq).build_datagram(QKEY)?;
    /// let membership = Membership::join(&qp, "239.1.2.8".parse().unwrap())?;
    /// qp.post_send(membership.destination(), SendRequest::send(b"to all"))?;
    /// cq.wait()?.result?;
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn destination(&self) -> &Destination {
        &self.destination
    }
}

impl Drop for Membership<'_> {
    fn drop(&mut self) {
        // The only error is that the application has detached the queue pair itself.
        let _ = self.qp.detach(self.group);
    }
}
