//! Real servers: isolation, stop and restart, audit log and metrics.
//!
//! Needs the programs that `tests/controlplane/build.sh` builds, or `KUBEBUILDER_ASSETS`.

#![allow(
    clippy::unwrap_used,
    reason = "functions shared by the tests of a file are tests too"
)]

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret, ServiceAccount};
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use starling_controlplane::{Assets, ControlPlane, ControlPlaneError, ControlPlanes, Options};

const SOON: Duration = Duration::from_secs(60);

async fn start(names: &[&str], options: Options) -> ControlPlanes {
    ControlPlanes::start(&Assets::find().unwrap(), names, options)
        .await
        .unwrap()
}

async fn config_maps(plane: &ControlPlane) -> Api<ConfigMap> {
    Api::namespaced(plane.client().await.unwrap(), "default")
}

fn config_map(name: &str) -> ConfigMap {
    serde_json::from_value(serde_json::json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"key": "value"},
    }))
    .unwrap()
}

async fn await_some<T>(what: &str, check: impl AsyncFn() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = check().await {
            return found;
        }
        assert!(start.elapsed() < SOON, "never came: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn planes_are_isolated_and_stop_with_the_set() {
    let mut planes = start(&["east", "west"], Options::default()).await;
    let east = config_maps(planes.get("east").unwrap()).await;
    east.create(&PostParams::default(), &config_map("only-east"))
        .await
        .unwrap();
    let west = config_maps(planes.get("west").unwrap()).await;
    assert!(west.get_opt("only-east").await.unwrap().is_none());

    // A token of one is not valid for the other.
    let (east, west) = (planes.get("east").unwrap(), planes.get("west").unwrap());
    let foreign = west
        .kubeconfig_yaml()
        .replace(west.token().reveal(), east.token().reveal());
    let kubeconfig = kube::config::Kubeconfig::from_yaml(&foreign).unwrap();
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default())
        .await
        .unwrap();
    let foreign_client: Api<Namespace> = Api::all(config.try_into().unwrap());
    let error = foreign_client.list(&Default::default()).await.unwrap_err();
    assert!(
        matches!(&error, kube::Error::Api(status) if status.code == 401),
        "{error}"
    );

    // The identities of the clusters differ.
    let mut uids = Vec::new();
    for plane in planes.iter() {
        let namespaces: Api<Namespace> = Api::all(plane.client().await.unwrap());
        let system = await_some("kube-system", async || {
            namespaces.get_opt("kube-system").await.unwrap()
        })
        .await;
        uids.push(system.metadata.uid.unwrap());
    }
    assert_ne!(uids[0], uids[1]);

    planes.add("late").await.unwrap();
    let names: Vec<String> = planes.iter().map(|plane| plane.name().to_owned()).collect();
    assert_eq!(names, ["east", "late", "west"]);
    let error = planes.add("late").await.unwrap_err();
    assert!(
        matches!(error, ControlPlaneError::DuplicateName { .. }),
        "{error}"
    );

    let pids: Vec<i32> = planes
        .iter()
        .map(|p| p.server().pid())
        .chain([planes.etcd().pid()])
        .collect();
    let dir = planes.dir().to_owned();
    let handle = planes.get("east").unwrap().clone();
    assert!(pids.iter().all(|pid| Path::new(&format!("/proc/{pid}")).exists()));
    drop(planes);
    for pid in pids {
        assert!(!Path::new(&format!("/proc/{pid}")).exists(), "{pid} is left");
    }
    assert!(!dir.exists());
    assert!(handle.server().exit_status().unwrap().is_some());
}

#[tokio::test]
async fn a_killed_plane_keeps_its_data() {
    let planes = start(&["east"], Options::default()).await;
    let east = planes.get("east").unwrap();
    let api = config_maps(east).await;
    api.create(&PostParams::default(), &config_map("kept"))
        .await
        .unwrap();

    east.kill().unwrap();
    assert!(api.get("kept").await.is_err());
    assert!(matches!(east.usage(), Err(ControlPlaneError::Process { .. })));
    east.restart().await.unwrap();
    // The same client: same port, same authority, same token.
    assert_eq!(api.get("kept").await.unwrap().data.unwrap()["key"], "value");

    east.stop().await.unwrap();
    assert!(api.get("kept").await.is_err());
    east.restart().await.unwrap();
    api.get("kept").await.unwrap();

    east.pause().unwrap();
    let response = tokio::time::timeout(Duration::from_millis(500), api.get("kept")).await;
    assert!(response.is_err(), "a paused server responded");
    east.resume().unwrap();
    tokio::time::timeout(SOON, api.get("kept"))
        .await
        .unwrap()
        .unwrap();
    assert!(east.usage().unwrap().rss_bytes > 50 << 20);
}

#[tokio::test]
async fn folder_keeps_objects_between_runs() {
    let dir = tempfile::tempdir().unwrap();
    let options = || Options {
        dir: Some(dir.path().join("planes")),
        ..Options::default()
    };
    let planes = start(&["east"], options()).await;
    let first_token = planes.get("east").unwrap().token().clone();
    let api = config_maps(planes.get("east").unwrap()).await;
    api.create(&PostParams::default(), &config_map("kept"))
        .await
        .unwrap();
    drop(planes);

    let planes = start(&["east"], options()).await;
    config_maps(planes.get("east").unwrap())
        .await
        .get("kept")
        .await
        .unwrap();
    assert_ne!(*planes.get("east").unwrap().token(), first_token);
}

#[tokio::test]
async fn audit_log_and_counts_match_the_requests() {
    let planes = start(
        &["east"],
        Options {
            audit: true,
            ..Options::default()
        },
    )
    .await;
    let east = planes.get("east").unwrap();
    let api = config_maps(east).await;
    let before = east.request_counts().await.unwrap();

    let apply = PatchParams::apply("tester").force();
    for _ in 0..3 {
        api.patch("counted", &apply, &Patch::Apply(config_map("counted")))
            .await
            .unwrap();
    }
    api.patch(
        "counted",
        &apply.clone().dry_run(),
        &Patch::Apply(config_map("counted")),
    )
    .await
    .unwrap();
    for _ in 0..5 {
        api.get("counted").await.unwrap();
    }
    assert!(api.get("missing").await.is_err());
    api.delete("counted", &DeleteParams::default()).await.unwrap();

    let added = await_some("the counts", async || {
        let added = east.request_counts().await.unwrap().since(&before);
        let of = |verb: &str| {
            let named = added
                .series
                .iter()
                .filter(|s| s.resource == "configmaps" && s.verb == verb);
            named.map(|s| s.count).sum::<u64>()
        };
        (of("APPLY") == 4 && of("GET") == 6 && of("DELETE") == 1).then_some(added.clone())
    })
    .await;
    assert!(
        added
            .series
            .iter()
            .any(|s| s.dry_run && s.verb == "APPLY" && s.count == 1)
    );
    assert!(
        added
            .series
            .iter()
            .any(|s| s.code == 404 && s.resource == "configmaps" && s.count == 1)
    );

    let events = await_some("the audit events", async || {
        let events: Vec<_> = east
            .audit_events()
            .unwrap()
            .into_iter()
            .filter(|e| e.resource() == "configmaps")
            .collect();
        events.iter().any(|e| e.verb() == "delete").then_some(events)
    })
    .await;
    let writes: Vec<_> = events.iter().filter(|e| e.is_write()).collect();
    assert_eq!(
        writes.iter().map(|e| e.verb()).collect::<Vec<_>>(),
        ["patch", "patch", "patch", "delete"]
    );
    assert!(
        writes
            .iter()
            .all(|e| e.user() == "admin" && e.namespace() == "default" && e.name() == "counted")
    );
    assert_eq!(writes[0].request_object().unwrap()["data"]["key"], "value");
    let answer = writes[0].response_object().unwrap();
    assert_eq!(answer["metadata"]["name"], "counted");
    assert!(answer["metadata"].get("managedFields").is_none());
    assert_eq!(events.iter().filter(|e| e.verb() == "get").count(), 6);
    assert!(events.iter().all(|e| e.user() != "system:apiserver"));
}

#[tokio::test]
async fn a_controller_manager_deletes_namespaces_and_creates_accounts() {
    let options = Options {
        controller_manager_for: vec!["with".to_owned()],
        ..Options::default()
    };
    let planes = start(&["with", "without"], options).await;
    assert!(planes.get("without").unwrap().controller_manager().is_none());
    let with = planes.get("with").unwrap();
    let manager = with.controller_manager().unwrap();
    let client = with.client().await.unwrap();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let namespace: Namespace =
        serde_json::from_value(serde_json::json!({"metadata": {"name": "brief"}})).unwrap();
    namespaces
        .create(&PostParams::default(), &namespace)
        .await
        .unwrap();
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "brief");
    await_some("the default account", async || {
        accounts.get_opt("default").await.unwrap()
    })
    .await;

    // A token Secret gets a token that the server accepts.
    let secrets: Api<Secret> = Api::namespaced(client, "brief");
    let secret: Secret = serde_json::from_value(serde_json::json!({
        "metadata": {"name": "token", "annotations": {"kubernetes.io/service-account.name": "default"}},
        "type": "kubernetes.io/service-account-token",
    }))
    .unwrap();
    secrets.create(&PostParams::default(), &secret).await.unwrap();
    await_some("the token", async || {
        secrets.get("token").await.unwrap().data?.get("token").cloned()
    })
    .await;

    namespaces
        .delete("brief", &DeleteParams::default())
        .await
        .unwrap();
    await_some("the end of the namespace", async || {
        namespaces.get_opt("brief").await.unwrap().is_none().then_some(())
    })
    .await;
    let pid = manager.pid();
    drop(planes);
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
}

#[tokio::test]
async fn server_that_cannot_start_shows_its_log() {
    let options = Options {
        apiserver_flags: vec!["--no-such-flag".to_owned()],
        ready_timeout: Duration::from_secs(30),
        ..Options::default()
    };
    let error = ControlPlanes::start(&Assets::find().unwrap(), &["east"], options)
        .await
        .unwrap_err();
    assert!(matches!(error, ControlPlaneError::Ended { .. }), "{error}");
    assert!(
        error.to_string().contains("unknown flag: --no-such-flag"),
        "{error}"
    );
}

#[tokio::test]
async fn kubectl_works_with_the_kubeconfig() {
    let assets = Assets::find().unwrap();
    let planes = ControlPlanes::start(&assets, &["east"], Options::default())
        .await
        .unwrap();
    let output = Command::new(assets.kubectl())
        .arg("--kubeconfig")
        .arg(planes.get("east").unwrap().kubeconfig_path())
        .args(["get", "namespace", "default", "-o", "name"])
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "namespace/default\n",
        "{output:?}"
    );
}
