//! Suspicions that the management cluster was set back, and what has to be read before one ends (ADR 40).
//!
//! The lists of a restored management cluster come one kind after the other, so the caches mix two pasts for a while. A
//! suspicion is pending until the count of writes was compared, and each kind was listed since. A pass that began
//! before a suspicion was raised has read the caches before, and does not carry its decision out.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// All suspicions of this process. They are numbered from one.
#[derive(Debug)]
pub struct Suspicions {
    state: Mutex<State>,
    raised: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    /// The count of writes was compared since this suspicion was raised.
    compared: u64,
    /// The kinds that are watched. Each was listed completely since this suspicion was raised.
    listed: BTreeMap<String, u64>,
}

impl Default for Suspicions {
    fn default() -> Self {
        Self {
            state: Mutex::default(),
            raised: watch::Sender::new(0),
        }
    }
}

impl Suspicions {
    /// Returns how many suspicions were raised.
    #[must_use]
    pub fn count(&self) -> u64 {
        *self.raised.borrow()
    }

    /// Returns a receiver of the changes of [`Self::count`].
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.raised.subscribe()
    }

    /// Returns whether a suspicion is pending.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        // Before the state is locked: who waits for a change holds these locks in the other order.
        let raised = self.count();
        let state = self.state();
        state.compared < raised || state.listed.values().any(|listed| *listed < raised)
    }

    /// Records that the count of writes was compared after so many suspicions.
    pub fn compared(&self, count: u64) {
        let mut state = self.state();
        state.compared = state.compared.max(count);
    }

    /// Adds a kind that is watched.
    #[must_use]
    pub fn of_kind(self: &Arc<Self>, kind: &str) -> KindSuspicions {
        let (raised, count) = (self.subscribe(), self.count());
        self.state().listed.insert(kind.to_owned(), count);
        KindSuspicions {
            all: self.clone(),
            kind: kind.to_owned(),
            raised,
        }
    }

    /// Raises a suspicion by a list that answers it.
    #[cfg(test)]
    pub fn raise_by_a_list(self: &Arc<Self>) {
        let sources = self.of_kind("Source");
        sources.listed(sources.raise().unwrap_or_default());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The suspicions, for the watch of one kind.
#[derive(Debug)]
pub struct KindSuspicions {
    all: Arc<Suspicions>,
    kind: String,
    raised: watch::Receiver<u64>,
}

impl KindSuspicions {
    /// Returns how many suspicions were raised. Those are answered by a list that begins now.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.all.count()
    }

    /// Raises a suspicion, unless this kind has not answered the last one yet: its lists are expected to be older then.
    /// Returns the number of suspicions if it raised one.
    pub fn raise(&self) -> Option<u64> {
        let state = self.all.state();
        let listed = state.listed.get(&self.kind).copied().unwrap_or_default();
        drop(state);
        if listed < self.count() {
            return None;
        }
        let mut count = 0;
        self.all.raised.send_modify(|raised| {
            *raised += 1;
            count = *raised;
        });
        Some(count)
    }

    /// Records a complete list that began after so many suspicions.
    pub fn listed(&self, count: u64) {
        self.all.state().listed.insert(self.kind.clone(), count);
    }

    /// Waits until a list of this kind is needed.
    pub async fn list_needed(&mut self) {
        loop {
            let raised = *self.raised.borrow_and_update();
            if self.is_list_needed(raised) {
                return;
            }
            if self.raised.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    fn is_list_needed(&self, raised: u64) -> bool {
        let state = self.all.state();
        state.listed.get(&self.kind).is_none_or(|listed| *listed < raised)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suspicion_ends_once_the_count_was_compared_and_all_kinds_were_listed() {
        let all = Arc::new(Suspicions::default());
        let (sources, groups) = (all.of_kind("Source"), all.of_kind("SyncGroup"));
        assert!(!all.is_pending());
        // The list that raised it is one after the restore.
        sources.listed(sources.raise().unwrap());
        all.compared(1);
        assert!(all.is_pending(), "the groups are of the lost past");
        assert_eq!(groups.raise(), None, "an older list is expected");
        groups.listed(groups.count());
        assert!(!all.is_pending());
        // Set back once more, before the first list of another kind.
        groups.listed(groups.raise().unwrap());
        sources.listed(1);
        all.compared(2);
        assert!(all.is_pending(), "a list that began before");
        sources.listed(2);
        assert!(!all.is_pending());
    }

    #[tokio::test]
    async fn each_kind_is_listed_once_for_a_suspicion() {
        let all = Arc::new(Suspicions::default());
        let (sources, mut groups) = (all.of_kind("Source"), all.of_kind("SyncGroup"));
        let pending = |groups: &mut KindSuspicions| {
            let needed = std::pin::pin!(groups.list_needed());
            futures::FutureExt::now_or_never(needed).is_none()
        };
        assert!(pending(&mut groups));
        assert_eq!(sources.raise(), Some(1));
        assert!(!pending(&mut groups));
        groups.listed(groups.count());
        assert!(pending(&mut groups));
    }
}
