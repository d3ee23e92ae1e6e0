//! Unreachable clusters: before and during a rollout, because of a revision, or because of a credential.

use std::time::{Duration, Instant};

use anyhow::Result;
use http::{Method, StatusCode};
use k8s_openapi::api::core::v1::Secret;
use serde_json::json;
use starling_api::conditions::{self, READY};
use starling_api::{Cluster, RolloutPhase};
use starling_testkit::fleet::{MANAGEMENT, TIMEOUT};
use starling_testkit::{Fault, Match, Stage, wait};

use crate::world::{MEMBERS, Scene, all, blocked_by, exclusive_scene, is_ready, problems, ready};

const REACHABLE_MEMBERS: [&str; 4] = ["m1", "m2", "m3", "m4"];

fn cluster_ready(cluster: &Cluster) -> (String, String) {
    cluster
        .status
        .as_ref()
        .map(|status| ready(&status.conditions))
        .unwrap_or_default()
}

fn handled(cluster: &Cluster) -> String {
    cluster
        .status
        .as_ref()
        .map(|status| status.last_handled_reconcile_at.clone())
        .unwrap_or_default()
}

/// Waits until the Cluster is reported as unreachable.
async fn until_unreachable(scene: &Scene, cluster: &str) -> Result<()> {
    scene.world.look_at(cluster).await?;
    let unknown = |c: &Cluster| cluster_ready(c).0 == "Unknown";
    scene.fleet().until(cluster, "Ready=Unknown", unknown).await?;
    Ok(())
}

async fn until_reachable(scene: &Scene, cluster: &str) -> Result<()> {
    let proxy = scene.proxy(cluster)?;
    proxy.refuse(false).await?;
    proxy.clear();
    scene.world.look_at(cluster).await?;
    scene.fleet().until(cluster, "Ready", is_ready).await?;
    Ok(())
}

#[test]
fn a_member_that_is_down_at_the_start_gets_only_the_newest_revision_later() -> Result<()> {
    exclusive_scene("down", async |scene| {
        scene.proxy("m5")?.refuse(true).await?;
        until_unreachable(scene, "m5").await?;
        let first = scene.commit(&[("settings", "v1")])?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        scene.group(json!({"maxFailures": 0}), json!({})).await?;
        let status = scene.succeeded(&first).await?;
        let counts = status.clusters;
        assert_eq!((counts.updated, counts.unreachable, counts.failed), (4, 1, 0));
        assert_eq!(ready(&status.conditions).0, "True");
        let second = scene.commit(&[("settings", "v2")])?;
        scene.succeeded(&second).await?;
        assert_eq!(scene.values(&REACHABLE_MEMBERS, "settings").await?, all("v2", 4));

        until_reachable(scene, "m5").await?;
        scene
            .status("all updated", |status| status.clusters.updated == 5)
            .await?;
        assert_eq!(scene.values(&MEMBERS, "settings").await?, all("v2", 5));
        assert_eq!(scene.values_sent("m5", "settings", &["v1", "v2"])?, ["v2"]);
        assert_eq!(writes(scene, "m5")?, 1, "caught up once");
        Ok(())
    })
}

#[test]
fn a_member_that_fails_during_a_rollout_keeps_its_slot_and_catches_up_after_two_revisions() -> Result<()> {
    exclusive_scene("middle", async |scene| {
        let first = scene.commit(&[("settings", "v1")])?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        scene
            .group(json!({"maxConcurrency": 2, "maxFailures": 0}), json!({}))
            .await?;
        scene.succeeded(&first).await?;

        // Every byte to m1 is lost from the arrival of its write on, before the server receives the write.
        let failing_member = scene.proxy("m1")?;
        let cut = failing_member.on(scene.writes_of("settings").times(1), Fault::CutBefore);
        let refused = async {
            wait::until(Duration::from_secs(30), "m1 is written to", async || {
                cut.fired() > 0
            })
            .await?;
            failing_member.refuse(true).await?;
            anyhow::Ok(())
        };
        let second = scene.commit(&[("settings", "v2")])?;
        refused.await?;
        let status = scene
            .status("m1 lost, the others done", |status| {
                status.clusters.updated == 4 && problems(status).get("m1").is_some_and(|r| r == "Unreachable")
            })
            .await?;
        let rollout = status.rollout.clone().unwrap_or_default();
        assert_eq!(rollout.phase, RolloutPhase::Progressing);
        assert!(rollout.revisions[0].revision.ends_with(&second));
        assert_eq!((status.clusters.progressing, status.clusters.failed), (1, 0));
        assert_eq!(scene.value("m1", "settings").await?.as_deref(), Some("v1"));

        let third = scene.commit(&[("settings", "v3")])?;
        let status = scene.succeeded(&third).await?;
        assert_eq!((status.clusters.updated, status.clusters.unreachable), (4, 1));
        let fourth = scene.commit(&[("settings", "v4")])?;
        scene.succeeded(&fourth).await?;
        until_reachable(scene, "m1").await?;
        scene
            .status("all updated", |status| status.clusters.updated == 5)
            .await?;
        assert_eq!(scene.values(&MEMBERS, "settings").await?, all("v4", 5));
        assert_eq!(
            scene.values_sent("m1", "settings", &["v1", "v2", "v3", "v4"])?,
            ["v1", "v2", "v4"]
        );
        Ok(())
    })
}

/// A member and the management cluster are away together, so no status records that the member was lost: its Sync is
/// not enqueued by a change, and does not wait for its own retry either.
#[test]
fn a_member_that_is_lost_together_with_the_management_cluster_continues_with_the_first_response() -> Result<()>
{
    exclusive_scene("both", async |scene| {
        let first = scene.commit(&[("settings", "v1")])?;
        scene.follow_main().await?;
        scene.select(&["m1"]).await?;
        scene.group(json!({}), json!({"retryInterval": "1h"})).await?;
        scene.succeeded(&first).await?;

        let member = scene.proxy("m1")?;
        let hub = scene.proxy(MANAGEMENT)?;
        let away = member.on(Match::any(), Fault::CutBefore);
        let status = Match::method(Method::PATCH).path_ends_with("/clusters/m1/status");
        let unwritten = hub.on(status, Fault::status(StatusCode::SERVICE_UNAVAILABLE));
        let second = scene.commit(&[("settings", "v2")])?;
        wait::until(TIMEOUT, "the loss of m1 is not recorded", async || {
            unwritten.fired() > 0
        })
        .await?;
        let cluster: Cluster = scene.fleet().get("m1").await?;
        assert!(is_ready(&cluster), "{cluster:?}");
        member.remove(&away);
        hub.remove(&unwritten);
        scene.succeeded(&second).await?;
        Ok(())
    })
}

#[test]
fn an_unconfirmed_write_is_not_mistaken_for_the_earlier_state() -> Result<()> {
    exclusive_scene("unanswered", async |scene| {
        let first = scene.commit(&[("settings", "one")])?;
        scene.follow_main().await?;
        scene.select(&["m1"]).await?;
        scene.group(json!({}), json!({})).await?;
        scene.succeeded(&first).await?;

        // The server accepts every write, but no response arrives.
        let writes = scene.writes_of("settings").body_contains("two");
        scene.proxy("m1")?.on(writes, Fault::CutAfter);
        scene.commit(&[("settings", "two")])?;
        scene.until_value("m1", "settings", Some("two")).await?;
        // A revert pushes exactly the earlier content.
        let until_reachable = scene.commit(&[("settings", "one")])?;
        scene.succeeded(&until_reachable).await?;
        assert_eq!(scene.value("m1", "settings").await?.as_deref(), Some("one"));
        Ok(())
    })
}

#[test]
fn a_revision_that_disconnects_clusters_stops_after_max_concurrency_and_max_failures() -> Result<()> {
    exclusive_scene("cutoff", async |scene| {
        let first = scene.commit(&[("settings", "good")])?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        let strategy = json!({"maxConcurrency": 2, "maxFailures": 1, "progressDeadline": "5s"});
        scene.group(strategy, json!({"timeout": "3s"})).await?;
        scene.succeeded(&first).await?;

        // A cluster with the bad value has no network any more: the server accepts the write, and the response is lost.
        for member in MEMBERS {
            let proxy = scene.proxy(member)?;
            let itself = std::sync::Arc::downgrade(&proxy);
            let cut_off = Fault::hook(move |stage, _| {
                if let (Stage::After, Some(proxy)) = (stage, itself.upgrade()) {
                    proxy.black_hole(true);
                }
            });
            proxy.on(scene.writes_of("settings").body_contains("bad"), cut_off);
        }
        // The next scheduled probe is most of a minute away: earlier results are from the attempts.
        for member in MEMBERS {
            let before: Cluster = scene.fleet().get(member).await?;
            scene.world.look_at(member).await?;
            let probed = |c: &Cluster| handled(c) != handled(&before) && is_ready(c);
            scene.fleet().until(member, "probed", probed).await?;
        }
        let pushed = Instant::now();
        let bad = scene.commit(&[("settings", "bad")])?;
        let status = scene
            .status("paused, with lost clusters", |status| {
                let unreachable = problems(status)
                    .values()
                    .filter(|r| *r == "LostAfterAdmission")
                    .count();
                let rollout = status.rollout.as_ref();
                rollout.is_some_and(|r| {
                    r.phase == RolloutPhase::Paused && r.revisions[0].revision.ends_with(&bad)
                }) && unreachable > 1
                    && status.clusters.progressing == 0
            })
            .await?;
        assert!(
            pushed.elapsed() < Duration::from_secs(45),
            "{:?}",
            pushed.elapsed()
        );
        assert!(blocked_by(&status).contains("TooManyFailures"), "{status:?}");
        assert_eq!(ready(&status.conditions), ("False".into(), "Paused".into()));
        let cut = scene.values(&MEMBERS, "settings").await?;
        let bad_ones = cut.iter().filter(|value| value.as_deref() == Some("bad")).count();
        assert!((2..=3).contains(&bad_ones), "cut off: {cut:?}");
        let counts = status.clusters;
        assert_eq!(counts.failed as usize, bad_ones);
        assert_eq!(counts.pending as usize, MEMBERS.len() - bad_ones);

        let good = scene.commit(&[("settings", "better")])?;
        for member in MEMBERS {
            until_reachable(scene, member).await?;
        }
        let status = scene
            .status("all at the fixed revision", |status| {
                let rollout = status.rollout.as_ref();
                status.clusters.updated == 5
                    && rollout.is_some_and(|r| r.revisions[0].revision.ends_with(&good))
            })
            .await?;
        assert!(status.problems.is_empty(), "{:?}", status.problems);
        assert_eq!(scene.values(&MEMBERS, "settings").await?, all("better", 5));
        Ok(())
    })
}

#[test]
fn an_invalid_token_is_reported_and_its_cluster_skipped_until_the_secret_is_valid() -> Result<()> {
    exclusive_scene("token", async |scene| {
        let valid_kubeconfig = scene.fleet().kubeconfig("m5")?;
        let token = scene.fleet().plane("m5")?.token().reveal().to_owned();
        let invalid_kubeconfig = valid_kubeconfig.replace(&token, "not-the-token");
        assert_ne!(valid_kubeconfig, invalid_kubeconfig);
        let secret =
            |text: &str| json!({"metadata": {"name": "m5-kubeconfig"}, "stringData": {"value": text}});
        scene.fleet().put::<Secret>(secret(&invalid_kubeconfig)).await?;
        scene.world.look_at("m5").await?;
        let refused = |c: &Cluster| cluster_ready(c) == ("False".into(), "AuthFailed".into());
        let cluster = scene.fleet().until("m5", "AuthFailed", refused).await?;
        let text = serde_json::to_string(&cluster)?;
        assert!(!text.contains("not-the-token"), "a credential in {text}");

        let commit = scene.commit(&[("settings", "one")])?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        scene.group(json!({"maxFailures": 0}), json!({})).await?;
        let status = scene.succeeded(&commit).await?;
        assert_eq!((status.clusters.updated, status.clusters.failed), (4, 0));
        assert_eq!(problems(&status)["m5"], "AuthFailed");
        assert_eq!(scene.values(&REACHABLE_MEMBERS, "settings").await?, all("one", 4));
        assert_eq!(scene.value("m5", "settings").await?, None);

        // Without a requested reconcile: the next probe uses the renewed Secret.
        scene.fleet().put::<Secret>(secret(&valid_kubeconfig)).await?;
        scene
            .status("all updated", |status| status.clusters.updated == 5)
            .await?;
        assert_eq!(scene.values(&MEMBERS, "settings").await?, all("one", 5));
        Ok(())
    })
}

#[test]
fn a_suspended_cluster_is_on_hold_and_catches_up_when_it_is_resumed() -> Result<()> {
    exclusive_scene("resting", async |scene| {
        let first = scene.commit(&[("settings", "one")])?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        scene.group(json!({}), json!({})).await?;
        scene.succeeded(&first).await?;
        scene
            .fleet()
            .patch::<Cluster>("m5", json!({"spec": {"suspend": true}}))
            .await?;
        let suspended = |c: &Cluster| cluster_ready(c).1 == "Suspended";
        scene.fleet().until("m5", "Suspended", suspended).await?;
        scene.commit(&[("settings", "two")])?;
        let status = scene
            .status("the others updated", |status| {
                status.clusters.updated == 4 && status.clusters.held == 1
            })
            .await?;
        assert_eq!(status.clusters.failed, 0);
        scene.until_value("m4", "settings", Some("two")).await?;
        assert_eq!(scene.value("m5", "settings").await?.as_deref(), Some("one"));
        scene
            .fleet()
            .patch::<Cluster>("m5", json!({"spec": {"suspend": false}}))
            .await?;
        scene
            .status("all updated", |status| status.clusters.updated == 5)
            .await?;
        assert_eq!(scene.values(&MEMBERS, "settings").await?, all("two", 5));
        let cluster: Cluster = scene.fleet().get("m5").await?;
        let conditions = cluster.status.unwrap_or_default().conditions;
        assert!(conditions::find(&conditions, READY).is_some_and(|c| c.status == "True"));
        Ok(())
    })
}

/// Counts the writes of the ConfigMap to a member.
fn writes(scene: &Scene, member: &str) -> Result<usize> {
    let path_end = format!("/configmaps/{}", scene.own("settings"));
    Ok(scene.proxy(member)?.count(&http::Method::PATCH, &path_end))
}

/// Guards against a Sync that waits for its `retryInterval` after its member has responded again.
#[test]
fn tenant_a_rollout_goes_on_within_seconds_after_everything_was_away_for_a_moment() -> Result<()> {
    exclusive_scene("blink", async |scene| {
        let first = scene.commit(&[("settings", "v1")])?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        scene.group(json!({"maxConcurrency": 2}), json!({})).await?;
        scene.succeeded(&first).await?;
        // Each write takes a moment, so that the outage meets attempts.
        let slow: Vec<_> = MEMBERS
            .iter()
            .map(|member| {
                let proxy = scene.proxy(member)?;
                Ok((
                    proxy.clone(),
                    proxy.on(
                        scene.writes_of("settings"),
                        Fault::Latency(Duration::from_secs(1)),
                    ),
                ))
            })
            .collect::<Result<_>>()?;
        let second = scene.commit(&[("settings", "v2")])?;
        scene
            .status("it rolls", |status| status.clusters.progressing > 0)
            .await?;
        let away: Vec<&str> = MEMBERS.into_iter().chain([MANAGEMENT]).collect();
        for name in &away {
            scene.fleet().proxy(name)?.refuse(true).await?;
        }
        // The outage itself is a duration, which is what the test is about.
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        let back = Instant::now();
        for name in &away {
            scene.fleet().proxy(name)?.refuse(false).await?;
        }
        for (proxy, rule) in &slow {
            proxy.remove(rule);
        }
        scene.succeeded(&second).await?;
        assert!(back.elapsed() < Duration::from_secs(20), "{:?}", back.elapsed());
        Ok(())
    })
}
