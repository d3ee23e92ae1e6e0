//! Looks at the group, and writes the object that says it.

use anyhow::{Context, bail};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::PostParams;
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use starling_api::{
    ActionType, Cluster, RolloutAction, RolloutActionSpec, RolloutApproval, RolloutApprovalSpec,
    RolloutStatus, StageTaskType, SyncGroup,
};

use super::Word;
use crate::cli::caller::Caller;
use crate::cli::explain;
use crate::cli::lists::{self, Namespaced};

/// The longest `generateName` that leaves room for what the API server adds.
const PREFIX: usize = 240;

/// What a word is about, where not the whole rollout.
#[derive(Debug, Default)]
pub(super) struct Scope {
    pub(super) cluster: Option<String>,
    pub(super) stage: Option<String>,
    pub(super) revision: Option<String>,
}

/// A group, with the rollout that is spoken of.
struct Spoken {
    caller: Caller,
    group: SyncGroup,
    rollout: RolloutStatus,
}

/// Asks for an action.
pub(super) async fn act(action: ActionType, word: &Word, scope: Scope) -> anyhow::Result<()> {
    let spoken = Spoken::of(word).await?;
    let mut scope = scope;
    if action == ActionType::Promote && scope.stage.is_none() {
        scope.stage = Some(spoken.rollout.stage.clone()).filter(|stage| !stage.is_empty());
        if scope.stage.is_none() {
            bail!("the rollout is in no stage; name one with --stage");
        }
    }
    if let Some(stage) = &scope.stage {
        spoken.check_stage(stage)?;
    }
    if let Some(cluster) = &scope.cluster {
        spoken.check_cluster(cluster).await?;
    }
    let spec = RolloutActionSpec {
        group: word.group.clone(),
        rollout: spoken.rollout.id,
        action,
        cluster: scope.cluster,
        stage: scope.stage,
        revision: scope.revision,
        by: spoken.caller.name().await?,
        reason: word.reason.clone(),
    };
    let verb = format!("{action:?}").to_lowercase();
    let mut object = RolloutAction::new("", spec);
    object.metadata = spoken.metadata(&verb);
    let made = spoken.make(&object).await?;
    said(
        &spoken,
        &verb,
        &made.spec.by,
        &format!("rolloutaction/{}", made.name_any()),
    );
    Ok(())
}

/// Approves a stage.
pub(super) async fn approve(
    word: &Word,
    stage: Option<String>,
    digest: Option<String>,
) -> anyhow::Result<()> {
    let spoken = Spoken::of(word).await?;
    let stage = match stage {
        Some(stage) => stage,
        None => spoken.waiting_stage()?,
    };
    spoken.check_stage(&stage)?;
    let now = &spoken.rollout.release_digest;
    let release_digest = match digest {
        Some(digest) if !now.is_empty() && digest != *now => bail!(
            "rollout {} renders to {now} by now, not to {digest}: look at it again with `starling plan {}`",
            spoken.rollout.id,
            word.group
        ),
        Some(digest) => digest,
        None if now.is_empty() => bail!(
            "it is not known yet what rollout {} renders to; it is as soon as all its entries are built",
            spoken.rollout.id
        ),
        None => now.clone(),
    };
    let spec = RolloutApprovalSpec {
        group: word.group.clone(),
        rollout: spoken.rollout.id,
        stage,
        release_digest,
        by: spoken.caller.name().await?,
        reason: word.reason.clone(),
    };
    let mut object = RolloutApproval::new("", spec);
    object.metadata = spoken.metadata("approve");
    let made = spoken.make(&object).await?;
    let verb = format!(
        "approve stage {} of {}",
        made.spec.stage, made.spec.release_digest
    );
    said(
        &spoken,
        &verb,
        &made.spec.by,
        &format!("rolloutapproval/{}", made.name_any()),
    );
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the output of this command")]
fn said(spoken: &Spoken, what: &str, by: &str, name: &str) {
    let (namespace, group) = (&spoken.caller.namespace, spoken.group.name_any());
    println!(
        "rollout {} of {namespace}/{group}: {what}, by {by} ({name})",
        spoken.rollout.id
    );
}

impl Spoken {
    async fn of(word: &Word) -> anyhow::Result<Self> {
        let caller = Caller::sign_in(&word.caller).await?;
        let group = lists::group(&caller, &word.group).await?;
        let rollout = group
            .status
            .as_ref()
            .and_then(|status| status.rollout.clone())
            .with_context(|| format!("SyncGroup {} has no rollout yet", word.group))?;
        if let Some(asked) = word.rollout.filter(|asked| *asked != rollout.id) {
            bail!(
                "rollout {asked} is not the one under way: that is {}, and nothing can be asked of another one",
                rollout.id
            );
        }
        Ok(Self {
            caller,
            group,
            rollout,
        })
    }

    fn check_stage(&self, stage: &str) -> anyhow::Result<()> {
        let stages = &self.group.spec.rollout_strategy.stages;
        let mut names: Vec<&str> = stages.iter().map(|stage| stage.name.as_str()).collect();
        if !names.is_empty() {
            names.push(starling_core::plan::REST);
        }
        if names.contains(&stage) {
            return Ok(());
        }
        let known = if names.is_empty() {
            "it has none".to_owned()
        } else {
            format!("it has: {}", names.join(", "))
        };
        bail!(
            "SyncGroup {} has no stage {stage:?}; {known}",
            self.group.name_any()
        )
    }

    async fn check_cluster(&self, cluster: &str) -> anyhow::Result<()> {
        lists::one::<Cluster>(&self.caller, cluster).await.map(drop)
    }

    /// The stage whose Approval task the rollout waits for, or the only one that has such a task.
    fn waiting_stage(&self) -> anyhow::Result<String> {
        let waits = |stage: &&starling_api::StageStatus| stage.phase == "AwaitingApproval";
        if let Some(stage) = self.rollout.stages.iter().find(waits) {
            return Ok(stage.name.clone());
        }
        let mut with_task = self.group.spec.rollout_strategy.stages.iter().filter(|stage| {
            let mut tasks = stage.before_stage_tasks.iter().chain(&stage.after_stage_tasks);
            tasks.any(|task| task.type_ == StageTaskType::Approval)
        });
        match (with_task.next(), with_task.next()) {
            (Some(only), None) => Ok(only.name.clone()),
            _ => bail!("no stage waits for an approval now; name one with --stage"),
        }
    }

    fn metadata(&self, verb: &str) -> ObjectMeta {
        let name = self.group.name_any();
        let prefix: String = name.chars().take(PREFIX - verb.len()).collect();
        ObjectMeta {
            generate_name: Some(format!("{prefix}-{}-{verb}-", self.rollout.id)),
            namespace: Some(self.caller.namespace.clone()),
            // It goes with its group.
            owner_references: self.group.owner_ref(&()).map(|owner: OwnerReference| vec![owner]),
            ..ObjectMeta::default()
        }
    }

    async fn make<K: Namespaced + Serialize>(&self, object: &K) -> anyhow::Result<K> {
        let api: Api<K> = Api::namespaced(self.caller.client.clone(), &self.caller.namespace);
        api.create(&PostParams::default(), object)
            .await
            .map_err(explain::request)
            .with_context(|| format!("make a {}", K::kind(&())))
    }
}
