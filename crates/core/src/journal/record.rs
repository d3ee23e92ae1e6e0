//! Decides what is written for a plan.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use jiff::Timestamp;

use super::change::{Former, Head};
use super::continuity::Continuity;
use super::{Body, JournalEntry, NotReadable, PlanChange, RecordedPlan, Whole};
use crate::ids::{ClusterName, RolloutNumber};
use crate::plan::{ClusterView, Plan, PlanInput, StagePlan};

/// Bytes of changes after which an entry is whole, unless a whole entry is larger: the controller reads this much when
/// it starts.
const CHANGES: usize = 256 * 1024;

/// Writes the journal of one group: knows the newest entry and returns the next one.
///
/// Of the clusters it keeps only hashes, so that the journal does not store the fleet in memory a second time. Two
/// different views with the same hash are less likely than a wrong page from a disk, which the chain detects.
#[derive(Clone, Debug, Default)]
pub struct Recorder(Option<Newest>);

/// The newest entry.
#[derive(Clone, Debug)]
struct Newest {
    rollout: RolloutNumber,
    head: Head,
    clusters: BTreeMap<ClusterName, u64>,
    plan: Plan,
    /// The size of the newest whole entry, in bytes.
    whole: usize,
    /// The size of the changes since, in bytes.
    changes: usize,
    /// The entries that this one was read from; `None` if this process wrote it.
    read: Option<Box<Read>>,
}

/// The newest entry as it was read, and the decisions before it.
#[derive(Clone, Debug)]
struct Read {
    recorded: RecordedPlan,
    continuity: Continuity,
}

/// An entry that is to be written.
#[derive(Clone, Debug)]
#[must_use]
pub struct Draft {
    /// A [`Body`] in JSON.
    pub body: String,
    /// Whether the entry can be read without a previous one.
    pub is_whole: bool,
    /// Time at which the plan was made.
    pub at: Timestamp,
    newest: Box<Newest>,
}

/// Returns a recorder that continues after these entries, of which the first is whole.
///
/// # Errors
/// The first [`NotReadable`].
pub fn resume(entries: &[JournalEntry]) -> Result<Recorder, NotReadable> {
    let (mut known, mut rollout, mut whole, mut changes): (
        Option<RecordedPlan>,
        RolloutNumber,
        usize,
        usize,
    ) = (None, RolloutNumber::default(), 0, 0);
    let mut continuity = Continuity::default();
    for entry in entries {
        let body = Body::read(&entry.body)?;
        match &body {
            Body::Whole(first) => {
                (whole, changes) = (entry.body.len(), 0);
                if known.is_none() || first.beginning_lost {
                    continuity.begin(!first.beginning_lost);
                }
            }
            Body::Change(_) => changes += entry.body.len(),
        }
        let before = known.as_ref().map(|known| changed_views(known, &body));
        let recorded = RecordedPlan::after(known, body)?;
        continuity.advance(before.as_ref(), &recorded);
        known = Some(recorded);
        rollout = entry.rollout;
    }
    Ok(known.map_or_else(Recorder::default, |recorded| {
        let read = Box::new(Read { recorded, continuity });
        Recorder(Some(Newest {
            rollout,
            head: Head::of(&read.recorded.input),
            clusters: hashes(&read.recorded.input),
            plan: read.recorded.plan.clone(),
            whole,
            changes,
            read: Some(read),
        }))
    }))
}

impl Recorder {
    /// Returns the entry for a plan; `None`: it differs from the newest entry only in the time, or in changes of
    /// clusters that changed no decision. The next entry includes those.
    ///
    /// # Errors
    /// If it cannot be serialised to JSON.
    pub fn draft(
        &self,
        rollout: RolloutNumber,
        input: &PlanInput,
        plan: &Plan,
    ) -> Result<Option<Draft>, serde_json::Error> {
        // Numbers of rollouts only go back with the management cluster.
        let is_set_back = self.0.as_ref().is_some_and(|newest| newest.rollout > rollout);
        let newest = self.0.as_ref().filter(|newest| newest.rollout == rollout);
        let is_older = newest.is_some_and(|newest| newest.lacks_later(input, plan));
        let newest = newest.filter(|_| !is_older);
        if newest.is_some_and(|newest| newest.says(input, plan)) {
            return Ok(None);
        }
        let clusters = hashes(input);
        let body = match newest.filter(|newest| newest.changes < newest.whole.max(CHANGES)) {
            Some(newest) => Body::Change(newest.change(input, plan, &clusters)),
            None => Body::Whole(Whole {
                beginning_lost: is_older || is_set_back || (newest.is_none() && has_admitted(input)),
                recorded: RecordedPlan {
                    input: input.clone(),
                    plan: plan.clone(),
                },
            }),
        };
        let is_whole = matches!(body, Body::Whole(_));
        let body = body.write()?;
        let (whole, changes) = match newest {
            Some(newest) if !is_whole => (newest.whole, newest.changes + body.len()),
            _ => (body.len(), 0),
        };
        Ok(Some(Draft {
            is_whole,
            at: input.now,
            newest: Box::new(Newest {
                rollout,
                head: Head::of(input),
                clusters,
                plan: plan.clone(),
                whole,
                changes,
                read: None,
            }),
            body,
        }))
    }

    /// Forgets the entries that were read, once a plan was compared with them: later entries are of this process.
    pub fn forget_read(&mut self) {
        if let Some(newest) = &mut self.0 {
            newest.read = None;
        }
    }

    /// Records that a draft was written.
    pub fn wrote(&mut self, draft: Draft) {
        self.0 = Some(*draft.newest);
    }
}

impl Newest {
    /// Whether the newest entry that was read is not of the past of this state: its ledger is older than the state of
    /// the group, or newer, because the management cluster was set back. The plan would be a flaw of the journal,
    /// although it was decided.
    fn lacks_later(&self, input: &PlanInput, plan: &Plan) -> bool {
        self.read.as_deref().is_some_and(|read| {
            let recorded = RecordedPlan {
                input: input.clone(),
                plan: plan.clone(),
            };
            !read.continuity.gaps(&read.recorded, &recorded).is_empty()
        })
    }

    fn says(&self, input: &PlanInput, plan: &Plan) -> bool {
        self.head.is_of(input)
            && self.plan.decisions == plan.decisions
            && self.plan.removals == plan.removals
            && self.plan.prunes == plan.prunes
            && same_stages(&self.plan.stages, &plan.stages)
            && self.plan.verdict == plan.verdict
    }

    fn change(&self, input: &PlanInput, plan: &Plan, hashes: &BTreeMap<ClusterName, u64>) -> PlanChange {
        let views = input.clusters.iter();
        let other = views.filter(|(name, _)| self.clusters.get(*name) != hashes.get(*name));
        let gone = self
            .clusters
            .keys()
            .filter(|name| !input.clusters.contains_key(*name));
        let clusters = other
            .map(|(name, view)| (name.clone(), Some(view.clone())))
            .chain(gone.map(|name| (name.clone(), None)))
            .collect();
        let former = Former {
            head: &self.head,
            plan: &self.plan,
        };
        PlanChange::new(former, input, plan, clusters)
    }
}

/// Reports whether two plans have the same stages. A group without stages has no stage records: each plan makes the
/// record of its only stage anew with its own time, which would count as a change for ever once the rollout has
/// succeeded.
fn same_stages(before: &[StagePlan], now: &[StagePlan]) -> bool {
    let ([before], [now]) = (before, now) else {
        return before == now;
    };
    let StagePlan {
        name,
        phase,
        record: _,
        tally,
    } = before;
    (name, phase, tally) == (&now.name, &now.phase, &now.tally)
}

/// Returns the views of an entry that the next one changes.
fn changed_views(known: &RecordedPlan, next: &Body) -> BTreeMap<ClusterName, ClusterView> {
    let changed = |name: &ClusterName| match next {
        Body::Whole(_) => true,
        Body::Change(change) => change.clusters.contains_key(name),
    };
    let views = known.input.clusters.iter().filter(|(name, _)| changed(name));
    views.map(|(name, view)| (name.clone(), view.clone())).collect()
}

fn hashes(input: &PlanInput) -> BTreeMap<ClusterName, u64> {
    let views = input.clusters.iter();
    views.map(|(name, view)| (name.clone(), hash(view))).collect()
}

/// Hashes with fixed keys. Hashes are compared within one process only.
fn hash(view: &ClusterView) -> u64 {
    let mut hasher = DefaultHasher::new();
    view.hash(&mut hasher);
    hasher.finish()
}

/// Reports whether something was admitted in this rollout before this plan.
fn has_admitted(input: &PlanInput) -> bool {
    let entries = input.clusters.values().flat_map(|view| view.entries.values());
    let mut syncs = entries.filter_map(|entry| entry.observed.as_ref());
    syncs.any(|sync| {
        sync.release == input.rollout.release
            && sync.target.is_some()
            && sync.admitted_at >= Some(input.rollout.started_at)
    })
}
