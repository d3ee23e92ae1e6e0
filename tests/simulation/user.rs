//! The user of Starling in a run: sets the fleet up, removes Clusters, adds them again and moves them between stages.
//! Actions on rollouts are in [`crate::operator`].

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

use crate::content::{APP, EXTRA, FOLDER, FOREIGN};
use crate::extras::{Extras, add_fields};
use crate::net;
use crate::operator::Operator;
use crate::script::{Event, member};
use crate::staged::STAGE_LABEL;
use crate::wanted::Wanted;
use crate::world::{HUB, World};

/// The namespace of all objects.
pub(crate) const NAMESPACE: &str = "fleet";
/// The URL of the repository.
pub(crate) const URL: &str = "https://git.example.com/shop.git";
/// The name of the group.
pub(crate) const GROUP: &str = "shop";
/// The name of the group to which clusters move, and from which they return. It exists in runs with removals.
pub(crate) const OTHER: &str = "other";
/// Pause between two attempts, and between two checks for tasks.
const PAUSE: Duration = Duration::from_millis(500);

/// Sets the fleet up and runs tasks.
pub(crate) async fn act_as_user(world: Arc<World>) -> anyhow::Result<()> {
    // The server is up after its host's first tick.
    tokio::time::sleep(PAUSE).await;
    let hub = net::client(HUB, &world.cluster(HUB)?.token())?;
    set_up(&world, &hub).await?;
    world.ready.store(true, Ordering::SeqCst);
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
                run_task(&world, &hub, &task, &mut operator),
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
        } else {
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
    put_wanted(world, hub).await?;
    if let Some(extras) = &world.extras {
        make_before(world, extras).await?;
    }
    Ok(())
}

/// Writes everything as it is wanted.
async fn put_wanted(world: &World, hub: &Client) -> anyhow::Result<()> {
    let wanted = world.wanted().clone();
    for (name, cluster) in &wanted.clusters {
        if cluster.is_present {
            put(&namespaced::<Secret>(hub), &secret(world, name)?).await?;
            put(&namespaced::<Cluster>(hub), &cluster_manifest(&wanted, name)).await?;
        }
    }
    let source = json!({"apiVersion": "starling.dev/v1alpha1", "kind": "Source", "metadata": {"name": "shop"},
        "spec": {"url": URL, "ref": {"branch": "main"}, "interval": "5s",
            "timeout": "5s"}});
    put(&namespaced::<Source>(hub), &source).await?;
    put_groups(world, hub).await
}

/// Writes the groups as they are wanted.
pub(crate) async fn put_groups(world: &World, hub: &Client) -> anyhow::Result<()> {
    let wanted = world.wanted().clone();
    put(
        &namespaced::<SyncGroup>(hub),
        &group_manifest(world, &wanted, GROUP),
    )
    .await?;
    if world.extras.is_some() {
        put(
            &namespaced::<SyncGroup>(hub),
            &group_manifest(world, &wanted, OTHER),
        )
        .await?;
    }
    Ok(())
}

/// Creates a namespace with a Secret on some members before Starling does.
async fn make_before(world: &World, extras: &Extras) -> anyhow::Result<()> {
    for number in &extras.made_before {
        let name = member(*number);
        let client = net::client(&name, &world.cluster(&name)?.token())?;
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": EXTRA}});
        put(&Api::<Namespace>::all(client.clone()), &namespace).await?;
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": FOREIGN},
            "stringData": {"value": "not Starling's"}});
        put(&Api::<Secret>::namespaced(client, EXTRA), &secret).await?;
    }
    Ok(())
}

/// Returns a group as it is wanted. Only the group [`GROUP`] has stages.
fn group_manifest(world: &World, wanted: &Wanted, name: &str) -> Value {
    let pace = json!({"maxConcurrency": 3, "maxFailures": "100%"});
    let staged = world.staged.as_ref();
    let staged = staged.filter(|_| wanted.has_stages && name == GROUP);
    let strategy = staged.map_or(pace, |staged| staged.strategy.clone());
    let mut entries = vec![entry(world, APP, FOLDER)];
    if wanted.has_extra {
        entries.push(entry(world, EXTRA, EXTRA));
    }
    let mut spec = json!({"clusterSelector": {"matchLabels": {"fleet": name}}, "unselectedGrace": "5s",
        "syncs": entries, "rolloutStrategy": strategy});
    if let Some(extras) = &world.extras {
        add_fields(&mut spec, &extras.group);
    }
    if let Some(spec) = spec.as_object_mut()
        && !wanted.has_budget
    {
        spec.remove("deletionBudget");
    }
    if wanted.is_suspended {
        spec["suspend"] = true.into();
    }
    json!({"apiVersion": "starling.dev/v1alpha1", "kind": "SyncGroup", "metadata": {"name": name}, "spec": spec})
}

fn entry(world: &World, name: &str, path: &str) -> Value {
    let mut entry = json!({"name": name, "sourceRef": {"name": "shop"}, "path": path, "wait": true,
        "substitute": {"CLUSTER": "$(cluster.name)"},
        "timeout": "1m", "interval": "1m", "retryInterval": "5s"});
    if let Some(extras) = &world.extras {
        add_fields(&mut entry, &extras.entry);
    }
    entry
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

/// Returns a Cluster as it is wanted.
fn cluster_manifest(wanted: &Wanted, name: &str) -> Value {
    let mut labels = json!({});
    if let Some(cluster) = wanted.clusters.get(name) {
        if cluster.is_selected {
            labels["fleet"] = cluster.group.into();
        }
        if let Some(stage) = cluster.stage {
            labels[STAGE_LABEL] = stage.into();
        }
    }
    json!({"apiVersion": "starling.dev/v1alpha1", "kind": "Cluster",
        "metadata": {"name": name, "labels": labels},
        "spec": {"kubeConfig": {"secretRef": {"name": format!("{name}-kubeconfig")}}}})
}

async fn run_task(world: &World, hub: &Client, task: &Event, operator: &mut Operator) -> anyhow::Result<()> {
    // The lock must not be held while a request is under way.
    let wanted = {
        let mut wanted = world.wanted();
        wanted.change(task);
        wanted.clone()
    };
    let clusters = namespaced::<Cluster>(hub);
    match task {
        // Setting a label must not recreate a deleted Cluster.
        Event::Label { cluster: name, .. }
        | Event::Move { cluster: name, .. }
        | Event::Transfer { cluster: name, .. } => {
            if clusters.get_opt(name).await?.is_some() {
                put(&clusters, &cluster_manifest(&wanted, name)).await?;
            }
        }
        Event::Cluster {
            cluster: name,
            present: true,
        } => {
            put(&namespaced::<Secret>(hub), &secret(world, name)?).await?;
            put(&clusters, &cluster_manifest(&wanted, name)).await?;
        }
        Event::Cluster {
            cluster: name,
            present: false,
        } => {
            if clusters.get_opt(name).await?.is_some() {
                clusters.delete(name, &DeleteParams::default()).await?;
            }
        }
        Event::Remake => {
            put_wanted(world, hub).await?;
            let absent = wanted.clusters.iter().filter(|(_, cluster)| !cluster.is_present);
            for (name, _) in absent {
                if clusters.get_opt(name).await?.is_some() {
                    clusters.delete(name, &DeleteParams::default()).await?;
                }
            }
            world.is_old.store(false, Ordering::SeqCst);
        }
        Event::Stages | Event::Entry { .. } | Event::Suspend { .. } => put_groups(world, hub).await?,
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

/// Returns the differences of the groups' statuses from a finished last rollout.
pub(crate) fn not_done(world: &World) -> Vec<String> {
    let wanted = world.wanted().clone();
    let groups = [GROUP, OTHER]
        .into_iter()
        .filter(|name| wanted.has_clusters(name));
    groups.flat_map(|name| group_not_done(world, name)).collect()
}

fn group_not_done(world: &World, name: &str) -> Vec<String> {
    let group = match world.group(name) {
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
    // Each queued release rolls out, one after another; the newest is the last one.
    if !status.queue.is_empty() {
        problems.push(format!(
            "{}: {} releases wait",
            group.name_any(),
            status.queue.len()
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
