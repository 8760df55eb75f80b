//! The verbs C API of `liburxe.so` as a C program meets it: the library is opened by its file, its
//! exported functions are found by name, and work goes through the function pointers of the opened
//! device, as the inline functions of `verbs.h` have it.
//!
//! An [`Endpoint`] owns all objects of one reliable connection and the memory that it exposes. What
//! it offers is safe: elements are checked against that memory, which lives as long as it is
//! registered and is only ever touched as atomics.

mod functions;

use std::ffi::{CStr, c_int};
use std::fmt;
use std::io;
use std::path::Path;
use std::ptr::null_mut;
use std::sync::atomic::AtomicU64;

use functions::Functions;
use urxe_verbs::ffi::*;

/// The one port of a device.
const PORT: u8 = 1;
/// How long to wait for an acknowledgement: 4.096 us x 2^14 = 67 ms.
const TIMEOUT: u8 = 14;
/// How often to try again without any progress: the most there is.
const RETRIES: u8 = 7;
/// Try for ever when the other side has no receive request yet.
const RNR_RETRIES: u8 = 7;
/// The code for 0.01 ms until a sender tries again.
const MIN_RNR_TIMER: u8 = 1;
/// How many READs and atomics may be under way.
pub const MAX_RD_ATOMIC: u8 = 16;
/// How many requests a send queue takes.
pub const SEND_DEPTH: u32 = 128;
/// How many requests a receive queue takes.
pub const RECEIVE_DEPTH: u32 = 256;
/// How much data may go into the request itself, in bytes.
pub const MAX_INLINE: usize = 64;
/// How many completions are taken at once.
const BATCH: usize = 32;

/// What went wrong at the C API.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    /// The library cannot be opened, or lacks a function.
    #[error("{0}")]
    Load(String),
    /// It has no device of this name.
    #[error("ibv_get_device_list() does not list {0}")]
    NoDevice(String),
    /// The GID index is empty.
    #[error("GID index {0} is empty; `urxe devices` shows those in use")]
    NoGid(u8),
    /// A call failed.
    #[error("{call}: {source}")]
    Call {
        /// Which.
        call: &'static str,
        /// Its errno.
        source: io::Error,
    },
    /// A request completed with an error.
    #[error("request {id} completed with status {status} ({text}), vendor error {vendor}")]
    Completion {
        /// The request.
        id: u64,
        /// `enum ibv_wc_status`.
        status: ibv_wc_status,
        /// What the library says of it.
        text: String,
        /// The device's own number.
        vendor: u32,
    },
}

/// A pointer that a call returned, or its errno.
fn pointer<T>(call: &'static str, pointer: *mut T) -> Result<*mut T, VerbsError> {
    match pointer.is_null() {
        true => Err(VerbsError::Call {
            call,
            source: io::Error::last_os_error(),
        }),
        false => Ok(pointer),
    }
}

/// The result of a call that returns 0 or an errno.
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

/// What the other side must know of this one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Address {
    /// Where packets go.
    pub gid: [u8; 16],
    /// Its queue pair.
    pub qpn: u32,
    /// The first PSN that it sends.
    pub psn: u32,
    /// Where its memory begins.
    pub memory: u64,
    /// The key of that memory.
    pub rkey: u32,
}

/// What a request does at the other side.
#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// Fills the next receive request.
    Send,
    /// As Send, and the receiver's completion has the number.
    SendWithImmediate(u32),
    /// Fills memory.
    Write,
    /// As Write, and takes a receive request, whose completion has the number.
    WriteWithImmediate(u32),
    /// Fetches memory.
    Read,
    /// Replaces a word if it is as expected; fetches the word that was there.
    CompareAndSwap { compare: u64, swap: u64 },
    /// Adds to a word; fetches the word that was there.
    FetchAndAdd(u64),
}

/// A part of an endpoint's memory.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    /// Where it begins, in bytes from the beginning of the memory.
    pub offset: usize,
    /// How long it is, in bytes.
    pub len: usize,
}

/// A completion that was a success.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// The request's own number.
    pub id: u64,
    /// `enum ibv_wc_opcode`.
    pub opcode: ibv_wc_opcode,
    /// How much arrived, in bytes; of requests that receive.
    pub byte_len: u32,
    /// The immediate data.
    pub immediate: Option<u32>,
}

/// One side of a reliable connection, with its memory.
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
    /// Opens a device of the library, registers `words` words of memory, and makes a queue pair.
    ///
    /// # Errors
    /// When any of it fails.
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
        // SAFETY: each object is made from those before it, which are alive. The memory is atomics,
        // and lives until the region is gone, see `drop`.
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
        // SAFETY: the list has `count` devices and ends in a null; it is freed after its device was
        // opened, which keeps the device.
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
        // SAFETY: the queue pair is alive, and the attributes are the call's to read.
        let result = unsafe { (self.functions.modify_qp)(self.qp, &mut attr, mask as c_int) };
        status(call, result)
    }

    /// What the other side must know.
    ///
    /// # Errors
    /// When there is no GID at the index.
    pub fn address(&self) -> Result<Address, VerbsError> {
        let mut gid = ibv_gid { raw: [0; 16] };
        let index = c_int::from(self.gid_index);
        // SAFETY: the context is open, and there is room for a GID.
        let result = unsafe { (self.functions.query_gid)(self.context, PORT, index, &mut gid) };
        status("ibv_query_gid", result)?;
        // SAFETY: every byte of a GID is a byte.
        let gid = unsafe { gid.raw };
        if gid == [0; 16] {
            return Err(VerbsError::NoGid(self.gid_index));
        }
        // SAFETY: both objects are alive.
        let (qpn, rkey) = unsafe { ((*self.qp).qp_num, (*self.mr).rkey) };
        Ok(Address {
            gid,
            qpn,
            psn: self.psn,
            memory: self.memory.as_ptr() as u64,
            rkey,
        })
    }

    /// Connects the queue pair: to ready to receive, then to ready to send.
    ///
    /// # Errors
    /// When the library refuses.
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

    /// The memory that both sides' requests work on.
    pub fn memory(&self) -> &[AtomicU64] {
        &self.memory
    }

    fn element(&self, piece: Piece) -> ibv_sge {
        let end = piece.offset.checked_add(piece.len);
        assert!(
            end.is_some_and(|end| end <= size_of_val(&*self.memory)),
            "{piece:?} is not in the memory"
        );
        // SAFETY: the region is alive.
        let lkey = unsafe { (*self.mr).lkey };
        ibv_sge {
            addr: self.memory.as_ptr() as u64 + piece.offset as u64,
            length: u32::try_from(piece.len).expect("a message is at most 1 GiB"),
            lkey,
        }
    }

    /// Posts a request with a completion. The other side's piece is at `remote`, in bytes from the
    /// beginning of its memory.
    ///
    /// # Errors
    /// When the queue is full, or not ready.
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
        // SAFETY: the context and the queue pair are alive, the request is read before the call
        // returns, and its element is in the registered memory.
        let result = unsafe {
            let post = (*self.context).ops.post_send;
            post.map(|post| post(self.qp, &mut request, &mut bad))
        };
        status("ibv_post_send", result.unwrap_or(libc::EOPNOTSUPP))
    }

    /// Posts a request to receive a message.
    ///
    /// # Errors
    /// When the queue is full.
    pub fn receive(&mut self, id: u64, local: Piece) -> Result<(), VerbsError> {
        let mut element = self.element(local);
        let mut request = ibv_recv_wr {
            wr_id: id,
            next: null_mut(),
            sg_list: &mut element,
            num_sge: 1,
        };
        let mut bad = null_mut();
        // SAFETY: as in `send`.
        let result = unsafe {
            let post = (*self.context).ops.post_recv;
            post.map(|post| post(self.qp, &mut request, &mut bad))
        };
        status("ibv_post_recv", result.unwrap_or(libc::EOPNOTSUPP))
    }

    /// Takes the completions that are there, in order, and adds them to `completions`.
    ///
    /// # Errors
    /// When one of them is an error.
    pub fn poll(&mut self, completions: &mut Vec<Completion>) -> Result<(), VerbsError> {
        let mut batch: [ibv_wc; BATCH] = std::array::from_fn(|_| ibv_wc::zeroed());
        // SAFETY: the context and the queue are alive, and the batch has room for so many.
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
            // SAFETY: both members of the union are the same kind of number.
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
        // SAFETY: the text is the library's and stays.
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
        // SAFETY: in the order in which they depend on each other, each once, those that were made.
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
