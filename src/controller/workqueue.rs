//! The work queue: which objects are reconciled next, and when.
//!
//! The rules are those of client-go's workqueue, which controllers of this field are written against: a key
//! waits once however often it is added; the earlier of two times wins; a key that is added while it is being
//! worked on is worked on again afterwards, never twice at a time. An activation carries no data, so adding a
//! key once too often costs one reconcile and nothing else.
//!
//! A queue may have lanes: a key whose lane holds its share of the workers waits without holding one, and without
//! holding up the keys behind it ([`super::shares`]). Its time and its place in line stay as they were.
//!
//! kube's own `Controller` is not used: it opens a watch per trigger and hides deletions from shared streams,
//! and here one watch per kind serves all reconcilers (ADR 0006).

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::object_key::ObjectKey;
use super::shares::{Limits, OccupiedWorker, Place, WorkerShares};

/// A set of keys with times.
#[derive(Debug, Default)]
pub struct Workqueue {
    state: Mutex<State>,
    changed: Notify,
}

/// The lane of a key.
pub type LaneOf = Box<dyn Fn(&ObjectKey) -> Option<ObjectKey> + Send + Sync>;

/// Which lane a key belongs to, and how much of the workers each may hold.
pub struct LaneRules {
    /// The lane of a key; `None`: it belongs to none.
    pub lane_of: LaneOf,
    /// Whether a lane may hold its workers up.
    pub is_suspect: Box<dyn Fn(&ObjectKey) -> bool + Send + Sync>,
    /// The most workers at once.
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
    /// What waits for its time or a worker, by time; the number keeps keys of one time apart, in the order they came.
    due: BTreeMap<Place, ObjectKey>,
    /// Where each waiting key stands: in `due`, or in its lane.
    position: HashMap<ObjectKey, Position>,
    /// Keys that are being worked on, and what they hold of their lane.
    active: HashMap<ObjectKey, Option<OccupiedWorker>>,
    /// Keys that were added while active, and for when.
    again: HashMap<ObjectKey, Instant>,
    next_number: u64,
    /// Empty: no lanes.
    lanes: Option<(LaneRules, WorkerShares)>,
}

#[derive(Clone, Debug)]
struct Position {
    place: Place,
    /// The lane in which it waits for a worker; `None`: it is in `due`.
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
            // What waits for its lane is due already. Something has changed, so the lane may be another one by now.
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

    /// The first key that is due and whose lane has room, taken; or when one will be due.
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

    /// Takes a worker of the key's lane.
    ///
    /// # Errors
    /// The lane in which the key waits now.
    fn hold(&mut self, key: &ObjectKey, place: Place) -> Result<Option<OccupiedWorker>, ObjectKey> {
        let Some((rules, shares)) = &mut self.lanes else {
            return Ok(None);
        };
        let Some(lane) = (rules.lane_of)(key) else {
            return Ok(None);
        };
        let suspect = (rules.is_suspect)(&lane);
        shares.take(&lane, suspect, place, key).map(Some).ok_or(lane)
    }

    /// Ends the work on a key. Returns whether there is something to take now that was not there before.
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
    /// A queue with lanes.
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

    /// Adds `key`: it is reconciled as soon as a worker is free.
    pub fn add(&self, key: ObjectKey) {
        self.add_at(key, Instant::now());
    }

    /// Adds `key` for after `delay`, or earlier if it was added for earlier.
    pub fn add_after(&self, key: ObjectKey, delay: Duration) {
        self.add_at(key, Instant::now() + delay);
    }

    fn add_at(&self, key: ObjectKey, at: Instant) {
        self.lock().add(key, at);
        self.changed.notify_one();
    }

    /// The next key, once it is due; it is active until [`Self::done`].
    pub async fn next(&self) -> ObjectKey {
        loop {
            let changed = self.changed.notified();
            let taken = self.lock().take(Instant::now());
            match taken {
                Ok(key) => {
                    // Another worker may be asleep until a time that is no longer the first.
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

    /// Work on `key` is over; what was asked for meanwhile waits from now on.
    pub fn done(&self, key: &ObjectKey) {
        let changed = self.lock().done(key);
        if changed {
            self.changed.notify_one();
        }
    }

    /// How many keys wait, and how many are worked on.
    #[must_use]
    pub fn len(&self) -> (usize, usize) {
        let state = self.lock();
        (state.position.len(), state.active.len())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        // Nothing panics while holding it; if something did, the table itself is still sound.
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

    /// Keys read `CLUSTER-N`; lanes named `s…` are suspect while `suspects` says so.
    fn laned(limits: Limits, suspects: &Arc<AtomicBool>) -> Workqueue {
        let suspects = suspects.clone();
        Workqueue::with_lanes(LaneRules {
            lane_of: Box::new(|key| {
                let (cluster, _) = key.name.split_once('-')?;
                Some(ObjectKey::new("ns", cluster))
            }),
            is_suspect: Box::new(move |lane| lane.name.starts_with('s') && suspects.load(Ordering::SeqCst)),
            limits,
        })
    }

    fn suspicion() -> Arc<AtomicBool> {
        Arc::new(AtomicBool::new(true))
    }

    /// All that can be taken now.
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
        // Asked for again, it keeps its place, and there is still no room.
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
        // It is not suspect any more: the next time that it is added, it is taken.
        suspects.store(false, Ordering::SeqCst);
        queue.add(key("s4-1"));
        assert_eq!(taken(&queue), ["s4-1"]);
        for name in ["s1-1", "s3-1", "s4-1", "b-1", "c-1"] {
            queue.done(&key(name));
        }
        assert_eq!((taken(&queue), queue.len()), (vec![], (0, 0)));
    }

    /// Guards against a key that waits for suspects which are none any more: it would never get a worker.
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

    /// Any sequence of adds, takes, ends and changes of mood: no share is exceeded, no key is worked on twice at a
    /// time, and when all work ends every key that was added was taken after it.
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
                let queue = laned(limits, &suspects);
                // Key, and whether it was suspect when it was taken.
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
