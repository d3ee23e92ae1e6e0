//! Builds the input of the planner for a group from listed objects, for callers other than the controller. Writes
//! nothing.

use std::sync::Arc;

use jiff::Timestamp;
use kube::ResourceExt;
use starling_api::conditions::MEMBERSHIP_HELD;
use starling_api::{
    Cluster, DeletionApproval, OnNewRevision, RollbackType, RolloutAction, RolloutApproval, Source,
    SyncGroup, SyncGroupStatus, SyncResource,
};
use starling_core::clock_jumps::ClockJumps;
use starling_core::explain::CurrentRollout;
use starling_core::plan::{HoldReason, PlanInput, ReadStrategy};
use starling_core::rollout::{self, Blocked, PlannerInput, Preview, Rolling};
use starling_expression::metric;

use super::leave::Leaving;
use super::machine::{self, GroupObservations, PassTimes, Store, drive};
use super::observe::{Group, Snapshot, observe};
use super::offer::offer;
use super::validate::Rules;
use crate::controller::cache::Cache;
use crate::controller::caches::indexed::{
    cluster_of, group_of_action, group_of_approval, subject_of_deletions,
};
use crate::controller::caches::plan_memo::PlanMemo;
use crate::controller::caches::release_snapshots::ReleaseSnapshots;
use crate::controller::caches::selections::SelectionCache;
use crate::controller::caches::settled_admissions::SettledAdmissions;
use crate::controller::caches::sync_index::{GroupSyncs, SyncCache};
use crate::controller::gates::GateTasks;
use crate::controller::hub::{Hub, HubError};
use crate::controller::object_key::ObjectKey;

/// The objects of a namespace that a preview is built from.
#[derive(Debug)]
pub struct PreviewObjects {
    sources: Cache<Source>,
    clusters: Cache<Cluster>,
    syncs: Arc<SyncCache>,
    approvals: Cache<RolloutApproval>,
    actions: Cache<RolloutAction>,
    deletion_approvals: Cache<DeletionApproval>,
    selections: SelectionCache,
}

/// The current rollout of a group, and the input of its next plan.
#[derive(Debug)]
pub struct PlanPreview {
    /// The rollout in status, and its release.
    pub rolling: Rolling,
    /// The input of the planner.
    pub input: PlanInput,
    /// The status of the group.
    pub status: SyncGroupStatus,
    /// The strategy in force.
    pub strategy: ReadStrategy,
    /// The policy for a newer release.
    pub on_new_revision: OnNewRevision,
    /// The type of a rollback.
    pub rollback: RollbackType,
    /// Why a due rollback, or another due transition, cannot be made.
    pub stuck: Option<Blocked>,
}

impl PlanPreview {
    /// Returns the rollout that an estimate continues.
    #[must_use]
    pub fn current(&self) -> CurrentRollout<'_> {
        CurrentRollout {
            status: &self.status,
            rolling: &self.rolling,
            input: &self.input,
            strategy: &self.strategy,
            on_new_revision: self.on_new_revision,
            rollback: self.rollback,
        }
    }
}

/// The error of a preview.
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
        deletion_approvals: Vec<DeletionApproval>,
    ) -> Self {
        let objects = Self {
            sources: Cache::default(),
            clusters: Cache::default(),
            syncs: Arc::new(Cache::indexed_by(cluster_of)),
            approvals: Cache::indexed_by(group_of_approval),
            actions: Cache::indexed_by(group_of_action),
            deletion_approvals: Cache::indexed_by(subject_of_deletions),
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
        for approval in deletion_approvals {
            objects.deletion_approvals.observe_write(approval);
        }
        objects
    }

    /// The Syncs of a group.
    #[must_use]
    pub fn syncs_of(&self, group: &SyncGroup) -> Arc<GroupSyncs> {
        self.syncs.of_group(&ObjectKey::of(group))
    }

    fn snapshot(&self) -> Snapshot<'_> {
        Snapshot {
            sources: &self.sources,
            clusters: &self.clusters,
            syncs: &self.syncs,
            approvals: &self.approvals,
            actions: &self.actions,
            deletion_approvals: &self.deletion_approvals,
            selections: &self.selections,
            rules: Rules {
                check_test: &metric::check,
                job_accounts: None,
            },
            policies: None,
            installation: None,
        }
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
    let group =
        observe(objects.snapshot(), Arc::new(group)).map_err(|blocked| PlanPreviewError::Blocked {
            reason: blocked.reason,
            message: blocked.message,
        })?;
    let offer = offer(now, &group);
    // Only the controller observes when clusters begin to leave; the condition reports it.
    let conditions = group.object.status.iter().flat_map(|status| &status.conditions);
    let held = conditions
        .filter(|condition| condition.type_ == MEMBERSHIP_HELD)
        .any(|condition| condition.status == "True");
    let leaving = Leaving::in_lists(&group, &objects.clusters, now);
    let unselected = leaving.status(&group);
    let times = PassTimes {
        now,
        clock_jumps: &ClockJumps::default(),
        reported_at: None,
    };
    let facts = machine::facts(&group, &offer, held, &unselected, &leaving.kept, times);
    let store = Store {
        snapshots: &ReleaseSnapshots::default(),
        hub,
    };
    let mut observed = GroupObservations {
        group: &group,
        // Only the controller knows the gate results that are not in status yet, and the clusters that are about to
        // leave.
        gates: &GateTasks::default(),
        memo: &mut PlanMemo::default(),
        leaving: &leaving,
        store,
        settled: &SettledAdmissions::default(),
        prunes: None,
        awaits_marks: false,
        policies: None,
        installation_slots: installation_slots(&group),
        clock: None,
        now,
    };
    // A step has no effects before somebody executes them. It comes first, because it gives the clusters back.
    let stepped = drive(rollout::step, &facts, None, &mut observed).await?;
    let stuck = stepped.ok().and_then(|transition| transition.stuck);
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
    tracing::debug!(group = %group.object.name_any(), clusters = input.clusters.len(), "planner input built");
    let strategy = &group.object.spec.rollout_strategy;
    Ok(PlanPreview {
        rolling,
        input,
        status: group.object.status.clone().unwrap_or_default(),
        on_new_revision: strategy.on_new_revision,
        rollback: strategy.rollback.type_,
        strategy: group.strategy,
        stuck,
    })
}

/// Returns the slots of the installation for a group, as its status tells: only the controller knows the other groups.
fn installation_slots(group: &Group) -> Option<usize> {
    let rollout = group.object.status.as_ref()?.rollout.as_ref()?;
    let reason = HoldReason::InstallationLimit;
    let mut blockers = rollout.blocked_by.iter();
    blockers
        .any(|blocker| blocker.reason == reason.as_str())
        .then_some(0)
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};
    use starling_api::RolloutStatus;
    use starling_core::ids::RolloutNumber;
    use starling_core::plan::UnresolvedTarget;
    use starling_core::rollout::{Admission, ReleaseSnapshot};

    use super::super::{sync, view};
    use super::*;
    use crate::controller::hub::testing::empty;

    const REVISION: &str = "main@sha1:2222222222222222222222222222222222222222";

    fn object<K: DeserializeOwned>(kind: &str, name: &str, spec: &Value) -> K {
        let metadata = json!({"name": name, "namespace": "fleet", "uid": name, "resourceVersion": "1"});
        let object =
            json!({"apiVersion": "starling.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec});
        serde_json::from_value(object).unwrap()
    }

    fn source() -> Source {
        let spec = json!({"url": "https://git.example.com/a.git", "ref": {"branch": "main"}});
        let mut source: Source = object("Source", "s", &spec);
        source.status = Some(serde_json::from_value(json!({"revision": REVISION})).unwrap());
        source
    }

    /// Returns a group with a release as rollout 3 in status.
    fn rolling(release: impl FnOnce(&SyncGroup) -> String) -> SyncGroup {
        let entry = json!({"name": "app", "sourceRef": {"name": "s"}, "path": "./x"});
        let mut group: SyncGroup = object(
            "SyncGroup",
            "shop",
            &json!({"clusterSelector": {}, "syncs": [entry]}),
        );
        let rollout = RolloutStatus {
            id: 3,
            release: release(&group),
            ..RolloutStatus::default()
        };
        group.status = Some(SyncGroupStatus {
            rollout: Some(rollout),
            ..SyncGroupStatus::default()
        });
        group
    }

    /// Guards against an admission that is forgotten until an event comes: its Sync cannot be built, and the pass
    /// reported all admissions as written.
    #[test]
    fn an_admission_without_a_sync_is_reported() {
        let cluster = object(
            "Cluster",
            "c1",
            &json!({"kubeConfig": {"secretRef": {"name": "s"}}}),
        );
        let group = rolling(|_| "sha256:11".into());
        let rollout = group.status.clone().unwrap().rollout.unwrap();
        let snapshot = ReleaseSnapshot {
            digest: "sha256:11".into(),
            revisions: Vec::new(),
            entries: group.spec.syncs.clone(),
        };
        let objects = PreviewObjects::of(
            vec![source()],
            vec![cluster],
            Vec::new(),
            Vec::new(),
            Vec::new(),
            Vec::new(),
        );
        let group = observe(objects.snapshot(), Arc::new(group)).map_err(|blocked| blocked.message);
        let group = group.unwrap();
        let admission = |cluster: &str, entry: &str, release: &str| Admission {
            cluster: cluster.into(),
            entry: entry.into(),
            release: release.into(),
            rollout: RolloutNumber::new(3),
            target: "t".into(),
            revision: REVISION.into(),
            at: Timestamp::UNIX_EPOCH,
            retried_for: None,
        };
        let admissions = [
            admission("c1", "app", "sha256:11"),
            admission("gone", "app", "sha256:11"),
            admission("c1", "gone", "sha256:11"),
            admission("c1", "app", "sha256:22"),
        ];
        let rolling = Rolling {
            rollout,
            snapshot: Arc::new(snapshot),
            known_good: None,
        };
        let (syncs, not_built) = sync::mk_syncs(&group, Some(&rolling), &admissions);
        assert_eq!(syncs.len(), 1);
        let errors: Vec<String> = not_built.iter().map(|(_, error)| error.to_string()).collect();
        assert_eq!(
            errors,
            [
                "cluster gone is not selected",
                "release sha256:11 has no entry \"gone\"",
                "release sha256:22 is neither the current nor the last known good one",
            ]
        );
        let (syncs, not_built) = sync::mk_syncs(&group, None, &admissions);
        assert_eq!((syncs.len(), not_built.len()), (0, 4));
    }

    /// The Sync of an entry looked like one with a wrong parameter, although no parameter is wrong.
    #[test]
    fn a_sync_that_cannot_be_decoded_has_its_own_reason() {
        let cluster = object(
            "Cluster",
            "c1",
            &json!({"kubeConfig": {"secretRef": {"name": "s"}}}),
        );
        let group = rolling(|_| "sha256:11".into());
        let rolling = Rolling {
            rollout: group.status.clone().unwrap().rollout.unwrap(),
            snapshot: Arc::new(ReleaseSnapshot {
                digest: "sha256:11".into(),
                revisions: Vec::new(),
                entries: group.spec.syncs.clone(),
            }),
            known_good: None,
        };
        let objects = PreviewObjects::of(vec![source()], vec![cluster], vec![], vec![], vec![], vec![]);
        let group = observe(objects.snapshot(), Arc::new(group)).map_err(|blocked| blocked.message);
        let mut group = group.unwrap();
        let name = sync::name_of(&group, "c1", "app");
        group.unreadable_syncs.insert(name.clone().into());
        let views = view::clusters(&group, &rolling, &mut PlanMemo::default());
        let wanted = Err(UnresolvedTarget::UnreadableSync { sync: name.into() });
        assert_eq!(views["c1"].entries["app"].wanted, wanted);
    }

    /// A management cluster that is set back brings back Syncs that the pass does not know yet. Guards against a second
    /// Sync of the same entry on the same cluster, under another name: both write the same objects for ever.
    #[test]
    fn a_sync_that_appears_during_the_pass_keeps_its_name() {
        let sync = |group: &str, entry: &str, cluster: &str| -> SyncResource {
            let spec = json!({"groupRef": {"name": group, "entry": entry}, "clusterRef": {"name": cluster},
                "revision": REVISION, "sourceRef": {"name": "s"}, "path": "./x"});
            object("Sync", "shop-app-eu-1", &spec)
        };
        for (appears, name) in [
            (sync("shop", "app", "eu-1"), "shop-app-eu-1"),
            (sync("shop", "app-eu", "1"), "shop-app-eu-1-40c121d6"),
            (sync("other", "app", "eu-1"), "shop-app-eu-1-40c121d6"),
        ] {
            let objects = PreviewObjects::of(vec![source()], vec![], vec![], vec![], vec![], vec![]);
            let observed = || {
                let group = observe(objects.snapshot(), Arc::new(rolling(|_| "sha256:11".into())));
                group.map_err(|blocked| blocked.message).unwrap()
            };
            let before = observed();
            assert_eq!(sync::name_of(&before, "eu-1", "app"), "shop-app-eu-1");
            objects.syncs.observe_write(appears);
            assert_eq!(sync::name_of(&before, "eu-1", "app"), name);
            assert_eq!(sync::name_of(&observed(), "eu-1", "app"), name);
        }
    }

    /// Guards against two entries that overwrite each other's Sync.
    #[test]
    fn syncs_with_the_same_plain_name_have_different_names() {
        let secret = json!({"kubeConfig": {"secretRef": {"name": "s"}}});
        let clusters = ["eu-1", "1"].map(|name| object("Cluster", name, &secret));
        let mut group = rolling(|_| "sha256:11".into());
        let mut second = group.spec.syncs[0].clone();
        second.name = "app-eu".into();
        group.spec.syncs.push(second);
        let objects = PreviewObjects::of(vec![source()], clusters.into(), vec![], vec![], vec![], vec![]);
        let group = observe(objects.snapshot(), Arc::new(group)).map_err(|blocked| blocked.message);
        let group = group.unwrap();
        let name = |cluster: &str, entry: &str| sync::name_of(&group, cluster, entry);
        assert_eq!(name("1", "app"), "shop-app-1");
        assert_eq!(name("eu-1", "app-eu"), "shop-app-eu-eu-1");
        assert_eq!(name("eu-1", "app"), "shop-app-eu-1-40c121d6");
        assert_eq!(name("1", "app-eu"), "shop-app-eu-1-407eb1d8");
    }

    /// Rollout 3 is blocked with `ReleaseNotFound` in status. `starling why` must not report that no rollout has
    /// started.
    #[tokio::test]
    async fn why_tells_of_a_rollout_whose_release_is_lost() {
        let group = rolling(|_| "sha256:11".into());
        let objects = PreviewObjects::of(vec![source()], vec![], vec![], vec![], vec![], vec![]);
        let why = preview_plan(&empty(), &objects, group, Timestamp::now())
            .await
            .unwrap_err();
        let message = why.to_string();
        assert!(!message.contains("no rollout has started"), "{message}");
    }

    /// The checker, the journal, `verify` and `why` all cover removals. The entry `old` was removed from the group, and
    /// its Sync on `c1` waits to be removed.
    #[tokio::test]
    async fn why_gets_the_syncs_that_leave() {
        let cluster = object(
            "Cluster",
            "c1",
            &json!({"kubeConfig": {"secretRef": {"name": "s"}}}),
        );
        let spec = json!({"groupRef": {"name": "shop", "entry": "old"}, "clusterRef": {"name": "c1"},
            "revision": REVISION, "sourceRef": {"name": "s"}, "path": "./old"});
        let sync = object("Sync", "shop-old-c1", &spec);
        let group = rolling(|group| {
            let template = &group.spec.syncs[0].template;
            starling_core::target::of_release(&[("app", REVISION, template)]).into_string()
        });
        let objects = PreviewObjects::of(vec![source()], vec![cluster], vec![sync], vec![], vec![], vec![]);
        let found = preview_plan(&empty(), &objects, group, Timestamp::now())
            .await
            .unwrap();
        let leaving: Vec<_> = found.input.leaving.keys().collect();
        assert_eq!(leaving, ["shop-old-c1"]);
    }
}
