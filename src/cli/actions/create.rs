//! Checks an operator action against the group, and creates its object.

use anyhow::{Context, bail};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::PostParams;
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use starling_api::{
    ActionType, Cluster, RolloutAction, RolloutActionSpec, RolloutApproval, RolloutApprovalSpec,
    RolloutPhase, RolloutStatus, Source, StageTaskType, SyncGroup,
};
use starling_core::plan::REST;
use starling_core::revision::is_named;
use starling_core::rollout::ReleaseSnapshot;

use super::ActionArguments;
use crate::cli::caller::Caller;
use crate::cli::kube_errors;
use crate::cli::lists::{self, Namespaced};
use crate::controller::caches::release_snapshots;
use crate::read_model::history::{is_release_of, lost, lost_text};

/// Maximum length of `generateName`: the API server appends a suffix.
const PREFIX: usize = 240;
/// Maximum number of revisions that an error lists.
const NAMED: usize = 10;

/// The subject of an action; empty: the whole rollout.
#[derive(Debug, Default)]
pub(super) struct ActionSubject {
    pub(super) cluster: Option<String>,
    pub(super) stage: Option<String>,
    pub(super) revision: Option<String>,
}

/// The group and the rollout of an action.
struct ActionContext {
    caller: Caller,
    group: SyncGroup,
    rollout: RolloutStatus,
}

/// Creates a RolloutAction.
pub(super) async fn act(
    action: ActionType,
    common: &ActionArguments,
    subject: ActionSubject,
) -> anyhow::Result<()> {
    let context = ActionContext::of(common).await?;
    let mut subject = subject;
    if let Some(stage) = &subject.stage {
        check_stage(&context.group, stage)?;
    }
    if let Some(cluster) = &subject.cluster {
        context.check_cluster(cluster).await?;
    }
    context.check_effect(action)?;
    if action == ActionType::Rollback && subject.revision.is_none() {
        context.check_rollback()?;
    }
    if action == ActionType::Promote && subject.stage.is_none() {
        subject.stage = Some(context.rollout.stage.clone()).filter(|stage| !stage.is_empty());
        if subject.stage.is_none() {
            bail!("the rollout has no current stage; give one with --stage");
        }
    }
    if action == ActionType::Rollback || subject.revision.is_some() {
        context.check_release(subject.revision.as_deref()).await?;
    }
    let spec = RolloutActionSpec {
        group: common.group.clone(),
        rollout: context.rollout.id,
        action,
        cluster: subject.cluster,
        stage: subject.stage,
        revision: subject.revision,
        by: context.caller.name().await?,
        reason: common.reason.clone(),
    };
    let verb = format!("{action:?}").to_lowercase();
    let mut object = RolloutAction::new("", spec);
    object.metadata = context.metadata(&verb);
    let made = context.create(&object).await?;
    print_created(
        &context,
        &verb,
        &made.spec.by,
        &format!("rolloutaction/{}", made.name_any()),
    );
    Ok(())
}

/// Creates a RolloutApproval.
pub(super) async fn approve(
    common: &ActionArguments,
    stage: Option<String>,
    digest: Option<String>,
) -> anyhow::Result<()> {
    let context = ActionContext::of(common).await?;
    let stage = match stage {
        Some(stage) => stage,
        None => context.waiting_stage()?,
    };
    check_stage(&context.group, &stage)?;
    if context.rollout.phase == RolloutPhase::Succeeded {
        bail!("{}: no stage waits for an approval", context.succeeded());
    }
    let now = &context.rollout.release_digest;
    if now.is_empty() {
        // The first other digest voids an approval, so an approval before the digest is known may be of nothing.
        bail!(
            "rollout {} has no release digest yet; it is available once all entries are built",
            context.rollout.id
        );
    }
    if let Some(digest) = digest.filter(|digest| digest != now) {
        bail!(
            "rollout {} now has release digest {now}, not {digest}; review it with `starling plan {}`",
            context.rollout.id,
            common.group
        );
    }
    let release_digest = now.clone();
    let spec = RolloutApprovalSpec {
        group: common.group.clone(),
        rollout: context.rollout.id,
        stage,
        release_digest,
        by: context.caller.name().await?,
        reason: common.reason.clone(),
    };
    let mut object = RolloutApproval::new("", spec);
    object.metadata = context.metadata("approve");
    let made = context.create(&object).await?;
    let verb = format!(
        "approve stage {} of {}",
        made.spec.stage, made.spec.release_digest
    );
    print_created(
        &context,
        &verb,
        &made.spec.by,
        &format!("rolloutapproval/{}", made.name_any()),
    );
    Ok(())
}

#[expect(clippy::print_stdout, reason = "the output of this command")]
fn print_created(context: &ActionContext, what: &str, by: &str, name: &str) {
    let (namespace, group) = (&context.caller.namespace, context.group.name_any());
    println!(
        "rollout {} of {namespace}/{group}: {what}, by {by} ({name})",
        context.rollout.id
    );
}

impl ActionContext {
    async fn of(common: &ActionArguments) -> anyhow::Result<Self> {
        let caller = Caller::sign_in(&common.caller).await?;
        let group = lists::group(&caller, &common.group).await?;
        let rollout = group
            .status
            .as_ref()
            .and_then(|status| status.rollout.clone())
            .with_context(|| format!("SyncGroup {} has no rollout yet", common.group))?;
        if let Some(asked) = common.rollout.filter(|asked| *asked != rollout.id) {
            bail!(
                "rollout {asked} is not the current rollout, which is {}; actions apply to the current rollout only",
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

    /// Refuses an action that would be recorded and change nothing.
    fn check_effect(&self, action: ActionType) -> anyhow::Result<()> {
        match no_effect(&self.group, &self.rollout, action) {
            None => Ok(()),
            Some(NoEffect::Succeeded(why)) => bail!("{}; {why}", self.succeeded()),
            Some(NoEffect::NoHeldRelease) => bail!(
                "SyncGroup {}/{} has no held release",
                self.caller.namespace,
                self.group.name_any()
            ),
        }
    }

    /// Refuses a rollback without a revision if the current release is the last known good one.
    fn check_rollback(&self) -> anyhow::Result<()> {
        if !is_last_known_good(&self.group, &self.rollout) {
            return Ok(());
        }
        let (namespace, group) = (&self.caller.namespace, self.group.name_any());
        bail!(
            "rollout {} of {namespace}/{group} is already the last release that succeeded; give the revision to roll back to \
             with --revision; `starling history -n {namespace} {group}` lists revisions",
            self.rollout.id
        )
    }

    /// Refuses a rollback to a revision that no kept release has, or to a release whose commits are lost. A caller
    /// without the permission to list releases is not checked: the controller checks again.
    async fn check_release(&self, revision: Option<&str>) -> anyhow::Result<()> {
        let Ok(mut kept) = lists::releases(&self.caller, &self.group).await else {
            return Ok(());
        };
        kept.retain(|release| is_release_of(&self.group, release));
        kept.sort_by_key(|release| std::cmp::Reverse(release.revision));
        let kept: Vec<ReleaseSnapshot> = kept.iter().filter_map(release_snapshots::snapshot_of).collect();
        if let Some(revision) = revision {
            let revisions = kept.iter().flat_map(|kept| &kept.revisions);
            let revisions = revisions.map(|entry| entry.revision.clone()).collect();
            check_kept(&self.group.name_any(), revision, revisions)?;
        }
        let sources: Vec<Source> = lists::all(&self.caller).await?;
        check_available(&self.group, revision, &kept, &sources)
    }

    /// The stage whose Approval task the rollout waits for, or the only stage with such a task.
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
            _ => bail!("no stage waits for an approval; give one with --stage"),
        }
    }

    fn metadata(&self, verb: &str) -> ObjectMeta {
        let name = self.group.name_any();
        let prefix: String = name.chars().take(PREFIX - verb.len()).collect();
        ObjectMeta {
            generate_name: Some(format!("{prefix}-{}-{verb}-", self.rollout.id)),
            namespace: Some(self.caller.namespace.clone()),
            // Deleted with its group.
            owner_references: self.group.owner_ref(&()).map(|owner: OwnerReference| vec![owner]),
            ..ObjectMeta::default()
        }
    }

    async fn create<K: Namespaced + Serialize>(&self, object: &K) -> anyhow::Result<K> {
        let api: Api<K> = Api::namespaced(self.caller.client.clone(), &self.caller.namespace);
        api.create(&PostParams::default(), object)
            .await
            .map_err(kube_errors::request)
            .with_context(|| format!("create {}", K::kind(&())))
    }
}

/// Reason why an action would change nothing.
#[derive(Debug, PartialEq, Eq)]
enum NoEffect {
    /// The rollout has succeeded; what the caller may want instead.
    Succeeded(&'static str),
    /// The group has no held release.
    NoHeldRelease,
}

/// Returns the reason why an action would change nothing; `None`: it may change something.
fn no_effect(group: &SyncGroup, rollout: &RolloutStatus, action: ActionType) -> Option<NoEffect> {
    let status = group.status.as_ref();
    if action == ActionType::Release {
        let held = status.and_then(|status| status.held_release.as_ref());
        return held.is_none().then_some(NoEffect::NoHeldRelease);
    }
    if rollout.phase != RolloutPhase::Succeeded {
        return None;
    }
    // A rollout succeeds without unreachable clusters: they get the release when they are back, unless an action
    // prevents it. So do clusters that join a group without clusters.
    let counts = status.map(|status| &status.clusters);
    let is_empty = counts.is_some_and(|counts| counts.total == 0);
    let is_done = !is_empty && counts.is_none_or(|counts| counts.updated >= counts.total);
    Some(NoEffect::Succeeded(match action {
        ActionType::Promote if !is_empty => "all stages are complete",
        ActionType::Pause if is_done => {
            "nothing to pause; to block the next rollout, set spec.suspend of the SyncGroup to true"
        }
        ActionType::Abort if is_done => {
            "nothing to abort; to undo the rollout, use `starling rollback --revision`"
        }
        ActionType::Skip if is_done => "nothing to skip",
        _ => return None,
    }))
}

/// Whether the release of the rollout is the last known good one.
fn is_last_known_good(group: &SyncGroup, rollout: &RolloutStatus) -> bool {
    let good = group
        .status
        .as_ref()
        .and_then(|status| status.last_known_good.as_ref());
    good.is_some_and(|good| good.release == rollout.release)
}

fn check_stage(group: &SyncGroup, stage: &str) -> anyhow::Result<()> {
    let stages = &group.spec.rollout_strategy.stages;
    let mut names: Vec<&str> = stages.iter().map(|stage| stage.name.as_str()).collect();
    // The implicit stage has the clusters that no stage selects.
    if stage == REST || names.contains(&stage) {
        return Ok(());
    }
    let known = if names.is_empty() {
        "the group has no stages".to_owned()
    } else {
        names.push(REST);
        format!("stages: {}", names.join(", "))
    };
    bail!("SyncGroup {} has no stage {stage:?}; {known}", group.name_any())
}

/// Refuses a cluster that the group does not select.
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

/// Refuses a revision that no kept release has. `kept`: the revisions of kept releases, newest first; empty: not known.
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
        "no kept release of SyncGroup {group} has revision {revision:?}; available: {}",
        named.join(", ")
    )
}

/// Refuses a rollback to a release with commits that its Sources report as lost. `kept`: the kept releases, newest
/// first. Without a revision, the release is the last known good one.
fn check_available(
    group: &SyncGroup,
    revision: Option<&str>,
    kept: &[ReleaseSnapshot],
    sources: &[Source],
) -> anyhow::Result<()> {
    let status = group.status.as_ref();
    let good = status.and_then(|status| status.last_known_good.as_ref());
    let is_asked = |release: &&ReleaseSnapshot| match revision {
        Some(revision) => {
            let mut revisions = release.revisions.iter();
            revisions.any(|entry| is_named(&entry.revision, revision))
        }
        None => good.is_some_and(|good| good.release == release.digest),
    };
    let lost = kept.iter().find(is_asked).map(|release| lost(release, sources));
    match lost.filter(|lost| !lost.is_empty()) {
        Some(lost) => bail!("no rollback to this release is possible: {}", lost_text(&lost)),
        None => Ok(()),
    }
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
    fn the_implicit_stage_always_exists() {
        assert!(check_stage(&group(&[], &json!({})), REST).is_ok());
        assert!(check_stage(&group(&["canary"], &json!({})), REST).is_ok());
        assert!(check_stage(&group(&["canary"], &json!({})), "canary").is_ok());
        let error = |stages: &[&str]| {
            check_stage(&group(stages, &json!({})), "eu")
                .unwrap_err()
                .to_string()
        };
        assert!(error(&[]).ends_with("the group has no stages"));
        assert!(error(&["canary"]).ends_with("stages: canary, *"));
    }

    #[test]
    fn actions_without_an_effect_are_refused() {
        use ActionType::{Abort, Pause, Promote, Release, Resume, Retry, Rollback, Skip};
        let of = |phase: &str, updated: u32, action| {
            let rollout: RolloutStatus = serde_json::from_value(json!({"id": 3, "phase": phase})).unwrap();
            let group = group(&[], &json!({"clusters": {"total": 4, "updated": updated}}));
            no_effect(&group, &rollout, action)
        };
        for action in [Pause, Abort, Skip, Promote] {
            assert!(
                matches!(of("Succeeded", 4, action), Some(NoEffect::Succeeded(_))),
                "{action:?}"
            );
            assert_eq!(of("Progressing", 3, action), None);
            assert_eq!(of("Failed", 3, action), None);
        }
        // An unreachable cluster gets the release when it is back.
        for action in [Pause, Abort, Skip] {
            assert_eq!(of("Succeeded", 3, action), None);
        }
        assert!(of("Succeeded", 3, Promote).is_some());
        for action in [Retry, Resume, Rollback] {
            assert_eq!(of("Succeeded", 4, action), None);
        }
        assert_eq!(of("Succeeded", 4, Release), Some(NoEffect::NoHeldRelease));
        let held = json!({"heldRelease": {"release": "r", "revisions": [], "reason": "2 failed"}});
        let (rollout, held) = (RolloutStatus::default(), group(&[], &held));
        assert_eq!(no_effect(&held, &rollout, Release), None);
    }

    /// A rollback to the last known good release has no effect on that release itself.
    #[test]
    fn a_rollback_of_the_last_known_good_release_needs_a_revision() {
        let rollout: RolloutStatus =
            serde_json::from_value(json!({"id": 3, "phase": "Succeeded", "release": "r2"})).unwrap();
        for (good, itself) in [(Some("r2"), true), (Some("r1"), false), (None, false)] {
            let good = good.map(|release| json!({"release": release, "revisions": []}));
            let group = group(&[], &json!({"lastKnownGood": good}));
            assert_eq!(is_last_known_good(&group, &rollout), itself, "{good:?}");
        }
    }

    #[test]
    fn only_selected_clusters_are_accepted() {
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
    fn a_rollback_needs_a_release_whose_commits_are_available() {
        let entry = json!({"name": "app", "sourceRef": {"name": "shop"}, "path": "./app"});
        let release = |digest: &str, revision: &str| ReleaseSnapshot {
            digest: digest.into(),
            revisions: serde_json::from_value(json!([{"sync": "app", "revision": revision}])).unwrap(),
            entries: vec![serde_json::from_value(entry.clone()).unwrap()],
        };
        let kept = [release("r3", "v3@sha1:3"), release("r2", "v2@sha1:2")];
        let source: Source = serde_json::from_value(json!({
            "apiVersion": "starling.dev/v1alpha1", "kind": "Source", "metadata": {"name": "shop"},
            "spec": {"url": "https://git.example.com/shop.git", "ref": {"branch": "main"}},
            "status": {"lostRevisions": ["v2@sha1:2"]},
        }))
        .unwrap();
        let with_good =
            |good: &str| group(&[], &json!({"lastKnownGood": {"release": good, "revisions": []}}));
        for (good, revision, is_lost) in [
            ("r3", None, false),
            ("r2", None, true),
            ("r2", Some("v3"), false),
            ("r3", Some("v2"), true),
            ("none", None, false),
        ] {
            let checked = check_available(&with_good(good), revision, &kept, std::slice::from_ref(&source));
            assert_eq!(checked.is_err(), is_lost, "{good} {revision:?}");
        }
    }

    #[test]
    fn a_rollback_needs_a_kept_revision() {
        let of = |number: usize| format!("v1.{number}@sha1:{number:040}");
        let kept: Vec<String> = vec![of(2), of(1), of(2)];
        assert!(check_kept("shop", "v1.1", kept.clone()).is_ok());
        assert!(
            check_kept("shop", "v9", Vec::new()).is_ok(),
            "it is not known what there is"
        );
        let error = check_kept("shop", "v9", kept).unwrap_err().to_string();
        assert!(
            error.ends_with(&format!("available: {}, {}", of(2), of(1))),
            "{error}"
        );
        let error = check_kept("shop", "v9", (0..13).map(of).collect()).unwrap_err();
        assert!(error.to_string().ends_with(", 3 more"), "{error}");
    }
}
