//! The work queue: the keys to reconcile, and their times.
//!
//! The rules are those of client-go's workqueue, which Kubernetes controllers rely on: a key waits once however often
//! it is added; the earlier of two times wins; a key that is added while a worker has it is taken again afterwards,
//! never twice at a time. A key carries no data, so a needless addition only costs one reconcile.
//!
//! A queue may have lanes: a key whose lane occupies its share of the workers waits without a worker, and does not
//! block the keys behind it ([`super::shares`]). Its time and its position stay the same.
//!
//! kube's own `Controller` is not used: it opens a watch for each trigger and hides deletions from shared streams,
//! while here one watch for each kind serves all reconcilers (ADR 0006).

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::shares::{Limits, OccupiedWorker, Place, WorkerShares};
use crate::controller::object_key::ObjectKey;

/// A set of keys with times.
#[derive(Debug, Default)]
pub struct Workqueue {
    state: Mutex<State>,
    changed: Notify,
}

/// The lane of a key.
pub type LaneOf = Box<dyn Fn(&ObjectKey) -> Option<ObjectKey> + Send + Sync>;

/// The lanes of a queue, and the workers that they may occupy.
pub struct LaneRules {
    /// The lane of a key; `None` if the key has no lane.
    pub lane_of: LaneOf,
    /// Returns whether a lane may block its workers for long.
    pub is_suspect: Box<dyn Fn(&ObjectKey) -> bool + Send + Sync>,
    /// Returns the maximum number of workers of all lanes of one namespace.
    pub of_namespace: Box<dyn Fn() -> usize + Send + Sync>,
    /// The maximum numbers of workers.
    pub limits: Limits,
}

impl fmt::Debug for LaneRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaneRules")
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Default)]
struct State {
    /// Keys that wait for their time or for a worker, by time. The number orders keys with equal times by their
    /// addition.
    due: BTreeMap<Place, ObjectKey>,
    /// The position of each waiting key: in `due` or in its lane.
    position: HashMap<ObjectKey, Position>,
    /// Keys that workers have, with the worker that each occupies.
    active: HashMap<ObjectKey, Option<OccupiedWorker>>,
    /// Keys that were added while active, with their times.
    again: HashMap<ObjectKey, Instant>,
    next_number: u64,
    /// The lanes; `None` for a queue without lanes.
    lanes: Option<(LaneRules, WorkerShares)>,
}

#[derive(Clone, Debug)]
struct Position {
    place: Place,
    /// The lane in which the key waits for a worker; `None` if the key is in `due`.
    parked: Option<ObjectKey>,
}

impl State {
    fn add(&mut self, key: ObjectKey, at: Instant) {
        if self.active.contains_key(&key) {
            let again = self.again.entry(key).or_insert(at);
            *again = at.min(*again);
            return;
        }
        match self.position.get(&key).cloned() {
            // A key that waits in its lane is already due. The object has changed, so that its lane may be another one.
            Some(Position {
                place,
                parked: Some(lane),
            }) => {
                let waiting = self
                    .lanes
                    .as_mut()
                    .and_then(|(_, shares)| shares.unpark(&lane, place));
                self.queue(waiting.unwrap_or(key), place);
                return;
            }
            Some(Position { place, parked: None }) if place.0 <= at => return,
            Some(Position { place, parked: None }) => drop(self.due.remove(&place)),
            None => {}
        }
        let place = (at, self.next_number);
        self.next_number += 1;
        self.queue(key, place);
    }

    fn queue(&mut self, key: ObjectKey, place: Place) {
        self.due.insert(place, key.clone());
        self.position.insert(key, Position { place, parked: None });
    }

    /// Takes the first key that is due and whose lane has a free worker.
    ///
    /// # Errors
    /// The time at which the next key is due, if any.
    fn take(&mut self, now: Instant) -> Result<ObjectKey, Option<Instant>> {
        while let Some(((at, _), _)) = self.due.first_key_value() {
            if *at > now {
                return Err(Some(*at));
            }
            let Some((place, key)) = self.due.pop_first() else {
                break;
            };
            match self.hold(&key, place) {
                Ok(held) => {
                    self.position.remove(&key);
                    self.active.insert(key.clone(), held);
                    return Ok(key);
                }
                Err(lane) => {
                    let parked = Some(lane);
                    self.position.insert(key, Position { place, parked });
                }
            }
        }
        Err(None)
    }

    /// Takes a worker for a key.
    ///
    /// # Errors
    /// The lane in which the key now waits.
    fn hold(&mut self, key: &ObjectKey, place: Place) -> Result<Option<OccupiedWorker>, ObjectKey> {
        let Some((rules, shares)) = &mut self.lanes else {
            return Ok(None);
        };
        let Some(lane) = (rules.lane_of)(key) else {
            return Ok(None);
        };
        let suspect = (rules.is_suspect)(&lane);
        let of_namespace = (rules.of_namespace)();
        shares
            .take(&lane, suspect, of_namespace, place, key)
            .map(Some)
            .ok_or(lane)
    }

    /// Gives back the worker of a key. Returns whether a further key can be taken now.
    fn give_back(&mut self, key: &ObjectKey) -> bool {
        let held = self.active.get_mut(key).and_then(Option::as_mut);
        let free = match (held, &mut self.lanes) {
            (Some(held), Some((_, shares))) => shares.give_back(held),
            _ => Vec::new(),
        };
        let changed = !free.is_empty();
        for (place, key) in free {
            self.queue(key, place);
        }
        changed
    }

    /// Ends the work on a key. Returns whether a further key can be taken now.
    fn done(&mut self, key: &ObjectKey) -> bool {
        let held = self.active.remove(key).flatten();
        let free = match (held, &mut self.lanes) {
            (Some(held), Some((_, shares))) => shares.release(held),
            _ => Vec::new(),
        };
        let mut changed = !free.is_empty();
        for (place, key) in free {
            self.queue(key, place);
        }
        if let Some(at) = self.again.remove(key) {
            self.add(key.clone(), at);
            changed = true;
        }
        changed
    }
}

impl Workqueue {
    /// Creates a queue with lanes.
    #[must_use]
    pub fn with_lanes(rules: LaneRules) -> Self {
        let shares = WorkerShares::new(rules.limits);
        let state = State {
            lanes: Some((rules, shares)),
            ..State::default()
        };
        Self {
            state: Mutex::new(state),
            changed: Notify::new(),
        }
    }

    /// Adds `key`, which is reconciled as soon as a worker is free.
    pub fn add(&self, key: ObjectKey) {
        self.add_at(key, Instant::now());
    }

    /// Adds `key` with a delay. An earlier time of the key stays.
    pub fn add_after(&self, key: ObjectKey, delay: Duration) {
        self.add_at(key, Instant::now() + delay);
    }

    fn add_at(&self, key: ObjectKey, at: Instant) {
        self.lock().add(key, at);
        self.changed.notify_one();
    }

    /// Waits for the next due key and returns it. The key is active until [`Self::done`].
    pub async fn next(&self) -> ObjectKey {
        loop {
            let changed = self.changed.notified();
            let taken = self.lock().take(Instant::now());
            match taken {
                Ok(key) => {
                    // Another worker may sleep until a time that is no longer the first.
                    self.changed.notify_one();
                    return key;
                }
                Err(Some(at)) => {
                    tokio::select! {
                        biased;
                        () = changed => {}
                        () = tokio::time::sleep_until(at) => {}
                    }
                }
                Err(None) => changed.await,
            }
        }
    }

    /// Gives back the worker of `key`, which stays active: its lane does not continue, and no other worker takes it.
    pub(super) fn give_back(&self, key: &ObjectKey) {
        let changed = self.lock().give_back(key);
        if changed {
            self.changed.notify_one();
        }
    }

    /// Ends the work on `key`. Keys that were added in the meantime wait from now on.
    pub fn done(&self, key: &ObjectKey) {
        let changed = self.lock().done(key);
        if changed {
            self.changed.notify_one();
        }
    }

    /// Returns the numbers of waiting and of active keys.
    #[must_use]
    pub fn len(&self) -> (usize, usize) {
        let state = self.lock();
        (state.position.len(), state.active.len())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        // Nothing panics while holding the lock; if something did, the state would still be consistent.
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use futures::FutureExt as _;

    use super::*;

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new("ns", name)
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_waits_once_and_the_earlier_time_wins() {
        let queue = Workqueue::default();
        queue.add_after(key("a"), Duration::from_secs(60));
        queue.add_after(key("a"), Duration::from_secs(10));
        queue.add_after(key("a"), Duration::from_secs(30));
        let start = Instant::now();
        assert_eq!(queue.next().await, key("a"));
        assert_eq!(start.elapsed(), Duration::from_secs(10));
        assert_eq!(queue.len(), (0, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_added_while_active_is_worked_on_again_and_never_twice_at_a_time() {
        let queue = Workqueue::default();
        queue.add(key("a"));
        let active = queue.next().await;
        queue.add(key("a"));
        queue.add(key("a"));
        assert!(
            tokio::time::timeout(Duration::from_secs(5), queue.next())
                .await
                .is_err()
        );
        queue.done(&active);
        assert_eq!(queue.next().await, key("a"));
        queue.done(&key("a"));
        assert_eq!(queue.len(), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn workers_share_a_queue_and_an_earlier_key_wakes_one() {
        let queue = std::sync::Arc::new(Workqueue::default());
        queue.add_after(key("late"), Duration::from_secs(100));
        let workers: Vec<_> = (0..3)
            .map(|_| {
                let queue = queue.clone();
                tokio::spawn(async move { queue.next().await })
            })
            .collect();
        tokio::time::sleep(Duration::from_secs(1)).await;
        queue.add(key("b"));
        queue.add(key("c"));
        let mut seen = Vec::new();
        for worker in workers {
            seen.push(worker.await.unwrap().name);
        }
        seen.sort();
        assert_eq!(seen, ["b", "c", "late"]);
    }

    /// Returns a queue whose keys are `CLUSTER-N`. Lanes with names that begin with `s` are suspect while `suspects` is
    /// true.
    fn laned(limits: Limits, suspects: &Arc<AtomicBool>) -> Workqueue {
        laned_within(limits, suspects, usize::MAX)
    }

    /// As [`laned`], with a maximum for all lanes of a namespace.
    fn laned_within(limits: Limits, suspects: &Arc<AtomicBool>, of_namespace: usize) -> Workqueue {
        let suspects = suspects.clone();
        Workqueue::with_lanes(LaneRules {
            lane_of: Box::new(|key| {
                let (cluster, _) = key.name.split_once('-')?;
                Some(ObjectKey::new(&key.namespace, cluster))
            }),
            is_suspect: Box::new(move |lane| lane.name.starts_with('s') && suspects.load(Ordering::SeqCst)),
            of_namespace: Box::new(move || of_namespace),
            limits,
        })
    }

    fn suspicion() -> Arc<AtomicBool> {
        Arc::new(AtomicBool::new(true))
    }

    /// Takes all keys that can be taken now.
    fn taken(queue: &Workqueue) -> Vec<String> {
        std::iter::from_fn(|| queue.next().now_or_never())
            .map(|key| key.name)
            .collect()
    }

    #[test]
    fn shares_of_the_workers() {
        for (workers, lane, suspects) in [(1, 1, 1), (2, 1, 1), (20, 1, 10), (40, 2, 20), (200, 10, 100)] {
            assert_eq!(Limits::of(workers), Limits { lane, suspects }, "{workers}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lane_that_is_full_holds_up_neither_workers_nor_others_and_goes_on_in_its_order() {
        let queue = laned(Limits { lane: 2, suspects: 9 }, &suspicion());
        for name in ["a-1", "a-2", "a-3", "a-4", "b-1", "none"] {
            queue.add(key(name));
        }
        assert_eq!(taken(&queue), ["a-1", "a-2", "b-1", "none"]);
        assert_eq!(queue.len(), (2, 4));
        // A key that is added again keeps its position, and its lane still has no free worker.
        queue.add(key("a-4"));
        assert!(taken(&queue).is_empty());
        queue.done(&key("b-1"));
        assert!(taken(&queue).is_empty());
        queue.done(&key("a-2"));
        assert_eq!(taken(&queue), ["a-3"]);
        queue.add(key("a-1"));
        queue.done(&key("a-1"));
        assert_eq!(taken(&queue), ["a-4"], "what came back is behind what waited");
        queue.done(&key("a-3"));
        assert_eq!(taken(&queue), ["a-1"]);
    }

    #[tokio::test(start_paused = true)]
    async fn all_suspects_together_hold_no_more_than_their_share() {
        let suspects = suspicion();
        let queue = laned(Limits { lane: 1, suspects: 2 }, &suspects);
        for name in ["s1-1", "s2-1", "s3-1", "s4-1", "a-1", "b-1", "c-1"] {
            queue.add(key(name));
        }
        assert_eq!(taken(&queue), ["s1-1", "s2-1", "a-1", "b-1", "c-1"]);
        queue.done(&key("a-1"));
        assert!(taken(&queue).is_empty());
        queue.done(&key("s2-1"));
        assert_eq!(taken(&queue), ["s3-1"]);
        // The lane is no longer suspect: the next addition of the key takes it.
        suspects.store(false, Ordering::SeqCst);
        queue.add(key("s4-1"));
        assert_eq!(taken(&queue), ["s4-1"]);
        for name in ["s1-1", "s3-1", "s4-1", "b-1", "c-1"] {
            queue.done(&key(name));
        }
        assert_eq!((taken(&queue), queue.len()), (vec![], (0, 0)));
    }

    /// Guards against twenty clusters of one namespace, or eight git servers, that hold all workers.
    #[tokio::test(start_paused = true)]
    async fn tenant_one_namespace_leaves_workers_to_the_others() {
        let limits = Limits { lane: 2, suspects: 9 };
        let queue = laned_within(limits, &suspicion(), 3);
        let in_other = |name: &str| ObjectKey::new("other", name);
        for name in ["a-1", "a-2", "a-3", "b-1", "c-1", "d-1"] {
            queue.add(key(name));
        }
        queue.add(in_other("z-1"));
        assert_eq!(taken(&queue), ["a-1", "a-2", "b-1", "z-1"]);
        queue.done(&in_other("z-1"));
        assert!(taken(&queue).is_empty(), "another namespace frees nothing");
        queue.done(&key("a-1"));
        assert_eq!(taken(&queue), ["a-3"], "the first that waited");
        for (done, next) in [("a-2", "c-1"), ("b-1", "d-1")] {
            queue.done(&key(done));
            assert_eq!(taken(&queue), [next]);
        }
        for name in ["a-3", "c-1", "d-1"] {
            queue.done(&key(name));
        }
        assert_eq!((taken(&queue), queue.len()), (vec![], (0, 0)));
    }

    /// Guards against a key that waits for suspect lanes that no longer exist: it would never get a worker.
    #[tokio::test(start_paused = true)]
    async fn who_waited_for_suspects_goes_on_when_they_are_well() {
        let suspects = suspicion();
        let queue = laned(Limits { lane: 1, suspects: 1 }, &suspects);
        for name in ["s1-1", "s2-1", "s3-1", "s4-1"] {
            queue.add(key(name));
        }
        assert_eq!(taken(&queue), ["s1-1"]);
        suspects.store(false, Ordering::SeqCst);
        queue.done(&key("s1-1"));
        let mut seen = Vec::new();
        while let Some(name) = taken(&queue).pop() {
            queue.done(&key(&name));
            seen.push(name);
        }
        assert_eq!(seen, ["s2-1", "s3-1", "s4-1"]);
    }

    /// Checks any sequence of additions, takes, ends and changes of suspects: no share is exceeded, no key is active
    /// twice at a time, and after all work every added key was taken after its addition.
    #[test]
    fn no_key_is_lost_and_no_share_exceeded_whatever_happens() {
        use proptest::prelude::*;

        #[derive(Clone, Debug)]
        enum Move {
            Add(usize),
            Later(usize, u64),
            Take,
            Done(usize),
            Suspect(bool),
            Time(u64),
        }
        const NAMES: [&str; 9] = ["a-1", "a-2", "a-3", "b-1", "s1-1", "s1-2", "s2-1", "s3-1", "none"];
        let moves = prop_oneof![
            4 => (0..NAMES.len()).prop_map(Move::Add),
            1 => (0..NAMES.len(), 0..9u64).prop_map(|(n, wait)| Move::Later(n, wait)),
            4 => Just(Move::Take),
            3 => (0..9usize).prop_map(Move::Done),
            1 => any::<bool>().prop_map(Move::Suspect),
            1 => (0..9u64).prop_map(Move::Time),
        ];
        let limits = Limits { lane: 2, suspects: 2 };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        proptest!(ProptestConfig::with_cases(256), |(moves in proptest::collection::vec(moves, 0..80))| {
            runtime.block_on(async {
                let suspects = suspicion();
                let of_namespace = 4;
                let queue = laned_within(limits, &suspects, of_namespace);
                // The key, and whether its lane was suspect when the key was taken.
                let mut active: Vec<(ObjectKey, bool)> = Vec::new();
                let mut owed = BTreeSet::new();
                let is_suspect = |key: &ObjectKey, suspects: bool| key.name.starts_with('s') && suspects;
                let take = |active: &mut Vec<(ObjectKey, bool)>, owed: &mut BTreeSet<ObjectKey>| {
                    let Some(key) = queue.next().now_or_never() else { return false };
                    owed.remove(&key);
                    assert!(active.iter().all(|(other, _)| *other != key), "{key} twice");
                    active.push((key.clone(), is_suspect(&key, suspects.load(Ordering::SeqCst))));
                    let lane = |key: &ObjectKey| key.name.split_once('-').map(|(lane, _)| lane.to_owned());
                    let of_lane = active.iter().filter(|(other, _)| lane(other) == lane(&key)).count();
                    assert!(lane(&key).is_none() || of_lane <= limits.lane, "{active:?}");
                    assert!(active.iter().filter(|(_, suspect)| *suspect).count() <= limits.suspects, "{active:?}");
                    let in_lanes = active.iter().filter(|(other, _)| lane(other).is_some()).count();
                    assert!(in_lanes <= of_namespace, "{active:?}");
                    true
                };
                for step in moves {
                    match step {
                        Move::Add(n) => {
                            queue.add(key(NAMES[n]));
                            owed.insert(key(NAMES[n]));
                        }
                        Move::Later(n, wait) => {
                            queue.add_after(key(NAMES[n]), Duration::from_secs(wait));
                            owed.insert(key(NAMES[n]));
                        }
                        Move::Take => drop(take(&mut active, &mut owed)),
                        Move::Done(n) if !active.is_empty() => {
                            let (key, _) = active.remove(n % active.len());
                            queue.done(&key);
                        }
                        Move::Done(_) => {}
                        Move::Suspect(suspect) => suspects.store(suspect, Ordering::SeqCst),
                        Move::Time(seconds) => tokio::time::advance(Duration::from_secs(seconds)).await,
                    }
                }
                tokio::time::advance(Duration::from_secs(10)).await;
                while take(&mut active, &mut owed) || !active.is_empty() {
                    if let Some((key, _)) = active.pop() {
                        queue.done(&key);
                    }
                }
                assert!(owed.is_empty(), "never taken: {owed:?}");
                assert_eq!(queue.len(), (0, 0));
            });
        });
    }
}
