//! The requeue table: which objects are looked at next, and when.
//!
//! The rules are those of client-go's workqueue, which controllers of this field are written against: a key
//! waits once however often it is added; the earlier of two times wins; a key that is added while it is being
//! worked on is worked on again afterwards, never twice at a time. An activation carries no data, so adding a
//! key once too often costs a look and nothing else.
//!
//! kube's own `Controller` is not used: it opens a watch per trigger and hides deletions from shared streams,
//! and here one watch per kind serves all reconcilers (ADR 0006).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Mutex;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::cache::ObjectKey;

/// A set of keys with times.
#[derive(Debug, Default)]
pub struct Workqueue {
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// What waits, by time; the number keeps keys of one time apart, in the order they came.
    due: BTreeMap<(Instant, u64), ObjectKey>,
    /// Where each waiting key stands in `due`.
    position: HashMap<ObjectKey, (Instant, u64)>,
    /// Keys that are being worked on.
    active: HashSet<ObjectKey>,
    /// Keys that were added while active, and for when.
    again: HashMap<ObjectKey, Instant>,
    next_number: u64,
}

impl State {
    fn add(&mut self, key: ObjectKey, at: Instant) {
        if self.active.contains(&key) {
            let again = self.again.entry(key).or_insert(at);
            *again = at.min(*again);
            return;
        }
        if let Some(position) = self.position.get(&key) {
            if position.0 <= at {
                return;
            }
            self.due.remove(position);
        }
        let position = (at, self.next_number);
        self.next_number += 1;
        self.due.insert(position, key.clone());
        self.position.insert(key, position);
    }

    /// The first key that is due, taken; or when one will be.
    fn take(&mut self, now: Instant) -> Result<ObjectKey, Option<Instant>> {
        match self.due.first_key_value() {
            Some(((at, _), _)) if *at > now => Err(Some(*at)),
            None => Err(None),
            Some(_) => {
                let Some((_, key)) = self.due.pop_first() else {
                    return Err(None);
                };
                self.position.remove(&key);
                self.active.insert(key.clone());
                Ok(key)
            }
        }
    }
}

impl Workqueue {
    /// Looks at `key` as soon as a worker is free.
    pub fn add(&self, key: ObjectKey) {
        self.add_at(key, Instant::now());
    }

    /// Looks at `key` after `delay`, or earlier if it is asked for earlier.
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
        let again = {
            let mut state = self.lock();
            state.active.remove(key);
            let again = state.again.remove(key);
            if let Some(at) = again {
                state.add(key.clone(), at);
            }
            again
        };
        if again.is_some() {
            self.changed.notify_one();
        }
    }

    /// How many keys wait, and how many are worked on.
    #[must_use]
    pub fn len(&self) -> (usize, usize) {
        let state = self.lock();
        (state.due.len(), state.active.len())
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
}
