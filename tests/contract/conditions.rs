//! The guarantees of conditions: `Ready` refers to the current generation, and unimplemented fields are reported.

use anyhow::{Context, Result};
use futures::{StreamExt, pin_mut};
use kube::api::{WatchEvent, WatchParams};
use kube::{Api, Resource, ResourceExt};
use serde_json::{Value, json};
use starling_api::conditions::{self, Condition, READY, STALLED};
use starling_api::{Cluster, RolloutPhase, Source, SyncGroup, SyncResource};
use starling_testkit::fleet::{Kind, NAMESPACE, TIMEOUT};
use starling_testkit::{GitRepo, wait};

use crate::running::{Running, config_map, on_the_fleet};

/// Conditions of any kind.
fn conditions_of<K: serde::Serialize>(object: &K) -> Result<Vec<Condition>> {
    let object = serde_json::to_value(object)?;
    Ok(serde_json::from_value(object["status"]["conditions"].clone()).unwrap_or_default())
}

/// Edits an object while the program is frozen, resumes it, and returns the object of the first event with `Ready=True`
/// for the new generation: the earliest time at which `kubectl wait` can return.
///
/// While the program is frozen, `kubectl wait` must not return, although Ready was True for the old generation.
async fn first_ready_after<K>(running: &Running, name: &str, patch: Value) -> Result<K>
where
    K: Kind + Resource<DynamicType = ()>,
{
    let api: Api<K> = running.fleet.api();
    running.controller.pause()?;
    let edited = running.fleet.patch::<K>(name, patch).await;
    let early = early(running, K::kind(&()).as_ref(), name).await;
    running.controller.resume()?;
    let (edited, early) = (edited?, early?);
    anyhow::ensure!(
        !early,
        "{name}: kubectl wait returned before the edit was reconciled"
    );
    let generation = edited.meta().generation.context("a generation")?;
    let since = edited.resource_version().context("a version")?;
    let params = WatchParams::default().fields(&format!("metadata.name={name}"));
    let first = async {
        let events = api.watch(&params, &since).await?;
        pin_mut!(events);
        while let Some(event) = events.next().await {
            let WatchEvent::Modified(object) = event? else {
                continue;
            };
            if conditions::is_true(&conditions_of(&object)?, READY, generation) {
                return Ok(object);
            }
        }
        anyhow::bail!("the watch of {name} ended")
    };
    let object = tokio::time::timeout(TIMEOUT, first)
        .await
        .with_context(|| format!("{name} Ready"))??;
    let status = serde_json::to_value(&object)?["status"].clone();
    assert_eq!(status["observedGeneration"], json!(generation), "{name}");
    Ok(object)
}

async fn early(running: &Running, kind: &str, name: &str) -> Result<bool> {
    let wait = [
        "-n",
        NAMESPACE,
        "wait",
        "--for=condition=Ready",
        "--timeout=1s",
        kind,
        name,
    ];
    Ok(running.kubectl.call(&wait, "").await?.ok)
}

async fn wait_ready(running: &Running, kind: &str, name: &str) -> Result<()> {
    let wait = [
        "-n",
        NAMESPACE,
        "wait",
        "--for=condition=Ready",
        "--timeout=90s",
        kind,
        name,
    ];
    running.kubectl.run(&wait).await?;
    Ok(())
}

fn select_m1() -> Value {
    json!({"matchLabels": {"name": "m1"}})
}

#[test]
fn kubectl_wait_immediately_after_an_edit_does_not_return_early() -> Result<()> {
    on_the_fleet(|running| async move {
        let fleet = &running.fleet;
        let repo = GitRepo::init()?;
        let files = [
            ("one/a.yaml", config_map("edited", "one")),
            ("two/a.yaml", config_map("edited", "two")),
            ("alone/a.yaml", config_map("edited-alone", "one")),
            ("alone-two/a.yaml", config_map("edited-alone", "two")),
        ];
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (*path, text.as_str())).collect();
        let main = repo.commit(&files, "main")?;
        repo.tag("v1", &main)?;
        fleet
            .put_source("edited", &repo.url(), json!({"branch": "main"}))
            .await?;
        let entry = json!({"name": "app", "sourceRef": {"name": "edited"}, "path": "./one"});
        fleet
            .put_group(
                "edited",
                json!({"clusterSelector": select_m1(), "syncs": [entry]}),
            )
            .await?;
        let alone = json!({"clusterRef": {"name": "m1"}, "sourceRef": {"name": "edited"}, "path": "./alone"});
        fleet
            .put::<SyncResource>(json!({"metadata": {"name": "edited-alone"}, "spec": alone}))
            .await?;
        for (kind, name) in [
            ("source", "edited"),
            ("cluster", "m1"),
            ("syncgroup", "edited"),
            ("sync", "edited-alone"),
        ] {
            wait_ready(&running, kind, name).await?;
        }

        let entry = json!({"name": "app", "sourceRef": {"name": "edited"}, "path": "./two"});
        let group: SyncGroup =
            first_ready_after(&running, "edited", json!({"spec": {"syncs": [entry]}})).await?;
        assert_eq!(
            value(&running, "edited").await?,
            "two",
            "the group was Ready before its member was"
        );
        let status = group.status.unwrap_or_default();
        assert_eq!((status.clusters.total, status.clusters.updated), (1, 1));

        let path = json!({"spec": {"path": "./alone-two"}});
        let _: SyncResource = first_ready_after(&running, "edited-alone", path).await?;
        assert_eq!(
            value(&running, "edited-alone").await?,
            "two",
            "the Sync was Ready before its member was"
        );

        let tag = json!({"spec": {"ref": {"branch": null, "tag": "v1"}}});
        let source: Source = first_ready_after(&running, "edited", tag).await?;
        assert_eq!(
            source.status.unwrap_or_default().revision,
            format!("v1@sha1:{main}")
        );

        let named = json!({"spec": {"kubeConfig": {"secretRef": {"key": "value"}}}});
        let _: Cluster = first_ready_after(&running, "m1", named).await?;
        every_condition_carries_its_generation(&running).await
    })
}

async fn value(running: &Running, name: &str) -> Result<String> {
    let data = running
        .fleet
        .config_map("m1", "default", name)
        .await?
        .context("a ConfigMap")?;
    Ok(data.get("value").cloned().unwrap_or_default())
}

async fn every_condition_carries_its_generation(running: &Running) -> Result<()> {
    let all = running.kubectl.json(&["get", "starling", "-A"]).await?;
    let mut kinds = std::collections::BTreeSet::new();
    for object in all["items"].as_array().context("items")? {
        let name = format!("{} {}", object["kind"], object["metadata"]["name"]);
        let generation = object["metadata"]["generation"]
            .as_i64()
            .context("a generation")?;
        for condition in object["status"]["conditions"].as_array().into_iter().flatten() {
            let observed = condition["observedGeneration"].as_i64();
            let observed = observed.with_context(|| format!("{name}: {condition} is about no generation"))?;
            assert!((1..=generation).contains(&observed), "{name}: {condition}");
            assert!(
                !condition["reason"].as_str().unwrap_or_default().is_empty(),
                "{name}: {condition}"
            );
            kinds.insert(object["kind"].as_str().unwrap_or_default().to_owned());
        }
    }
    assert_eq!(
        kinds.into_iter().collect::<Vec<_>>(),
        ["Cluster", "Source", "Sync", "SyncGroup"]
    );
    Ok(())
}

/// A metric whose expression is invalid, so that Prometheus is never queried.
fn invalid_stage() -> Value {
    let metric = json!({"url": "http://prometheus:9090", "query": "up", "test": "valu < 1.0"});
    json!([{"name": "canary", "beforeStageTasks": [{"type": "Metric", "metric": metric}]}])
}

/// Specs of groups with the expected message, one for each rule that a schema cannot express.
fn group_cases(source: &str) -> Vec<(Value, &'static str)> {
    let entry = json!({"name": "app", "sourceRef": {"name": source}, "path": "./one"});
    let group = json!({"clusterSelector": select_m1(), "syncs": [entry]});
    let with = |stages: Value| {
        let mut spec = group.clone();
        spec["rolloutStrategy"] = json!({"stages": stages});
        spec
    };
    let task = |task: Value| with(json!([{"name": "canary", "beforeStageTasks": [task]}]));
    let webhook = json!({"url": "https://gates.example.com", "secretRef": {"name": ""}});
    let job = json!({"template": {"spec": {}}});
    let path = "spec.rolloutStrategy.stages[canary].beforeStageTasks[0]: ";
    vec![
        (
            with(invalid_stage()),
            "metric.test: there is no \"valu\" here; there are `value` and `result`",
        ),
        (
            task(json!({"type": "Webhook", "webhook": webhook})),
            "webhook.secretRef.name is empty",
        ),
        (
            task(json!({"type": "Job", "job": job})),
            "job.template.spec.template.spec is missing",
        ),
        (task(json!({"type": "Job", "job": job, "timeout": "0s"})), path),
    ]
}

/// Waits until an object is stalled, and checks its conditions.
async fn stalled<K: Kind>(running: &Running, name: &str, reason: &str, message: &str) -> Result<K> {
    let object: K = running
        .fleet
        .until(name, "Stalled", |object: &K| {
            conditions_of(object).is_ok_and(|found| conditions::find(&found, STALLED).is_some())
        })
        .await?;
    let found = conditions_of(&object)?;
    let ready = conditions::find(&found, READY).context("Ready")?;
    let stalled = conditions::find(&found, STALLED).context("Stalled")?;
    for (condition, status) in [(stalled, "True"), (ready, "False")] {
        assert_eq!(
            (condition.status.as_str(), condition.reason.as_str()),
            (status, reason),
            "{message}"
        );
    }
    assert!(
        stalled.message.contains(message),
        "{message}: {}",
        stalled.message
    );
    assert_eq!(stalled.observed_generation, object.meta().generation, "{message}");
    Ok(object)
}

/// As [`stalled`], for an unimplemented field: its exact path.
async fn not_implemented<K: Kind>(running: &Running, name: &str, field: &str) -> Result<K> {
    let message = format!("not implemented yet: {field};");
    stalled(running, name, "NotImplemented", &message).await
}

#[test]
fn invalid_and_unimplemented_fields_are_named_and_nothing_rolls_out() -> Result<()> {
    on_the_fleet(|running| async move {
        let fleet = &running.fleet;
        let repo = GitRepo::init()?;
        repo.commit(&[("one/a.yaml", &config_map("unbuilt", "one"))], "one")?;
        fleet
            .put_source("unbuilt", &repo.url(), json!({"branch": "main"}))
            .await?;
        wait_ready(&running, "source", "unbuilt").await?;
        let groups = group_cases("unbuilt");
        for (n, (spec, _)) in groups.iter().enumerate() {
            fleet.put_group(&format!("unbuilt-{n}"), spec.clone()).await?;
        }
        for (n, (_, message)) in groups.iter().enumerate() {
            let group: SyncGroup = stalled(&running, &format!("unbuilt-{n}"), "InvalidSpec", message).await?;
            assert!(
                group.status.unwrap_or_default().rollout.is_none(),
                "{message}: a rollout was started"
            );
        }
        for (n, (url, more, field)) in [
            ("ssh://git@h/r", json!({}), "spec.url (ssh)"),
            ("git@h:r", json!({}), "spec.url (ssh)"),
            (
                repo.url().as_str(),
                json!({"verify": {"secretRef": {"name": "k"}}}),
                "spec.verify",
            ),
            (
                repo.url().as_str(),
                json!({"webhookSecretRef": {"name": "w"}}),
                "spec.webhookSecretRef",
            ),
        ]
        .into_iter()
        .enumerate()
        {
            let name = format!("unbuilt-{n}");
            let mut spec = json!({"url": url, "ref": {"branch": "main"}});
            for (key, value) in more.as_object().into_iter().flatten() {
                spec[key] = value.clone();
            }
            fleet
                .put::<Source>(json!({"metadata": {"name": name}, "spec": spec}))
                .await?;
            let source: Source = not_implemented(&running, &name, field).await?;
            assert!(source.status.unwrap_or_default().revision.is_empty(), "{field}");
        }
        let syncs = fleet.syncs().await?;
        let of_groups = |sync: &&SyncResource| {
            sync.spec
                .group_ref
                .as_ref()
                .is_some_and(|group| group.name.starts_with("unbuilt"))
        };
        assert_eq!(
            syncs.iter().filter(of_groups).count(),
            0,
            "a group that stalls has Syncs"
        );
        assert_eq!(
            fleet.config_map("m1", "default", "unbuilt").await?,
            None,
            "something was applied"
        );
        Ok(())
    })
}

/// A group that gets an invalid field after a rollout starts no further rollout, and continues once the field is
/// removed.
#[test]
fn an_invalid_field_that_is_added_later_stops_the_group_until_it_is_removed() -> Result<()> {
    on_the_fleet(|running| async move {
        let fleet = &running.fleet;
        let repo = GitRepo::init()?;
        repo.commit(&[("one/a.yaml", &config_map("later", "one"))], "one")?;
        fleet
            .put_source("later", &repo.url(), json!({"branch": "main"}))
            .await?;
        let entry = json!({"name": "app", "sourceRef": {"name": "later"}, "path": "./one"});
        fleet
            .put_group("later", json!({"clusterSelector": select_m1(), "syncs": [entry]}))
            .await?;
        wait_ready(&running, "syncgroup", "later").await?;

        let field = json!({"spec": {"rolloutStrategy": {"stages": invalid_stage()}}});
        fleet.patch::<SyncGroup>("later", field).await?;
        let message = "spec.rolloutStrategy.stages[canary].beforeStageTasks[0]: metric.test";
        stalled::<SyncGroup>(&running, "later", "InvalidSpec", message).await?;
        let second = repo.commit(&[("one/a.yaml", &config_map("later", "two"))], "two")?;
        fleet
            .until("later", "the second commit is offered", |source: &Source| {
                source
                    .status
                    .as_ref()
                    .is_some_and(|status| status.revision.ends_with(&second))
            })
            .await?;
        // The group has reconciled after the change of the Source once it echoes a later request.
        let asked = json!({"metadata": {"annotations": {"starling.dev/requested-at": "later"}}});
        fleet.patch::<SyncGroup>("later", asked).await?;
        let group: SyncGroup = fleet
            .until("later", "the request is echoed", |group: &SyncGroup| {
                group
                    .status
                    .as_ref()
                    .is_some_and(|status| status.last_handled_reconcile_at == "later")
            })
            .await?;
        let rollout = group
            .status
            .and_then(|status| status.rollout)
            .context("the first rollout")?;
        assert_eq!(rollout.id, 1, "a rollout was started");
        assert_eq!(value(&running, "later").await?, "one");

        let field = json!({"spec": {"rolloutStrategy": {"stages": null}}});
        fleet.patch::<SyncGroup>("later", field).await?;
        fleet.rollout("later", &second, RolloutPhase::Succeeded).await?;
        assert_eq!(value(&running, "later").await?, "two");
        wait::until(TIMEOUT, "no longer Stalled", async || {
            let group: SyncGroup = fleet.get("later").await.map_err(|e| e.to_string())?;
            let found = conditions_of(&group).map_err(|e| e.to_string())?;
            if conditions::find(&found, STALLED).is_none() {
                Ok(())
            } else {
                Err(format!("{found:?}"))
            }
        })
        .await?;
        Ok(())
    })
}
