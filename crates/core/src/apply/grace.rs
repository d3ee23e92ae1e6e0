//! The grace before a prune: objects that left the render stay for a while, and can be taken back.
//!
//! The start of the grace is in the inventory on the member, so it survives a lost ledger and a restored management
//! cluster. It is the first attempt that does not render the object, not the commit: a cluster that gets a release a
//! week later has the whole grace. One that the status of the Sync does not know begins anew: the member may have been
//! restored, and its inventory then tells of an earlier time when the object had left the render.

use std::collections::BTreeSet;
use std::time::Duration;

use jiff::Timestamp;
use starling_api::PendingDeletions;

use crate::clock_jumps::{ClockJumps, is_far_ahead};
use crate::inventory::{Inventory, InventoryEntry};
use crate::object::ObjectId;

/// The number of objects that are named: as many as fit into a status.
const NAMED: usize = 10;

/// The unit of starts in the inventory, to which they are rounded up.
const ROUNDING: Duration = Duration::from_secs(1);

/// The time between the first render that lacks an object and its deletion.
#[derive(Clone, Copy, Debug)]
pub struct Grace<'a> {
    /// `pruneGrace`; zero for none.
    pub length: Duration,
    /// The current time.
    pub now: Timestamp,
    /// The jumps of the clock: a clock that is set forward ends no grace.
    pub clock_jumps: &'a ClockJumps,
    /// Objects that left the render at this time or before are given up and not deleted; `None`: no objects.
    pub undeleted: Option<Timestamp>,
    /// No grace began before this time: by the status of the Sync. `None`: the status is not asked.
    pub not_before: Option<Timestamp>,
}

/// Objects to delete, by what becomes of them.
#[derive(Debug, Default)]
pub(super) struct Split {
    /// Objects that a user took back.
    pub(super) undeleted: Vec<InventoryEntry>,
    /// Objects whose grace has not ended, with its start.
    pub(super) pending: Vec<InventoryEntry>,
    /// Objects to delete now.
    pub(super) due: Vec<InventoryEntry>,
}

static NO_JUMPS: ClockJumps = ClockJumps::none();

impl Grace<'static> {
    /// Returns that objects are deleted at once.
    #[must_use]
    pub const fn none() -> Self {
        Self {
            length: Duration::ZERO,
            now: Timestamp::UNIX_EPOCH,
            clock_jumps: &NO_JUMPS,
            undeleted: None,
            not_before: None,
        }
    }
}

impl Grace<'_> {
    /// Splits the objects that left the render. A grace that begins now counts the objects of the inventory now: at its
    /// end, the objects that replaced them would hide how large the share was.
    pub(super) fn split(
        &self,
        left: Vec<InventoryEntry>,
        inventory: &Inventory,
        gone: &BTreeSet<ObjectId>,
    ) -> Split {
        let mut split = Split::default();
        for entry in left {
            let left_at = entry.listed.left_at;
            if self.is_undeleted(left_at) {
                split.undeleted.push(entry);
            } else if self.is_over(left_at) || gone.contains(&entry.key) {
                split.due.push(entry);
            } else {
                split.pending.push(entry);
            }
        }
        split.pending = self.begin(split.pending, inventory);
        split
    }

    /// Returns the entries with the start of their grace, and the number of objects of the inventory then.
    #[must_use]
    pub fn begin(&self, mut entries: Vec<InventoryEntry>, inventory: &Inventory) -> Vec<InventoryEntry> {
        let of = inventory.iter().filter(|(_, uid)| !uid.is_empty()).count();
        for entry in &mut entries {
            entry.listed.left_at = Some(self.start(entry.listed.left_at));
            entry.listed.held_of.get_or_insert(of);
        }
        entries
    }

    /// Reports whether a user took back an object that left the render then.
    #[must_use]
    pub fn is_undeleted(&self, left_at: Option<Timestamp>) -> bool {
        let start = left_at.map(|left| self.start(Some(left)));
        start.is_some_and(|start| self.undeleted.is_some_and(|until| start <= until))
    }

    fn is_over(&self, left_at: Option<Timestamp>) -> bool {
        let left = self.start(left_at);
        self.length.is_zero() || self.clock_jumps.elapsed(rounded_from(left), self.now) >= lasts(self.length)
    }

    /// Returns the start of a grace. One that lies ahead was written by a wrong clock, and begins now. Whole seconds,
    /// as in the inventory, rounded up: a grace is never shorter than it says.
    fn start(&self, left_at: Option<Timestamp>) -> Timestamp {
        let now = self.now.as_second() + i64::from(self.now.subsec_nanosecond() > 0);
        let now = Timestamp::from_second(now).unwrap_or(self.now);
        let start = left_at.unwrap_or(now);
        self.not_before.map_or(start, |first| start.max(first)).min(now)
    }
}

/// The objects of an inventory whose grace has begun.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PendingObjects(Vec<InventoryEntry>);

impl PendingObjects {
    /// Returns those of an inventory, the first that is deleted first.
    #[must_use]
    pub fn of(inventory: &Inventory) -> Self {
        let mut pending: Vec<InventoryEntry> = inventory.entries().collect();
        pending.retain(|entry| entry.listed.left_at.is_some());
        pending.sort_by_key(|entry| entry.listed.left_at);
        Self(pending)
    }

    /// Returns them for status; `None`: there are none. Those that are being deleted already cannot be kept any more,
    /// and are neither counted nor named.
    #[must_use]
    pub fn status(&self, terminating: &[ObjectId]) -> Option<PendingDeletions> {
        let time = |entry: &InventoryEntry| entry.listed.left_at.map(|at| at.to_string());
        let staying = || self.0.iter().filter(|entry| !terminating.contains(&entry.key));
        Some(PendingDeletions {
            count: u32::try_from(staying().count()).unwrap_or(u32::MAX),
            first_time: time(self.0.first()?).unwrap_or_default(),
            last_time: staying().next_back().and_then(time).unwrap_or_default(),
            objects: staying().take(NAMED).map(|entry| entry.key.to_string()).collect(),
            waiting_for: String::new(),
        })
    }
}

/// Returns the earliest time that is rounded up to the start of a grace. A jump of the clock between the two may have
/// come after the grace began, and must not end it.
fn rounded_from(start: Timestamp) -> Timestamp {
    start.checked_sub(ROUNDING).unwrap_or(start)
}

/// Returns the length of a grace since the earliest time that is rounded up to its start.
fn lasts(length: Duration) -> Duration {
    length.saturating_add(ROUNDING)
}

/// Returns when the first grace ends; `None`: nothing is pending, or the time cannot be read. Now if it lies far ahead:
/// the clock was wrong when the grace began, and the attempt that follows begins it anew.
#[must_use]
pub fn due(
    pending: Option<&PendingDeletions>,
    length: Duration,
    clock_jumps: &ClockJumps,
    now: Timestamp,
) -> Option<Timestamp> {
    let first: Timestamp = pending?.first_time.parse().ok()?;
    if is_far_ahead(first, now) {
        return Some(now);
    }
    clock_jumps.due(rounded_from(first), lasts(length))
}

/// Reports whether a user took back objects that are pending.
#[must_use]
pub fn is_undeleted(pending: Option<&PendingDeletions>, undeleted: Option<Timestamp>) -> bool {
    let first = pending.and_then(|pending| pending.first_time.parse::<Timestamp>().ok());
    first.is_some_and(|first| undeleted.is_some_and(|until| first <= until))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::tests::{desired, entry, key};
    use crate::apply::{ApplyInput, ApplyPlan, Confirmation, Guard, Options, SiblingObjects, plan};
    use crate::deletion_budget::Earlier;
    use std::collections::{BTreeMap, BTreeSet};

    const HOUR: Duration = Duration::from_secs(3600);

    fn t(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    /// An attempt that renders these objects at this time.
    struct Pass<'a> {
        wanted: &'a [u8],
        at: i64,
        length: Duration,
        undeleted: Option<i64>,
        prune: bool,
        jumps: ClockJumps,
        not_before: Option<i64>,
    }

    const PASS: Pass<'_> = Pass {
        wanted: &[],
        at: 0,
        length: HOUR,
        undeleted: None,
        prune: true,
        jumps: ClockJumps::none(),
        not_before: None,
    };

    /// The objects that a pass over an inventory deletes and takes back, and the inventory that it claims.
    #[derive(Debug, PartialEq, Eq)]
    struct Done {
        deleted: Vec<String>,
        undeleted: Vec<String>,
        blocked: bool,
    }

    impl Pass<'_> {
        fn run(&self, inventory: &Inventory) -> (Done, Inventory) {
            let wanted: BTreeMap<u8, u8> = self.wanted.iter().map(|number| (*number, 0)).collect();
            let desired = desired(&wanted);
            let observed = ApplyInput {
                inventory,
                desired: &desired,
                records: &BTreeMap::new(),
                drifted: &BTreeSet::new(),
                kept: &BTreeMap::new(),
                compare: false,
                guard: Guard {
                    siblings: &SiblingObjects::nothing(),
                    begun: &BTreeSet::new(),
                    gone: &BTreeSet::new(),
                    earlier: Earlier::default(),
                    confirmation: Confirmation::default(),
                    grace: Grace {
                        length: self.length,
                        now: t(self.at),
                        clock_jumps: &self.jumps,
                        undeleted: self.undeleted.map(t),
                        not_before: self.not_before.map(t),
                    },
                    approval: crate::apply::ApprovedDeletions::default(),
                },
            };
            let options = Options {
                prune: self.prune,
                allow_empty: true,
                ..Options::default()
            };
            let ApplyPlan {
                prune,
                undeleted,
                claim,
                prune_blocker,
                ..
            } = plan(observed, options);
            let names =
                |entries: Vec<InventoryEntry>| entries.into_iter().map(|entry| entry.key.name).collect();
            let done = Done {
                deleted: names(prune.into_iter().flat_map(|(_, entries)| entries).collect()),
                undeleted: names(undeleted),
                blocked: prune_blocker.is_some(),
            };
            (done, claim)
        }
    }

    fn inventory(numbers: impl IntoIterator<Item = u8>) -> Inventory {
        numbers.into_iter().map(|number| entry(number, "u")).collect()
    }

    /// The numbers of objects that are ConfigMaps.
    const MAPS: [u8; 3] = [3, 8, 13];

    fn nothing() -> Done {
        Done {
            deleted: Vec::new(),
            undeleted: Vec::new(),
            blocked: false,
        }
    }

    #[test]
    fn an_object_is_deleted_after_the_grace_and_not_before() {
        let (done, claim) = Pass {
            wanted: &[3, 8],
            ..PASS
        }
        .run(&inventory(MAPS));
        assert_eq!(done, nothing());
        let status = PendingObjects::of(&claim).status(&[]).unwrap();
        assert_eq!(
            (
                status.count,
                status.first_time.as_str(),
                status.objects.as_slice()
            ),
            (1, t(0).to_string().as_str(), &[key(13).to_string()][..])
        );
        let due_at = |now| due(Some(&status), HOUR, &ClockJumps::none(), now);
        assert_eq!(due_at(t(0)), Some(t(3600)));
        // The clock was wrong when the grace began.
        assert_eq!(due_at(t(-7200)), Some(t(-7200)));
        for (at, deleted) in [(1800, vec![]), (3599, vec![]), (3600, vec!["o13".to_owned()])] {
            let (done, again) = Pass {
                wanted: &[3, 8],
                at,
                ..PASS
            }
            .run(&claim);
            assert_eq!(done, Done { deleted, ..nothing() }, "{at}");
            // The start stays.
            assert_eq!(PendingObjects::of(&again), PendingObjects::of(&claim));
        }
        // A shorter grace counts at once.
        let (done, _) = Pass {
            wanted: &[3, 8],
            at: 60,
            length: Duration::ZERO,
            ..PASS
        }
        .run(&claim);
        assert_eq!(done.deleted, ["o13"]);
    }

    /// A member that was restored from a backup has the inventory of an earlier time when the object had left git.
    #[test]
    fn a_restored_inventory_ends_no_grace() {
        let (_, claim) = Pass {
            wanted: &[3, 8],
            ..PASS
        }
        .run(&inventory(MAPS));
        for (not_before, undeleted, at, deleted) in [
            // The object has left git again by now, and the status says when.
            (8000, None, 9000, 0),
            (8000, None, 8000 + 3600, 1),
            // A person took it back the first time.
            (8000, Some(100), 9000, 0),
            // The status knows of nothing that is pending.
            (9000, None, 9000, 0),
            (0, None, 9000, 1),
        ] {
            let pass = Pass {
                wanted: &[3, 8],
                at,
                undeleted,
                not_before: Some(not_before),
                ..PASS
            };
            let (done, again) = pass.run(&claim);
            let found = (done.deleted.len(), done.undeleted.len());
            assert_eq!(found, (deleted, 0), "{not_before} {at}");
            if deleted == 0 {
                let status = PendingObjects::of(&again).status(&[]).unwrap();
                assert_eq!(status.first_time, t(not_before).to_string());
            }
        }
    }

    #[test]
    fn an_object_that_is_rendered_again_has_the_whole_grace_the_next_time() {
        let (_, claim) = Pass {
            wanted: &[3, 8],
            ..PASS
        }
        .run(&inventory(MAPS));
        let (done, claim) = Pass {
            wanted: &MAPS,
            at: 3000,
            ..PASS
        }
        .run(&claim);
        assert_eq!((done, PendingObjects::of(&claim).status(&[])), (nothing(), None));
        let (done, claim) = Pass {
            wanted: &[3, 8],
            at: 4000,
            ..PASS
        }
        .run(&claim);
        assert_eq!(done, nothing());
        let status = PendingObjects::of(&claim).status(&[]).unwrap();
        assert_eq!(status.first_time, t(4000).to_string());
    }

    /// An object that git has again, and that is not written because an annotation in git or another owner keeps it.
    #[test]
    fn an_object_that_is_kept_or_left_alone_has_the_whole_grace_the_next_time() {
        let (_, claim) = Pass {
            wanted: &[3, 8],
            ..PASS
        }
        .run(&inventory(MAPS));
        for is_kept in [false, true] {
            let mut desired = desired(&MAPS.iter().map(|number| (*number, 0)).collect());
            let mut kept = BTreeMap::new();
            for object in desired.objects.iter_mut().filter(|object| object.key == key(13)) {
                if is_kept {
                    kept.insert(object.key.clone(), "another".to_owned());
                } else {
                    object.directives.left_alone = true;
                }
            }
            let observed = ApplyInput {
                inventory: &claim,
                desired: &desired,
                records: &BTreeMap::new(),
                drifted: &BTreeSet::new(),
                kept: &kept,
                compare: false,
                guard: Guard {
                    siblings: &SiblingObjects::nothing(),
                    begun: &BTreeSet::new(),
                    gone: &BTreeSet::new(),
                    earlier: Earlier::default(),
                    confirmation: Confirmation::default(),
                    grace: Grace::none(),
                    approval: crate::apply::ApprovedDeletions::default(),
                },
            };
            let planned = plan(observed, Options::default());
            assert_eq!(
                PendingObjects::of(&planned.claim).status(&[]),
                None,
                "kept: {is_kept}"
            );
        }
    }

    #[test]
    fn what_left_up_to_a_time_can_be_taken_back() {
        let (_, claim) = Pass {
            wanted: &[3, 8],
            ..PASS
        }
        .run(&inventory(MAPS));
        let (_, claim) = Pass {
            wanted: &[3],
            at: 100,
            ..PASS
        }
        .run(&claim);
        let status = PendingObjects::of(&claim).status(&[]).unwrap();
        assert_eq!((status.count, status.last_time), (2, t(100).to_string()));
        let undelete = |until: i64, at: i64| {
            Pass {
                wanted: &[3],
                at,
                undeleted: Some(until),
                ..PASS
            }
            .run(&claim)
            .0
        };
        assert_eq!(undelete(0, 200).undeleted, ["o13"]);
        assert_eq!(undelete(100, 200).undeleted, ["o13", "o8"]);
        assert_eq!(undelete(-1, 200), nothing());
        // Also an object whose grace has just ended: the user was faster.
        assert_eq!(
            undelete(0, 3650),
            Done {
                undeleted: vec!["o13".into()],
                ..nothing()
            }
        );
        // Later losses are not taken back by an earlier request.
        let pass = Pass {
            wanted: &[],
            at: 300,
            undeleted: Some(100),
            ..PASS
        };
        let (done, claim) = pass.run(&inventory([3]));
        assert_eq!((done, PendingObjects::of(&claim).0.len()), (nothing(), 1));
    }

    /// A release that renames everything: at the end of the grace, its new objects are in the inventory too.
    #[test]
    fn the_share_is_that_of_the_start_of_the_grace() {
        let old: Vec<u8> = (0..60).filter(|number| number % 5 == 3).collect();
        let new: Vec<u8> = (60..120).filter(|number| number % 5 == 3).collect();
        let (_, claim) = Pass { wanted: &new, ..PASS }.run(&inventory(old));
        let applied: Inventory = claim.union(&inventory(new.clone()));
        let (done, _) = Pass {
            wanted: &new,
            at: 3600,
            ..PASS
        }
        .run(&applied);
        assert_eq!((done.deleted.len(), done.blocked), (0, true));
    }

    #[test]
    fn clocks_that_jump_end_no_grace() {
        let (_, claim) = Pass {
            wanted: &[3, 8],
            ..PASS
        }
        .run(&inventory(MAPS));
        let mut jumps = ClockJumps::none();
        jumps.observe(t(10), t(10 + 7200), Duration::ZERO);
        for (at, deleted) in [(7300, 0), (7200 + 3600, 1)] {
            let pass = Pass {
                wanted: &[3, 8],
                at,
                jumps: jumps.clone(),
                ..PASS
            };
            assert_eq!(pass.run(&claim).0.deleted.len(), deleted, "{at}");
        }
        // The start of the grace was rounded up to a second in which the clock jumped.
        let mut jumps = ClockJumps::none();
        jumps.observe(t(0), t(7200), Duration::ZERO);
        let at_once = Pass {
            wanted: &[3, 8],
            at: 7200 + 100,
            jumps,
            ..PASS
        };
        assert_eq!(at_once.run(&claim).0.deleted.len(), 0);
        // A start that lies ahead begins now.
        let (done, claim) = Pass {
            wanted: &[3, 8],
            at: -9000,
            ..PASS
        }
        .run(&claim);
        assert_eq!(done, nothing());
        let status = PendingObjects::of(&claim).status(&[]).unwrap();
        assert_eq!(status.first_time, t(-9000).to_string());
    }

    #[test]
    fn no_grace_runs_while_nothing_is_pruned() {
        let (_, claim) = Pass {
            wanted: &[3, 8],
            ..PASS
        }
        .run(&inventory(MAPS));
        let (_, claim) = Pass {
            wanted: &[3, 8],
            at: 60,
            prune: false,
            ..PASS
        }
        .run(&claim);
        assert_eq!(PendingObjects::of(&claim).status(&[]), None);
        let (done, _) = Pass {
            wanted: &[3, 8],
            at: 9000,
            ..PASS
        }
        .run(&claim);
        assert_eq!(done, nothing());
    }
}
