//! The transition table: for each transition and service, the required and the optional attributes
//! (10.3.1, 11.2.4.2, table 91).

use super::mask::AttrMask;
use super::state::{QpState, QpType};

/// Why a change of state or attributes was refused. Verbs programs get EINVAL.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransitionError {
    /// The queue pair is not in the state that the call gives as the current one.
    #[error("the queue pair is in state {actual:?}, not in {claimed:?}")]
    NotInState {
        /// The state of the queue pair.
        actual: QpState,
        /// The state that the call gave.
        claimed: QpState,
    },
    /// The transition does not exist.
    #[error("there is no transition from {from:?} to {to:?}")]
    Illegal {
        /// The current state.
        from: QpState,
        /// The requested state.
        to: QpState,
    },
    /// The transition requires these attributes.
    #[error("the transition requires {0:?}")]
    Missing(AttrMask),
    /// The transition does not permit these attributes.
    #[error("the transition does not permit {0:?}")]
    Unexpected(AttrMask),
    /// The value of an attribute is out of range.
    #[error("{0:?} is out of range")]
    OutOfRange(AttrMask),
    /// No alternate path is loaded (17.2.8).
    #[error(
        "there is no alternate path for REARM: load one before or with this call, and again after \
         each migration"
    )]
    NoAlternatePath,
    /// The migration state is not ARMED (17.2.8).
    #[error(
        "a connection migrates only from ARMED: it stays in REARM until its peer is in REARM too"
    )]
    NotArmed,
    /// Only the peer can cause the transition to ARMED (17.2.8).
    #[error("a program cannot set ARMED: set REARM, and the peer's next packet leads to ARMED")]
    ArmedByProgram,
}

type Row = (QpState, QpState, &'static [(QpType, AttrMask, AttrMask)]);

const NONE: AttrMask = AttrMask::empty();

/// The union of attribute masks, as a constant expression.
const fn all<const N: usize>(bits: [AttrMask; N]) -> AttrMask {
    let mut union = NONE;
    let mut i = 0;
    while i < N {
        union = union.union(bits[i]);
        i += 1;
    }
    union
}

const CONNECT: AttrMask = all([
    AttrMask::AV,
    AttrMask::PATH_MTU,
    AttrMask::DEST_QPN,
    AttrMask::RQ_PSN,
]);
const RESPOND: AttrMask = all([AttrMask::MAX_DEST_RD_ATOMIC, AttrMask::MIN_RNR_TIMER]);
const REQUEST: AttrMask = all([
    AttrMask::TIMEOUT,
    AttrMask::RETRY_CNT,
    AttrMask::RNR_RETRY,
    AttrMask::SQ_PSN,
    AttrMask::MAX_QP_RD_ATOMIC,
]);
const PLACE_CONNECTED: AttrMask =
    all([AttrMask::PKEY_INDEX, AttrMask::PORT, AttrMask::ACCESS_FLAGS]);
const PLACE_DATAGRAM: AttrMask = all([AttrMask::PKEY_INDEX, AttrMask::PORT, AttrMask::QKEY]);
const PATHS: AttrMask = all([
    AttrMask::ALT_PATH,
    AttrMask::ACCESS_FLAGS,
    AttrMask::PKEY_INDEX,
]);
const RUNNING_UD: AttrMask = all([AttrMask::CUR_STATE, AttrMask::QKEY]);
const RUNNING: AttrMask = all([
    AttrMask::CUR_STATE,
    AttrMask::ALT_PATH,
    AttrMask::ACCESS_FLAGS,
    AttrMask::PATH_MIG_STATE,
]);
const RUNNING_RESPONDER: AttrMask = all([RUNNING, AttrMask::MIN_RNR_TIMER]);
const DRAINED: AttrMask = all([AttrMask::AV, PATHS, AttrMask::PATH_MIG_STATE]);
const DRAINED_REQUESTER: AttrMask = all([
    DRAINED,
    AttrMask::PORT,
    AttrMask::TIMEOUT,
    AttrMask::RETRY_CNT,
    AttrMask::RNR_RETRY,
    AttrMask::MAX_QP_RD_ATOMIC,
]);
const DRAINED_RESPONDER: AttrMask = all([DRAINED, AttrMask::PORT, AttrMask::TIMEOUT, RESPOND]);

/// From, to, and for each service the required and optional attributes.
///
/// A service without an entry does not have the transition. Transitions to RESET and ERR take no
/// attributes and are not in the table.
const TABLE: &[Row] = {
    use QpState::*;
    use QpType::*;
    &[
        (
            Reset,
            Init,
            &[
                (Rc, PLACE_CONNECTED, NONE),
                (Uc, PLACE_CONNECTED, NONE),
                (Ud, PLACE_DATAGRAM, NONE),
                (XrcIni, PLACE_CONNECTED, NONE),
                (XrcTgt, PLACE_CONNECTED, NONE),
                (RawPacket, AttrMask::PORT, NONE),
            ],
        ),
        (
            Init,
            Init,
            &[
                (Rc, NONE, PLACE_CONNECTED),
                (Uc, NONE, PLACE_CONNECTED),
                (Ud, NONE, PLACE_DATAGRAM),
                (XrcIni, NONE, PLACE_CONNECTED),
                (XrcTgt, NONE, PLACE_CONNECTED),
                (RawPacket, NONE, AttrMask::PORT),
            ],
        ),
        (
            Init,
            Rtr,
            &[
                (Rc, all([CONNECT, RESPOND]), PATHS),
                (Uc, CONNECT, PATHS),
                (Ud, NONE, all([AttrMask::PKEY_INDEX, AttrMask::QKEY])),
                (XrcIni, CONNECT, PATHS),
                (XrcTgt, all([CONNECT, RESPOND]), PATHS),
                (RawPacket, NONE, NONE),
            ],
        ),
        (
            Rtr,
            Rts,
            &[
                (Rc, REQUEST, RUNNING_RESPONDER),
                (Uc, AttrMask::SQ_PSN, RUNNING),
                (Ud, AttrMask::SQ_PSN, RUNNING_UD),
                (XrcIni, REQUEST, RUNNING),
                (
                    XrcTgt,
                    all([AttrMask::TIMEOUT, AttrMask::SQ_PSN]),
                    RUNNING_RESPONDER,
                ),
                (RawPacket, NONE, AttrMask::CUR_STATE),
            ],
        ),
        (
            Rts,
            Rts,
            &[
                (Rc, NONE, RUNNING_RESPONDER),
                (Uc, NONE, RUNNING),
                (Ud, NONE, RUNNING_UD),
                (XrcIni, NONE, RUNNING),
                (XrcTgt, NONE, RUNNING_RESPONDER),
                (RawPacket, NONE, AttrMask::CUR_STATE),
            ],
        ),
        (
            Rts,
            Sqd,
            &[
                (Rc, NONE, AttrMask::EN_SQD_ASYNC_NOTIFY),
                (Uc, NONE, AttrMask::EN_SQD_ASYNC_NOTIFY),
                (Ud, NONE, AttrMask::EN_SQD_ASYNC_NOTIFY),
                (XrcIni, NONE, AttrMask::EN_SQD_ASYNC_NOTIFY),
                (XrcTgt, NONE, AttrMask::EN_SQD_ASYNC_NOTIFY),
                (RawPacket, NONE, AttrMask::EN_SQD_ASYNC_NOTIFY),
            ],
        ),
        (
            Sqd,
            Rts,
            &[
                (Rc, NONE, RUNNING_RESPONDER),
                (Uc, NONE, RUNNING),
                (Ud, NONE, RUNNING_UD),
                (XrcIni, NONE, RUNNING),
                (XrcTgt, NONE, RUNNING_RESPONDER),
                (RawPacket, NONE, AttrMask::CUR_STATE),
            ],
        ),
        (
            Sqd,
            Sqd,
            &[
                (Rc, NONE, all([DRAINED_REQUESTER, RESPOND])),
                (Uc, NONE, DRAINED),
                (Ud, NONE, all([AttrMask::PKEY_INDEX, AttrMask::QKEY])),
                (XrcIni, NONE, DRAINED_REQUESTER),
                (XrcTgt, NONE, DRAINED_RESPONDER),
                (RawPacket, NONE, NONE),
            ],
        ),
        (
            Sqe,
            Rts,
            &[
                (Uc, NONE, all([AttrMask::CUR_STATE, AttrMask::ACCESS_FLAGS])),
                (Ud, NONE, RUNNING_UD),
                (RawPacket, NONE, AttrMask::CUR_STATE),
            ],
        ),
    ]
};

/// Checks that a queue pair of `service` may go from `from` to `to` with the attributes in `mask`.
///
/// [`AttrMask::STATE`] is always permitted, and [`AttrMask::RATE_LIMIT`] in transitions to RTS.
///
/// # Errors
/// [`TransitionError::Illegal`], [`TransitionError::Missing`] or [`TransitionError::Unexpected`].
pub fn check_transition(
    service: QpType,
    from: QpState,
    to: QpState,
    mask: AttrMask,
) -> Result<(), TransitionError> {
    let given = mask.difference(AttrMask::STATE);
    let (required, optional) = attributes(service, from, to)?;
    let missing = required.difference(given);
    if !missing.is_empty() {
        return Err(TransitionError::Missing(missing));
    }
    let unexpected = given.difference(required.union(optional));
    if !unexpected.is_empty() {
        return Err(TransitionError::Unexpected(unexpected));
    }
    Ok(())
}

/// Returns the transitions from RESET to RTS: each new state with its required attributes.
///
/// [`AttrMask::STATE`] is included in each mask.
pub fn transitions_to_rts(service: QpType) -> [(QpState, AttrMask); 3] {
    use QpState::*;
    [(Reset, Init), (Init, Rtr), (Rtr, Rts)].map(|(from, to)| {
        let required = attributes(service, from, to).map_or(NONE, |(required, _)| required);
        (to, required | AttrMask::STATE)
    })
}

fn attributes(
    service: QpType,
    from: QpState,
    to: QpState,
) -> Result<(AttrMask, AttrMask), TransitionError> {
    let illegal = TransitionError::Illegal { from, to };
    match to {
        QpState::Reset => return Ok((NONE, NONE)),
        QpState::Err if from != QpState::Reset => return Ok((NONE, NONE)),
        _ => {}
    }
    let (_, _, services) = TABLE
        .iter()
        .find(|(f, t, _)| *f == from && *t == to)
        .ok_or(illegal)?;
    let (_, required, optional) = services
        .iter()
        .find(|(s, ..)| *s == service)
        .ok_or(illegal)?;
    let rate = if to == QpState::Rts {
        AttrMask::RATE_LIMIT
    } else {
        NONE
    };
    Ok((*required, optional.union(rate)))
}
