//! Generates packets and work requests from an input.

use super::input::{Arrival, OWN_QPN, PEER_QPN, QKEY, Send, Service, key, local_key};
use crate::host::{LOCAL, SRQ, base};
use urxe_proto::host::{Access, WindowBind};
use urxe_proto::ids::{LKey, PKey, QKey, RKey, Srqn};
use urxe_proto::qp::QpAttr;
use urxe_proto::wire::{
    Aeth, AtomicEth, Deth, Feth, Header, Headers, Opcode, Operation, PayloadRule, Reth, Syndrome,
    Xrceth,
};
use urxe_proto::work::{Destination, SendFlags, SendOp, Sge, UdDestination};

impl Arrival {
    /// Returns the packet for a queue pair with the attributes `attr`.
    pub(super) fn packet(&self, service: Service, attr: &QpAttr) -> (Header, Vec<u8>) {
        let mtu = attr.path_mtu.bytes();
        let of_service = |opcode: &Opcode| {
            let info = opcode.info();
            service.has(info.transport) && info.operation != Operation::Reserved
        };
        let opcodes = || Opcode::all().filter(of_service);
        let opcode = match self.opcode {
            // Any opcode, including reserved ones and those of other transports.
            250.. => {
                Opcode::all().nth(usize::from(self.psn.unsigned_abs()) % Opcode::all().count())
            }
            n => opcodes().nth(usize::from(n) % opcodes().count()),
        };
        let opcode = opcode.expect("the index is less than the number of opcodes");
        let info = opcode.info();
        let expected = match info.operation.is_request() {
            true => attr.rq_psn,
            false => attr.sq_psn,
        };
        let psn = match self.psn {
            i8::MIN => expected + (1 << 23),
            0.. => expected + u32::from(self.psn.unsigned_abs() / 16),
            _ => expected - u32::from(self.psn.unsigned_abs() / 2),
        };
        let mut header = Header::new(opcode, OWN_QPN, psn)
            .with_ack_req(self.flags & 1 != 0)
            .with_solicited(self.flags & 2 != 0);
        if self.flags & 0xf0 == 0xf0 {
            header.bth.pkey = PKey(self.number as u16);
        }
        let rkey = RKey(key(self.key));
        let addr = base(rkey.0).wrapping_add(self.offset.get());
        let length = self.length.get(mtu);
        let has = info.headers;
        if has.contains(Headers::DETH) {
            let qkey = match self.flags & 0x0c {
                0 => QKey(self.number as u32),
                _ => QKEY,
            };
            header = header.with_deth(Deth {
                qkey,
                src_qp: PEER_QPN,
            });
        }
        if has.contains(Headers::XRCETH) {
            let srqn = match self.flags & 0x0c {
                0 => Srqn::new(self.number as u32),
                _ => SRQ,
            };
            header = header.with_xrceth(Xrceth { srqn });
        }
        if has.contains(Headers::RETH) {
            header = header.with_reth(Reth { addr, rkey, length });
        }
        if has.contains(Headers::FETH) {
            header = header.with_feth(Feth::from_bits_truncate(self.number as u32 as _));
        }
        if has.contains(Headers::ATOMIC_ETH) {
            header = header.with_atomic(AtomicEth {
                addr,
                rkey,
                swap_or_add: self.number,
                compare: self.number.rotate_left(7),
            });
        }
        if has.contains(Headers::AETH) {
            header = header.with_aeth(Aeth {
                syndrome: Syndrome::from_byte(self.syndrome),
                msn: self.msn.into(),
            });
        }
        if has.contains(Headers::ATOMIC_ACK_ETH) {
            header = header.with_atomic_ack(self.number);
        }
        if has.contains(Headers::IMMDT) {
            header = header.with_imm(self.number as u32);
        }
        if has.contains(Headers::IETH) {
            header = header.with_ieth(rkey);
        }
        let len = match info.payload {
            PayloadRule::None => 0,
            PayloadRule::FullMtu if self.flags & 0x40 == 0 => mtu,
            _ => self.payload.get(mtu) as usize % (2 * mtu + 1),
        };
        (header, vec![self.number as u8; len])
    }
}

impl Send {
    /// Returns the operation.
    pub(super) fn op(&self, mtu: usize) -> SendOp {
        let rkey = RKey(key(self.key));
        let addr = base(rkey.0).wrapping_add(self.remote.get());
        let number = self.number;
        let (imm, len) = (number as u32, self.lengths[0].get(mtu));
        match self.op % 12 {
            0 => SendOp::Send,
            1 => SendOp::SendImm(imm),
            2 => SendOp::SendInv(rkey),
            3 => SendOp::Write { addr, rkey },
            4 => SendOp::WriteImm { addr, rkey, imm },
            5 => SendOp::Read { addr, rkey },
            6 => SendOp::CompareSwap {
                addr,
                rkey,
                compare: number,
                swap: !number,
            },
            7 => SendOp::FetchAdd {
                addr,
                rkey,
                add: number,
            },
            8 => SendOp::AtomicWrite {
                addr,
                rkey,
                value: number.to_ne_bytes(),
            },
            9 => SendOp::Flush {
                addr,
                rkey,
                len,
                how: Feth::from_bits_truncate(imm as _),
            },
            10 => SendOp::BindMw(WindowBind {
                window: rkey,
                new_key: rkey,
                region: LKey(LOCAL),
                addr,
                len: len.into(),
                access: Access::REMOTE_READ,
            }),
            _ => SendOp::LocalInv(rkey),
        }
    }

    /// Returns the memory elements; the work request uses the first 0 to 2 of them.
    pub(super) fn sges(&self, mtu: usize) -> [Sge; 2] {
        let lkey = LKey(local_key(self.key));
        self.lengths.map(|length| Sge {
            addr: base(lkey.0).wrapping_add(self.offset.get()),
            length: length.get(mtu),
            lkey,
        })
    }

    /// Returns the destination, for services whose work requests have one.
    pub(super) fn destination(&self, service: Service) -> Option<Destination> {
        match service {
            Service::XrcInitiator => Some(Destination::Shared(SRQ)),
            Service::Ud => Some(Destination::Datagram(UdDestination {
                handle: self.number % 3,
                qpn: PEER_QPN,
                qkey: QKEY,
            })),
            _ => None,
        }
    }

    /// Returns the flags without INLINE, which the payload implies.
    pub(super) fn flags(&self) -> SendFlags {
        SendFlags::from_bits_truncate(self.flags.into()) - SendFlags::INLINE
    }
}
