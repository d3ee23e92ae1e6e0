//! Looks at the group, and writes the object that says it.

use anyhow::{Context, bail};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::PostParams;
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use starling_api::{
    ActionType, Cluster, RolloutAction, RolloutActionSpec, RolloutApproval, RolloutApprovalSpec,
    RolloutPhase, RolloutStatus, StageTaskType, SyncGroup,
};
use starling_core::plan::REST;
use starling_core::revision::is_named;

use super::Word;
use crate::cli::caller::Caller;
use crate::cli::explain;
use crate::cli::lists::{self, Namespaced};
use crate::controller::releases;

/// The longest `generateName` that leaves room for what the API server adds.
const PREFIX: usize = 240;
/// Revisions that an error names.
const NAMED: usize = 10;

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
    if let Some(stage) = &scope.stage {
        check_stage(&spoken.group, stage)?;
    }
    if let Some(cluster) = &scope.cluster {
        spoken.check_cluster(cluster).await?;
    }
    spoken.check_effect(action)?;
    if action == ActionType::Rollback && scope.revision.is_none() {
        spoken.check_way_back()?;
    }
    if action == ActionType::Promote && scope.stage.is_none() {
        scope.stage = Some(spoken.rollout.stage.clone()).filter(|stage| !stage.is_empty());
        if scope.stage.is_none() {
            bail!("the rollout is in no stage; name one with --stage");
        }
    }
    if let Some(revision) = &scope.revision {
        spoken.check_revision(revision).await?;
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
    check_stage(&spoken.group, &stage)?;
    if spoken.rollout.phase == RolloutPhase::Succeeded {
        bail!("{}: nothing waits for an approval", spoken.succeeded());
    }
    let now = &spoken.rollout.release_digest;
    if now.is_empty() {
        // An approval of a digest is made void by the first other one, so one that is made before any is known may be of nothing.
        bail!(
            "it is not known yet what rollout {} renders to; it is as soon as all its entries are built",
            spoken.rollout.id
        );
    }
    if let Some(digest) = digest.filter(|digest| digest != now) {
        bail!(
            "rollout {} renders to {now} by now, not to {digest}: look at it again with `starling plan {}`",
            spoken.rollout.id,
            word.group
        );
    }
    let release_digest = now.clone();
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

    async fn check_cluster(&self, cluster: &str) -> anyhow::Result<()> {
        let cluster = lists::one::<Cluster>(&self.caller, cluster).await?;
        check_selected(&self.group, &cluster)
    }

    /// `rollout 3 of fleet/shop has succeeded`.
    fn succeeded(&self) -> String {
        format!(
            "rollout {} of {}/{} has succeeded",
            self.rollout.id,
            self.caller.namespace,
            self.group.name_any()
        )
    }

    /// Refuses words that would be kept for ever and change nothing.
    fn check_effect(&self, action: ActionType) -> anyhow::Result<()> {
        match no_effect(&self.group, &self.rollout, action) {
            None => Ok(()),
            Some(Moot::Succeeded(why)) => bail!("{}; {why}", self.succeeded()),
            Some(Moot::NothingHeld) => bail!(
                "nothing is held in {}/{}: there is nothing to let go",
                self.caller.namespace,
                self.group.name_any()
            ),
        }
    }

    /// Whether there is something else that was good. What rolls is it itself once it has succeeded.
    fn check_way_back(&self) -> anyhow::Result<()> {
        if !is_good_itself(&self.group, &self.rollout) {
            return Ok(());
        }
        let (namespace, group) = (&self.caller.namespace, self.group.name_any());
        bail!(
            "rollout {} of {namespace}/{group} is of the release that succeeded last: name the one to go back to with --revision; `starling history -n {namespace} {group}` lists them",
            self.rollout.id
        )
    }

    /// Whether a release with this revision is kept, where that can be found out: not whoever may say this may list them, and the
    /// controller looks again.
    async fn check_revision(&self, revision: &str) -> anyhow::Result<()> {
        let Ok(mut kept) = lists::releases(&self.caller, &self.group).await else {
            return Ok(());
        };
        kept.retain(|release| lists::is_of(&self.group, release));
        kept.sort_by_key(|release| std::cmp::Reverse(release.revision));
        let revisions = kept.iter().filter_map(releases::revisions_of).flatten();
        check_kept(
            &self.group.name_any(),
            revision,
            revisions.map(|entry| entry.revision).collect(),
        )
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

/// Why a word would change nothing.
#[derive(Debug, PartialEq, Eq)]
enum Moot {
    /// The rollout has, and what follows from that.
    Succeeded(&'static str),
    /// There is nothing to let go.
    NothingHeld,
}

/// Whether a word to this rollout would change nothing; `None`: it may.
fn no_effect(group: &SyncGroup, rollout: &RolloutStatus, action: ActionType) -> Option<Moot> {
    let status = group.status.as_ref();
    if action == ActionType::Release {
        let held = status.and_then(|status| status.held_release.as_ref());
        return held.is_none().then_some(Moot::NothingHeld);
    }
    if rollout.phase != RolloutPhase::Succeeded {
        return None;
    }
    // A rollout succeeds without the clusters that cannot be reached: they get it when they come back, unless somebody says otherwise.
    // So do those that come to a group that has none yet.
    let counts = status.map(|status| &status.clusters);
    let is_empty = counts.is_some_and(|counts| counts.total == 0);
    let is_done = !is_empty && counts.is_none_or(|counts| counts.updated >= counts.total);
    Some(Moot::Succeeded(match action {
        ActionType::Promote if !is_empty => "no stage waits any more",
        ActionType::Pause if is_done => {
            "there is nothing left to pause: to keep the next one from starting, set spec.suspend of the group to true"
        }
        ActionType::Abort if is_done => {
            "there is nothing left to give up: to undo it, `starling rollback --revision`"
        }
        ActionType::Skip if is_done => "there is nothing left to pass over",
        _ => return None,
    }))
}

/// Whether the release that rolls is the last known good one.
fn is_good_itself(group: &SyncGroup, rollout: &RolloutStatus) -> bool {
    let good = group
        .status
        .as_ref()
        .and_then(|status| status.last_known_good.as_ref());
    good.is_some_and(|good| good.release == rollout.release)
}

fn check_stage(group: &SyncGroup, stage: &str) -> anyhow::Result<()> {
    let stages = &group.spec.rollout_strategy.stages;
    let mut names: Vec<&str> = stages.iter().map(|stage| stage.name.as_str()).collect();
    // Where no stage is named, all clusters are in this one.
    if stage == REST || names.contains(&stage) {
        return Ok(());
    }
    let known = if names.is_empty() {
        "it has none".to_owned()
    } else {
        names.push(REST);
        format!("it has: {}", names.join(", "))
    };
    bail!("SyncGroup {} has no stage {stage:?}; {known}", group.name_any())
}

/// Whether a group is about a cluster at all.
fn check_selected(group: &SyncGroup, cluster: &Cluster) -> anyhow::Result<()> {
    let wanted = &group.spec.cluster_selector;
    if lists::is_selected(&lists::selector(group)?, cluster) {
        return Ok(());
    }
    bail!(
        "SyncGroup {} does not select Cluster {}; its clusterSelector is {}",
        group.name_any(),
        cluster.name_any(),
        serde_json::to_string(wanted)?
    )
}

/// Whether somebody may go back to a revision. `kept`: the revisions of releases that are kept, the newest first; without any, it is
/// not known what there is.
fn check_kept(group: &str, revision: &str, kept: Vec<String>) -> anyhow::Result<()> {
    if kept.is_empty() || kept.iter().any(|known| is_named(known, revision)) {
        return Ok(());
    }
    let mut named: Vec<String> = Vec::new();
    for known in kept {
        if !named.contains(&known) {
            named.push(known);
        }
    }
    let more = named.len().saturating_sub(NAMED);
    named.truncate(NAMED);
    if more > 0 {
        named.push(format!("{more} more"));
    }
    bail!(
        "no release of SyncGroup {group} that is kept has the revision {revision:?}; there is: {}",
        named.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn group(stages: &[&str], status: &Value) -> SyncGroup {
        let stages: Vec<Value> = stages
            .iter()
            .map(|name| json!({"name": name, "clusterSelector": {}}))
            .collect();
        serde_json::from_value(json!({
            "apiVersion": "starling.dev/v1alpha1", "kind": "SyncGroup", "metadata": {"name": "shop"},
            "spec": {"clusterSelector": {"matchLabels": {"tier": "prod"}}, "syncs": [],
                "rolloutStrategy": {"stages": stages}},
            "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn the_stage_of_the_rest_is_there_without_any_other() {
        assert!(check_stage(&group(&[], &json!({})), REST).is_ok());
        assert!(check_stage(&group(&["canary"], &json!({})), REST).is_ok());
        assert!(check_stage(&group(&["canary"], &json!({})), "canary").is_ok());
        let error = |stages: &[&str]| {
            check_stage(&group(stages, &json!({})), "eu")
                .unwrap_err()
                .to_string()
        };
        assert!(error(&[]).ends_with("it has none"));
        assert!(error(&["canary"]).ends_with("it has: canary, *"));
    }

    #[test]
    fn words_that_change_nothing_are_refused() {
        use ActionType::{Abort, Pause, Promote, Release, Resume, Retry, Rollback, Skip};
        let of = |phase: &str, updated: u32, action| {
            let rollout: RolloutStatus = serde_json::from_value(json!({"id": 3, "phase": phase})).unwrap();
            let group = group(&[], &json!({"clusters": {"total": 4, "updated": updated}}));
            no_effect(&group, &rollout, action)
        };
        for action in [Pause, Abort, Skip, Promote] {
            assert!(
                matches!(of("Succeeded", 4, action), Some(Moot::Succeeded(_))),
                "{action:?}"
            );
            assert_eq!(of("Progressing", 3, action), None);
            assert_eq!(of("Failed", 3, action), None);
        }
        // A cluster that could not be reached gets the release when it comes back.
        for action in [Pause, Abort, Skip] {
            assert_eq!(of("Succeeded", 3, action), None);
        }
        assert!(of("Succeeded", 3, Promote).is_some());
        for action in [Retry, Resume, Rollback] {
            assert_eq!(of("Succeeded", 4, action), None);
        }
        assert_eq!(of("Succeeded", 4, Release), Some(Moot::NothingHeld));
        let held = json!({"heldRelease": {"release": "r", "revisions": [], "reason": "2 failed"}});
        let (rollout, held) = (RolloutStatus::default(), group(&[], &held));
        assert_eq!(no_effect(&held, &rollout, Release), None);
    }

    /// Going back to what was good is no way back from what is good itself.
    #[test]
    fn what_succeeded_last_is_not_gone_back_from_without_a_revision() {
        let rollout: RolloutStatus =
            serde_json::from_value(json!({"id": 3, "phase": "Succeeded", "release": "r2"})).unwrap();
        for (good, itself) in [(Some("r2"), true), (Some("r1"), false), (None, false)] {
            let good = good.map(|release| json!({"release": release, "revisions": []}));
            let group = group(&[], &json!({"lastKnownGood": good}));
            assert_eq!(is_good_itself(&group, &rollout), itself, "{good:?}");
        }
    }

    #[test]
    fn only_clusters_of_the_group_are_spoken_of() {
        let cluster = |tier: &str| -> Cluster {
            serde_json::from_value(json!({
                "apiVersion": "starling.dev/v1alpha1", "kind": "Cluster",
                "metadata": {"name": "eu", "labels": {"tier": tier}},
                "spec": {"kubeConfig": {"secretRef": {"name": "s"}}},
            }))
            .unwrap()
        };
        let group = group(&[], &json!({}));
        assert!(check_selected(&group, &cluster("prod")).is_ok());
        let error = check_selected(&group, &cluster("lab")).unwrap_err().to_string();
        assert_eq!(
            error,
            r#"SyncGroup shop does not select Cluster eu; its clusterSelector is {"matchLabels":{"tier":"prod"}}"#
        );
    }

    #[test]
    fn going_back_is_to_something_that_is_kept() {
        let of = |number: usize| format!("v1.{number}@sha1:{number:040}");
        let kept: Vec<String> = vec![of(2), of(1), of(2)];
        assert!(check_kept("shop", "v1.1", kept.clone()).is_ok());
        assert!(
            check_kept("shop", "v9", Vec::new()).is_ok(),
            "it is not known what there is"
        );
        let error = check_kept("shop", "v9", kept).unwrap_err().to_string();
        assert!(
            error.ends_with(&format!("there is: {}, {}", of(2), of(1))),
            "{error}"
        );
        let error = check_kept("shop", "v9", (0..13).map(of).collect()).unwrap_err();
        assert!(error.to_string().ends_with(", 3 more"), "{error}");
    }
}
