//! The embedded API server with kube-rs: watchers, server-side apply, deletion.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::api::{
    Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, PropagationPolicy, WatchEvent, WatchParams,
};
use kube::core::PartialObjectMeta;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Client, ResourceExt as _};
use serde_json::json;
use starling_apiserver::journal::Verb;
use starling_apiserver::server::{ConnectionLimits, Options};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::world::{World, until};

fn config_map(name: &str, value: &str) -> ConfigMap {
    serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"app": "a"}}, "data": {"key": value},
    }))
    .unwrap()
}

async fn apply(client: &Client, name: &str, value: &str) -> ConfigMap {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let params = PatchParams::apply("test").force();
    maps.patch(name, &params, &Patch::Apply(config_map(name, value)))
        .await
        .unwrap()
}

#[tokio::test]
async fn two_clusters_have_their_own_objects_identity_and_revisions() {
    let world = World::new().await;
    let (_one, east) = world.cluster("east").await;
    let (_other, west) = world.cluster("west").await;
    apply(&east, "only-here", "1").await;
    let uid = |client: Client| async move {
        let namespaces: Api<Namespace> = Api::all(client);
        namespaces.get("kube-system").await.unwrap().uid().unwrap()
    };
    assert_ne!(uid(east.clone()).await, uid(west.clone()).await);
    let maps: Api<ConfigMap> = Api::namespaced(west.clone(), "default");
    assert!(maps.get_opt("only-here").await.unwrap().is_none());
    let wrong = world.server.cluster("east").unwrap().token();
    let config = kube::Config::from_custom_kubeconfig(
        kube::config::Kubeconfig::from_yaml(
            &world
                .server
                .cluster("west")
                .unwrap()
                .kubeconfig()
                .replace(&world.server.cluster("west").unwrap().token(), &wrong),
        )
        .unwrap(),
        &kube::config::KubeConfigOptions::default(),
    )
    .await
    .unwrap();
    let maps: Api<ConfigMap> = Api::namespaced(Client::try_from(config).unwrap(), "default");
    let refused = maps.get("x").await.unwrap_err();
    assert!(matches!(refused, kube::Error::Api(status) if status.code == 401));
}

/// Watches with an initial list, and with `sendInitialEvents`.
#[tokio::test]
async fn a_watcher_sees_each_change_once_and_in_order() {
    for config in [
        watcher::Config::default(),
        watcher::Config::default().streaming_lists(),
        watcher::Config::default().page_size(1),
    ] {
        let world = World::new().await;
        let (_cluster, client) = world.cluster("a").await;
        apply(&client, "first", "1").await;
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
        let mut events = watcher(maps.clone(), config.clone().labels("app=a")).boxed();
        let mut seen = Vec::new();
        let mut listed = false;
        while let Some(event) = events.try_next().await.unwrap() {
            match event {
                Event::Init => seen.push("init".to_owned()),
                Event::InitApply(map) => seen.push(format!("there {}", map.name_any())),
                Event::InitDone => {
                    seen.push("done".to_owned());
                    apply(&client, "second", "1").await;
                    apply(&client, "second", "2").await;
                    let out_of_sight = Patch::Merge(json!({"metadata": {"labels": {"app": "b"}}}));
                    maps.patch("first", &PatchParams::default(), &out_of_sight)
                        .await
                        .unwrap();
                    maps.delete("second", &DeleteParams::default()).await.unwrap();
                    apply(&client, "last", "1").await;
                    assert!(!listed);
                    listed = true;
                }
                Event::Apply(map) => {
                    seen.push(format!("{} {}", map.name_any(), map.data.unwrap()["key"]));
                    if seen.last().unwrap().starts_with("last") {
                        break;
                    }
                }
                Event::Delete(map) => seen.push(format!("gone {}", map.name_any())),
            }
        }
        assert_eq!(
            seen,
            [
                "init",
                "there first",
                "done",
                "second 1",
                "second 2",
                "gone first",
                "gone second",
                "last 1"
            ],
            "{config:?}"
        );
    }
}

#[tokio::test]
async fn a_watch_of_a_compacted_revision_gets_410() {
    let world = World::new().await;
    let (cluster, client) = world.cluster("a").await;
    let old = apply(&client, "x", "1").await.resource_version().unwrap();
    apply(&client, "x", "2").await;
    apply(&client, "x", "3").await;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let mut events = maps.watch(&WatchParams::default(), &old).await.unwrap().boxed();
    let Some(WatchEvent::Modified(map)) = events.try_next().await.unwrap() else {
        panic!("the past is still known");
    };
    assert_eq!(map.data.unwrap()["key"], "2");

    cluster.compact();
    let mut events = maps.watch(&WatchParams::default(), &old).await.unwrap().boxed();
    let Some(WatchEvent::Error(status)) = events.try_next().await.unwrap() else {
        panic!("the past is forgotten");
    };
    assert_eq!((status.code, status.reason.as_str()), (410, "Expired"));
}

/// A paged list shows its first revision whatever is written meanwhile; after compaction it continues with another.
#[tokio::test]
async fn a_paged_list_shows_one_revision() {
    let world = World::new().await;
    let (cluster, client) = world.cluster("a").await;
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "default");
    let make = |name: String| {
        let secret = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        let secrets = secrets.clone();
        async move { secrets.create(&PostParams::default(), &secret).await.unwrap() }
    };
    for number in 0..5 {
        make(format!("s{number}")).await;
    }
    let first = secrets.list(&ListParams::default().limit(2)).await.unwrap();
    assert_eq!(first.metadata.remaining_item_count, Some(3));
    make("s2a".to_owned()).await;
    secrets.delete("s4", &DeleteParams::default()).await.unwrap();
    let token = first.metadata.continue_.clone().unwrap();
    let second = secrets
        .list(&ListParams::default().limit(2).continue_token(&token))
        .await
        .unwrap();
    let names =
        |list: &kube::core::ObjectList<Secret>| list.iter().map(|one| one.name_any()).collect::<Vec<_>>();
    assert_eq!(names(&second), ["s2", "s3"]);
    assert_eq!(first.metadata.resource_version, second.metadata.resource_version);
    let token = second.metadata.continue_.clone().unwrap();
    cluster.compact();
    let refused = secrets
        .list(&ListParams::default().continue_token(&token))
        .await
        .unwrap_err();
    assert!(matches!(refused, kube::Error::Api(status) if status.code == 410));
    assert_eq!(
        names(&secrets.list(&ListParams::default()).await.unwrap()),
        ["s0", "s1", "s2", "s2a", "s3"]
    );
}

#[tokio::test]
async fn metadata_only_responses_have_only_metadata() {
    let world = World::new().await;
    let (_cluster, client) = world.cluster("a").await;
    apply(&client, "x", "1").await;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let one = maps.get_metadata("x").await.unwrap();
    assert_eq!(one.labels()["app"], "a");
    assert_eq!(one.types.unwrap().kind, "PartialObjectMetadata");
    let list = maps
        .list_metadata(&ListParams::default().labels("app"))
        .await
        .unwrap();
    assert_eq!(list.items.len(), 1);
    let patched: PartialObjectMeta<ConfigMap> = maps
        .patch_metadata(
            "x",
            &PatchParams::default(),
            &Patch::Merge(json!({"metadata": {"annotations": {"a": "b"}}})),
        )
        .await
        .unwrap();
    assert_eq!(patched.annotations()["a"], "b");
}

/// An apply that changes nothing writes nothing: no revision, no event, no journal entry.
#[tokio::test]
async fn the_journal_has_each_write_and_nothing_else() {
    let world = World::new().await;
    let (cluster, client) = world.cluster("a").await;
    let before = cluster.journal().len();
    let first = apply(&client, "x", "1").await;
    let again = apply(&client, "x", "1").await;
    assert_eq!(first.resource_version(), again.resource_version());
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let dry = PatchParams::apply("test").force().dry_run();
    maps.patch("x", &dry, &Patch::Apply(config_map("x", "9")))
        .await
        .unwrap();
    apply(&client, "x", "2").await;
    maps.delete("x", &DeleteParams::default()).await.unwrap();
    let journal = cluster.journal();
    let written: Vec<_> = journal[before..]
        .iter()
        .map(|entry| (entry.verb, entry.key().to_string(), entry.manager.to_string()))
        .collect();
    let key = "default/x".to_owned();
    assert_eq!(written[0], (Verb::Create, key.clone(), "test".to_owned()));
    assert_eq!(written[1], (Verb::Apply, key.clone(), "test".to_owned()));
    assert_eq!((written[2].0, &written[2].1), (Verb::Delete, &key));
    assert_eq!(written.len(), 3);
    assert!(
        journal
            .windows(2)
            .all(|pair| pair[0].revision() < pair[1].revision())
    );
}

#[tokio::test]
async fn a_deployment_becomes_healthy_and_its_dependents_are_deleted() {
    let world = World::new().await;
    let (_cluster, client) = world.cluster("a").await;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "default");
    let web = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"replicas": 3, "selector": {"matchLabels": {"a": "b"}}, "template": {
            "metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "nginx:1"}]}}},
    });
    let web = deployments
        .patch("web", &PatchParams::apply("test"), &Patch::Apply(web))
        .await
        .unwrap();
    until("a healthy Deployment", || async {
        let status = deployments.get("web").await.unwrap().status?;
        (status.available_replicas == Some(3)).then_some(())
    })
    .await;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let mut dependent = config_map("dependent", "1");
    dependent.metadata.owner_references = Some(vec![serde_json::from_value(json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": web.uid().unwrap(), "blockOwnerDeletion": true}))
    .unwrap()]);
    maps.create(&PostParams::default(), &dependent).await.unwrap();
    let mut labels = BTreeMap::new();
    labels.insert("never", "set");
    let params = DeleteParams {
        propagation_policy: Some(PropagationPolicy::Foreground),
        ..DeleteParams::default()
    };
    deployments.delete("web", &params).await.unwrap();
    until("an empty namespace", || async {
        let gone = maps.get_opt("dependent").await.unwrap().is_none()
            && deployments.get_opt("web").await.unwrap().is_none();
        gone.then_some(())
    })
    .await;
}

#[tokio::test]
async fn the_admin_path_creates_and_removes_clusters() {
    let world = World::new().await;
    let (cluster, client) = world.cluster("first").await;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let mut events = maps.watch(&WatchParams::default(), "0").await.unwrap().boxed();
    events.try_next().await.unwrap().unwrap();
    let admin = |method: &str, path: &str| {
        let request = http::Request::builder()
            .method(method)
            .uri(path)
            .header("authorization", format!("Bearer {}", world.server.admin_token()));
        request.body(kube::client::Body::empty()).unwrap()
    };
    // A client of the server itself: the same authority, no path.
    let mut config = kube::Config::new(world.server.url().unwrap().parse().unwrap());
    config.root_cert = Some(
        kube::config::Kubeconfig::from_yaml(&cluster.kubeconfig())
            .unwrap()
            .clusters
            .iter()
            .map(|_| pem_body(&world.server.ca_pem()))
            .collect(),
    );
    let plain = Client::try_from(config).unwrap();
    assert_eq!(
        plain
            .send(admin("POST", "/admin/clusters/second"))
            .await
            .unwrap()
            .status(),
        201
    );
    assert_eq!(
        plain
            .send(admin("POST", "/admin/clusters/second"))
            .await
            .unwrap()
            .status(),
        409
    );
    assert_eq!(world.server.clusters(), ["first", "second"]);
    assert_eq!(
        plain
            .send(admin("DELETE", "/admin/clusters/first"))
            .await
            .unwrap()
            .status(),
        200
    );
    assert!(
        events.try_next().await.unwrap().is_none(),
        "the watch ends with its cluster"
    );
    assert!(maps.get("x").await.is_err());
    let without = http::Request::get("/admin/clusters")
        .body(kube::client::Body::empty())
        .unwrap();
    assert_eq!(plain.send(without).await.unwrap().status(), 401);
}

fn pem_body(pem: &str) -> Vec<u8> {
    use base64::Engine as _;
    let body: String = pem.lines().filter(|line| !line.starts_with("--")).collect();
    base64::engine::general_purpose::STANDARD.decode(body).unwrap()
}

/// Guards against connections without credentials that end the server for its users.
#[tokio::test]
async fn tenant_connections_without_credentials_are_bounded_in_number_and_time() {
    let limits = ConnectionLimits {
        open: 2,
        handshake: Duration::from_millis(300),
        ..ConnectionLimits::default()
    };
    let world = World::with(Options {
        connections: limits,
        ..Options::default()
    })
    .await;
    let address = world
        .server
        .url()
        .unwrap()
        .strip_prefix("https://")
        .unwrap()
        .to_owned();
    let connect = async || tokio::net::TcpStream::connect(&address).await.unwrap();
    // Both send nothing.
    let mut silent = [connect().await, connect().await];
    let end = async |stream: &mut tokio::net::TcpStream| {
        let read = tokio::time::timeout(Duration::from_secs(30), stream.read(&mut [0])).await;
        // A connection that is closed before anything was read of it may be reset.
        assert!(matches!(read, Ok(Ok(0) | Err(_))), "{read:?}");
    };
    end(&mut connect().await).await;
    for stream in &mut silent {
        end(stream).await;
    }
    let (_, client) = world.cluster("a").await;
    assert!(client.apiserver_version().await.is_ok());
}

/// Guards against one user whose watches use up the memory of all clusters of the server.
#[tokio::test]
async fn tenant_watches_of_one_user_are_bounded() {
    let connections = ConnectionLimits {
        watches: 2,
        ..ConnectionLimits::default()
    };
    let world = World::with(Options {
        connections,
        ..Options::default()
    })
    .await;
    let (cluster, client) = world.cluster("a").await;
    let (_, other) = world.cluster("b").await;
    let watch = async |client: &Client| {
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
        maps.watch(&WatchParams::default(), "0").await.unwrap()
    };
    // Over a raw stream, since clients hide their retries.
    let code = async || {
        let (mut ours, theirs) = tokio::io::duplex(4096);
        let server = world.server.clone();
        tokio::spawn(async move { server.serve(theirs).await });
        let request = format!(
            "GET /clusters/a/api/v1/configmaps?watch=true HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\n\r\n",
            cluster.token()
        );
        ours.write_all(request.as_bytes()).await.unwrap();
        let mut first = [0; 12];
        ours.read_exact(&mut first).await.unwrap();
        String::from_utf8_lossy(&first).into_owned()
    };
    let mut open = vec![watch(&client).await, watch(&client).await];
    assert_eq!(code().await, "HTTP/1.1 429");
    drop(watch(&other).await);
    open.pop();
    // The server notices that the client closed the stream.
    let start = std::time::Instant::now();
    while code().await != "HTTP/1.1 200" {
        assert!(start.elapsed() < Duration::from_secs(30), "the place is not free");
        tokio::task::yield_now().await;
    }
}
