//! The revision of a Source for each policy, observed on a member through a Sync without group.

use anyhow::Result;
use serde_json::{Value, json};
use starling_api::{REQUESTED_AT, Source, SyncResource};
use starling_testkit::Change;

use crate::world::{Scene, config_map, ready, shared_scene};

/// A Source with this policy, and a Sync of it on m1 that writes the ConfigMap of this name.
async fn follow(scene: &Scene, name: &str, reference: Value) -> Result<()> {
    let own = scene.own(name);
    scene
        .fleet()
        .put_source(&own, &scene.repo.url(), reference)
        .await?;
    let spec = json!({
        "clusterRef": {"name": "m1"},
        "sourceRef": {"name": own},
        "path": "./app",
        "substitute": {"NAME": own},
    });
    scene
        .fleet()
        .put::<SyncResource>(json!({"metadata": {"name": own}, "spec": spec}))
        .await
}

/// Commits a value to a branch; the ConfigMap's name is the Sync's.
fn commit(scene: &Scene, branch: &str, value: &str) -> Result<String> {
    let text = config_map("${NAME}", value);
    Ok(scene
        .repo
        .commit_to(branch, &[Change::Write("app/map.yaml", text.as_bytes())], value)?)
}

/// Waits until a Source has this condition, and returns its revision.
async fn until_condition(scene: &Scene, name: &str, status: &str, reason: &str) -> Result<String> {
    let source = scene
        .fleet()
        .until::<Source>(&scene.own(name), &format!("Ready={status} {reason}"), |source| {
            let conditions = source.status.as_ref().map(|s| s.conditions.as_slice());
            ready(conditions.unwrap_or_default()) == (status.to_owned(), reason.to_owned())
        })
        .await?;
    Ok(source.status.unwrap_or_default().revision)
}

/// Waits until a Source has this revision.
async fn until_revision(scene: &Scene, name: &str, revision: &str) -> Result<()> {
    let offered = |source: &Source| source.status.as_ref().is_some_and(|s| s.revision == revision);
    scene.fleet().until(&scene.own(name), revision, offered).await?;
    Ok(())
}

/// Requests a reconciliation of a Source, and waits until it is done. Returns the reason of Ready and the revision.
async fn reconciled(scene: &Scene, name: &str) -> Result<(String, String)> {
    let request = jiff::Timestamp::now().to_string();
    let annotation = json!({"metadata": {"annotations": {REQUESTED_AT: request}}});
    scene.fleet().patch::<Source>(name, annotation).await?;
    let handled = |source: &Source| {
        let status = source.status.as_ref();
        status.is_some_and(|status| status.last_handled_reconcile_at == request)
    };
    let source = scene
        .fleet()
        .until(name, "the reconciliation is done", handled)
        .await?;
    let status = source.status.unwrap_or_default();
    Ok((ready(&status.conditions).1, status.revision))
}

#[test]
fn branch_tag_and_commit_resolve_to_their_commit() -> Result<()> {
    shared_scene("refs", async |scene| {
        let first = commit(scene, "main", "first")?;
        scene.repo.tag("release", &first)?;
        let side = commit(scene, "side/branch", "side")?;
        follow(scene, "main", json!({"branch": "main"})).await?;
        follow(scene, "side", json!({"branch": "side/branch"})).await?;
        follow(scene, "tag", json!({"tag": "release"})).await?;
        follow(scene, "commit", json!({"commit": first})).await?;
        for (name, value) in [
            ("main", "first"),
            ("side", "side"),
            ("tag", "first"),
            ("commit", "first"),
        ] {
            scene.until_value("m1", name, Some(value)).await?;
        }
        until_revision(scene, "side", &format!("side/branch@sha1:{side}")).await?;
        until_revision(scene, "tag", &format!("release@sha1:{first}")).await?;

        let second = commit(scene, "main", "second")?;
        scene.until_value("m1", "main", Some("second")).await?;
        until_revision(scene, "main", &format!("main@sha1:{second}")).await?;
        // The others are unchanged: the tag and the commit have not moved.
        for (name, value) in [("side", "side"), ("tag", "first"), ("commit", "first")] {
            assert_eq!(scene.value("m1", name).await?.as_deref(), Some(value), "{name}");
        }
        Ok(())
    })
}

#[test]
fn a_semver_range_resolves_to_its_highest_tag_without_prereleases() -> Result<()> {
    shared_scene("semver", async |scene| {
        for (tag, value) in [("v1.2.0", "1.2.0"), ("v1.10.0", "1.10.0"), ("v2.0.0", "2.0.0")] {
            let made = commit(scene, "main", value)?;
            scene.repo.annotated_tag(tag, &made, "release")?;
        }
        follow(scene, "range", json!({"semver": ">=1.2.0 <2.0.0"})).await?;
        scene.until_value("m1", "range", Some("1.10.0")).await?;

        let outside = commit(scene, "main", "2.1.0")?;
        scene.repo.tag("v2.1.0", &outside)?;
        let prerelease = commit(scene, "main", "1.12.0-rc.1")?;
        scene.repo.tag("v1.12.0-rc.1", &prerelease)?;
        let inside = commit(scene, "main", "1.11.0")?;
        scene.repo.tag("v1.11.0", &inside)?;
        // The tag in the range was created last: when the Source has it, it has read the two others as well.
        until_revision(scene, "range", &format!("v1.11.0@sha1:{inside}")).await?;
        scene.until_value("m1", "range", Some("1.11.0")).await
    })
}

#[test]
fn a_deleted_ref_keeps_the_last_revision_and_is_reported() -> Result<()> {
    shared_scene("vanished", async |scene| {
        let made = commit(scene, "doomed", "one")?;
        follow(scene, "doomed", json!({"branch": "doomed"})).await?;
        scene.until_value("m1", "doomed", Some("one")).await?;
        let before = scene.map("m1", "doomed").await?;

        scene.repo.delete_ref("refs/heads/doomed")?;
        let kept = until_condition(scene, "doomed", "False", "RefNotFound").await?;
        assert_eq!(kept, format!("doomed@sha1:{made}"));
        // The Sync keeps applying the kept revision: it repairs a deleted object.
        let interval = json!({"spec": {"interval": "1s"}});
        scene
            .fleet()
            .patch::<SyncResource>(&scene.own("doomed"), interval)
            .await?;
        let applied = scene
            .fleet()
            .until::<SyncResource>(&scene.own("doomed"), "still at the kept revision", |sync| {
                let status = sync.status.clone().unwrap_or_default();
                status.observed_generation == sync.metadata.generation
                    && status.last_applied_target
                        == starling_core::target::of_sync(&kept, &sync.spec.template)
            })
            .await?;
        assert_eq!(applied.status.unwrap_or_default().last_applied_revision, kept);
        let after = scene.map("m1", "doomed").await?;
        let version = |map: &Option<k8s_openapi::api::core::v1::ConfigMap>| {
            map.as_ref().and_then(|map| map.metadata.resource_version.clone())
        };
        assert!(before.is_some());
        assert_eq!(version(&before), version(&after), "the member was written to");

        scene.repo.branch("doomed", &made)?;
        until_condition(scene, "doomed", "True", "Succeeded").await?;
        commit(scene, "doomed", "two")?;
        scene.until_value("m1", "doomed", Some("two")).await
    })
}

#[test]
fn a_moved_tag_is_not_followed_until_requested() -> Result<()> {
    shared_scene("moved", async |scene| {
        let first = commit(scene, "main", "one")?;
        scene.repo.tag("stable", &first)?;
        follow(scene, "tag", json!({"tag": "stable"})).await?;
        scene.until_value("m1", "tag", Some("one")).await?;
        let second = commit(scene, "main", "two")?;
        scene.repo.tag("stable", &second)?;
        let kept = until_condition(scene, "tag", "False", "TagMoved").await?;
        assert_eq!(kept, format!("stable@sha1:{first}"));
        assert_eq!(scene.value("m1", "tag").await?.as_deref(), Some("one"));
        let follow_it = json!({"spec": {"onRewrite": "Follow"}});
        scene
            .fleet()
            .patch::<Source>(&scene.own("tag"), follow_it)
            .await?;
        scene.until_value("m1", "tag", Some("two")).await?;
        until_revision(scene, "tag", &format!("stable@sha1:{second}")).await
    })
}

#[test]
fn a_branch_that_went_back_is_not_followed_until_requested() -> Result<()> {
    shared_scene("reset", async |scene| {
        let first = commit(scene, "main", "one")?;
        let second = commit(scene, "main", "two")?;
        follow(scene, "branch", json!({"branch": "main"})).await?;
        scene.until_value("m1", "branch", Some("two")).await?;

        scene.repo.force_reset("main", &first)?;
        let kept = until_condition(scene, "branch", "False", "BranchBehind").await?;
        assert_eq!(kept, format!("main@sha1:{second}"));
        assert_eq!(scene.value("m1", "branch").await?.as_deref(), Some("two"));

        // A rewrite is followed: neither commit is an ancestor of the other.
        commit(scene, "main", "three")?;
        scene.until_value("m1", "branch", Some("three")).await?;

        scene.repo.force_reset("main", &first)?;
        until_condition(scene, "branch", "False", "BranchBehind").await?;
        let accept = json!({"spec": {"allowDowngrade": true}});
        scene
            .fleet()
            .patch::<Source>(&scene.own("branch"), accept)
            .await?;
        scene.until_value("m1", "branch", Some("one")).await?;
        until_revision(scene, "branch", &format!("main@sha1:{first}")).await?;
        assert_eq!(
            scene.values_sent("m1", "branch", &["one", "two", "three"])?,
            ["two", "three", "one"]
        );
        Ok(())
    })
}

/// As the next one, after the history was rewritten: the head alternates between two commits of which neither is an
/// ancestor of the other, and each of them looked like a new rewrite.
#[test]
fn a_head_that_lags_behind_a_rewrite_is_not_a_new_rewrite() -> Result<()> {
    shared_scene("lagrewrite", async |scene| {
        let base = scene.commit(&[("map", "base")])?;
        let older = scene.commit(&[("map", "older")])?;
        let old = scene.commit(&[("map", "old")])?;
        scene.select(&["m1", "m2"]).await?;
        scene.follow_main().await?;
        scene.group(json!({"maxConcurrency": "100%"}), json!({})).await?;
        let rollout = scene.succeeded(&old).await?.rollout.unwrap_or_default().id;
        scene.repo.force_reset("main", &base)?;
        let new = scene.commit(&[("map", "new")])?;
        scene.succeeded(&new).await?;

        for _ in 0..3 {
            for (head, reason) in [
                (&old, "ReplacedHead"),
                (&new, "Succeeded"),
                (&older, "ReplacedHead"),
                (&new, "Succeeded"),
            ] {
                scene.repo.force_reset("main", head)?;
                let expected = (reason.to_owned(), format!("main@sha1:{new}"));
                assert_eq!(reconciled(scene, scene.name).await?, expected);
            }
        }

        let next = scene.commit(&[("map", "next")])?;
        let status = scene.succeeded(&next).await?;
        assert_eq!(status.rollout.unwrap_or_default().id, rollout + 2);
        for member in ["m1", "m2"] {
            let sent = scene.values_sent(member, "map", &["base", "older", "old", "new", "next"])?;
            assert_eq!(sent, ["old", "new", "next"], "{member}");
        }
        Ok(())
    })
}

/// Two servers answer to one name, and one of them lags: the head alternates between a commit and an ancestor of it.
#[test]
fn a_head_that_lags_causes_no_rollout_and_no_write() -> Result<()> {
    shared_scene("lagging", async |scene| {
        let old = scene.commit(&[("map", "old")])?;
        let new = scene.commit(&[("map", "new")])?;
        scene.select(&["m1", "m2"]).await?;
        scene.follow_main().await?;
        scene.group(json!({"maxConcurrency": "100%"}), json!({})).await?;
        let rollout = scene.succeeded(&new).await?.rollout.unwrap_or_default().id;

        for _ in 0..5 {
            for (head, reason) in [(&old, "BranchBehind"), (&new, "Succeeded")] {
                scene.repo.force_reset("main", head)?;
                let expected = (reason.to_owned(), format!("main@sha1:{new}"));
                assert_eq!(reconciled(scene, scene.name).await?, expected);
            }
        }

        let next = scene.commit(&[("map", "next")])?;
        let status = scene.succeeded(&next).await?;
        assert_eq!(status.rollout.unwrap_or_default().id, rollout + 1);
        for member in ["m1", "m2"] {
            let sent = scene.values_sent(member, "map", &["old", "new", "next"])?;
            assert_eq!(sent, ["new", "next"], "{member}");
        }
        Ok(())
    })
}
