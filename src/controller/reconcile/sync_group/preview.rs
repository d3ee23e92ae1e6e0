//! The input of the planner for a group, built from listed objects by a caller other than the controller. Nothing is
//! written.

use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt;
use starling_api::conditions::MEMBERSHIP_HELD;
use starling_api::{Cluster, RolloutAction, RolloutApproval, RolloutStatus, Source, SyncGroup, SyncResource};
use starling_core::plan::PlanInput;
use starling_core::rollout::{self, PlannerInput, Preview};

use super::leave::Leaving;
use super::machine::{self, Observed, Store, drive};
use super::observe::{Snapshot, observe};
use super::offer::offer;
use crate::controller::cache::Cache;
use crate::controller::caches::indexed::{cluster_of, group_of_action, group_of_approval};
use crate::controller::caches::plan_memo::PlanMemo;
use crate::controller::caches::release_snapshots::ReleaseSnapshots;
use crate::controller::caches::selections::SelectionCache;
use crate::controller::caches::settled_admissions::SettledAdmissions;
use crate::controller::caches::sync_index::SyncCache;
use crate::controller::gates::GateTasks;
use crate::controller::hub::{Hub, HubError};

/// The objects of a namespace that a preview is built from.
#[derive(Debug)]
pub struct PreviewObjects {
    sources: Cache<Source>,
    clusters: Cache<Cluster>,
    syncs: Arc<SyncCache>,
    approvals: Cache<RolloutApproval>,
    actions: Cache<RolloutAction>,
    selections: SelectionCache,
}

/// The current rollout of a group, and the input of its next plan.
#[derive(Debug)]
pub struct PlanPreview {
    /// As in status.
    pub rollout: RolloutStatus,
    /// The input of the planner.
    pub input: PlanInput,
}

/// Why there is no input for the planner.
#[derive(Debug, thiserror::Error)]
pub enum PlanPreviewError {
    /// The group cannot roll out.
    #[error("{reason}: {message}")]
    Blocked {
        /// The reason, in CamelCase.
        reason: &'static str,
        /// The message.
        message: String,
    },
    /// No rollout has started.
    #[error("no rollout has started yet; the controller starts one when it reconciles the group")]
    NotBegun,
    /// A request to the management cluster failed.
    #[error(transparent)]
    Hub(#[from] HubError),
}

impl PreviewObjects {
    /// Indexes the listed objects of a namespace.
    #[must_use]
    pub fn of(
        sources: Vec<Source>,
        clusters: Vec<Cluster>,
        syncs: Vec<SyncResource>,
        approvals: Vec<RolloutApproval>,
        actions: Vec<RolloutAction>,
    ) -> Self {
        let objects = Self {
            sources: Cache::default(),
            clusters: Cache::default(),
            syncs: Arc::new(Cache::indexed_by(cluster_of)),
            approvals: Cache::indexed_by(group_of_approval),
            actions: Cache::indexed_by(group_of_action),
            selections: SelectionCache::default(),
        };
        for source in sources {
            objects.sources.observe_write(source);
        }
        for cluster in clusters {
            objects.clusters.observe_write(cluster);
        }
        for sync in syncs {
            objects.syncs.observe_write(sync);
        }
        for approval in approvals {
            objects.approvals.observe_write(approval);
        }
        for action in actions {
            objects.actions.observe_write(action);
        }
        objects
    }
}

/// Returns the input of the planner for a group. Earlier releases are read from the management cluster.
///
/// # Errors
/// [`PlanPreviewError`].
pub async fn preview_plan(
    hub: &Hub,
    objects: &PreviewObjects,
    group: SyncGroup,
    now: Timestamp,
) -> Result<PlanPreview, PlanPreviewError> {
    let snapshot = Snapshot {
        sources: &objects.sources,
        clusters: &objects.clusters,
        syncs: &objects.syncs,
        approvals: &objects.approvals,
        actions: &objects.actions,
        selections: &objects.selections,
    };
    let group = observe(snapshot, Arc::new(group)).map_err(|blocked| PlanPreviewError::Blocked {
        reason: blocked.reason,
        message: blocked.message,
    })?;
    let offer = offer(now, &group);
    // Only the controller observes that clusters leave; the condition reports it.
    let conditions = group.object.status.iter().flat_map(|status| &status.conditions);
    let held = conditions
        .filter(|condition| condition.type_ == MEMBERSHIP_HELD)
        .any(|condition| condition.status == "True");
    let facts = machine::facts(&group, &offer, held, None, now);
    let store = Store {
        snapshots: &ReleaseSnapshots::default(),
        hub,
    };
    let mut observed = Observed {
        group: &group,
        // Results of gates that are not in status yet are known to the controller alone, and so are clusters about to
        // leave.
        gates: &GateTasks::default(),
        memo: &mut PlanMemo::default(),
        leaving: &Leaving::in_lists(&group, now),
        store,
        settled: &SettledAdmissions::default(),
    };
    let preview = drive(rollout::preview, &facts, None, &mut observed).await?;
    let PlannerInput { rolling, input } = match preview {
        Ok(Preview::Planned(planned)) => *planned,
        // Only the journal has encoding errors, and a preview has none.
        Ok(Preview::NotBegun) | Err(_) => return Err(PlanPreviewError::NotBegun),
        Ok(Preview::Blocked(blocked)) => {
            return Err(PlanPreviewError::Blocked {
                reason: blocked.reason,
                message: blocked.message,
            });
        }
    };
    tracing::debug!(group = %group.object.name_any(), clusters = input.clusters.len(), "seen");
    Ok(PlanPreview {
        rollout: rolling.rollout,
        input,
    })
}

#[cfg(test)]
mod tests {
    use kube::client::Body;
    use serde_json::json;

    use super::*;

    /// A management cluster on which nothing is stored.
    fn empty() -> Hub {
        let service = tower::service_fn(async |request: http::Request<Body>| {
            let name = request
                .uri()
                .path()
                .rsplit('/')
                .next()
                .unwrap_or_default()
                .to_owned();
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404,
                "reason": "NotFound", "message": "not found",
                "details": {"name": name, "group": "apps", "kind": "controllerrevisions"}});
            let response = http::Response::builder().status(404);
            let response = response.body(Body::from(status.to_string().into_bytes()));
            response.map_err(|error| Box::new(error) as Box<dyn std::error::Error + Send + Sync>)
        });
        Hub::new(kube::Client::new(service, "default"))
    }

    /// Rollout 3 is blocked with `ReleaseNotFound` by status. `starling why` says that no rollout has begun.
    #[tokio::test]
    async fn why_tells_of_a_rollout_whose_release_is_lost() {
        let source: Source = serde_json::from_value(json!({
            "apiVersion": "starling.dev/v1alpha1", "kind": "Source",
            "metadata": {"name": "s", "namespace": "fleet", "uid": "s", "resourceVersion": "1"},
            "spec": {"url": "https://git.example.com/a.git", "ref": {"branch": "main"}},
            "status": {"revision": "main@sha1:2222222222222222222222222222222222222222"}
        }))
        .unwrap();
        let mut group: SyncGroup = serde_json::from_value(json!({
            "apiVersion": "starling.dev/v1alpha1", "kind": "SyncGroup",
            "metadata": {"name": "shop", "namespace": "fleet", "uid": "u", "resourceVersion": "1"},
            "spec": {"clusterSelector": {}, "syncs": [{"name": "app", "sourceRef": {"name": "s"}, "path": "./x"}]}
        }))
        .unwrap();
        let rollout = RolloutStatus {
            id: 3,
            release: "sha256:11".into(),
            ..RolloutStatus::default()
        };
        group.status = Some(starling_api::SyncGroupStatus {
            rollout: Some(rollout),
            ..starling_api::SyncGroupStatus::default()
        });
        let objects = PreviewObjects::of(vec![source], Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let why = preview_plan(&empty(), &objects, group, Timestamp::now())
            .await
            .unwrap_err();
        let told = why.to_string();
        assert!(!told.contains("no rollout has begun"), "{told}");
    }

    /// "The independent checker, the journal, `verify` and `why` know both": the entry `old` was taken out of the
    /// group, and its Sync on `c1` waits to be removed.
    #[tokio::test]
    async fn why_is_told_which_syncs_leave() {
        let revision = "main@sha1:2222222222222222222222222222222222222222";
        let source: Source = serde_json::from_value(json!({
            "apiVersion": "starling.dev/v1alpha1", "kind": "Source",
            "metadata": {"name": "s", "namespace": "fleet", "uid": "s", "resourceVersion": "1"},
            "spec": {"url": "https://git.example.com/a.git", "ref": {"branch": "main"}},
            "status": {"revision": revision}
        }))
        .unwrap();
        let cluster: Cluster = serde_json::from_value(json!({
            "apiVersion": "starling.dev/v1alpha1", "kind": "Cluster",
            "metadata": {"name": "c1", "namespace": "fleet", "uid": "c", "resourceVersion": "1"},
            "spec": {"kubeConfig": {"secretRef": {"name": "s"}}}
        }))
        .unwrap();
        let sync: SyncResource = serde_json::from_value(json!({
            "apiVersion": "starling.dev/v1alpha1", "kind": "Sync",
            "metadata": {"name": "shop-old-c1", "namespace": "fleet", "uid": "y", "resourceVersion": "1"},
            "spec": {"groupRef": {"name": "shop", "entry": "old"}, "clusterRef": {"name": "c1"},
                "revision": revision, "sourceRef": {"name": "s"}, "path": "./old"}
        }))
        .unwrap();
        let mut group: SyncGroup = serde_json::from_value(json!({
            "apiVersion": "starling.dev/v1alpha1", "kind": "SyncGroup",
            "metadata": {"name": "shop", "namespace": "fleet", "uid": "u", "resourceVersion": "1"},
            "spec": {"clusterSelector": {}, "syncs": [{"name": "app", "sourceRef": {"name": "s"}, "path": "./x"}]}
        }))
        .unwrap();
        let digest = starling_core::target::of_release(&[("app", revision, &group.spec.syncs[0].template)]);
        let rollout = RolloutStatus {
            id: 3,
            release: digest,
            ..RolloutStatus::default()
        };
        group.status = Some(starling_api::SyncGroupStatus {
            rollout: Some(rollout),
            ..starling_api::SyncGroupStatus::default()
        });
        let objects = PreviewObjects::of(vec![source], vec![cluster], vec![sync], Vec::new(), Vec::new());
        let found = preview_plan(&empty(), &objects, group, Timestamp::now())
            .await
            .unwrap();
        let leaving: Vec<&String> = found.input.leaving.keys().collect();
        assert_eq!(leaving, ["shop-old-c1"]);
    }
}
