//! A commit rolls out through a group; a newer one supersedes it; several Sources roll out together.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;
use starling_api::RolloutPhase;
use starling_testkit::{Fault, GitRepo};

use crate::world::{MEMBERS, UNREACHABLE, all, config_map, problems, ready, shared_scene};

#[test]
fn a_commit_rolls_through_the_group_and_the_next_one_follows() -> Result<()> {
    shared_scene("simple", async |scene| {
        let first = scene.commit(&[("settings", "one")])?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        scene.group(json!({}), json!({})).await?;
        let status = scene.succeeded(&first).await?;
        assert_eq!((status.clusters.total, status.clusters.updated), (5, 5));
        assert_eq!(scene.values(&MEMBERS, "settings").await?, all("one", 5));

        let second = scene.commit(&[("settings", "two")])?;
        let status = scene.succeeded(&second).await?;
        assert_eq!(status.clusters.updated, 5);
        assert_eq!(ready(&status.conditions).0, "True");
        assert_eq!(scene.values(&MEMBERS, "settings").await?, all("two", 5));
        for member in MEMBERS {
            let sync = scene.sync(member, "at the second commit", |_| true).await?;
            let applied = sync.status.unwrap_or_default().last_applied_revision;
            assert_eq!(applied, format!("main@sha1:{second}"), "{member}");
        }
        Ok(())
    })
}

#[test]
fn an_unreachable_cluster_is_skipped_and_is_not_a_failure() -> Result<()> {
    shared_scene("ghosted", async |scene| {
        let commit = scene.commit(&[("settings", "one")])?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        scene.select(&[UNREACHABLE]).await?;
        // No failure is allowed: if the unreachable cluster were a failure, nothing would start.
        scene.group(json!({"maxFailures": 0}), json!({})).await?;
        let status = scene.succeeded(&commit).await?;
        let counts = status.clusters;
        assert_eq!(
            (counts.total, counts.updated, counts.unreachable, counts.failed),
            (6, 5, 1, 0)
        );
        assert_eq!(ready(&status.conditions), ("True".into(), "Succeeded".into()));
        assert_eq!(problems(&status)[UNREACHABLE], "Unreachable");
        assert_eq!(scene.values(&MEMBERS, "settings").await?, all("one", 5));
        Ok(())
    })
}

#[test]
fn successive_pushes_end_at_the_newest_and_skip_superseded_ones() -> Result<()> {
    shared_scene("overtaken", async |scene| {
        let first = scene.commit(&[("settings", "v1")])?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        scene.group(json!({"maxConcurrency": 2}), json!({})).await?;
        scene.succeeded(&first).await?;

        let slow = scene.proxy("m1")?;
        let rule = slow.on(
            scene.writes_of("settings").body_contains("v2"),
            Fault::Latency(Duration::from_secs(6)),
        );
        let second = scene.commit(&[("settings", "v2")])?;
        scene
            .status("the second commit is rolling", |status| {
                status
                    .rollout
                    .as_ref()
                    .is_some_and(|r| r.revisions[0].revision.ends_with(&second))
            })
            .await?;
        starling_testkit::wait::until(Duration::from_secs(30), "m1 is being written to", async || {
            rule.fired() > 0
        })
        .await?;
        let third = scene.commit(&[("settings", "v3")])?;
        scene
            .status("the third commit is rolling", |status| {
                status
                    .rollout
                    .as_ref()
                    .is_some_and(|r| r.revisions[0].revision.ends_with(&third))
            })
            .await?;
        let fourth = scene.commit(&[("settings", "v4")])?;
        let status = scene.succeeded(&fourth).await?;

        assert_eq!(status.clusters.updated, 5);
        assert_eq!(status.rollout.context("a rollout")?.id, 4);
        assert_eq!(scene.values(&MEMBERS, "settings").await?, all("v4", 5));
        // m1 was applying the second while the third was superseded, so it never received the third.
        let pushed = ["v1", "v2", "v3", "v4"];
        assert_eq!(scene.values_sent("m1", "settings", &pushed)?, ["v1", "v2", "v4"]);
        for member in MEMBERS {
            let sent = scene.values_sent(member, "settings", &pushed)?;
            assert!(
                sent.is_sorted() && sent.last().is_some_and(|v| v == "v4"),
                "{member}: {sent:?}"
            );
        }
        Ok(())
    })
}

#[test]
fn two_sources_that_change_together_are_one_rollout() -> Result<()> {
    shared_scene("pair", async |scene| {
        let other = GitRepo::init()?;
        let other_map = |value: &str| config_map(&scene.own("base"), value);
        scene.commit(&[("settings", "one")])?;
        other.commit(&[("base/map.yaml", &other_map("one"))], "one")?;
        scene.follow_main().await?;
        let base = scene.own("base");
        scene
            .fleet()
            .put_source(&base, &other.url(), json!({"branch": "main"}))
            .await?;
        scene.select(&MEMBERS).await?;
        let spec = json!({"clusterSelector": scene.selector(), "syncs": [
            {"name": "base", "sourceRef": {"name": base}, "path": "./base"},
            {"name": "app", "sourceRef": {"name": scene.name}, "path": "./app"},
        ]});
        scene.fleet().put_group(scene.name, spec).await?;
        let first = scene
            .status("both applied", |status| {
                status
                    .rollout
                    .as_ref()
                    .is_some_and(|r| r.phase == RolloutPhase::Succeeded)
                    && status.clusters.updated == 5
            })
            .await?;
        for map in ["base", "settings"] {
            assert_eq!(scene.values(&MEMBERS, map).await?, all("one", 5), "{map}");
        }

        let app = scene.commit(&[("settings", "two")])?;
        let base = other.commit(&[("base/map.yaml", &other_map("two"))], "two")?;
        let status = scene.succeeded(&app).await?;
        let (before, rollout) = (
            first.rollout.context("a rollout")?,
            status.rollout.context("a rollout")?,
        );
        assert_eq!(rollout.id, before.id + 1);
        let revisions: Vec<_> = rollout
            .revisions
            .iter()
            .map(|r| (r.sync.as_str(), r.revision.clone()))
            .collect();
        let at = |commit: &str| format!("main@sha1:{commit}");
        assert_eq!(revisions, [("base", at(&base)), ("app", at(&app))]);
        for map in ["base", "settings"] {
            assert_eq!(scene.values(&MEMBERS, map).await?, all("two", 5), "{map}");
        }
        Ok(())
    })
}
