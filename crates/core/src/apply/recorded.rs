//! The records of a Sync in the ledger, and whether they are current.

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::Record;
use crate::object::ObjectId;

/// The records of one owner's objects on a member, and the attempt that they belong to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    /// Time at which that attempt began; `None`: it is unknown, or there are no records.
    pub attempted_at: Option<Timestamp>,
    /// The records.
    pub objects: BTreeMap<ObjectId, Record>,
}

/// The last attempt of this process at a Sync, which status does not report if it could not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnAttempt {
    /// The attempt that status reported when this one began; `None`: there was none.
    pub previous: Option<Timestamp>,
    /// Time at which it began.
    pub at: Timestamp,
}

impl Recorded {
    /// Returns the records if they are current: they belong to the last attempt, by status or in this process. `None`:
    /// it is unknown what the member has.
    ///
    /// A ledger may be older than status, because its volume was restored from a snapshot or because another replica
    /// made attempts. Such a record of a release would make a rollback to that release "applied" without a request. A
    /// ledger may also be newer: the process ended between the ledger and status. One comparison with the member is
    /// cheaper than to tell that from a status that was set back.
    #[must_use]
    pub fn current(
        self,
        reported: Option<Timestamp>,
        own: Option<OwnAttempt>,
    ) -> Option<BTreeMap<ObjectId, Record>> {
        let recorded = self.attempted_at?;
        let is_own = own.is_some_and(|own| own.at == recorded && own.previous == reported);
        (reported == Some(recorded) || is_own).then_some(self.objects)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_count_only_if_they_belong_to_the_last_attempt() {
        let time = |second: i64| Some(Timestamp::from_second(second).unwrap());
        let own = |previous, at| {
            Some(OwnAttempt {
                previous,
                at: Timestamp::from_second(at).unwrap(),
            })
        };
        for (recorded, reported, own, current) in [
            (time(5), time(5), None, true),
            // An older ledger, and a newer one.
            (time(5), time(7), None, false),
            (time(5), time(3), None, false),
            // Records without an attempt, a status without one, and a new Sync.
            (None, time(5), None, false),
            (time(5), None, None, false),
            (None, None, None, false),
            // Status could not be written.
            (time(5), time(3), own(time(3), 5), true),
            (time(5), None, own(None, 5), true),
            // Somebody else has made an attempt since.
            (time(5), time(4), own(time(3), 5), false),
            // The records of the last attempt were not written.
            (time(3), time(5), own(time(3), 5), false),
        ] {
            let recorded = Recorded {
                attempted_at: recorded,
                objects: BTreeMap::new(),
            };
            let found = recorded.clone().current(reported, own).is_some();
            assert_eq!(found, current, "{recorded:?} {reported:?} {own:?}");
        }
    }
}
