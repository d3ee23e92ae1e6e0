//! `maxConcurrency` limits the clusters in flight.

use std::time::Duration;

use anyhow::Result;
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use starling_api::RolloutPhase;
use starling_testkit::Fault;

use crate::world::{MEMBERS, Scene, all, shared_scene};

/// The latency of each member for the ConfigMap; `m2` is slow.
fn delay(member: &str) -> Duration {
    Duration::from_millis(if member == "m2" { 2_000 } else { 400 })
}

#[test]
fn max_concurrency_is_never_exceeded() -> Result<()> {
    shared_scene("bounds", async |scene| {
        let first = scene.commit(&[("settings", "one")])?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        for member in MEMBERS {
            scene
                .proxy(member)?
                .on(scene.writes_of("settings"), Fault::Latency(delay(member)));
        }
        scene.group(json!({"maxConcurrency": 2}), json!({})).await?;
        let admitted = most_in_flight(scene, &first).await?;
        assert_eq!(admitted, 2, "first apply");
        let second = scene.commit(&[("settings", "two")])?;
        let admitted = most_in_flight(scene, &second).await?;
        assert_eq!(admitted, 2, "change");
        assert_eq!(scene.values(&MEMBERS, "settings").await?, all("two", 5));
        // As observed by the members: each write takes at least as long as the latency of its proxy.
        assert_eq!(most_at_once(&writes(scene)?), 2);
        Ok(())
    })
}

/// Returns the maximum number of Syncs that were admitted to a commit and had not applied it, observed until all have.
async fn most_in_flight(scene: &Scene, commit: &str) -> Result<usize> {
    let mut most = 0;
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        let syncs = scene.fleet().syncs().await?;
        let of_commit = syncs.iter().filter(|sync| {
            let group = sync.spec.group_ref.as_ref().map(|group| group.name.as_str());
            group == Some(scene.name) && sync.spec.revision.ends_with(commit)
        });
        let (mut working, mut done) = (0, 0);
        for sync in of_commit {
            let applied = sync.status.as_ref().map(|s| s.last_applied_revision.as_str());
            *(if applied == Some(&sync.spec.revision) {
                &mut done
            } else {
                &mut working
            }) += 1;
        }
        most = most.max(working);
        if done == MEMBERS.len() {
            scene
                .fleet()
                .rollout(scene.name, commit, RolloutPhase::Succeeded)
                .await?;
            return Ok(most);
        }
        anyhow::ensure!(
            tokio::time::Instant::now() < deadline,
            "{done} done, {working} working"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// Returns the start and earliest end of each write of the ConfigMap to any member.
fn writes(scene: &Scene) -> Result<Vec<(Timestamp, Timestamp)>> {
    let path_end = format!("/configmaps/{}", scene.own("settings"));
    let mut writes = Vec::new();
    for member in MEMBERS {
        let delay = SignedDuration::try_from(delay(member))?;
        for request in scene.proxy(member)?.requests() {
            if request.is_patch() && request.path.ends_with(&path_end) {
                writes.push((request.when, request.when + delay));
            }
        }
    }
    assert_eq!(writes.len(), 2 * MEMBERS.len(), "one write per member and commit");
    Ok(writes)
}

fn most_at_once(spans: &[(Timestamp, Timestamp)]) -> usize {
    let at = |moment: Timestamp| {
        spans
            .iter()
            .filter(|(from, to)| *from <= moment && moment < *to)
            .count()
    };
    spans.iter().map(|(from, _)| at(*from)).max().unwrap_or(0)
}
