//! How one cluster stands with the release, by itself.

use std::time::Duration;

use jiff::Timestamp;

use super::stages::Direction;
use super::types::{
    ClusterView, EntryView, FailureReason, Held, HoldReason, ObservedSync, PlanInput, Progress, Reach,
};

/// How a cluster stands, before the others are looked at.
#[derive(Clone, Debug)]
pub(super) struct Standing<'a> {
    pub(super) name: &'a str,
    pub(super) cluster: &'a ClusterView,
    /// What it is.
    pub(super) class: Class,
    /// The slot that it holds.
    pub(super) slot: Option<Slot>,
    /// A person took it out of the rollout.
    pub(super) skipped: bool,
    /// It is done, and something is wrong with it since.
    pub(super) broken: bool,
    /// It can be reached, and is in flight or not healthy.
    pub(super) unavailable: bool,
}

/// What a cluster is in flight for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// This release, which was admitted with all entries.
    Release,
    /// What was admitted there before: an older release, the last known good one, or a part of this one. No decision
    /// carries its deadline, at which it ends at the latest.
    Leftover {
        /// That deadline.
        until: Timestamp,
    },
}

/// What a cluster is for this release.
#[derive(Clone, Debug)]
pub(super) enum Class {
    /// All entries hold their target, and soaked.
    Done,
    /// Kept from starting by something that concerns it alone.
    Held(HoldReason),
    /// Admitted and not healthy.
    InFlight { deadline: Timestamp, lost: bool },
    /// Healthy, and not for long enough.
    Soaking { until: Timestamp },
    /// Admitted and failed.
    Failed(Failed),
    /// May start.
    Startable {
        /// The entries that are not admitted to their target yet.
        entries: Vec<String>,
        /// Its admission to this release was begun and cut short.
        begun: bool,
    },
}

/// A failure, and when it is tried again.
#[derive(Clone, Debug)]
pub(super) struct Failed {
    pub(super) reason: FailureReason,
    pub(super) retry_at: Option<Timestamp>,
}

impl Standing<'_> {
    /// Whether this release has reached the cluster, and is neither done nor failed there.
    pub(super) fn is_reached(&self) -> bool {
        matches!(
            self.class,
            Class::InFlight { .. } | Class::Soaking { .. } | Class::Startable { begun: true, .. }
        )
    }

    /// Whether it counts as failed.
    pub(super) fn is_failed(&self) -> bool {
        !self.skipped && matches!(self.class, Class::Failed(_))
    }
}

pub(super) fn classify<'a>(input: &'a PlanInput, name: &'a str, cluster: &'a ClusterView) -> Standing<'a> {
    let eye = Eye::on(input, cluster);
    let class = skip(input, name, cluster, eye.class());
    let slot = match &class {
        Class::InFlight { .. } | Class::Soaking { .. } => Some(Slot::Release),
        Class::Done | Class::Failed(_) => None,
        // Work on an older release goes on until this one takes over, and is in flight meanwhile. Where the
        // cluster is unreachable nothing goes on there, and a newer release does not wait for it.
        Class::Held(_) | Class::Startable { .. } => (cluster.reach == Reach::Ready)
            .then(|| eye.at_work_until())
            .flatten()
            .map(|until| Slot::Leftover { until }),
    };
    let reachable = cluster.reach == Reach::Ready;
    Standing {
        name,
        cluster,
        skipped: input.steering.skipped.contains_key(name),
        broken: matches!(class, Class::Done) && admissions(cluster).any(is_in_trouble),
        unavailable: reachable && (slot.is_some() || admissions(cluster).any(|sync| !is_healthy(sync))),
        class,
        slot,
    }
}

/// Takes out of the rollout what a person skipped, unless it was begun there before.
fn skip(input: &PlanInput, name: &str, cluster: &ClusterView, class: Class) -> Class {
    if !matches!(class, Class::Held(_) | Class::Startable { begun: false, .. }) {
        return class;
    }
    let steering = &input.steering;
    let of_stage = || {
        let stage = input.strategy.stages.get(cluster.stage)?;
        // On the way back at once there are no stages.
        (input.rollout.direction != Direction::BackAtOnce)
            .then(|| steering.skipped_stages.get(&stage.name))
            .flatten()
    };
    match steering.skipped.get(name).or_else(of_stage) {
        Some(word) => Class::Held(HoldReason::Skipped(word.clone())),
        None => class,
    }
}

/// One cluster, and what its Syncs' times are held against.
struct Eye<'a> {
    input: &'a PlanInput,
    cluster: &'a ClusterView,
    /// How long a target has to be healthy.
    soak: Duration,
    /// Up to when what the cluster's Syncs say counts.
    seen: Timestamp,
}

impl<'a> Eye<'a> {
    fn on(input: &'a PlanInput, cluster: &'a ClusterView) -> Self {
        let soak = match input.rollout.direction {
            Direction::Forward | Direction::Back => input.strategy.limits.min_success_time,
            Direction::BackAtOnce => Duration::ZERO,
        };
        let seen = match cluster.reach {
            Reach::Unreachable { since, .. } => since.min(input.now),
            Reach::Ready | Reach::Unprobed | Reach::Suspended => input.now,
        };
        Self {
            input,
            cluster,
            soak,
            seen,
        }
    }

    fn class(&self) -> Class {
        let entries = &self.cluster.entries;
        if entries.values().all(|view| self.is_done(view)) {
            return Class::Done;
        }
        let missing: Vec<&String> = entries
            .iter()
            .filter(|(_, view)| !is_at_target(view))
            .map(|(name, _)| name)
            .collect();
        let complete = missing.is_empty();
        let admitted: Vec<&ObservedSync> = admissions(self.cluster)
            .filter(|sync| complete || sync.release == self.input.rollout.release)
            .collect();
        let unfinished = admitted.iter().any(|sync| !self.is_finished(sync));
        let suspended = suspended(self.cluster);
        // Lost beats a parameter that became invalid meanwhile: it is the release that may have cut the cluster off.
        let lost = self.cluster.reach != Reach::Ready && unfinished && suspended.is_none();
        if !lost && let Some(reason) = invalid(self.cluster).or(suspended) {
            return Class::Held(reason);
        }
        // Where entries are missing, a ready cluster gets them, whatever became of the others: those may have failed
        // for want of just these.
        if complete || lost {
            return self.under_way(&admitted);
        }
        match &self.cluster.reach {
            Reach::Ready => Class::Startable {
                entries: missing.into_iter().cloned().collect(),
                begun: self.is_begun(),
            },
            Reach::Unprobed => Class::Held(HoldReason::ClusterNotProbed),
            Reach::Suspended => Class::Held(HoldReason::ClusterSuspended),
            Reach::Unreachable {
                reason,
                message,
                since,
            } => Class::Held(HoldReason::ClusterUnreachable {
                reason: reason.clone(),
                message: message.clone(),
                since: *since,
            }),
        }
    }

    /// The class of a cluster that was admitted and is not done. Its time counts from the last of its admissions, in
    /// which that of the whole cluster was complete.
    ///
    /// A failure that was seen stays one when the cluster becomes unreachable: to lose sight of it is not to recover,
    /// and must not give the budget back. But it waits while an entry is at work that came after it, for it may have
    /// happened for want of just that.
    fn under_way(&self, admitted: &[&ObservedSync]) -> Class {
        let failed = admitted.iter().find_map(|sync| self.failing(sync));
        let release = &self.input.rollout.release;
        let at_work = admitted
            .iter()
            .any(|sync| self.is_at_work(sync, admitted, sync.release == *release));
        let lost = self.cluster.reach != Reach::Ready;
        let is_cut_off = matches!(self.cluster.reach, Reach::Unreachable { .. });
        if failed.is_none()
            && !is_cut_off
            && let Some(until) = self.soaks_until(admitted)
        {
            return Class::Soaking { until };
        }
        match self.deadline_of(admitted) {
            Some(deadline) if deadline > self.input.now && (at_work || failed.is_none()) => {
                Class::InFlight { deadline, lost }
            }
            // Where nobody recorded the admission, no time is left: a wait without an end would hold a slot for ever.
            _ => Class::Failed(failed.unwrap_or(Failed {
                reason: if lost {
                    FailureReason::LostAfterAdmission
                } else {
                    FailureReason::ProgressDeadlineExceeded
                },
                retry_at: None,
            })),
        }
    }

    /// When the last of them has been healthy for long enough; `None` where one of them is not healthy.
    fn soaks_until(&self, admitted: &[&ObservedSync]) -> Option<Timestamp> {
        let unfinished = admitted.iter().filter(|sync| !self.is_finished(sync));
        let untils: Vec<Option<Timestamp>> = unfinished
            .map(|sync| match &sync.progress {
                Progress::Held(held) => held.since?.checked_add(self.soak).ok(),
                Progress::Working | Progress::Failing { .. } => None,
            })
            .collect();
        untils.into_iter().collect::<Option<Vec<_>>>()?.into_iter().max()
    }

    /// Until when it has to be healthy. One that was lost while it soaked has its time from then on: it did get there.
    fn deadline_of(&self, admitted: &[&ObservedSync]) -> Option<Timestamp> {
        let last = admitted.iter().filter_map(|sync| sync.admitted_at).max();
        let deadline = self.deadline(last);
        match self.cluster.reach {
            Reach::Unreachable { since, .. } if self.soaks_until(admitted).is_some() => {
                deadline.max(self.deadline(Some(since)))
            }
            _ => deadline,
        }
    }

    fn deadline(&self, from: Option<Timestamp>) -> Option<Timestamp> {
        from?
            .checked_add(self.input.strategy.limits.progress_deadline)
            .ok()
    }

    /// Whether an entry is at work, and not in backoff because one of `others` failed that was admitted with it or
    /// since. What is `newest` came after the failures of every other release, whatever the clocks said.
    fn is_at_work(&self, sync: &ObservedSync, others: &[&ObservedSync], newest: bool) -> bool {
        let since = |other: &ObservedSync| !newest && other.admitted_at >= sync.admitted_at;
        let stops = |other: &&ObservedSync| {
            self.failing(other).is_some() && (other.release == sync.release || since(other))
        };
        self.works(sync) && !sync.suspended && !others.iter().any(stops)
    }

    /// Whether an admission is neither held nor failed. What is not healthy for a moment while it soaks is at work again.
    fn works(&self, sync: &ObservedSync) -> bool {
        match &sync.progress {
            Progress::Working => true,
            Progress::Held(held) => {
                sync.release == self.input.rollout.release
                    && held.since.is_none()
                    && held.trouble.is_none()
                    && !self.is_soaked(held)
            }
            Progress::Failing { .. } => false,
        }
    }

    /// Whether the admission of a cluster was cut short between two entries: some are admitted by this release and
    /// not done, and the missing ones were last admitted before that, by another release. Missing entries of which
    /// that is not so miss their target because their parameters changed, or because a release came back.
    fn is_begun(&self) -> bool {
        let ours = |sync: &ObservedSync| sync.release == self.input.rollout.release;
        let (admitted, missing): (Vec<&EntryView>, Vec<&EntryView>) =
            self.cluster.entries.values().partition(|view| is_at_target(view));
        let begun_at = admitted
            .into_iter()
            .filter(|view| !self.is_done(view))
            .filter_map(|view| view.observed.as_ref())
            .filter(|sync| ours(sync))
            .filter_map(|sync| sync.admitted_at)
            .max();
        begun_at.is_some()
            && missing
                .into_iter()
                .filter_map(|view| view.observed.as_ref())
                .all(|sync| sync.target.is_none() || (!ours(sync) && sync.admitted_at < begun_at))
    }

    /// Until when a cluster is at work on what it was admitted to; `None` where it is not.
    fn at_work_until(&self) -> Option<Timestamp> {
        let admitted: Vec<&ObservedSync> = admissions(self.cluster).collect();
        admitted
            .iter()
            .filter(|sync| self.is_at_work(sync, &admitted, false))
            .filter_map(|sync| self.deadline(sync.admitted_at))
            .filter(|deadline| *deadline > self.input.now)
            .max()
    }

    fn is_done(&self, view: &EntryView) -> bool {
        is_at_target(view) && view.observed.as_ref().is_some_and(|sync| self.is_finished(sync))
    }

    /// Whether a rollout is through with an admission.
    fn is_finished(&self, sync: &ObservedSync) -> bool {
        matches!(&sync.progress, Progress::Held(held) if self.is_soaked(held))
    }

    fn is_soaked(&self, held: &Held) -> bool {
        let now = |since: Timestamp| since.checked_add(self.soak).is_ok_and(|until| until <= self.seen);
        self.soak.is_zero() || held.longest >= self.soak || held.since.is_some_and(now)
    }

    /// A failed attempt, or a target that broke before it was done.
    fn failing(&self, sync: &ObservedSync) -> Option<Failed> {
        let (reason, message, retry_at) = match &sync.progress {
            Progress::Failing {
                reason,
                message,
                retry_at,
            } => (reason, message, *retry_at),
            Progress::Held(held) if !self.is_soaked(held) => {
                let trouble = held.trouble.as_ref()?;
                (&trouble.reason, &trouble.message, None)
            }
            Progress::Working | Progress::Held(_) => return None,
        };
        Some(Failed {
            reason: FailureReason::AttemptFailed {
                reason: reason.clone(),
                message: message.clone(),
            },
            retry_at,
        })
    }
}

/// The entries that a cluster lacks of the last known good release, where it was never admitted to anything else.
pub(super) fn missing_of_known_good(cluster: &ClusterView) -> Option<Vec<String>> {
    let mut missing = Vec::new();
    for (name, view) in &cluster.entries {
        let good = view.known_good.as_ref()?;
        match view.observed.as_ref().and_then(|sync| sync.target.as_ref()) {
            None => missing.push(name.clone()),
            Some(target) if target == good => {}
            Some(_) => return None,
        }
    }
    (!missing.is_empty()).then_some(missing)
}

fn admissions(cluster: &ClusterView) -> impl Iterator<Item = &ObservedSync> {
    cluster
        .entries
        .values()
        .filter_map(|view| view.observed.as_ref())
        .filter(|sync| sync.target.is_some())
}

fn is_at_target(view: &EntryView) -> bool {
    let target = view.observed.as_ref().and_then(|sync| sync.target.as_ref());
    target.is_some() && view.wanted.as_ref().ok() == target
}

fn is_healthy(sync: &ObservedSync) -> bool {
    matches!(&sync.progress, Progress::Held(held) if held.since.is_some())
}

fn is_in_trouble(sync: &ObservedSync) -> bool {
    matches!(&sync.progress, Progress::Held(held) if held.trouble.is_some())
}

fn invalid(cluster: &ClusterView) -> Option<HoldReason> {
    cluster.entries.iter().find_map(|(name, view)| {
        let message = view.wanted.as_ref().err()?;
        Some(HoldReason::InvalidParameters {
            entry: name.clone(),
            message: message.clone(),
        })
    })
}

fn suspended(cluster: &ClusterView) -> Option<HoldReason> {
    if cluster.reach == Reach::Suspended {
        return Some(HoldReason::ClusterSuspended);
    }
    cluster.entries.iter().find_map(|(name, view)| {
        let observed = view.observed.as_ref()?;
        observed
            .suspended
            .then(|| HoldReason::SyncSuspended { entry: name.clone() })
    })
}
