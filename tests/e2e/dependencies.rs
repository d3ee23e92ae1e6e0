//! What depends on something waits for it: at the same release, and by name.

use anyhow::Result;
use k8s_openapi::api::admissionregistration::v1::{
    ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding,
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use starling_api::{SyncGroup, SyncResource};
use starling_testkit::fleet::TIMEOUT;
use starling_testkit::wait;

use crate::deleting::{until_event, until_gone};
use crate::world::{Scene, config_map, ready, shared_scene, sync_ready};

const MEMBERS: [&str; 2] = ["m1", "m2"];

/// Writes the folders `base` and `app`, each with one ConfigMap of its name; a base that is not `good` is refused by
/// every API server.
fn commit(scene: &Scene, value: &str, good: bool) -> Result<String> {
    let base = config_map(&scene.own("base"), value);
    let base = if good {
        base
    } else {
        base.replace("  value:", "  \"no key\":")
    };
    let app = config_map(&scene.own("app"), value);
    Ok(scene
        .repo
        .commit(&[("base/map.yaml", &base), ("app/map.yaml", &app)], value)?)
}

async fn group(scene: &Scene, base_depends_on: &[&str]) -> Result<()> {
    let on: Vec<Value> = base_depends_on.iter().map(|name| json!({"name": name})).collect();
    let entry = |name: &str, on: Value| {
        json!({"name": name, "sourceRef": {"name": scene.name}, "path": format!("./{name}"),
            "retryInterval": "1s", "dependsOn": on})
    };
    // The dependent stands first, so that order of writing is not what makes the test pass.
    let syncs = json!([entry("app", json!([{"name": "base"}])), entry("base", on.into())]);
    let spec = json!({"clusterSelector": scene.selector(), "syncs": syncs, "rolloutStrategy": {"maxConcurrency": 2}});
    scene.fleet().put_group(scene.name, spec).await
}

async fn created(scene: &Scene, member: &str, name: &str) -> Result<jiff::Timestamp> {
    let map = scene.map(member, name).await?;
    let map = map.ok_or_else(|| anyhow::anyhow!("no {name} on {member}"))?;
    let entry = map
        .metadata
        .managed_fields
        .unwrap_or_default()
        .into_iter()
        .find(|e| e.manager.as_deref() == Some("starling"));
    let time = entry
        .and_then(|entry| entry.time)
        .ok_or_else(|| anyhow::anyhow!("{name} is not ours"))?;
    Ok(time.0)
}

#[test]
fn an_entry_waits_for_its_dependencies_at_the_same_release() -> Result<()> {
    shared_scene("depends", async |scene| {
        let first = commit(scene, "one", true)?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        group(scene, &[]).await?;
        scene.succeeded(&first).await?;
        for member in MEMBERS {
            assert!(created(scene, member, "base").await? <= created(scene, member, "app").await?);
        }

        // The base of the second commit fails on every cluster. It was ready at the first commit, which must not count.
        commit(scene, "two", false)?;
        for member in MEMBERS {
            let waits = |sync: &SyncResource| {
                let status = sync.status.clone().unwrap_or_default();
                let message = status
                    .conditions
                    .iter()
                    .map(|c| c.message.clone())
                    .collect::<String>();
                sync_ready(sync).1 == "DependencyNotReady"
                    && message.contains(&scene.own(&format!("base-{member}")))
                    && message.contains("fails")
            };
            scene.sync(member, "waits, and names what for", waits).await?;
        }
        assert_eq!(
            scene.values(&MEMBERS, "app").await?,
            vec![Some("one".to_owned()); 2]
        );

        let third = commit(scene, "three", true)?;
        scene.succeeded(&third).await?;
        for name in ["base", "app"] {
            assert_eq!(
                scene.values(&MEMBERS, name).await?,
                vec![Some("three".to_owned()); 2]
            );
        }
        for member in MEMBERS {
            assert_eq!(
                scene.values_sent(member, "app", &["one", "two", "three"])?,
                ["one", "three"]
            );
        }
        Ok(())
    })
}

#[test]
fn a_cycle_of_entries_stalls_the_group_and_is_named() -> Result<()> {
    shared_scene("circle", async |scene| {
        commit(scene, "one", true)?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        group(scene, &["app"]).await?;
        let stalled = |group: &SyncGroup| {
            let conditions = group.status.clone().unwrap_or_default().conditions;
            conditions.iter().any(|c| {
                c.type_ == "Stalled"
                    && c.reason == "DependencyCycle"
                    && c.message.contains("app → base → app")
            })
        };
        scene.fleet().until(scene.name, "Stalled", stalled).await?;
        assert_eq!(scene.values(&MEMBERS, "app").await?, [None, None]);
        // Without the cycle, the group continues automatically.
        group(scene, &[]).await?;
        let done =
            |group: &SyncGroup| ready(&group.status.clone().unwrap_or_default().conditions).0 == "True";
        scene.fleet().until(scene.name, "Ready", done).await?;
        Ok(())
    })
}

#[test]
fn syncs_without_group_wait_for_dependencies_and_a_cycle_stalls_each() -> Result<()> {
    shared_scene("alone", async |scene| {
        commit(scene, "one", true)?;
        scene.follow_main().await?;
        let put = async |name: &str, folder: &str, on: &str| {
            let spec = json!({"clusterRef": {"name": "m1"}, "sourceRef": {"name": scene.name}, "path": folder,
                "dependsOn": [{"name": scene.own(on)}], "retryInterval": "1s"});
            let metadata = json!({"name": scene.own(name)});
            scene
                .fleet()
                .put::<SyncResource>(json!({"metadata": metadata, "spec": spec}))
                .await
        };
        put("app", "./app", "base").await?;
        let missing = |sync: &SyncResource| sync_ready(sync).1 == "DependencyNotReady";
        scene
            .fleet()
            .until(&scene.own("app"), "waits for one that is not there", missing)
            .await?;
        put("base", "./base", "app").await?;
        for (name, cycle) in [
            ("app", "alone-app → alone-base → alone-app"),
            ("base", "alone-base → alone-app → alone-base"),
        ] {
            let stalled = |sync: &SyncResource| {
                let conditions = sync.status.clone().unwrap_or_default().conditions;
                conditions.iter().any(|c| {
                    c.type_ == "Stalled" && c.reason == "DependencyCycle" && c.message.contains(cycle)
                })
            };
            scene.fleet().until(&scene.own(name), "Stalled", stalled).await?;
        }
        assert_eq!(scene.values(&["m1"], "base").await?, [None]);

        let patch = json!({"spec": {"dependsOn": null}});
        scene
            .fleet()
            .patch::<SyncResource>(&scene.own("base"), patch)
            .await?;
        for name in ["base", "app"] {
            let done = |sync: &SyncResource| sync_ready(sync).0 == "True";
            scene.fleet().until(&scene.own(name), "Ready", done).await?;
        }
        Ok(())
    })
}

/// Lets the management cluster refuse the deletion of one Sync, until the policy is deleted.
async fn refuse_deletion(scene: &Scene, policy: &str, sync: &str) -> Result<()> {
    let hub = scene.fleet().hub().clone();
    let object = json!({"metadata": {"name": policy}, "spec": {"failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [{"apiGroups": ["starling.dev"], "apiVersions": ["*"],
            "operations": ["DELETE"], "resources": ["syncs"]}]},
        "validations": [{"expression": format!("request.name != '{sync}'"), "message": "it stays"}]}});
    let policies = Api::<ValidatingAdmissionPolicy>::all(hub.clone());
    policies
        .create(&PostParams::default(), &serde_json::from_value(object)?)
        .await?;
    let object =
        json!({"metadata": {"name": policy}, "spec": {"policyName": policy, "validationActions": ["Deny"]}});
    let bindings = Api::<ValidatingAdmissionPolicyBinding>::all(hub);
    bindings
        .create(&PostParams::default(), &serde_json::from_value(object)?)
        .await?;
    let syncs = scene.fleet().api::<SyncResource>();
    let dry = DeleteParams::default().dry_run();
    wait::until(TIMEOUT, "the policy is in force", async || {
        match syncs.delete(sync, &dry).await {
            Err(kube::Error::Api(status)) if status.message.contains("it stays") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    Ok(())
}

/// Returns the number of requests that the policy refused, from the metrics of the management cluster.
async fn refusals(scene: &Scene, policy: &str) -> Result<f64> {
    let request = http::Request::get("/metrics").body(Vec::new())?;
    let text = scene.fleet().hub().request_text(request).await?;
    let counts = text.lines().filter(|line| {
        line.starts_with("apiserver_validating_admission_policy_check_total{")
            && line.contains("enforcement_action=\"deny\"")
            && line.contains(&format!("policy=\"{policy}\""))
    });
    let counts = counts.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
    Ok(counts.sum())
}

/// Waits until the policy has refused two requests since `before`. The second one comes in another pass of the group,
/// after the first one has ended.
async fn until_refused_twice(scene: &Scene, policy: &str, before: f64) -> Result<()> {
    wait::until(TIMEOUT, "two deletions are refused", async || {
        let now = refusals(scene, policy).await;
        let now = now.map_err(|error| format!("{error:#}"))?;
        if now >= before + 2.0 {
            Ok(())
        } else {
            Err(format!("{now} after {before}"))
        }
    })
    .await?;
    Ok(())
}

async fn allow_deletion(scene: &Scene, policy: &str) -> Result<()> {
    let hub = scene.fleet().hub().clone();
    let bindings = Api::<ValidatingAdmissionPolicyBinding>::all(hub.clone());
    bindings.delete(policy, &DeleteParams::default()).await?;
    let policies = Api::<ValidatingAdmissionPolicy>::all(hub);
    policies.delete(policy, &DeleteParams::default()).await?;
    Ok(())
}

/// The deletion of a Sync fails on the management cluster, for whatever reason. What it depends on is removed after it.
#[test]
fn what_a_sync_depends_on_stays_while_the_sync_cannot_be_removed() -> Result<()> {
    shared_scene("unremovable", async |scene| {
        let first = commit(scene, "one", true)?;
        scene.follow_main().await?;
        scene.select(&["m1"]).await?;
        let entry = |name: &str, on: Value| {
            json!({"name": name, "sourceRef": {"name": scene.name}, "path": format!("./{name}"),
                "deletionPolicy": "Delete", "dependsOn": on})
        };
        let syncs = json!([entry("base", json!([])), entry("app", json!([{"name": "base"}]))]);
        let spec = json!({"clusterSelector": scene.selector(), "syncs": syncs, "whenUnselected": "Delete",
            "maxUnselected": "100%"});
        scene.fleet().put_group(scene.name, spec).await?;
        scene.succeeded(&first).await?;

        let policy = scene.own("stays");
        let dependent = scene.sync_name("m1");
        refuse_deletion(scene, &policy, &dependent).await?;
        let before = refusals(scene, &policy).await?;
        scene.label("m1", scene.name, None).await?;
        until_refused_twice(scene, &policy, before).await?;
        let fleet = scene.fleet();
        let base = scene.own("base-m1");
        let base = fleet.get::<SyncResource>(&base).await?;
        assert!(base.metadata.deletion_timestamp.is_none(), "{:?}", base.metadata);
        assert_eq!(scene.values(&["m1"], "base").await?, [Some("one".to_owned())]);

        allow_deletion(scene, &policy).await?;
        until_gone::<SyncResource>(scene, &dependent).await?;
        until_gone::<SyncResource>(scene, &base.name_any()).await
    })
}

/// Rolls out a group whose Syncs delete their objects with it.
async fn roll_out(scene: &Scene) -> Result<()> {
    let first = commit(scene, "one", true)?;
    scene.follow_main().await?;
    scene.select(&MEMBERS).await?;
    group(scene, &[]).await?;
    let delete = json!({"spec": {"deletionPolicy": "Delete"}});
    scene.fleet().patch::<SyncGroup>(scene.name, delete).await?;
    scene.succeeded(&first).await?;
    Ok(())
}

fn on_m1(scene: &Scene, entry: &str) -> String {
    format!("{}-{entry}-m1", scene.name)
}

async fn suspend(scene: &Scene, suspend: bool) -> Result<()> {
    let patch = json!({"spec": {"suspend": suspend}});
    let app = on_m1(scene, "app");
    scene.fleet().patch::<SyncResource>(&app, patch).await?;
    Ok(())
}

/// Guards against an operator that goes while its instances stay: their Sync is suspended. The first requests to remove
/// the Sync of the operator fail, and what the group knows by then has to be known later as well.
#[test]
fn what_a_suspended_sync_depends_on_stays_although_the_group_is_deleted() -> Result<()> {
    shared_scene("left-alone", async |scene| {
        roll_out(scene).await?;
        suspend(scene, true).await?;
        let is_suspended = |sync: &SyncResource| sync_ready(sync).1 == "Suspended";
        let (app, base) = (on_m1(scene, "app"), on_m1(scene, "base"));
        scene.fleet().until(&app, "suspended", is_suspended).await?;
        let policy = scene.own("stays");
        refuse_deletion(scene, &policy, &base).await?;
        let before = refusals(scene, &policy).await?;
        scene.fleet().delete::<SyncGroup>(scene.name).await?;
        until_refused_twice(scene, &policy, before).await?;
        allow_deletion(scene, &policy).await?;
        until_gone::<SyncGroup>(scene, scene.name).await?;
        for (sync, why) in [
            (&app, "the Sync is suspended"),
            (&base, "a Sync that depends on it is suspended"),
        ] {
            let note = until_event(scene, sync, "ObjectsOrphaned").await?;
            assert!(note.contains(why), "{note}");
        }
        for name in ["app", "base"] {
            assert_eq!(scene.value("m1", name).await?.as_deref(), Some("one"), "{name}");
            assert_eq!(scene.value("m2", name).await?, None, "{name}");
        }
        Ok(())
    })
}

/// The same if it is suspended while its objects are being deleted: it waits, and so does what it depends on.
#[test]
fn a_sync_that_is_suspended_during_its_removal_keeps_what_it_depends_on() -> Result<()> {
    shared_scene("stopped-midway", async |scene| {
        roll_out(scene).await?;
        let maps: Api<ConfigMap> = Api::namespaced(scene.fleet().member("m1").await?, "default");
        let hold = |finalizers: Value| Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
        let (map, merge) = (scene.own("app"), PatchParams::default());
        maps.patch(&map, &merge, &hold(json!(["example.test/hold"])))
            .await?;
        scene.fleet().delete::<SyncGroup>(scene.name).await?;
        let (app, base) = (on_m1(scene, "app"), on_m1(scene, "base"));
        let deletes = |sync: &SyncResource| sync_ready(sync).1 == "Deleting";
        scene.fleet().until(&app, "waits for its object", deletes).await?;
        suspend(scene, true).await?;
        let stops = |sync: &SyncResource| sync_ready(sync).1 == "GroupStopped";
        scene.fleet().until(&app, "waits for a person", stops).await?;
        maps.patch(&map, &merge, &hold(json!(null))).await?;
        scene.until_value("m1", "app", None).await?;
        let waits = |sync: &SyncResource| sync_ready(sync).1 == "AwaitingDependents";
        scene
            .fleet()
            .until::<SyncResource>(&base, "waits for it", waits)
            .await?;
        assert_eq!(scene.value("m1", "base").await?.as_deref(), Some("one"));
        suspend(scene, false).await?;
        until_gone::<SyncGroup>(scene, scene.name).await?;
        assert_eq!(scene.value("m1", "base").await?, None);
        Ok(())
    })
}
