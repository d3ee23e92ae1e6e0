//! Interrupted watches of the management cluster, and compacted history.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use http::Method;
use jiff::Timestamp;
use serde_json::json;
use starling_api::{Cluster, RolloutPhase};
use starling_testkit::fleet::{MANAGEMENT, TIMEOUT};
use starling_testkit::{FaultProxy, Fleet, FleetOptions, GitRepo, RequestInfo, program, wait};

use crate::world::{MEMBERS, all, config_map, exclusive_scene, is_ready};

fn since(proxy: &FaultProxy, from: Timestamp) -> Vec<RequestInfo> {
    let requests = proxy.requests().into_iter();
    requests.filter(|request| request.when >= from).collect()
}

/// The history of the management cluster is compacted while no watch runs, and a Cluster is deleted meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn t18_after_a_compaction_everything_is_listed_again_and_a_missed_delete_is_noticed() -> Result<()> {
    let fleet = Fleet::start(FleetOptions {
        members: 2,
        proxied: true,
        ..FleetOptions::default()
    })
    .await?;
    let repo = GitRepo::init()?;
    let first = repo.commit(&[("app/map.yaml", &config_map("relist", "v1"))], "first")?;
    for name in ["m1", "m2"] {
        fleet.add_cluster(name, &[]).await?;
    }
    let controller = fleet.controller(program(), &[])?;
    for name in ["m1", "m2"] {
        fleet.until::<Cluster>(name, "Ready", is_ready).await?;
    }
    fleet
        .put_source("s", &repo.url(), json!({"branch": "main"}))
        .await?;
    let entry = json!({"name": "app", "sourceRef": {"name": "s"}, "path": "./app"});
    let spec = json!({"clusterSelector": {}, "syncs": [entry]});
    fleet.put_group("g", spec).await?;
    fleet.rollout("g", &first, RolloutPhase::Succeeded).await?;

    let hub = fleet.proxy(MANAGEMENT)?;
    hub.refuse(true).await?;
    fleet.delete::<Cluster>("m2").await?;
    fleet.planes().compact().await?;
    // The restart drops the watch cache, and etcd has no history.
    fleet.plane(MANAGEMENT)?.restart().await?;
    let back = Timestamp::now();
    hub.refuse(false).await?;
    let noticed = fleet
        .group_status("g", "one cluster left", |status| status.clusters.total == 1)
        .await;
    noticed.with_context(|| controller.log_tail(60).unwrap_or_default())?;

    for kind in ["sources", "clusters", "syncs", "syncgroups"] {
        let lists = || -> Vec<_> {
            since(&hub, back)
                .into_iter()
                .filter(|request| request.method == Method::GET && !request.is_watch())
                .filter(|request| request.path.ends_with(&format!("/{kind}")) && request.status == Some(200))
                .collect()
        };
        // Each watch retries at its own time.
        wait::until(TIMEOUT, format!("{kind} are listed anew"), async || {
            !lists().is_empty()
        })
        .await?;
        let lists = lists();
        // Version 0 is served from the cache; without a version, the server reads etcd.
        let consistent = lists.iter().all(|request| {
            let mut pairs = request.query.split('&');
            !pairs.any(|pair| pair == "resourceVersion=0")
        });
        assert!(consistent, "{lists:?}");
    }
    // A commit still rolls out, and nothing else is written.
    let second = repo.commit(&[("app/map.yaml", &config_map("relist", "v2"))], "second")?;
    fleet.rollout("g", &second, RolloutPhase::Succeeded).await?;
    let writes = |member: &str| -> Result<usize> {
        let proxy = fleet.proxy(member)?;
        let writes = since(&proxy, back);
        Ok(writes
            .iter()
            .filter(|request| request.method != Method::GET)
            // Each attempt that writes records its number.
            .filter(|request| !request.path.contains("/starling-inventory-"))
            .count())
    };
    assert_eq!((writes("m1")?, writes("m2")?), (1, 0));
    let remaining = fleet.config_map("m2", "default", "relist").await?;
    assert_eq!(
        remaining.and_then(|data| data.get("value").cloned()).as_deref(),
        Some("v1")
    );
    let status_writes = since(&hub, back)
        .iter()
        .filter(|request| request.method == Method::PATCH)
        .count();
    assert!(
        status_writes < 60,
        "{status_writes} writes to the management cluster"
    );
    Ok(())
}

#[test]
fn t19_watches_that_are_cut_every_second_lose_and_repeat_nothing() -> Result<()> {
    exclusive_scene("cuts", async |scene| {
        let first = scene.commit(&[("settings", "v0")])?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        scene.group(json!({"maxConcurrency": "100%"}), json!({})).await?;
        scene.succeeded(&first).await?;
        let hub = scene.proxy(MANAGEMENT)?;
        let over = Arc::new(AtomicBool::new(false));
        let cut_task = tokio::spawn({
            let (hub, over) = (hub.clone(), over.clone());
            async move {
                let mut cuts = 0;
                let mut every = tokio::time::interval(Duration::from_secs(1));
                while !over.load(Ordering::SeqCst) {
                    every.tick().await;
                    hub.cut_connections();
                    cuts += 1;
                }
                cuts
            }
        });
        let values = ["v0", "v1", "v2", "v3", "v4", "v5"];
        for value in &values[1..] {
            let commit = scene.commit(&[("settings", value)])?;
            // Each rolls out while the watches are cut, some of them several times.
            wait::until(TIMEOUT, *value, async || {
                let values_now = scene.values(&MEMBERS, "settings").await.ok();
                (values_now == Some(all(value, 5)))
                    .then_some(())
                    .ok_or(values_now)
            })
            .await?;
            scene.succeeded(&commit).await?;
        }
        over.store(true, Ordering::SeqCst);
        assert!(cut_task.await? > 3, "watches were cut during the test");
        assert_eq!(scene.values(&MEMBERS, "settings").await?, all("v5", 5));
        for member in MEMBERS {
            // In order, and an object is sent once for each value.
            assert_eq!(
                scene.values_sent(member, "settings", &values)?,
                values,
                "{member}"
            );
            let path_end = format!("/configmaps/{}", scene.own("settings"));
            assert_eq!(scene.proxy(member)?.patches(&path_end), values.len(), "{member}");
        }
        Ok(())
    })
}
