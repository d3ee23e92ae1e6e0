//! Faults as clients see them.

use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Api, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Client, Error, ResourceExt as _};
use serde_json::json;
use starling_apiserver::faults::{Effect, Fault};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::world::World;

async fn write(client: &Client, value: &str) -> Result<ConfigMap, Error> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let map =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"key": value}});
    maps.patch("x", &PatchParams::apply("test"), &Patch::Apply(map))
        .await
}

async fn read(client: &Client) -> Result<String, Error> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let map = maps.get("x").await?;
    Ok(map.data.unwrap_or_default().remove("key").unwrap_or_default())
}

#[tokio::test]
async fn each_fault_has_its_effect_on_clients() {
    let world = World::new().await;
    let (cluster, client) = world.cluster("a").await;
    let faults = cluster.faults();
    write(&client, "1").await.unwrap();

    // The request fails, retried or not, and nothing is written.
    let before = cluster.written();
    let id = faults.add(Fault::always(Effect::Refuse).on(&["patch"]));
    assert!(!matches!(write(&client, "2").await.unwrap_err(), Error::Api(_)));
    faults.remove(id);
    assert_eq!(cluster.written(), before);

    // The write is committed, and its response is lost.
    faults.add(
        Fault::always(Effect::LoseResponse)
            .on(&["patch"])
            .of(&["configmaps"])
            .times(1),
    );
    assert!(!matches!(write(&client, "3").await.unwrap_err(), Error::Api(_)));
    assert_eq!(read(&client).await.unwrap(), "3");

    faults.add(Fault::always(Effect::Error(500)).on(&["get"]).times(1));
    assert!(matches!(read(&client).await.unwrap_err(), Error::Api(status) if status.code == 500));

    // kube-rs retries 429 responses.
    let hits = faults.hits();
    faults.add(Fault::always(Effect::Error(503)).on(&["get"]).times(1));
    assert_eq!(read(&client).await.unwrap(), "3");
    assert_eq!(faults.hits(), hits + 1);

    faults.add(Fault::always(Effect::Garbage).on(&["get"]).times(1));
    assert!(!matches!(read(&client).await.unwrap_err(), Error::Api(_)));

    faults.add(Fault::always(Effect::CutAnswer).on(&["get"]).times(1));
    assert!(!matches!(read(&client).await.unwrap_err(), Error::Api(_)));

    // The state of one write ago.
    write(&client, "4").await.unwrap();
    faults.add(Fault::always(Effect::Stale(1)).on(&["get"]).times(1));
    assert_eq!(read(&client).await.unwrap(), "3");
    assert_eq!(read(&client).await.unwrap(), "4");

    let id = faults.add(Fault::always(Effect::BlackHole).on(&["get"]));
    let waited = tokio::time::timeout(Duration::from_millis(200), read(&client)).await;
    assert!(waited.is_err(), "nothing comes");
    faults.remove(id);
    assert_eq!(read(&client).await.unwrap(), "4");
}

#[tokio::test]
async fn too_many_requests_has_retry_after() {
    let world = World::new().await;
    let (cluster, client) = world.cluster("a").await;
    write(&client, "1").await.unwrap();
    cluster.faults().add(
        Fault::always(Effect::TooMany(7))
            .on(&["get"])
            .named(&["x"])
            .times(1),
    );
    // Over a raw stream, since clients hide their retries.
    let (mut ours, theirs) = tokio::io::duplex(4096);
    let server = world.server.clone();
    tokio::spawn(async move { server.serve(theirs).await });
    let request = format!(
        "GET /clusters/a/api/v1/namespaces/default/configmaps/x HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {}\r\nConnection: close\r\n\r\n",
        cluster.token()
    );
    ours.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    ours.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
    assert!(answer.contains("retry-after: 7\r\n"), "{answer}");
    assert!(answer.contains("\"retryAfterSeconds\":7"), "{answer}");
}

#[tokio::test]
async fn faults_end_and_expire_watches() {
    let world = World::new().await;
    let (cluster, client) = world.cluster("a").await;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let first = write(&client, "1").await.unwrap().resource_version().unwrap();
    for effect in [Effect::CutWatch(1), Effect::ExpireWatch(1)] {
        cluster
            .faults()
            .add(Fault::always(effect.clone()).on(&["watch"]).times(1));
        let mut events = maps.watch(&WatchParams::default(), &first).await.unwrap().boxed();
        write(&client, &format!("{effect:?}")).await.unwrap();
        assert!(matches!(
            events.try_next().await.unwrap().unwrap(),
            WatchEvent::Modified(_)
        ));
        match (effect, events.try_next().await) {
            (Effect::CutWatch(_), Err(_) | Ok(None)) => {}
            (Effect::ExpireWatch(_), Ok(Some(WatchEvent::Error(status)))) => assert_eq!(status.code, 410),
            (effect, other) => panic!("{effect:?}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_frozen_watch_sends_nothing_and_does_not_end() {
    let world = World::new().await;
    let (cluster, client) = world.cluster("a").await;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    let secrets: Api<Secret> = Api::namespaced(client.clone(), "default");
    let params = WatchParams::default();
    let version = cluster.revision().to_string();
    let mut open = maps.watch(&params, &version).await.unwrap().boxed();
    let mut other = secrets.watch(&params, &version).await.unwrap().boxed();
    let faults = cluster.faults();
    let freeze = Fault::always(Effect::FreezeWatch).of(&["configmaps"]);
    let id = faults.add(freeze.times(1).one_in(9));
    let mut new = maps.watch(&params, &version).await.unwrap().boxed();

    write(&client, "1").await.unwrap();
    let secret = serde_json::from_value(json!({"metadata": {"name": "x"}})).unwrap();
    secrets.create(&PostParams::default(), &secret).await.unwrap();
    assert!(matches!(other.next().await, Some(Ok(WatchEvent::Added(_)))));
    assert_eq!(read(&client).await.unwrap(), "1");
    let pause = Duration::from_millis(200);
    assert!(tokio::time::timeout(pause, open.next()).await.is_err());
    assert!(tokio::time::timeout(pause, new.next()).await.is_err());

    faults.remove(id);
    assert!(tokio::time::timeout(pause, open.next()).await.is_err());
    let mut later = maps.watch(&params, &version).await.unwrap().boxed();
    assert!(matches!(later.next().await, Some(Ok(WatchEvent::Added(_)))));
}
