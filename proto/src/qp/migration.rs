//! Automatic path migration (17.2.8): a connection that has a second path to its peer goes over to it
//! when the first one fails.
//!
//! Each end has a state of its own, and tells it with every packet: MigReq is 1 in *migrated*, and 0
//! in the others. The program loads an alternate path and asks for *rearm*; a packet with MigReq 0 says that the
//! peer has done so too, which makes it *armed*. From there an end migrates when its program says so, when its peer has
//! migrated - a packet with MigReq 1 comes by the alternate path - or when its retries are used up. Whoever never loads an
//! alternate path stays in *migrated*, where MigReq is not looked at: Linux's rxe always sends 0.

use super::{AttrMask, PathMigState, QpAttr, QpState, QpType, TransitionError};
use crate::host::{Completions, QpEvent};
use crate::ids::Gid;

/// What there is to know about the paths of a connection beside its attributes.
#[derive(Debug, Default)]
pub(crate) struct Migration {
    /// An alternate path was loaded that has not become the path yet.
    loaded: bool,
    /// The peer's address on the path before this one. What it sent before it knew of the migration
    /// comes from there; its first packet by the new path ends that.
    former: Option<Gid>,
    /// The program was told that a request of the peer's to migrate cannot be followed.
    refused: bool,
    /// It has migrated since [`Migration::take_migrated`] was asked.
    migrated: bool,
}

impl Migration {
    /// As [`QpAttr::change`], with what follows for the paths.
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
                self.former = None;
                self.refused = false;
            }
            _ => {}
        }
        Ok(states)
    }

    /// Whether the peer sends from this address.
    pub(crate) fn knows(&self, attr: &QpAttr, from: Gid, mig_req: bool) -> bool {
        let armed = attr.path_mig_state == PathMigState::Armed;
        from == attr.av.dgid
            || self.former == Some(from)
            || armed && mig_req && from == attr.alt_av.dgid
    }

    /// A packet of the peer's came. True when that made the connection migrate.
    pub(crate) fn heard<C: Completions>(
        &mut self,
        attr: &mut QpAttr,
        from: Gid,
        mig_req: bool,
        host: &mut C,
    ) -> bool {
        match attr.path_mig_state {
            PathMigState::Migrated if mig_req && from == attr.av.dgid => self.former = None,
            PathMigState::Rearm if !mig_req => attr.path_mig_state = PathMigState::Armed,
            PathMigState::Armed if mig_req && from == attr.alt_av.dgid => {
                self.migrate(attr, host);
                // It has migrated before this end.
                self.former = None;
                return true;
            }
            PathMigState::Armed if mig_req => self.refuse(attr, host),
            _ => {}
        }
        false
    }

    /// The peer asks to migrate to a path that is not the alternate one: the program learns of it,
    /// once.
    pub(crate) fn refuse<C: Completions>(&mut self, attr: &QpAttr, host: &mut C) {
        let wanted = attr.path_mig_state != PathMigState::Migrated;
        if wanted && !std::mem::replace(&mut self.refused, true) {
            host.event(QpEvent::PathMigrationRefused);
        }
    }

    /// The peer does not answer by this path. False when there is no other.
    pub(crate) fn fail_over<C: Completions>(&mut self, attr: &mut QpAttr, host: &mut C) -> bool {
        let armed = attr.path_mig_state == PathMigState::Armed;
        if armed {
            self.migrate(attr, host);
        }
        armed
    }

    /// Whether it has migrated since this was last asked: packets go another way then.
    pub(crate) fn take_migrated(&mut self) -> bool {
        std::mem::take(&mut self.migrated)
    }

    /// The alternate path becomes the path.
    fn migrate<C: Completions>(&mut self, attr: &mut QpAttr, host: &mut C) {
        self.former = Some(attr.av.dgid);
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

    /// A connection in RTS: the peer is 1, and 2 by the alternate path.
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
            end.hear(1, false);
            assert_eq!(end.attr.path_mig_state, Armed);
            end
        }

        fn knows(&self, from: u8, mig_req: bool) -> bool {
            self.migration.knows(&self.attr, gid(from), mig_req)
        }

        fn hear(&mut self, from: u8, mig_req: bool) -> bool {
            assert!(self.knows(from, mig_req));
            let (attr, host) = (&mut self.attr, &mut self.host);
            self.migration.heard(attr, gid(from), mig_req, host)
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
    fn in_migrated_the_peers_mig_req_is_not_looked_at() {
        let mut end = End::new();
        for mig_req in [true, false, true] {
            assert!(!end.hear(1, mig_req));
            assert_eq!(end.attr.path_mig_state, Migrated);
        }
        assert!(end.host.events.is_empty());
    }

    #[test]
    fn rearm_becomes_armed_with_a_packet_that_has_mig_req_0() {
        let mut end = End::new();
        end.ask(Rearm, LOADED).unwrap();
        end.hear(1, true);
        assert_eq!(end.attr.path_mig_state, Rearm);
        end.hear(1, false);
        assert_eq!(end.attr.path_mig_state, Armed);
        end.hear(1, false);
        assert_eq!(end.attr.path_mig_state, Armed);
        assert!(end.host.events.is_empty());
    }

    #[test]
    fn the_alternate_path_may_be_loaded_before() {
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
        // It is used up by migrating.
        let mut end = End::armed();
        end.ask(Migrated, STATE).unwrap();
        assert_eq!(end.ask(Rearm, STATE), refused);
    }

    #[test]
    fn only_the_peer_makes_it_armed() {
        let mut end = End::new();
        assert_eq!(end.ask(Armed, LOADED), Err(TransitionError::ArmedByProgram));
        assert_eq!(end.attr, End::new().attr);
        end.ask(Rearm, LOADED).unwrap();
        assert_eq!(end.ask(Armed, STATE), Err(TransitionError::ArmedByProgram));
        End::armed().ask(Armed, STATE).unwrap();
    }

    #[test]
    fn an_alternate_path_needs_a_gid_and_a_port() {
        type Spoil = fn(&mut QpAttr);
        let spoils: [Spoil; 5] = [
            |attr| attr.alt_av.is_global = false,
            |attr| attr.alt_av.dgid = Gid::default(),
            |attr| attr.alt_port = 2,
            |attr| attr.alt_pkey_index = 1,
            |attr| attr.alt_timeout = 32,
        ];
        for spoil in spoils {
            let mut end = End::new();
            let mut new = QpAttr {
                alt_av: to(2),
                alt_port: 1,
                ..QpAttr::default()
            };
            spoil(&mut new);
            let mask = AttrMask::ALT_PATH;
            let (attr, host) = (&mut end.attr, &mut end.host);
            assert_eq!(
                end.migration.change(attr, QpType::Rc, &new, mask, host),
                Err(TransitionError::OutOfRange(mask))
            );
        }
    }

    #[test]
    fn armed_migrates_when_the_program_says_so() {
        let mut end = End::armed();
        end.ask(Migrated, STATE).unwrap();
        end.assert_migrated();
    }

    #[test]
    fn the_program_cannot_make_it_migrate_before_it_is_armed() {
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
        assert!(end.hear(2, true));
        end.assert_migrated();
        assert!(!end.knows(1, false), "the peer has left that path");
    }

    #[test]
    fn armed_migrates_when_retries_are_used_up() {
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
    fn the_alternate_path_is_heard_only_when_armed_and_asked_to_migrate() {
        let mut end = End::new();
        end.ask(Rearm, LOADED).unwrap();
        assert!(!end.knows(2, true) && !end.knows(2, false));
        end.hear(1, false);
        assert!(end.knows(2, true) && !end.knows(2, false));
    }

    #[test]
    fn what_the_peer_sent_before_it_knew_is_heard_until_it_comes_by_the_new_path() {
        let mut end = End::armed();
        end.ask(Migrated, STATE).unwrap();
        assert!(end.knows(1, false));
        end.hear(1, false);
        end.hear(2, true);
        assert!(!end.knows(1, false) && end.knows(2, true));
    }

    #[test]
    fn a_request_to_migrate_elsewhere_is_told_once() {
        let mut end = End::armed();
        // By the path that is in use, which is not the alternate one.
        end.hear(1, true);
        assert!(!end.knows(3, true));
        end.migration.refuse(&end.attr, &mut end.host);
        assert_eq!(end.host.events, [QpEvent::PathMigrationRefused]);
        assert_eq!(end.attr.path_mig_state, Armed);
        // Anew for another alternate path.
        end.ask(Rearm, LOADED).unwrap();
        end.migration.refuse(&end.attr, &mut end.host);
        assert_eq!(end.host.events.len(), 2);
    }

    #[test]
    fn strangers_cannot_tell_anything_to_who_has_no_alternate_path() {
        let mut end = End::new();
        end.migration.refuse(&end.attr, &mut end.host);
        assert!(end.host.events.is_empty());
    }

    #[test]
    fn it_can_be_armed_again_after_migrating() {
        let mut end = End::armed();
        end.hear(2, true);
        end.ask(Rearm, LOADED).unwrap();
        end.hear(2, false);
        assert_eq!(end.attr.path_mig_state, Armed);
    }
}
