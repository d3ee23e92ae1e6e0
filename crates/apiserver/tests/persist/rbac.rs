//! RBAC and the tokens of service accounts. `tests/conformance` compares the decisions with a real kube-apiserver.

use std::path::Path;

use serde_json::{Value, json};
use starling_apiserver::rbac::AuthorizationMode;
use starling_apiserver::server::{ClusterHandle, Options};
use tempfile::TempDir;

use crate::world::{Running, client, must, send};

const ROLES: &str = "/apis/rbac.authorization.k8s.io/v1";
const ACCOUNTS: &str = "/api/v1/namespaces/default/serviceaccounts";

async fn begin(directory: &Path) -> Running {
    let options = Options {
        authorization: AuthorizationMode::Rbac,
        ..Options::default()
    };
    Running::begin_with(options, directory).await
}

/// A server that enforces RBAC, with one cluster.
struct World {
    running: Running,
    cluster: ClusterHandle,
    _directory: TempDir,
}

impl World {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let running = begin(directory.path()).await;
        let cluster = running.server.create_cluster("a").unwrap();
        Self {
            running,
            cluster,
            _directory: directory,
        }
    }

    /// Sends a request of the administrator, which has to succeed.
    async fn must(&self, method: &str, path: &str, body: Value) -> Value {
        must(&client(&self.cluster.kubeconfig()).await, method, path, body).await
    }

    /// Requests a token of the account `robot`.
    async fn token(&self, spec: Value) -> String {
        let path = format!("{ACCOUNTS}/robot/token");
        let token = self.must("POST", &path, json!({"spec": spec})).await;
        token["status"]["token"].as_str().unwrap().to_owned()
    }

    /// Returns the code of a request with a token.
    async fn code(&self, token: &str, method: &str, path: &str, body: Value) -> u16 {
        let kubeconfig = self.cluster.kubeconfig().replace(&self.cluster.token(), token);
        send(&client(&kubeconfig).await, method, path, body).await.code
    }
}

fn binding(role: &str) -> Value {
    json!({
        "metadata": {"name": "robot"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "namespace": "default", "name": "robot"}],
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn tenant_an_account_may_do_only_what_its_bindings_grant() {
    let world = World::new().await;
    world
        .must("POST", ACCOUNTS, json!({"metadata": {"name": "robot"}}))
        .await;
    let token = world.token(json!({})).await;
    let secrets = "/api/v1/namespaces/default/secrets";
    let list = async || world.code(&token, "GET", secrets, Value::Null).await;
    assert_eq!(list().await, 403);

    let bindings = format!("{ROLES}/namespaces/default/rolebindings");
    world.must("POST", &bindings, binding("edit")).await;
    assert_eq!(list().await, 200);
    let elsewhere = "/api/v1/namespaces/kube-system/secrets";
    assert_eq!(world.code(&token, "GET", elsewhere, Value::Null).await, 403);
    // It gives nobody more than it has, and takes the identity of nobody.
    let role = json!({"metadata": {"name": "all"}, "rules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]});
    let roles = format!("{ROLES}/clusterroles");
    assert_eq!(world.code(&token, "POST", &roles, role).await, 403);

    world
        .must("DELETE", &format!("{bindings}/robot"), Value::Null)
        .await;
    assert_eq!(list().await, 403);
    world.running.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tenant_a_token_is_void_without_its_account_and_the_object_it_is_bound_to() {
    let world = World::new().await;
    let robot = json!({"metadata": {"name": "robot"}});
    world.must("POST", ACCOUNTS, robot.clone()).await;
    let secrets = "/api/v1/namespaces/default/secrets";
    let secret = json!({"metadata": {"name": "key"}});
    world.must("POST", secrets, secret.clone()).await;

    let free = world.token(json!({})).await;
    let reference = json!({"apiVersion": "v1", "kind": "Secret", "name": "key"});
    let bound = world.token(json!({"boundObjectRef": reference})).await;
    let foreign = world.token(json!({"audiences": ["vault"]})).await;
    let code = async |token: &str| world.code(token, "GET", "/apis", Value::Null).await;
    assert_eq!((code(&free).await, code(&bound).await), (200, 200));
    assert_eq!(code(&foreign).await, 401, "a token for somebody else");

    world.must("DELETE", &format!("{secrets}/key"), Value::Null).await;
    assert_eq!((code(&free).await, code(&bound).await), (200, 401));
    world.must("POST", secrets, secret).await;
    assert_eq!(code(&bound).await, 401, "another Secret of this name");

    let review = json!({"spec": {"token": free}});
    let reviews = "/apis/authentication.k8s.io/v1/tokenreviews";
    let reviewed = world.must("POST", reviews, review.clone()).await;
    assert_eq!(reviewed["status"]["authenticated"], true, "{reviewed}");
    world
        .must("DELETE", &format!("{ACCOUNTS}/robot"), Value::Null)
        .await;
    assert_eq!(code(&free).await, 401);
    world.must("POST", ACCOUNTS, robot).await;
    assert_eq!(code(&free).await, 401, "another account of this name");
    let reviewed = world.must("POST", reviews, review).await;
    assert!(reviewed["status"]["authenticated"].is_null(), "{reviewed}");
    world.running.end().await;
}

/// A directory of a server that allowed everything is protected from the first start with RBAC on.
#[tokio::test(flavor = "multi_thread")]
async fn tenant_roles_are_created_and_completed_at_each_start() {
    let directory = tempfile::tempdir().unwrap();
    let running = Running::begin(directory.path()).await;
    let kubeconfig = running.server.create_cluster("a").unwrap().kubeconfig();
    let admin = client(&kubeconfig).await;
    let roles = format!("{ROLES}/clusterroles");
    let names = async |path: &str| {
        let list = must(&admin, "GET", path, Value::Null).await;
        list["items"].as_array().unwrap().len()
    };
    assert_eq!(names(&roles).await, 0);
    must(&admin, "POST", ACCOUNTS, json!({"metadata": {"name": "robot"}})).await;
    let request = json!({"spec": {}});
    let token = must(&admin, "POST", &format!("{ACCOUNTS}/robot/token"), request).await;
    let token = token["status"]["token"].as_str().unwrap().to_owned();
    let line = kubeconfig.lines().last().unwrap();
    let robot = client(&kubeconfig.replace(line, &format!("    token: {token}"))).await;
    let secrets = async || {
        let path = "/api/v1/secrets";
        send(&robot, "GET", path, Value::Null).await.code
    };
    assert_eq!(secrets().await, 200, "everything is allowed");
    running.end().await;

    let running = begin(directory.path()).await;
    assert_eq!(secrets().await, 403);
    assert_eq!(names(&roles).await, 68);
    let basic = format!("{roles}/system:basic-user");
    let wanted = must(&admin, "GET", &basic, Value::Null).await;
    must(
        &admin,
        "PATCH",
        &basic,
        json!({"rules": null, "metadata": {"labels": {"mine": "yes"}}}),
    )
    .await;
    must(&admin, "DELETE", &format!("{roles}/view"), Value::Null).await;
    running.end().await;

    let running = begin(directory.path()).await;
    let again = must(&admin, "GET", &basic, Value::Null).await;
    assert_eq!(again["metadata"]["labels"]["mine"], "yes");
    let count = |role: &Value| role["rules"].as_array().map_or(0, Vec::len);
    assert!(count(&again) >= count(&wanted), "{again}");
    must(&admin, "GET", &format!("{roles}/view"), Value::Null).await;
    let revision = running.server.cluster("a").unwrap().revision();
    running.end().await;

    // A start that finds everything in order writes nothing.
    let running = begin(directory.path()).await;
    let cluster = running.server.cluster("a").unwrap();
    must(&admin, "GET", "/version", Value::Null).await;
    assert_eq!(cluster.revision(), revision);
    running.end().await;
}

/// Permissions that a restore takes away are gone at once.
#[tokio::test(flavor = "multi_thread")]
async fn tenant_a_restored_cluster_has_the_bindings_of_its_backup() {
    let world = World::new().await;
    world
        .must("POST", ACCOUNTS, json!({"metadata": {"name": "robot"}}))
        .await;
    let token = world.token(json!({})).await;
    let backup = world.cluster.backup();
    world
        .must(
            "POST",
            &format!("{ROLES}/clusterrolebindings"),
            binding("cluster-admin"),
        )
        .await;
    let code = async || world.code(&token, "GET", "/api/v1/secrets", Value::Null).await;
    assert_eq!(code().await, 200);
    world.cluster.set_back(&backup, false, jiff::Timestamp::now());
    assert_eq!(code().await, 403);
    world.running.end().await;
}
