//! How one entry of a cluster stands, and what follows from several.

use std::time::Duration;

use jiff::Timestamp;

use super::standing::Failed;
use super::types::{ClusterView, EntryView, FailureReason, Held, ObservedSync, Progress};

/// An entry, and how it stands. Made once for each: its strings lie anywhere in memory, and to look at them again for every
/// question would be most of the time of a plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen<'a> {
    pub(super) view: &'a EntryView,
    /// Its Sync, if it was admitted to anything.
    pub(super) sync: Option<&'a ObservedSync>,
    /// Whether its Sync names the wanted target.
    pub(super) at_target: bool,
    /// Nothing is going on where there is no Sync.
    pub(super) mood: Mood,
}

/// How one admission stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mood {
    /// A rollout is through with it.
    Through,
    /// Healthy, and through then.
    Soaks(Timestamp),
    /// It was healthy, and is not for a moment. Its health check has a time of its own for that.
    Unsteady,
    /// On the way.
    Works,
    /// Its last attempt failed, or it broke before it was through.
    Fails,
}

/// What the times of a cluster's Syncs are held against.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    /// How long a target has to be healthy.
    pub(super) soak: Duration,
    /// Up to when what the cluster's Syncs say counts.
    pub(super) seen: Timestamp,
}

impl<'a> Seen<'a> {
    pub(super) fn of(view: &'a EntryView, clock: Clock) -> Self {
        let sync = view.observed.as_ref().filter(|sync| sync.target.is_some());
        let at_target = is_at_target(view);
        Self {
            view,
            sync,
            at_target,
            mood: sync.map_or(Mood::Through, |sync| clock.mood(sync, at_target)),
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.at_target && self.mood == Mood::Through
    }

    pub(super) fn lacks_known_good(&self) -> bool {
        self.sync.is_none() && self.view.known_good.is_some()
    }

    pub(super) fn waits_with_known_good(&self) -> bool {
        let target = self.sync.and_then(|sync| sync.target.as_ref());
        target.is_some() && target == self.view.known_good.as_ref()
    }
}

impl Clock {
    /// Only at its target a Sync soaks; what holds an older one is through with that.
    fn mood(self, sync: &ObservedSync, at_target: bool) -> Mood {
        let held = match &sync.progress {
            Progress::Working => return Mood::Works,
            Progress::Failing { .. } => return Mood::Fails,
            Progress::Held(held) => held,
        };
        if !at_target || self.is_soaked(held) {
            Mood::Through
        } else if held.trouble.is_some() {
            Mood::Fails
        } else {
            let until = held.healthy_since().map(|since| since.checked_add(self.soak));
            until.map_or(Mood::Unsteady, |until| {
                Mood::Soaks(until.unwrap_or(Timestamp::MAX))
            })
        }
    }

    fn is_soaked(self, held: &Held) -> bool {
        let now = |since: Timestamp| since.checked_add(self.soak).is_ok_and(|until| until <= self.seen);
        self.soak.is_zero() || held.longest >= self.soak || held.healthy_since().is_some_and(now)
    }
}

/// When the last of them has been healthy for long enough; `None` where one of them is not healthy, or all are through.
pub(super) fn soaks_until(entries: &[Seen<'_>]) -> Option<Timestamp> {
    let mut last = None;
    for entry in entries {
        match entry.mood {
            Mood::Through => {}
            Mood::Soaks(until) => last = last.max(Some(until)),
            Mood::Unsteady | Mood::Works | Mood::Fails => return None,
        }
    }
    last
}

/// Whether an admission is at work, and not in backoff because one of `others` failed that was admitted with it or
/// since. What is `newest` came after the failures of every other release, whatever the clocks said.
pub(super) fn is_at_work(entry: &Seen<'_>, others: &[Seen<'_>], newest: bool) -> bool {
    let Some(sync) = entry.sync.filter(|sync| !sync.suspended) else {
        return false;
    };
    let since = |other: &ObservedSync| !newest && other.admitted_at >= sync.admitted_at;
    let stops = |other: &Seen<'_>| {
        let failed = other.sync.filter(|_| other.mood == Mood::Fails);
        failed.is_some_and(|other| other.release == sync.release || since(other))
    };
    entry.mood == Mood::Works && !others.iter().any(stops)
}

/// What failed about an admission that fails.
pub(super) fn failure(sync: &ObservedSync) -> Failed {
    let (reason, message, retry_at) = match &sync.progress {
        Progress::Failing {
            reason,
            message,
            retry_at,
        } => (reason.clone(), message.clone(), *retry_at),
        Progress::Held(Held {
            trouble: Some(trouble),
            ..
        }) => (trouble.reason.clone(), trouble.message.clone(), None),
        Progress::Working | Progress::Held(_) => (String::new(), String::new(), None),
    };
    Failed {
        reason: FailureReason::AttemptFailed { reason, message },
        retry_at,
    }
}

/// The entries that a cluster lacks of the last known good release, where it was never admitted to anything else. An entry
/// that is newer than that release waits for its stage.
pub(super) fn missing_of_known_good(cluster: &ClusterView) -> Option<Vec<&String>> {
    let mut missing = Vec::new();
    for (name, view) in &cluster.entries {
        let target = view.observed.as_ref().and_then(|sync| sync.target.as_ref());
        match (target, &view.known_good) {
            (None, Some(_)) => missing.push(name),
            (None, None) => {}
            (Some(target), Some(good)) if target == good => {}
            (Some(_), _) => return None,
        }
    }
    (!missing.is_empty()).then_some(missing)
}

/// The entries that are not admitted to their target.
pub(super) fn missing(cluster: &ClusterView) -> impl Iterator<Item = &String> {
    let entries = cluster.entries.iter();
    entries
        .filter(|(_, view)| !is_at_target(view))
        .map(|(name, _)| name)
}

fn is_at_target(view: &EntryView) -> bool {
    let target = view.observed.as_ref().and_then(|sync| sync.target.as_ref());
    target.is_some() && view.wanted.as_ref().ok() == target
}

pub(super) fn is_healthy(sync: &ObservedSync) -> bool {
    matches!(&sync.progress, Progress::Held(held) if held.healthy_since().is_some())
}

pub(super) fn is_in_trouble(sync: &ObservedSync) -> bool {
    matches!(&sync.progress, Progress::Held(held) if held.trouble.is_some())
}
