//! Automatic path migration (17.2.8): a connection with an alternate path switches to it when the
//! primary path fails.
//!
//! Each side has a migration state and signals it in every packet: MigReq is 1 in MIGRATED and 0 in
//! REARM and ARMED. The program loads an alternate path and requests REARM. A packet with MigReq 0
//! shows that the peer has done so too, and the state becomes ARMED. In ARMED a connection migrates
//! in three cases: its program requests it, a packet with MigReq 1 arrives on the alternate path,
//! or its retries are exhausted. A connection that never loads an alternate path stays in MIGRATED
//! and ignores MigReq: Linux rxe always sends 0.

use super::{AttrMask, PathMigState, QpAttr, QpState, QpType, TransitionError};
use crate::host::{Completions, QpEvent};
use crate::ids::Gid;

/// The path migration state of a connection, apart from its attributes.
#[derive(Debug, Default)]
pub(crate) struct Migration {
    /// Whether an alternate path is loaded and has not become the primary path.
    loaded: bool,
    /// The peer's address on the previous path.
    ///
    /// Packets that the peer sent before it learned of the migration come from there. The peer's
    /// first packet on the new path clears it.
    previous_peer: Option<Gid>,
    /// Whether a migration request that cannot be followed has been reported.
    refusal_reported: bool,
    /// Whether the connection has migrated since the last [`Migration::take_migrated`].
    migrated: bool,
}

impl Migration {
    /// Like [`QpAttr::change`], with the rules and effects of path migration.
    ///
    /// # Errors
    /// [`TransitionError`]; nothing changes then.
    pub(crate) fn change<C: Completions>(
        &mut self,
        attr: &mut QpAttr,
        service: QpType,
        new: &QpAttr,
        mask: AttrMask,
        host: &mut C,
    ) -> Result<(QpState, QpState), TransitionError> {
        use PathMigState::*;
        let mut changed = *attr;
        let states = changed.change(service, new, mask)?;
        let loaded = self.loaded || mask.contains(AttrMask::ALT_PATH);
        if mask.contains(AttrMask::PATH_MIG_STATE) {
            match (attr.path_mig_state, new.path_mig_state) {
                (Migrated | Rearm, Armed) => return Err(TransitionError::ArmedByProgram),
                (Rearm, Migrated) => return Err(TransitionError::NotArmed),
                (_, Rearm) if !loaded => return Err(TransitionError::NoAlternatePath),
                _ => {}
            }
        }
        let before = std::mem::replace(attr, changed).path_mig_state;
        self.loaded = loaded;
        match (before, attr.path_mig_state) {
            (Armed, Migrated) => self.migrate(attr, host),
            (_, Rearm) => {
                self.previous_peer = None;
                self.refusal_reported = false;
            }
            _ => {}
        }
        Ok(states)
    }

    /// Whether `from` is an address of the peer, given the migration state.
    pub(crate) fn accepts_source(&self, attr: &QpAttr, from: Gid, mig_req: bool) -> bool {
        let armed = attr.path_mig_state == PathMigState::Armed;
        from == attr.av.dgid
            || self.previous_peer == Some(from)
            || armed && mig_req && from == attr.alt_av.dgid
    }

    /// Updates the migration state for an accepted packet. Returns whether the connection migrated.
    pub(crate) fn packet_accepted<C: Completions>(
        &mut self,
        attr: &mut QpAttr,
        from: Gid,
        mig_req: bool,
        host: &mut C,
    ) -> bool {
        match attr.path_mig_state {
            PathMigState::Migrated if mig_req && from == attr.av.dgid => self.previous_peer = None,
            PathMigState::Rearm if !mig_req => attr.path_mig_state = PathMigState::Armed,
            PathMigState::Armed if mig_req && from == attr.alt_av.dgid => {
                self.migrate(attr, host);
                // The peer migrated first, so it sends nothing more on the previous path.
                self.previous_peer = None;
                return true;
            }
            PathMigState::Armed if mig_req => self.report_refusal(attr, host),
            _ => {}
        }
        false
    }

    /// Reports, once, that the peer requests migration to a path that is not the alternate one.
    #[cold]
    pub(crate) fn report_refusal<C: Completions>(&mut self, attr: &QpAttr, host: &mut C) {
        let wanted = attr.path_mig_state != PathMigState::Migrated;
        if wanted && !std::mem::replace(&mut self.refusal_reported, true) {
            host.event(QpEvent::PathMigrationRefused);
        }
    }

    /// Migrates because the primary path failed. Returns false when there is no alternate path.
    pub(crate) fn fail_over<C: Completions>(&mut self, attr: &mut QpAttr, host: &mut C) -> bool {
        let armed = attr.path_mig_state == PathMigState::Armed;
        if armed {
            self.migrate(attr, host);
        }
        armed
    }

    /// Returns whether the connection has migrated since the last call; the caller must update its
    /// path.
    pub(crate) fn take_migrated(&mut self) -> bool {
        std::mem::take(&mut self.migrated)
    }

    /// Makes the alternate path the primary path.
    #[cold]
    fn migrate<C: Completions>(&mut self, attr: &mut QpAttr, host: &mut C) {
        self.previous_peer = Some(attr.av.dgid);
        attr.av = attr.alt_av;
        attr.pkey_index = attr.alt_pkey_index;
        attr.port = attr.alt_port;
        attr.timeout = attr.alt_timeout;
        attr.path_mig_state = PathMigState::Migrated;
        self.loaded = false;
        self.migrated = true;
        host.event(QpEvent::PathMigrated);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qp::AddressVector;
    use crate::testing::TestHost;
    use PathMigState::{Armed, Migrated, Rearm};
    use std::net::Ipv4Addr;

    const STATE: AttrMask = AttrMask::PATH_MIG_STATE;
    const LOADED: AttrMask = STATE.union(AttrMask::ALT_PATH);

    fn gid(last: u8) -> Gid {
        Gid::from(Ipv4Addr::new(192, 0, 2, last))
    }

    fn to(last: u8) -> AddressVector {
        AddressVector {
            dgid: gid(last),
            is_global: true,
            port: 1,
            ..AddressVector::default()
        }
    }

    /// A connection in RTS: the peer is address 1, and address 2 on the alternate path.
    struct End {
        migration: Migration,
        attr: QpAttr,
        host: TestHost,
    }

    impl End {
        fn new() -> Self {
            let attr = QpAttr {
                state: QpState::Rts,
                av: to(1),
                timeout: 14,
                ..QpAttr::default()
            };
            End {
                migration: Migration::default(),
                attr,
                host: TestHost::new(),
            }
        }

        fn ask(&mut self, state: PathMigState, mask: AttrMask) -> Result<(), TransitionError> {
            let new = QpAttr {
                path_mig_state: state,
                alt_av: to(2),
                alt_port: 1,
                alt_timeout: 10,
                ..QpAttr::default()
            };
            let (attr, host) = (&mut self.attr, &mut self.host);
            let changed = self.migration.change(attr, QpType::Rc, &new, mask, host);
            changed.map(|_| ())
        }

        fn armed() -> Self {
            let mut end = Self::new();
            end.ask(Rearm, LOADED).unwrap();
            end.receive(1, false);
            assert_eq!(end.attr.path_mig_state, Armed);
            end
        }

        fn accepts(&self, from: u8, mig_req: bool) -> bool {
            self.migration
                .accepts_source(&self.attr, gid(from), mig_req)
        }

        fn receive(&mut self, from: u8, mig_req: bool) -> bool {
            assert!(self.accepts(from, mig_req));
            let (attr, host) = (&mut self.attr, &mut self.host);
            self.migration
                .packet_accepted(attr, gid(from), mig_req, host)
        }

        fn assert_migrated(&mut self) {
            assert_eq!(self.attr.path_mig_state, Migrated);
            assert_eq!((self.attr.av, self.attr.timeout), (to(2), 10));
            assert_eq!(self.host.events, [QpEvent::PathMigrated]);
            assert!(self.migration.take_migrated());
            assert!(!self.migration.take_migrated());
        }
    }

    #[test]
    fn mig_req_is_ignored_in_migrated() {
        let mut end = End::new();
        for mig_req in [true, false, true] {
            assert!(!end.receive(1, mig_req));
            assert_eq!(end.attr.path_mig_state, Migrated);
        }
        assert!(end.host.events.is_empty());
    }

    #[test]
    fn packet_with_mig_req_0_moves_rearm_to_armed() {
        let mut end = End::new();
        end.ask(Rearm, LOADED).unwrap();
        end.receive(1, true);
        assert_eq!(end.attr.path_mig_state, Rearm);
        end.receive(1, false);
        assert_eq!(end.attr.path_mig_state, Armed);
        end.receive(1, false);
        assert_eq!(end.attr.path_mig_state, Armed);
        assert!(end.host.events.is_empty());
    }

    #[test]
    fn alternate_path_may_be_loaded_before_rearm() {
        let mut end = End::new();
        end.ask(Migrated, AttrMask::ALT_PATH).unwrap();
        assert_eq!(end.attr.path_mig_state, Migrated);
        end.ask(Rearm, STATE).unwrap();
        assert_eq!(end.attr.path_mig_state, Rearm);
    }

    #[test]
    fn rearm_needs_an_alternate_path() {
        let mut end = End::new();
        let refused = Err(TransitionError::NoAlternatePath);
        assert_eq!(end.ask(Rearm, STATE), refused);
        assert_eq!(end.attr.path_mig_state, Migrated);
        // Migration consumes the alternate path.
        let mut end = End::armed();
        end.ask(Migrated, STATE).unwrap();
        assert_eq!(end.ask(Rearm, STATE), refused);
    }

    #[test]
    fn program_cannot_set_armed() {
        let mut end = End::new();
        assert_eq!(end.ask(Armed, LOADED), Err(TransitionError::ArmedByProgram));
        assert_eq!(end.attr, End::new().attr);
        end.ask(Rearm, LOADED).unwrap();
        assert_eq!(end.ask(Armed, STATE), Err(TransitionError::ArmedByProgram));
        End::armed().ask(Armed, STATE).unwrap();
    }

    #[test]
    fn alternate_path_needs_a_gid_and_a_port() {
        type Invalidate = fn(&mut QpAttr);
        let invalidations: [Invalidate; 5] = [
            |attr| attr.alt_av.is_global = false,
            |attr| attr.alt_av.dgid = Gid::default(),
            |attr| attr.alt_port = 2,
            |attr| attr.alt_pkey_index = 1,
            |attr| attr.alt_timeout = 32,
        ];
        for invalidate in invalidations {
            let mut end = End::new();
            let mut new = QpAttr {
                alt_av: to(2),
                alt_port: 1,
                ..QpAttr::default()
            };
            invalidate(&mut new);
            let mask = AttrMask::ALT_PATH;
            let (attr, host) = (&mut end.attr, &mut end.host);
            assert_eq!(
                end.migration.change(attr, QpType::Rc, &new, mask, host),
                Err(TransitionError::OutOfRange(mask))
            );
        }
    }

    #[test]
    fn armed_migrates_when_the_program_requests_it() {
        let mut end = End::armed();
        end.ask(Migrated, STATE).unwrap();
        end.assert_migrated();
    }

    #[test]
    fn program_cannot_migrate_before_armed() {
        let mut end = End::new();
        end.ask(Rearm, LOADED).unwrap();
        let refused = end.ask(Migrated, STATE);
        assert_eq!(refused, Err(TransitionError::NotArmed));
        assert_eq!((end.attr.av, end.attr.path_mig_state), (to(1), Rearm));
        assert!(end.host.events.is_empty());
    }

    #[test]
    fn armed_migrates_when_the_peer_has() {
        let mut end = End::armed();
        assert!(end.receive(2, true));
        end.assert_migrated();
        assert!(!end.accepts(1, false), "the peer no longer uses that path");
    }

    #[test]
    fn armed_migrates_when_retries_are_exhausted() {
        let mut end = End::armed();
        assert!(end.migration.fail_over(&mut end.attr, &mut end.host));
        end.assert_migrated();
        assert!(!end.migration.fail_over(&mut end.attr, &mut end.host));
    }

    #[test]
    fn only_armed_fails_over() {
        let mut end = End::new();
        end.ask(Rearm, LOADED).unwrap();
        assert!(!end.migration.fail_over(&mut end.attr, &mut end.host));
        assert!(end.host.events.is_empty());
    }

    #[test]
    fn packets_on_the_alternate_path_are_accepted_only_in_armed_with_mig_req() {
        let mut end = End::new();
        end.ask(Rearm, LOADED).unwrap();
        assert!(!end.accepts(2, true) && !end.accepts(2, false));
        end.receive(1, false);
        assert!(end.accepts(2, true) && !end.accepts(2, false));
    }

    #[test]
    fn packets_on_the_previous_path_are_accepted_until_one_arrives_on_the_new_path() {
        let mut end = End::armed();
        end.ask(Migrated, STATE).unwrap();
        assert!(end.accepts(1, false));
        end.receive(1, false);
        end.receive(2, true);
        assert!(!end.accepts(1, false) && end.accepts(2, true));
    }

    #[test]
    fn refused_migration_request_is_reported_once() {
        let mut end = End::armed();
        // From the primary path, which is not the alternate one.
        end.receive(1, true);
        assert!(!end.accepts(3, true));
        end.migration.report_refusal(&end.attr, &mut end.host);
        assert_eq!(end.host.events, [QpEvent::PathMigrationRefused]);
        assert_eq!(end.attr.path_mig_state, Armed);
        // A new alternate path allows a new report.
        end.ask(Rearm, LOADED).unwrap();
        end.migration.report_refusal(&end.attr, &mut end.host);
        assert_eq!(end.host.events.len(), 2);
    }

    #[test]
    fn migration_requests_are_not_reported_without_an_alternate_path() {
        let mut end = End::new();
        end.migration.report_refusal(&end.attr, &mut end.host);
        assert!(end.host.events.is_empty());
    }

    #[test]
    fn connection_can_be_armed_again_after_migration() {
        let mut end = End::armed();
        end.receive(2, true);
        end.ask(Rearm, LOADED).unwrap();
        end.receive(2, false);
        assert_eq!(end.attr.path_mig_state, Armed);
    }
}
