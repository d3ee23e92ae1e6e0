//! How each cluster stands with the release, by itself.

use std::time::Duration;

use jiff::Timestamp;

use super::entry::{Clock, Mood, Seen, failure, is_at_work, is_healthy, is_in_trouble, soaks_until};
use super::stages::{Direction, Word};
use super::standing::{Class, Failed, Slot, Standing};
use super::types::{ClusterView, FailureReason, HoldReason, ObservedSync, PlanInput, Reach};

/// Every cluster of the input, in the order of their names.
pub(super) fn classify_all(input: &PlanInput) -> Vec<Standing<'_>> {
    let mut entries = Vec::new();
    input
        .clusters
        .iter()
        .map(|(name, cluster)| {
            let clock = Clock::of(input, cluster);
            entries.clear();
            entries.extend(cluster.entries.values().map(|view| Seen::of(view, clock)));
            classify(input, name, cluster, &entries)
        })
        .collect()
}

fn classify<'a>(
    input: &'a PlanInput,
    name: &'a str,
    cluster: &'a ClusterView,
    entries: &[Seen<'a>],
) -> Standing<'a> {
    let eye = Eye {
        input,
        cluster,
        entries,
    };
    let passed_over = eye.passed_over_by(name);
    let class = match (eye.class(), passed_over) {
        // Unless it was begun there before.
        (Class::Held(_) | Class::Startable { begun: false }, Some(word)) => {
            Class::Held(HoldReason::Skipped(word.clone()))
        }
        (class, _) => class,
    };
    let ready = cluster.reach == Reach::Ready;
    let slot = match &class {
        Class::InFlight { .. } | Class::Soaking { .. } => Some(Slot::Release),
        Class::Done | Class::Failed(_) => None,
        // Work on an older release goes on until this one takes over, and is in flight meanwhile. Where the
        // cluster is unreachable nothing goes on there, and a newer release does not wait for it.
        Class::Held(_) | Class::Startable { .. } => {
            let until = ready.then(|| eye.at_work_until()).flatten();
            until.map(|until| Slot::Leftover { until })
        }
    };
    let syncs = || entries.iter().filter_map(|entry| entry.sync);
    Standing {
        name,
        cluster,
        turns_at: eye.turns_at(&class),
        skipped: passed_over.is_some(),
        broken: matches!(class, Class::Done) && syncs().any(is_in_trouble),
        unhealthy: ready && syncs().any(|sync| !is_healthy(sync)),
        lacks_known_good: entries.iter().any(Seen::lacks_known_good),
        class,
        slot,
    }
}

impl Clock {
    fn of(input: &PlanInput, cluster: &ClusterView) -> Self {
        Self {
            soak: match input.rollout.direction {
                Direction::Forward | Direction::Back => input.strategy.limits.min_success_time,
                Direction::BackAtOnce => Duration::ZERO,
            },
            seen: match cluster.reach {
                Reach::Unreachable { since, .. } => since.min(input.now),
                Reach::Ready | Reach::Unprobed | Reach::Suspended => input.now,
            },
        }
    }
}

/// One cluster, and how its entries stand.
struct Eye<'a, 'e> {
    input: &'a PlanInput,
    cluster: &'a ClusterView,
    entries: &'e [Seen<'a>],
}

impl<'a> Eye<'a, '_> {
    fn is_ours(&self, sync: &ObservedSync) -> bool {
        sync.release == self.input.rollout.release
    }

    /// Who had the rollout pass the cluster over: alone, or with its stage before this release was admitted there.
    fn passed_over_by(&self, name: &str) -> Option<&'a Word> {
        let steering = &self.input.steering;
        let of_stage = || {
            let stage = self.input.strategy.stages.get(self.cluster.stage)?;
            let word = steering.skipped_stages.get(&stage.name)?;
            let mut syncs = self.entries.iter().filter_map(|entry| entry.sync);
            // On the way back at once there are no stages.
            let counts = self.input.rollout.direction != Direction::BackAtOnce;
            (counts && !syncs.any(|sync| self.is_ours(sync))).then_some(word)
        };
        steering.skipped.get(name).or_else(of_stage)
    }

    fn class(&self) -> Class {
        if self.entries.iter().all(Seen::is_done) {
            return Class::Done;
        }
        let complete = self.entries.iter().all(|entry| entry.at_target);
        let reach = &self.cluster.reach;
        // Only time is missing, whoever suspended what.
        if complete
            && !matches!(reach, Reach::Unreachable { .. })
            && let Some(until) = soaks_until(self.entries)
        {
            return Class::Soaking { until };
        }
        let counts = |entry: &&Seen<'a>| entry.sync.is_some_and(|sync| complete || self.is_ours(sync));
        let unfinished = |entry: Seen<'a>| entry.mood != Mood::Through;
        let admitted = || self.entries.iter().filter(counts).copied();
        let suspended = self.suspended();
        // Lost beats a parameter that became invalid meanwhile: it is the release that may have cut the cluster off.
        let lost = *reach != Reach::Ready && suspended.is_none() && admitted().any(unfinished);
        if !lost && let Some(reason) = suspended.or_else(|| self.invalid()) {
            return Class::Held(reason);
        }
        // Where entries are missing, a ready cluster gets them, whatever became of the others: those may have failed
        // for want of just these.
        if complete || lost {
            return self.under_way(&admitted().collect::<Vec<_>>(), complete);
        }
        match out_of_reach(reach) {
            Some(reason) => Class::Held(reason),
            None => Class::Startable {
                begun: self.is_begun(),
            },
        }
    }

    /// The class of a cluster that was admitted and is not done. Its time counts from the last of its admissions, in
    /// which that of the whole cluster was complete.
    ///
    /// A failure that was seen stays one when the cluster becomes unreachable: to lose sight of it is not to recover,
    /// and must not give the budget back. But it waits while an entry is at work that came after it, for it may have
    /// happened for want of just that.
    fn under_way(&self, admitted: &[Seen<'_>], complete: bool) -> Class {
        let mut fails = admitted.iter().filter(|entry| entry.mood == Mood::Fails);
        let failed = fails.find_map(|entry| entry.sync).map(failure);
        let is_ours = |entry: &Seen<'_>| entry.sync.is_some_and(|sync| self.is_ours(sync));
        let at_work = || {
            let mut entries = admitted.iter();
            entries.any(|entry| is_at_work(entry, admitted, is_ours(entry)))
        };
        let lost = self.cluster.reach != Reach::Ready;
        let deadline = match self.time_left(admitted, complete) {
            // It got there, and is looked after by its health check.
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

    /// How long it may take to become healthy. One that was lost while it soaked has its time from then on: it did get
    /// there. Where nobody recorded the admission, no time is left: a wait without an end would hold a slot for ever.
    fn time_left(&self, admitted: &[Seen<'_>], complete: bool) -> TimeLeft {
        let got_there = complete
            && admitted
                .iter()
                .all(|entry| matches!(entry.mood, Mood::Through | Mood::Soaks(_) | Mood::Unsteady));
        let last = admitted.iter().filter_map(|entry| entry.sync?.admitted_at).max();
        let deadline = match self.cluster.reach {
            Reach::Unreachable { since, .. } if got_there => {
                self.deadline(last).max(self.deadline(Some(since)))
            }
            _ if got_there => return TimeLeft::Unbounded,
            _ => self.deadline(last),
        };
        let deadline = deadline.filter(|deadline| *deadline > self.input.now);
        deadline.map_or(TimeLeft::None, TimeLeft::Until)
    }

    fn deadline(&self, from: Option<Timestamp>) -> Option<Timestamp> {
        from?
            .checked_add(self.input.strategy.limits.progress_deadline)
            .ok()
    }

    /// Whether the admission of a cluster was cut short between two entries: some are admitted by this release and
    /// not done, and the missing ones were last admitted before that, by another release, or hold what was good until
    /// their stage opens. Missing entries of which that is not so miss their target because their parameters changed, or
    /// because a release came back.
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

    /// Until when a cluster is at work on what it was admitted to; `None` where it is not.
    fn at_work_until(&self) -> Option<Timestamp> {
        self.entries
            .iter()
            .filter(|entry| is_at_work(entry, self.entries, false))
            .filter_map(|entry| self.deadline(entry.sync?.admitted_at))
            .filter(|deadline| *deadline > self.input.now)
            .max()
    }

    /// When the first of its entries has soaked, where that matters by itself: an admission that was cut short counts as begun
    /// for as long as one of its entries is not done, and a cluster that was not probed since is lost while one is not.
    fn turns_at(&self, class: &Class) -> Option<Timestamp> {
        let depends =
            self.cluster.reach == Reach::Unprobed || matches!(class, Class::Startable { begun: true });
        let ends = self.entries.iter().filter_map(|entry| match entry.mood {
            Mood::Soaks(until) => Some(until),
            Mood::Through | Mood::Unsteady | Mood::Works | Mood::Fails => None,
        });
        ends.filter(|_| depends).min()
    }

    fn invalid(&self) -> Option<HoldReason> {
        self.cluster.entries.iter().find_map(|(name, view)| {
            let message = view.wanted.as_ref().err()?;
            Some(HoldReason::InvalidParameters {
                entry: name.clone(),
                message: message.clone(),
            })
        })
    }

    fn suspended(&self) -> Option<HoldReason> {
        if self.cluster.reach == Reach::Suspended {
            return Some(HoldReason::ClusterSuspended);
        }
        self.cluster.entries.iter().find_map(|(name, view)| {
            let observed = view.observed.as_ref()?;
            observed
                .suspended
                .then(|| HoldReason::SyncSuspended { entry: name.clone() })
        })
    }
}

/// How long a cluster may take.
enum TimeLeft {
    /// As long as it wants.
    Unbounded,
    /// Until then.
    Until(Timestamp),
    /// No longer.
    None,
}

/// Why nothing can be started on a cluster by what the Cluster loop found; `None`: it is ready.
fn out_of_reach(reach: &Reach) -> Option<HoldReason> {
    match reach {
        Reach::Ready => None,
        Reach::Unprobed => Some(HoldReason::ClusterNotProbed),
        Reach::Suspended => Some(HoldReason::ClusterSuspended),
        Reach::Unreachable {
            reason,
            message,
            since,
        } => Some(HoldReason::ClusterUnreachable {
            reason: reason.clone(),
            message: message.clone(),
            since: *since,
        }),
    }
}
