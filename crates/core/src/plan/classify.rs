//! Classifies each cluster on its own.

use std::time::Duration;

use jiff::Timestamp;

use super::classifier::Classifier;
use super::entry::{
    EntryProgress, EntryState, SoakClock, failure, has_health_problem, is_at_work, is_healthy, soaks_until,
};
use super::removed::{RemovedEntries, removable};
use super::stages::{Attribution, Direction};
use super::state::{Class, ClusterState, Failed, Slot};
use super::types::{
    ClusterView, FailureReason, HoldReason, ObservedSync, PlanInput, Reach, UnresolvedTarget,
};
use crate::ids::ClusterName;

/// Returns the state of every cluster of the input, in the order of names.
pub(super) fn classify_all(input: &PlanInput) -> Vec<ClusterState<'_>> {
    let mut entries = Vec::new();
    let removed = RemovedEntries::of(input);
    input
        .clusters
        .iter()
        .map(|(name, cluster)| {
            let clock = SoakClock::of(input, cluster);
            entries.clear();
            entries.extend(cluster.entries.values().map(|view| EntryState::of(view, clock)));
            let classifier = Classifier {
                input,
                cluster,
                entries: &entries,
                removed: removed.on(name),
            };
            classify(name, &classifier)
        })
        .collect()
}

fn classify<'a>(name: &'a ClusterName, classifier: &Classifier<'a, '_>) -> ClusterState<'a> {
    let Classifier {
        cluster,
        entries,
        removed,
        ..
    } = *classifier;
    let skipped = classifier.skipped_by(name);
    let class = match (classifier.class(), skipped) {
        // Unless its admission has begun.
        (Class::Hold(_) | Class::Startable { begun: false }, Some(attribution)) => {
            Class::Hold(HoldReason::Skipped(attribution.clone()))
        }
        (class, _) => class,
    };
    let ready = cluster.reach == Reach::Ready;
    let slot = match &class {
        Class::InFlight { .. } | Class::Soaking { .. } => Some(Slot::Release),
        Class::Done | Class::Failed(_) => None,
        // An older release stays in flight until this release replaces it. On an unreachable cluster nothing is in
        // progress, and a newer release does not wait for it.
        Class::Hold(_) | Class::Startable { .. } => {
            let until = ready.then(|| classifier.at_work_until().max(classifier.removing_until()));
            let until = until.flatten();
            until.map(|until| Slot::Leftover { until })
        }
    };
    let syncs = || entries.iter().filter_map(|entry| entry.sync);
    ClusterState {
        name,
        cluster,
        changes_at: classifier.changes_at(&class),
        skipped: skipped.is_some(),
        broken: matches!(class, Class::Done) && syncs().any(has_health_problem),
        unhealthy: ready && syncs().any(|sync| !is_healthy(sync)),
        lacks_known_good: entries.iter().any(EntryState::lacks_known_good),
        lacks_nothing: entries.iter().all(EntryState::is_done),
        removable: removable(removed),
        class,
        slot,
    }
}

impl<'a> SoakClock<'a> {
    fn of(input: &'a PlanInput, cluster: &ClusterView) -> Self {
        Self {
            jumps: &input.clock_jumps,
            soak: match input.rollout.direction {
                Direction::Forward | Direction::Back => input.strategy.limits.min_success_time,
                Direction::BackAtOnce => Duration::ZERO,
            },
            valid_until: match cluster.reach {
                Reach::Unreachable { since, .. } => since.min(input.now),
                Reach::Ready | Reach::Unprobed | Reach::Suspended => input.now,
            },
        }
    }
}

impl<'a> Classifier<'a, '_> {
    fn is_ours(&self, sync: &ObservedSync) -> bool {
        sync.release == self.input.rollout.release
    }

    /// Returns who skipped the cluster in this rollout: on its own, or with its stage before this release was admitted
    /// there.
    fn skipped_by(&self, name: &str) -> Option<&'a Attribution> {
        let operator = &self.input.operator;
        let of_stage = || {
            let stage = self.input.strategy.stages.get(self.cluster.stage)?;
            let attribution = operator.skipped_stages.get(&stage.name)?;
            let mut syncs = self.entries.iter().filter_map(|entry| entry.sync);
            // An immediate rollback has no stages.
            let counts = self.input.rollout.direction != Direction::BackAtOnce;
            (counts && !syncs.any(|sync| self.is_ours(sync))).then_some(attribution)
        };
        operator.skipped.get(name).or_else(of_stage)
    }

    fn class(&self) -> Class {
        if self.entries.iter().all(EntryState::is_done) {
            return self.class_without_missing();
        }
        let complete = self.entries.iter().all(|entry| entry.at_target);
        let reach = &self.cluster.reach;
        // Only time is missing, even if something is suspended.
        if complete
            && !matches!(reach, Reach::Unreachable { .. })
            && let Some(until) = soaks_until(self.entries)
        {
            return Class::Soaking { until };
        }
        let counts = |entry: &&EntryState<'a>| entry.sync.is_some_and(|sync| complete || self.is_ours(sync));
        let unfinished = |entry: EntryState<'a>| entry.progress != EntryProgress::Finished;
        let admitted = || self.entries.iter().filter(counts).copied();
        let suspended = self.suspended();
        // Lost has precedence over a parameter that became invalid: the release may have cut the cluster off.
        let lost = *reach != Reach::Ready && suspended.is_none() && admitted().any(unfinished);
        if !lost && let Some(reason) = suspended.or_else(|| self.unresolved()) {
            return Class::Hold(reason);
        }
        // A ready cluster gets its missing entries whatever the state of the others, which may have failed because
        // these are missing.
        if complete || lost {
            return self.under_way(&admitted().collect::<Vec<_>>(), complete);
        }
        match self.not_ready() {
            Some(reason) => Class::Hold(reason),
            None => Class::Startable {
                begun: self.is_begun(),
            },
        }
    }

    /// Returns the class of a cluster that was admitted and is not done. Its deadline counts from the last of its
    /// admissions, which completed the admission of the cluster.
    ///
    /// A failure remains when the cluster becomes unreachable: that is not a recovery and does not lower the failure
    /// count. A failure does not count while an entry that was admitted later is in progress, since it may have
    /// happened because that entry was missing.
    fn under_way(&self, admitted: &[EntryState<'_>], complete: bool) -> Class {
        let mut fails = admitted
            .iter()
            .filter(|entry| entry.progress == EntryProgress::Failing);
        let failed = fails.find_map(|entry| entry.sync).map(failure);
        let is_ours = |entry: &EntryState<'_>| entry.sync.is_some_and(|sync| self.is_ours(sync));
        let at_work = || {
            let mut entries = admitted.iter();
            entries.any(|entry| is_at_work(entry, admitted, is_ours(entry)))
        };
        let lost = self.cluster.reach != Reach::Ready;
        let deadline = match self.time_left(admitted, complete) {
            // The cluster was healthy, and its health check has a timeout of its own.
            TimeLeft::Unbounded => None,
            TimeLeft::Until(deadline) => Some(deadline),
            TimeLeft::None => {
                return Class::Failed(failed.unwrap_or(Failed {
                    reason: if lost {
                        FailureReason::LostAfterAdmission
                    } else {
                        FailureReason::ProgressDeadlineExceeded
                    },
                    retry_at: None,
                }));
            }
        };
        match failed {
            Some(failed) if !at_work() => Class::Failed(failed),
            _ => Class::InFlight { deadline, lost },
        }
    }

    /// Returns how long the cluster may take to become healthy. A cluster that was lost while it soaked has the
    /// deadline from then on. An admission without a recorded time has no time left: an endless wait would block a slot
    /// for ever.
    fn time_left(&self, admitted: &[EntryState<'_>], complete: bool) -> TimeLeft {
        let was_healthy = complete
            && admitted.iter().all(|entry| {
                matches!(
                    entry.progress,
                    EntryProgress::Finished | EntryProgress::Soaking(_) | EntryProgress::SoakInterrupted
                )
            });
        let last = admitted.iter().filter_map(|entry| entry.sync?.admitted_at).max();
        let deadline = match self.cluster.reach {
            Reach::Unreachable { since, .. } if was_healthy => {
                self.deadline(last).max(self.deadline(Some(since)))
            }
            _ if was_healthy => return TimeLeft::Unbounded,
            _ => self.deadline(last),
        };
        let deadline = deadline.filter(|deadline| *deadline > self.input.now);
        deadline.map_or(TimeLeft::None, TimeLeft::Until)
    }

    /// Reports whether the admission of the cluster was interrupted between two entries: this release admitted some
    /// entries, which are not done, and the missing entries were last admitted earlier by another release, or hold the
    /// last known good release. Otherwise the missing entries differ from their target because their parameters
    /// changed, or because the release returned.
    fn is_begun(&self) -> bool {
        let under_way = self
            .entries
            .iter()
            .filter(|entry| entry.at_target && !entry.is_done());
        let begun_at = under_way
            .filter_map(|entry| entry.sync)
            .filter(|sync| self.is_ours(sync))
            .filter_map(|sync| sync.admitted_at)
            .max();
        begun_at.is_some()
            && self
                .entries
                .iter()
                .filter(|entry| !entry.at_target && !entry.waits_with_known_good())
                .filter_map(|entry| entry.sync)
                .all(|sync| !self.is_ours(sync) && sync.admitted_at < begun_at)
    }

    /// Returns until when the cluster is in flight for what was admitted before; `None`: it is not.
    fn at_work_until(&self) -> Option<Timestamp> {
        self.entries
            .iter()
            .filter(|entry| is_at_work(entry, self.entries, false))
            .filter_map(|entry| self.deadline(entry.sync?.admitted_at))
            .filter(|deadline| *deadline > self.input.now)
            .max()
    }

    /// Returns when the first of the entries has soaked, if that changes the state on its own: an interrupted admission
    /// counts as begun while one of its entries is not done, and a cluster that was not probed since is lost while one
    /// is not done.
    fn changes_at(&self, class: &Class) -> Option<Timestamp> {
        let depends =
            self.cluster.reach == Reach::Unprobed || matches!(class, Class::Startable { begun: true });
        let ends = self.entries.iter().filter_map(|entry| match entry.progress {
            EntryProgress::Soaking(until) => Some(until),
            EntryProgress::Finished
            | EntryProgress::SoakInterrupted
            | EntryProgress::Working
            | EntryProgress::Failing => None,
        });
        ends.filter(|_| depends).min()
    }

    /// Returns why an entry has no target to apply. An unreadable Sync comes before an invalid parameter, on whichever
    /// entries they are.
    fn unresolved(&self) -> Option<HoldReason> {
        let mut invalid = None;
        for (name, view) in &self.cluster.entries {
            let entry = || name.clone();
            match &view.wanted {
                Ok(_) => {}
                Err(UnresolvedTarget::UnreadableSync { sync }) => {
                    return Some(HoldReason::SyncUnreadable {
                        entry: entry(),
                        sync: sync.clone(),
                    });
                }
                Err(UnresolvedTarget::Parameter { message }) => {
                    invalid.get_or_insert_with(|| HoldReason::InvalidParameters {
                        entry: entry(),
                        message: message.clone(),
                    });
                }
            }
        }
        invalid
    }
}

/// The time that a cluster has left.
enum TimeLeft {
    /// No deadline.
    Unbounded,
    /// Until this time.
    Until(Timestamp),
    /// No time left.
    None,
}
