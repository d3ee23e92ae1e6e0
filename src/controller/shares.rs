//! How many workers a lane may hold, and all suspect lanes together.
//!
//! A key whose lane has its share waits here, outside the queue, so that neither a worker nor the keys behind it wait
//! with it. It goes back to the queue, with its place in line, as soon as its lane has room. Each key is moved once
//! into a lane and once out of it for each reconcile, whatever waits beside it.

use std::collections::{BTreeMap, HashMap, VecDeque};

use tokio::time::Instant;

use super::object_key::ObjectKey;

/// One cluster may hold one worker in so many, which is one of the default `--concurrency`: so many clusters are worked
/// on at once.
const WORKERS_PER_LANE: usize = 20;
/// All suspect clusters together may hold one worker in so many. The other half is left for the clusters that answer.
const WORKERS_PER_SUSPECT: usize = 2;

/// A place in line: the time that a key is due, and a number for the order among equal times.
pub(super) type Place = (Instant, u64);

/// The most workers at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// For one lane.
    pub lane: usize,
    /// For all suspect lanes together.
    pub suspects: usize,
}

impl Limits {
    /// The limits where there are so many workers: a twentieth for a lane, half for the suspects.
    #[must_use]
    pub fn of(workers: usize) -> Self {
        Self {
            lane: (workers / WORKERS_PER_LANE).max(1),
            suspects: (workers / WORKERS_PER_SUSPECT).max(1),
        }
    }
}

/// What a key that is worked on holds; given back by [`WorkerShares::release`].
#[derive(Debug)]
pub(super) struct OccupiedWorker {
    lane: ObjectKey,
    suspect: bool,
}

/// Who holds what, and who waits.
#[derive(Debug)]
pub(super) struct WorkerShares {
    limits: Limits,
    lanes: HashMap<ObjectKey, Lane>,
    /// Workers that suspect lanes hold.
    suspects: usize,
    /// Lanes with a key that waits because the suspects hold all that they may; each once.
    held_back: VecDeque<ObjectKey>,
}

#[derive(Debug, Default)]
struct Lane {
    active: usize,
    waiting: BTreeMap<Place, ObjectKey>,
    held_back: bool,
}

impl WorkerShares {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            lanes: HashMap::new(),
            suspects: 0,
            held_back: VecDeque::new(),
        }
    }

    /// Takes a worker for a key of `lane`, or lets the key wait.
    pub(super) fn take(
        &mut self,
        lane: &ObjectKey,
        suspect: bool,
        place: Place,
        key: &ObjectKey,
    ) -> Option<OccupiedWorker> {
        let share = self.lanes.entry(lane.clone()).or_default();
        if share.active >= self.limits.lane {
            share.waiting.insert(place, key.clone());
            return None;
        }
        if suspect && self.suspects >= self.limits.suspects {
            share.waiting.insert(place, key.clone());
            if !std::mem::replace(&mut share.held_back, true) {
                self.held_back.push_back(lane.clone());
            }
            return None;
        }
        share.active += 1;
        self.suspects += usize::from(suspect);
        Some(OccupiedWorker {
            lane: lane.clone(),
            suspect,
        })
    }

    /// Gives a worker back. Returns the keys that may try now, at most two.
    pub(super) fn release(&mut self, held: OccupiedWorker) -> Vec<(Place, ObjectKey)> {
        let OccupiedWorker { lane, suspect } = held;
        if let Some(share) = self.lanes.get_mut(&lane) {
            share.active -= 1;
        }
        self.suspects -= usize::from(suspect);
        let mut free: Vec<_> = self.first_of(&lane).into_iter().collect();
        // Whichever lane gives it back: the last one may have been suspect no longer when it began.
        if self.suspects < self.limits.suspects {
            free.extend(self.first_held_back());
        }
        self.forget_idle(&lane);
        free
    }

    /// Takes a key out of those that wait: its lane may be as good as any by now.
    pub(super) fn unpark(&mut self, lane: &ObjectKey, place: Place) -> Option<ObjectKey> {
        self.lanes.get_mut(lane)?.waiting.remove(&place)
    }

    /// The first that waits in a lane that has room.
    fn first_of(&mut self, lane: &ObjectKey) -> Option<(Place, ObjectKey)> {
        let share = self.lanes.get_mut(lane)?;
        if share.active >= self.limits.lane {
            return None;
        }
        share.waiting.pop_first()
    }

    /// The first of the lane that was held back first. A lane that has none left, or no room, is passed over: its own
    /// worker lets its keys go on.
    fn first_held_back(&mut self) -> Option<(Place, ObjectKey)> {
        while let Some(lane) = self.held_back.pop_front() {
            if let Some(share) = self.lanes.get_mut(&lane) {
                share.held_back = false;
            }
            if let Some(found) = self.first_of(&lane) {
                // More of this lane wait for the suspects: behind the other lanes.
                if let Some(share) = self.lanes.get_mut(&lane)
                    && !share.waiting.is_empty()
                {
                    share.held_back = true;
                    self.held_back.push_back(lane);
                }
                return Some(found);
            }
            self.forget_idle(&lane);
        }
        None
    }

    fn forget_idle(&mut self, lane: &ObjectKey) {
        let idle = |share: &Lane| share.active == 0 && share.waiting.is_empty() && !share.held_back;
        if self.lanes.get(lane).is_some_and(idle) {
            self.lanes.remove(lane);
        }
    }
}
