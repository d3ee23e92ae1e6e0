//! Deletions by other controllers: namespaces, definitions, garbage collectors, rebuilt clusters. They need controllers
//! beside the API servers, or stop clusters that other tests use, so each test has its own fleet.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use anyhow::{Context, Result};
use http::Method;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use starling_api::{Cluster, FINALIZER, RolloutPhase, Source, SyncGroup, SyncResource};
use starling_controlplane::Process;
use starling_testkit::fleet::{MANAGEMENT, NAMESPACE, TIMEOUT};
use starling_testkit::{Fleet, FleetOptions, GitRepo, program, wait};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::world::{config_map, is_ready, sync_ready};

async fn fleet(members: usize, managers: &[&str]) -> Result<Fleet> {
    Fleet::start(FleetOptions {
        members,
        audit: true,
        proxied: true,
        apiserver_flags: Vec::new(),
        managers: managers.iter().map(|name| (*name).to_owned()).collect(),
    })
    .await
}

/// Adds the log of the program to an error.
fn with_log<T>(result: Result<T>, controller: &Process) -> Result<T> {
    result.map_err(|error| {
        let log = controller.log_tail(60).unwrap_or_default();
        error.context(format!("the controller logged\n{log}\n"))
    })
}

async fn values(client: &Client, namespace: &str, names: &[&str]) -> Result<Vec<Option<String>>> {
    let api: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let mut values = Vec::new();
    for name in names {
        let map = api.get_opt(name).await?;
        values.push(map.and_then(|map| map.data.unwrap_or_default().remove("value")));
    }
    Ok(values)
}

fn present(count: usize) -> Vec<Option<String>> {
    vec![Some("one".to_owned()); count]
}

async fn put_sync(fleet: &Fleet, name: &str, fields: Value) -> Result<()> {
    let mut spec = json!({"clusterRef": {"name": "m1"}, "sourceRef": {"name": "shop"}, "path": "./app",
        "deletionPolicy": "Delete", "retryInterval": "1s"});
    if let (Some(spec), Value::Object(fields)) = (spec.as_object_mut(), fields) {
        spec.extend(fields);
    }
    let sync = json!({"metadata": {"name": name}, "spec": spec});
    fleet.put::<SyncResource>(sync).await?;
    let done = |sync: &SyncResource| sync_ready(sync).0 == "True";
    fleet.until(name, "Ready", done).await?;
    Ok(())
}

/// Waits until an API has no object of this name.
async fn until_gone<K>(api: &Api<K>, name: &str) -> Result<()>
where
    K: kube::Resource + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    wait::until(TIMEOUT, format!("{name} is gone"), async || {
        let found = api.get_opt(name).await.map_err(|e| e.to_string())?;
        found.map_or(Ok(()), |found| Err(format!("{found:?}")))
    })
    .await?;
    Ok(())
}

async fn register(fleet: &Fleet, repo: &GitRepo) -> Result<()> {
    fleet.add_cluster("m1", &[]).await?;
    fleet
        .put_source("shop", &repo.url(), json!({"branch": "main"}))
        .await
}

/// The garbage collector, a deleted namespace, an uninstalled definition: each deletes Syncs with policy `Delete`, and
/// none is intended to delete the objects on the members.
#[tokio::test(flavor = "multi_thread")]
async fn unintended_deletions_on_the_management_cluster_delete_no_objects() -> Result<()> {
    let fleet = fleet(1, &[MANAGEMENT]).await?;
    let repo = GitRepo::init()?;
    let first = repo.commit(&[("app/a.yaml", &config_map("a", "one"))], "one")?;
    register(&fleet, &repo).await?;
    let controller = fleet.controller(program(), &[])?;
    with_log(cascade(&fleet, &first).await, &controller)?;
    with_log(cluster_ends(&fleet).await, &controller)?;
    with_log(namespace_ends(&fleet).await, &controller)?;
    with_log(definition_goes(&fleet, &repo).await, &controller)
}

/// A Cluster is deleted and waits for a finalizer of somebody else: its Syncs go as those of one that is gone.
async fn cluster_ends(fleet: &Fleet) -> Result<()> {
    put_sync(fleet, "alone", json!({})).await?;
    let (clusters, syncs) = (fleet.api::<Cluster>(), fleet.api::<SyncResource>());
    let hold = json!({"metadata": {"finalizers": ["example.com/hold"]}});
    fleet.patch::<Cluster>("m1", hold).await?;
    clusters.delete("m1", &DeleteParams::default()).await?;
    syncs.delete("alone", &DeleteParams::default()).await?;
    until_gone(&syncs, "alone").await?;
    assert_eq!(
        values(&fleet.member("m1").await?, "default", &["a"]).await?,
        present(1)
    );
    let release = json!({"metadata": {"finalizers": null}});
    fleet.patch::<Cluster>("m1", release).await?;
    until_gone(&clusters, "m1").await?;
    fleet.add_cluster("m1", &[]).await?;
    Ok(())
}

/// `kubectl delete --cascade=foreground`: the garbage collector deletes the Syncs, whose entry has policy `Delete`; the
/// group has `Orphan`.
async fn cascade(fleet: &Fleet, commit: &str) -> Result<()> {
    let entry =
        json!({"name": "app", "sourceRef": {"name": "shop"}, "path": "./app", "deletionPolicy": "Delete"});
    let spec = json!({"clusterSelector": {}, "syncs": [entry]});
    fleet.put_group("shop", spec).await?;
    fleet.rollout("shop", commit, RolloutPhase::Succeeded).await?;
    let sync: SyncResource = fleet.get("shop-app-m1").await?;
    assert_eq!(sync.finalizers(), [FINALIZER]);
    let groups = fleet.api::<SyncGroup>();
    groups.delete("shop", &DeleteParams::foreground()).await?;
    until_gone(&groups, "shop").await?;
    until_gone(&fleet.api::<SyncResource>(), "shop-app-m1").await?;
    let member = fleet.member("m1").await?;
    assert_eq!(values(&member, "default", &["a"]).await?, present(1));
    Ok(())
}

async fn namespace_ends(fleet: &Fleet) -> Result<()> {
    put_sync(fleet, "alone", json!({})).await?;
    let namespaces: Api<Namespace> = Api::all(fleet.hub().clone());
    namespaces.delete(NAMESPACE, &DeleteParams::default()).await?;
    until_gone(&namespaces, NAMESPACE).await?;
    let member = fleet.member("m1").await?;
    assert_eq!(values(&member, "default", &["a"]).await?, present(1));
    Ok(())
}

async fn definition_goes(fleet: &Fleet, repo: &GitRepo) -> Result<()> {
    let namespaces: Api<Namespace> = Api::all(fleet.hub().clone());
    let namespace = serde_json::from_value(json!({"metadata": {"name": NAMESPACE}}))?;
    namespaces.create(&PostParams::default(), &namespace).await?;
    register(fleet, repo).await?;
    put_sync(fleet, "alone", json!({})).await?;
    let definitions: Api<CustomResourceDefinition> = Api::all(fleet.hub().clone());
    definitions
        .delete("syncs.starling.dev", &DeleteParams::default())
        .await?;
    until_gone(&definitions, "syncs.starling.dev").await?;
    let member = fleet.member("m1").await?;
    assert_eq!(values(&member, "default", &["a"]).await?, present(1));
    let deleted = deletes(fleet, "m1", "/configmaps/a")?;
    assert_eq!(deleted, 0);
    Ok(())
}

fn deletes(fleet: &Fleet, member: &str, path_end: &str) -> Result<usize> {
    Ok(fleet.proxy(member)?.count(&Method::DELETE, path_end))
}

async fn hold(namespaces: &Api<Namespace>, name: &str, finalizers: Value) -> Result<()> {
    let patch = Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
    namespaces.patch(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// T34: a namespace that is Terminating and blocked by a finalizer.
#[tokio::test(flavor = "multi_thread")]
async fn t34_a_stuck_namespace_blocks_only_itself() -> Result<()> {
    let fleet = fleet(1, &["m1"]).await?;
    let repo = GitRepo::init()?;
    let in_stuck_namespace =
        |value: &str| config_map("a", value).replace("namespace: default", "namespace: stuck");
    let namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: own}\n";
    let in_own = config_map("c", "one").replace("namespace: default", "namespace: own");
    repo.commit(
        &[
            ("app/a.yaml", in_stuck_namespace("one").as_str()),
            ("app/b.yaml", config_map("b", "one").as_str()),
            ("own/namespace.yaml", namespace),
            ("own/c.yaml", in_own.as_str()),
            ("own/d.yaml", config_map("d", "one").as_str()),
        ],
        "one",
    )?;
    let member = fleet.member("m1").await?;
    let namespaces: Api<Namespace> = Api::all(member.clone());
    let stuck =
        serde_json::from_value(json!({"metadata": {"name": "stuck", "finalizers": ["example.test/hold"]}}))?;
    namespaces.create(&PostParams::default(), &stuck).await?;
    register(&fleet, &repo).await?;
    let controller = fleet.controller(program(), &[])?;
    put_sync(&fleet, "shop", json!({})).await?;
    put_sync(&fleet, "own", json!({"path": "./own"})).await?;
    with_log(
        applying_into_a_stuck_namespace(&fleet, &repo, &namespaces, &in_stuck_namespace("two")).await,
        &controller,
    )?;
    with_log(deleting_a_stuck_namespace(&fleet, &namespaces).await, &controller)
}

async fn applying_into_a_stuck_namespace(
    fleet: &Fleet,
    repo: &GitRepo,
    namespaces: &Api<Namespace>,
    changed: &str,
) -> Result<()> {
    namespaces.delete("stuck", &DeleteParams::default()).await?;
    let member = fleet.member("m1").await?;
    until_gone(&Api::<ConfigMap>::namespaced(member.clone(), "stuck"), "a").await?;
    let patches = || -> Result<usize> {
        let path = "/namespaces/stuck/configmaps/a";
        Ok(fleet.proxy("m1")?.patches(path))
    };
    let before = patches()?;
    let commit = repo.commit(
        &[
            ("app/a.yaml", changed),
            ("app/b.yaml", config_map("b", "two").as_str()),
        ],
        "two",
    )?;
    let failing = |sync: &SyncResource| {
        let status = sync.status.clone().unwrap_or_default();
        status.attempts >= 3 && status.last_attempted_revision.ends_with(&commit)
    };
    let sync = fleet.until("shop", "has failed three times", failing).await?;
    let attempted = patches()? - before;
    let status = sync.status.unwrap_or_default();
    let attempts = usize::try_from(status.attempts)?;
    // The fourth attempt may have started between the two reads.
    assert!(
        (attempts..=attempts + 1).contains(&attempted),
        "{attempted} tries in {attempts} attempts"
    );
    let untrue = status.conditions.iter().filter(|c| c.type_ == "Ready");
    assert_eq!(untrue.count(), 1);
    assert_eq!(status.problems.len(), 1, "{:?}", status.problems);
    assert_eq!(status.problems[0].object, "ConfigMap stuck/a");
    assert_eq!(
        values(&member, "default", &["b"]).await?,
        [Some("two".to_owned())],
        "objects in other namespaces are applied"
    );
    let stuck = namespaces.get("stuck").await?;
    assert_eq!(stuck.finalizers(), ["example.test/hold"]);

    hold(namespaces, "stuck", Value::Null).await?;
    until_gone(namespaces, "stuck").await?;
    let recreated = serde_json::from_value(json!({"metadata": {"name": "stuck"}}))?;
    namespaces.create(&PostParams::default(), &recreated).await?;
    let done = |sync: &SyncResource| sync_ready(sync).0 == "True";
    fleet.until("shop", "Ready again", done).await?;
    Ok(())
}

async fn deleting_a_stuck_namespace(fleet: &Fleet, namespaces: &Api<Namespace>) -> Result<()> {
    let member = fleet.member("m1").await?;
    hold(namespaces, "own", json!(["example.test/hold"])).await?;
    fleet.delete::<SyncResource>("own").await?;
    fleet.delete::<SyncResource>("shop").await?;
    // The other Sync is not blocked.
    until_gone(&fleet.api::<SyncResource>(), "shop").await?;
    let waits = |sync: &SyncResource| {
        let status = sync.status.clone().unwrap_or_default();
        sync_ready(sync) == ("False".into(), "Deleting".into()) && status.attempts >= 3
    };
    let sync = fleet.until("own", "waits for its namespace", waits).await?;
    let status = sync.status.unwrap_or_default();
    assert_eq!(status.problems.len(), 1, "{:?}", status.problems);
    assert_eq!(status.problems[0].object, "Namespace own");
    assert_eq!(values(&member, "default", &["b", "d"]).await?, [None, None]);
    assert_eq!(deletes(fleet, "m1", "/namespaces/own")?, 1, "told once");
    let own = namespaces.get("own").await?;
    assert_eq!(own.finalizers(), ["example.test/hold"]);
    hold(namespaces, "own", Value::Null).await?;
    until_gone(&fleet.api::<SyncResource>(), "own").await?;
    until_gone(namespaces, "own").await
}

/// One address that can be redirected to another cluster.
struct Address {
    port: u16,
    target: Arc<AtomicU16>,
    cut: watch::Sender<u64>,
}

impl Address {
    async fn of(target: u16) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        let target = Arc::new(AtomicU16::new(target));
        let cut = watch::Sender::new(0);
        let (to, cuts) = (target.clone(), cut.clone());
        tokio::spawn(async move {
            while let Ok((mut from, _)) = listener.accept().await {
                let port = to.load(Ordering::SeqCst);
                let mut cuts = cuts.subscribe();
                tokio::spawn(async move {
                    let Ok(mut to) = TcpStream::connect(("127.0.0.1", port)).await else {
                        return;
                    };
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut from, &mut to) => {}
                        _ = cuts.changed() => {}
                    }
                });
            }
        });
        Ok(Self { port, target, cut })
    }

    /// Redirects the address to this port, and cuts existing connections.
    fn redirect_to(&self, port: u16) {
        self.target.store(port, Ordering::SeqCst);
        self.cut.send_modify(|cuts| *cuts += 1);
    }
}

fn port_of(url: &str) -> Result<u16> {
    let port = url.rsplit(':').next().context("a port")?;
    Ok(port.trim_end_matches('/').parse()?)
}

/// Returns the kubeconfig of a member with the shared address.
fn kubeconfig_at(fleet: &Fleet, member: &str, address: &Address) -> Result<String> {
    let plane = fleet.plane(member)?;
    let url = format!("https://127.0.0.1:{}", address.port);
    Ok(plane.kubeconfig_yaml().replace(plane.url(), &url))
}

/// T70: the same Cluster, name and URL, but a rebuilt cluster with a restored backup of the old one: the same objects
/// and inventory, with new UIDs.
#[tokio::test(flavor = "multi_thread")]
async fn t70_a_rebuilt_cluster_gets_all_objects_and_loses_none() -> Result<()> {
    let fleet = fleet(2, &[]).await?;
    let repo = GitRepo::init()?;
    repo.commit(
        &[
            ("app/a.yaml", config_map("a", "one").as_str()),
            ("app/b.yaml", config_map("b", "one").as_str()),
        ],
        "one",
    )?;
    let (old, new) = (fleet.plane("m1")?, fleet.plane("m2")?);
    let address = Address::of(port_of(old.url())?).await?;
    fleet
        .add_cluster_at("m1", &kubeconfig_at(&fleet, "m1", &address)?, &[])
        .await?;
    fleet
        .put_source("shop", &repo.url(), json!({"branch": "main"}))
        .await?;
    let controller = fleet.controller(program(), &[])?;
    let interval = json!({"interval": "2s"});
    with_log(put_sync(&fleet, "shop", interval).await, &controller)?;
    let first: Cluster = fleet.get("m1").await?;
    let (from, to) = (old.client().await?, new.client().await?);

    // Nothing listens while the cluster is rebuilt, and `b` leaves the repository.
    address.redirect_to(starling_controlplane::free_port()?);
    let reconcile_request =
        json!({"metadata": {"annotations": {starling_api::REQUESTED_AT: "2026-01-01T00:00:00Z"}}});
    fleet.patch::<Cluster>("m1", reconcile_request).await?;
    fleet
        .until("m1", "away", |cluster: &Cluster| !is_ready(cluster))
        .await?;
    let commit = repo.remove(&["app/b.yaml"], "without b")?;
    let moved = |source: &Source| {
        let status = source.status.as_ref();
        status.is_some_and(|status| status.revision.ends_with(&commit))
    };
    fleet.until("shop", "at the second commit", moved).await?;
    restore(&from, &to, "starling-system").await?;
    let restored = restore(&from, &to, "default").await?;
    assert!(restored.contains(&"b".to_owned()), "{restored:?}");
    let maps: Api<ConfigMap> = Api::namespaced(to.clone(), "default");
    maps.delete("a", &DeleteParams::default()).await?;
    let b = maps.get("b").await?.uid();

    address.redirect_to(port_of(new.url())?);
    fleet
        .add_cluster_at("m1", &kubeconfig_at(&fleet, "m2", &address)?, &[])
        .await?;
    let another = |cluster: &Cluster| {
        let id = |cluster: &Cluster| cluster.status.clone().unwrap_or_default().cluster_id;
        is_ready(cluster) && id(cluster) != id(&first)
    };
    with_log(fleet.until("m1", "another cluster", another).await, &controller)?;
    let done = |sync: &SyncResource| {
        let status = sync.status.clone().unwrap_or_default();
        sync_ready(sync).0 == "True" && status.last_applied_revision.ends_with(&commit)
    };
    let sync = with_log(fleet.until("shop", "applied anew", done).await, &controller)?;
    let status = sync.status.unwrap_or_default();
    assert_eq!((status.changes.created, status.changes.deleted), (1, 0));
    let kube_system = Api::<Namespace>::all(to.clone()).get("kube-system").await?;
    assert_eq!(Some(status.last_applied_cluster_id), kube_system.uid());
    assert_eq!(values(&to, "default", &["a", "b"]).await?, present(2));
    assert_eq!(maps.get("b").await?.uid(), b, "not owned, because of its UID");

    // A deletion of the Sync deletes only the objects that were applied here.
    fleet.delete::<SyncResource>("shop").await?;
    until_gone(&fleet.api::<SyncResource>(), "shop").await?;
    assert_eq!(values(&to, "default", &["a"]).await?, [None]);
    assert_eq!(maps.get("b").await?.uid(), b);
    assert_eq!(values(&from, "default", &["a", "b"]).await?, present(2));
    Ok(())
}

/// Copies the ConfigMaps of a namespace as a backup tool does: without UIDs and managed fields.
async fn restore(from: &Client, to: &Client, namespace: &str) -> Result<Vec<String>> {
    let namespaces: Api<Namespace> = Api::all(to.clone());
    if namespaces.get_opt(namespace).await?.is_none() {
        let body = serde_json::from_value(json!({"metadata": {"name": namespace}}))?;
        namespaces.create(&PostParams::default(), &body).await?;
    }
    let source: Api<ConfigMap> = Api::namespaced(from.clone(), namespace);
    let target: Api<ConfigMap> = Api::namespaced(to.clone(), namespace);
    let mut copied = Vec::new();
    for map in source.list(&ListParams::default()).await? {
        let name = map.name_any();
        if target.get_opt(&name).await?.is_some() {
            continue;
        }
        let metadata = json!({"name": name, "labels": map.metadata.labels});
        let body = serde_json::from_value(json!({"metadata": metadata, "data": map.data}))?;
        target.create(&PostParams::default(), &body).await?;
        copied.push(name);
    }
    Ok(copied)
}
