//! Somebody who watches a rollout through stages: approves what waits, says what the script has them say, and in the end sees
//! to everything that waits for a person.
//!
//! They look at the management cluster as it is, and write to it through the network like everybody else.

use std::sync::atomic::Ordering;

use anyhow::Context as _;
use jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use starling_api::{
    ActionType, EntryRevision, RolloutAction, RolloutActionSpec, RolloutApproval, RolloutApprovalSpec,
    RolloutDirection, RolloutPhase, RolloutStatus, StageStatus, SyncGroupStatus,
};

use crate::staged::Word;
use crate::user::{GROUP, NAMESPACE, group, namespaced};
use crate::world::{World, now};

/// Who says all this.
const NAME: &str = "jane";
/// How long somebody waits for a rollout to go on by itself before they do something about it, in seconds.
const STUCK: i64 = 30;
/// How long they wait for what they said to be followed, in seconds.
const PATIENCE: i64 = 15;

/// What somebody remembers.
#[derive(Default)]
pub(crate) struct Person {
    /// Words so far: each has a name of its own.
    words: u64,
    /// What waits for an approval, and since when they know.
    waits: Option<(i64, String, Timestamp)>,
    /// The rollout as it was when it last changed, and when that was.
    seen: Option<(RolloutStatus, Timestamp)>,
    /// When they last did something about a rollout that was stuck.
    acted: Option<Timestamp>,
    /// What the rollouts before rendered to.
    digests: Vec<String>,
}

impl Person {
    /// Looks once, and says at most one thing.
    pub(crate) async fn look(&mut self, world: &World, hub: &Client) -> anyhow::Result<()> {
        let status = group(world)?.status.unwrap_or_default();
        let Some(rollout) = status.rollout.clone() else {
            return Ok(());
        };
        self.remember(&rollout);
        let patience = world.staged.as_ref().map_or(0, |staged| staged.approves_after);
        if let Some(stage) = self.stage_to_approve(&rollout, patience) {
            let (stage, digest) = (stage.name.clone(), rollout.release_digest.clone());
            return self.approve(hub, rollout.id, &stage, &digest).await;
        }
        if world.is_fair.load(Ordering::SeqCst) {
            let newest = world.git.head("main").unwrap_or_default();
            self.see_to_it(hub, &status, &rollout, &newest).await?;
        }
        Ok(())
    }

    fn remember(&mut self, rollout: &RolloutStatus) {
        let digest = &rollout.release_digest;
        if !digest.is_empty() && self.digests.last() != Some(digest) {
            self.digests.push(digest.clone());
        }
        if self.seen.as_ref().is_none_or(|(seen, _)| seen != rollout) {
            self.seen = Some((rollout.clone(), now()));
        }
    }

    /// A stage that waits for an approval, once they have thought about it.
    fn stage_to_approve<'r>(&mut self, rollout: &'r RolloutStatus, patience: u64) -> Option<&'r StageStatus> {
        let waits = |stage: &&StageStatus| stage.phase == "AwaitingApproval";
        let stage = rollout.stages.iter().find(waits)?;
        if rollout.release_digest.is_empty() {
            return None;
        }
        let known = self.waits.as_ref();
        if known.is_none_or(|(id, name, _)| (*id, name) != (rollout.id, &stage.name)) {
            self.waits = Some((rollout.id, stage.name.clone(), now()));
        }
        let (.., since) = self.waits.as_ref()?;
        let patience = i64::try_from(patience).unwrap_or(0);
        (now().duration_since(*since).as_secs() >= patience).then_some(stage)
    }

    /// What a fair person does about what waits for a person: the newest commit is wanted everywhere.
    async fn see_to_it(
        &mut self,
        hub: &Client,
        status: &SyncGroupStatus,
        rollout: &RolloutStatus,
        newest: &str,
    ) -> anyhow::Result<()> {
        let since = self.acted.max(self.seen.as_ref().map(|(_, at)| *at));
        let idle = since.map_or(0, |since| now().duration_since(since).as_secs());
        if idle < PATIENCE {
            return Ok(());
        }
        let said = said(hub, rollout.id).await?;
        let is_newest = is_of(&rollout.revisions, newest);
        if is_newest && rollout.direction == RolloutDirection::Forward {
            // What is passed over, or was given up, would not come to rest.
            let in_the_way = |action: &&RolloutAction| {
                matches!(
                    action.spec.action,
                    ActionType::Skip | ActionType::Abort | ActionType::Rollback
                )
            };
            if let Some(action) = said.iter().find(in_the_way) {
                let actions = namespaced::<RolloutAction>(hub);
                self.acted = Some(now());
                actions
                    .delete(&action.name_any(), &DeleteParams::default())
                    .await?;
                return Ok(());
            }
        }
        let Some(word) = next_word(status, rollout, &said, is_newest, idle, newest) else {
            return Ok(());
        };
        self.acted = Some(now());
        self.act(hub, rollout.id, word).await
    }

    /// Says a word of the script to the rollout under way.
    pub(crate) async fn say(&mut self, world: &World, hub: &Client, word: &Word) -> anyhow::Result<()> {
        let status = group(world)?.status.unwrap_or_default();
        let Some(rollout) = status.rollout else {
            return Ok(());
        };
        let stage = Some(rollout.stage.clone()).filter(|stage| !stage.is_empty());
        let action = match word {
            Word::ApproveOld => {
                let (stage, digest) = (stage.unwrap_or_default(), self.old_digest(&rollout));
                if stage.is_empty() {
                    return Ok(());
                }
                return self.approve(hub, rollout.id, &stage, &digest).await;
            }
            Word::SkipCluster(cluster) => {
                let action = of(ActionType::Skip);
                let spec = RolloutActionSpec {
                    cluster: Some(cluster.clone()),
                    ..action
                };
                return self.act(hub, rollout.id, spec).await;
            }
            Word::Pause => ActionType::Pause,
            Word::Resume => ActionType::Resume,
            Word::Abort => ActionType::Abort,
            Word::Retry => ActionType::Retry,
            Word::SkipStage => ActionType::Skip,
            Word::Promote => ActionType::Promote,
            Word::Rollback => ActionType::Rollback,
            Word::Release => ActionType::Release,
        };
        let about_stage = matches!(word, Word::SkipStage | Word::Promote);
        if about_stage && stage.is_none() {
            return Ok(());
        }
        let spec = RolloutActionSpec {
            stage: stage.filter(|_| about_stage),
            ..of(action)
        };
        self.act(hub, rollout.id, spec).await
    }

    /// What an earlier rollout rendered to, or what nothing renders to.
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

    async fn act(&mut self, hub: &Client, rollout: i64, spec: RolloutActionSpec) -> anyhow::Result<()> {
        let spec = RolloutActionSpec { rollout, ..spec };
        let action = RolloutAction::new(&self.name(), spec);
        self.create(hub, &action).await
    }

    fn name(&self) -> String {
        format!("word-{}", self.words)
    }

    /// Says it once, though the answer may be lost.
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
        self.words += 1;
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

/// What was said to a rollout, in order.
async fn said(hub: &Client, rollout: i64) -> anyhow::Result<Vec<RolloutAction>> {
    let listed = namespaced::<RolloutAction>(hub)
        .list(&ListParams::default())
        .await?;
    let mut said: Vec<RolloutAction> = { listed.items.into_iter() }
        .filter(|action| action.spec.rollout == rollout)
        .collect();
    said.sort_by_key(|action| {
        let version = action.resource_version().unwrap_or_default();
        version.parse::<u64>().unwrap_or_default()
    });
    Ok(said)
}

fn is_of(revisions: &[EntryRevision], commit: &str) -> bool {
    revisions.iter().any(|entry| entry.revision.ends_with(commit))
}

fn next_word(
    status: &SyncGroupStatus,
    rollout: &RolloutStatus,
    said: &[RolloutAction],
    is_newest: bool,
    idle: i64,
    newest: &str,
) -> Option<RolloutActionSpec> {
    let last = said
        .iter()
        .map(|action| action.spec.action)
        .rfind(|action| matches!(action, ActionType::Pause | ActionType::Resume));
    if last == Some(ActionType::Pause) {
        return Some(of(ActionType::Resume));
    }
    let held = status.held_release.as_ref();
    if !is_newest && held.is_some_and(|held| is_of(&held.revisions, newest)) {
        return Some(of(ActionType::Release));
    }
    let unproven = rollout.stages.iter().find(|stage| stage.phase == "StageUnproven");
    if let Some(stage) = unproven.filter(|_| is_newest) {
        return Some(RolloutActionSpec {
            stage: Some(stage.name.clone()),
            ..of(ActionType::Promote)
        });
    }
    if idle < STUCK || rollout.phase == RolloutPhase::Succeeded {
        return None;
    }
    let is_given_up = said.iter().any(|action| action.spec.action == ActionType::Abort);
    match (is_newest, is_given_up) {
        (true, _) => Some(of(ActionType::Retry)),
        // What waits behind it gets its turn.
        (false, false) => Some(of(ActionType::Abort)),
        (false, true) => None,
    }
}
