//! The user of Starling in a run: sets the fleet up, removes Clusters, adds them again and moves them between stages.
//! Actions on rollouts are in [`crate::operator`].

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use starling_api::{Cluster, Source, SyncGroup};

use crate::content::FOLDER;
use crate::net;
use crate::operator::Operator;
use crate::script::{Event, MEMBERS, member};
use crate::staged::STAGE_LABEL;
use crate::world::{HUB, World};

/// The namespace of all objects.
pub(crate) const NAMESPACE: &str = "fleet";
/// The URL of the repository.
pub(crate) const URL: &str = "https://git.example.com/shop.git";
/// The name of the group.
pub(crate) const GROUP: &str = "shop";
/// Pause between two attempts, and between two checks for tasks.
const PAUSE: Duration = Duration::from_millis(500);

/// Sets the fleet up and runs tasks.
pub(crate) async fn act_as_user(world: Arc<World>) -> anyhow::Result<()> {
    // The server is up after its host's first tick.
    tokio::time::sleep(PAUSE).await;
    let hub = net::client(HUB, &world.cluster(HUB)?.token())?;
    set_up(&world, &hub).await?;
    world.ready.store(true, Ordering::SeqCst);
    let mut stages = first_stages(&world);
    let mut operator = Operator::default();
    loop {
        let task = world
            .tasks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .front()
            .cloned();
        if let Some(task) = task {
            // The management cluster may have a fault.
            let done = tokio::time::timeout(
                Duration::from_secs(10),
                run_task(&world, &hub, &task, &mut stages, &mut operator),
            )
            .await;
            if matches!(done, Ok(Ok(()))) {
                world
                    .tasks
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .pop_front();
                continue;
            }
        } else if world.staged.is_some() {
            let result = tokio::time::timeout(Duration::from_secs(10), operator.act(&world, &hub)).await;
            if let Ok(Err(error)) = result {
                tracing::info!(error = %format!("{error:#}"), "the operator could not act");
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn set_up(world: &World, hub: &Client) -> anyhow::Result<()> {
    let definitions: Api<CustomResourceDefinition> = Api::all(hub.clone());
    for definition in starling_api::definitions() {
        put(&definitions, &serde_json::to_value(&definition)?).await?;
    }
    tokio::time::sleep(PAUSE).await;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    put(&Api::<Namespace>::all(hub.clone()), &namespace).await?;
    let stages = first_stages(world);
    for number in 0..MEMBERS {
        let name = member(number);
        if world
            .staged
            .as_ref()
            .is_some_and(|staged| staged.late_members.contains(&number))
        {
            continue;
        }
        put(&namespaced::<Secret>(hub), &secret(world, &name)?).await?;
        put(&namespaced::<Cluster>(hub), &cluster(&name, true, &stages)).await?;
    }
    let source = json!({"apiVersion": "starling.dev/v1alpha1", "kind": "Source", "metadata": {"name": "shop"},
        "spec": {"url": URL, "ref": {"branch": "main"}, "interval": "5s",
            "timeout": "5s"}});
    put(&namespaced::<Source>(hub), &source).await?;
    let has_stages = world
        .staged
        .as_ref()
        .is_some_and(|staged| !staged.starts_without_stages);
    put(&namespaced::<SyncGroup>(hub), &group_manifest(world, has_stages)).await
}

/// Returns the group, with or without stages.
fn group_manifest(world: &World, has_stages: bool) -> Value {
    let pace = json!({"maxConcurrency": 3, "maxFailures": "100%"});
    let staged = world.staged.as_ref().filter(|_| has_stages);
    let strategy = staged.map_or(pace, |staged| staged.strategy.clone());
    json!({"apiVersion": "starling.dev/v1alpha1", "kind": "SyncGroup", "metadata": {"name": GROUP},
        "spec": {"clusterSelector": {"matchLabels": {"fleet": "shop"}}, "unselectedGrace": "5s",
            "syncs": [{"name": "app", "sourceRef": {"name": "shop"}, "path": FOLDER, "wait": true,
                "substitute": {"CLUSTER": "$(cluster.name)"},
                "timeout": "1m", "interval": "1m", "retryInterval": "5s"}],
            "rolloutStrategy": strategy}})
}

fn secret(world: &World, name: &str) -> anyhow::Result<Value> {
    let kubeconfig = json!({"apiVersion": "v1", "kind": "Config", "current-context": name,
        "clusters": [{"name": name, "cluster": {"server": net::url(name)}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "users": [{"name": name, "user": {"token": world.cluster(name)?.token()}}]});
    Ok(
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": format!("{name}-kubeconfig")},
        "stringData": {"value": kubeconfig.to_string()}}),
    )
}

/// The stage of each member, by name; none without stages.
type Stages = BTreeMap<String, &'static str>;

fn first_stages(world: &World) -> Stages {
    let stages = world.staged.iter().flat_map(|staged| &staged.stages);
    stages
        .enumerate()
        .map(|(number, stage)| (member(number), *stage))
        .collect()
}

fn cluster(name: &str, selected: bool, stages: &Stages) -> Value {
    let mut labels = if selected {
        json!({"fleet": "shop"})
    } else {
        json!({})
    };
    if let Some(stage) = stages.get(name) {
        labels[STAGE_LABEL] = (*stage).into();
    }
    json!({"apiVersion": "starling.dev/v1alpha1", "kind": "Cluster",
        "metadata": {"name": name, "labels": labels},
        "spec": {"kubeConfig": {"secretRef": {"name": format!("{name}-kubeconfig")}}}})
}

async fn run_task(
    world: &World,
    hub: &Client,
    task: &Event,
    stages: &mut Stages,
    operator: &mut Operator,
) -> anyhow::Result<()> {
    let clusters = namespaced::<Cluster>(hub);
    match task {
        Event::Label {
            cluster: name,
            selected,
        } => {
            // Setting a label must not recreate a deleted Cluster.
            if clusters.get_opt(name).await?.is_some() {
                put(&clusters, &cluster(name, *selected, stages)).await?;
            }
        }
        Event::Cluster {
            cluster: name,
            present: true,
        } => {
            put(&namespaced::<Secret>(hub), &secret(world, name)?).await?;
            put(&clusters, &cluster(name, true, stages)).await?;
        }
        Event::Cluster {
            cluster: name,
            present: false,
        } => {
            if clusters.get_opt(name).await?.is_some() {
                clusters.delete(name, &DeleteParams::default()).await?;
            }
        }
        Event::Move { cluster: name, stage } => {
            stages.insert(name.clone(), stage);
            if let Some(existing) = clusters.get_opt(name).await? {
                let selected = existing.labels().contains_key("fleet");
                put(&clusters, &cluster(name, selected, stages)).await?;
            }
        }
        Event::Stages => put(&namespaced::<SyncGroup>(hub), &group_manifest(world, true)).await?,
        Event::Act(word) => operator.run(world, hub, word).await?,
        Event::Edit { cluster: name } => {
            let member = net::client(name, &world.cluster(name)?.token())?;
            let settings: Api<ConfigMap> = Api::namespaced(member, "shop");
            let edit = json!({"data": {"revision": "edited"}});
            match settings
                .patch("settings", &PatchParams::default(), &Patch::Merge(&edit))
                .await
            {
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                other => drop(other?),
            }
        }
        other => anyhow::bail!("{other:?} is not a task of the user"),
    }
    Ok(())
}

async fn put<K>(api: &Api<K>, object: &Value) -> anyhow::Result<()>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Serialize,
{
    let name = object["metadata"]["name"].as_str().context("a name")?;
    let params = PatchParams::apply("user").force();
    api.patch(name, &params, &Patch::Apply(object)).await?;
    Ok(())
}

pub(crate) fn namespaced<K>(hub: &Client) -> Api<K>
where
    K: Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
{
    Api::namespaced(hub.clone(), NAMESPACE)
}

/// Returns the current group in the management cluster.
pub(crate) fn group(world: &World) -> anyhow::Result<SyncGroup> {
    let stored = world
        .cluster(HUB)?
        .stored("syncgroups.starling.dev", &format!("{NAMESPACE}/{GROUP}"))
        .context("there is none")?;
    Ok(serde_json::from_value(stored.read())?)
}

/// Returns the differences of the group's status from a finished last rollout.
pub(crate) fn not_done(world: &World) -> Vec<String> {
    let group = match group(world) {
        Ok(group) => group,
        Err(error) => return vec![format!("the group cannot be read: {error:#}")],
    };
    let newest = world.git.head("main").unwrap_or_default();
    let status = group.status.clone().unwrap_or_default();
    let rollout = status.rollout.clone().unwrap_or_default();
    let mut problems = Vec::new();
    if !rollout
        .revisions
        .iter()
        .any(|entry| entry.revision.ends_with(&newest))
    {
        problems.push(format!(
            "{}: rolls {:?} and not {newest}",
            group.name_any(),
            rollout.revisions
        ));
    }
    if rollout.phase != starling_api::RolloutPhase::Succeeded {
        problems.push(format!(
            "{}: {:?}, {:?}, {:?}, {:?}",
            group.name_any(),
            rollout.phase,
            status.clusters,
            status.problems,
            rollout.blocked_by
        ));
    }
    problems
}
