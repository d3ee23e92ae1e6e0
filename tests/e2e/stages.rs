//! Stages: in order, each by its result with this exact release; soak, waits, approvals, windows.

use std::time::Duration;

use anyhow::{Context, Result};
use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use serde_json::{Value, json};
use starling_api::conditions::{self, Condition, IMPLICIT_STAGE, STAGES_OVERLAP};
use starling_api::{ADMITTED_AT, RolloutPhase, StageStatus, SyncGroupStatus, SyncResource};
use starling_testkit::{Fault, wait};

use crate::operator_actions::say;
use crate::world::{MEMBERS, Scene, all, blocked_by, problems, shared_scene};

/// A stage of the clusters with this value of the scene's label `…-stage`.
fn stage(scene: &Scene, name: &str, more: Value) -> Value {
    let mut stage = json!({"name": name, "clusterSelector": {"matchLabels": {scene.own("stage"): name}}});
    if let (Some(stage), Value::Object(more)) = (stage.as_object_mut(), more) {
        stage.extend(more);
    }
    stage
}

/// m1 is the canary, m2 and m3 are eu, m4 and m5 have no stage.
async fn assign_stages(scene: &Scene) -> Result<()> {
    scene.select(&MEMBERS).await?;
    for (member, stage) in [("m1", "canary"), ("m2", "eu"), ("m3", "eu")] {
        scene.label(member, &scene.own("stage"), Some(stage)).await?;
    }
    Ok(())
}

async fn admitted_at(scene: &Scene, member: &str) -> Result<Timestamp> {
    let sync: SyncResource = scene.fleet().get(&scene.sync_name(member)).await?;
    let text = sync
        .annotations()
        .get(ADMITTED_AT)
        .context("an admission")?
        .clone();
    Ok(text.parse()?)
}

async fn applied_at(scene: &Scene, member: &str) -> Result<Timestamp> {
    let sync: SyncResource = scene.fleet().get(&scene.sync_name(member)).await?;
    Ok(sync.status.context("a status")?.last_applied_time.parse()?)
}

pub(crate) fn stage_status<'s>(status: &'s SyncGroupStatus, name: &str) -> Option<&'s StageStatus> {
    let stages = &status.rollout.as_ref()?.stages;
    stages.iter().find(|stage| stage.name == name)
}

pub(crate) fn is_in(status: &SyncGroupStatus, commit: &str, name: &str, phase: &str) -> bool {
    let rolls = status
        .rollout
        .as_ref()
        .is_some_and(|rollout| rollout.revisions[0].revision.ends_with(commit));
    rolls && stage_status(status, name).is_some_and(|stage| stage.phase == phase)
}

#[test]
fn stages_roll_out_in_order_and_clusters_without_stage_last() -> Result<()> {
    shared_scene("staged", async |scene| {
        let first = scene.commit(&[("settings", "one")])?;
        scene.follow_main().await?;
        assign_stages(scene).await?;
        let stages = json!([stage(scene, "canary", json!({})), stage(scene, "eu", json!({}))]);
        scene
            .group(json!({"maxConcurrency": "100%", "stages": stages}), json!({}))
            .await?;
        scene.succeeded(&first).await?;

        // The canary is slow: an implementation that used the health of the previous release would continue.
        let slow = scene.proxy("m1")?;
        let rule = slow.on(
            scene.writes_of("settings"),
            Fault::Latency(Duration::from_secs(5)),
        );
        let second = scene.commit(&[("settings", "two")])?;
        wait::until(Duration::from_secs(30), "m1 is being written to", async || {
            rule.fired() > 0
        })
        .await?;
        assert_eq!(scene.values(&MEMBERS[1..], "settings").await?, all("one", 4));
        let status = scene
            .status("the second stage waits", |status| {
                is_in(status, &second, "eu", "Pending")
            })
            .await?;
        assert!(blocked_by(&status).contains("StageProgressing"), "{status:#?}");
        let names: Vec<&str> = status
            .rollout
            .as_ref()
            .context("a rollout")?
            .stages
            .iter()
            .map(|stage| stage.name.as_str())
            .collect();
        assert_eq!(names, ["canary", "eu", "*"]);

        let status = scene.succeeded(&second).await?;
        assert_eq!(scene.values(&MEMBERS, "settings").await?, all("two", 5));
        let totals = |name| stage_status(&status, name).map(|stage| (stage.total, stage.updated));
        assert_eq!(
            (totals("canary"), totals("eu"), totals("*")),
            (Some((1, 1)), Some((2, 2)), Some((2, 2)))
        );
        for (before, after) in [("m1", "m2"), ("m1", "m3"), ("m2", "m4"), ("m3", "m5")] {
            let (applied, admitted) = (applied_at(scene, before).await?, admitted_at(scene, after).await?);
            assert!(
                applied <= admitted,
                "{after} was admitted at {admitted}, {before} was done at {applied}"
            );
        }
        Ok(())
    })
}

#[test]
fn a_stage_soaks_and_waits_before_the_next_one_starts() -> Result<()> {
    shared_scene("soaked", async |scene| {
        let first = scene.commit(&[("settings", "one")])?;
        scene.follow_main().await?;
        assign_stages(scene).await?;
        let wait = json!({"afterStageTasks": [{"type": "TimedWait", "waitTime": "3s"}]});
        let stages = json!([stage(scene, "canary", wait)]);
        let strategy = json!({"maxConcurrency": "100%", "minSuccessTime": "3s", "stages": stages});
        scene.group(strategy, json!({})).await?;
        scene.succeeded(&first).await?;
        let second = scene.commit(&[("settings", "two")])?;
        // First the cluster soaks, then the whole stage.
        let status = scene
            .status("the cluster soaks", |status| {
                is_in(status, &second, "canary", "Soaking")
            })
            .await?;
        let canary = stage_status(&status, "canary").context("the stage")?;
        let soaked: Timestamp = canary.until.parse()?;
        assert_eq!((canary.updated, canary.completion_time.as_str()), (0, ""));
        let rollout = status.rollout.as_ref().context("the rollout")?;
        let blocker = rollout.blocked_by.first().context("what blocks")?;
        assert_eq!(blocker.reason, "Soaking");
        assert_eq!(blocker.recheck_at.parse::<Timestamp>()?, soaked);
        let completed = |stage: &StageStatus| !stage.completion_time.is_empty();
        let status = scene
            .status("the stage waits", |status| {
                is_in(status, &second, "canary", "Soaking")
                    && stage_status(status, "canary").is_some_and(completed)
            })
            .await?;
        let canary = stage_status(&status, "canary").context("the stage")?;
        let until: Timestamp = canary.until.parse()?;
        assert!(until > canary.completion_time.parse()? && until > soaked);
        scene.succeeded(&second).await?;
        let applied = applied_at(scene, "m1").await?;
        for after in ["m2", "m3", "m4", "m5"] {
            let waited = admitted_at(scene, after).await?.duration_since(applied);
            assert!(
                waited >= SignedDuration::from_secs(6),
                "{after} was admitted after {waited:#}"
            );
        }
        Ok(())
    })
}

#[test]
fn a_closed_window_blocks_its_clusters_and_uses_no_slot() -> Result<()> {
    shared_scene("windowed", async |scene| {
        let first = scene.commit(&[("settings", "one")])?;
        scene.follow_main().await?;
        scene.select(&MEMBERS[..3]).await?;
        scene.label("m1", &scene.own("region"), Some("eu")).await?;
        let strategy = |windows: Value| json!({"maxConcurrency": 1, "windows": windows});
        scene.group(strategy(json!([])), json!({})).await?;
        scene.succeeded(&first).await?;
        let never = json!([{"deny": "Mon-Sun 00:00-24:00", "timeZone": "Europe/Berlin",
            "clusterSelector": {"matchLabels": {scene.own("region"): "eu"}}}]);
        scene.group(strategy(never), json!({})).await?;
        scene.commit(&[("settings", "two")])?;
        // There is one slot, and m1 comes first by its name.
        let status = scene
            .status("all but m1 are updated", |status| {
                status.clusters.updated == 2 && blocked_by(status).contains("WindowClosed")
            })
            .await?;
        assert_eq!((status.clusters.pending, status.clusters.progressing), (1, 0));
        assert_eq!(
            scene.values(&MEMBERS[..3], "settings").await?,
            [Some("one".into()), Some("two".into()), Some("two".into())]
        );
        scene.group(strategy(json!([])), json!({})).await?;
        scene.until_value("m1", "settings", Some("two")).await
    })
}

#[test]
fn a_new_cluster_joins_its_stage() -> Result<()> {
    shared_scene("joining", async |scene| {
        let first = scene.commit(&[("settings", "one")])?;
        scene.follow_main().await?;
        assign_stages(scene).await?;
        scene.label("m5", scene.name, None).await?;
        let canary = json!({"afterStageTasks": [{"type": "TimedWait", "waitTime": "1h"}]});
        let plain = json!([stage(scene, "canary", json!({}))]);
        scene
            .group(json!({"maxConcurrency": "100%", "stages": plain}), json!({}))
            .await?;
        scene.succeeded(&first).await?;
        let stages = json!([stage(scene, "canary", canary)]);
        scene
            .group(json!({"maxConcurrency": "100%", "stages": stages}), json!({}))
            .await?;
        let second = scene.commit(&[("settings", "two")])?;
        scene
            .status("the canary waits", |status| {
                is_in(status, &second, "canary", "Soaking")
            })
            .await?;
        // It joins the last stage, which waits: it gets the last known good release.
        scene.label("m5", scene.name, Some("yes")).await?;
        scene.until_value("m5", "settings", Some("one")).await?;
        // It joins the canary, which has started: it gets the current release.
        scene.label("m4", &scene.own("stage"), Some("canary")).await?;
        scene.until_value("m4", "settings", Some("two")).await?;
        assert_eq!(scene.value("m5", "settings").await?.as_deref(), Some("one"));
        // A changed strategy applies to the current rollout: without the wait, the rest starts, and no cluster
        // restarts.
        let before = admitted_at(scene, "m1").await?;
        scene.group(json!({"maxConcurrency": "100%"}), json!({})).await?;
        scene.succeeded(&second).await?;
        assert_eq!(scene.values(&MEMBERS, "settings").await?, all("two", 5));
        assert_eq!(admitted_at(scene, "m1").await?, before);
        Ok(())
    })
}

#[test]
fn a_stage_above_its_failure_limit_stops_the_rollout() -> Result<()> {
    shared_scene("overdrawn", async |scene| {
        let first = scene.commit(&[("settings", "one")])?;
        scene.follow_main().await?;
        assign_stages(scene).await?;
        let stages = json!([stage(scene, "canary", json!({"maxFailures": 0}))]);
        scene
            .group(
                json!({"maxConcurrency": "100%", "maxFailures": "100%", "stages": stages}),
                json!({"retryInterval": "1h"}),
            )
            .await?;
        scene.succeeded(&first).await?;
        scene.repo.commit(
            &[(
                "app/settings.yaml",
                &format!(
                    "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {}, namespace: default}}\ndata: {{\"not a key\": x}}\n",
                    scene.own("settings")
                ),
            )],
            "broken",
        )?;
        let status = scene
            .status("paused", |status| {
                status
                    .rollout
                    .as_ref()
                    .is_some_and(|rollout| rollout.phase == RolloutPhase::Paused)
                    && blocked_by(status).contains("TooManyFailures")
            })
            .await?;
        assert_eq!(status.clusters.failed, 1);
        assert!(problems(&status).contains_key("m1"), "{status:#?}");
        assert_eq!(scene.values(&MEMBERS[1..], "settings").await?, all("one", 4));
        Ok(())
    })
}

/// An empty group passes no stage. For the first cluster, the gate is open, with the digest to approve.
#[test]
fn a_group_older_than_its_clusters_rolls_out_in_stages() -> Result<()> {
    shared_scene("before", async |scene| {
        let first = scene.commit(&[("settings", "one")])?;
        scene.follow_main().await?;
        let approval = json!({"beforeStageTasks": [{"type": "Approval"}]});
        let stages = json!([stage(scene, "canary", approval)]);
        scene
            .group(json!({"maxConcurrency": "100%", "stages": stages}), json!({}))
            .await?;
        let ready = |status: &SyncGroupStatus| {
            conditions::find(&status.conditions, "Ready").map(|ready| ready.reason.clone())
        };
        let status = scene
            .status("nothing to do", |status| {
                ready(status).as_deref() == Some("NoClustersSelected")
            })
            .await?;
        assert_eq!(status.last_known_good, None);
        scene.label("m1", &scene.own("stage"), Some("canary")).await?;
        scene.select(&["m1"]).await?;
        scene
            .status("the canary waits, and it is known for what", |status| {
                let digest = status
                    .rollout
                    .as_ref()
                    .map(|rollout| rollout.release_digest.as_str());
                is_in(status, &first, "canary", "AwaitingApproval")
                    && digest.is_some_and(|text| !text.is_empty())
            })
            .await?;
        assert_eq!(scene.value("m1", "settings").await?, None);
        let approve = [
            "approve",
            scene.name,
            "--stage",
            "canary",
            "--reason",
            "the first",
        ];
        say(scene, &approve).await?;
        scene.until_value("m1", "settings", Some("one")).await?;
        scene.select(&["m2"]).await?;
        scene.until_value("m2", "settings", Some("one")).await?;
        scene.succeeded(&first).await?;
        Ok(())
    })
}

/// A cluster that two stages select rolls out with the first, and the group reports the overlap as long as it exists.
#[test]
fn a_cluster_of_two_stages_belongs_to_the_first_and_is_reported() -> Result<()> {
    shared_scene("overlapping", async |scene| {
        let first = scene.commit(&[("settings", "one")])?;
        scene.follow_main().await?;
        assign_stages(scene).await?;
        let labelled = json!({"matchExpressions": [{"key": scene.own("stage"), "operator": "Exists"}]});
        let stages = json!([
            stage(scene, "canary", json!({})),
            {"name": "labelled", "clusterSelector": labelled},
        ]);
        scene
            .group(json!({"maxConcurrency": "100%", "stages": stages}), json!({}))
            .await?;
        let status = scene.succeeded(&first).await?;
        let overlap =
            |status: &SyncGroupStatus| conditions::find(&status.conditions, STAGES_OVERLAP).cloned();
        let Condition {
            status: overlaps,
            reason,
            message,
            ..
        } = overlap(&status).context("StagesOverlap")?;
        assert_eq!(
            (overlaps.as_str(), reason.as_str()),
            ("True", "ClusterInSeveralStages")
        );
        assert!(
            message.ends_with(": m1 to canary, and not to labelled"),
            "{message}"
        );
        // It counts in the first only; clusters without a stage are in the implicit last one, which is in the status.
        let totals: Vec<(String, u32)> = status
            .rollout
            .as_ref()
            .context("a rollout")?
            .stages
            .iter()
            .map(|stage| (stage.name.clone(), stage.total))
            .collect();
        let expected = [("canary", 1), ("labelled", 2), ("*", 2)];
        assert_eq!(totals, expected.map(|(name, total)| (name.to_owned(), total)));
        let implicit = conditions::find(&status.conditions, IMPLICIT_STAGE).context("ImplicitStage")?;
        assert_eq!(implicit.reason, "ClustersInNoStage");
        assert!(implicit.message.ends_with(", *: m4, m5"), "{}", implicit.message);

        scene.label("m1", &scene.own("stage"), Some("eu")).await?;
        let status = scene
            .status("no cluster is of two stages", |status| overlap(status).is_none())
            .await?;
        assert_eq!(
            stage_status(&status, "labelled").map(|stage| stage.total),
            Some(3)
        );
        for cluster in ["m4", "m5"] {
            scene.label(cluster, &scene.own("stage"), Some("eu")).await?;
        }
        scene
            .status("every cluster is in a stage", |status| {
                conditions::find(&status.conditions, IMPLICIT_STAGE).is_none()
            })
            .await?;
        Ok(())
    })
}
