//! Operator actions from the command line, and their effects.

use std::path::PathBuf;
use std::process::Output;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use kube::ResourceExt;
use kube::api::{ListParams, PostParams};
use serde_json::{Value, json};
use starling_api::{
    Cluster, ReleaseStatus, RolloutAction, RolloutApproval, RolloutDirection, RolloutPhase, SyncGroupStatus,
};
use starling_testkit::fleet::{MANAGEMENT, NAMESPACE};
use starling_testkit::{Fault, FaultProxy, RuleHandle, program, wait};

use crate::stages::{is_in, stage_status};
use crate::world::{MEMBERS, Scene, all, blocked_by, shared_scene};

/// Runs the program as a user with the permissions of the management cluster's kubeconfig.
async fn starling(scene: &Scene, arguments: &[&str]) -> Result<Output> {
    let kubeconfig: PathBuf = scene
        .fleet()
        .directory()
        .join(format!("{}.kubeconfig", scene.name));
    std::fs::write(&kubeconfig, scene.fleet().kubeconfig(MANAGEMENT)?)?;
    let output = tokio::process::Command::new(program())
        .args(arguments)
        .args(["-n", NAMESPACE, "--kubeconfig"])
        .arg(&kubeconfig)
        .output()
        .await?;
    Ok(output)
}

/// Returns its output; an error if it failed.
pub(crate) async fn say(scene: &Scene, arguments: &[&str]) -> Result<String> {
    let output = starling(scene, arguments).await?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    ensure!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    Ok(text(&output.stdout))
}

/// Returns its error output; an error if it succeeded.
async fn refused(scene: &Scene, arguments: &[&str]) -> Result<String> {
    let output = starling(scene, arguments).await?;
    ensure!(!output.status.success(), "{arguments:?} was not refused");
    Ok(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// m1 alone in the stage `canary`, and then the rest.
pub(crate) async fn canary(scene: &Scene, strategy: Value, canary: Value) -> Result<()> {
    scene.select(&MEMBERS).await?;
    scene.label("m1", &scene.own("stage"), Some("canary")).await?;
    let mut stage =
        json!({"name": "canary", "clusterSelector": {"matchLabels": {scene.own("stage"): "canary"}}});
    let mut whole = json!({"maxConcurrency": "100%"});
    for (into, more) in [(&mut stage, canary), (&mut whole, strategy)] {
        if let (Some(into), Value::Object(more)) = (into.as_object_mut(), more) {
            into.extend(more);
        }
    }
    whole["stages"] = json!([stage]);
    scene.group(whole, json!({"retryInterval": "1h"})).await
}

/// The first release is on every cluster, and the canary `m1` rejects the next one.
async fn faulty_canary(scene: &Scene) -> Result<(Arc<FaultProxy>, RuleHandle)> {
    let first = scene.commit(&[("settings", "one")])?;
    scene.follow_main().await?;
    canary(scene, json!({"maxFailures": 0}), json!({})).await?;
    scene.succeeded(&first).await?;
    let faulty = scene.proxy("m1")?;
    let rule = faulty.on(
        scene.writes_of("settings"),
        Fault::status(http::StatusCode::FORBIDDEN),
    );
    Ok((faulty, rule))
}

/// Commits an object that every API server rejects.
fn commit_invalid_object(scene: &Scene, value: &str) -> Result<String> {
    let text = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {}, namespace: default}}\ndata: {{\"not a key\": {value}}}\n",
        scene.own("settings")
    );
    Ok(scene.repo.commit(&[("app/settings.yaml", &text)], "broken")?)
}

fn rolls(status: &SyncGroupStatus, commit: &str) -> bool {
    let mut revisions = status.rollout.iter().flat_map(|rollout| &rollout.revisions);
    revisions.any(|revision| revision.revision.ends_with(commit))
}

fn is_of(release: Option<&ReleaseStatus>, commit: &str) -> bool {
    let mut revisions = release.into_iter().flat_map(|release| &release.revisions);
    revisions.any(|revision| revision.revision.ends_with(commit))
}

/// Guards against a success that is not recorded: with `Finish` and `Queue`, the reconcile in which a rollout succeeds
/// also starts the next one, and `lastKnownGood` kept the previous release.
#[test]
fn a_release_that_succeeds_while_the_next_one_waits_is_the_last_known_good() -> Result<()> {
    for (name, policy) in [("finished", "Finish"), ("in-turn", "Queue")] {
        shared_scene(name, async |scene| {
            let first = scene.commit(&[("settings", "one")])?;
            scene.follow_main().await?;
            scene.select(&["m1", "m2"]).await?;
            let strategy = json!({
                "maxConcurrency": 1, "maxFailures": 0, "minSuccessTime": "4s",
                "onNewRevision": policy, "onFailure": "Rollback",
            });
            scene.group(strategy, json!({"retryInterval": "1h"})).await?;
            scene
                .status("the first rolls", |status| rolls(status, &first))
                .await?;
            let second = commit_invalid_object(scene, "two")?;
            let status = scene
                .status("the second goes back to the first", |status| {
                    status.rollout.as_ref().is_some_and(|rollout| rollout.id == 3) && rolls(status, &first)
                })
                .await?;
            assert!(is_of(status.last_known_good.as_ref(), &first), "{status:?}");
            let held = status.held_release.as_ref().map(|held| &held.revisions);
            assert!(
                held.is_some_and(|held| held[0].revision.ends_with(&second)),
                "{status:?}"
            );
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn a_stage_waits_until_this_exact_release_is_approved() -> Result<()> {
    shared_scene("approved", async |scene| {
        let first = scene.commit(&[("settings", "one")])?;
        scene.follow_main().await?;
        let task = json!({"afterStageTasks": [{"type": "Approval"}]});
        canary(scene, json!({}), task).await?;
        let waits = |commit: String| {
            move |status: &SyncGroupStatus| {
                let known = status
                    .rollout
                    .as_ref()
                    .is_some_and(|rollout| !rollout.release_digest.is_empty());
                is_in(status, &commit, "canary", "AwaitingApproval") && known
            }
        };
        scene.status("the first waits", waits(first.clone())).await?;
        let printed = say(scene, &["approve", scene.name, "--reason", "smoke tests read"]).await?;
        assert!(printed.contains("stage canary"), "{printed}");
        scene.succeeded(&first).await?;

        // A newer release needs its own approval.
        let second = scene.commit(&[("settings", "two")])?;
        let status = scene.status("the second waits", waits(second.clone())).await?;
        let digest = status
            .rollout
            .map(|rollout| rollout.release_digest)
            .unwrap_or_default();
        let third = scene.commit(&[("settings", "three")])?;
        let status = scene.status("the third waits", waits(third.clone())).await?;
        let stderr = refused(
            scene,
            &[
                "approve",
                scene.name,
                "--digest",
                &digest,
                "--reason",
                "I saw the second",
            ],
        )
        .await?;
        assert!(stderr.contains("now has release digest"), "{stderr}");
        // An approval with the third rollout and the digest of the second is not valid.
        let rollout = status
            .rollout
            .as_ref()
            .map(|rollout| rollout.id)
            .unwrap_or_default();
        let stale = json!({"apiVersion": "starling.dev/v1alpha1", "kind": "RolloutApproval",
            "metadata": {"name": scene.own("stale"), "namespace": NAMESPACE},
            "spec": {"group": scene.name, "rollout": rollout, "stage": "canary", "releaseDigest": digest, "by": "jane"}});
        scene
            .fleet()
            .api::<RolloutApproval>()
            .create(&PostParams::default(), &serde_json::from_value(stale)?)
            .await?;
        say(scene, &["approve", scene.name, "--reason", "now the third"]).await?;
        scene.succeeded(&third).await?;
        // The stage passed with the approval of the third.
        assert_eq!(scene.values(&MEMBERS, "settings").await?, all("three", 5));
        let sent = scene.values_sent("m2", "settings", &["one", "two", "three"])?;
        assert_eq!(sent, ["one", "three"], "nobody approved the second");
        Ok(())
    })
}

/// Guards against an approval of one ServiceAccount that lets another one in: a label of a Cluster chooses it.
#[test]
fn tenant_an_approval_covers_the_values_of_clusters() -> Result<()> {
    shared_scene("valued", async |scene| {
        let first = scene.commit(&[("settings", "one")])?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        for member in MEMBERS {
            scene.label(member, "valued-color", Some("blue")).await?;
        }
        let stage =
            json!({"name": "canary", "clusterSelector": {}, "beforeStageTasks": [{"type": "Approval"}]});
        let fields = json!({"substitute": {"COLOR": "$(cluster.labels.valued-color)"}});
        scene.group(json!({"stages": [stage]}), fields).await?;
        let digest = |status: &SyncGroupStatus| {
            let rollout = status.rollout.as_ref();
            rollout
                .map(|rollout| rollout.release_digest.clone())
                .unwrap_or_default()
        };
        let status = scene
            .status("it waits", |status| !digest(status).is_empty())
            .await?;
        let seen = digest(&status);
        scene.label("m5", "valued-color", Some("red")).await?;
        scene
            .status("another digest", |status| {
                !digest(status).is_empty() && digest(status) != seen
            })
            .await?;
        let old = [
            "approve",
            scene.name,
            "--digest",
            &seen,
            "--reason",
            "all of them blue",
        ];
        let stderr = refused(scene, &old).await?;
        assert!(stderr.contains("now has release digest"), "{stderr}");
        scene.label("m5", "valued-color", Some("blue")).await?;
        scene
            .status("the first digest", |status| digest(status) == seen)
            .await?;
        say(scene, &old).await?;
        scene.succeeded(&first).await?;
        Ok(())
    })
}

#[test]
fn a_rollout_is_paused_resumed_and_aborted() -> Result<()> {
    shared_scene("halted", async |scene| {
        let first = scene.commit(&[("settings", "one")])?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        scene.group(json!({"maxConcurrency": 1}), json!({})).await?;
        scene.succeeded(&first).await?;
        let slow = scene.proxy("m1")?;
        let rule = slow.on(
            scene.writes_of("settings").body_contains("two"),
            Fault::Latency(Duration::from_secs(6)),
        );
        let second = scene.commit(&[("settings", "two")])?;
        wait::until(Duration::from_secs(30), "m1 is being written to", async || {
            rule.fired() > 0
        })
        .await?;
        say(scene, &["pause", scene.name, "--reason", "lunch"]).await?;
        let status = scene
            .status("paused", |status| {
                status
                    .rollout
                    .as_ref()
                    .is_some_and(|rollout| rollout.phase == RolloutPhase::Paused)
                    && status.clusters.updated == 1
            })
            .await?;
        let blockers = status
            .rollout
            .map(|rollout| rollout.blocked_by)
            .unwrap_or_default();
        let paused = blockers.iter().find(|blocker| blocker.reason == "Paused");
        assert!(
            paused.is_some_and(|blocker| blocker.message.contains("lunch")),
            "{blockers:#?}"
        );
        assert_eq!(scene.values(&MEMBERS[1..], "settings").await?, all("one", 4));
        say(scene, &["resume", scene.name, "--reason", "back"]).await?;
        scene.succeeded(&second).await?;

        let rule = slow.on(
            scene.writes_of("settings").body_contains("three"),
            Fault::Latency(Duration::from_secs(6)),
        );
        scene.commit(&[("settings", "three")])?;
        wait::until(Duration::from_secs(30), "m1 is being written to", async || {
            rule.fired() > 0
        })
        .await?;
        say(scene, &["abort", scene.name, "--reason", "not this one"]).await?;
        scene
            .status("given up", |status| {
                status
                    .rollout
                    .as_ref()
                    .is_some_and(|rollout| rollout.phase == RolloutPhase::Failed)
                    && status.clusters.updated == 1
            })
            .await?;
        assert_eq!(scene.values(&MEMBERS[1..], "settings").await?, all("two", 4));
        // The next release is not affected.
        let fourth = scene.commit(&[("settings", "four")])?;
        scene.succeeded(&fourth).await?;
        assert_eq!(scene.values(&MEMBERS, "settings").await?, all("four", 5));

        let actions = scene
            .fleet()
            .api::<RolloutAction>()
            .list(&ListParams::default())
            .await?;
        let actions_of_group: Vec<String> = actions
            .iter()
            .filter(|action| action.spec.group == scene.name)
            .map(|action| {
                format!(
                    "{:?} by {}: {}",
                    action.spec.action, action.spec.by, action.spec.reason
                )
            })
            .collect();
        assert_eq!(actions_of_group.len(), 3, "{actions_of_group:?}");
        assert!(
            actions_of_group.iter().all(|action| !action.contains("by :")),
            "{actions_of_group:?}"
        );
        Ok(())
    })
}

#[test]
fn a_failed_cluster_is_skipped_or_retried() -> Result<()> {
    shared_scene("passed", async |scene| {
        let (faulty, rule) = faulty_canary(scene).await?;
        let second = scene.commit(&[("settings", "two")])?;
        let stopped = |status: &SyncGroupStatus| blocked_by(status).contains("TooManyFailures");
        scene.status("stopped", stopped).await?;
        // Still faulty: retried, and failed again.
        let refusals = |scene: &Scene| -> Result<usize> {
            let requests = scene.proxy("m1")?.requests();
            let path_end = format!("/configmaps/{}", scene.own("settings"));
            Ok(requests
                .iter()
                .filter(|request| request.is_patch() && request.path.ends_with(&path_end))
                .count())
        };
        let before = refusals(scene)?;
        say(
            scene,
            &["retry", scene.name, "--cluster", "m1", "--reason", "once more"],
        )
        .await?;
        wait::until(Duration::from_secs(30), "m1 is written to again", async || {
            refusals(scene).is_ok_and(|now| now > before)
        })
        .await?;
        scene.status("stopped again", stopped).await?;
        assert_eq!(scene.values(&MEMBERS[1..], "settings").await?, all("one", 4));
        // A skipped cluster does not count; but a canary stage whose only cluster was skipped is not passed either.
        say(
            scene,
            &[
                "skip",
                scene.name,
                "--cluster",
                "m1",
                "--reason",
                "known to be ill",
            ],
        )
        .await?;
        let status = scene
            .status("the rest has it", |status| {
                rolls(status, &second) && status.clusters.updated == 4
            })
            .await?;
        assert_eq!(scene.values(&MEMBERS[1..], "settings").await?, all("two", 4));
        assert!(stage_status(&status, "canary").is_some());
        // Only this rule: other scenes have theirs on the same member.
        faulty.remove(&rule);
        // The next rollout is not affected by the skip.
        let third = scene.commit(&[("settings", "three")])?;
        scene.succeeded(&third).await?;
        assert_eq!(scene.values(&MEMBERS, "settings").await?, all("three", 5));
        Ok(())
    })
}

#[test]
fn a_stage_is_promoted_or_skipped() -> Result<()> {
    shared_scene("promoted", async |scene| {
        let first = scene.commit(&[("settings", "one")])?;
        scene.follow_main().await?;
        let hour = json!({"afterStageTasks": [{"type": "TimedWait", "waitTime": "1h"}]});
        canary(scene, json!({}), hour).await?;
        scene
            .status("the canary waits", |status| {
                is_in(status, &first, "canary", "Soaking")
            })
            .await?;
        let stderr = refused(
            scene,
            &["promote", scene.name, "--stage", "none", "--reason", "x"],
        )
        .await?;
        assert!(stderr.contains("stages: canary, *"), "{stderr}");
        // The current stage.
        say(scene, &["promote", scene.name, "--reason", "a hotfix"]).await?;
        scene.succeeded(&first).await?;

        // With a wait of one hour before the canary, nothing could start.
        let before = json!({"beforeStageTasks": [{"type": "TimedWait", "waitTime": "1h"}]});
        canary(scene, json!({}), before).await?;
        let second = scene.commit(&[("settings", "two")])?;
        scene
            .status("nothing starts", |status| {
                rolls(status, &second) && blocked_by(status).contains("TimedWait")
            })
            .await?;
        say(
            scene,
            &[
                "skip",
                scene.name,
                "--stage",
                "canary",
                "--reason",
                "no canaries today",
            ],
        )
        .await?;
        scene.until_value("m5", "settings", Some("two")).await?;
        assert_eq!(scene.value("m1", "settings").await?.as_deref(), Some("one"));

        let third = scene.commit(&[("settings", "three")])?;
        scene
            .status("nothing starts again", |status| {
                rolls(status, &third) && blocked_by(status).contains("TimedWait")
            })
            .await?;
        say(
            scene,
            &[
                "promote",
                scene.name,
                "--stage",
                "canary",
                "--reason",
                "in a hurry",
            ],
        )
        .await?;
        scene.succeeded(&third).await?;
        assert_eq!(scene.values(&MEMBERS, "settings").await?, all("three", 5));
        Ok(())
    })
}

#[test]
fn a_repaired_cluster_succeeds_after_a_retry_and_a_rollback_restores_the_last_known_good() -> Result<()> {
    shared_scene("mended", async |scene| {
        let (faulty, rule) = faulty_canary(scene).await?;
        let second = scene.commit(&[("settings", "two")])?;
        let stopped = |commit: String| {
            move |status: &SyncGroupStatus| {
                rolls(status, &commit) && blocked_by(status).contains("TooManyFailures")
            }
        };
        scene.status("stopped", stopped(second.clone())).await?;
        // Only this rule: other scenes have theirs on the same member.
        faulty.remove(&rule);
        // Without the action, it would be retried in an hour.
        say(
            scene,
            &["retry", scene.name, "--stage", "canary", "--reason", "mended"],
        )
        .await?;
        scene.succeeded(&second).await?;
        assert_eq!(scene.values(&MEMBERS, "settings").await?, all("two", 5));

        let third = commit_invalid_object(scene, "x")?;
        scene.status("stopped again", stopped(third.clone())).await?;
        say(scene, &["rollback", scene.name, "--reason", "it does not apply"]).await?;
        let status = scene.succeeded(&second).await?;
        let held = status.held_release.unwrap_or_default();
        assert!(held.revisions[0].revision.ends_with(&third), "{held:?}");
        assert_eq!(scene.values(&MEMBERS, "settings").await?, all("two", 5));
        Ok(())
    })
}

#[test]
fn a_failed_release_is_rolled_back_and_stays_held() -> Result<()> {
    shared_scene("undone", async |scene| {
        let first = scene.commit(&[("settings", "one")])?;
        scene.follow_main().await?;
        canary(
            scene,
            json!({"maxFailures": 0, "onFailure": "Rollback"}),
            json!({}),
        )
        .await?;
        scene.succeeded(&first).await?;
        let second = commit_invalid_object(scene, "x")?;
        let status = scene
            .status("back", |status| {
                status.rollout.as_ref().is_some_and(|rollout| {
                    rollout.direction == RolloutDirection::Back && rollout.phase == RolloutPhase::Succeeded
                })
            })
            .await?;
        assert!(rolls(&status, &first));
        assert_eq!(status.clusters.updated, 5);
        let held = status.held_release.unwrap_or_default();
        assert!(held.revisions[0].revision.ends_with(&second), "{held:?}");
        assert!(held.reason.contains("failed"), "{held:?}");
        let back = status.rollout.map(|rollout| rollout.id).unwrap_or_default();
        assert_eq!(back, 3);
        assert_eq!(scene.values(&MEMBERS, "settings").await?, all("one", 5));
        // The branch still has the failed release: a reconcile changes nothing.
        scene.world.look_at("m1").await?;
        let patch = json!({"metadata": {"annotations": {starling_api::REQUESTED_AT: "again"}}});
        scene
            .fleet()
            .patch::<starling_api::Source>(scene.name, patch)
            .await?;
        scene
            .fleet()
            .until::<starling_api::Source>(scene.name, "looked at", |source| {
                source
                    .status
                    .as_ref()
                    .is_some_and(|status| status.last_handled_reconcile_at == "again")
            })
            .await?;
        let status = scene.status("as it was", |_| true).await?;
        assert_eq!(status.rollout.map(|rollout| rollout.id), Some(back));
        // A newer release is not held.
        let third = scene.commit(&[("settings", "three")])?;
        let status = scene.succeeded(&third).await?;
        assert_eq!(status.held_release, None);
        assert!(is_of(status.last_known_good.as_ref(), &third));
        assert_eq!(scene.values(&MEMBERS, "settings").await?, all("three", 5));
        Ok(())
    })
}

#[test]
fn a_rollback_to_a_revision_holds_the_newer_release_until_it_is_released() -> Result<()> {
    shared_scene("returned", async |scene| {
        let first = scene.commit(&[("settings", "one")])?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        scene
            .group(json!({"rollback": {"type": "Immediate"}}), json!({}))
            .await?;
        scene.succeeded(&first).await?;
        let second = scene.commit(&[("settings", "two")])?;
        scene.succeeded(&second).await?;
        let unknown = [
            "rollback",
            scene.name,
            "--revision",
            "v9.9.9",
            "--reason",
            "a typo",
        ];
        let stderr = refused(scene, &unknown).await?;
        assert!(
            stderr.contains(&first) && stderr.contains(&second),
            "the revisions that are kept: {stderr}"
        );
        // The last known good release is the current one.
        let stderr = refused(scene, &["rollback", scene.name, "--reason", "two is slow"]).await?;
        assert!(stderr.contains("with --revision"), "{stderr}");
        // A user without list permission, or with a manually created object, gets the error from the group.
        let status = scene.status("as it was", |_| true).await?;
        let rollout = status.rollout.map(|rollout| rollout.id).unwrap_or_default();
        let by_hand = json!({"apiVersion": "starling.dev/v1alpha1", "kind": "RolloutAction",
            "metadata": {"name": scene.own("typo"), "namespace": NAMESPACE},
            "spec": {"group": scene.name, "rollout": rollout, "action": "Rollback", "revision": "v9.9.9", "by": "jane",
                "reason": "a typo"}});
        scene
            .fleet()
            .api::<RolloutAction>()
            .create(&PostParams::default(), &serde_json::from_value(by_hand)?)
            .await?;
        let status = scene
            .status("told that it is unknown", |status| {
                blocked_by(status).contains("NothingToGoBackTo")
            })
            .await?;
        assert!(rolls(&status, &second));
        say(
            scene,
            &[
                "rollback",
                scene.name,
                "--revision",
                &first[..10],
                "--reason",
                "two is slow",
            ],
        )
        .await?;
        let status = scene.succeeded(&first).await?;
        let rollout = status.rollout.unwrap_or_default();
        assert_eq!(rollout.direction, RolloutDirection::BackAtOnce);
        assert_eq!(scene.values(&MEMBERS, "settings").await?, all("one", 5));
        assert!(status.held_release.is_some());
        say(
            scene,
            &["release", scene.name, "--reason", "it was something else"],
        )
        .await?;
        let status = scene.succeeded(&second).await?;
        assert_eq!(status.held_release, None);
        assert_eq!(scene.values(&MEMBERS, "settings").await?, all("two", 5));
        Ok(())
    })
}

#[test]
fn newer_revisions_are_queued_if_the_strategy_says_so() -> Result<()> {
    shared_scene("queued", async |scene| {
        let first = scene.commit(&[("settings", "v1")])?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        scene
            .group(
                json!({"maxConcurrency": "100%", "onNewRevision": "Queue"}),
                json!({}),
            )
            .await?;
        scene.succeeded(&first).await?;
        let slow = scene.proxy("m1")?;
        let rule = slow.on(
            scene.writes_of("settings").body_contains("v2"),
            Fault::Latency(Duration::from_secs(8)),
        );
        scene.commit(&[("settings", "v2")])?;
        wait::until(Duration::from_secs(30), "m1 is being written to", async || {
            rule.fired() > 0
        })
        .await?;
        let third = scene.commit(&[("settings", "v3")])?;
        scene
            .status("the third waits", |status| {
                status.queue.iter().any(|release| is_of(Some(release), &third))
            })
            .await?;
        let fourth = scene.commit(&[("settings", "v4")])?;
        let status = scene.succeeded(&fourth).await?;
        assert_eq!(status.rollout.map(|rollout| rollout.id), Some(4));
        assert!(status.queue.is_empty());
        for member in MEMBERS {
            assert_eq!(
                scene.values_sent(member, "settings", &["v1", "v2", "v3", "v4"])?,
                ["v1", "v2", "v3", "v4"],
                "{member} got each in its turn"
            );
        }
        Ok(())
    })
}

#[test]
fn invalid_operator_actions_are_refused_with_a_remedy() -> Result<()> {
    shared_scene("muddled", async |scene| {
        let first = scene.commit(&[("settings", "one")])?;
        scene.follow_main().await?;
        scene.select(&["m1"]).await?;
        scene.group(json!({}), json!({})).await?;
        scene.succeeded(&first).await?;
        for (arguments, expected) in [
            (
                vec!["pause", "nothing", "--reason", "x"],
                "SyncGroup fleet/nothing",
            ),
            (
                vec!["pause", scene.name, "--rollout", "9", "--reason", "x"],
                "not the current rollout",
            ),
            (vec!["pause", scene.name], "--reason"),
            (vec!["skip", scene.name, "--reason", "x"], "--cluster"),
            (
                vec!["skip", scene.name, "--cluster", "m99", "--reason", "x"],
                "Cluster fleet/m99",
            ),
            (
                vec!["promote", scene.name, "--stage", "eu", "--reason", "x"],
                "the group has no stages",
            ),
            (vec!["approve", scene.name, "--reason", "x"], "no stage waits"),
            (
                vec!["approve", scene.name, "--digest", "sha256:1", "--reason", "x"],
                "64 hex digits",
            ),
            (
                vec!["skip", scene.name, "--cluster", "m2", "--reason", "x"],
                "does not select Cluster m2",
            ),
            (vec!["pause", scene.name, "--reason", "x"], "set spec.suspend"),
            (vec!["abort", scene.name, "--reason", "x"], "has succeeded"),
            (vec!["promote", scene.name, "--reason", "x"], "has succeeded"),
            (
                vec!["skip", scene.name, "--cluster", "m1", "--reason", "x"],
                "has succeeded",
            ),
            (vec!["release", scene.name, "--reason", "x"], "no held release"),
        ] {
            let stderr = refused(scene, &arguments).await?;
            assert!(stderr.contains(expected), "{arguments:?}: {stderr}");
        }
        let clusters = scene
            .fleet()
            .api::<Cluster>()
            .list(&ListParams::default())
            .await?;
        assert!(clusters.iter().any(|cluster| cluster.name_any() == "m1"));
        Ok(())
    })
}
