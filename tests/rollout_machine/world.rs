//! The management API and the clusters, as they are: what survives every crash.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use starling::ledger::AdmissionRecord;
use starling_api::{
    ActionType, OnNewRevision, RollbackType, RolloutAction, RolloutActionSpec, RolloutApproval,
    RolloutApprovalSpec, RolloutStatus, SyncGroupStatus,
};
use starling_core::plan::Strategy;
use starling_core::simulate::Member;

use crate::law::{self, Broken};

/// The name of the group.
pub(crate) const GROUP: &str = "shop";
/// Its UID.
pub(crate) const UID: &str = "uid-of-shop";
/// Its one entry: how many there are decides nothing here.
pub(crate) const ENTRY: &str = "app";

/// What a person wrote into the spec of the group.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) strategy: Strategy,
    pub(crate) on_new_revision: OnNewRevision,
    pub(crate) rollback: RollbackType,
}

/// A cluster, with its Sync.
#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    pub(crate) member: Member,
    /// Its stage, as a place in the strategy.
    pub(crate) stage: usize,
    /// The rollout that its Sync names.
    pub(crate) rollout: i64,
}

/// What the management API holds.
#[derive(Clone, Debug)]
pub(crate) struct Api {
    /// What the Source offers.
    pub(crate) offered: String,
    pub(crate) status: SyncGroupStatus,
    /// Releases that are kept.
    pub(crate) kept: BTreeSet<String>,
    pub(crate) clusters: BTreeMap<String, Cluster>,
    pub(crate) actions: Vec<RolloutAction>,
    pub(crate) approvals: Vec<RolloutApproval>,
}

/// A Sync as the controller writes it.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    pub(crate) cluster: String,
    /// The digest of the release is the target: what a release holds decides nothing here.
    pub(crate) release: String,
    pub(crate) rollout: i64,
    pub(crate) at: Timestamp,
}

#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) now: Timestamp,
    pub(crate) spec: Spec,
    pub(crate) api: Api,
    /// Laws that were broken so far.
    pub(crate) broken: Vec<Broken>,
    serial: u32,
    releases: u32,
}

impl World {
    /// A group that has nothing yet.
    pub(crate) fn new(now: Timestamp, spec: Spec, clusters: BTreeMap<String, Cluster>) -> Self {
        Self {
            now,
            spec,
            api: Api {
                offered: "r0".to_owned(),
                status: SyncGroupStatus::default(),
                kept: BTreeSet::new(),
                clusters,
                actions: Vec::new(),
                approvals: Vec::new(),
            },
            broken: Vec::new(),
            serial: 0,
            releases: 0,
        }
    }

    pub(crate) fn rollout(&self) -> Option<&RolloutStatus> {
        self.api.status.rollout.as_ref()
    }

    // ------------------------------------------------------------------ what the controller does

    pub(crate) fn write_status(&mut self, after: &SyncGroupStatus) {
        self.broken.extend(law::of_status(self, after));
        self.api.status = after.clone();
    }

    /// `intents` are what the ledger has of this rollout.
    pub(crate) fn write_sync(&mut self, written: &Written, intents: &[AdmissionRecord]) {
        self.broken.extend(law::of_sync(self, written, intents));
        let Some(cluster) = self.api.clusters.get_mut(&written.cluster) else {
            return;
        };
        cluster.rollout = written.rollout;
        let same = cluster
            .member
            .observed
            .as_mut()
            .filter(|sync| sync.target.as_ref() == Some(&written.release));
        match same {
            // The spec stays as it is, and so does the work at it.
            Some(sync) => sync.admitted_at = Some(written.at),
            None => cluster.member.admit(&written.release, written.at),
        }
        cluster.member.live(self.now);
        self.broken.extend(law::of_room(self));
    }

    // ------------------------------------------------------------------ what others do

    /// Time goes on.
    pub(crate) fn go_to(&mut self, now: Timestamp) {
        self.now = now;
        for cluster in self.api.clusters.values_mut() {
            cluster.member.live(now);
        }
    }

    fn named(&mut self, what: &str) -> String {
        self.serial += 1;
        format!("{what}-{}", self.serial)
    }

    /// A person says something about the rollout that rolls.
    pub(crate) fn say(&mut self, action: ActionType, cluster: Option<String>, stage: Option<String>) {
        let Some(rollout) = self.rollout().map(|rollout| rollout.id) else {
            return;
        };
        let spec = RolloutActionSpec {
            group: GROUP.into(),
            rollout,
            action,
            cluster,
            stage,
            revision: None,
            by: "jane".into(),
            reason: "so".into(),
        };
        let mut said = RolloutAction::new(&self.named("action"), spec);
        said.metadata.creation_timestamp = Some(Time(self.now));
        said.metadata.resource_version = Some(self.serial.to_string());
        self.api.actions.push(said);
    }

    /// A person approves a stage of what rolls, if it is known what that renders to.
    pub(crate) fn approve(&mut self, stage: &str) {
        let Some(rollout) = self
            .rollout()
            .filter(|rollout| !rollout.release_digest.is_empty())
        else {
            return;
        };
        let spec = RolloutApprovalSpec {
            group: GROUP.into(),
            rollout: rollout.id,
            stage: stage.to_owned(),
            release_digest: rollout.release_digest.clone(),
            by: "jane".into(),
            reason: "seen".into(),
        };
        let mut said = RolloutApproval::new(&self.named("approval"), spec);
        said.metadata.creation_timestamp = Some(Time(self.now));
        self.api.approvals.push(said);
    }

    /// Something new is offered; its digest.
    pub(crate) fn offer_new(&mut self) -> String {
        self.releases += 1;
        self.api.offered = format!("r{}", self.releases);
        self.api.offered.clone()
    }
}
