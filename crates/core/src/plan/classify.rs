//! How one cluster stands with the release, by itself.

use std::time::Duration;

use jiff::Timestamp;

use super::stages::{Direction, Word};
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
    /// It can be reached, and something that was admitted there is not healthy.
    pub(super) unhealthy: bool,
    /// When time alone changes any of this, at the earliest, though no decision carries that time.
    pub(super) turns_at: Option<Timestamp>,
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
    InFlight {
        /// `None`: its health check has a time of its own.
        deadline: Option<Timestamp>,
        lost: bool,
    },
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

    /// Whether it can be reached, and is in flight or, where its stage is open and nobody passed it over, not healthy. What is
    /// broken in a stage that waits cannot be mended by this rollout before its turn, and what was passed over not at all:
    /// to wait for that would never end.
    pub(super) fn is_unavailable(&self, is_open: bool) -> bool {
        let in_flight = self.slot.is_some() && self.cluster.reach == Reach::Ready;
        in_flight || (is_open && self.unhealthy && !self.skipped)
    }

    /// Whether the rollout does not wait for it: it is done, passed over, or was out of reach before anything was started
    /// there, whatever else is wrong with it; it is caught up with later.
    pub(super) fn is_settled(&self, skips_unreachable: bool) -> bool {
        let out_of_reach = || matches!(self.cluster.reach, Reach::Unreachable { .. });
        match self.class {
            Class::Done => true,
            Class::Held(_) if skips_unreachable && out_of_reach() => true,
            _ => self.skipped,
        }
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
        turns_at: eye.turns_at(&class),
        skipped: passed_over_by(input, name, cluster).is_some(),
        broken: matches!(class, Class::Done) && admissions(cluster).any(is_in_trouble),
        unhealthy: reachable && admissions(cluster).any(|sync| !is_healthy(sync)),
        class,
        slot,
    }
}

/// Takes out of the rollout what a person skipped, unless it was begun there before.
fn skip(input: &PlanInput, name: &str, cluster: &ClusterView, class: Class) -> Class {
    if !matches!(class, Class::Held(_) | Class::Startable { begun: false, .. }) {
        return class;
    }
    match passed_over_by(input, name, cluster) {
        Some(word) => Class::Held(HoldReason::Skipped(word.clone())),
        None => class,
    }
}

/// Who had the rollout pass the cluster over: alone, or with its stage before this release was admitted there.
fn passed_over_by<'a>(input: &'a PlanInput, name: &str, cluster: &ClusterView) -> Option<&'a Word> {
    let steering = &input.steering;
    let of_stage = || {
        let stage = input.strategy.stages.get(cluster.stage)?;
        // On the way back at once there are no stages.
        let word = steering.skipped_stages.get(&stage.name);
        word.filter(|_| input.rollout.direction != Direction::BackAtOnce)
            .filter(|_| !admissions(cluster).any(|sync| sync.release == input.rollout.release))
    };
    steering.skipped.get(name).or_else(of_stage)
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

/// How one admission stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
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

    /// The mood of an entry's Sync. Only at its target it soaks; what holds an older one is through with that.
    fn mood(&self, view: &EntryView, sync: &ObservedSync) -> Mood {
        let held = match &sync.progress {
            Progress::Working => return Mood::Works,
            Progress::Failing { .. } => return Mood::Fails,
            Progress::Held(held) => held,
        };
        if !is_at_target(view) || self.is_soaked(held) {
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

    fn admitted(&self) -> impl Iterator<Item = (&'a ObservedSync, Mood)> {
        self.cluster.entries.values().filter_map(|view| {
            let sync = view.observed.as_ref().filter(|sync| sync.target.is_some())?;
            Some((sync, self.mood(view, sync)))
        })
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
        let admitted: Vec<(&ObservedSync, Mood)> = self
            .admitted()
            .filter(|(sync, _)| complete || sync.release == self.input.rollout.release)
            .collect();
        let is_cut_off = matches!(self.cluster.reach, Reach::Unreachable { .. });
        // Only time is missing, whoever suspended what.
        if complete
            && !is_cut_off
            && let Some(until) = soaks_until(&admitted)
        {
            return Class::Soaking { until };
        }
        let unfinished = admitted.iter().any(|(_, mood)| *mood != Mood::Through);
        let suspended = suspended(self.cluster);
        // Lost beats a parameter that became invalid meanwhile: it is the release that may have cut the cluster off.
        let lost = self.cluster.reach != Reach::Ready && unfinished && suspended.is_none();
        if !lost && let Some(reason) = suspended.or_else(|| invalid(self.cluster)) {
            return Class::Held(reason);
        }
        // Where entries are missing, a ready cluster gets them, whatever became of the others: those may have failed
        // for want of just these.
        if complete || lost {
            return self.under_way(&admitted, complete);
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
    fn under_way(&self, admitted: &[(&ObservedSync, Mood)], complete: bool) -> Class {
        let failed = admitted
            .iter()
            .find(|(_, mood)| *mood == Mood::Fails)
            .map(|(sync, _)| failure(sync));
        let release = &self.input.rollout.release;
        let at_work = admitted
            .iter()
            .any(|(sync, mood)| is_at_work((*sync, *mood), admitted, sync.release == *release));
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
            Some(failed) if !at_work => Class::Failed(failed),
            _ => Class::InFlight { deadline, lost },
        }
    }

    /// How long it may take to become healthy. One that was lost while it soaked has its time from then on: it did get
    /// there. Where nobody recorded the admission, no time is left: a wait without an end would hold a slot for ever.
    fn time_left(&self, admitted: &[(&ObservedSync, Mood)], complete: bool) -> TimeLeft {
        let got_there = complete
            && admitted
                .iter()
                .all(|(_, mood)| matches!(mood, Mood::Through | Mood::Soaks(_) | Mood::Unsteady));
        let last = admitted.iter().filter_map(|(sync, _)| sync.admitted_at).max();
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
                .filter(|view| !waits_with_known_good(view))
                .filter_map(|view| view.observed.as_ref())
                .all(|sync| sync.target.is_none() || (!ours(sync) && sync.admitted_at < begun_at))
    }

    /// Until when a cluster is at work on what it was admitted to; `None` where it is not.
    fn at_work_until(&self) -> Option<Timestamp> {
        let admitted: Vec<(&ObservedSync, Mood)> = self.admitted().collect();
        admitted
            .iter()
            .filter(|(sync, mood)| is_at_work((*sync, *mood), &admitted, false))
            .filter_map(|(sync, _)| self.deadline(sync.admitted_at))
            .filter(|deadline| *deadline > self.input.now)
            .max()
    }

    /// When the first of its entries has soaked, where that matters by itself: an admission that was cut short counts as begun
    /// for as long as one of its entries is not done, and a cluster that was not probed since is lost while one is not.
    fn turns_at(&self, class: &Class) -> Option<Timestamp> {
        let depends =
            self.cluster.reach == Reach::Unprobed || matches!(class, Class::Startable { begun: true, .. });
        let ends = self.admitted().filter_map(|(_, mood)| match mood {
            Mood::Soaks(until) => Some(until),
            Mood::Through | Mood::Unsteady | Mood::Works | Mood::Fails => None,
        });
        ends.filter(|_| depends).min()
    }

    fn is_done(&self, view: &EntryView) -> bool {
        let through =
            |sync: &ObservedSync| matches!(&sync.progress, Progress::Held(held) if self.is_soaked(held));
        is_at_target(view) && view.observed.as_ref().is_some_and(through)
    }

    fn is_soaked(&self, held: &Held) -> bool {
        let now = |since: Timestamp| since.checked_add(self.soak).is_ok_and(|until| until <= self.seen);
        self.soak.is_zero() || held.longest >= self.soak || held.healthy_since().is_some_and(now)
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

/// When the last of them has been healthy for long enough; `None` where one of them is not healthy, or all are through.
fn soaks_until(admitted: &[(&ObservedSync, Mood)]) -> Option<Timestamp> {
    let unfinished = admitted.iter().filter(|(_, mood)| *mood != Mood::Through);
    let untils = unfinished.map(|(_, mood)| match mood {
        Mood::Soaks(until) => Some(*until),
        Mood::Through | Mood::Unsteady | Mood::Works | Mood::Fails => None,
    });
    untils.collect::<Option<Vec<_>>>()?.into_iter().max()
}

/// Whether an admission is at work, and not in backoff because one of `others` failed that was admitted with it or
/// since. What is `newest` came after the failures of every other release, whatever the clocks said.
fn is_at_work((sync, mood): (&ObservedSync, Mood), others: &[(&ObservedSync, Mood)], newest: bool) -> bool {
    let since = |other: &ObservedSync| !newest && other.admitted_at >= sync.admitted_at;
    let stops = |(other, mood): &(&ObservedSync, Mood)| {
        *mood == Mood::Fails && (other.release == sync.release || since(other))
    };
    mood == Mood::Works && !sync.suspended && !others.iter().any(stops)
}

/// What failed about an admission that fails.
fn failure(sync: &ObservedSync) -> Failed {
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
pub(super) fn missing_of_known_good(cluster: &ClusterView) -> Option<Vec<String>> {
    let mut missing = Vec::new();
    for (name, view) in &cluster.entries {
        let target = view.observed.as_ref().and_then(|sync| sync.target.as_ref());
        match (target, &view.known_good) {
            (None, Some(_)) => missing.push(name.clone()),
            (None, None) => {}
            (Some(target), Some(good)) if target == good => {}
            (Some(_), _) => return None,
        }
    }
    (!missing.is_empty()).then_some(missing)
}

fn waits_with_known_good(view: &EntryView) -> bool {
    let target = view.observed.as_ref().and_then(|sync| sync.target.as_ref());
    target.is_some() && target == view.known_good.as_ref()
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
    matches!(&sync.progress, Progress::Held(held) if held.healthy_since().is_some())
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
