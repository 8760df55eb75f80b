//! A type for all messages, and conversion from and to MADs.

use super::ip::requested_address;
use super::mad::{Attribute, LEN, Mad, MadError, MadHeader};
use super::{
    Apr, Drep, Dreq, Ece, Lap, Mra, Rej, RejectReason, Rep, Req, Rtu, ServiceId, SidrRep, SidrReq,
};
use crate::ids::Gid;
use crate::wire::Layout;

/// The addressee of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Addressee {
    /// The communication with this ID.
    CommId(u32),
    /// The listener for this service.
    Service(ServiceId),
    /// A communication identified by the sender only: the sender never learned its ID.
    AnyProcess,
}

/// A message of communication management.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "each variant is the message of its name")]
pub enum Message {
    Req(Req),
    Mra(Mra),
    Rej(Rej),
    Rep(Rep),
    Rtu(Rtu),
    Dreq(Dreq),
    Drep(Drep),
    SidrReq(SidrReq),
    SidrRep(SidrRep),
    Lap(Lap),
    Apr(Apr),
}

/// Whether a message fills its MAD.
const fn fills<L: Layout>() -> bool {
    MadHeader::LEN + size_of::<L::Raw>() == LEN
}

const _: () = assert!(
    fills::<Req>()
        && fills::<Mra>()
        && fills::<Rej>()
        && fills::<Rep>()
        && fills::<Rtu>()
        && fills::<Dreq>()
        && fills::<Drep>()
        && fills::<SidrReq>()
        && fills::<SidrRep>()
        && fills::<Lap>()
        && fills::<Apr>()
);

impl Message {
    /// Parses a MAD; returns its transaction ID and the message.
    ///
    /// # Errors
    /// [`MadError`] when `bytes` are not a MAD of communication management.
    pub fn parse(bytes: &[u8]) -> Result<(u64, Message), MadError> {
        let (header, body) = MadHeader::parse(bytes)?;
        let message = match header.attribute {
            Attribute::Req => read(body).map(Message::Req),
            Attribute::Mra => read(body).map(Message::Mra),
            Attribute::Rej => read(body).map(Message::Rej),
            Attribute::Rep => read(body).map(Message::Rep),
            Attribute::Rtu => read(body).map(Message::Rtu),
            Attribute::Dreq => read(body).map(Message::Dreq),
            Attribute::Drep => read(body).map(Message::Drep),
            Attribute::SidrReq => read(body).map(Message::SidrReq),
            Attribute::SidrRep => read(body).map(Message::SidrRep),
            Attribute::Lap => read(body).map(Message::Lap),
            Attribute::Apr => read(body).map(Message::Apr),
        };
        let mut message = message.ok_or(MadError::Length(bytes.len()))?;
        if let Some(ece) = message.ece_mut() {
            ece.options = header.modifier;
        }
        Ok((header.transaction, message))
    }

    /// The vendor options, of which a part is in the MAD header.
    fn ece_mut(&mut self) -> Option<&mut Ece> {
        match self {
            Message::Req(req) => Some(&mut req.ece),
            Message::Rep(rep) => Some(&mut rep.ece),
            _ => None,
        }
    }

    /// The attribute modifier of the MAD.
    fn modifier(&self) -> u32 {
        match self {
            Message::Req(req) => req.ece.options,
            Message::Rep(rep) => rep.ece.options,
            _ => 0,
        }
    }

    /// The message type.
    pub fn attribute(&self) -> Attribute {
        match self {
            Message::Req(_) => Attribute::Req,
            Message::Mra(_) => Attribute::Mra,
            Message::Rej(_) => Attribute::Rej,
            Message::Rep(_) => Attribute::Rep,
            Message::Rtu(_) => Attribute::Rtu,
            Message::Dreq(_) => Attribute::Dreq,
            Message::Drep(_) => Attribute::Drep,
            Message::SidrReq(_) => Attribute::SidrReq,
            Message::SidrRep(_) => Attribute::SidrRep,
            Message::Lap(_) => Attribute::Lap,
            Message::Apr(_) => Attribute::Apr,
        }
    }

    /// The addressee, as far as the message identifies it.
    pub fn addressee(&self) -> Addressee {
        match self {
            Message::Req(message) => Addressee::Service(message.service),
            Message::SidrReq(message) => Addressee::Service(message.service),
            Message::Rej(message)
                if message.reason == RejectReason::TIMEOUT && message.remote_comm_id == 0 =>
            {
                Addressee::AnyProcess
            }
            Message::Rej(message) => Addressee::CommId(message.remote_comm_id),
            Message::Mra(message) => Addressee::CommId(message.remote_comm_id),
            Message::Rep(message) => Addressee::CommId(message.remote_comm_id),
            Message::Rtu(message) => Addressee::CommId(message.remote_comm_id),
            Message::Dreq(message) => Addressee::CommId(message.remote_comm_id),
            Message::Drep(message) => Addressee::CommId(message.remote_comm_id),
            Message::SidrRep(message) => Addressee::CommId(message.request_id),
            Message::Lap(message) => Addressee::CommId(message.remote_comm_id),
            Message::Apr(message) => Addressee::CommId(message.remote_comm_id),
        }
    }

    /// The local address that a message from `remote` to `local` is for; see [`requested_address`].
    pub fn requested_address(&self, local: Gid, remote: Gid) -> Gid {
        match self {
            Message::Req(message) => requested_address(local, remote, &message.private_data),
            Message::SidrReq(message) => requested_address(local, remote, &message.private_data),
            _ => local,
        }
    }

    /// Returns the MAD of the message.
    pub fn to_mad(&self, transaction: u64) -> Mad {
        let mut mad = [0; LEN];
        let header = MadHeader {
            attribute: self.attribute(),
            transaction,
            modifier: self.modifier(),
        };
        header.emit(&mut mad);
        let body = &mut mad[MadHeader::LEN..];
        match self {
            Message::Req(message) => message.emit(body),
            Message::Mra(message) => message.emit(body),
            Message::Rej(message) => message.emit(body),
            Message::Rep(message) => message.emit(body),
            Message::Rtu(message) => message.emit(body),
            Message::Dreq(message) => message.emit(body),
            Message::Drep(message) => message.emit(body),
            Message::SidrReq(message) => message.emit(body),
            Message::SidrRep(message) => message.emit(body),
            Message::Lap(message) => message.emit(body),
            Message::Apr(message) => message.emit(body),
        }
        mad
    }
}

fn read<L: Layout>(body: &[u8]) -> Option<L> {
    L::parse(body).map(|(message, _)| message)
}
