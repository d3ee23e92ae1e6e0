//! Worker shares: the number of workers that a lane, and all suspect lanes together, may occupy.
//!
//! A key whose lane has no free worker waits outside the queue, so that it blocks neither a worker nor the keys behind
//! it. It returns to the queue, at its old position, as soon as its lane has a free worker. For each reconcile a key
//! moves into its lane at most once and out of it once, independent of other waiting keys.

use std::collections::{BTreeMap, HashMap, VecDeque};

use tokio::time::Instant;

use crate::controller::object_key::ObjectKey;

/// Divisor of the workers of one lane. With the default `--concurrency`, one lane gets one worker, so that this number
/// of clusters are reconciled concurrently.
const WORKERS_PER_LANE: usize = 20;
/// Divisor of the workers of all suspect lanes together. The other half remains for clusters that respond.
const WORKERS_PER_SUSPECT: usize = 2;

/// Divisor of the workers of one namespace, if there are several. The other half remains for the other namespaces: an
/// attempt that waits gives its worker back only after some time.
const WORKERS_PER_NAMESPACE: usize = 2;

/// Returns the maximum number of workers of one namespace.
#[must_use]
pub fn of_namespace(workers: usize, has_several: bool) -> usize {
    if has_several {
        (workers / WORKERS_PER_NAMESPACE).max(1)
    } else {
        workers
    }
}

/// A position in the queue: the due time of a key, and a number that orders equal times.
pub(super) type Place = (Instant, u64);

/// The maximum numbers of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Workers of one lane.
    pub lane: usize,
    /// Workers of all suspect lanes together.
    pub suspects: usize,
}

impl Limits {
    /// Returns the limits for a number of workers: a twentieth for each lane, half for the suspect lanes.
    #[must_use]
    pub fn of(workers: usize) -> Self {
        Self {
            lane: (workers / WORKERS_PER_LANE).max(1),
            suspects: (workers / WORKERS_PER_SUSPECT).max(1),
        }
    }
}

/// A worker that a key occupies. [`WorkerShares::release`] frees it.
#[derive(Debug)]
pub(super) struct OccupiedWorker {
    lane: ObjectKey,
    suspect: bool,
    /// Only the lane counts it.
    given_back: bool,
}

/// The occupied workers and the waiting keys of all lanes.
#[derive(Debug)]
pub(super) struct WorkerShares {
    limits: Limits,
    lanes: HashMap<ObjectKey, Lane>,
    /// Number of workers that suspect lanes occupy.
    suspects: usize,
    /// Number of workers that the lanes of a namespace occupy, and those of its lanes with a key that waits because
    /// they occupy all workers of the namespace; each lane once.
    namespaces: HashMap<String, (usize, BTreeMap<Place, ObjectKey>)>,
    /// Lanes with a key that waits because the suspect lanes occupy all their workers; each lane once.
    held_back: VecDeque<ObjectKey>,
}

#[derive(Debug, Default)]
struct Lane {
    active: usize,
    waiting: BTreeMap<Place, ObjectKey>,
    held_back: bool,
    /// Whether the lane is in the list of its namespace.
    crowded: bool,
}

impl WorkerShares {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            lanes: HashMap::new(),
            suspects: 0,
            namespaces: HashMap::new(),
            held_back: VecDeque::new(),
        }
    }

    /// Takes a worker for a key of `lane`, or adds the key to the waiting keys of the lane. `of_namespace`: the maximum
    /// number of workers of all lanes of its namespace.
    pub(super) fn take(
        &mut self,
        lane: &ObjectKey,
        suspect: bool,
        of_namespace: usize,
        place: Place,
        key: &ObjectKey,
    ) -> Option<OccupiedWorker> {
        let share = self.lanes.entry(lane.clone()).or_default();
        if share.active >= self.limits.lane {
            share.waiting.insert(place, key.clone());
            return None;
        }
        let (active, crowded) = self.namespaces.entry(lane.namespace.clone()).or_default();
        if *active >= of_namespace {
            share.waiting.insert(place, key.clone());
            if !std::mem::replace(&mut share.crowded, true) {
                crowded.insert(place, lane.clone());
            }
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
        *active += 1;
        self.suspects += usize::from(suspect);
        Some(OccupiedWorker {
            lane: lane.clone(),
            suspect,
            given_back: false,
        })
    }

    /// Frees a worker for other lanes, while its key stays in work. Returns the keys that may try again, at most two.
    pub(super) fn give_back(&mut self, held: &mut OccupiedWorker) -> Vec<(Place, ObjectKey)> {
        if std::mem::replace(&mut held.given_back, true) {
            return Vec::new();
        }
        self.free(&held.lane, held.suspect)
    }

    /// Frees a worker. Returns the keys that may try again, at most three.
    pub(super) fn release(&mut self, held: OccupiedWorker) -> Vec<(Place, ObjectKey)> {
        let OccupiedWorker {
            lane,
            suspect,
            given_back,
        } = held;
        if let Some(share) = self.lanes.get_mut(&lane) {
            share.active -= 1;
        }
        let mut free: Vec<_> = self.first_of(&lane).into_iter().collect();
        if !given_back {
            free.extend(self.free(&lane, suspect));
        }
        self.forget_idle(&lane);
        free
    }

    /// Frees a worker of the namespace of a lane, and of the suspect lanes. Returns the keys that may try again.
    fn free(&mut self, lane: &ObjectKey, suspect: bool) -> Vec<(Place, ObjectKey)> {
        self.suspects -= usize::from(suspect);
        if let Some((active, _)) = self.namespaces.get_mut(&lane.namespace) {
            *active -= 1;
        }
        let mut free = Vec::new();
        // Any lane that frees a worker may let a held-back lane continue: the last suspect lane may not have been
        // suspect when it took its worker.
        if self.suspects < self.limits.suspects {
            free.extend(self.first_held_back());
        }
        free.extend(self.first_crowded(&lane.namespace));
        let is_idle =
            |(active, crowded): &(usize, BTreeMap<Place, ObjectKey>)| *active == 0 && crowded.is_empty();
        if self.namespaces.get(&lane.namespace).is_some_and(is_idle) {
            self.namespaces.remove(&lane.namespace);
        }
        free
    }

    /// Returns the first waiting key of the lane of a namespace that waited first, as [`Self::first_held_back`] does.
    fn first_crowded(&mut self, namespace: &str) -> Option<(Place, ObjectKey)> {
        loop {
            let (_, lane) = self.namespaces.get_mut(namespace)?.1.pop_first()?;
            if let Some(share) = self.lanes.get_mut(&lane) {
                share.crowded = false;
            }
            if let Some(found) = self.first_of(&lane) {
                // The other waiting keys of this lane wait for the namespace, too.
                let next = self.lanes.get_mut(&lane).and_then(|share| {
                    let (place, _) = share.waiting.first_key_value()?;
                    share.crowded = true;
                    Some(*place)
                });
                if let (Some(place), Some((_, crowded))) = (next, self.namespaces.get_mut(namespace)) {
                    crowded.insert(place, lane);
                }
                return Some(found);
            }
            self.forget_idle(&lane);
        }
    }

    /// Removes a key from the waiting keys: its lane may no longer be suspect.
    pub(super) fn unpark(&mut self, lane: &ObjectKey, place: Place) -> Option<ObjectKey> {
        self.lanes.get_mut(lane)?.waiting.remove(&place)
    }

    /// Returns the first waiting key of a lane with a free worker.
    fn first_of(&mut self, lane: &ObjectKey) -> Option<(Place, ObjectKey)> {
        let share = self.lanes.get_mut(lane)?;
        if share.active >= self.limits.lane {
            return None;
        }
        share.waiting.pop_first()
    }

    /// Returns the first waiting key of the lane that was held back first. A lane without waiting keys or without a
    /// free worker is skipped: its own workers let its keys continue.
    fn first_held_back(&mut self) -> Option<(Place, ObjectKey)> {
        while let Some(lane) = self.held_back.pop_front() {
            if let Some(share) = self.lanes.get_mut(&lane) {
                share.held_back = false;
            }
            if let Some(found) = self.first_of(&lane) {
                // The other waiting keys of this lane come after the other lanes.
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
        let idle = |share: &Lane| {
            share.active == 0 && share.waiting.is_empty() && !share.held_back && !share.crowded
        };
        if self.lanes.get(lane).is_some_and(idle) {
            self.lanes.remove(lane);
        }
    }
}
