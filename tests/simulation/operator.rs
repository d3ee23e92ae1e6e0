//! An operator who watches a rollout through stages: approves waiting stages, creates the actions of the script, and at
//! the end handles everything that waits for an operator.
//!
//! The operator reads the management cluster directly, and writes to it through the network.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;

use anyhow::Context as _;
use jiff::{SignedDuration, Timestamp};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use starling::controller::hub::Hub;
use starling_api::{
    ActionType, DeletionApproval, DeletionApprovalSpec, EntryRevision, INSTALLATION, RolloutAction,
    RolloutActionSpec, RolloutApproval, RolloutApprovalSpec, RolloutDirection, RolloutPhase, RolloutStatus,
    StageStatus, SyncGroupStatus,
};
use starling_core::inventory::format::{DATA_KEY, REMOVALS_KEY};
use starling_core::restore::WriteNumber;

use crate::script::{MEMBERS, member};
use crate::staged::UserAction;
use crate::user::{GROUP, NAMESPACE, OTHER, namespaced, put_groups};
use crate::world::{HUB, World, now};

/// The name of the operator.
const NAME: &str = "jane";
/// How long a rollout may stay unchanged before the operator acts, in seconds.
const IDLE_LIMIT: i64 = 30;
/// How long the operator waits for the effect of an action, in seconds.
const TIMEOUT: i64 = 15;
/// How often the operator releases the newest release before asking why it was rolled back.
const RELEASES: u32 = 3;

/// The state of the operator.
#[derive(Default)]
pub(crate) struct Operator {
    /// Number of created objects: each has a name of its own.
    count: u64,
    /// The stage that waits for an approval, and since when the operator knows.
    waiting_approval: Option<(i64, String, Timestamp)>,
    /// The rollout after its last change, and the time of that change.
    last_change: Option<(RolloutStatus, Timestamp)>,
    /// When the operator last acted on an idle rollout.
    last_action: Option<Timestamp>,
    /// How often the operator has released the newest release after a rollback.
    releases: u32,
    /// The release digests of earlier rollouts.
    digests: Vec<String>,
    /// Groups and digests of deletions that wait for an approval, and since when the operator knows.
    held_deletions: BTreeMap<(String, String), Timestamp>,
    /// Since when the operator knows that a restore waits for its release.
    restore_known: Option<Timestamp>,
}

impl Operator {
    /// Reads what waits for an operator once, and creates at most one object.
    pub(crate) async fn act(&mut self, world: &World, hub: &Client) -> anyhow::Result<()> {
        if self.restore_to_release(world)? {
            return release_restore(world, hub).await;
        }
        if let Some(extras) = &world.extras
            && let Some((group, digest)) = self.deletions_to_approve(world, extras.approval_delay)?
        {
            return self.approve_deletions(hub, &group, &digest).await;
        }
        if world.staged.is_some() {
            self.act_on_rollout(world, hub).await?;
        }
        Ok(())
    }

    /// Whether a restore of the management cluster waits for its release, after the operator's delay.
    fn restore_to_release(&mut self, world: &World) -> anyhow::Result<bool> {
        let mut maps = world.config_maps(HUB)?.into_iter();
        let is_held = maps
            .any(|map| map["metadata"]["name"] == INSTALLATION && map["data"]["restoreDetected"].is_string());
        if !is_held || world.is_old.load(Ordering::SeqCst) {
            self.restore_known = None;
            return Ok(false);
        }
        let since = *self.restore_known.get_or_insert_with(now);
        Ok(now().duration_since(since).as_secs() >= world.release_delay)
    }

    /// Returns a group and a digest of deletions that wait for an approval, after the operator's delay. The same digest
    /// may wait again later.
    fn deletions_to_approve(
        &mut self,
        world: &World,
        delay: i64,
    ) -> anyhow::Result<Option<(String, String)>> {
        let waiting = held_deletions(world)?;
        self.held_deletions.retain(|held, _| waiting.contains(held));
        for held in waiting {
            let since = self.held_deletions.entry(held.clone()).or_insert_with(now);
            if now().duration_since(*since).as_secs() >= delay {
                // The controller needs time to see the approval.
                *since = now().checked_add(SignedDuration::from_secs(IDLE_LIMIT))?;
                return Ok(Some(held));
            }
        }
        Ok(None)
    }

    async fn approve_deletions(&mut self, hub: &Client, group: &str, digest: &str) -> anyhow::Result<()> {
        let spec = DeletionApprovalSpec {
            group: Some(group.to_owned()),
            sync: None,
            digest: digest.to_owned(),
            by: NAME.to_owned(),
            reason: String::new(),
        };
        let approval = DeletionApproval::new(&self.name(), spec);
        self.create(hub, &approval).await
    }

    async fn act_on_rollout(&mut self, world: &World, hub: &Client) -> anyhow::Result<()> {
        let status = world.group(GROUP)?.status.clone().unwrap_or_default();
        let Some(rollout) = status.rollout.clone() else {
            return Ok(());
        };
        self.remember(&rollout);
        let delay = world.staged.as_ref().map_or(0, |staged| staged.approval_delay);
        if let Some(stage) = self.stage_to_approve(&rollout, delay) {
            let (stage, digest) = (stage.name.clone(), rollout.release_digest.clone());
            return self.approve(hub, rollout.id, &stage, &digest).await;
        }
        if world.faults_ended.load(Ordering::SeqCst) {
            let newest = world.git.head("main").unwrap_or_default();
            self.finish_rollout(world, hub, (&status, &rollout), &newest)
                .await?;
        }
        Ok(())
    }

    fn remember(&mut self, rollout: &RolloutStatus) {
        let digest = &rollout.release_digest;
        if !digest.is_empty() && self.digests.last() != Some(digest) {
            self.digests.push(digest.clone());
        }
        if self
            .last_change
            .as_ref()
            .is_none_or(|(last_change, _)| last_change != rollout)
        {
            self.last_change = Some((rollout.clone(), now()));
        }
    }

    /// Returns a stage that waits for an approval, after the operator's delay.
    fn stage_to_approve<'r>(&mut self, rollout: &'r RolloutStatus, delay: u64) -> Option<&'r StageStatus> {
        let waiting_approval = |stage: &&StageStatus| stage.phase == "AwaitingApproval";
        let stage = rollout.stages.iter().find(waiting_approval)?;
        if rollout.release_digest.is_empty() {
            return None;
        }
        let known = self.waiting_approval.as_ref();
        if known.is_none_or(|(id, name, _)| (*id, name) != (rollout.id, &stage.name)) {
            self.waiting_approval = Some((rollout.id, stage.name.clone(), now()));
        }
        let (.., since) = self.waiting_approval.as_ref()?;
        let delay = i64::try_from(delay).unwrap_or(0);
        (now().duration_since(*since).as_secs() >= delay).then_some(stage)
    }

    /// Handles everything that waits for an operator, so that the newest commit rolls out everywhere.
    async fn finish_rollout(
        &mut self,
        world: &World,
        hub: &Client,
        (status, rollout): (&SyncGroupStatus, &RolloutStatus),
        newest: &str,
    ) -> anyhow::Result<()> {
        let since = self.last_action.max(self.last_change.as_ref().map(|(_, at)| *at));
        let idle = since.map_or(0, |since| now().duration_since(since).as_secs());
        if idle < TIMEOUT {
            return Ok(());
        }
        let actions = actions(hub, rollout.id).await?;
        let is_newest = contains_commit(&rollout.revisions, newest);
        if is_newest && rollout.direction == RolloutDirection::Forward {
            // A skipped cluster or an aborted rollout never converges.
            let blocks_rollout = |action: &&RolloutAction| {
                matches!(
                    action.spec.action,
                    ActionType::Skip | ActionType::Abort | ActionType::Rollback
                )
            };
            if let Some(action) = actions.iter().find(blocks_rollout) {
                let actions = namespaced::<RolloutAction>(hub);
                self.last_action = Some(now());
                actions
                    .delete(&action.name_any(), &DeleteParams::default())
                    .await?;
                return Ok(());
            }
        }
        let Some(action) = next_action(status, rollout, &actions, is_newest, idle, newest) else {
            return Ok(());
        };
        self.last_action = Some(now());
        if action.action == ActionType::Release {
            self.releases += 1;
            if self.releases > RELEASES {
                raise_budget(world, hub).await?;
            }
        }
        self.create_action(hub, rollout.id, action).await
    }

    /// Creates an action of the script for the current rollout.
    pub(crate) async fn run(
        &mut self,
        world: &World,
        hub: &Client,
        requested: &UserAction,
    ) -> anyhow::Result<()> {
        let status = world.group(GROUP)?.status.clone().unwrap_or_default();
        let Some(rollout) = status.rollout else {
            return Ok(());
        };
        let stage = Some(rollout.stage.clone()).filter(|stage| !stage.is_empty());
        let action = match requested {
            UserAction::ApproveOldDigest => {
                let (stage, digest) = (stage.unwrap_or_default(), self.old_digest(&rollout));
                if stage.is_empty() {
                    return Ok(());
                }
                return self.approve(hub, rollout.id, &stage, &digest).await;
            }
            UserAction::SkipCluster(cluster) => {
                let action = of(ActionType::Skip);
                let spec = RolloutActionSpec {
                    cluster: Some(cluster.clone()),
                    ..action
                };
                return self.create_action(hub, rollout.id, spec).await;
            }
            UserAction::Pause => ActionType::Pause,
            UserAction::Resume => ActionType::Resume,
            UserAction::Abort => ActionType::Abort,
            UserAction::Retry => ActionType::Retry,
            UserAction::SkipStage => ActionType::Skip,
            UserAction::Promote => ActionType::Promote,
            UserAction::Rollback => ActionType::Rollback,
            UserAction::Release => ActionType::Release,
        };
        let is_for_stage = matches!(requested, UserAction::SkipStage | UserAction::Promote);
        if is_for_stage && stage.is_none() {
            return Ok(());
        }
        let spec = RolloutActionSpec {
            stage: stage.filter(|_| is_for_stage),
            ..of(action)
        };
        self.create_action(hub, rollout.id, spec).await
    }

    /// Returns the release digest of an earlier rollout, or one of no release.
    fn old_digest(&self, rollout: &RolloutStatus) -> String {
        let mut older = self.digests.iter().rev();
        let older = older.find(|digest| **digest != rollout.release_digest);
        older.cloned().unwrap_or_else(|| "sha256:of-nothing".to_owned())
    }

    async fn approve(&mut self, hub: &Client, rollout: i64, stage: &str, digest: &str) -> anyhow::Result<()> {
        let spec = RolloutApprovalSpec {
            group: GROUP.to_owned(),
            rollout,
            stage: stage.to_owned(),
            release_digest: digest.to_owned(),
            by: NAME.to_owned(),
            reason: String::new(),
        };
        let approval = RolloutApproval::new(&self.name(), spec);
        self.create(hub, &approval).await
    }

    async fn create_action(
        &mut self,
        hub: &Client,
        rollout: i64,
        spec: RolloutActionSpec,
    ) -> anyhow::Result<()> {
        let spec = RolloutActionSpec { rollout, ..spec };
        let action = RolloutAction::new(&self.name(), spec);
        self.create(hub, &action).await
    }

    fn name(&self) -> String {
        format!("word-{}", self.count)
    }

    /// Creates an object once, even if the response is lost.
    async fn create<K>(&mut self, hub: &Client, object: &K) -> anyhow::Result<()>
    where
        K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
            + Clone
            + std::fmt::Debug
            + Serialize
            + DeserializeOwned,
    {
        let api: Api<K> = Api::namespaced(hub.clone(), NAMESPACE);
        match api.create(&PostParams::default(), object).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            other => drop(other.context("a word")?),
        }
        self.count += 1;
        Ok(())
    }
}

fn of(action: ActionType) -> RolloutActionSpec {
    RolloutActionSpec {
        group: GROUP.to_owned(),
        rollout: 0,
        action,
        cluster: None,
        stage: None,
        revision: None,
        by: NAME.to_owned(),
        reason: "the script says so".to_owned(),
    }
}

/// Gives the groups the default budget. A held deletion fails its cluster (ADR 42), so a budget that the prunes of a
/// release use up lets the release be rolled back each time, and the rollback uses the budget up again.
async fn raise_budget(world: &World, hub: &Client) -> anyhow::Result<()> {
    world.wanted().has_budget = false;
    put_groups(world, hub).await
}

/// Ends the hold after a restore, as `starling release-restore` does: the unknown numbers on the members are known from
/// now on.
async fn release_restore(world: &World, hub: &Client) -> anyhow::Result<()> {
    let hub = Hub::new(hub.clone());
    let record = hub.installation_record().await?;
    let record = record.context("no ConfigMap of the installation")?;
    let mut known = record.known()?;
    let lost: Vec<WriteNumber> = { numbers(world)?.into_iter() }
        .filter(|number| !known.knows(number))
        .collect();
    known.release(lost);
    known.release(record.finding()?.map(|finding| finding.number));
    world.add_release();
    let written = hub.write_installation(&record, &known, None).await?;
    written.context("another process wrote in between")?;
    Ok(())
}

/// Returns the write numbers that the members have: in their inventories, and those of the last removals.
fn numbers(world: &World) -> anyhow::Result<Vec<WriteNumber>> {
    let mut numbers = Vec::new();
    for name in (0..MEMBERS).map(member) {
        for map in world.config_maps(&name)? {
            let text = |key: &str| map["data"][key].as_str().unwrap_or_default().to_owned();
            let first = text(DATA_KEY).lines().next().unwrap_or_default().to_owned();
            let written = first.split(' ').filter_map(|word| word.strip_prefix("hub="));
            numbers.extend(written.filter_map(|number| number.parse().ok()));
            numbers.extend(text(REMOVALS_KEY).parse::<WriteNumber>().ok());
        }
    }
    Ok(numbers)
}

/// Returns the groups and digests of all deletions that wait for an approval: those of Syncs, and those that the
/// conditions of groups name.
fn held_deletions(world: &World) -> anyhow::Result<BTreeSet<(String, String)>> {
    let mut waiting = BTreeSet::new();
    for sync in world.syncs()? {
        let (Some(group), Some(status)) = (&sync.spec.group_ref, &sync.status) else {
            continue;
        };
        let held = status.held_deletions.as_ref();
        waiting.extend(held.map(|held| (group.name.clone(), held.digest.clone())));
    }
    for name in [GROUP, OTHER] {
        let group = world.group(name)?;
        for condition in group.status.iter().flat_map(|status| &status.conditions) {
            let mut words = condition.message.split_whitespace();
            while words.any(|word| word == "--digest") {
                waiting.extend(words.next().map(|digest| (name.to_owned(), digest.to_owned())));
            }
        }
    }
    Ok(waiting)
}

/// Returns the actions of a rollout, in order.
async fn actions(hub: &Client, rollout: i64) -> anyhow::Result<Vec<RolloutAction>> {
    let listed = namespaced::<RolloutAction>(hub)
        .list(&ListParams::default())
        .await?;
    let mut actions: Vec<RolloutAction> = { listed.items.into_iter() }
        .filter(|action| action.spec.rollout == rollout)
        .collect();
    actions.sort_by_key(|action| {
        let version = action.resource_version().unwrap_or_default();
        version.parse::<u64>().unwrap_or_default()
    });
    Ok(actions)
}

fn contains_commit(revisions: &[EntryRevision], commit: &str) -> bool {
    revisions.iter().any(|entry| entry.revision.ends_with(commit))
}

fn next_action(
    status: &SyncGroupStatus,
    rollout: &RolloutStatus,
    actions: &[RolloutAction],
    is_newest: bool,
    idle: i64,
    newest: &str,
) -> Option<RolloutActionSpec> {
    let last = actions
        .iter()
        .map(|action| action.spec.action)
        .rfind(|action| matches!(action, ActionType::Pause | ActionType::Resume));
    if last == Some(ActionType::Pause) {
        return Some(of(ActionType::Resume));
    }
    let held = status.held_release.as_ref();
    if !is_newest && held.is_some_and(|held| contains_commit(&held.revisions, newest)) {
        return Some(of(ActionType::Release));
    }
    let unproven = rollout.stages.iter().find(|stage| stage.phase == "StageUnproven");
    if let Some(stage) = unproven.filter(|_| is_newest) {
        return Some(RolloutActionSpec {
            stage: Some(stage.name.clone()),
            ..of(ActionType::Promote)
        });
    }
    if idle < IDLE_LIMIT || rollout.phase == RolloutPhase::Succeeded {
        return None;
    }
    let is_aborted = actions
        .iter()
        .any(|action| action.spec.action == ActionType::Abort);
    match (is_newest, is_aborted) {
        (true, _) => Some(of(ActionType::Retry)),
        // The next rollout can start.
        (false, false) => Some(of(ActionType::Abort)),
        (false, true) => None,
    }
}
