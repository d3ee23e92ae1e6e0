//! Approvals of deletions are used up: what was approved once is held when it is to be deleted again.

use anyhow::{Context, Result};
use http::{Method, StatusCode};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use starling_api::conditions::{self, DELETION_HELD, MEMBERSHIP_HELD};
use starling_api::{
    APPROVE_DELETIONS, APPROVE_MEMBERSHIP, DeletionApproval, DeletionHold, REQUESTED_AT, RolloutPhase,
    SyncGroup, SyncGroupStatus, SyncResource,
};
use starling_testkit::fleet::TIMEOUT;
use starling_testkit::{Fault, Match, wait};

use crate::deleting::until_event;
use crate::deletion_approvals::{approve, membership_held};
use crate::operator_actions::say;
use crate::world::{Scene, config_map, exclusive_scene, shared_scene, sync_ready};

pub(crate) const CLUSTERS: [&str; 2] = ["m1", "m2"];

/// How a list is approved.
#[derive(Clone, Copy, PartialEq)]
enum By {
    Annotation(&'static str),
    Object,
}

impl By {
    async fn approve(self, scene: &Scene, digest: &str) -> Result<()> {
        match self {
            Self::Annotation(name) => approve(scene, name, digest).await,
            Self::Object => {
                let reason = ["--digest", digest, "--reason", "nobody needs it"];
                let command = [&["approve-deletions", "group", scene.name][..], &reason].concat();
                say(scene, &command).await.map(|_| ())
            }
        }
    }

    /// Takes the approval back, so that the next one is another.
    async fn take_back(self, scene: &Scene) -> Result<()> {
        match self {
            Self::Annotation(name) => {
                let patch = json!({"metadata": {"annotations": {name: null}}});
                scene.fleet().patch::<SyncGroup>(scene.name, patch).await?;
            }
            Self::Object => {}
        }
        Ok(())
    }
}

/// The group with one entry at a folder of the one commit. A folder is a release.
async fn roll_folder(scene: &Scene, folder: &str) -> Result<()> {
    let entry = json!({"name": "app", "sourceRef": {"name": scene.name}, "path": folder});
    let strategy = json!({"maxConcurrency": "100%", "maxFailures": 2});
    let spec = json!({"clusterSelector": scene.selector(), "syncs": [entry], "rolloutStrategy": strategy});
    scene.fleet().put_group(scene.name, spec).await
}

/// Waits until all clusters hold the current release.
async fn until_done(scene: &Scene) -> Result<()> {
    let group: SyncGroup = scene.fleet().get(scene.name).await?;
    let generation = group.metadata.generation;
    let done =
        |status: &SyncGroupStatus| status.observed_generation == generation && status.clusters.updated == 2;
    scene.status("done", done).await?;
    Ok(())
}

async fn held(scene: &Scene, member: &str) -> Result<DeletionHold> {
    let is_held = |sync: &SyncResource| sync_ready(sync).1 == "DeletionHeld";
    let sync = scene.sync(member, "held", is_held).await?;
    let status = sync.status.unwrap_or_default();
    status.held_deletions.context("held")
}

async fn namespaces(scene: &Scene, member: &str) -> Result<Api<Namespace>> {
    Ok(Api::all(scene.fleet().member(member).await?))
}

/// Waits until the namespace is being deleted, and removes it as the controller of namespaces does.
async fn until_namespace_goes(scene: &Scene, member: &str) -> Result<()> {
    let (api, name) = (namespaces(scene, member).await?, scene.own("ns"));
    wait::until(TIMEOUT, format!("the namespace goes from {member}"), async || {
        let found = api.get_opt(&name).await.map_err(|error| error.to_string())?;
        let Some(mut namespace) = found else {
            return Ok(());
        };
        if namespace.metadata.deletion_timestamp.is_none() {
            return Err("it stays".to_owned());
        }
        namespace.spec = None;
        let params = PostParams::default();
        let end = api.replace_subresource("finalize", &name, &params, &namespace);
        end.await.map_err(|error| error.to_string())?;
        Err("it is there".to_owned())
    })
    .await?;
    Ok(())
}

/// Waits until the deletion is held again, or the namespace goes.
async fn until_held_or_gone(scene: &Scene, member: &str) -> Result<()> {
    let api = namespaces(scene, member).await?;
    wait::until(TIMEOUT, "held or gone", async || {
        let sync: Result<SyncResource> = scene.fleet().get(&scene.sync_name(member)).await;
        let sync = sync.map_err(|error| format!("{error:#}"))?;
        let found = api.get_opt(&scene.own("ns")).await;
        let namespace = found.map_err(|error| error.to_string())?;
        let goes = namespace.is_none_or(|namespace| namespace.metadata.deletion_timestamp.is_some());
        let held = sync.status.is_some_and(|status| status.held_deletions.is_some());
        (held || goes).then_some(()).ok_or_else(|| "neither".to_owned())
    })
    .await?;
    Ok(())
}

/// The message of the condition of the group.
pub(crate) async fn message_of(scene: &Scene, type_: &str, part: &str) -> Result<String> {
    let found = |status: &SyncGroupStatus| {
        conditions::find(&status.conditions, type_).is_some_and(|held| held.message.contains(part))
    };
    let status = scene.status(&format!("{type_} names {part}"), found).await?;
    let condition = conditions::find(&status.conditions, type_).context("the condition")?;
    Ok(condition.message.clone())
}

/// Guards against an approval that deletes a namespace again, with what others have put into it since.
async fn namespace_that_returns(scene: &Scene, by: By) -> Result<()> {
    let namespace = format!(
        "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {}}}\n",
        scene.own("ns")
    );
    let map = config_map(&scene.own("map"), "one");
    scene.repo.commit(
        &[
            ("with/ns.yaml", &namespace),
            ("with/map.yaml", &map),
            ("without/map.yaml", &map),
        ],
        "two folders",
    )?;
    scene.follow_main().await?;
    scene.select(&CLUSTERS).await?;
    roll_folder(scene, "./with").await?;
    until_done(scene).await?;

    roll_folder(scene, "./without").await?;
    let first = held(scene, "m1").await?;
    assert_eq!(
        first.digest,
        held(scene, "m2").await?.digest,
        "one list on both clusters"
    );
    by.approve(scene, &first.digest).await?;
    for member in CLUSTERS {
        until_namespace_goes(scene, member).await?;
    }
    until_done(scene).await?;

    roll_folder(scene, "./with").await?;
    until_done(scene).await?;
    let mut uids = Vec::new();
    for member in CLUSTERS {
        let api: Api<ConfigMap> = Api::namespaced(scene.fleet().member(member).await?, &scene.own("ns"));
        let foreign = serde_json::from_value(json!({"metadata": {"name": "foreign"}}))?;
        api.create(&PostParams::default(), &foreign).await?;
        uids.push(
            namespaces(scene, member)
                .await?
                .get(&scene.own("ns"))
                .await?
                .uid(),
        );
    }
    roll_folder(scene, "./without").await?;
    for (member, uid) in CLUSTERS.into_iter().zip(&uids) {
        until_held_or_gone(scene, member).await?;
        let namespace = namespaces(scene, member).await?.get(&scene.own("ns")).await?;
        assert_eq!(
            (namespace.uid(), namespace.metadata.deletion_timestamp),
            (uid.clone(), None),
            "held on {member}"
        );
        assert_eq!(
            held(scene, member).await?.digest,
            first.digest,
            "the same list at the same release"
        );
    }
    message_of(scene, DELETION_HELD, "was used up at").await?;
    let sync = scene.sync("m1", "told", |_| true).await?;
    let status = sync.status.unwrap_or_default();
    let condition = conditions::find(&status.conditions, DELETION_HELD).context("DeletionHeld")?;
    assert!(
        condition.message.contains("was used up at"),
        "{}",
        condition.message
    );

    // Another approval approves it again.
    by.take_back(scene).await?;
    let forgotten = |sync: &SyncResource| {
        let status = sync.status.as_ref();
        let deletions = status.and_then(|status| status.deletions.as_ref());
        by == By::Object || deletions.is_none_or(|deletions| deletions.used.is_empty())
    };
    for member in CLUSTERS {
        scene
            .sync(member, "the approval is taken back", forgotten)
            .await?;
    }
    by.approve(scene, &first.digest).await?;
    for member in CLUSTERS {
        until_namespace_goes(scene, member).await?;
    }
    until_done(scene).await
}

#[test]
fn an_approved_namespace_that_returns_is_held_again_after_an_annotation() -> Result<()> {
    shared_scene("again", async |scene| {
        namespace_that_returns(scene, By::Annotation(APPROVE_DELETIONS)).await
    })
}

#[test]
fn an_approved_namespace_that_returns_is_held_again_after_an_object() -> Result<()> {
    shared_scene("anew", async |scene| {
        namespace_that_returns(scene, By::Object).await
    })
}

/// Waits until the value is gone from a cluster, or the group holds the clusters that leave.
async fn clusters_that_return(scene: &Scene, by: By) -> Result<()> {
    let first = scene.commit(&[("a", "one")])?;
    let all = ["m1", "m2", "m3"];
    scene.follow_main().await?;
    scene.select(&all).await?;
    scene.group(json!({}), json!({})).await?;
    let patch = json!({"spec": {"whenUnselected": "Delete", "unselectedGrace": "0s"}});
    scene.fleet().patch::<SyncGroup>(scene.name, patch).await?;
    scene.succeeded(&first).await?;
    let leave = async || -> Result<()> {
        for member in CLUSTERS {
            scene.label(member, scene.name, None).await?;
        }
        Ok(())
    };
    leave().await?;
    let digest = membership_held(scene).await?;
    by.approve(scene, &digest).await?;
    for member in CLUSTERS {
        scene.until_value(member, "a", None).await?;
    }
    scene
        .status("one is left", |status| status.clusters.total == 1)
        .await?;
    scene.select(&CLUSTERS).await?;
    let back = |status: &SyncGroupStatus| (status.clusters.total, status.clusters.updated) == (3, 3);
    scene.status("all are back", back).await?;
    let mut uids = Vec::new();
    for member in CLUSTERS {
        uids.push(scene.map(member, "a").await?.and_then(|map| map.uid()));
    }

    leave().await?;
    wait::until(TIMEOUT, "held or gone", async || {
        let group: Result<SyncGroup> = scene.fleet().get(scene.name).await;
        let status = group
            .map_err(|error| format!("{error:#}"))?
            .status
            .unwrap_or_default();
        let held = conditions::find(&status.conditions, MEMBERSHIP_HELD);
        let value = scene
            .value("m1", "a")
            .await
            .map_err(|error| format!("{error:#}"))?;
        let is_told = held.is_some_and(|held| held.message.contains("was used up at"));
        (is_told || value.is_none())
            .then_some(())
            .ok_or_else(|| format!("{:?}", held.map(|held| &held.message)))
    })
    .await?;
    for (member, uid) in CLUSTERS.into_iter().zip(uids) {
        let map = scene.map(member, "a").await?;
        assert_eq!(map.and_then(|map| map.uid()), uid, "the object of {member} stays");
    }
    Ok(())
}

#[test]
fn clusters_that_leave_again_are_held_again_after_an_annotation() -> Result<()> {
    shared_scene("depart-again", async |scene| {
        clusters_that_return(scene, By::Annotation(APPROVE_MEMBERSHIP)).await
    })
}

#[test]
fn clusters_that_leave_again_are_held_again_after_an_object() -> Result<()> {
    shared_scene("depart-anew", async |scene| {
        clusters_that_return(scene, By::Object).await
    })
}

/// A group that is created again from a manifest with the annotation of the last approval: nobody has approved what it
/// would delete.
#[test]
fn an_approval_that_a_new_group_brings_approves_nothing() -> Result<()> {
    shared_scene("brought", async |scene| {
        let first = scene.commit(&[("a", "one")])?;
        scene.follow_main().await?;
        scene.select(&["m1", "m2", "m3"]).await?;
        scene.group(json!({}), json!({})).await?;
        let deletes = json!({"spec": {"whenUnselected": "Delete", "unselectedGrace": "0s"}});
        scene.fleet().patch::<SyncGroup>(scene.name, deletes).await?;
        scene.succeeded(&first).await?;
        let uid = scene.map("m1", "a").await?.and_then(|map| map.uid());
        for member in CLUSTERS {
            scene.label(member, scene.name, None).await?;
        }
        let digest = membership_held(scene).await?;

        let group: SyncGroup = scene.fleet().get(scene.name).await?;
        scene.fleet().delete::<SyncGroup>(scene.name).await?;
        scene.select(&CLUSTERS).await?;
        let again: SyncGroup = serde_json::from_value(json!({"apiVersion": "starling.dev/v1alpha1",
            "kind": "SyncGroup", "spec": group.spec,
            "metadata": {"name": scene.name, "annotations": {APPROVE_MEMBERSHIP: digest}}}))?;
        let groups = scene.fleet().api::<SyncGroup>();
        wait::until(TIMEOUT, "the former group is gone", async || {
            groups.create(&PostParams::default(), &again).await
        })
        .await?;
        let rolled = |status: &SyncGroupStatus| (status.clusters.total, status.clusters.updated) == (3, 3);
        scene.status("rolled out again", rolled).await?;
        for member in CLUSTERS {
            scene.label(member, scene.name, None).await?;
        }
        assert_eq!(membership_held(scene).await?, digest);
        let map = scene.map("m1", "a").await?;
        assert_eq!(map.and_then(|map| map.uid()), uid, "the object stays");
        Ok(())
    })
}

fn entries(scene: &Scene, with_tools: bool) -> Value {
    let entry = |name: &str| {
        json!({"name": name, "sourceRef": {"name": scene.name}, "path": format!("./{name}"),
            "deletionPolicy": "Delete", "retryInterval": "1s"})
    };
    let mut entries = vec![entry("app")];
    entries.extend(with_tools.then(|| entry("tools")));
    json!(entries)
}

/// The Sync of a removed entry takes its record of used approvals with it, and the next one has the same name.
async fn entry_that_returns(scene: &Scene, by: By) -> Result<()> {
    let tool = config_map(&scene.own("tool"), "one");
    let settings = config_map(&scene.own("settings"), "one");
    scene.repo.commit(
        &[("tools/tool.yaml", &tool), ("app/settings.yaml", &settings)],
        "two entries",
    )?;
    scene.follow_main().await?;
    scene.select(&CLUSTERS).await?;
    let strategy = json!({"maxConcurrency": "100%"});
    let set = async |with_tools: bool| -> Result<()> {
        let spec = json!({"clusterSelector": scene.selector(), "syncs": entries(scene, with_tools),
            "rolloutStrategy": strategy});
        scene.fleet().put_group(scene.name, spec).await
    };
    let confirm = Patch::Merge(json!({"metadata": {"annotations": {"starling.dev/deletion": "Confirm"}}}));
    let name = |member: &str| format!("{}-tools-{member}", scene.name);
    let digest_of = async |member: &str| -> Result<String> {
        let is_held = |sync: &SyncResource| sync_ready(sync).1 == "DeletionHeld";
        let sync: SyncResource = scene.fleet().until(&name(member), "held", is_held).await?;
        let status = sync.status.unwrap_or_default();
        Ok(status.held_deletions.context("held")?.digest)
    };
    let protect = async || -> Result<()> {
        for member in CLUSTERS {
            scene.until_value(member, "tool", Some("one")).await?;
            let maps: Api<ConfigMap> = Api::namespaced(scene.fleet().member(member).await?, "default");
            maps.patch(&scene.own("tool"), &PatchParams::default(), &confirm)
                .await?;
        }
        Ok(())
    };
    set(true).await?;
    until_done(scene).await?;
    protect().await?;
    set(false).await?;
    let digest = digest_of("m1").await?;
    by.approve(scene, &digest).await?;
    until_done(scene).await?;
    for member in CLUSTERS {
        scene.until_value(member, "tool", None).await?;
    }

    set(true).await?;
    until_done(scene).await?;
    protect().await?;
    set(false).await?;
    for member in CLUSTERS {
        wait::until(TIMEOUT, "held or gone", async || {
            let gone = scene
                .value(member, "tool")
                .await
                .is_ok_and(|value| value.is_none());
            let sync: Result<SyncResource> = scene.fleet().get(&name(member)).await;
            let held = sync.is_ok_and(|sync| sync_ready(&sync).1 == "DeletionHeld");
            (held || gone).then_some(()).ok_or_else(|| "neither".to_owned())
        })
        .await?;
        assert_eq!(
            scene.value(member, "tool").await?.as_deref(),
            Some("one"),
            "{member}"
        );
        assert_eq!(digest_of(member).await?, digest);
    }
    Ok(())
}

#[test]
fn an_approval_is_of_no_sync_that_is_created_later() -> Result<()> {
    shared_scene("heir", async |scene| {
        entry_that_returns(scene, By::Annotation(APPROVE_DELETIONS)).await
    })?;
    shared_scene("heiress", async |scene| {
        entry_that_returns(scene, By::Object).await
    })
}

/// An approved deletion that is interrupted goes on without another approval, although its own is used up.
#[test]
fn an_interrupted_deletion_continues_under_its_used_approval() -> Result<()> {
    exclusive_scene("interrupted", async |scene| {
        let of = |number: usize| config_map(&scene.own(&format!("o{number:02}")), "one");
        let files: Vec<(String, String)> = (0..12)
            .map(|number| (format!("with/{number}.yaml"), of(number)))
            .collect();
        let mut files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (&**path, &**text)).collect();
        let kept = of(0);
        files.push(("without/0.yaml", &kept));
        scene.repo.commit(&files, "two folders")?;
        scene.follow_main().await?;
        scene.select(&CLUSTERS).await?;
        roll_folder(scene, "./with").await?;
        until_done(scene).await?;
        roll_folder(scene, "./without").await?;
        let digest = held(scene, "m1").await?.digest;
        let last = Match::method(Method::DELETE).path_ends_with(format!("/configmaps/{}", scene.own("o11")));
        let member = scene.proxy("m1")?;
        let stuck = member.on(last, Fault::status(StatusCode::SERVICE_UNAVAILABLE));
        By::Object.approve(scene, &digest).await?;
        scene.until_value("m1", "o10", None).await?;
        wait::until(TIMEOUT, "the last deletion fails", async || stuck.fired() > 0).await?;
        let is_used = |sync: &SyncResource| {
            let status = sync.status.as_ref();
            let deletions = status.and_then(|status| status.deletions.as_ref());
            deletions.is_some_and(|deletions| deletions.used.len() == 1 && deletions.grant.is_some())
        };
        scene.sync("m1", "used", is_used).await?;
        // The clusters share one approval, and delete one after another.
        scene.until_value("m2", "o11", None).await?;
        // The approval itself is not needed any more.
        for approval in scene
            .fleet()
            .api::<DeletionApproval>()
            .list(&Default::default())
            .await?
        {
            if approval.spec.group.as_deref() == Some(scene.name) {
                scene
                    .fleet()
                    .delete::<DeletionApproval>(&approval.name_any())
                    .await?;
            }
        }
        member.remove(&stuck);
        let request = json!({"metadata": {"annotations": {starling_api::REQUESTED_AT: "now"}}});
        scene.fleet().patch::<SyncGroup>(scene.name, request).await?;
        until_done(scene).await?;
        // The group allows what is left of a failed attempt after it has seen that the target is applied.
        scene.until_value("m1", "o11", None).await?;
        let has_ended = |sync: &SyncResource| {
            let status = sync.status.as_ref();
            let deletions = status.and_then(|status| status.deletions.as_ref());
            deletions.is_none_or(|deletions| deletions.grant.is_none())
        };
        scene.sync("m1", "the grant has ended", has_ended).await?;
        Ok(())
    })
}

/// A digest that names no list is told, on the group and on the Sync.
#[test]
fn a_wrong_digest_is_told() -> Result<()> {
    shared_scene("mistyped", async |scene| {
        let of = |number: usize| config_map(&scene.own(&format!("o{number:02}")), "one");
        let files: Vec<(String, String)> = (0..12)
            .map(|number| (format!("with/{number}.yaml"), of(number)))
            .collect();
        let mut files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (&**path, &**text)).collect();
        let kept = of(0);
        files.push(("without/0.yaml", &kept));
        scene.repo.commit(&files, "two folders")?;
        scene.follow_main().await?;
        scene.select(&CLUSTERS).await?;
        roll_folder(scene, "./with").await?;
        until_done(scene).await?;
        roll_folder(scene, "./without").await?;
        let digest = held(scene, "m1").await?.digest;
        let wrong = format!("sha256:{}", "ab".repeat(32));
        By::Object.approve(scene, &wrong).await?;
        let expected = format!("approves {wrong}, which is not the digest of this list");
        let message = message_of(scene, DELETION_HELD, &expected).await?;
        assert!(message.contains("DeletionApproval "), "{message}");
        let command = format!("starling approve-deletions group {} -n ", scene.name);
        assert!(
            message.contains(&command) && message.contains(&digest),
            "{message}"
        );
        By::Annotation(APPROVE_DELETIONS).approve(scene, &wrong).await?;
        message_of(
            scene,
            DELETION_HELD,
            "annotation starling.dev/approve-deletions approves",
        )
        .await?;

        let sync = scene.sync_name("m1");
        let command = [
            "approve-deletions",
            "sync",
            &sync,
            "--digest",
            &wrong,
            "--reason",
            "mistyped",
        ];
        say(scene, &command).await?;
        let is_told = |sync: &SyncResource| {
            let status = sync.status.as_ref();
            let found = status.and_then(|status| conditions::find(&status.conditions, DELETION_HELD));
            found.is_some_and(|held| held.message.contains(&expected))
        };
        scene.sync("m1", "told", is_told).await?;
        assert_eq!(scene.value("m1", "o11").await?.as_deref(), Some("one"));
        By::Object.approve(scene, &digest).await?;
        until_done(scene).await
    })
}

/// Guards against a mistaken digest that nobody is told of, because nothing is held at this time.
#[test]
fn an_approval_of_nothing_is_told() -> Result<()> {
    shared_scene("unasked", async |scene| {
        let commit = scene.commit(&[("a", "one")])?;
        scene.follow_main().await?;
        scene.select(&["m1"]).await?;
        scene.group(json!({}), json!({})).await?;
        scene.succeeded(&commit).await?;
        let wrong = |digit: &str| format!("sha256:{}", digit.repeat(64));
        By::Object.approve(scene, &wrong("1")).await?;
        let note = until_event(scene, scene.name, "NothingToApprove").await?;
        let part = format!(
            "approves {}, and no deletions with this digest are held",
            wrong("1")
        );
        assert!(
            note.starts_with("DeletionApproval ") && note.contains(&part),
            "{note}"
        );

        let sync = scene.sync_name("m1");
        let digest = wrong("2");
        let command = [
            "approve-deletions",
            "sync",
            &sync,
            "--digest",
            &digest,
            "--reason",
            "mistyped",
        ];
        say(scene, &command).await?;
        let note = until_event(scene, &sync, "NothingToApprove").await?;
        assert!(note.contains(&format!("approves {digest}")), "{note}");
        Ok(())
    })
}

/// Rolls out a release that adds the entry `tools` and fails on all clusters, and waits until the group has rolled back
/// to the one before. Returns the message of the condition that holds the removal of the entry.
pub(crate) async fn fail_with_an_added_entry(scene: &Scene) -> Result<String> {
    let settings = config_map(&scene.own("settings"), "one");
    let tool = config_map(&scene.own("tool"), "one");
    let broken = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {}, namespace: default}}\ndata: {{\"not a key\": x}}\n",
        scene.own("settings")
    );
    let files = [
        ("app/settings.yaml", &*settings),
        ("broken/settings.yaml", &broken),
        ("tools/tool.yaml", &tool),
    ];
    let commit = scene.repo.commit(&files, "three folders")?;
    scene.follow_main().await?;
    scene.select(&CLUSTERS).await?;
    let strategy = json!({"maxConcurrency": "100%", "maxFailures": 0, "onFailure": "Rollback"});
    let spec = |syncs: Value| json!({"clusterSelector": scene.selector(), "syncs": syncs, "rolloutStrategy": strategy});
    let of_group = spec(entries(scene, false));
    scene.fleet().put_group(scene.name, of_group).await?;
    scene.succeeded(&commit).await?;
    let mut failing = entries(scene, true);
    failing[0]["path"] = "./broken".into();
    scene.fleet().put_group(scene.name, spec(failing)).await?;
    let is_back = |status: &SyncGroupStatus| {
        let rollout = status.rollout.as_ref();
        rollout.is_some_and(|rollout| rollout.id == 3 && rollout.phase == RolloutPhase::Succeeded)
    };
    scene.status("rolled back", is_back).await?;
    for member in CLUSTERS {
        scene.until_value(member, "tool", Some("one")).await?;
    }
    message_of(scene, DELETION_HELD, "lacks entries that 2 clusters have").await
}

/// Guards against an automatic rollback that deletes what the failed release brought, without anybody who asked for it.
#[test]
fn an_automatic_rollback_keeps_the_entries_that_its_release_lacks() -> Result<()> {
    shared_scene("involuntary", async |scene| {
        let message = fail_with_an_added_entry(scene).await?;
        assert!(message.ends_with(": tools"), "{message}");
        let status = scene.status("there", |_| true).await?;
        assert!(status.rollout.is_some_and(|rollout| rollout.automatic));
        let digest = digest_in(&message)?;
        let why = say(scene, &["why", scene.name]).await?;
        let command = format!(
            "starling approve-deletions group {} --digest {digest}",
            scene.name
        );
        assert!(
            why.contains("AutomaticRollback") || why.contains("automatic rollback"),
            "{why}"
        );
        assert!(why.contains(&command), "{why}");
        for member in CLUSTERS {
            let sync: SyncResource = scene
                .fleet()
                .get(&format!("{}-tools-{member}", scene.name))
                .await?;
            assert_eq!(sync.metadata.deletion_timestamp, None);
        }

        By::Object.approve(scene, &digest).await?;
        for member in CLUSTERS {
            scene.until_value(member, "tool", None).await?;
            assert_eq!(scene.value(member, "settings").await?.as_deref(), Some("one"));
        }
        let released = |status: &SyncGroupStatus| {
            let phase = status.rollout.as_ref().map(|rollout| rollout.phase);
            phase == Some(RolloutPhase::Succeeded)
                && conditions::find(&status.conditions, DELETION_HELD).is_none()
        };
        scene.status("nothing is held", released).await?;
        Ok(())
    })
}

/// Guards against two Syncs of one group that write an object in turns: a commit renamed an entry and failed on the
/// second cluster, the rollback has the old entry, and the removal of the new one waits for a person.
#[test]
fn an_entry_that_a_rollback_lacks_leaves_the_objects_to_the_entries_of_its_release() -> Result<()> {
    shared_scene("left-behind", async |scene| {
        let old = config_map(&scene.own("settings"), "one");
        let new = config_map(&scene.own("settings"), "two");
        // Its namespace is on the first cluster only.
        let only = scene.own("only");
        let other = config_map(&scene.own("other"), "two").replace("default", &only);
        let files = [
            ("old/map.yaml", &*old),
            ("new/map.yaml", &new),
            ("new/other.yaml", &other),
        ];
        let commit = scene.repo.commit(&files, "two folders")?;
        let namespaces: Api<Namespace> = Api::all(scene.fleet().member("m1").await?);
        let namespace = serde_json::from_value(json!({"metadata": {"name": only}}))?;
        namespaces.create(&PostParams::default(), &namespace).await?;
        scene.follow_main().await?;
        scene.select(&CLUSTERS).await?;
        let strategy = json!({"maxConcurrency": 1, "maxFailures": 0, "onFailure": "Rollback"});
        let spec = |syncs: Value| json!({"clusterSelector": scene.selector(), "syncs": syncs, "rolloutStrategy": strategy});
        let entry = |name: &str| json!([{"name": name, "sourceRef": {"name": scene.name}, "path": format!("./{name}"), "interval": "1s"}]);
        scene.fleet().put_group(scene.name, spec(entry("old"))).await?;
        scene.succeeded(&commit).await?;
        scene.fleet().put_group(scene.name, spec(entry("new"))).await?;
        let is_back = |status: &SyncGroupStatus| {
            let rollout = status.rollout.as_ref();
            rollout.is_some_and(|rollout| rollout.id == 3 && rollout.phase == RolloutPhase::Succeeded)
        };
        scene.status("rolled back", is_back).await?;
        scene.until_value("m1", "settings", Some("one")).await?;
        let other = namespaced(scene, &only, "other").await?;
        assert!(other.is_some(), "the new entry was not applied on m1");
        let before = scene.map("m1", "settings").await?.context("the map")?;
        // Each of the two compares every object, and repairs what differs.
        for entry in ["new", "old", "new"] {
            let name = format!("{}-{entry}-m1", scene.name);
            let at = jiff::Timestamp::now().to_string();
            let request = json!({"metadata": {"annotations": {REQUESTED_AT: at}}});
            scene.fleet().patch::<SyncResource>(&name, request).await?;
            let is_handled = |sync: &SyncResource| {
                let status = sync.status.as_ref();
                status.is_some_and(|status| status.last_handled_reconcile_at == at)
            };
            scene
                .fleet()
                .until::<SyncResource>(&name, "compared", is_handled)
                .await?;
        }
        let after = scene.map("m1", "settings").await?.context("the map")?;
        let [before, after] = [before, after].map(|map| map.metadata.resource_version);
        assert_eq!(before, after, "written again");
        assert_eq!(scene.value("m1", "settings").await?.as_deref(), Some("one"));
        Ok(())
    })
}

async fn namespaced(scene: &Scene, namespace: &str, name: &str) -> Result<Option<ConfigMap>> {
    let maps: Api<ConfigMap> = Api::namespaced(scene.fleet().member("m1").await?, namespace);
    Ok(maps.get_opt(&scene.own(name)).await?)
}

pub(crate) fn digest_in(message: &str) -> Result<String> {
    let mut words = message.split_whitespace().skip_while(|word| *word != "--digest");
    words.nth(1).map(str::to_owned).context("a digest")
}
