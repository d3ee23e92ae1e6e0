//! Slots of a rollout, and members that do not respond.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::json;
use starling_api::{ADMITTED_AT, Cluster, RolloutPhase, SyncGroup, SyncResource};
use starling_testkit::fleet::TIMEOUT;
use starling_testkit::{Fault, Fleet, FleetOptions, GitRepo, Match, program, wait};

use crate::world::{MEMBERS, all, config_map, exclusive_scene, is_ready, sync_ready};

const DEAD: [&str; 4] = ["m1", "m2", "m3", "m4"];
const HEALTHY: &str = "m5";

fn returned(sync: &SyncResource) -> &str {
    sync.status
        .as_ref()
        .map_or("", |status| status.returned_admission.as_str())
}

fn admitted_at(sync: &SyncResource) -> Option<String> {
    sync.metadata.annotations.as_ref()?.get(ADMITTED_AT).cloned()
}

/// Four members die between their last probe and their admission. They are admitted before the healthy one, whose name
/// is the last, and give their slots back, since nothing was written to them. When they are back, they wait for a slot
/// like the others.
#[test]
fn tenant_dead_members_hold_no_slot_to_which_nothing_was_written() -> Result<()> {
    exclusive_scene("dead", async |scene| {
        let first = scene.commit(&[("settings", "v1")])?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        let strategy = json!({"maxConcurrency": 3, "progressDeadline": "1h"});
        scene.group(strategy, json!({})).await?;
        scene.succeeded(&first).await?;

        let mut cuts = Vec::new();
        for member in DEAD {
            cuts.push((member, scene.proxy(member)?.on(Match::any(), Fault::CutBefore)));
        }
        let began = Instant::now();
        let second = scene.commit(&[("settings", "v2")])?;
        scene.until_value(HEALTHY, "settings", Some("v2")).await?;
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "the healthy member waited for {:?}",
            began.elapsed()
        );
        let status = scene.succeeded(&second).await?;
        assert_eq!((status.clusters.updated, status.clusters.failed), (1, 0));
        let mut gave_back = BTreeSet::new();
        for member in DEAD {
            let sync: SyncResource = scene.fleet().get(&scene.sync_name(member)).await?;
            if sync.spec.revision.ends_with(&second) {
                assert_eq!(Some(returned(&sync)), admitted_at(&sync).as_deref(), "{sync:?}");
                gave_back.insert(member);
            }
        }
        assert!(!gave_back.is_empty(), "none was admitted, so none had a slot");

        // Back, but nothing starts in the group.
        let suspend = |yes: bool| json!({"spec": {"suspend": yes}});
        let suspended: SyncGroup = scene.fleet().patch(scene.name, suspend(true)).await?;
        scene
            .status("suspended", |status| {
                status.observed_generation >= suspended.metadata.generation
            })
            .await?;
        for (member, cut) in &cuts {
            scene.proxy(member)?.remove(cut);
            scene.world.look_at(member).await?;
        }
        for member in DEAD {
            let back = |cluster: &Cluster| is_ready(cluster);
            scene.fleet().until(member, "Ready", back).await?;
        }
        for member in &gave_back {
            let waits = |sync: &SyncResource| sync_ready(sync).1 == "AwaitingSlot";
            scene.sync(member, "waits for a slot", waits).await?;
        }
        assert_eq!(scene.values(&DEAD, "settings").await?, all("v1", 4));
        scene
            .fleet()
            .patch::<SyncGroup>(scene.name, suspend(false))
            .await?;
        scene
            .status("all updated", |status| status.clusters.updated == 5)
            .await?;
        assert_eq!(scene.values(&MEMBERS, "settings").await?, all("v2", 5));
        for member in DEAD {
            assert_eq!(
                scene.values_sent(member, "settings", &["v1", "v2"])?,
                ["v1", "v2"]
            );
        }
        Ok(())
    })
}

/// Guards against a slot that is free although a write of its admission may arrive: the connection ends after the first
/// write was sent, and no response tells what became of it.
#[test]
fn tenant_a_slot_to_which_something_was_written_stays_taken() -> Result<()> {
    exclusive_scene("slot-taken", async |scene| {
        let first = scene.commit(&[("settings", "v1")])?;
        scene.follow_main().await?;
        scene.select(&["m1", "m2"]).await?;
        let strategy = json!({"maxConcurrency": 1, "maxFailures": 1, "progressDeadline": "30s"});
        scene.group(strategy, json!({})).await?;
        scene.succeeded(&first).await?;

        // The member carries out the first write, which is that of the number to the inventory, and no response
        // arrives.
        let proxy = scene.proxy("m1")?;
        let writes = proxy.on(Match::writes(), Fault::CutAfter);
        let second = scene.commit(&[("settings", "v2")])?;
        wait::until(TIMEOUT, "m1 is written to", async || writes.fired() > 0).await?;
        proxy.on(Match::any(), Fault::CutBefore);
        scene.world.look_at("m1").await?;
        let lost = |cluster: &Cluster| !is_ready(cluster);
        scene.fleet().until("m1", "lost", lost).await?;
        let sync: SyncResource = scene.fleet().get(&scene.sync_name("m1")).await?;
        assert!(sync.spec.revision.ends_with(&second), "{sync:?}");
        // The slot is free at the deadline of the lost member, and not before.
        scene.until_value("m2", "settings", Some("v2")).await?;
        let sync: SyncResource = scene.fleet().get(&scene.sync_name("m1")).await?;
        assert_eq!(returned(&sync), "");
        let admitted: jiff::Timestamp = admitted_at(&sync).unwrap_or_default().parse()?;
        let next: SyncResource = scene.fleet().get(&scene.sync_name("m2")).await?;
        let next: jiff::Timestamp = admitted_at(&next).unwrap_or_default().parse()?;
        let waited = next.duration_since(admitted);
        assert!(waited >= jiff::SignedDuration::from_secs(30), "{waited:?}");
        Ok(())
    })
}

/// Two groups, each of which wants all of its clusters at once, and a limit of two clusters in flight
/// for both.
#[tokio::test(flavor = "multi_thread")]
async fn tenant_clusters_in_flight_are_limited_over_all_groups() -> Result<()> {
    const LIMIT: usize = 2;
    let fleet = Fleet::start(FleetOptions {
        members: 3,
        proxied: true,
        ..FleetOptions::default()
    })
    .await?;
    let repo = GitRepo::init()?;
    let commit = repo.commit(
        &[
            ("a/map.yaml", &config_map("a", "one")),
            ("b/map.yaml", &config_map("b", "one")),
        ],
        "one",
    )?;
    for name in ["m1", "m2", "m3"] {
        fleet.add_cluster(name, &[("fleet", "yes")]).await?;
        // So that a cluster is in flight long enough to be seen.
        let writes = Match::writes().path_contains("/configmaps/");
        fleet
            .proxy(name)?
            .on(writes, Fault::Latency(Duration::from_millis(700)));
    }
    fleet
        .put_source("source", &repo.url(), json!({"branch": "main"}))
        .await?;
    for name in ["a", "b"] {
        let entry = json!({"name": "app", "sourceRef": {"name": "source"}, "path": format!("./{name}")});
        let spec = json!({"clusterSelector": {"matchLabels": {"fleet": "yes"}}, "syncs": [entry],
            "rolloutStrategy": {"maxConcurrency": "100%"}});
        fleet.put_group(name, spec).await?;
    }
    let _controller = fleet.controller(program(), &["--max-clusters-in-flight", "2"])?;
    let observed = Mutex::new((0, BTreeSet::new()));
    wait::until(TIMEOUT, "both groups have succeeded", async || {
        let all = in_flight(&fleet).await.map_err(|error| format!("{error:#}"))?;
        let mut done = 0;
        for name in ["a", "b"] {
            let group: SyncGroup = fleet.get(name).await.map_err(|error| format!("{error:#}"))?;
            let rollout = group.status.and_then(|status| status.rollout);
            let rollout = rollout.unwrap_or_default();
            let reasons = rollout.blocked_by.into_iter().map(|blocker| blocker.reason);
            if let Ok(mut observed) = observed.lock() {
                observed.0 = all.len().max(observed.0);
                observed.1.extend(reasons);
            }
            let is_of_it = rollout.revisions.iter().any(|of| of.revision.ends_with(&commit));
            done += usize::from(is_of_it && rollout.phase == RolloutPhase::Succeeded);
        }
        if done == 2 {
            Ok(())
        } else {
            Err(format!("{done} done"))
        }
    })
    .await?;
    let (most, blocked) = observed
        .into_inner()
        .map_err(|error| anyhow::anyhow!("{error}"))?;
    assert_eq!(most, LIMIT, "clusters in flight");
    assert!(blocked.contains("InstallationLimit"), "{blocked:?}");
    Ok(())
}

/// Returns the clusters that were admitted and are not done, with their group.
async fn in_flight(fleet: &Fleet) -> Result<BTreeSet<(String, String)>> {
    let mut all = BTreeSet::new();
    for sync in fleet.syncs().await? {
        let group = sync.spec.group_ref.as_ref().map(|group| group.name.clone());
        let healthy = sync.status.as_ref().map(|status| &status.last_healthy_target);
        if !sync.spec.revision.is_empty() && healthy.is_none_or(String::is_empty) {
            all.insert((group.unwrap_or_default(), sync.spec.cluster_ref.name));
        }
    }
    Ok(all)
}
