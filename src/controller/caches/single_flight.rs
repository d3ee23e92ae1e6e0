//! A single-flight cache: concurrent calls for a key share one computation, and values are kept while they are used.
//!
//! Existing caches use the clock of the system, and their background work affects the order of tasks. This cache uses
//! the clock of the runtime, so that a simulation is deterministic.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The bounds of a cache.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Maximum time since the last use of a value.
    pub(super) idle: Duration,
    /// Maximum weight of all values together.
    pub(super) weight: u64,
}

/// Values by key. Values beyond the bounds are dropped in the order of their last use.
#[derive(Debug)]
pub(super) struct SingleFlight<T, E> {
    bounds: Bounds,
    weigh: fn(&T) -> u64,
    entries: Mutex<Entries<T, E>>,
}

#[derive(Debug)]
struct Entries<T, E> {
    by_key: HashMap<Arc<str>, Entry<T, E>>,
    /// Keys by the sequence number of their last use.
    by_use: BTreeMap<u64, Arc<str>>,
    uses: u64,
    weight: u64,
}

#[derive(Debug)]
struct Entry<T, E> {
    flight: Arc<Flight<T, E>>,
    used: Instant,
    number: u64,
    /// Zero while the value is being computed.
    weight: u64,
}

/// The computation of one value.
#[derive(Debug)]
struct Flight<T, E> {
    /// Locked by the call that computes the value. If that call is dropped, the next one computes it.
    turn: tokio::sync::Mutex<()>,
    made: Mutex<Option<Result<T, E>>>,
}

impl<T, E> Default for Flight<T, E> {
    fn default() -> Self {
        Self {
            turn: tokio::sync::Mutex::default(),
            made: Mutex::new(None),
        }
    }
}

impl<T: Clone, E: Clone> SingleFlight<T, E> {
    /// Creates an empty cache. A value whose weight is 0 is not kept.
    pub(super) fn new(bounds: Bounds, weigh: fn(&T) -> u64) -> Self {
        Self {
            bounds,
            weigh,
            entries: Mutex::new(Entries {
                by_key: HashMap::new(),
                by_use: BTreeMap::new(),
                uses: 0,
                weight: 0,
            }),
        }
    }

    /// Returns the value of a key, computed by `make` if it is missing. All waiting calls get a failure, and it is not
    /// kept: the next call tries again.
    ///
    /// # Errors
    /// The error of `make`.
    pub(super) async fn get_or_make(
        &self,
        key: &str,
        make: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let flight = self.lock().flight(key, self.bounds.idle);
        let _turn = flight.turn.lock().await;
        if let Some(made) = flight.made() {
            return made;
        }
        let made = make.await;
        *flight.made.lock().unwrap_or_else(PoisonError::into_inner) = Some(made.clone());
        self.put(key, &flight, made.as_ref().ok());
        made
    }

    /// Keeps a computed value. Removes the entry after a failure, and of a value without weight.
    fn put(&self, key: &str, flight: &Arc<Flight<T, E>>, made: Option<&T>) {
        let mut entries = self.lock();
        let Some(entry) = entries
            .by_key
            .get_mut(key)
            .filter(|entry| Arc::ptr_eq(&entry.flight, flight))
        else {
            return;
        };
        let weight = made.map_or(0, self.weigh);
        if weight == 0 {
            entries.remove(key);
            return;
        }
        entry.weight = weight;
        entries.weight += entry.weight;
        while entries.weight > self.bounds.weight && entries.drop_oldest() {}
    }

    fn lock(&self) -> MutexGuard<'_, Entries<T, E>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Clone, E: Clone> Flight<T, E> {
    fn made(&self) -> Option<Result<T, E>> {
        self.made.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl<T, E> Entries<T, E> {
    /// Returns the flight of a key and marks the key as used.
    fn flight(&mut self, key: &str, idle: Duration) -> Arc<Flight<T, E>> {
        let now = Instant::now();
        self.sweep(now, idle);
        self.uses += 1;
        let number = self.uses;
        if let Some(entry) = self.by_key.get_mut(key) {
            if let Some(key) = self.by_use.remove(&entry.number) {
                self.by_use.insert(number, key);
            }
            (entry.number, entry.used) = (number, now);
            return Arc::clone(&entry.flight);
        }
        let flight = Arc::new(Flight::default());
        let key: Arc<str> = key.into();
        let entry = Entry {
            flight: Arc::clone(&flight),
            used: now,
            number,
            weight: 0,
        };
        self.by_use.insert(number, Arc::clone(&key));
        self.by_key.insert(key, entry);
        flight
    }

    /// Drops values that were idle for too long. A computation that takes longer than that is no longer shared: the
    /// next call begins another one.
    fn sweep(&mut self, now: Instant, idle: Duration) {
        loop {
            let oldest = self
                .by_use
                .first_key_value()
                .and_then(|(_, key)| self.by_key.get(key));
            if oldest.is_none_or(|entry| now - entry.used < idle) {
                return;
            }
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) -> bool {
        let Some((_, key)) = self.by_use.pop_first() else {
            return false;
        };
        self.remove(&key);
        true
    }

    fn remove(&mut self, key: &str) {
        if let Some(entry) = self.by_key.remove(key) {
            self.by_use.remove(&entry.number);
            self.weight -= entry.weight;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use futures::FutureExt as _;

    use super::*;

    const IDLE: Duration = Duration::from_secs(30);

    fn cache(weight: u64) -> SingleFlight<u64, &'static str> {
        SingleFlight::new(Bounds { idle: IDLE, weight }, |thing| *thing)
    }

    /// Gets a value of a weight and returns whether it had to be computed.
    async fn ask(cache: &SingleFlight<u64, &'static str>, key: &str, weight: u64) -> bool {
        let made = Cell::new(false);
        let make = async {
            made.set(true);
            Ok(weight)
        };
        assert_eq!(cache.get_or_make(key, make).await, Ok(weight));
        made.get()
    }

    #[tokio::test(start_paused = true)]
    async fn a_thing_is_kept_while_it_is_used() {
        let cache = cache(100);
        assert!(ask(&cache, "a", 1).await);
        for _ in 0..3 {
            tokio::time::advance(IDLE - Duration::from_secs(1)).await;
            assert!(!ask(&cache, "a", 1).await, "it was used a moment ago");
        }
        tokio::time::advance(IDLE).await;
        assert!(ask(&cache, "a", 1).await, "nobody used it for too long");
        assert_eq!(cache.lock().weight, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_used_longest_ago_is_evicted() {
        let cache = cache(10);
        for key in ["a", "b"] {
            ask(&cache, key, 5).await;
        }
        assert!(!ask(&cache, "a", 5).await);
        assert!(ask(&cache, "c", 5).await);
        assert!(!ask(&cache, "a", 5).await, "used after b");
        assert!(ask(&cache, "b", 5).await);
        assert!(ask(&cache, "too large", 11).await);
        let entries = cache.lock();
        assert_eq!((entries.weight, entries.by_key.len()), (0, 0));
    }

    #[tokio::test]
    async fn those_who_ask_together_get_one_answer_and_a_failure_is_not_kept() {
        let cache = cache(10);
        let begun = Cell::new(0);
        let fail = || async {
            begun.set(begun.get() + 1);
            tokio::task::yield_now().await;
            Err("no")
        };
        let (one, other) = tokio::join!(cache.get_or_make("a", fail()), cache.get_or_make("a", fail()));
        assert_eq!((one, other, begun.get()), (Err("no"), Err("no"), 1));
        assert!(ask(&cache, "a", 1).await, "tried again");
    }

    #[tokio::test]
    async fn a_value_without_weight_is_computed_again() {
        let cache = cache(10);
        assert!(ask(&cache, "empty", 0).await);
        assert!(ask(&cache, "empty", 0).await);
        assert!(cache.lock().by_key.is_empty());
    }

    #[tokio::test]
    async fn who_is_dropped_while_making_leaves_it_to_the_next() {
        let cache = cache(10);
        let mut given_up = Box::pin(cache.get_or_make("a", std::future::pending()));
        assert!(given_up.as_mut().now_or_never().is_none());
        let waits = ask(&cache, "a", 1);
        tokio::pin!(waits);
        assert!(waits.as_mut().now_or_never().is_none());
        drop(given_up);
        assert!(waits.await);
    }
}
