//! Posting work requests and polling completions.

use super::harness::{Harness, check_errno, check_status};
use super::values::{Bits, Element, Elements, Key, Length, Place, Range, Remote};
use arbitrary::Arbitrary;
use std::ptr;
use urxe_verbs::calls::*;
use urxe_verbs::ffi::*;

#[derive(Arbitrary, Debug)]
pub(super) enum Work {
    Send {
        qp: u8,
        requests: Vec<Request>,
    },
    Receive {
        /// A queue pair, a shared receive queue or a work queue.
        queue: u8,
        which: u8,
        requests: Vec<Elements>,
    },
    /// The functions of an extended queue pair, between `wr_start` and `wr_complete`.
    Build {
        qp: u8,
        calls: Vec<(Call, Bits)>,
        abort: bool,
    },
    Poll {
        cq: u8,
        count: i8,
    },
    /// The functions of an extended completion queue.
    PollEx {
        cq: u8,
        count: u8,
        mask: Option<u32>,
    },
    Notify {
        cq: u8,
        solicited: bool,
    },
    CqEvent {
        channel: u8,
    },
    AsyncEvent {
        second: bool,
    },
}

/// A work request for a send queue.
#[derive(Arbitrary, Debug)]
pub(super) struct Request {
    opcode: u8,
    flags: Bits,
    elements: Elements,
    remote: Remote,
    compare: u64,
    key: Key,
    to: Datagram,
    srq: Result<u8, u32>,
    mw: u8,
    range: Range,
}

/// The destination of a datagram.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) struct Datagram {
    ah: u8,
    qp: Result<u8, u32>,
    qkey: Option<u32>,
}

impl Datagram {
    fn to_verbs(self, harness: &Harness) -> ibv_send_wr_wr_ud {
        ibv_send_wr_wr_ud {
            ah: harness.pick(self.ah),
            remote_qpn: match self.qp {
                // SAFETY: `pick` returns null or a live object.
                Ok(which) => unsafe {
                    harness
                        .pick::<ibv_qp>(which)
                        .as_ref()
                        .map_or(0, |qp| qp.qp_num)
                },
                Err(number) => number,
            },
            remote_qkey: self.qkey.unwrap_or(0x11),
        }
    }
}

/// The number of a shared receive queue.
fn srq_number(harness: &Harness, srq: Result<u8, u32>) -> u32 {
    let mut number = 0;
    match srq {
        Ok(which) => {
            if let Some(get) = harness.ops().get_srq_num {
                // SAFETY: `pick` returns null or a live queue, and `number` outlives the call.
                check_status("ibv_get_srq_num", unsafe {
                    get(harness.pick(which), &raw mut number)
                });
            }
            number
        }
        Err(number) => number,
    }
}

/// A call that starts a work request, or adds to the last one.
#[derive(Arbitrary, Debug)]
pub(super) enum Call {
    Send,
    SendImm(u32),
    SendInv(Key),
    LocalInv(Key),
    BindMw { mw: u8, key: Key, range: Range },
    Write(Remote),
    WriteImm(Remote, u32),
    Read(Remote),
    CompareSwap(Remote, u64, u64),
    FetchAdd(Remote, u64),
    AtomicWrite(Remote, [u8; 8]),
    Flush(Remote, Length, u8, u8),
    Datagram(Datagram),
    Srq(Result<u8, u32>),
    Sge(Element),
    Sges(Vec<Element>),
    Inline(Place, Length),
    Inlines(Vec<(Place, Length)>),
}

impl Request {
    /// Returns the work request without the link to the next. `elements` must outlive it.
    fn to_verbs(
        &self,
        harness: &Harness,
        id: u64,
        is_ud: bool,
        elements: &mut (Vec<ibv_sge>, i32),
    ) -> ibv_send_wr {
        let (addr, rkey) = self.remote.get(harness);
        // SAFETY: the members are integers and raw pointers, for which all zeros are valid.
        let mut wr: ibv_send_wr = unsafe { std::mem::zeroed() };
        wr.wr_id = id;
        wr.send_flags = self.flags.get();
        wr.opcode = match self.opcode % 20 {
            // An unknown opcode.
            19 => 0x1000 + u32::from(self.opcode),
            known => known.into(),
        };
        wr.imm.invalidate_rkey = self.key.get(harness);
        wr.wr = match wr.opcode {
            // The address handle of a datagram is a pointer in the union, so it must be valid.
            _ if is_ud => ibv_send_wr_wr {
                ud: self.to.to_verbs(harness),
            },
            IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD => ibv_send_wr_wr {
                atomic: ibv_send_wr_wr_atomic {
                    remote_addr: addr,
                    compare_add: self.compare,
                    swap: !self.compare,
                    rkey,
                },
            },
            _ => ibv_send_wr_wr {
                rdma: ibv_send_wr_wr_rdma {
                    remote_addr: addr,
                    rkey,
                },
            },
        };
        wr.qp_type.xrc.remote_srqn = srq_number(harness, self.srq);
        wr.ext.bind_mw = ibv_send_wr_ext_bind_mw {
            mw: harness.pick(self.mw),
            rkey: self.key.get(harness),
            bind_info: self.range.to_verbs(harness),
        };
        wr.sg_list = elements.0.as_mut_ptr();
        wr.num_sge = elements.1;
        wr
    }
}

impl Work {
    pub(super) fn run(&self, harness: &mut Harness) {
        // SAFETY: `pick` returns null or live objects, and each structure outlives its call.
        unsafe { self.call(harness) };
    }

    /// # Safety
    /// All objects of `harness` must be live.
    unsafe fn call(&self, harness: &mut Harness) {
        match self {
            // SAFETY: all objects are live: the caller's contract, section Safety.
            Work::Send { qp, requests } => unsafe { send(harness, *qp, requests) },
            Work::Receive {
                queue,
                which,
                requests,
            } => {
                // SAFETY: all objects are live: the caller's contract, section Safety.
                unsafe { receive(harness, *queue, *which, requests) };
            }
            // SAFETY: all objects are live: the caller's contract, section Safety.
            Work::Build { qp, calls, abort } => unsafe { build(harness, *qp, calls, *abort) },
            // SAFETY: all objects are live: the caller's contract, section Safety.
            Work::Poll { cq, count } => unsafe { poll(harness, *cq, *count) },
            // SAFETY: all objects are live: the caller's contract, section Safety.
            Work::PollEx { cq, count, mask } => unsafe { poll_ex(harness, *cq, *count, *mask) },
            Work::Notify { cq, solicited } => {
                if let Some(notify) = harness.ops().context.ops.req_notify_cq {
                    // SAFETY: `pick` returns null or a live completion queue.
                    let status = unsafe { notify(harness.pick(*cq), (*solicited).into()) };
                    check_status("ibv_req_notify_cq", status);
                }
            }
            Work::CqEvent { channel } => {
                let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
                // SAFETY: `pick` returns null or a live channel. The event names a live queue,
                // because an unacknowledged event keeps it alive.
                unsafe {
                    let channel = harness.pick(*channel);
                    let status = ibv_get_cq_event(channel, &raw mut cq, &raw mut context);
                    if check_errno("ibv_get_cq_event", status) {
                        ibv_ack_cq_events(cq, 1);
                    }
                }
            }
            Work::AsyncEvent { second } => {
                // SAFETY: `event` is integers and a union of raw pointers, for which zeros are
                // valid. The context is open, and `event` outlives the calls.
                unsafe {
                    let mut event: ibv_async_event = std::mem::zeroed();
                    let status = ibv_get_async_event(harness.context(*second), &raw mut event);
                    if check_errno("ibv_get_async_event", status) {
                        ibv_ack_async_event(&raw mut event);
                    }
                }
            }
        }
    }
}

/// Links the work requests of `all` to a list, and returns the first.
fn chain<W>(all: &mut [W], next: impl Fn(&mut W, *mut W)) -> *mut W {
    let first = all.as_mut_ptr();
    for index in 1..all.len() {
        // SAFETY: both indices are within the slice, and differ.
        unsafe { next(&mut *first.add(index - 1), first.add(index)) };
    }
    match all.is_empty() {
        true => ptr::null_mut(),
        false => first,
    }
}

/// Records the posted work requests: all, or those before the rejected one.
fn record_posted<W>(
    harness: &mut Harness,
    all: &[W],
    id: impl Fn(&W) -> u64,
    status: i32,
    bad: *mut W,
) {
    let posted = match status {
        0 => all.len(),
        _ if all.is_empty() => 0,
        _ => all
            .iter()
            .position(|wr| ptr::eq(wr, bad))
            .unwrap_or_else(|| panic!("status {status} without a rejected work request")),
    };
    for wr in &all[..posted] {
        harness.posted(id(wr));
    }
}

/// # Safety
/// All objects of `harness` must be live.
unsafe fn send(harness: &mut Harness, qp: u8, requests: &[Request]) {
    let qp = harness.pick::<ibv_qp>(qp);
    // SAFETY: `pick` returns null or a live object.
    let is_ud = unsafe { qp.as_ref() }.is_some_and(|qp| qp.qp_type == IBV_QPT_UD);
    let mut elements: Vec<_> = requests
        .iter()
        .map(|request| {
            let readable = request.flags.get() & IBV_SEND_INLINE != 0;
            request.elements.to_verbs(harness, readable)
        })
        .collect();
    let mut all = Vec::new();
    for (request, elements) in requests.iter().zip(&mut elements) {
        let id = harness.new_id();
        all.push(request.to_verbs(harness, id, is_ud, elements));
    }
    let first = chain(&mut all, |wr, next| wr.next = next);
    let mut bad = ptr::null_mut();
    let Some(post) = harness.ops().context.ops.post_send else {
        return;
    };
    // SAFETY: `qp` is null or live, and the work requests and their elements outlive the call.
    let status = unsafe { post(qp, first, &raw mut bad) };
    check_status("ibv_post_send", status);
    record_posted(harness, &all, |wr| wr.wr_id, status, bad);
}

/// # Safety
/// All objects of `harness` must be live.
unsafe fn receive(harness: &mut Harness, queue: u8, which: u8, requests: &[Elements]) {
    let mut elements: Vec<_> = requests
        .iter()
        .map(|e| e.to_verbs(harness, false))
        .collect();
    let mut all: Vec<_> = elements
        .iter_mut()
        .map(|(list, count)| ibv_recv_wr {
            wr_id: 0,
            next: ptr::null_mut(),
            sg_list: list.as_mut_ptr(),
            num_sge: *count,
        })
        .collect();
    for wr in &mut all {
        wr.wr_id = harness.new_id();
    }
    let first = chain(&mut all, |wr, next| wr.next = next);
    let mut bad = ptr::null_mut();
    let ops = harness.ops().context.ops;
    // SAFETY: the queue is null or live, and the work requests and their elements outlive the call.
    let status = unsafe {
        match queue % 3 {
            0 => ops
                .post_recv
                .map(|post| post(harness.pick(which), first, &raw mut bad)),
            1 => ops
                .post_srq_recv
                .map(|post| post(harness.pick(which), first, &raw mut bad)),
            _ => {
                let wq = harness.pick::<ibv_wq>(which);
                let post = wq.as_ref().and_then(|wq| wq.post_recv);
                post.map(|post| post(wq, first, &raw mut bad))
            }
        }
    };
    if let Some(status) = status {
        check_status("a call that posts receives", status);
        record_posted(harness, &all, |wr| wr.wr_id, status, bad);
    }
}

/// # Safety
/// All objects of `harness` must be live.
unsafe fn build(harness: &mut Harness, qp: u8, calls: &[(Call, Bits)], abort: bool) {
    // SAFETY: `qp` is null or live, and `wr_start` is followed by `wr_complete` or `wr_abort`.
    unsafe {
        let qp = ibv_qp_to_qp_ex(harness.pick(qp));
        if qp.is_null() {
            return;
        }
        let (Some(start), Some(complete), Some(abort_calls)) =
            ((*qp).wr_start, (*qp).wr_complete, (*qp).wr_abort)
        else {
            return;
        };
        start(qp);
        let mut ids = Vec::new();
        for (call, flags) in calls {
            let id = harness.new_id();
            ids.push(id);
            (&raw mut (*qp).wr_id).write(id);
            (&raw mut (*qp).wr_flags).write(flags.get());
            call.call(harness, qp);
        }
        if abort {
            abort_calls(qp);
        } else if check_status("ibv_wr_complete", complete(qp)) {
            for id in ids {
                harness.posted(id);
            }
        }
    }
}

impl Call {
    /// # Safety
    /// `qp` must be live and between `wr_start` and `wr_complete`.
    unsafe fn call(&self, harness: &Harness, qp: *mut ibv_qp_ex) {
        // Each function takes the queue pair first. Functions that are not provided are skipped.
        macro_rules! call {
            ($name:ident $(, $argument:expr)*) => {
                if let Some(function) = (*qp).$name {
                    function(qp $(, $argument)*);
                }
            };
        }
        let buffer = |place: &Place, length: &Length| ibv_data_buf {
            addr: ptr::with_exposed_provenance_mut(place.readable(harness) as usize),
            length: length.get() as usize,
        };
        // SAFETY: `qp` is live, as the section Safety requires, and the lists outlive their calls.
        unsafe {
            match self {
                Call::Send => call!(wr_send),
                Call::SendImm(imm) => call!(wr_send_imm, *imm),
                Call::SendInv(key) => call!(wr_send_inv, key.get(harness)),
                Call::LocalInv(key) => call!(wr_local_inv, key.get(harness)),
                Call::BindMw { mw, key, range } => {
                    let info = range.to_verbs(harness);
                    call!(
                        wr_bind_mw,
                        harness.pick(*mw),
                        key.get(harness),
                        &raw const info
                    );
                }
                Call::Write(to) => call!(wr_rdma_write, to.get(harness).1, to.get(harness).0),
                Call::WriteImm(to, imm) => {
                    call!(
                        wr_rdma_write_imm,
                        to.get(harness).1,
                        to.get(harness).0,
                        *imm
                    );
                }
                Call::Read(from) => call!(wr_rdma_read, from.get(harness).1, from.get(harness).0),
                Call::CompareSwap(at, compare, swap) => {
                    let (addr, key) = at.get(harness);
                    call!(wr_atomic_cmp_swp, key, addr, *compare, *swap);
                }
                Call::FetchAdd(at, add) => {
                    call!(
                        wr_atomic_fetch_add,
                        at.get(harness).1,
                        at.get(harness).0,
                        *add
                    );
                }
                Call::AtomicWrite(at, value) => {
                    let (addr, key) = at.get(harness);
                    call!(wr_atomic_write, key, addr, value.as_ptr().cast());
                }
                Call::Flush(at, length, kind, level) => {
                    let ((addr, key), length) = (at.get(harness), length.get() as usize);
                    call!(wr_flush, key, addr, length, *kind, *level);
                }
                Call::Datagram(to) => {
                    let to = to.to_verbs(harness);
                    call!(wr_set_ud_addr, to.ah, to.remote_qpn, to.remote_qkey);
                }
                Call::Srq(srq) => call!(wr_set_xrc_srqn, srq_number(harness, *srq)),
                Call::Sge(element) => {
                    let sge = element.to_verbs(harness, false);
                    call!(wr_set_sge, sge.lkey, sge.addr, sge.length);
                }
                Call::Sges(elements) => {
                    let list: Vec<_> = elements
                        .iter()
                        .map(|e| e.to_verbs(harness, false))
                        .collect();
                    call!(wr_set_sge_list, list.len(), list.as_ptr());
                }
                Call::Inline(place, length) => {
                    let buffer = buffer(place, length);
                    call!(wr_set_inline_data, buffer.addr, buffer.length);
                }
                Call::Inlines(buffers) => {
                    let list: Vec<_> = buffers.iter().map(|(at, len)| buffer(at, len)).collect();
                    call!(wr_set_inline_data_list, list.len(), list.as_ptr());
                }
            }
        }
    }
}

/// The highest completion status.
const LAST_STATUS: ibv_wc_status = IBV_WC_TM_RNDV_INCOMPLETE;

/// # Safety
/// All objects of `harness` must be live.
unsafe fn poll(harness: &mut Harness, cq: u8, count: i8) {
    let Some(poll) = harness.ops().context.ops.poll_cq else {
        return;
    };
    let mut completions = vec![ibv_wc::zeroed(); usize::from(count.unsigned_abs())];
    // SAFETY: the queue is null or live, and `completions` has `|count|` elements.
    let got = unsafe { poll(harness.pick(cq), count.into(), completions.as_mut_ptr()) };
    if check_errno("ibv_poll_cq", got) {
        assert!(got <= count.into());
        for completion in &completions[..got as usize] {
            assert!(completion.status <= LAST_STATUS);
            harness.completed(completion.wr_id);
        }
    }
}

/// # Safety
/// All objects of `harness` must be live.
unsafe fn poll_ex(harness: &mut Harness, cq: u8, count: u8, mask: Option<u32>) {
    let cq = harness.pick::<ibv_cq>(cq).cast::<ibv_cq_ex>();
    let mut attr = ibv_poll_cq_attr {
        comp_mask: mask.unwrap_or(0),
    };
    // SAFETY: the queue is null or live, and every queue of urxe is an extended one. `start_poll`
    // is followed by `end_poll` if it succeeds.
    unsafe {
        if cq.is_null() {
            return;
        }
        let (Some(start), Some(next), Some(end)) =
            ((*cq).start_poll, (*cq).next_poll, (*cq).end_poll)
        else {
            return;
        };
        if !check_status("ibv_start_poll", start(cq, &raw mut attr)) {
            return;
        }
        for _ in 0..count {
            assert!((&raw const (*cq).status).read() <= LAST_STATUS);
            harness.completed((&raw const (*cq).wr_id).read());
            (*cq).read_opcode.map(|read| read(cq));
            (*cq).read_byte_len.map(|read| read(cq));
            (*cq).read_imm_data.map(|read| read(cq));
            (*cq).read_qp_num.map(|read| read(cq));
            (*cq).read_wc_flags.map(|read| read(cq));
            (*cq).read_completion_ts.map(|read| read(cq));
            (*cq).read_completion_wallclock_ns.map(|read| read(cq));
            if !check_status("ibv_next_poll", next(cq)) {
                break;
            }
        }
        end(cq);
    }
}
