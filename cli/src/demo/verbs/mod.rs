//! The verbs C API of `liburxe.so`, used as by a C program: the library is loaded by path, exported
//! functions are resolved by name, and work requests go through the function pointers of the device
//! context, as the inline functions of `verbs.h` do.
//!
//! An [`Endpoint`] owns all objects of one reliable connection and its memory. Its API is safe:
//! elements are checked against the memory, which outlives its registration and is accessed as
//! atomics only.

mod error;
mod functions;

use std::ffi::{CStr, c_int};
use std::fmt;
use std::io;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::AtomicU64;

pub use error::VerbsError;
use functions::Functions;
use urxe_verbs::ffi::*;

/// The only port of a device.
const PORT: u8 = 1;
/// The local ACK timeout: 4.096 us x 2^14 = 67 ms.
const TIMEOUT: u8 = 14;
/// The number of retries without progress: the maximum.
const RETRIES: u8 = 7;
/// The number of RNR retries: 7 is unlimited.
const RNR_RETRIES: u8 = 7;
/// The RNR timer: code 1 is 0.01 ms.
const MIN_RNR_TIMER: u8 = 1;
/// The number of READs and atomics in flight.
pub const MAX_RD_ATOMIC: u8 = 16;
/// The length of the send queue.
pub const SEND_DEPTH: u32 = 128;
/// The length of the receive queue.
pub const RECEIVE_DEPTH: u32 = 256;
/// The largest inline data, in bytes.
pub const MAX_INLINE: usize = 64;
/// The number of completions per poll.
const BATCH: usize = 32;

/// Returns the pointer if it is non-null, or else the errno.
fn pointer<T>(call: &'static str, pointer: *mut T) -> Result<*mut T, VerbsError> {
    match pointer.is_null() {
        true => Err(VerbsError::Call {
            call,
            source: io::Error::last_os_error(),
        }),
        false => Ok(pointer),
    }
}

/// Converts the result of a call that returns 0 or an errno.
fn status(call: &'static str, result: c_int) -> Result<(), VerbsError> {
    match result {
        0 => Ok(()),
        -1 => Err(VerbsError::Call {
            call,
            source: io::Error::last_os_error(),
        }),
        errno => Err(VerbsError::Call {
            call,
            source: io::Error::from_raw_os_error(errno),
        }),
    }
}

/// The address that the peer needs to connect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address {
    /// The GID.
    pub gid: [u8; 16],
    /// The queue pair number.
    pub qpn: u32,
    /// The first PSN of its requests.
    pub psn: u32,
    /// The address of its memory.
    pub memory: u64,
    /// The rkey of its memory.
    pub rkey: u32,
}

/// A work request.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// SEND.
    Send,
    /// SEND with immediate data.
    SendWithImmediate(u32),
    /// RDMA WRITE.
    Write,
    /// RDMA WRITE with immediate data.
    WriteWithImmediate(u32),
    /// RDMA READ.
    Read,
    /// Atomic compare and swap.
    CompareAndSwap { compare: u64, swap: u64 },
    /// Atomic fetch and add.
    FetchAndAdd(u64),
}

/// A range of an endpoint's memory.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// The offset in bytes.
    pub offset: usize,
    /// The length in bytes.
    pub len: usize,
}

/// A successful completion.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// The `wr_id` of the request.
    pub id: u64,
    /// `enum ibv_wc_opcode`.
    pub opcode: ibv_wc_opcode,
    /// The received bytes; of receive requests only.
    pub byte_len: u32,
    /// The immediate data, if any.
    pub immediate: Option<u32>,
}

/// One end of a reliable connection, with its memory.
pub struct Endpoint {
    functions: Functions,
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    mr: *mut ibv_mr,
    cq: *mut ibv_cq,
    qp: *mut ibv_qp,
    gid_index: u8,
    psn: u32,
    remote: Option<Address>,
    memory: Box<[AtomicU64]>,
}

impl Endpoint {
    /// Opens a device, registers `words` words of memory, and creates a queue pair.
    ///
    /// # Errors
    /// The first call that fails.
    pub fn open(
        library: &Path,
        device: &str,
        gid_index: u8,
        words: usize,
    ) -> Result<Self, VerbsError> {
        let mut endpoint = Self {
            functions: Functions::load(library)?,
            context: null_mut(),
            pd: null_mut(),
            mr: null_mut(),
            cq: null_mut(),
            qp: null_mut(),
            gid_index,
            psn: std::process::id() & 0xff_ffff,
            remote: None,
            memory: (0..words).map(|_| AtomicU64::new(0)).collect(),
        };
        endpoint.context = endpoint.open_device(device)?;
        let access = IBV_ACCESS_LOCAL_WRITE
            | IBV_ACCESS_REMOTE_WRITE
            | IBV_ACCESS_REMOTE_READ
            | IBV_ACCESS_REMOTE_ATOMIC;
        let depth = (SEND_DEPTH + RECEIVE_DEPTH) as c_int;
        // SAFETY: each call gets live objects that the calls before it created. The memory consists
        // of atomics and is freed after the region, see `drop`.
        unsafe {
            let f = &endpoint.functions;
            endpoint.pd = pointer("ibv_alloc_pd", (f.alloc_pd)(endpoint.context))?;
            endpoint.mr = pointer(
                "ibv_reg_mr",
                (f.reg_mr)(
                    endpoint.pd,
                    endpoint.memory.as_ptr().cast_mut().cast(),
                    size_of_val(&*endpoint.memory),
                    access as c_int,
                ),
            )?;
            endpoint.cq = pointer(
                "ibv_create_cq",
                (f.create_cq)(endpoint.context, depth, null_mut(), null_mut(), 0),
            )?;
            let mut init = ibv_qp_init_attr::zeroed();
            init.send_cq = endpoint.cq;
            init.recv_cq = endpoint.cq;
            init.qp_type = IBV_QPT_RC;
            init.cap = ibv_qp_cap {
                max_send_wr: SEND_DEPTH,
                max_recv_wr: RECEIVE_DEPTH,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: MAX_INLINE as u32,
            };
            endpoint.qp = pointer("ibv_create_qp", (f.create_qp)(endpoint.pd, &mut init))?;
        }
        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = IBV_QPS_INIT;
        attr.port_num = PORT;
        attr.qp_access_flags = access;
        let mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
        endpoint.modify("ibv_modify_qp to INIT", attr, mask)?;
        Ok(endpoint)
    }

    fn open_device(&self, name: &str) -> Result<*mut ibv_context, VerbsError> {
        let f = &self.functions;
        // SAFETY: `list` has `count` elements. It is freed after the device was opened, and the
        // open context keeps the device.
        unsafe {
            let mut count = 0;
            let list = (f.get_device_list)(&mut count);
            let list = pointer("ibv_get_device_list", list)?;
            let devices = (0..usize::try_from(count).unwrap_or(0)).map(|at| *list.add(at));
            let found = devices
                .into_iter()
                .find(|&device| {
                    let found = (f.get_device_name)(device);
                    !found.is_null() && CStr::from_ptr(found).to_bytes() == name.as_bytes()
                })
                .ok_or_else(|| VerbsError::NoDevice(name.to_owned()));
            let opened =
                found.and_then(|device| pointer("ibv_open_device", (f.open_device)(device)));
            (f.free_device_list)(list);
            opened
        }
    }

    fn modify(
        &self,
        call: &'static str,
        mut attr: ibv_qp_attr,
        mask: ibv_qp_attr_mask,
    ) -> Result<(), VerbsError> {
        // SAFETY: the queue pair is alive, and `attr` is valid for the call.
        let result = unsafe { (self.functions.modify_qp)(self.qp, &mut attr, mask as c_int) };
        status(call, result)
    }

    /// Returns this endpoint's address.
    ///
    /// # Errors
    /// Fails if the GID index is unused.
    pub fn address(&self) -> Result<Address, VerbsError> {
        let mut gid = ibv_gid { raw: [0; 16] };
        let index = c_int::from(self.gid_index);
        // SAFETY: the context is open, and `gid` is valid for writes.
        let result = unsafe { (self.functions.query_gid)(self.context, PORT, index, &mut gid) };
        status("ibv_query_gid", result)?;
        // SAFETY: all members of the union are plain bytes.
        let gid = unsafe { gid.raw };
        if gid == [0; 16] {
            return Err(VerbsError::NoGid(self.gid_index));
        }
        // SAFETY: the queue pair and the region are alive.
        let (qpn, rkey) = unsafe { ((*self.qp).qp_num, (*self.mr).rkey) };
        Ok(Address {
            gid,
            qpn,
            psn: self.psn,
            memory: self.memory.as_ptr() as u64,
            rkey,
        })
    }

    /// Moves the queue pair to RTR and RTS.
    ///
    /// # Errors
    /// Fails if the library rejects an attribute.
    pub fn connect(&mut self, remote: Address, mtu: ibv_mtu) -> Result<(), VerbsError> {
        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = IBV_QPS_RTR;
        attr.path_mtu = mtu;
        attr.dest_qp_num = remote.qpn;
        attr.rq_psn = remote.psn;
        attr.max_dest_rd_atomic = MAX_RD_ATOMIC;
        attr.min_rnr_timer = MIN_RNR_TIMER;
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = PORT;
        attr.ah_attr.grh.dgid = ibv_gid { raw: remote.gid };
        attr.ah_attr.grh.sgid_index = self.gid_index;
        attr.ah_attr.grh.hop_limit = 64;
        let mask = IBV_QP_STATE
            | IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        self.modify("ibv_modify_qp to RTR", attr, mask)?;

        let mut attr = ibv_qp_attr::zeroed();
        attr.qp_state = IBV_QPS_RTS;
        attr.timeout = TIMEOUT;
        attr.retry_cnt = RETRIES;
        attr.rnr_retry = RNR_RETRIES;
        attr.sq_psn = self.psn;
        attr.max_rd_atomic = MAX_RD_ATOMIC;
        let mask = IBV_QP_STATE
            | IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_SQ_PSN
            | IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify("ibv_modify_qp to RTS", attr, mask)?;
        self.remote = Some(remote);
        Ok(())
    }

    /// The registered memory.
    pub fn memory(&self) -> &[AtomicU64] {
        &self.memory
    }

    fn element(&self, piece: Piece) -> ibv_sge {
        let end = piece.offset.checked_add(piece.len);
        assert!(
            end.is_some_and(|end| end <= size_of_val(&*self.memory)),
            "{piece:?} is not in the memory"
        );
        // SAFETY: the region is alive until `drop`.
        let lkey = unsafe { (*self.mr).lkey };
        ibv_sge {
            addr: self.memory.as_ptr() as u64 + piece.offset as u64,
            length: u32::try_from(piece.len).expect("a message is at most 1 GiB"),
            lkey,
        }
    }

    /// Posts a signaled send request. `remote` is the offset in the peer's memory, in bytes.
    ///
    /// # Errors
    /// Fails if the queue is full or the queue pair is not in RTS.
    pub fn send(
        &mut self,
        id: u64,
        work: Work,
        local: Piece,
        remote: usize,
    ) -> Result<(), VerbsError> {
        let mut element = self.element(local);
        let to = self.remote.expect("connected before work is posted");
        let remote_addr = to.memory + remote as u64;
        let mut imm_data = 0;
        let mut flags = IBV_SEND_SIGNALED;
        let is_inline = |flags| match local.len <= MAX_INLINE {
            true => flags | IBV_SEND_INLINE,
            false => flags,
        };
        let rdma = ibv_send_wr_wr {
            rdma: ibv_send_wr_wr_rdma {
                remote_addr,
                rkey: to.rkey,
            },
        };
        let atomic = |compare_add, swap| ibv_send_wr_wr {
            atomic: ibv_send_wr_wr_atomic {
                remote_addr,
                compare_add,
                swap,
                rkey: to.rkey,
            },
        };
        let (opcode, wr) = match work {
            Work::Send => {
                flags = is_inline(flags);
                (IBV_WR_SEND, rdma)
            }
            Work::SendWithImmediate(number) => {
                flags = is_inline(flags);
                imm_data = number.to_be();
                (IBV_WR_SEND_WITH_IMM, rdma)
            }
            Work::Write => {
                flags = is_inline(flags);
                (IBV_WR_RDMA_WRITE, rdma)
            }
            Work::WriteWithImmediate(number) => {
                flags = is_inline(flags);
                imm_data = number.to_be();
                (IBV_WR_RDMA_WRITE_WITH_IMM, rdma)
            }
            Work::Read => (IBV_WR_RDMA_READ, rdma),
            Work::CompareAndSwap { compare, swap } => {
                (IBV_WR_ATOMIC_CMP_AND_SWP, atomic(compare, swap))
            }
            Work::FetchAndAdd(add) => (IBV_WR_ATOMIC_FETCH_AND_ADD, atomic(add, 0)),
        };
        let mut request = ibv_send_wr {
            wr_id: id,
            next: null_mut(),
            sg_list: &mut element,
            num_sge: 1,
            opcode,
            send_flags: flags,
            imm: ibv_send_wr_imm { imm_data },
            wr,
            qp_type: ibv_send_wr_qp_type {
                xrc: ibv_send_wr_qp_type_xrc { remote_srqn: 0 },
            },
            ext: ibv_send_wr_ext {
                tso: ibv_send_wr_ext_tso {
                    hdr: null_mut(),
                    hdr_sz: 0,
                    mss: 0,
                },
            },
        };
        let mut bad = null_mut();
        // SAFETY: the context and the queue pair are alive. The library reads the request before it
        // returns, and its element is inside the registered memory.
        let result = unsafe {
            let post = (*self.context).ops.post_send;
            post.map(|post| post(self.qp, &mut request, &mut bad))
        };
        status("ibv_post_send", result.unwrap_or(libc::EOPNOTSUPP))
    }

    /// Posts a receive request.
    ///
    /// # Errors
    /// Fails if the queue is full.
    pub fn receive(&mut self, id: u64, local: Piece) -> Result<(), VerbsError> {
        let mut element = self.element(local);
        let mut request = ibv_recv_wr {
            wr_id: id,
            next: null_mut(),
            sg_list: &mut element,
            num_sge: 1,
        };
        let mut bad = null_mut();
        // SAFETY: the context and the queue pair are alive. The library reads the request before it
        // returns, and its element is inside the registered memory.
        let result = unsafe {
            let post = (*self.context).ops.post_recv;
            post.map(|post| post(self.qp, &mut request, &mut bad))
        };
        status("ibv_post_recv", result.unwrap_or(libc::EOPNOTSUPP))
    }

    /// Polls the completion queue and appends the completions in order.
    ///
    /// # Errors
    /// The first completion with an error status.
    pub fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), VerbsError> {
        let mut batch: [ibv_wc; BATCH] = std::array::from_fn(|_| ibv_wc::zeroed());
        // SAFETY: the context and the queue are alive, and `batch` has room for `BATCH` entries.
        let count = unsafe {
            let poll = (*self.context).ops.poll_cq;
            poll.map(|poll| poll(self.cq, BATCH as c_int, batch.as_mut_ptr()))
        };
        let count = usize::try_from(count.unwrap_or(-1)).map_err(|_| VerbsError::Call {
            call: "ibv_poll_cq",
            source: io::Error::last_os_error(),
        })?;
        for entry in batch.iter().take(count) {
            if entry.status != IBV_WC_SUCCESS {
                return Err(VerbsError::Completion {
                    id: entry.wr_id,
                    status: entry.status,
                    text: self.status_text(entry.status),
                    vendor: entry.vendor_err,
                });
            }
            let with_immediate = entry.wc_flags & IBV_WC_WITH_IMM != 0;
            // SAFETY: both members of the union are integers of 32 bits.
            let number = unsafe { entry.imm.imm_data };
            completions.push(Completion {
                id: entry.wr_id,
                opcode: entry.opcode,
                byte_len: entry.byte_len,
                immediate: with_immediate.then(|| u32::from_be(number)),
            });
        }
        Ok(())
    }

    fn status_text(&self, status: ibv_wc_status) -> String {
        // SAFETY: the function returns null or a static NUL-terminated string.
        unsafe {
            match (self.functions.wc_status_str)(status) {
                text if text.is_null() => "no text".to_owned(),
                text => CStr::from_ptr(text).to_string_lossy().into_owned(),
            }
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let f = &self.functions;
        let complain = |call: &str, result: c_int| {
            if result != 0 {
                tracing::warn!(call, result, "failed");
            }
        };
        // SAFETY: each existing object is destroyed once, after the objects that depend on it.
        unsafe {
            if !self.qp.is_null() {
                complain("ibv_destroy_qp", (f.destroy_qp)(self.qp));
            }
            if !self.cq.is_null() {
                complain("ibv_destroy_cq", (f.destroy_cq)(self.cq));
            }
            if !self.mr.is_null() {
                complain("ibv_dereg_mr", (f.dereg_mr)(self.mr));
            }
            if !self.pd.is_null() {
                complain("ibv_dealloc_pd", (f.dealloc_pd)(self.pd));
            }
            if !self.context.is_null() {
                complain("ibv_close_device", (f.close_device)(self.context));
            }
        }
    }
}

impl fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Endpoint")
            .field("gid_index", &self.gid_index)
            .field("remote", &self.remote)
            .finish_non_exhaustive()
    }
}
