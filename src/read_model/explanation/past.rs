//! Explains the past from the journal of the controller.

use std::collections::BTreeMap;
use std::path::Path;

use jiff::Timestamp;
use kube::ResourceExt;
use starling_api::SyncResource;
use starling_core::explain::{self, Explanation};
use starling_core::ids::EntryName;
use starling_core::journal::past::{RecordedAction, at as recorded_at, operator_actions};
use starling_core::journal::{JournalEntry, RecordedPlan};
use starling_core::plan::{Decision, EntryView, Progress};

use super::{ClusterState, EntryReference, EntryState, ExplanationError, SubjectExplanation};
use crate::read_model::recorded::{Recorded, group_names};

/// A time in the journals of a namespace.
#[derive(Clone, Copy, Debug)]
pub struct Past<'a> {
    /// Data directory of the controller.
    pub directory: &'a Path,
    /// The namespace.
    pub namespace: &'a str,
    /// The time.
    pub at: Timestamp,
}

impl Past<'_> {
    /// Explains the state of a group.
    ///
    /// # Errors
    /// If the journal has no entry for the group at that time.
    pub async fn group(&self, name: &str) -> Result<SubjectExplanation, ExplanationError> {
        let state = GroupState::read(self, name).await?;
        let explanation = explain::group(name, &state.plan.input, &state.plan.plan, None);
        Ok(state.explained(format!("syncgroup/{name}"), explanation, None))
    }

    /// Explains the state of a cluster in each group that selected it.
    ///
    /// # Errors
    /// If no journal has the cluster at that time.
    pub async fn cluster(&self, cluster: &str) -> Result<Vec<SubjectExplanation>, ExplanationError> {
        let mut found = Vec::new();
        for group in group_names(self.directory, self.namespace).await? {
            // A group may have started later, or never have selected the cluster.
            let Ok(state) = GroupState::read(self, &group).await else {
                continue;
            };
            if state.has(cluster) {
                found.push(state.of_cluster(format!("cluster/{cluster}"), cluster)?);
            }
        }
        if found.is_empty() {
            return Err(ExplanationError::NotRecorded {
                namespace: self.namespace.to_owned(),
                cluster: cluster.to_owned(),
                at: self.at,
            });
        }
        Ok(found)
    }

    /// Explains the state of the cluster of a Sync, in the group of the Sync.
    ///
    /// # Errors
    /// If the Sync belongs to no group, or the journal has no entry for the group at that time.
    pub async fn sync(&self, sync: &SyncResource) -> Result<SubjectExplanation, ExplanationError> {
        let name = sync.name_any();
        let Some(group) = &sync.spec.group_ref else {
            return Err(ExplanationError::NoGroup { sync: name });
        };
        let state = GroupState::read(self, &group.name).await?;
        state.of_cluster(format!("sync/{name}"), &sync.spec.cluster_ref.name)
    }
}

/// The recorded state of a group.
struct GroupState {
    namespace: String,
    group: String,
    at: Timestamp,
    recorded: Recorded,
    entry: EntryReference,
    rollout: i64,
    plan: RecordedPlan,
}

impl GroupState {
    async fn read(past: &Past<'_>, group: &str) -> Result<Self, ExplanationError> {
        let recorded = Recorded::read(past.directory, past.namespace, group).await?;
        let entries = &recorded.journal.entries;
        let Some((entry, plan)) = recorded_at(entries, past.at) else {
            let (namespace, group) = (past.namespace.to_owned(), group.to_owned());
            return Err(match entries.first() {
                Some(first) => ExplanationError::BeforeJournal {
                    namespace,
                    group,
                    at: past.at,
                    begins_at: first.at,
                },
                None => ExplanationError::EmptyJournal {
                    namespace,
                    group,
                    directory: past.directory.to_owned(),
                },
            });
        };
        let JournalEntry { seq, rollout, at, .. } = entry;
        Ok(Self {
            namespace: past.namespace.to_owned(),
            group: group.to_owned(),
            at: past.at,
            entry: EntryReference {
                number: *seq,
                written_at: *at,
            },
            rollout: rollout.get(),
            recorded,
            plan,
        })
    }

    /// Reports whether the group selected a cluster, or had Syncs there that left.
    fn has(&self, cluster: &str) -> bool {
        let input = &self.plan.input;
        let mut leaving = input.leaving.values();
        input.clusters.contains_key(cluster) || leaving.any(|sync| sync.cluster == cluster)
    }

    fn of_cluster(&self, subject: String, cluster: &str) -> Result<SubjectExplanation, ExplanationError> {
        let RecordedPlan { input, plan } = &self.plan;
        let selected = explain::cluster(&self.group, input, plan, cluster);
        let explanation = selected.or_else(|| explain::left_cluster(&self.group, input, plan, cluster));
        let explanation = explanation.ok_or_else(|| ExplanationError::NotSelectedAt {
            group: self.group.clone(),
            cluster: cluster.to_owned(),
            at: self.at,
        })?;
        Ok(self.explained(subject, explanation, Some(cluster)))
    }

    fn explained(&self, subject: String, explanation: Explanation, only: Option<&str>) -> SubjectExplanation {
        let clusters = self.plan.input.clusters.keys();
        let clusters = clusters.filter(|name| only.is_none_or(|only| only == *name));
        let actions = operator_actions(&self.plan)
            .into_iter()
            .map(|(what, attribution)| RecordedAction {
                what,
                attribution: attribution.clone(),
                until: None,
            });
        SubjectExplanation {
            subject,
            group: Some(format!("{}/{}", self.namespace, self.group)),
            at: self.at,
            rollout: Some(self.rollout),
            entry: Some(self.entry),
            explanation,
            removals: Vec::new(),
            estimate: None,
            clusters: clusters.filter_map(|name| self.cluster_state(name)).collect(),
            actions: actions.collect(),
            lost: Vec::new(),
        }
    }

    fn cluster_state(&self, name: &str) -> Option<ClusterState> {
        let view = self.plan.input.clusters.get(name)?;
        let stage = self.plan.plan.stages.get(view.stage);
        let decision = self.plan.plan.decisions.get(name);
        let entries = view.entries.iter();
        let entries: BTreeMap<EntryName, EntryState> = entries
            .map(|(entry, view)| (entry.clone(), self.entry_state(entry, view)))
            .collect();
        Some(ClusterState {
            cluster: name.to_owned(),
            stage: stage.map(|stage| stage.name.clone()).unwrap_or_default(),
            decision: decision.map(decision_text).unwrap_or_default(),
            entries,
        })
    }

    fn entry_state(&self, entry: &str, view: &EntryView) -> EntryState {
        let Some(sync) = &view.observed else {
            return EntryState {
                revision: String::new(),
                state: "none".to_owned(),
            };
        };
        let revisions = self.recorded.revisions(&sync.release);
        let revision = revisions.and_then(|revisions| revisions.get(entry)).cloned();
        EntryState {
            // Of a rollout that is no longer kept only the digest is known.
            revision: revision.unwrap_or_else(|| sync.release.to_string()),
            state: progress_text(&sync.progress),
        }
    }
}

fn progress_text(progress: &Progress) -> String {
    match progress {
        Progress::Working => "in progress".to_owned(),
        Progress::Failing { reason, .. } => format!("failed: {reason}"),
        Progress::Applied(applied) => match (applied.healthy_since(), &applied.problem) {
            (Some(since), _) => format!("healthy since {since}"),
            (None, Some(problem)) => format!("applied, not healthy: {}", problem.reason),
            (None, None) => "applied, not healthy".to_owned(),
        },
    }
}

fn decision_text(decision: &Decision) -> String {
    match decision {
        Decision::Done => "done".to_owned(),
        Decision::Start { .. } => "start".to_owned(),
        Decision::Retry { .. } => "retry".to_owned(),
        Decision::Remove { entries } => format!("remove: {}", entries.join(", ")),
        Decision::InFlight { lost: true, .. } => "in flight, unreachable".to_owned(),
        Decision::InFlight { .. } => "in flight".to_owned(),
        Decision::Soaking { until } => format!("soaking until {until}"),
        Decision::Failed { reason, .. } => format!("failed: {}", reason.as_str()),
        Decision::Hold { reason, .. } => format!("blocked: {}", reason.as_str()),
    }
}
