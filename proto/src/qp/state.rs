//! Services and states.

use crate::work::SendOp;

/// The transport service of a queue pair (9.7, 9.8).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum QpType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// The initiator of an extended reliable connection (annex A14).
    XrcIni,
    /// The target of an extended reliable connection (annex A14).
    XrcTgt,
    /// Raw Ethernet frames. The specification does not define this service; its states are the
    /// same.
    RawPacket,
}

impl QpType {
    /// Whether queue pairs of this type support the operation (9.4; A14, A19).
    pub const fn supports(self, op: SendOp) -> bool {
        match self {
            Self::Rc => true,
            // XRC has no opcodes for the operations of A19.
            Self::XrcIni => !op.has_empty_response(),
            Self::XrcTgt => false,
            Self::Uc => {
                let is_send = matches!(op, SendOp::Send | SendOp::SendImm(_));
                let is_write = matches!(op, SendOp::Write { .. } | SendOp::WriteImm { .. });
                is_send || is_write || op.is_local()
            }
            Self::Ud => matches!(op, SendOp::Send | SendOp::SendImm(_)),
            Self::RawPacket => matches!(op, SendOp::Send),
        }
    }
}

/// The states of a queue pair (10.3.1); the numbers of `enum ibv_qp_state`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u32)]
pub enum QpState {
    /// Initial state: nothing is queued, sent or received.
    #[default]
    Reset = 0,
    /// Receives may be posted.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Send queue drained: new send work requests are not started.
    Sqd = 4,
    /// Send queue error, of unreliable services.
    Sqe = 5,
    /// Error: all outstanding work requests are flushed.
    Err = 6,
}

impl QpState {
    /// All states, in numerical order.
    pub const ALL: [QpState; 7] = [
        Self::Reset,
        Self::Init,
        Self::Rtr,
        Self::Rts,
        Self::Sqd,
        Self::Sqe,
        Self::Err,
    ];

    /// Returns the state with this `enum ibv_qp_state` number.
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.get(number as usize).copied()
    }

    /// Whether receives may be posted.
    pub const fn accepts_receives(self) -> bool {
        !matches!(self, Self::Reset)
    }

    /// Whether sends may be posted.
    pub const fn accepts_sends(self) -> bool {
        matches!(self, Self::Rts | Self::Sqd | Self::Sqe | Self::Err)
    }

    /// Whether incoming packets are processed.
    pub const fn handles_packets(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe)
    }

    /// Whether request packets are sent. In SQD this applies only to work requests already started.
    pub const fn initiates(self) -> bool {
        matches!(self, Self::Rts | Self::Sqd)
    }

    /// Whether send work requests are flushed when posted.
    pub const fn flushes_sends(self) -> bool {
        matches!(self, Self::Sqe | Self::Err)
    }

    /// Whether receives are flushed when posted.
    pub const fn flushes_receives(self) -> bool {
        matches!(self, Self::Err)
    }
}
