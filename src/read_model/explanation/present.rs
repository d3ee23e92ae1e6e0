//! Explains the present from the objects on the management cluster.

use std::collections::BTreeMap;
use std::path::PathBuf;

use jiff::Timestamp;
use kube::ResourceExt;
use kube::core::SelectorExt as _;
use starling_api::conditions::{self, READY, RESTORE_DETECTED};
use starling_api::{
    Cluster, DeletionApproval, RolloutAction, RolloutApproval, Source, SyncGroup, SyncResource,
};
use starling_core::expand;
use starling_core::explain::{self, Durations, ExplainedBlocker, Explanation};
use starling_core::ids::ClusterName;
use starling_core::journal::past;
use starling_core::plan::{ClusterView, plan};

use super::{ExplanationError, SubjectExplanation};
use crate::controller::hub::Hub;
use crate::controller::reconcile::sync_group::{PlanPreviewError, PreviewObjects, preview_plan};
use crate::read_model::recorded::Recorded;
use crate::read_model::removals::{self, PlannedRemoval};

/// The objects of a namespace on the management cluster.
#[derive(Debug)]
pub struct NamespaceObjects {
    /// The namespace.
    pub namespace: String,
    /// All SyncGroups.
    pub groups: Vec<SyncGroup>,
    /// All Sources.
    pub sources: Vec<Source>,
    /// All Clusters.
    pub clusters: Vec<Cluster>,
    /// All Syncs.
    pub syncs: Vec<SyncResource>,
    /// All approvals.
    pub approvals: Vec<RolloutApproval>,
    /// All operator actions.
    pub actions: Vec<RolloutAction>,
    /// All approvals of deletions.
    pub deletion_approvals: Vec<DeletionApproval>,
}

/// The present state of a namespace.
pub struct Present {
    hub: Hub,
    namespace: String,
    groups: Vec<SyncGroup>,
    /// Labels of the Clusters that are not being deleted, by name.
    labels: BTreeMap<String, BTreeMap<String, String>>,
    objects: PreviewObjects,
    now: Timestamp,
    /// Data directory of the controller, for recorded durations.
    data_dir: Option<PathBuf>,
}

impl Present {
    /// The state that the objects have now. `hub` reads kept releases; the journal in `data_dir` has durations of
    /// earlier rollouts.
    #[must_use]
    pub fn new(objects: NamespaceObjects, hub: Hub, data_dir: Option<PathBuf>) -> Self {
        let NamespaceObjects {
            namespace,
            groups,
            sources,
            clusters,
            syncs,
            approvals,
            actions,
            deletion_approvals,
        } = objects;
        let labels = clusters
            .iter()
            .filter(|cluster| cluster.metadata.deletion_timestamp.is_none());
        let labels = labels.map(|cluster| (cluster.name_any(), cluster.labels().clone()));
        Self {
            hub,
            namespace,
            groups,
            labels: labels.collect(),
            objects: PreviewObjects::of(sources, clusters, syncs, approvals, actions, deletion_approvals),
            now: Timestamp::now(),
            data_dir,
        }
    }

    /// Explains the state of a group.
    ///
    /// # Errors
    /// If the group does not exist, or a release cannot be read.
    pub async fn group(&self, name: &str) -> Result<SubjectExplanation, ExplanationError> {
        let group = self.find(name).ok_or_else(|| ExplanationError::GroupNotFound {
            namespace: self.namespace.clone(),
            group: name.to_owned(),
        })?;
        self.explain(group.clone(), None).await
    }

    /// Explains the state of a cluster in each group that selects it or still has Syncs on it.
    ///
    /// # Errors
    /// If there is no such group, or a release cannot be read.
    pub async fn cluster(&self, cluster: &Cluster) -> Result<Vec<SubjectExplanation>, ExplanationError> {
        let name = cluster.name_any();
        let mut found = Vec::new();
        for group in &self.groups {
            let has_syncs = || self.objects.syncs_of(group).clusters().any(|(on, _)| on == name);
            if selects(group, cluster.labels()) || has_syncs() {
                found.push(self.explain(group.clone(), Some(&name)).await?);
            }
        }
        if found.is_empty() {
            return Err(ExplanationError::NoGroupSelects {
                namespace: self.namespace.clone(),
                cluster: name,
            });
        }
        Ok(found)
    }

    /// Explains the state of a Sync: the blockers of its cluster in its group, and then its own `Ready` condition.
    ///
    /// # Errors
    /// If a release cannot be read.
    pub async fn sync(&self, sync: &SyncResource) -> Result<SubjectExplanation, ExplanationError> {
        let own = self.of_condition(sync);
        let cluster = &sync.spec.cluster_ref.name;
        let group = sync.spec.group_ref.as_ref().and_then(|of| self.find(&of.name));
        let Some(group) = group else {
            return Ok(own);
        };
        let mut explained = match self.explain(group.clone(), Some(cluster)).await {
            Ok(explained) => explained,
            Err(ExplanationError::NotSelected { .. }) => return Ok(own),
            Err(error) => return Err(error),
        };
        explained.explanation.state = format!("cluster {cluster} {}", explained.explanation.state);
        explained.explanation.blockers.extend(own.explanation.blockers);
        explained.subject = own.subject;
        Ok(explained)
    }

    fn find(&self, name: &str) -> Option<&SyncGroup> {
        self.groups.iter().find(|group| group.name_any() == name)
    }

    async fn explain(
        &self,
        group: SyncGroup,
        cluster: Option<&str>,
    ) -> Result<SubjectExplanation, ExplanationError> {
        let name = group.name_any();
        let subject = match cluster {
            None => format!("syncgroup/{name}"),
            Some(cluster) => format!("cluster/{cluster}"),
        };
        let mut explained = self.empty(subject, Some(format!("{}/{name}", self.namespace)));
        explained.removals = self.removals(&group, cluster);
        if let Some(explanation) = held_after_restore(&group).or_else(|| being_deleted(&group)) {
            explained.explanation = explanation;
            return Ok(explained);
        }
        let preview = match preview_plan(&self.hub, &self.objects, group, self.now).await {
            Ok(preview) => preview,
            Err(PlanPreviewError::Hub(error)) => return Err(error.into()),
            Err(why) => {
                explained.explanation.state = format!("cannot roll out: {why}");
                return Ok(explained);
            }
        };
        explained.rollout = Some(preview.rolling.rollout.id);
        let (input, current) = (&preview.input, preview.current());
        let durations = self.durations(&name, &input.clusters).await?;
        let plan = plan(input);
        match cluster {
            None => {
                explained.explanation = explain::group(&name, input, &plan, preview.stuck.as_ref());
                explained.estimate = Some(explain::estimate_group(current, &durations));
            }
            Some(cluster) => {
                let selected = explain::cluster(&name, input, &plan, cluster);
                let is_selected = selected.is_some();
                let explanation = selected.or_else(|| explain::left_cluster(&name, input, &plan, cluster));
                explained.explanation = explanation.ok_or_else(|| ExplanationError::NotSelected {
                    group: name,
                    cluster: cluster.to_owned(),
                })?;
                if is_selected {
                    explained.estimate = Some(explain::estimate_cluster(current, &durations, cluster));
                }
            }
        }
        Ok(explained)
    }

    /// Finds the Syncs that a group no longer wants, on one cluster or on all.
    fn removals(&self, group: &SyncGroup, cluster: Option<&str>) -> Vec<PlannedRemoval> {
        let selector = expand::selector(&group.spec.cluster_selector);
        // Nothing leaves a group whose selector is invalid.
        let Ok(selector) = selector else {
            return Vec::new();
        };
        let is_selected = |name: &str| {
            self.labels
                .get(name)
                .is_some_and(|labels| selector.matches(labels))
        };
        let syncs = self.objects.syncs_of(group);
        let syncs = syncs.iter().map(|(on, entry, sync)| (on, entry, &**sync));
        let of = syncs.filter(|(on, ..)| cluster.is_none_or(|cluster| cluster == *on));
        removals::of_syncs(group, is_selected, of)
    }

    /// The durations that the objects show now, and those that the journal records.
    async fn durations(
        &self,
        group: &str,
        clusters: &BTreeMap<ClusterName, ClusterView>,
    ) -> Result<Durations, ExplanationError> {
        let mut durations = match &self.data_dir {
            Some(data_dir) => {
                let recorded = Recorded::read(data_dir, &self.namespace, group).await?;
                past::durations(&recorded.journal.entries)
            }
            None => Durations::default(),
        };
        durations.learn(clusters);
        Ok(durations)
    }

    /// Explains a Sync by its `Ready` condition alone.
    fn of_condition(&self, sync: &SyncResource) -> SubjectExplanation {
        let status = sync.status.as_ref();
        let ready = status.and_then(|status| conditions::find(&status.conditions, READY));
        let mut explained = self.empty(format!("sync/{}", sync.name_any()), None);
        let explanation = &mut explained.explanation;
        explanation.state = match ready {
            None => "has not been reconciled yet".to_owned(),
            Some(ready) if ready.status == "True" => format!("is ready: {}", ready.message),
            Some(ready) => {
                explanation.next = "a retry succeeds".to_owned();
                explanation.blockers.push(ExplainedBlocker {
                    reason: ready.reason.clone(),
                    text: ready.message.clone(),
                    until: None,
                    ends_with: explanation.next.clone(),
                });
                "is not ready".to_owned()
            }
        };
        explained
    }

    fn empty(&self, subject: String, group: Option<String>) -> SubjectExplanation {
        SubjectExplanation {
            subject,
            group,
            at: self.now,
            rollout: None,
            entry: None,
            explanation: Explanation {
                state: String::new(),
                blockers: Vec::new(),
                next: String::new(),
                next_at: None,
            },
            removals: Vec::new(),
            estimate: None,
            clusters: Vec::new(),
            actions: Vec::new(),
            lost: Vec::new(),
        }
    }
}

/// After a restore nothing else matters: nothing is planned.
fn held_after_restore(group: &SyncGroup) -> Option<Explanation> {
    let conditions = &group.status.as_ref()?.conditions;
    let condition = conditions::find(conditions, RESTORE_DETECTED).filter(|found| found.status == "True")?;
    let next = "a person releases the restore: starling release-restore".to_owned();
    Some(Explanation {
        state: "is held: the management cluster was set back".to_owned(),
        blockers: vec![ExplainedBlocker {
            reason: RESTORE_DETECTED.to_owned(),
            text: condition.message.clone(),
            until: None,
            ends_with: next.clone(),
        }],
        next,
        next_at: None,
    })
}

/// A group that is being deleted has no plan. Its condition says what its Syncs wait for.
fn being_deleted(group: &SyncGroup) -> Option<Explanation> {
    group.metadata.deletion_timestamp.as_ref()?;
    let status = group.status.as_ref();
    let ready = status.and_then(|status| conditions::find(&status.conditions, READY));
    let next = "its Syncs are deleted".to_owned();
    let blocker = ready
        .filter(|ready| ready.status != "True")
        .map(|ready| ExplainedBlocker {
            reason: ready.reason.clone(),
            text: ready.message.clone(),
            until: None,
            ends_with: next.clone(),
        });
    Some(Explanation {
        state: "is being deleted".to_owned(),
        blockers: blocker.into_iter().collect(),
        next,
        next_at: None,
    })
}

fn selects(group: &SyncGroup, labels: &BTreeMap<String, String>) -> bool {
    let selector = expand::selector(&group.spec.cluster_selector);
    selector.is_ok_and(|selector| selector.matches(labels))
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;
    use crate::controller::hub::testing::empty;

    const REVISION: &str = "main@sha1:2222222222222222222222222222222222222222";

    fn object<K: DeserializeOwned>(kind: &str, name: &str, spec: &Value, status: &Value) -> K {
        let metadata = json!({"name": name, "namespace": "fleet", "uid": name, "resourceVersion": "1"});
        let object = json!({"apiVersion": "starling.dev/v1alpha1", "kind": kind, "metadata": metadata,
            "spec": spec, "status": status});
        serde_json::from_value(object).unwrap()
    }

    /// Returns the state of a namespace with a group whose only cluster failed, and no release to roll back to.
    fn failed() -> Present {
        let entry = json!({"name": "app", "sourceRef": {"name": "s"}, "path": "./x"});
        let strategy = json!({"maxFailures": 0, "onFailure": "Rollback"});
        let spec = json!({"clusterSelector": {}, "syncs": [entry], "rolloutStrategy": strategy});
        let mut group: SyncGroup = object("SyncGroup", "shop", &spec, &Value::Null);
        let template = &group.spec.syncs[0].template;
        let release = starling_core::target::of_release(&[("app", REVISION, template)]);
        let rollout = json!({"id": 3, "release": release, "startTime": "2026-11-20T10:00:00Z"});
        group.status = Some(serde_json::from_value(json!({"rollout": rollout})).unwrap());
        let source = json!({"url": "https://git.example.com/a.git", "ref": {"branch": "main"}});
        let cluster = json!({"kubeConfig": {"secretRef": {"name": "s"}}});
        // Its admission has no time, so no time is left.
        let sync = json!({"groupRef": {"name": "shop", "entry": "app"}, "clusterRef": {"name": "c1"},
            "revision": REVISION, "sourceRef": {"name": "s"}, "path": "./x"});
        let objects = NamespaceObjects {
            namespace: "fleet".into(),
            groups: vec![group],
            sources: vec![object("Source", "s", &source, &json!({"revision": REVISION}))],
            clusters: vec![object("Cluster", "c1", &cluster, &Value::Null)],
            syncs: vec![object("Sync", "shop-app-c1", &sync, &Value::Null)],
            approvals: Vec::new(),
            actions: Vec::new(),
            deletion_approvals: Vec::new(),
        };
        Present::new(objects, empty(), None)
    }

    /// Status had this blocker, and `starling why` only that clusters failed.
    #[tokio::test]
    async fn a_group_without_a_release_to_roll_back_to_says_so() {
        let explained = failed().group("shop").await.unwrap();
        let blockers = &explained.explanation.blockers;
        let stuck = blockers
            .iter()
            .find(|blocker| blocker.reason == "NothingToGoBackTo");
        let stuck = stuck.unwrap_or_else(|| panic!("{explained:#?}"));
        assert_eq!(stuck.text, "no release has succeeded on the whole group yet");
        assert_eq!(stuck.ends_with, "a new revision rolls out");
    }
}
