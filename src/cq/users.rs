//! The queue pairs that complete in a completion queue.
#![forbid(unsafe_code)]

use crate::outstanding::Outstanding;
use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;
use urxe_driver::tables::KeyHasher;
use urxe_proto::ids::Qpn;

/// The queue pairs that complete in a queue.
#[derive(Debug, Default)]
pub(super) struct Users {
    /// One of them, which is found without hashing. Most queues have no other.
    one: Option<(Qpn, Arc<Outstanding>)>,
    others: HashMap<Qpn, Arc<Outstanding>, BuildHasherDefault<KeyHasher>>,
}

impl Users {
    #[inline]
    pub(super) fn get(&self, qpn: Qpn) -> Option<&Arc<Outstanding>> {
        match &self.one {
            Some((one, outstanding)) if *one == qpn => Some(outstanding),
            _ => self.others.get(&qpn),
        }
    }

    /// Adds a queue pair. It replaces one of the same number, which is being dropped.
    pub(super) fn insert(&mut self, qpn: Qpn, outstanding: Arc<Outstanding>) {
        match &mut self.one {
            Some((one, _)) if *one != qpn => {
                self.others.insert(qpn, outstanding);
            }
            one => {
                self.others.remove(&qpn);
                *one = Some((qpn, outstanding));
            }
        }
    }

    pub(super) fn remove(&mut self, qpn: Qpn) {
        match &self.one {
            Some((one, _)) if *one == qpn => self.one = None,
            _ => {
                self.others.remove(&qpn);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_pairs_are_found_until_they_are_removed() {
        let outstanding = || Arc::new(Outstanding::new(1, 1));
        let numbers = [1, 2, 3].map(Qpn::new);
        let mut users = Users::default();
        for qpn in numbers {
            users.insert(qpn, outstanding());
        }
        // The next queue pair takes the place of the first, and then its own number again.
        users.remove(numbers[0]);
        assert!(users.get(numbers[0]).is_none());
        let replacement = outstanding();
        users.insert(numbers[1], Arc::clone(&replacement));
        assert!(Arc::ptr_eq(users.get(numbers[1]).unwrap(), &replacement));
        assert!(users.get(numbers[2]).is_some());
        users.remove(numbers[1]);
        assert!(users.get(numbers[1]).is_none());
    }
}
