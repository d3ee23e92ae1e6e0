//! The state of a server after a restart.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};

use crate::world::{Running, client, must, send, wait_until_idle};

const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";

/// The paths whose lists are everything that these tests write.
const LISTS: [&str; 8] = [
    "/api/v1/namespaces",
    "/api/v1/serviceaccounts",
    "/api/v1/configmaps",
    "/api/v1/services",
    "/apis/apps/v1/deployments",
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    WIDGETS,
    "/api/v1/secrets",
];

fn definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
                "type": "object", "properties": {"spec": {"type": "object", "properties": {
                    "size": {"type": "integer"}}}}}}}],
        },
    })
}

fn deployment() -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "web", "image": "nginx"}]}}},
    })
}

fn service(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"type": "NodePort", "ports": [{"port": 80}]}})
}

/// Writes an object of each kind.
async fn write(client: &Client) {
    must(
        client,
        "POST",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        definition(),
    )
    .await;
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget",
        "metadata": {"generateName": "w-"}, "spec": {"size": 3}});
    must(client, "POST", WIDGETS, widget).await;
    must(
        client,
        "POST",
        "/apis/apps/v1/namespaces/default/deployments",
        deployment(),
    )
    .await;
    must(
        client,
        "POST",
        "/api/v1/namespaces/default/services",
        service("one"),
    )
    .await;
    let gone = json!({"metadata": {"name": "gone"}});
    must(client, "POST", "/api/v1/namespaces/default/configmaps", gone).await;
    must(
        client,
        "DELETE",
        "/api/v1/namespaces/default/configmaps/gone",
        Value::Null,
    )
    .await;
}

async fn everything(client: &Client) -> Vec<Value> {
    let mut lists = Vec::new();
    for path in LISTS {
        lists.push(must(client, "GET", path, Value::Null).await);
    }
    lists
}

/// Objects (byte for byte), revisions, tokens and certificates are unchanged, and the restart writes nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_restores_everything_and_writes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let running = Running::begin(directory.path()).await;
    let cluster = running.server.create_cluster("a").unwrap();
    let kubeconfig = cluster.kubeconfig();
    let one = client(&kubeconfig).await;
    write(&one).await;
    wait_until_idle(&cluster).await;
    let (before, revision) = (everything(&one).await, cluster.revision());
    let admin = running.server.admin_token();
    drop(cluster);
    running.end().await;

    let running = Running::begin(directory.path()).await;
    let cluster = running.server.cluster("a").unwrap();
    wait_until_idle(&cluster).await;
    assert_eq!(cluster.kubeconfig(), kubeconfig);
    assert_eq!(running.server.admin_token(), admin);
    assert_eq!(cluster.revision(), revision, "{:?}", cluster.journal());
    // The connection is new, the kubeconfig is the old one.
    assert_eq!(everything(&client(&kubeconfig).await).await, before);
    // The controllers have reconciled everything.
    assert_eq!(cluster.cluster().step(Timestamp::now()), None);
}

/// After a restart, a new object gets the next revision, a free address and an unused UID.
#[tokio::test(flavor = "multi_thread")]
async fn counters_continue() {
    let directory = tempfile::tempdir().unwrap();
    let services = "/api/v1/namespaces/default/services";
    let (mut uids, mut addresses, mut ports) = (Vec::new(), Vec::new(), Vec::new());
    let mut revisions = Vec::new();
    for round in 0..4 {
        let running = Running::begin(directory.path()).await;
        let cluster = match running.server.cluster("a") {
            Some(cluster) => cluster,
            None => running.server.create_cluster("a").unwrap(),
        };
        let client = client(&cluster.kubeconfig()).await;
        // A dry run shows a UID and leaves nothing in the file.
        let dry = must(&client, "POST", &format!("{services}?dryRun=All"), service("dry")).await;
        uids.push(dry["metadata"]["uid"].clone());
        let made = must(&client, "POST", services, service(&format!("s{round}"))).await;
        uids.push(made["metadata"]["uid"].clone());
        addresses.push(made["spec"]["clusterIP"].clone());
        ports.push(made["spec"]["ports"][0]["nodePort"].clone());
        wait_until_idle(&cluster).await;
        let stored = cluster.stored("services", &format!("default/s{round}")).unwrap();
        revisions.push((stored.revision, cluster.revision()));
        drop(cluster);
        running.end().await;
    }
    for list in [&mut uids, &mut addresses, &mut ports] {
        let count = list.len();
        list.sort_by_key(ToString::to_string);
        list.dedup();
        assert_eq!(list.len(), count, "{list:?}");
    }
    for pair in revisions.windows(2) {
        let [(_, last), (next, _)] = pair else { panic!() };
        assert_eq!(*next, last + 1, "{revisions:?}");
    }
}

/// A watch from before the restart gets 410, also for a resource without writes; one from the last revision
/// continues.
#[tokio::test(flavor = "multi_thread")]
async fn earlier_revisions_are_compacted() {
    let directory = tempfile::tempdir().unwrap();
    let running = Running::begin(directory.path()).await;
    let cluster = running.server.create_cluster("a").unwrap();
    let kubeconfig = cluster.kubeconfig();
    let first = client(&kubeconfig).await;
    write(&first).await;
    wait_until_idle(&cluster).await;
    let revision = cluster.revision();
    drop((cluster, first));
    running.end().await;

    let running = Running::begin(directory.path()).await;
    let client = client(&kubeconfig).await;
    for table in ["configmaps", "pods"] {
        let path = format!("/api/v1/{table}");
        let at = |revision: u64| format!("{path}?watch=1&timeoutSeconds=1&resourceVersion={revision}");
        let answer = must(&client, "GET", &at(revision - 1), Value::Null).await;
        assert_eq!(
            (&answer["type"], &answer["object"]["code"]),
            (&json!("ERROR"), &json!(410)),
            "{answer}"
        );
        let listed = send(
            &client,
            "GET",
            &format!(
                "{path}?resourceVersion={}&resourceVersionMatch=Exact",
                revision - 1
            ),
            Value::Null,
        )
        .await;
        assert_eq!(listed.code, 410, "{listed:?}");
        // Nothing has happened since the last revision, and no event is missing.
        let answer = must(&client, "GET", &at(revision), Value::Null).await;
        assert_eq!(answer, Value::Null);
    }
    running.end().await;
}

/// Controllers finish what they had started, such as the deletion of a namespace and its content.
#[tokio::test(flavor = "multi_thread")]
async fn controllers_finish_pending_work() {
    let directory = tempfile::tempdir().unwrap();
    let running = Running::begin(directory.path()).await;
    let cluster = running.server.create_cluster("a").unwrap();
    let kubeconfig = cluster.kubeconfig();
    let first = client(&kubeconfig).await;
    let namespaces = "/api/v1/namespaces";
    must(
        &first,
        "POST",
        namespaces,
        json!({"metadata": {"name": "held", "finalizers": ["example.com/held"]}}),
    )
    .await;
    let held = json!({"metadata": {"name": "c", "finalizers": ["example.com/held"]}});
    must(&first, "POST", "/api/v1/namespaces/held/configmaps", held).await;
    must(&first, "DELETE", "/api/v1/namespaces/held", Value::Null).await;
    wait_until_idle(&cluster).await;
    drop((cluster, first));
    running.end().await;

    let running = Running::begin(directory.path()).await;
    let cluster = running.server.cluster("a").unwrap();
    let client = client(&kubeconfig).await;
    let none = json!({"metadata": {"finalizers": null}});
    must(
        &client,
        "PATCH",
        "/api/v1/namespaces/held/configmaps/c",
        none.clone(),
    )
    .await;
    wait_until_idle(&cluster).await;
    must(&client, "PATCH", "/api/v1/namespaces/held", none).await;
    wait_until_idle(&cluster).await;
    let answer = send(&client, "GET", "/api/v1/namespaces/held", Value::Null).await;
    assert_eq!(answer.code, 404, "{answer:?}");
}

/// A removed cluster stays removed, and a new one of its name is another cluster.
#[tokio::test(flavor = "multi_thread")]
async fn clusters_are_created_and_removed() {
    let directory = tempfile::tempdir().unwrap();
    let uid = |running: &Running| {
        let cluster = running.server.cluster("a").unwrap();
        cluster
            .stored("namespaces", "kube-system")
            .unwrap()
            .head
            .uid
            .clone()
    };
    let running = Running::begin(directory.path()).await;
    running.server.create_cluster("a").unwrap();
    running.server.create_cluster("b").unwrap();
    let first = uid(&running);
    assert!(running.server.remove_cluster("a"));
    running.end().await;

    let running = Running::begin(directory.path()).await;
    assert_eq!(running.server.clusters(), ["b"]);
    running.server.create_cluster("a").unwrap();
    let second = uid(&running);
    assert_ne!(first, second);
    // Both in one batch.
    assert!(running.server.remove_cluster("a"));
    running.server.create_cluster("a").unwrap();
    assert!(running.server.remove_cluster("b"));
    let third = uid(&running);
    assert_ne!(second, third);
    running.end().await;

    let running = Running::begin(directory.path()).await;
    assert_eq!(running.server.clusters(), ["a"]);
    assert_eq!(uid(&running), third);
}

/// Guards against a kubeconfig of a removed cluster that opens the next one of its name.
#[tokio::test(flavor = "multi_thread")]
async fn tenant_credentials_of_a_removed_cluster_are_void() {
    let directory = tempfile::tempdir().unwrap();
    let path = "/api/v1/namespaces/default";
    let code = async |kubeconfig: &str| {
        send(&client(kubeconfig).await, "GET", path, Value::Null)
            .await
            .code
    };
    let token_of = async |kubeconfig: &str| {
        let path = format!("{path}/serviceaccounts/default/token");
        let request = json!({"spec": {"expirationSeconds": 3600}});
        let token = must(&client(kubeconfig).await, "POST", &path, request).await;
        let token = token["status"]["token"].as_str().unwrap().to_owned();
        let line = kubeconfig.lines().last().unwrap();
        kubeconfig.replace(line, &format!("    token: {token}"))
    };
    let running = Running::begin(directory.path()).await;
    let mut void = Vec::new();
    for _ in 0..2 {
        let kubeconfig = running.server.create_cluster("a").unwrap().kubeconfig();
        let account = token_of(&kubeconfig).await;
        assert_eq!((code(&kubeconfig).await, code(&account).await), (200, 200));
        void.extend([kubeconfig, account]);
        assert!(running.server.remove_cluster("a"));
    }
    let valid = running.server.create_cluster("a").unwrap().kubeconfig();
    let other = running.server.create_cluster("b").unwrap().kubeconfig();
    running.end().await;
    // The first kubeconfig of a name stays as versions without this check made it.
    let running = Running::begin(directory.path()).await;
    assert_eq!((code(&valid).await, code(&other).await), (200, 200));
    for kubeconfig in &void {
        assert_eq!(code(kubeconfig).await, 401);
    }
    running.end().await;
}

/// Guards against Secrets that stay in the file after their deletion.
#[tokio::test(flavor = "multi_thread")]
async fn tenant_deleted_secrets_are_not_in_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let running = Running::begin(directory.path()).await;
    let client = client(&running.server.create_cluster("a").unwrap().kubeconfig()).await;
    let path = "/api/v1/namespaces/default/secrets";
    for (name, value) in [("deleted", "canary-one"), ("changed", "canary-two")] {
        // Larger than a page, and together with others, so that pages become free and are shared.
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name},
            "stringData": {"a": value, "b": "x".repeat(9_000)}});
        must(&client, "POST", path, secret).await;
    }
    must(&client, "DELETE", &format!("{path}/deleted"), Value::Null).await;
    let change = json!({"data": null, "stringData": {"a": "other"}});
    must(&client, "PATCH", &format!("{path}/changed"), change).await;
    running.end().await;
    for file in std::fs::read_dir(directory.path()).unwrap() {
        let content = std::fs::read(file.unwrap().path()).unwrap_or_default();
        for value in ["canary-one", "canary-two"] {
            let encoded = STANDARD.encode(value);
            let found = |text: &str| {
                content
                    .windows(text.len())
                    .any(|window| window == text.as_bytes())
            };
            // Without the last character, which depends on what follows.
            assert!(!found(&encoded[..encoded.len() - 4]), "{value}");
        }
    }
}
