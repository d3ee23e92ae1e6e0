//! A fleet with a history: what may happen to it, and a group that rolls releases through it by the plan.
//!
//! The model knows nothing of slots or budgets. It knows what the clusters do, writes what a plan admits, and
//! counts for itself where the group's work is going on.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use proptest::collection::vec;
use proptest::prelude::*;
use starling_core::plan::check::check;
use starling_core::plan::{
    ClusterView, Decision, EntryView, HoldReason, Limits, ObservedSync, Plan, PlanInput, Progress, Reach,
    plan,
};

/// The group's entries.
const ENTRIES: [&str; 3] = ["app", "base", "crds"];

/// What may happen. A number picks the cluster (or Sync), modulo those to which it can happen.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// Every Sync of a cluster that is at work is done.
    Finish(u8),
    /// One Sync that is at work is done.
    FinishEntry(u8),
    /// An attempt at a Sync fails.
    Fail(u8),
    /// A cluster with a failing Sync is done after all.
    Recover(u8),
    /// A failing Sync is done after all, whatever the others do.
    RecoverEntry(u8),
    Lose(u8),
    ComeBack(u8),
    Unprobe(u8),
    SuspendCluster(u8),
    SuspendSync(u8),
    /// A cluster and its Syncs are no longer suspended.
    Resume(u8),
    SuspendGroup,
    ResumeGroup,
    /// A cluster's labels take it out of the selection.
    Leave(u8),
    Join,
    /// A cluster's parameters change, and so do its targets.
    Relabel(u8),
    /// A cluster lacks a label that a parameter needs.
    BreakLabel(u8),
    Mend(u8),
    /// A release that changes the entries of this bit mask, or all of them.
    Release(u8),
    /// The release before this one comes back.
    Revert,
    /// The process dies after so many writes.
    Crash(u8),
    /// Nothing, until the plan's own time to look again.
    Tick,
}

impl Event {
    /// Whether it is about one cluster that stays selected.
    pub(crate) fn is_about_a_member(&self) -> bool {
        !self.changes_what_rolls()
            && !matches!(
                self,
                Self::SuspendGroup | Self::ResumeGroup | Self::Crash(_) | Self::Tick
            )
    }

    /// Whether it changes the release or who is selected.
    pub(crate) fn changes_what_rolls(&self) -> bool {
        matches!(
            self,
            Self::Leave(_) | Self::Join | Self::Release(_) | Self::Revert
        )
    }
}

pub(crate) fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => calm_event(),
        1 => any::<u8>().prop_map(Event::ComeBack),
        1 => disturbance(),
    ]
}

/// Events after which no cluster is in flight that was not before: nothing comes back that had been given up.
pub(crate) fn calm_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => any::<u8>().prop_map(Event::Finish),
        2 => any::<u8>().prop_map(Event::FinishEntry),
        2 => any::<u8>().prop_map(Event::Fail),
        2 => any::<u8>().prop_map(Event::Recover),
        1 => any::<u8>().prop_map(Event::Lose),
        1 => Just(Event::Join),
        2 => any::<u8>().prop_map(Event::Release),
        2 => (0u8..6).prop_map(Event::Crash),
        3 => Just(Event::Tick),
    ]
}

fn disturbance() -> impl Strategy<Value = Event> {
    prop_oneof![
        any::<u8>().prop_map(Event::RecoverEntry),
        any::<u8>().prop_map(Event::Unprobe),
        any::<u8>().prop_map(Event::SuspendCluster),
        any::<u8>().prop_map(Event::SuspendSync),
        any::<u8>().prop_map(Event::Resume),
        Just(Event::SuspendGroup),
        Just(Event::ResumeGroup),
        any::<u8>().prop_map(Event::Leave),
        any::<u8>().prop_map(Event::Relabel),
        any::<u8>().prop_map(Event::BreakLabel),
        any::<u8>().prop_map(Event::Mend),
        Just(Event::Revert),
    ]
}

/// What a bad release does to a cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Curse {
    CutsOff,
    Fails,
    FailsAndCutsOff,
    Hangs,
}

pub(crate) fn curse() -> impl Strategy<Value = Curse> {
    prop_oneof![
        Just(Curse::CutsOff),
        Just(Curse::Fails),
        Just(Curse::FailsAndCutsOff),
        Just(Curse::Hangs)
    ]
}

#[derive(Clone, Debug)]
pub(crate) struct Member {
    uid: String,
    reach: Reach,
    /// Value of the label that the targets of `app` depend on.
    label: Option<u32>,
    syncs: BTreeMap<&'static str, ObservedSync>,
}

#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) now: Timestamp,
    pub(crate) members: BTreeMap<String, Member>,
    pub(crate) group_suspended: bool,
    limits: Limits,
    entries: Vec<&'static str>,
    started_at: Timestamp,
    /// The releases so far, each as the version of every entry; the last one rolls.
    releases: Vec<BTreeMap<&'static str, u32>>,
    /// Counts up with everything that needs a new number.
    serial: u32,
}

pub(crate) fn world(limits: impl Strategy<Value = Limits>) -> impl Strategy<Value = World> {
    (limits, 1usize..=ENTRIES.len(), vec(any::<bool>(), 1..14)).prop_map(|(limits, entries, members)| {
        let now = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(1_700_000_000);
        let mut world = World {
            now,
            members: BTreeMap::new(),
            group_suspended: false,
            limits,
            entries: ENTRIES[..entries].to_vec(),
            started_at: now,
            releases: vec![ENTRIES.iter().map(|entry| (*entry, 0)).collect()],
            serial: 0,
        };
        for probed in members {
            world.join(if probed { Reach::Ready } else { Reach::Unprobed });
        }
        world
    })
}

pub(crate) fn unreachable(since: Timestamp) -> Reach {
    Reach::Unreachable {
        reason: "Unreachable".into(),
        message: "no answer".into(),
        since,
    }
}

fn failing() -> Progress {
    Progress::Failing {
        reason: "ApplyFailed".into(),
        message: "refused".into(),
        retry_at: None,
    }
}

impl World {
    fn release(&self) -> String {
        format!("{:?}", self.releases.last())
    }

    fn wanted(&self, member: &Member, entry: &str) -> Result<String, String> {
        let version = self.releases.last().and_then(|versions| versions.get(entry));
        match (entry, member.label) {
            ("app", None) => Err("no such label".into()),
            ("app", Some(label)) => Ok(format!("{entry} {version:?} {label}")),
            _ => Ok(format!("{entry} {version:?}")),
        }
    }

    pub(crate) fn input(&self) -> PlanInput {
        let view = |member: &Member| ClusterView {
            uid: member.uid.clone(),
            reach: member.reach.clone(),
            entries: self
                .entries
                .iter()
                .map(|entry| {
                    let wanted = self.wanted(member, entry);
                    let observed = member.syncs.get(entry).cloned();
                    ((*entry).to_owned(), EntryView { wanted, observed })
                })
                .collect(),
        };
        PlanInput {
            now: self.now,
            limits: self.limits,
            suspended: self.group_suspended,
            membership_held: false,
            release: self.release(),
            started_at: self.started_at,
            clusters: self
                .members
                .iter()
                .map(|(name, member)| (name.clone(), view(member)))
                .collect(),
        }
    }

    /// Slots, and how many clusters may fail.
    pub(crate) fn bounds(&self) -> (usize, usize) {
        let total = self.members.len();
        (
            self.limits.max_concurrency.of_rounded_up(total).max(1),
            self.limits.max_failures.of_rounded_down(total),
        )
    }

    /// On how many clusters the group's work goes on: they are ready, or were lost on the way to the release that
    /// rolls; their time is not over, and nothing that was admitted with that work or since has failed.
    pub(crate) fn at_work(&self) -> usize {
        self.members
            .values()
            .filter(|member| self.is_at_work(member))
            .count()
    }

    fn is_at_work(&self, member: &Member) -> bool {
        let release = self.release();
        let syncs = || member.syncs.values();
        let work = syncs().filter(|sync| {
            let failed = |other: &&ObservedSync| {
                matches!(other.progress, Progress::Failing { .. })
                    && (other.release == sync.release || other.admitted_at >= sync.admitted_at)
            };
            sync.progress == Progress::Working
                && sync
                    .admitted_at
                    .is_some_and(|at| at + self.limits.progress_deadline > self.now)
                && syncs().find(failed).is_none()
        });
        let untouched = member.reach != Reach::Suspended && syncs().all(|sync| !sync.suspended);
        let ready = member.reach == Reach::Ready;
        untouched && work.into_iter().any(|sync| ready || sync.release == release)
    }

    // ------------------------------------------------------------------ what happens

    pub(crate) fn happen(&mut self, event: &Event) {
        self.now += Duration::from_secs(3);
        match event {
            Event::SuspendGroup => self.group_suspended = true,
            Event::ResumeGroup => self.group_suspended = false,
            Event::Join => self.join(Reach::Ready),
            Event::Leave(pick) => {
                let name = self.pick(*pick, |_| true).map(|(name, _)| name.clone());
                name.and_then(|name| self.members.remove(&name));
            }
            Event::Release(mask) => self.new_release(*mask),
            Event::Revert if self.releases.len() > 1 => {
                self.releases.pop();
                self.started_at = self.now;
            }
            Event::Tick => {
                if let Some(at) = plan(&self.input()).recheck_at {
                    self.now = at;
                }
            }
            _ => self.happen_to(event, |_| true),
        }
    }

    /// An event to one of the clusters that are `meant`.
    pub(crate) fn happen_to(&mut self, event: &Event, meant: impl Fn(&str) -> bool) {
        let (now, serial) = (self.now, self.serial + 1);
        self.serial = serial;
        let of = |member: &Member, progress: &Progress| {
            member.reach == Reach::Ready && member.syncs.values().any(|sync| sync.progress == *progress)
        };
        let chosen = match event {
            Event::Finish(pick) | Event::FinishEntry(pick) | Event::Fail(pick) => self
                .pick(*pick, |(name, member)| {
                    meant(name) && of(member, &Progress::Working)
                }),
            Event::Recover(pick) | Event::RecoverEntry(pick) => {
                self.pick(*pick, |(name, member)| meant(name) && of(member, &failing()))
            }
            Event::ComeBack(pick) => self.pick(*pick, |(name, member)| {
                meant(name) && member.reach != Reach::Ready
            }),
            Event::Lose(pick)
            | Event::Unprobe(pick)
            | Event::SuspendCluster(pick)
            | Event::SuspendSync(pick)
            | Event::Resume(pick)
            | Event::Relabel(pick)
            | Event::BreakLabel(pick)
            | Event::Mend(pick) => self.pick(*pick, |(name, _)| meant(name)),
            _ => None,
        };
        let Some((_, member)) = chosen else { return };
        match event {
            Event::Finish(_) => member.turn(&Progress::Working, &Progress::Done, usize::MAX),
            Event::FinishEntry(_) => member.turn(&Progress::Working, &Progress::Done, 1),
            Event::Fail(_) => member.turn(&Progress::Working, &failing(), 1),
            Event::RecoverEntry(_) => member.turn(&failing(), &Progress::Done, 1),
            Event::Recover(_) => {
                member.turn(&failing(), &Progress::Done, usize::MAX);
                member.turn(&Progress::Working, &Progress::Done, usize::MAX);
            }
            Event::Lose(_) => member.reach = unreachable(now),
            Event::ComeBack(_) => member.reach = Reach::Ready,
            Event::Unprobe(_) => member.reach = Reach::Unprobed,
            Event::SuspendCluster(_) => member.reach = Reach::Suspended,
            Event::SuspendSync(pick) => {
                if let Some(sync) = member.syncs.values_mut().nth(usize::from(*pick) % 3) {
                    sync.suspended = true;
                }
            }
            Event::Resume(_) => member.resume(),
            Event::Relabel(_) | Event::Mend(_) => member.label = Some(serial),
            Event::BreakLabel(_) => member.label = None,
            _ => {}
        }
    }

    fn pick(&mut self, pick: u8, can: impl Fn((&str, &Member)) -> bool) -> Option<(&String, &mut Member)> {
        let mut possible: Vec<_> = self
            .members
            .iter_mut()
            .filter(|(name, member)| can((name, member)))
            .collect();
        let at = usize::from(pick).checked_rem(possible.len())?;
        Some(possible.swap_remove(at))
    }

    fn join(&mut self, reach: Reach) {
        self.serial += 1;
        let member = Member {
            uid: format!("uid-{}", self.serial),
            reach,
            label: Some(0),
            syncs: BTreeMap::new(),
        };
        self.members.insert(format!("c{:03}", self.serial), member);
    }

    fn new_release(&mut self, mask: u8) {
        self.serial += 1;
        let mut versions = self.releases.last().cloned().unwrap_or_default();
        let changed = |bit: usize| mask >> bit & 1 == 1;
        let any = (0..self.entries.len()).any(changed);
        for (bit, entry) in self.entries.iter().enumerate() {
            if changed(bit) || !any {
                versions.insert(entry, self.serial);
            }
        }
        self.releases.push(versions);
        self.started_at = self.now;
    }

    /// A release that changes every entry.
    pub(crate) fn release_everything_anew(&mut self) {
        self.new_release(u8::MAX);
    }

    pub(crate) fn curse(&mut self, name: &str, curse: Curse) {
        let (now, release) = (self.now, self.release());
        let Some(member) = self.members.get_mut(name) else {
            return;
        };
        if matches!(curse, Curse::Fails | Curse::FailsAndCutsOff) {
            for sync in member.syncs.values_mut().filter(|sync| sync.release == release) {
                sync.progress = failing();
            }
        }
        if matches!(curse, Curse::CutsOff | Curse::FailsAndCutsOff) {
            member.reach = unreachable(now);
        }
    }

    /// Nothing is suspended any more, and every cluster is back that has something of this release on it.
    pub(crate) fn faults_stop(&mut self, stay_broken: bool) {
        self.group_suspended = false;
        for member in self.members.values_mut() {
            member.resume();
            if member.reach == Reach::Unprobed {
                member.reach = Reach::Ready;
            }
            if !stay_broken {
                member.label.get_or_insert(0);
            }
        }
        let decisions = plan(&self.input()).decisions;
        for (name, member) in &mut self.members {
            let may_stay_away = matches!(
                decisions[name],
                Decision::Hold {
                    reason: HoldReason::ClusterUnreachable { .. },
                    ..
                }
            );
            if !may_stay_away {
                member.reach = Reach::Ready;
            }
        }
    }

    /// One of the clusters that are admitted with all their entries, and not done, is done now. No other
    /// progress is fair to expect: an entry may need one that is not admitted yet.
    pub(crate) fn one_finishes(&mut self, pick: u8) -> bool {
        let input = self.input();
        let finished = self.pick(pick, |(name, member)| {
            let complete = input.clusters[name].entries.values().all(|entry| {
                let target = entry.observed.as_ref().and_then(|sync| sync.target.as_ref());
                entry.wanted.as_ref().ok() == target && target.is_some()
            });
            let done = member.syncs.values().all(|sync| sync.progress == Progress::Done);
            complete && !done && member.reach == Reach::Ready
        });
        finished.is_some_and(|(_, member)| {
            for sync in member.syncs.values_mut() {
                sync.progress = Progress::Done;
            }
            true
        })
    }

    // ------------------------------------------------------------------ what the group does

    /// Plans after `event` and executes the plan, up to the write after which a crash ends it. Returns the
    /// clusters that were written to.
    pub(crate) fn roll(&mut self, event: &Event) -> Result<Vec<String>, TestCaseError> {
        let writes = match event {
            Event::Crash(writes) => usize::from(*writes),
            _ => usize::MAX,
        };
        let (_, written) = self.plan_and_write(writes)?;
        Ok(written)
    }

    pub(crate) fn plan_and_execute(&mut self) -> Result<Plan, TestCaseError> {
        Ok(self.plan_and_write(usize::MAX)?.0)
    }

    fn plan_and_write(&mut self, mut writes: usize) -> Result<(Plan, Vec<String>), TestCaseError> {
        let input = self.input();
        let plan = plan(&input);
        prop_assert_eq!(check(&input, &plan), Ok(()), "{:#?} {:#?}", input, plan);
        let before = self.at_work();
        let mut written = Vec::new();
        for (name, decision) in &plan.decisions {
            let Decision::Start { entries } = decision else {
                continue;
            };
            for entry in entries {
                if writes == 0 {
                    break;
                }
                writes -= 1;
                self.admit(name, entry);
                if written.last() != Some(name) {
                    written.push(name.clone());
                }
            }
        }
        let (after, bound) = (self.at_work(), before.max(self.bounds().0));
        prop_assert!(after <= bound, "at work on {} of {}: {:#?}", after, bound, plan);
        Ok((plan, written))
    }

    fn admit(&mut self, name: &str, entry: &str) {
        let target = self.wanted(&self.members[name], entry).unwrap();
        let sync = ObservedSync {
            target: Some(target),
            release: self.release(),
            admitted_at: Some(self.now),
            progress: Progress::Working,
            suspended: false,
        };
        let entry = self.entries.iter().find(|known| **known == entry).unwrap();
        self.members.get_mut(name).unwrap().syncs.insert(entry, sync);
    }
}

impl Member {
    fn turn(&mut self, from: &Progress, to: &Progress, at_most: usize) {
        let found = self.syncs.values_mut().filter(|sync| sync.progress == *from);
        for sync in found.take(at_most) {
            sync.progress = to.clone();
        }
    }

    fn resume(&mut self) {
        if self.reach == Reach::Suspended {
            self.reach = Reach::Ready;
        }
        for sync in self.syncs.values_mut() {
            sync.suspended = false;
        }
    }
}
