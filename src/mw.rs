//! Memory windows: keys for parts of memory regions, given to peers and taken back by work requests.
#![forbid(unsafe_code)]

use crate::mr::{LocalSlice, RemoteAccess, RemoteRegion};
use crate::work::SendRequest;
use std::sync::atomic::{AtomicU32, Ordering};
use urxe_driver::Mw;
use urxe_driver::mw::WindowType;
use urxe_driver::tables::KEY_VARIANT;
use urxe_proto::host::{Access, WindowBind};
use urxe_proto::ids::{LKey, RKey};
use urxe_proto::work::SendOp;

/// A memory window: a key by which peers reach a part of a memory region, with rights of its own.
/// (`ibv_mw`.)
///
/// Binding it, and taking the key back, are work requests: they take effect in their order among the
/// others of the queue pair, and cost no system call or registration. A window that a peer has can
/// be taken back by the peer too, with the last message that it sends
/// ([`SendRequest::send_with_invalidate`]).
///
/// The key leads nowhere any more when the window is dropped, or the region that it is bound to, or,
/// for [`WindowType::Two`], the queue pair.
#[derive(Debug)]
pub struct MemoryWindow {
    driver: Mw,
    /// The key that the last bind gives it.
    key: AtomicU32,
}

impl MemoryWindow {
    pub(crate) fn new(driver: Mw) -> Self {
        let key = AtomicU32::new(driver.rkey().0);
        MemoryWindow { driver, key }
    }

    /// Its type.
    pub fn kind(&self) -> WindowType {
        self.driver.kind()
    }

    /// The work request that binds it to a piece of a region, and what to tell the peer when that has
    /// completed. The piece stays registered until then. (`ibv_bind_mw`, `IBV_WR_BIND_MW`.)
    ///
    /// A window of type 1 may be bound already, and its old key is void then; one of type 2 has to
    /// be [unbound](MemoryWindow::unbind) first. A work request that fails leaves the queue pair in
    /// error and the window with a key that nobody knows: make a new one.
    pub fn bind(
        &self,
        piece: LocalSlice,
        access: RemoteAccess,
    ) -> (SendRequest<'static>, RemoteRegion) {
        let sge = piece.sge();
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
        (SendRequest::on_window(op, piece.into(), self.pd()), remote)
    }

    /// The work request that takes the key back. That of a window of type 2 waits until all before it
    /// have completed. (`ibv_bind_mw` with nothing, `IBV_WR_LOCAL_INV`.)
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
        SendRequest::on_window(op, Vec::new().into(), self.pd())
    }

    /// The key before, and after, a bind.
    fn next_key(&self) -> (RKey, RKey) {
        let next = |key: u32| (key & !KEY_VARIANT) | (key.wrapping_add(1) & KEY_VARIANT);
        let update = self
            .key
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |key| Some(next(key)));
        let (Ok(before) | Err(before)) = update;
        (RKey(before), RKey(next(before)))
    }

    /// The number of the protection domain that it belongs to.
    fn pd(&self) -> u64 {
        self.driver.pd().id()
    }
}
