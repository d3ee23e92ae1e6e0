//! A Sync without group, and the suspension of each kind.

use anyhow::Result;
use serde_json::{Value, json};
use starling_api::{REQUESTED_AT, RolloutPhase, Source, SyncGroup, SyncResource};

use crate::world::{Scene, all, ready, shared_scene, sync_ready};

const MEMBERS: [&str; 2] = ["m1", "m2"];

fn suspend(yes: bool) -> Value {
    json!({"spec": {"suspend": yes}})
}

async fn by_hand(scene: &Scene) -> Result<String> {
    let spec = json!({"clusterRef": {"name": "m1"}, "sourceRef": {"name": scene.name}, "path": "./app"});
    let name = scene.own("hand");
    scene
        .fleet()
        .put::<SyncResource>(json!({"metadata": {"name": name}, "spec": spec}))
        .await?;
    Ok(name)
}

#[test]
fn a_sync_without_group_follows_its_source_and_applies_nothing_while_suspended() -> Result<()> {
    shared_scene("hand", async |scene| {
        scene.commit(&[("settings", "one")])?;
        scene.follow_main().await?;
        let sync = by_hand(scene).await?;
        scene.until_value("m1", "settings", Some("one")).await?;
        let second = scene.commit(&[("settings", "two")])?;
        scene.until_value("m1", "settings", Some("two")).await?;
        let applied = |sync: &SyncResource| {
            sync_ready(sync).0 == "True"
                && sync
                    .status
                    .as_ref()
                    .is_some_and(|s| s.last_applied_revision.ends_with(&second))
        };
        scene
            .fleet()
            .until(&sync, "Ready at the second commit", applied)
            .await?;
        assert_eq!(scene.value("m2", "settings").await?, None);

        scene.fleet().patch::<SyncResource>(&sync, suspend(true)).await?;
        let suspended = |sync: &SyncResource| sync_ready(sync).1 == "Suspended";
        scene.fleet().until(&sync, "Suspended", suspended).await?;
        let third = scene.commit(&[("settings", "three")])?;
        let moved = |source: &Source| {
            source
                .status
                .as_ref()
                .is_some_and(|s| s.revision.ends_with(&third))
        };
        scene
            .fleet()
            .until(scene.name, "at the third commit", moved)
            .await?;
        // The Sync is reconciled on a change of its Source and on request, and still applies nothing.
        request_reconcile::<SyncResource>(scene, &sync, "2026-01-01T00:00:00Z").await?;
        let reconciled = |sync: &SyncResource| {
            sync.status
                .as_ref()
                .is_some_and(|s| s.last_handled_reconcile_at == "2026-01-01T00:00:00Z")
        };
        scene.fleet().until(&sync, "answered", reconciled).await?;
        assert_eq!(scene.value("m1", "settings").await?.as_deref(), Some("two"));
        scene.fleet().patch::<SyncResource>(&sync, suspend(false)).await?;
        scene.until_value("m1", "settings", Some("three")).await
    })
}

async fn request_reconcile<K: starling_testkit::fleet::Kind>(
    scene: &Scene,
    name: &str,
    when: &str,
) -> Result<()> {
    let patch = json!({"metadata": {"annotations": {REQUESTED_AT: when}}});
    scene.fleet().patch::<K>(name, patch).await?;
    Ok(())
}

#[test]
fn a_suspended_source_keeps_its_revision_and_a_suspended_group_starts_nothing() -> Result<()> {
    shared_scene("paused", async |scene| {
        let first = scene.commit(&[("settings", "one")])?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        scene.group(json!({}), json!({})).await?;
        scene.succeeded(&first).await?;

        scene.fleet().patch::<Source>(scene.name, suspend(true)).await?;
        let suspended = |source: &Source| {
            source
                .status
                .as_ref()
                .is_some_and(|s| ready(&s.conditions) == ("Unknown".into(), "Suspended".into()))
        };
        scene.fleet().until(scene.name, "Suspended", suspended).await?;
        let second = scene.commit(&[("settings", "two")])?;
        request_reconcile::<Source>(scene, scene.name, "2026-01-01T00:00:01Z").await?;
        let reconciled = |source: &Source| {
            source
                .status
                .as_ref()
                .is_some_and(|s| s.last_handled_reconcile_at == "2026-01-01T00:00:01Z")
        };
        let source = scene.fleet().until(scene.name, "answered", reconciled).await?;
        assert!(source.status.unwrap_or_default().revision.ends_with(&first));

        // The group is suspended before the Source is resumed: the new revision is known, and does not roll out.
        scene
            .fleet()
            .patch::<SyncGroup>(scene.name, suspend(true))
            .await?;
        scene.fleet().patch::<Source>(scene.name, suspend(false)).await?;
        let status = scene
            .fleet()
            .rollout(scene.name, &second, RolloutPhase::Paused)
            .await?;
        assert_eq!(status.clusters.pending, 2);
        assert_eq!(scene.values(&MEMBERS, "settings").await?, all("one", 2));

        scene
            .fleet()
            .patch::<SyncGroup>(scene.name, suspend(false))
            .await?;
        scene.succeeded(&second).await?;
        assert_eq!(scene.values(&MEMBERS, "settings").await?, all("two", 2));
        Ok(())
    })
}

#[test]
fn only_the_suspended_sync_of_a_group_is_on_hold_and_its_suspension_is_not_reset() -> Result<()> {
    shared_scene("single", async |scene| {
        let first = scene.commit(&[("settings", "one")])?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        scene.group(json!({}), json!({})).await?;
        scene.succeeded(&first).await?;
        let sync = scene.sync_name("m2");
        scene.fleet().patch::<SyncResource>(&sync, suspend(true)).await?;
        let suspended = |sync: &SyncResource| sync_ready(sync).1 == "Suspended";
        scene.fleet().until(&sync, "Suspended", suspended).await?;
        let second = scene.commit(&[("settings", "two")])?;
        scene
            .status("one updated, one held", |status| {
                (status.clusters.updated, status.clusters.held) == (1, 1)
                    && status
                        .rollout
                        .as_ref()
                        .is_some_and(|r| r.revisions[0].revision.ends_with(&second))
            })
            .await?;
        assert_eq!(scene.value("m1", "settings").await?.as_deref(), Some("two"));
        assert_eq!(scene.value("m2", "settings").await?.as_deref(), Some("one"));
        let held: SyncResource = scene.fleet().get(&sync).await?;
        assert!(held.spec.template.suspend);
        scene.fleet().patch::<SyncResource>(&sync, suspend(false)).await?;
        scene.succeeded(&second).await?;
        assert_eq!(scene.value("m2", "settings").await?.as_deref(), Some("two"));
        Ok(())
    })
}
