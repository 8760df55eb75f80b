//! Posting work, and learning what came of it.

use super::values::{Bits, Element, Elements, Key, Length, Place, Range, Remote};
use super::world::{World, done, done_by_errno};
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
    /// By the functions of an extended queue pair, between the start and the end.
    Build {
        qp: u8,
        calls: Vec<(Call, Bits)>,
        abort: bool,
    },
    Poll {
        cq: u8,
        count: i8,
    },
    /// By the functions of an extended completion queue.
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

/// A request of a send queue.
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

/// Where a datagram goes.
#[derive(Arbitrary, Clone, Copy, Debug)]
pub(super) struct Datagram {
    ah: u8,
    qp: Result<u8, u32>,
    qkey: Option<u32>,
}

impl Datagram {
    fn shown(self, world: &World) -> ibv_send_wr_wr_ud {
        ibv_send_wr_wr_ud {
            ah: world.pick(self.ah),
            remote_qpn: match self.qp {
                // SAFETY: what is picked is null or lives.
                Ok(which) => unsafe {
                    world
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
fn srq_number(world: &World, srq: Result<u8, u32>) -> u32 {
    let mut number = 0;
    match srq {
        Ok(which) => {
            if let Some(get) = world.ops().get_srq_num {
                // SAFETY: null or a queue that lives, and room.
                done("ibv_get_srq_num", unsafe {
                    get(world.pick(which), &raw mut number)
                });
            }
            number
        }
        Err(number) => number,
    }
}

/// A call that builds a request, or says more of the last one.
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
    /// The request, but for where the next one is; its elements must outlive it.
    fn shown(
        &self,
        world: &World,
        id: u64,
        is_ud: bool,
        elements: &mut (Vec<ibv_sge>, i32),
    ) -> ibv_send_wr {
        let (addr, rkey) = self.remote.get(world);
        // SAFETY: numbers and pointers that may be null.
        let mut wr: ibv_send_wr = unsafe { std::mem::zeroed() };
        wr.wr_id = id;
        wr.send_flags = self.flags.get();
        wr.opcode = match self.opcode % 20 {
            // The ones that no library knows.
            19 => 0x1000 + u32::from(self.opcode),
            known => known.into(),
        };
        wr.imm.invalidate_rkey = self.key.get(world);
        wr.wr = match wr.opcode {
            // Where a datagram goes is a pointer, in the place of the others.
            _ if is_ud => ibv_send_wr_wr {
                ud: self.to.shown(world),
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
        wr.qp_type.xrc.remote_srqn = srq_number(world, self.srq);
        wr.ext.bind_mw = ibv_send_wr_ext_bind_mw {
            mw: world.pick(self.mw),
            rkey: self.key.get(world),
            bind_info: self.range.shown(world),
        };
        wr.sg_list = elements.0.as_mut_ptr();
        wr.num_sge = elements.1;
        wr
    }
}

impl Work {
    pub(super) fn tell(&self, world: &mut World) {
        // SAFETY: pointers are null, or objects that live, or structures that outlive the call.
        unsafe { self.make(world) };
    }

    unsafe fn make(&self, world: &mut World) {
        match self {
            // SAFETY: the caller's promise, as below.
            Work::Send { qp, requests } => unsafe { send(world, *qp, requests) },
            Work::Receive {
                queue,
                which,
                requests,
            } => {
                // SAFETY: as above.
                unsafe { receive(world, *queue, *which, requests) };
            }
            // SAFETY: as above.
            Work::Build { qp, calls, abort } => unsafe { build(world, *qp, calls, *abort) },
            // SAFETY: as above.
            Work::Poll { cq, count } => unsafe { poll(world, *cq, *count) },
            // SAFETY: as above.
            Work::PollEx { cq, count, mask } => unsafe { poll_ex(world, *cq, *count, *mask) },
            Work::Notify { cq, solicited } => {
                if let Some(notify) = world.ops().context.ops.req_notify_cq {
                    // SAFETY: as above.
                    let status = unsafe { notify(world.pick(*cq), (*solicited).into()) };
                    done("ibv_req_notify_cq", status);
                }
            }
            Work::CqEvent { channel } => {
                let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
                // SAFETY: as above; an event that was got is of a queue that lives, and acknowledged at once.
                unsafe {
                    let channel = world.pick(*channel);
                    let status = ibv_get_cq_event(channel, &raw mut cq, &raw mut context);
                    if done_by_errno("ibv_get_cq_event", status) {
                        ibv_ack_cq_events(cq, 1);
                    }
                }
            }
            Work::AsyncEvent { second } => {
                // SAFETY: numbers and a pointer; then as above.
                unsafe {
                    let mut event: ibv_async_event = std::mem::zeroed();
                    let status = ibv_get_async_event(world.context(*second), &raw mut event);
                    if done_by_errno("ibv_get_async_event", status) {
                        ibv_ack_async_event(&raw mut event);
                    }
                }
            }
        }
    }
}

/// Makes a list of `all`, of which each names the next.
fn chain<W>(all: &mut [W], next: impl Fn(&mut W, *mut W)) -> *mut W {
    let first = all.as_mut_ptr();
    for index in 1..all.len() {
        // SAFETY: both are within the slice.
        unsafe { next(&mut *first.add(index - 1), first.add(index)) };
    }
    match all.is_empty() {
        true => ptr::null_mut(),
        false => first,
    }
}

/// Takes note of those that were posted: all, or those before the one to blame.
fn note<W>(world: &mut World, all: &[W], id: impl Fn(&W) -> u64, status: i32, bad: *mut W) {
    let posted = match status {
        0 => all.len(),
        _ if all.is_empty() => 0,
        _ => all
            .iter()
            .position(|wr| ptr::eq(wr, bad))
            .unwrap_or_else(|| panic!("nobody is to blame for status {status}")),
    };
    for wr in &all[..posted] {
        world.posted(id(wr));
    }
}

unsafe fn send(world: &mut World, qp: u8, requests: &[Request]) {
    let qp = world.pick::<ibv_qp>(qp);
    // SAFETY: what is picked is null or lives.
    let is_ud = unsafe { qp.as_ref() }.is_some_and(|qp| qp.qp_type == IBV_QPT_UD);
    let mut elements: Vec<_> = requests
        .iter()
        .map(|request| {
            let own = request.flags.get() & IBV_SEND_INLINE != 0;
            request.elements.shown(world, own)
        })
        .collect();
    let mut all = Vec::new();
    for (request, elements) in requests.iter().zip(&mut elements) {
        let id = world.new_id();
        all.push(request.shown(world, id, is_ud, elements));
    }
    let first = chain(&mut all, |wr, next| wr.next = next);
    let mut bad = ptr::null_mut();
    let Some(post) = world.ops().context.ops.post_send else {
        return;
    };
    // SAFETY: the caller's promise.
    let status = unsafe { post(qp, first, &raw mut bad) };
    done("ibv_post_send", status);
    note(world, &all, |wr| wr.wr_id, status, bad);
}

unsafe fn receive(world: &mut World, queue: u8, which: u8, requests: &[Elements]) {
    let mut elements: Vec<_> = requests.iter().map(|e| e.shown(world, false)).collect();
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
        wr.wr_id = world.new_id();
    }
    let first = chain(&mut all, |wr, next| wr.next = next);
    let mut bad = ptr::null_mut();
    let ops = world.ops().context.ops;
    // SAFETY: the caller's promise.
    let status = unsafe {
        match queue % 3 {
            0 => ops
                .post_recv
                .map(|post| post(world.pick(which), first, &raw mut bad)),
            1 => ops
                .post_srq_recv
                .map(|post| post(world.pick(which), first, &raw mut bad)),
            _ => {
                let wq = world.pick::<ibv_wq>(which);
                let post = wq.as_ref().and_then(|wq| wq.post_recv);
                post.map(|post| post(wq, first, &raw mut bad))
            }
        }
    };
    if let Some(status) = status {
        done("a call that posts receives", status);
        note(world, &all, |wr| wr.wr_id, status, bad);
    }
}

unsafe fn build(world: &mut World, qp: u8, calls: &[(Call, Bits)], abort: bool) {
    // SAFETY: the caller's promise; what begins with the start ends before this returns.
    unsafe {
        let qp = ibv_qp_to_qp_ex(world.pick(qp));
        if qp.is_null() {
            return;
        }
        let (Some(start), Some(complete), Some(give_up)) =
            ((*qp).wr_start, (*qp).wr_complete, (*qp).wr_abort)
        else {
            return;
        };
        start(qp);
        let mut ids = Vec::new();
        for (call, flags) in calls {
            let id = world.new_id();
            ids.push(id);
            (&raw mut (*qp).wr_id).write(id);
            (&raw mut (*qp).wr_flags).write(flags.get());
            call.make(world, qp);
        }
        if abort {
            give_up(qp);
        } else if done("ibv_wr_complete", complete(qp)) {
            for id in ids {
                world.posted(id);
            }
        }
    }
}

impl Call {
    unsafe fn make(&self, world: &World, qp: *mut ibv_qp_ex) {
        // Each function takes the queue pair first; one that is not there is not called.
        macro_rules! call {
            ($name:ident $(, $argument:expr)*) => {
                if let Some(function) = (*qp).$name {
                    function(qp $(, $argument)*);
                }
            };
        }
        let piece = |place: &Place, length: &Length| ibv_data_buf {
            addr: ptr::with_exposed_provenance_mut(place.own(world) as usize),
            length: length.get() as usize,
        };
        // SAFETY: the caller's promise; the functions do not change.
        unsafe {
            match self {
                Call::Send => call!(wr_send),
                Call::SendImm(imm) => call!(wr_send_imm, *imm),
                Call::SendInv(key) => call!(wr_send_inv, key.get(world)),
                Call::LocalInv(key) => call!(wr_local_inv, key.get(world)),
                Call::BindMw { mw, key, range } => {
                    let info = range.shown(world);
                    call!(wr_bind_mw, world.pick(*mw), key.get(world), &raw const info);
                }
                Call::Write(to) => call!(wr_rdma_write, to.get(world).1, to.get(world).0),
                Call::WriteImm(to, imm) => {
                    call!(wr_rdma_write_imm, to.get(world).1, to.get(world).0, *imm);
                }
                Call::Read(from) => call!(wr_rdma_read, from.get(world).1, from.get(world).0),
                Call::CompareSwap(at, compare, swap) => {
                    let (addr, key) = at.get(world);
                    call!(wr_atomic_cmp_swp, key, addr, *compare, *swap);
                }
                Call::FetchAdd(at, add) => {
                    call!(wr_atomic_fetch_add, at.get(world).1, at.get(world).0, *add);
                }
                Call::AtomicWrite(at, value) => {
                    let (addr, key) = at.get(world);
                    call!(wr_atomic_write, key, addr, value.as_ptr().cast());
                }
                Call::Flush(at, length, kind, level) => {
                    let ((addr, key), length) = (at.get(world), length.get() as usize);
                    call!(wr_flush, key, addr, length, *kind, *level);
                }
                Call::Datagram(to) => {
                    let to = to.shown(world);
                    call!(wr_set_ud_addr, to.ah, to.remote_qpn, to.remote_qkey);
                }
                Call::Srq(srq) => call!(wr_set_xrc_srqn, srq_number(world, *srq)),
                Call::Sge(element) => {
                    let sge = element.shown(world, false);
                    call!(wr_set_sge, sge.lkey, sge.addr, sge.length);
                }
                Call::Sges(elements) => {
                    let list: Vec<_> = elements.iter().map(|e| e.shown(world, false)).collect();
                    call!(wr_set_sge_list, list.len(), list.as_ptr());
                }
                Call::Inline(place, length) => {
                    let piece = piece(place, length);
                    call!(wr_set_inline_data, piece.addr, piece.length);
                }
                Call::Inlines(pieces) => {
                    let list: Vec<_> = pieces.iter().map(|(at, len)| piece(at, len)).collect();
                    call!(wr_set_inline_data_list, list.len(), list.as_ptr());
                }
            }
        }
    }
}

/// The last status that there is.
const LAST: ibv_wc_status = IBV_WC_TM_RNDV_INCOMPLETE;

unsafe fn poll(world: &mut World, cq: u8, count: i8) {
    let Some(poll) = world.ops().context.ops.poll_cq else {
        return;
    };
    let mut completions = vec![ibv_wc::zeroed(); usize::from(count.unsigned_abs())];
    // SAFETY: the caller's promise; there is room for so many.
    let got = unsafe { poll(world.pick(cq), count.into(), completions.as_mut_ptr()) };
    if done_by_errno("ibv_poll_cq", got) {
        assert!(got <= count.into());
        for completion in &completions[..got as usize] {
            assert!(completion.status <= LAST);
            world.completed(completion.wr_id);
        }
    }
}

unsafe fn poll_ex(world: &mut World, cq: u8, count: u8, mask: Option<u32>) {
    let cq = world.pick::<ibv_cq>(cq).cast::<ibv_cq_ex>();
    let mut attr = ibv_poll_cq_attr {
        comp_mask: mask.unwrap_or(0),
    };
    // SAFETY: the caller's promise: every queue is an extended one; what is begun is ended.
    unsafe {
        if cq.is_null() {
            return;
        }
        let (Some(start), Some(next), Some(end)) =
            ((*cq).start_poll, (*cq).next_poll, (*cq).end_poll)
        else {
            return;
        };
        if !done("ibv_start_poll", start(cq, &raw mut attr)) {
            return;
        }
        for _ in 0..count {
            assert!((&raw const (*cq).status).read() <= LAST);
            world.completed((&raw const (*cq).wr_id).read());
            (*cq).read_opcode.map(|read| read(cq));
            (*cq).read_byte_len.map(|read| read(cq));
            (*cq).read_imm_data.map(|read| read(cq));
            (*cq).read_qp_num.map(|read| read(cq));
            (*cq).read_wc_flags.map(|read| read(cq));
            (*cq).read_completion_ts.map(|read| read(cq));
            (*cq).read_completion_wallclock_ns.map(|read| read(cq));
            if !done("ibv_next_poll", next(cq)) {
                break;
            }
        }
        end(cq);
    }
}
