//! The grace before a prune: objects that left git stay, can be taken back, and are deleted after it.

use std::time::Duration;

use anyhow::{Context, Result};
use http::Method;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Namespace;
use kube::api::PostParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use starling_api::conditions::{self, READY};
use starling_api::{PendingDeletions, REQUESTED_AT, SyncGroup, SyncResource};
use starling_testkit::fleet::TIMEOUT;
use starling_testkit::{Change, Fault, Match, wait};

use crate::deleting::until_event;
use crate::operator_actions::say;
use crate::removals::is_waiting;
use crate::unnoticed::wait_with_a_pending_prune;
use crate::unnoticed_requests::message;
use crate::world::{Scene, config_map, shared_scene, sync_ready};

fn pending(sync: &SyncResource) -> Option<&PendingDeletions> {
    sync.status.as_ref()?.pending_deletions.as_ref()
}

async fn until_pending(scene: &Scene, count: u32) -> Result<PendingDeletions> {
    let is = |sync: &SyncResource| pending(sync).map_or(0, |pending| pending.count) == count;
    let sync = scene.sync("m1", "its deletions are pending", is).await?;
    Ok(pending(&sync).cloned().unwrap_or_default())
}

async fn uid(scene: &Scene, name: &str) -> Result<String> {
    let map = scene.map("m1", name).await?.context("the ConfigMap")?;
    map.uid().context("its UID")
}

fn drop_map(scene: &Scene, name: &str) -> Result<String> {
    let path = format!("app/{name}.yaml");
    Ok(scene.repo.commit_to("main", &[Change::Remove(&path)], "remove")?)
}

#[test]
fn an_object_that_left_git_stays_for_the_grace_and_can_be_taken_back() -> Result<()> {
    shared_scene("grace", async |scene| {
        let first = scene.commit(&[("a", "one"), ("b", "one"), ("c", "one")])?;
        scene.follow_main().await?;
        scene.select(&["m1"]).await?;
        scene.group(json!({}), json!({"pruneGrace": "1h"})).await?;
        scene.succeeded(&first).await?;
        let (b, c) = (uid(scene, "b").await?, uid(scene, "c").await?);

        drop_map(scene, "b")?;
        let second = drop_map(scene, "c")?;
        scene.succeeded(&second).await?;
        let both = until_pending(scene, 2).await?;
        assert!(
            both.objects.iter().any(|name| name.ends_with(&scene.own("b"))),
            "{both:?}"
        );
        assert_eq!(
            (uid(scene, "b").await?, uid(scene, "c").await?),
            (b.clone(), c.clone())
        );
        let ready = scene
            .sync("m1", "ready", |sync| sync_ready(sync).0 == "True")
            .await?;
        let conditions = ready.status.context("status")?.conditions;
        let message = &conditions
            .iter()
            .find(|one| one.type_ == "Ready")
            .context("Ready")?
            .message;
        assert!(message.contains("are deleted 1h after"), "{message}");
        let note = until_event(scene, &scene.sync_name("m1"), "DeletionPending").await?;
        assert!(note.contains("no longer in git"), "{note}");

        // A commit takes one back.
        let third = scene.commit(&[("a", "one"), ("c", "two")])?;
        scene.succeeded(&third).await?;
        until_pending(scene, 1).await?;
        assert_eq!(uid(scene, "c").await?, c);

        // A person keeps the other one, which is then nobody's.
        let said = say(scene, &["undelete", scene.name]).await?;
        assert!(said.contains(&scene.own("b")), "{said}");
        until_pending(scene, 0).await?;
        until_event(scene, &scene.sync_name("m1"), "ObjectsUndeleted").await?;
        let kept = scene.map("m1", "b").await?.context("b")?;
        assert_eq!(kept.uid().context("UID")?, b);
        assert!(!kept.labels().contains_key("starling.dev/owner"), "{kept:?}");
        scene.until_value("m1", "b", Some("one")).await?;

        // What leaves later is not kept by that, and a shorter grace is deleted.
        let fourth = drop_map(scene, "c")?;
        scene.succeeded(&fourth).await?;
        until_pending(scene, 1).await?;
        let entry =
            json!({"name": "app", "sourceRef": {"name": scene.name}, "path": "./app", "pruneGrace": "2s"});
        scene
            .fleet()
            .patch::<SyncGroup>(scene.name, json!({"spec": {"syncs": [entry]}}))
            .await?;
        scene.until_value("m1", "c", None).await?;
        until_pending(scene, 0).await?;
        assert_eq!(uid(scene, "b").await?, b);
        Ok(())
    })
}

/// Guards against an abort that holds what its release deletes for a second only.
#[test]
fn an_object_whose_grace_ends_in_an_aborted_rollout_stays_until_the_next_one() -> Result<()> {
    shared_scene("abort-grace", async |scene| {
        wait_with_a_pending_prune(scene).await?;
        let before = uid(scene, "b").await?;
        say(scene, &["abort", scene.name, "--reason", "b is needed"]).await?;
        let is_held = |sync: &SyncResource| message(sync).contains("was aborted");
        scene.sync("m1", "waits for a newer release", is_held).await?;
        assert_eq!(uid(scene, "b").await?, before);
        let why = say(scene, &["why", scene.name]).await?;
        assert!(why.contains("Aborted"), "{why}");

        // The next release lacks it, too.
        scene.commit(&[("a", "two")])?;
        scene.until_value("m1", "b", None).await?;
        scene.status("the canary waits", is_waiting).await?;
        scene.until_value("m2", "b", Some("one")).await
    })
}

/// The grace ends while the group is suspended: no release, so nothing else is held by that.
#[test]
fn an_object_whose_grace_ends_in_a_suspended_group_stays_until_it_is_resumed() -> Result<()> {
    shared_scene("suspended-grace", async |scene| {
        let first = scene.commit(&[("a", "one"), ("b", "one")])?;
        scene.follow_main().await?;
        scene.select(&["m1"]).await?;
        scene.group(json!({}), json!({"pruneGrace": "6s"})).await?;
        scene.succeeded(&first).await?;
        drop_map(scene, "b")?;
        let pending = until_pending(scene, 1).await?;
        suspend(scene, true).await?;

        let says = |sync: &SyncResource| {
            let status = sync.status.clone().unwrap_or_default();
            let ready = conditions::find(&status.conditions, READY);
            ready.is_some_and(|ready| ready.message.contains("is suspended"))
        };
        let first: Timestamp = pending.first_time.parse()?;
        let over = first.checked_add(SignedDuration::from_secs(9))?;
        wait::until(TIMEOUT, "the grace is over", async || Timestamp::now() > over).await?;
        // An attempt after the grace: a request compares everything.
        let requested = json!({"metadata": {"annotations": {REQUESTED_AT: "after the grace"}}});
        let name = scene.sync_name("m1");
        scene.fleet().patch::<SyncResource>(&name, requested).await?;
        let handled = |sync: &SyncResource| {
            let status = sync.status.clone().unwrap_or_default();
            status.last_handled_reconcile_at == "after the grace"
        };
        scene.sync("m1", "the request is handled", handled).await?;
        scene.sync("m1", "says what the prune waits for", says).await?;
        assert_eq!(scene.value("m1", "b").await?.as_deref(), Some("one"));

        suspend(scene, false).await?;
        scene.until_value("m1", "b", None).await?;
        until_pending(scene, 0).await?;
        Ok(())
    })
}

async fn suspend(scene: &Scene, suspend: bool) -> Result<()> {
    let patch = json!({"spec": {"suspend": suspend}});
    scene.fleet().patch::<SyncGroup>(scene.name, patch).await?;
    Ok(())
}

async fn create_namespace(scene: &Scene, name: &str) -> Result<()> {
    let namespaces = Api::<Namespace>::all(scene.fleet().member("m1").await?);
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some(name.to_owned());
    namespaces.create(&PostParams::default(), &namespace).await?;
    Ok(())
}

/// Whether the group is suspended, so that nothing is pruned.
fn is_stopped(sync: &SyncResource) -> bool {
    pending(sync).is_some_and(|pending| pending.waiting_for.contains("is suspended"))
}

/// A person stops the group after an attempt that failed: its retry would prune what the admitted attempt did not.
#[test]
fn a_retry_in_a_suspended_group_prunes_nothing_until_it_is_resumed() -> Result<()> {
    shared_scene("suspended-retry", async |scene| {
        let first = scene.commit(&[("a", "one"), ("b", "one")])?;
        scene.follow_main().await?;
        scene.select(&["m1"]).await?;
        scene.group(json!({}), json!({"retryInterval": "1s"})).await?;
        scene.succeeded(&first).await?;
        let missing = scene.own("missing");
        let elsewhere =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": missing}})
                .to_string();
        let changes = [
            Change::Remove("app/b.yaml"),
            Change::Write("app/c.yaml", elsewhere.as_bytes()),
        ];
        scene
            .repo
            .commit_to("main", &changes, "an object without its namespace")?;
        let fails = |sync: &SyncResource| sync.status.as_ref().is_some_and(|status| status.attempts > 0);
        scene.sync("m1", "an attempt failed", fails).await?;
        suspend(scene, true).await?;

        create_namespace(scene, &missing).await?;
        scene.sync("m1", "the retry prunes nothing", is_stopped).await?;
        assert_eq!(scene.value("m1", "b").await?.as_deref(), Some("one"));

        suspend(scene, false).await?;
        scene.until_value("m1", "b", None).await
    })
}

/// The first attempt of an admission may come long after it: here the entry waits for what it depends on. A person has
/// suspended the group since.
#[test]
fn a_first_attempt_in_a_suspended_group_prunes_nothing_until_it_is_resumed() -> Result<()> {
    shared_scene("suspended-first", async |scene| {
        let map = |name: &str, value| config_map(&scene.own(name), value);
        let (base, a, b) = (map("base", "one"), map("a", "one"), map("b", "one"));
        let first = scene.repo.commit_to(
            "main",
            &[
                Change::Write("base/base.yaml", base.as_bytes()),
                Change::Write("app/a.yaml", a.as_bytes()),
                Change::Write("app/b.yaml", b.as_bytes()),
            ],
            "one",
        )?;
        scene.follow_main().await?;
        scene.select(&["m1"]).await?;
        let entry = |name: &str, on: Value| {
            json!({"name": name, "sourceRef": {"name": scene.name}, "path": format!("./{name}"),
                "retryInterval": "1s", "dependsOn": on})
        };
        let syncs = [entry("base", json!([])), entry("app", json!([{"name": "base"}]))];
        let spec = json!({"clusterSelector": scene.selector(), "syncs": syncs});
        scene.fleet().put_group(scene.name, spec).await?;
        scene.succeeded(&first).await?;

        let missing = scene.own("missing");
        let elsewhere =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": missing}})
                .to_string();
        let a = map("a", "two");
        scene.repo.commit_to(
            "main",
            &[
                Change::Write("base/c.yaml", elsewhere.as_bytes()),
                Change::Write("app/a.yaml", a.as_bytes()),
                Change::Remove("app/b.yaml"),
            ],
            "the base fails",
        )?;
        let waits = |sync: &SyncResource| sync_ready(sync).1 == "DependencyNotReady";
        scene.sync("m1", "waits for the base", waits).await?;
        suspend(scene, true).await?;
        create_namespace(scene, &missing).await?;

        scene.sync("m1", "the attempt prunes nothing", is_stopped).await?;
        assert_eq!(scene.value("m1", "a").await?.as_deref(), Some("two"));
        assert_eq!(scene.value("m1", "b").await?.as_deref(), Some("one"));

        suspend(scene, false).await?;
        scene.until_value("m1", "b", None).await
    })
}

/// The grace ends on all clusters at about the same time. Guards against prunes on a whole fleet at once.
#[test]
fn objects_whose_grace_ends_together_are_deleted_in_slots() -> Result<()> {
    const CLUSTERS: [&str; 3] = ["m1", "m2", "m3"];
    shared_scene("slots-grace", async |scene| {
        let first = scene.commit(&[("a", "one"), ("b", "one")])?;
        scene.follow_main().await?;
        scene.select(&CLUSTERS).await?;
        let fields = json!({"pruneGrace": "8s", "retryInterval": "1s"});
        scene.group(json!({"maxConcurrency": 3}), fields).await?;
        scene.succeeded(&first).await?;
        for cluster in CLUSTERS {
            let delete = Match::method(Method::DELETE).path_ends_with(scene.own("b"));
            scene
                .proxy(cluster)?
                .on(delete, Fault::Latency(Duration::from_secs(4)));
        }
        drop_map(scene, "b")?;
        for cluster in CLUSTERS {
            let is_pending = |sync: &SyncResource| pending(sync).is_some();
            scene.sync(cluster, "its deletion is pending", is_pending).await?;
        }
        let one = json!({"spec": {"rolloutStrategy": {"maxConcurrency": 1}}});
        scene.fleet().patch::<SyncGroup>(scene.name, one).await?;
        let waits = |sync: &SyncResource| {
            let status = sync.status.clone().unwrap_or_default();
            let ready = conditions::find(&status.conditions, READY);
            ready.is_some_and(|ready| ready.message.contains("all slots (maxConcurrency)"))
        };
        wait::until(TIMEOUT, "some wait for a slot", async || {
            for cluster in CLUSTERS {
                let sync: Result<SyncResource> = scene.fleet().get(&scene.sync_name(cluster)).await;
                if sync.is_ok_and(|sync| waits(&sync)) {
                    return Ok(());
                }
            }
            Err("none does".to_owned())
        })
        .await?;
        let waiting_at = Timestamp::now();
        for cluster in CLUSTERS {
            scene.until_value(cluster, "b", None).await?;
        }
        the_journal_has_the_prunes(scene, waiting_at).await
    })
}

/// The plans that allowed the prunes are recorded, and keep the rules. So is why some of them had to wait.
async fn the_journal_has_the_prunes(scene: &Scene, waiting_at: Timestamp) -> Result<()> {
    let directory = scene.fleet().data_dir().to_string_lossy().into_owned();
    let journal = ["--data-dir", &directory];
    let verified = say(
        scene,
        &[&["verify", scene.name, "-o", "json"], &journal[..]].concat(),
    )
    .await?;
    let verified: Value = serde_json::from_str(&verified)?;
    assert_eq!(verified["journals"][0]["violations"], json!([]), "{verified:#}");
    let at = waiting_at.to_string();
    let why = say(scene, &[&["why", scene.name, "--at", &at], &journal[..]].concat()).await?;
    assert!(
        why.contains("objects that left git are not pruned: all slots are in use"),
        "{why}"
    );
    Ok(())
}
