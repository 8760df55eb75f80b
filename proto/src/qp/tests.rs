//! Tests of the transition table against the specification.

use super::transition::check_transition;
use super::*;

const RC_INIT: AttrMask = AttrMask::PKEY_INDEX
    .union(AttrMask::PORT)
    .union(AttrMask::ACCESS_FLAGS);

#[test]
fn transitions_of_rc_from_reset_to_rts_and_back_are_legal() {
    let rtr = AttrMask::AV
        | AttrMask::PATH_MTU
        | AttrMask::DEST_QPN
        | AttrMask::RQ_PSN
        | AttrMask::MAX_DEST_RD_ATOMIC
        | AttrMask::MIN_RNR_TIMER;
    let rts = AttrMask::TIMEOUT
        | AttrMask::RETRY_CNT
        | AttrMask::RNR_RETRY
        | AttrMask::SQ_PSN
        | AttrMask::MAX_QP_RD_ATOMIC;
    let path = [
        (QpState::Reset, QpState::Init, RC_INIT),
        (QpState::Init, QpState::Rtr, rtr),
        (QpState::Rtr, QpState::Rts, rts),
        (QpState::Rts, QpState::Sqd, AttrMask::EN_SQD_ASYNC_NOTIFY),
        (QpState::Sqd, QpState::Rts, AttrMask::empty()),
        (QpState::Rts, QpState::Err, AttrMask::empty()),
        (QpState::Err, QpState::Reset, AttrMask::empty()),
    ];
    for (from, to, mask) in path {
        assert_eq!(
            check_transition(QpType::Rc, from, to, mask | AttrMask::STATE),
            Ok(())
        );
    }
    let way = [0, 1, 2].map(|step: usize| (path[step].1, path[step].2 | AttrMask::STATE));
    assert_eq!(transitions_to_rts(QpType::Rc), way);
}

#[test]
fn error_names_the_missing_attribute() {
    let mask = RC_INIT - AttrMask::PORT;
    let result = check_transition(QpType::Rc, QpState::Reset, QpState::Init, mask);
    assert_eq!(result, Err(TransitionError::Missing(AttrMask::PORT)));
}

#[test]
fn error_names_the_attribute_that_is_not_permitted() {
    let mask = RC_INIT | AttrMask::QKEY;
    let result = check_transition(QpType::Rc, QpState::Reset, QpState::Init, mask);
    assert_eq!(result, Err(TransitionError::Unexpected(AttrMask::QKEY)));
}

#[test]
fn error_is_reached_from_every_state_but_reset_and_reset_from_every_state() {
    for from in QpState::ALL {
        let none = AttrMask::empty();
        assert_eq!(
            check_transition(QpType::Rc, from, QpState::Reset, none),
            Ok(())
        );
        let to_error = check_transition(QpType::Rc, from, QpState::Err, none);
        assert_eq!(to_error.is_ok(), from != QpState::Reset, "{from:?}");
    }
}

#[test]
fn states_are_not_skipped() {
    use QpState::*;
    let legal = [
        (Reset, Init),
        (Init, Init),
        (Init, Rtr),
        (Rtr, Rts),
        (Rts, Rts),
        (Rts, Sqd),
        (Sqd, Rts),
        (Sqd, Sqd),
    ];
    for from in QpState::ALL {
        for to in QpState::ALL {
            if matches!(to, Reset | Err) {
                continue;
            }
            let result = check_transition(QpType::Rc, from, to, AttrMask::empty());
            let exists = !matches!(result, Result::Err(TransitionError::Illegal { .. }));
            assert_eq!(exists, legal.contains(&(from, to)), "{from:?} to {to:?}");
        }
    }
}

#[test]
fn send_queue_error_is_for_unreliable_services() {
    for (service, legal) in [(QpType::Rc, false), (QpType::Uc, true), (QpType::Ud, true)] {
        let result = check_transition(service, QpState::Sqe, QpState::Rts, AttrMask::empty());
        assert_eq!(result.is_ok(), legal);
    }
}

/// The permissions of each state, from RESET to ERR.
#[test]
fn permissions_of_each_state() {
    let row = |permits: fn(QpState) -> bool| QpState::ALL.map(|s| u8::from(permits(s)));
    assert_eq!(row(QpState::accepts_receives), [0, 1, 1, 1, 1, 1, 1]);
    assert_eq!(row(QpState::accepts_sends), [0, 0, 0, 1, 1, 1, 1]);
    assert_eq!(row(QpState::handles_packets), [0, 0, 1, 1, 1, 1, 0]);
    assert_eq!(row(QpState::initiates), [0, 0, 0, 1, 1, 0, 0]);
    assert_eq!(row(QpState::flushes_sends), [0, 0, 0, 0, 0, 1, 1]);
    assert_eq!(row(QpState::flushes_receives), [0, 0, 0, 0, 0, 0, 1]);
}
