//! What is to be written after a look.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use jiff::Timestamp;

use super::change::Head;
use super::{Body, Change, Entry, Look, NotReadable, Whole};
use crate::plan::{ClusterView, Plan, PlanInput};

/// Bytes of changes after which an entry is whole, whatever a whole one weighs: so much is read when the controller starts.
const CHANGES: usize = 256 * 1024;

/// Writes the journal of one group: knows the newest entry, and says what the next one is.
///
/// Of the clusters of that entry it keeps hashes. A fleet is not held in memory twice for its journal, and two views that
/// differ have one hash less often than a disk returns a wrong page, which the chain is there for.
#[derive(Clone, Debug, Default)]
pub struct Recorder(Option<Newest>);

/// The newest entry.
#[derive(Clone, Debug)]
struct Newest {
    rollout: i64,
    head: Head,
    clusters: BTreeMap<String, u64>,
    plan: Plan,
    /// Bytes of the newest whole entry.
    whole: usize,
    /// Bytes of the changes since.
    changes: usize,
}

/// An entry that is to be written.
#[derive(Clone, Debug)]
#[must_use]
pub struct Draft {
    /// A [`Body`] in JSON.
    pub body: String,
    /// It needs none before it.
    pub is_whole: bool,
    /// When the plan was made.
    pub at: Timestamp,
    newest: Box<Newest>,
}

/// Goes on after entries that are there, from a whole one on; after none, from nothing.
///
/// # Errors
/// [`NotReadable`], the first.
pub fn resume(entries: &[Entry]) -> Result<Recorder, NotReadable> {
    let (mut known, mut rollout, mut whole, mut changes): (Option<Look>, i64, usize, usize) = (None, 0, 0, 0);
    for entry in entries {
        let body = Body::read(&entry.body)?;
        match &body {
            Body::Whole(_) => (whole, changes) = (entry.body.len(), 0),
            Body::Change(_) => changes += entry.body.len(),
        }
        known = Some(Look::after(known, body)?);
        rollout = entry.rollout;
    }
    Ok(known.map_or_else(Recorder::default, |look| {
        Recorder::after(rollout, &look, whole, changes)
    }))
}

impl Recorder {
    /// Goes on after entries that are there: how things stood with the newest, and what the newest whole one and the changes
    /// since it weigh.
    #[must_use]
    pub fn after(rollout: i64, look: &Look, whole: usize, changes: usize) -> Self {
        Self(Some(Newest {
            rollout,
            head: Head::of(&look.input),
            clusters: hashes(&look.input),
            plan: look.plan.clone(),
            whole,
            changes,
        }))
    }

    /// The entry for a plan. `None`: it says nothing that the newest entry does not say. Time that passes, and clusters that
    /// change without changing anything, are no news; they stand in the next entry.
    ///
    /// # Errors
    /// Where it cannot be written as JSON.
    pub fn draft(
        &self,
        rollout: i64,
        input: &PlanInput,
        plan: &Plan,
    ) -> Result<Option<Draft>, serde_json::Error> {
        let newest = self.0.as_ref().filter(|newest| newest.rollout == rollout);
        if newest.is_some_and(|newest| newest.says(input, plan)) {
            return Ok(None);
        }
        let clusters = hashes(input);
        let body = match newest.filter(|newest| newest.changes < newest.whole.max(CHANGES)) {
            Some(newest) => Body::Change(newest.change(input, plan, &clusters)),
            None => Body::Whole(Whole {
                beginning_lost: newest.is_none() && has_admitted(input),
                look: Look {
                    input: input.clone(),
                    plan: plan.clone(),
                },
            }),
        };
        let is_whole = matches!(body, Body::Whole(_));
        let body = serde_json::to_string(&body)?;
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
            }),
            body,
        }))
    }

    /// Takes note that a draft was written.
    pub fn wrote(&mut self, draft: Draft) {
        self.0 = Some(*draft.newest);
    }
}

impl Newest {
    fn says(&self, input: &PlanInput, plan: &Plan) -> bool {
        self.head.is_of(input)
            && self.plan.decisions == plan.decisions
            && self.plan.stages == plan.stages
            && self.plan.verdict == plan.verdict
    }

    fn change(&self, input: &PlanInput, plan: &Plan, hashes: &BTreeMap<String, u64>) -> Change {
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
        Change::new((&self.head, &self.plan), input, plan, clusters)
    }
}

fn hashes(input: &PlanInput) -> BTreeMap<String, u64> {
    let views = input.clusters.iter();
    views.map(|(name, view)| (name.clone(), hash(view))).collect()
}

/// With fixed keys: the same in every process. It is compared within one process only.
fn hash(view: &ClusterView) -> u64 {
    let mut hasher = DefaultHasher::new();
    view.hash(&mut hasher);
    hasher.finish()
}

/// Whether something was admitted in this rollout before this plan.
fn has_admitted(input: &PlanInput) -> bool {
    let entries = input.clusters.values().flat_map(|view| view.entries.values());
    let mut syncs = entries.filter_map(|entry| entry.observed.as_ref());
    syncs.any(|sync| {
        sync.release == input.rollout.release
            && sync.target.is_some()
            && sync.admitted_at >= Some(input.rollout.started_at)
    })
}
