//! Receive side scaling of raw packet queue pairs: work queues and indirection tables.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use urxe_driver::raw::{HashFields, KEY_LEN, MAX_ENTRIES, Spread, Wq, WqState};

use super::context::context_of;
use super::cq::queue_in;
use super::entry;
use super::errno::Errno;
use super::ffi::*;
use super::object::{self, Handle, Use, Users};
use super::post::post_receives;

impl Handle for ibv_wq {
    type State = WorkQueue;
}

/// The library's state behind an `ibv_wq`.
#[derive(Debug)]
pub(super) struct WorkQueue {
    pub driver: Arc<Wq>,
    /// The indirection tables that contain it.
    users: Users,
    _pd: Use,
    _cq: Use,
}

/// Returns the library's state of a work queue.
///
/// # Errors
/// `EINVAL` if `wq` is null or misaligned.
///
/// # Safety
/// If `wq` is not null, it must be a work queue created by this library that stays live for `'a`.
pub(super) unsafe fn work_queue_of<'a>(wq: *mut ibv_wq) -> Result<&'a WorkQueue, Errno> {
    // SAFETY: `wq` is null or live for `'a`: the caller's contract, section Safety.
    unsafe { object::state_of(wq) }
}

/// Returns the `ibv_wq` of a work queue, or `None` if it is being destroyed.
pub(super) fn wq_handle(tag: usize) -> Option<*mut ibv_wq> {
    let handle = ptr::with_exposed_provenance_mut::<ibv_wq>(tag);
    (!handle.is_null()).then_some(handle)
}

/// Implements `create_wq` of a context.
///
/// # Safety
/// `context` must be null or an opened device. `wq_init_attr` must be null or point to readable
/// attributes, whose `pd` and `cq` are null or live objects created by this library.
pub(super) unsafe extern "C" fn create_wq(
    context: *mut ibv_context,
    wq_init_attr: *mut ibv_wq_init_attr,
) -> *mut ibv_wq {
    entry::pointer("ibv_create_wq", || {
        // SAFETY: `context` is null or an opened device, and `wq_init_attr` null or readable: the
        // caller's contract, section Safety.
        let attr = unsafe {
            context_of(context)?;
            entry::read(wq_init_attr)?
        };
        let flags = attr.comp_mask & IBV_WQ_INIT_ATTR_FLAGS != 0 && attr.create_flags != 0;
        if attr.comp_mask & !IBV_WQ_INIT_ATTR_FLAGS != 0 || flags {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        if attr.wq_type != IBV_WQT_RQ {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: `attr.pd` and `attr.cq` are null or live: the caller's contract, section Safety.
        let (domain, queue) = unsafe { (object::state_of(attr.pd)?, queue_in(attr.cq, context)?) };
        let driver = Wq::new(&domain.driver, &queue.driver, attr.max_wr, attr.max_sge)?;
        let mut handle = ibv_wq::zeroed();
        handle.context = context;
        handle.wq_context = attr.wq_context;
        handle.pd = attr.pd;
        handle.cq = attr.cq;
        handle.wq_num = driver.number().get();
        handle.handle = object::number();
        handle.state = driver.state() as ibv_wq_state;
        handle.wq_type = attr.wq_type;
        handle.post_recv = Some(post_recv);
        let state = WorkQueue {
            driver,
            users: Users::default(),
            _pd: domain.users.add(),
            _cq: queue.users.add(),
        };
        let tagged = Arc::clone(&state.driver);
        let wq = object::make(handle, state);
        tagged.origin.set_tag(wq.expose_provenance());
        Ok(wq)
    })
}

/// Implements `modify_wq` of a context.
///
/// # Safety
/// `wq` must be null or a live work queue created by this library. `wq_attr` must be null or point
/// to readable attributes.
pub(super) unsafe extern "C" fn modify_wq(wq: *mut ibv_wq, wq_attr: *mut ibv_wq_attr) -> c_int {
    entry::status("ibv_modify_wq", || {
        // SAFETY: `wq` is null or live, and `wq_attr` null or readable: the caller's contract,
        // section Safety.
        let (state, attr) = unsafe { (object::state_of(wq)?, entry::read(wq_attr)?) };
        let given = |bit| attr.attr_mask & bit != 0;
        if attr.attr_mask & !(IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE) != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let current = state.driver.state() as ibv_wq_state;
        if given(IBV_WQ_ATTR_CURR_STATE) && attr.curr_wq_state != current {
            return Err(Errno(libc::EINVAL));
        }
        if given(IBV_WQ_ATTR_STATE) {
            let to = WqState::from_number(attr.wq_state).ok_or(Errno(libc::EINVAL))?;
            if !state.driver.modify(to) {
                return Err(Errno(libc::EINVAL));
            }
            // SAFETY: `wq` is non-null, since `object::state_of` accepted it, and live: the
            // caller's contract, section Safety. The write makes no reference.
            unsafe { (&raw mut (*wq).state).write(attr.wq_state) };
        }
        Ok(())
    })
}

/// Implements `destroy_wq` of a context. `EBUSY` while an indirection table contains it. Waits
/// until the program has acknowledged all events of it that it has received.
///
/// # Safety
/// `wq` must be null or a live work queue created by this library. No other call may use it now or
/// later.
pub(super) unsafe extern "C" fn destroy_wq(wq: *mut ibv_wq) -> c_int {
    entry::status("ibv_destroy_wq", || {
        // SAFETY: `wq` is null or live: the caller's contract, section Safety.
        let state = unsafe { object::state_of(wq) }?;
        state.users.check_none()?;
        state.driver.origin.set_tag(0);
        state.driver.destroy();
        // SAFETY: `wq` is live, and no other call uses it: the caller's contract, section Safety.
        // No table uses it (checked above).
        drop(unsafe { object::free(wq) });
        Ok(())
    })
}

/// Implements `post_recv` of a work queue.
///
/// # Safety
/// `wq` must be null or a live work queue created by this library. `wr` and `bad_wr` must meet the
/// requirements of [`post_receives`].
unsafe extern "C" fn post_recv(
    wq: *mut ibv_wq,
    wr: *mut ibv_recv_wr,
    bad_wr: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: `wq` is null or live, and the list and `bad_wr` meet the requirements of
    // `post_receives`: the caller's contract, section Safety.
    unsafe {
        post_receives("ibv_post_wq_recv", wr, bad_wr, |wr_id, sges| {
            Ok(object::state_of(wq)?.driver.post_receive(wr_id, sges)?)
        })
    }
}

impl Handle for ibv_rwq_ind_table {
    type State = Table;
}

/// The library's state behind an `ibv_rwq_ind_table`.
#[derive(Debug)]
pub(super) struct Table {
    entries: Vec<Arc<Wq>>,
    /// The queue pairs that use it.
    pub users: Users,
    _queues: Vec<Use>,
    _context: Use,
}

/// Implements `create_rwq_ind_table` of a context.
///
/// # Safety
/// `context` must be null or an opened device. `init_attr` must be null or point to readable
/// attributes. Their `ind_tbl` must be null or point to `1 << log_ind_tbl_size` readable pointers,
/// each null or a live work queue created by this library.
pub(super) unsafe extern "C" fn create_rwq_ind_table(
    context: *mut ibv_context,
    init_attr: *mut ibv_rwq_ind_table_init_attr,
) -> *mut ibv_rwq_ind_table {
    entry::pointer("ibv_create_rwq_ind_table", || {
        // SAFETY: `context` is null or an opened device, and `init_attr` null or readable: the
        // caller's contract, section Safety.
        let (device, attr) = unsafe { (context_of(context)?, entry::read(init_attr)?) };
        if attr.comp_mask != 0 {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let count = 1_usize.checked_shl(attr.log_ind_tbl_size);
        let count = count.filter(|count| *count <= MAX_ENTRIES);
        let count = count.ok_or(Errno(libc::EINVAL))?;
        let mut entries = Vec::with_capacity(count);
        let mut queues = Vec::with_capacity(count);
        for index in 0..count {
            // SAFETY: `ind_tbl` is null or points to `count` readable pointers, each null or a live
            // work queue, and `index < count`: the caller's contract, section Safety. `entry::read`
            // rejects a null `ind_tbl` at index 0.
            let queue =
                unsafe { object::state_of(entry::read(attr.ind_tbl.wrapping_add(index))?) }?;
            entries.push(Arc::clone(&queue.driver));
            queues.push(queue.users.add());
        }
        let number = object::number().cast_signed();
        let handle = ibv_rwq_ind_table {
            context,
            ind_tbl_handle: number,
            ind_tbl_num: number,
            comp_mask: 0,
        };
        let state = Table {
            entries,
            users: Users::default(),
            _queues: queues,
            _context: device.users.add(),
        };
        Ok(object::make(handle, state))
    })
}

/// Implements `destroy_rwq_ind_table` of a context. `EBUSY` while a queue pair uses it.
///
/// # Safety
/// `table` must be null or a live indirection table created by this library. No other call may use
/// it now or later.
pub(super) unsafe extern "C" fn destroy_rwq_ind_table(table: *mut ibv_rwq_ind_table) -> c_int {
    entry::status("ibv_destroy_rwq_ind_table", || {
        // SAFETY: `table` is null or live: the caller's contract, section Safety.
        unsafe { object::state_of(table) }?.users.check_none()?;
        // SAFETY: `table` is live, and no other call uses it: the caller's contract, section
        // Safety. No queue pair uses it (checked above).
        drop(unsafe { object::free(table) });
        Ok(())
    })
}

/// Returns the spread of frames over a table by a hash, and a use of the table.
///
/// # Safety
/// `table` must be null or a live indirection table created by this library. `hash.rx_hash_key`
/// must be null or point to `rx_hash_key_len` readable bytes.
pub(super) unsafe fn spread(
    table: *mut ibv_rwq_ind_table,
    hash: &ibv_rx_hash_conf,
) -> Result<(Spread, Use), Errno> {
    // SAFETY: `table` is null or live: the caller's contract, section Safety.
    let table = unsafe { object::state_of(table) }?;
    if u32::from(hash.rx_hash_function) != IBV_RX_HASH_FUNC_TOEPLITZ {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    if usize::from(hash.rx_hash_key_len) != KEY_LEN || hash.rx_hash_key.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    let fields = HashFields::from_bits(hash.rx_hash_fields_mask).ok_or(Errno(libc::EOPNOTSUPP))?;
    let mut key = [0; KEY_LEN];
    // SAFETY: `rx_hash_key` is non-null and `rx_hash_key_len` is `KEY_LEN` (checked above), so
    // `KEY_LEN` bytes are readable: the caller's contract, section Safety. Bytes need no alignment,
    // and `key` is a local.
    unsafe { ptr::copy_nonoverlapping(hash.rx_hash_key, key.as_mut_ptr(), KEY_LEN) };
    let spread = Spread::new(key, fields, table.entries.clone()).ok_or(Errno(libc::EINVAL))?;
    Ok((spread, table.users.add()))
}
