//! Memory windows: remote keys for parts of memory regions, bound and invalidated by work requests.
#![forbid(unsafe_code)]

use crate::mr::{LocalSlice, RemoteAccess, RemoteRegion};
use crate::pd::ProtectionDomain;
use crate::slices::SliceList;
use crate::work::{SendData, SendRequest};
use std::sync::atomic::{AtomicU32, Ordering};
use urxe_driver::Mw;
use urxe_driver::mw::WindowType;
use urxe_driver::tables::KEY_VARIANT;
use urxe_proto::host::{Access, WindowBind};
use urxe_proto::ids::{LKey, RKey};
use urxe_proto::work::SendOp;

impl ProtectionDomain {
    /// Allocates an unbound memory window. (`ibv_alloc_mw`.)
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::WindowType;
    ///
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// let window = pd.window(WindowType::Two);
    /// assert_eq!(window.kind(), WindowType::Two);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn window(&self, kind: WindowType) -> MemoryWindow {
        MemoryWindow::new(Mw::allocate(self.driver(), kind))
    }
}

/// A memory window: a remote key with its own rights for a part of a memory region. (`ibv_mw`.)
///
/// Binding and invalidating are work requests. They take effect in order with the other work
/// requests of the queue pair, and need no system call and no registration. A peer can invalidate
/// the key too, with its last message ([`SendRequest::send_with_invalidate`]).
///
/// The key becomes invalid when the window or the region it is bound to is dropped. The key of a
/// [`WindowType::Two`] window also becomes invalid when the queue pair is dropped.
///
/// ```
/// use urxe::WindowType;
/// use urxe::prelude::*;
///
/// # fn main() -> urxe::Result<()> {
/// # let context = urxe::device("urxe_lo")?.open()?;
/// # let (pd, cq) = (context.pd(), context.completion_queue()?);
/// # let (a, b) = (pd.queue_pair(&cq, &cq).build()?, pd.queue_pair(&cq, &cq).build()?);
/// # let (endpoint_a, endpoint_b) = (a.endpoint(), b.endpoint());
/// # let a = a.connect(&endpoint_b, &ConnectOptions::default())?;
/// # let b = b.connect(&endpoint_a, &ConnectOptions::default())?;
/// let region = pd.register(4096, RemoteAccess::empty())?;
/// let window = pd.window(WindowType::One);
/// let (bind, remote) = window.bind(region.slice(..100)?, RemoteAccess::WRITE);
/// a.post_send(bind)?;
/// cq.wait()?.result?;
/// // The peer writes with the window's key.
/// b.post_send(SendRequest::write(b"hello", &remote))?;
/// cq.wait()?.result?;
/// assert_eq!(region.to_vec(..5)?, b"hello");
/// a.post_send(window.unbind())?;
/// cq.wait()?.result?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct MemoryWindow {
    driver: Mw,
    /// The key after the last bind request.
    key: AtomicU32,
}

impl MemoryWindow {
    pub(crate) fn new(driver: Mw) -> Self {
        let key = AtomicU32::new(driver.rkey().0);
        MemoryWindow { driver, key }
    }

    /// The type of the window.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::WindowType;
    ///
    /// # let context = urxe::device("urxe_lo")?.open()?;
    /// # let (pd, cq) = (context.pd(), context.completion_queue()?);
    /// assert_eq!(pd.window(WindowType::One).kind(), WindowType::One);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn kind(&self) -> WindowType {
        self.driver.kind()
    }

    /// Returns a work request that binds the window to `slice`, and the description for the peer.
    /// (`ibv_bind_mw`, `IBV_WR_BIND_MW`.)
    ///
    /// The peer may use the description once the work request has completed. The slice stays
    /// registered until then.
    ///
    /// A window of type 1 may already be bound; its old key becomes invalid. A window of type 2
    /// must be [unbound](MemoryWindow::unbind) first. If the work request fails, the queue pair
    /// enters the error state and the key of the window is undefined: allocate a new window.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::WindowType;
    ///
    /// let (a, b) = urxe::testing::pair()?;
    /// let memory = a.pd().register(64, RemoteAccess::empty())?;
    /// let window = a.pd().window(WindowType::Two);
    /// let (bind, remote) = window.bind(memory.slice(16..32)?, RemoteAccess::WRITE);
    /// a.post_send(bind)?;
    /// a.cq().wait()?.result?;
    /// b.post_send(SendRequest::write(b"hello", &remote))?;
    /// b.cq().wait()?.result?;
    /// assert_eq!(memory.to_vec(16..21)?, b"hello");
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn bind(
        &self,
        slice: LocalSlice,
        access: RemoteAccess,
    ) -> (SendRequest<'static>, RemoteRegion) {
        let sge = slice.sge();
        let (window, new_key) = self.next_key();
        let op = SendOp::BindMw(WindowBind {
            window,
            new_key,
            region: sge.lkey,
            addr: sge.addr,
            len: u64::from(sge.length),
            access: Access::from_bits_truncate(access.bits()),
        });
        let remote = RemoteRegion {
            addr: sge.addr,
            len: u64::from(sge.length),
            rkey: new_key,
        };
        (SendRequest::on_window(op, slice.into(), self.pd()), remote)
    }

    /// Returns a work request that invalidates the key. (`ibv_bind_mw` with length 0,
    /// `IBV_WR_LOCAL_INV`.)
    ///
    /// For a window of type 2 it starts when all earlier work requests have completed.
    ///
    /// ```
    /// # use urxe::prelude::*;
    /// use urxe::WindowType;
    ///
    /// let (a, b) = urxe::testing::pair()?;
    /// let memory = a.pd().register(64, RemoteAccess::empty())?;
    /// let window = a.pd().window(WindowType::Two);
    /// let (bind, remote) = window.bind(memory.slice(..)?, RemoteAccess::WRITE);
    /// a.post_sends([bind.unsignaled(), window.unbind()])?;
    /// a.cq().wait()?.result?;
    /// b.post_send(SendRequest::write(b"too late", &remote))?;
    /// let error = b.cq().wait()?.result.unwrap_err();
    /// assert_eq!(error.status, WcStatus::RemAccessErr);
    /// # Ok::<(), urxe::Error>(())
    /// ```
    pub fn unbind(&self) -> SendRequest<'static> {
        let op = match self.kind() {
            WindowType::One => {
                let (window, new_key) = self.next_key();
                SendOp::BindMw(WindowBind {
                    window,
                    new_key,
                    region: LKey(0),
                    addr: 0,
                    len: 0,
                    access: Access::empty(),
                })
            }
            WindowType::Two => SendOp::LocalInv(RKey(self.key.load(Ordering::Acquire))),
        };
        SendRequest::on_window(op, SendData::Slices(SliceList::default()), self.pd())
    }

    /// The keys before and after a bind.
    fn next_key(&self) -> (RKey, RKey) {
        let next = |key: u32| (key & !KEY_VARIANT) | (key.wrapping_add(1) & KEY_VARIANT);
        let update = self
            .key
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |key| Some(next(key)));
        let (Ok(before) | Err(before)) = update;
        (RKey(before), RKey(next(before)))
    }

    /// The number of the window's protection domain.
    fn pd(&self) -> u64 {
        self.driver.pd().id()
    }
}
