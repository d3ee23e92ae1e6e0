//! Changes that need an approval: large deletions, and many clusters that leave together.

use anyhow::{Context, Result};
use http::{Method, StatusCode};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, PersistentVolumeClaim};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use starling_api::conditions::{self, DELETION_HELD, MEMBERSHIP_HELD};
use starling_api::{
    APPROVE_DELETIONS, APPROVE_MEMBERSHIP, Cluster, RolloutPhase, SyncGroup, SyncGroupStatus, SyncResource,
};
use starling_testkit::fleet::TIMEOUT;
use starling_testkit::{Change, Fault, Match, wait};

use crate::deleting::until_event;
use crate::world::{
    MEMBERS as ALL, Scene, UNREACHABLE, all, blocked_by, exclusive_scene, problems, ready, shared_scene,
    sync_ready,
};

const MEMBERS: [&str; 2] = ["m1", "m2"];

/// The names `o000`, `o001`, …
fn names(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|number| format!("o{number:03}")).collect()
}

/// Commits ConfigMaps `keep` with a value, and removes those of `drop`.
fn commit(scene: &Scene, keep: &[String], drop: &[String], value: &str) -> Result<String> {
    let path = |name: &String| format!("app/{name}.yaml");
    let kept: Vec<(String, String)> = keep
        .iter()
        .map(|name| {
            let text = crate::world::config_map(&scene.own(name), value);
            (path(name), text)
        })
        .collect();
    let dropped: Vec<String> = drop.iter().map(path).collect();
    let writes = kept
        .iter()
        .map(|(path, text)| Change::Write(path, text.as_bytes()));
    let changes: Vec<Change<'_>> = writes
        .chain(dropped.iter().map(|path| Change::Remove(path)))
        .collect();
    Ok(scene.repo.commit_to("main", &changes, "change")?)
}

/// Counts the ConfigMaps of this scene with this value on a member.
async fn count(scene: &Scene, member: &str, value: &str) -> Result<usize> {
    let api: Api<ConfigMap> = Api::namespaced(scene.fleet().member(member).await?, "default");
    let maps = api.list(&ListParams::default()).await?;
    let mark = scene.own("o");
    Ok(maps
        .iter()
        .filter(|map| map.name_any().starts_with(&mark))
        .filter(|map| {
            map.data
                .as_ref()
                .and_then(|data| data.get("value"))
                .map(String::as_str)
                == Some(value)
        })
        .count())
}

/// Counts the delete requests of this scene to a member.
fn deletes(scene: &Scene, member: &str) -> Result<usize> {
    let mark = scene.own("");
    let requests = scene.proxy(member)?.requests();
    let is_of_scene = |path: &str| {
        path.rsplit('/')
            .next()
            .is_some_and(|name| name.starts_with(&mark))
    };
    Ok(requests
        .iter()
        .filter(|request| request.method == Method::DELETE && is_of_scene(&request.path))
        .count())
}

/// Waits until deletions at this commit need an approval on all members, and returns the group's status.
async fn until_held(scene: &Scene, commit: &str) -> Result<SyncGroupStatus> {
    let held = |status: &SyncGroupStatus| {
        let rollout = status.rollout.as_ref();
        rollout.is_some_and(|r| r.revisions[0].revision.ends_with(commit))
            && status.clusters.failed == 2
            && conditions::find(&status.conditions, DELETION_HELD).is_some()
    };
    let status = scene.status("held everywhere", held).await?;
    for member in MEMBERS {
        assert_eq!(problems(&status)[member], "DeletionHeld", "{:?}", status.problems);
        let sync = scene.sync(member, "held", |_| true).await?;
        assert_eq!(sync_ready(&sync), ("False".into(), "DeletionHeld".into()));
        let found = sync.status.unwrap_or_default().conditions;
        let held = conditions::find(&found, DELETION_HELD).context("DeletionHeld")?;
        assert_eq!(held.status, "True");
    }
    Ok(status)
}

/// Returns the digest in all Syncs of the group.
async fn digest(scene: &Scene) -> Result<String> {
    let mut digests = Vec::new();
    for member in MEMBERS {
        let sync = scene.sync(member, "held", |_| true).await?;
        let held = sync.status.unwrap_or_default().held_deletions.context("held")?;
        digests.push(held.digest);
    }
    assert_eq!(digests[0], digests[1], "one approval is to be enough");
    Ok(digests.remove(0))
}

pub(crate) async fn approve(scene: &Scene, annotation: &str, digest: &str) -> Result<()> {
    let patch = json!({"metadata": {"annotations": {annotation: digest}}});
    scene.fleet().patch::<SyncGroup>(scene.name, patch).await?;
    Ok(())
}

#[test]
fn t31_a_large_prune_waits_for_an_approval_of_this_exact_list() -> Result<()> {
    shared_scene("budget", async |scene| {
        let first = commit(scene, &names(0..20), &[], "one")?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        scene.group(json!({}), json!({})).await?;
        scene.succeeded(&first).await?;
        for member in MEMBERS {
            assert_eq!(count(scene, member, "one").await?, 20);
        }

        // Eleven of twenty are removed. The same commit changes the others, and these changes are applied.
        let second = commit(scene, &names(0..9), &names(9..20), "two")?;
        let status = until_held(scene, &second).await?;
        let early = digest(scene).await?;
        let group = conditions::find(&status.conditions, DELETION_HELD).context("DeletionHeld")?;
        assert!(group.message.contains(&early), "{}", group.message);
        assert!(group.message.contains(&scene.own("o009")), "{}", group.message);
        for name in [scene.name, &scene.sync_name("m1")] {
            let note = until_event(scene, name, "DeletionHeld").await?;
            assert!(note.contains(&early), "{note}");
        }
        let sync = scene.sync("m1", "held", |_| true).await?;
        let held = sync.status.unwrap_or_default().held_deletions.context("held")?;
        assert_eq!((held.deletions, held.of, held.objects.len()), (11, 20, 10));
        for member in MEMBERS {
            assert_eq!(count(scene, member, "two").await?, 9);
            assert_eq!(count(scene, member, "one").await?, 11);
        }

        // A newer commit removes one more: the approval of the older list is invalid.
        let third = commit(scene, &names(0..8), &names(8..9), "three")?;
        until_held(scene, &third).await?;
        let new_digest = digest(scene).await?;
        assert_ne!(early, new_digest);
        approve(scene, APPROVE_DELETIONS, &early).await?;
        let requested =
            json!({"metadata": {"annotations": {starling_api::REQUESTED_AT: "2026-01-01T00:00:00Z"}}});
        for member in MEMBERS {
            let name = scene.sync_name(member);
            scene
                .fleet()
                .patch::<SyncResource>(&name, requested.clone())
                .await?;
            let reconciled = |sync: &SyncResource| {
                let status = sync.status.as_ref();
                status.is_some_and(|s| s.last_handled_reconcile_at == "2026-01-01T00:00:00Z")
            };
            scene.sync(member, "looked at again", reconciled).await?;
            assert_eq!(deletes(scene, member)?, 0);
        }
        assert_eq!(digest(scene).await?, new_digest);

        approve(scene, APPROVE_DELETIONS, &new_digest).await?;
        let status = scene.succeeded(&third).await?;
        assert!(conditions::find(&status.conditions, DELETION_HELD).is_none());
        for member in MEMBERS {
            assert_eq!(count(scene, member, "three").await?, 8);
            assert_eq!(
                count(scene, member, "one").await? + count(scene, member, "two").await?,
                0
            );
            let sync = scene
                .sync(member, "done", |sync| sync_ready(sync).0 == "True")
                .await?;
            assert_eq!(sync.status.unwrap_or_default().held_deletions, None);
        }
        let note = until_event(scene, &scene.sync_name("m1"), "ObjectsDeleted").await?;
        assert!(note.starts_with("pruned 12 objects"), "{note}");
        Ok(())
    })
}

/// A Sync without a group is approved with an annotation on the Sync.
#[test]
fn t31_a_sync_without_group_is_approved_by_its_own_annotation() -> Result<()> {
    shared_scene("lone-budget", async |scene| {
        commit(scene, &names(0..12), &[], "one")?;
        scene.follow_main().await?;
        let name = scene.own("sync");
        let spec = json!({"clusterRef": {"name": "m1"}, "sourceRef": {"name": scene.name}, "path": "./app"});
        scene
            .fleet()
            .put::<SyncResource>(json!({"metadata": {"name": name}, "spec": spec}))
            .await?;
        let done = |sync: &SyncResource| sync_ready(sync).0 == "True";
        scene.fleet().until(&name, "Ready", done).await?;
        commit(scene, &names(0..2), &names(2..12), "two")?;
        let held = |sync: &SyncResource| sync_ready(sync).1 == "DeletionHeld";
        let sync: SyncResource = scene.fleet().until(&name, "held", held).await?;
        let digest = sync
            .status
            .unwrap_or_default()
            .held_deletions
            .context("held")?
            .digest;
        assert_eq!(count(scene, "m1", "one").await?, 10);
        let patch = json!({"metadata": {"annotations": {APPROVE_DELETIONS: digest}}});
        scene.fleet().patch::<SyncResource>(&name, patch).await?;
        scene.fleet().until(&name, "Ready again", done).await?;
        assert_eq!(
            (count(scene, "m1", "one").await?, count(scene, "m1", "two").await?),
            (0, 2)
        );
        Ok(())
    })
}

/// Rendered objects are kept in step while deletions wait.
#[test]
fn t31_drift_is_repaired_while_deletions_wait() -> Result<()> {
    shared_scene("waiting", async |scene| {
        let first = commit(scene, &names(0..12), &[], "one")?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        scene.group(json!({}), json!({"interval": "2s"})).await?;
        scene.succeeded(&first).await?;
        let second = commit(scene, &names(0..1), &names(1..12), "two")?;
        until_held(scene, &second).await?;
        let api: Api<ConfigMap> = Api::namespaced(scene.fleet().member("m1").await?, "default");
        let patch = kube::api::Patch::Merge(json!({"data": {"value": "by hand"}}));
        api.patch(&scene.own("o000"), &Default::default(), &patch).await?;
        scene.until_value("m1", "o000", Some("two")).await?;
        assert_eq!(count(scene, "m1", "one").await?, 11);
        assert_eq!(deletes(scene, "m1")?, 0);
        Ok(())
    })
}

#[test]
fn t31_deletions_of_a_namespace_a_definition_and_a_volume_each_need_an_approval() -> Result<()> {
    shared_scene("takers", async |scene| {
        let namespace = format!(
            "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {}}}\n",
            scene.own("ns")
        );
        let claim = format!(
            "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {}, namespace: default}}\nspec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 1Gi}}}}}}\n",
            scene.own("claim")
        );
        let definition = "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: takers.example.test}\nspec:\n  group: example.test\n  scope: Namespaced\n  names: {kind: Taker, plural: takers}\n  versions:\n  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}\n";
        scene.repo.commit(
            &[
                ("app/ns.yaml", namespace.as_str()),
                ("app/claim.yaml", claim.as_str()),
                ("app/definition.yaml", definition),
            ],
            "three that delete dependent objects",
        )?;
        let first = commit(scene, &names(0..3), &[], "one")?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        // No controller binds the claim here, so it would never be healthy.
        scene.group(json!({}), json!({"wait": false})).await?;
        scene.succeeded(&first).await?;
        let member = scene.fleet().member("m1").await?;
        for (file, kind) in [
            ("app/ns.yaml", "Namespace"),
            ("app/claim.yaml", "PersistentVolumeClaim"),
            ("app/definition.yaml", "CustomResourceDefinition"),
        ] {
            let commit = scene.repo.remove(&[file], "remove")?;
            let status = until_held(scene, &commit).await?;
            let held = conditions::find(&status.conditions, DELETION_HELD).context("DeletionHeld")?;
            assert!(held.message.contains(kind), "{}", held.message);
            // All three still exist.
            Api::<Namespace>::all(member.clone())
                .get(&scene.own("ns"))
                .await?;
            let claims: Api<PersistentVolumeClaim> = Api::namespaced(member.clone(), "default");
            claims.get(&scene.own("claim")).await?;
            Api::<CustomResourceDefinition>::all(member.clone())
                .get("takers.example.test")
                .await?;
        }
        assert_eq!(deletes(scene, "m1")?, 0);
        approve(scene, APPROVE_DELETIONS, &digest(scene).await?).await?;
        // The definition and the namespace wait for the claim, whose finalizer no controller removes here.
        for name in MEMBERS {
            release_claim(scene, name).await?;
        }
        scene
            .status("all updated", |status| status.clusters.updated == 2)
            .await?;
        let claims: Api<PersistentVolumeClaim> = Api::namespaced(member.clone(), "default");
        assert!(claims.get_opt(&scene.own("claim")).await?.is_none());
        let namespace = Api::<Namespace>::all(member).get_opt(&scene.own("ns")).await?;
        assert!(namespace.is_none_or(|namespace| namespace.metadata.deletion_timestamp.is_some()));
        assert_eq!(count(scene, "m1", "one").await?, 3);
        Ok(())
    })
}

/// Waits until the claim is being deleted, and removes its finalizers as the controller of claims does.
async fn release_claim(scene: &Scene, member: &str) -> Result<()> {
    let member = scene.fleet().member(member).await?;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(member, "default");
    let name = scene.own("claim");
    wait::until(TIMEOUT, "the claim is being deleted", async || {
        let claim = claims.get_opt(&name).await.ok().flatten();
        claim.is_none_or(|claim| claim.metadata.deletion_timestamp.is_some())
    })
    .await?;
    let release = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    match claims.patch(&name, &PatchParams::default(), &release).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[test]
fn t28_an_empty_render_prunes_two_hundred_objects_only_if_allowed_and_approved() -> Result<()> {
    shared_scene("hollow", async |scene| {
        scene
            .repo
            .commit(&[("app/README.md", "What runs here.\n")], "text")?;
        let first = commit(scene, &names(0..200), &[], "one")?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        scene.group(json!({}), json!({})).await?;
        scene.succeeded(&first).await?;
        let kustomization = Change::Write("app/kustomization.yaml", b"resources: []\n");
        let removed: Vec<String> = names(0..200)
            .iter()
            .map(|name| format!("app/{name}.yaml"))
            .collect();
        let mut changes: Vec<Change<'_>> = removed.iter().map(|path| Change::Remove(path)).collect();
        changes.push(kustomization);
        scene.repo.commit_to("main", &changes, "empty")?;
        let status = scene
            .status("refused everywhere", |status| status.clusters.failed == 2)
            .await?;
        for member in MEMBERS {
            assert_eq!(problems(&status)[member], "EmptyRender", "{:?}", status.problems);
            assert_eq!(count(scene, member, "one").await?, 200);
        }

        scene.group(json!({}), json!({"allowEmpty": true})).await?;
        let held = |status: &SyncGroupStatus| conditions::find(&status.conditions, DELETION_HELD).is_some();
        scene.status("held", held).await?;
        for member in MEMBERS {
            let sync = scene
                .sync(member, "held", |sync| sync_ready(sync).1 == "DeletionHeld")
                .await?;
            let held = sync.status.unwrap_or_default().held_deletions.context("held")?;
            assert_eq!((held.deletions, held.of), (200, 200));
            assert_eq!(count(scene, member, "one").await?, 200);
            assert_eq!(deletes(scene, member)?, 0);
        }
        approve(scene, APPROVE_DELETIONS, &digest(scene).await?).await?;
        scene
            .status("all updated", |status| status.clusters.updated == 2)
            .await?;
        for member in MEMBERS {
            assert_eq!(count(scene, member, "one").await?, 0);
        }
        Ok(())
    })
}

#[test]
fn t29_a_missing_path_prunes_nothing() -> Result<()> {
    shared_scene("away-moved", async |scene| {
        let first = commit(scene, &names(0..200), &[], "one")?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        scene.group(json!({}), json!({})).await?;
        scene.succeeded(&first).await?;
        // The folder is renamed: the objects are in the repository, but not at the path of the entry.
        let texts: Vec<(String, String, String)> = names(0..200)
            .iter()
            .map(|name| {
                let text = crate::world::config_map(&scene.own(name), "one");
                (format!("app/{name}.yaml"), format!("renamed/{name}.yaml"), text)
            })
            .collect();
        let changes: Vec<Change<'_>> = texts
            .iter()
            .flat_map(|(old, new, text)| [Change::Remove(old), Change::Write(new, text.as_bytes())])
            .collect();
        scene.repo.commit_to("main", &changes, "rename")?;
        let status = scene
            .status("failed everywhere", |status| status.clusters.failed == 2)
            .await?;
        for member in MEMBERS {
            assert_eq!(problems(&status)[member], "BuildFailed", "{:?}", status.problems);
            assert!(
                status.problems[0].message.contains("app"),
                "{:?}",
                status.problems
            );
            assert_eq!(count(scene, member, "one").await?, 200);
            assert_eq!(deletes(scene, member)?, 0);
        }
        // `allowEmpty` does not apply to a missing folder.
        scene.group(json!({}), json!({"allowEmpty": true})).await?;
        let again = |status: &SyncGroupStatus| {
            status.clusters.failed == 2 && status.rollout.as_ref().is_some_and(|rollout| rollout.id == 3)
        };
        scene.status("failed again", again).await?;
        for member in MEMBERS {
            assert_eq!(count(scene, member, "one").await?, 200);
        }
        Ok(())
    })
}

pub(crate) async fn membership_held(scene: &Scene) -> Result<String> {
    let held = |status: &SyncGroupStatus| conditions::find(&status.conditions, MEMBERSHIP_HELD).is_some();
    let status = scene.status("held", held).await?;
    let condition = conditions::find(&status.conditions, MEMBERSHIP_HELD).context("MembershipHeld")?;
    assert_eq!(condition.status, "True");
    let digest = condition
        .message
        .split([' ', ':', ',', '='])
        .skip_while(|word| *word != "sha256")
        .nth(1)
        .context("a digest")?;
    Ok(format!("sha256:{digest}"))
}

#[test]
fn t33_a_label_removed_from_many_clusters_holds_the_group() -> Result<()> {
    shared_scene("vanishing", async |scene| {
        let first = scene.commit(&[("a", "one")])?;
        scene.follow_main().await?;
        scene.select(&ALL).await?;
        scene.group(json!({}), json!({})).await?;
        let patch = json!({"spec": {"whenUnselected": "Delete"}});
        scene.fleet().patch::<SyncGroup>(scene.name, patch).await?;
        scene.succeeded(&first).await?;

        // A script removes the label, cluster by cluster.
        for member in ["m1", "m2", "m3"] {
            scene.label(member, scene.name, None).await?;
        }
        membership_held(scene).await?;
        // A new commit meanwhile does not start.
        let second = scene.commit(&[("a", "two")])?;
        let paused = |status: &SyncGroupStatus| {
            let rollout = status.rollout.as_ref();
            rollout.is_some_and(|r| {
                r.revisions[0].revision.ends_with(&second) && r.phase == RolloutPhase::Paused
            })
        };
        let status = scene.status("paused at the second commit", paused).await?;
        assert!(blocked_by(&status).contains("MembershipHeld"), "{status:?}");
        assert_eq!(scene.values(&ALL, "a").await?, all("one", 5));
        for member in ALL {
            scene.sync(member, "there", |_| true).await?;
        }

        // The labels are restored, and the group continues automatically.
        scene.select(&["m1", "m2", "m3"]).await?;
        let status = scene.succeeded(&second).await?;
        assert!(conditions::find(&status.conditions, MEMBERSHIP_HELD).is_none());
        assert_eq!(scene.values(&ALL, "a").await?, all("two", 5));

        // The change is intended, and a user approves it.
        for member in ["m1", "m2"] {
            scene.label(member, scene.name, None).await?;
        }
        let digest = membership_held(scene).await?;
        let note = until_event(scene, scene.name, "MembershipHeld").await?;
        assert!(note.contains("starling approve-deletions group"), "{note}");
        approve(scene, APPROVE_MEMBERSHIP, "sha256:0").await?;
        assert_eq!(membership_held(scene).await?, digest);
        approve(scene, APPROVE_MEMBERSHIP, &digest).await?;
        for member in ["m1", "m2"] {
            scene.until_value(member, "a", None).await?;
        }
        let status = scene
            .status("three are left", |status| {
                (status.clusters.total, status.clusters.updated) == (3, 3)
                    && conditions::find(&status.conditions, MEMBERSHIP_HELD).is_none()
            })
            .await?;
        assert_eq!(ready(&status.conditions).0, "True");
        assert_eq!(scene.values(&ALL[2..], "a").await?, all("two", 3));
        Ok(())
    })
}

/// Returns the list of Clusters from the API, reduced to these names.
async fn list_of(scene: &Scene, names: &[&str]) -> Result<Value> {
    let list = scene
        .fleet()
        .api::<Cluster>()
        .list(&ListParams::default())
        .await?;
    let items: Vec<Value> = list
        .items
        .iter()
        .filter(|cluster| names.contains(&cluster.name_any().as_str()))
        .map(serde_json::to_value)
        .collect::<Result<_, _>>()?;
    Ok(json!({
        "apiVersion": "starling.dev/v1alpha1", "kind": "ClusterList",
        "metadata": {"resourceVersion": list.metadata.resource_version}, "items": items,
    }))
}

/// Matches requests for Clusters to the management cluster, as a list or by name, but not watches.
fn lists() -> Match {
    Match::method(Method::GET)
        .path_contains("/clusters")
        .and(|request| !request.is_watch())
}

fn fault_with_response(code: StatusCode, body: String) -> Fault {
    Fault::Status {
        code,
        headers: vec![(
            http::header::CONTENT_TYPE,
            http::HeaderValue::from_static("application/json"),
        )],
        body: body.into(),
    }
}

/// The list of Clusters fails, is not served, is empty, or is incomplete. The watch gets an error that it is too old,
/// so that the program lists again.
#[test]
fn t33_an_incomplete_list_of_clusters_removes_no_cluster() -> Result<()> {
    exclusive_scene("halves", async |scene| {
        let first = scene.commit(&[("a", "one")])?;
        scene.follow_main().await?;
        scene.select(&ALL).await?;
        scene.group(json!({}), json!({})).await?;
        let patch = json!({"spec": {"whenUnselected": "Delete"}});
        scene.fleet().patch::<SyncGroup>(scene.name, patch).await?;
        scene.succeeded(&first).await?;
        let uids = async || -> Result<Vec<Option<String>>> {
            let mut uids = Vec::new();
            for member in ALL {
                uids.push(scene.sync(member, "there", |_| true).await?.uid());
            }
            Ok(uids)
        };
        let before = uids().await?;
        let hub = scene.proxy(starling_testkit::fleet::MANAGEMENT)?;
        let not_served = fault_with_response(StatusCode::NOT_FOUND, "404 page not found".into());
        let half = fault_with_response(
            StatusCode::OK,
            list_of(scene, &["m1", "m2", UNREACHABLE]).await?.to_string(),
        );
        let but_one = ["m1", "m2", "m3", "m4", UNREACHABLE];
        let but_one = fault_with_response(StatusCode::OK, list_of(scene, &but_one).await?.to_string());
        let none = fault_with_response(StatusCode::OK, list_of(scene, &[]).await?.to_string());
        for (what, fault, held) in [
            ("fails", Fault::status(StatusCode::INTERNAL_SERVER_ERROR), false),
            ("is not served", not_served, false),
            ("is half", half, true),
            ("lacks one", but_one, false),
            ("is empty", none, true),
        ] {
            // Only the list is wrong: a request for one Cluster by name gets a correct response.
            let list = lists().path_ends_with("/clusters");
            let bad = hub.on(list, fault);
            let watch = Match::method(Method::GET)
                .path_ends_with("/clusters")
                .and(|request| request.is_watch());
            // As an event, as an API server reports that a watch is too old.
            let expired = r#"{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"too old","reason":"Expired","code":410}}"#;
            let expired = hub.on(watch, fault_with_response(StatusCode::OK, format!("{expired}\n")));
            hub.cut_connections();
            wait::until(TIMEOUT, format!("the list {what}"), async || bad.fired() >= 2).await?;
            if held {
                membership_held(scene).await?;
            }
            if what == "lacks one" {
                // One Cluster may be removed, but first the program reads it by name.
                wait::until(TIMEOUT, "m5 is read by name", async || {
                    hub.count(&Method::GET, "/clusters/m5") > 0
                })
                .await?;
            }
            for member in ALL {
                let sync: SyncResource = scene.fleet().get(&scene.sync_name(member)).await?;
                assert_eq!(sync.metadata.deletion_timestamp, None, "{what}: {member}");
            }
            hub.remove(&bad);
            hub.remove(&expired);
            // An unrelated label shows that the program reads the actual Clusters again.
            let recovered = |status: &SyncGroupStatus| {
                status.clusters.updated == 5
                    && conditions::find(&status.conditions, MEMBERSHIP_HELD).is_none()
            };
            scene
                .status(&format!("well again after the list {what}"), recovered)
                .await?;
            assert_eq!(uids().await?, before, "{what}");
            assert_eq!(scene.values(&ALL, "a").await?, all("one", 5), "{what}");
        }
        let second = scene.commit(&[("a", "two")])?;
        scene.succeeded(&second).await?;
        Ok(())
    })
}
