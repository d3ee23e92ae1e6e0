//! The admission policies that `deploy/` ships, on a server with RBAC.
//!
//! `tests/conformance/policies` compares these decisions with those of a real kube-apiserver.

use http::Request;
use kube::Client;
use serde_json::{Value, json};
use starling_apiserver::rbac::AuthorizationMode;
use starling_apiserver::server::Options;

use crate::world::{World, until};

const API: &str = "/apis/starling.dev/v1alpha1/namespaces/team";
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const ADMISSION: &str = "/apis/admissionregistration.k8s.io/v1";

/// Sends a request as a user, who is a member of the group `members`; returns the code and the body.
async fn send(client: &Client, who: &str, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let content_type = match method {
        "PATCH" => "application/merge-patch+json",
        _ => "application/json",
    };
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", content_type);
    if who != "admin" {
        request = request
            .header("impersonate-user", who)
            .header("impersonate-group", "members");
    }
    let body = if body.is_null() {
        Vec::new()
    } else {
        body.to_string().into_bytes()
    };
    let response = client.send(request.body(body.into()).unwrap()).await.unwrap();
    let code = response.status().as_u16();
    let bytes = http_body_util::BodyExt::collect(response.into_body())
        .await
        .unwrap()
        .to_bytes();
    (code, serde_json::from_slice(&bytes).unwrap_or_default())
}

async fn create(client: &Client, path: &str, object: &Value) {
    let (code, body) = send(client, "admin", "POST", path, object).await;
    assert_eq!(code, 201, "{path} {body}");
}

/// Returns an object of Starling's, which must name its kind.
fn typed(kind: &str, metadata: &Value, spec: &Value) -> Value {
    json!({"apiVersion": "starling.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec})
}

fn read(path: &str) -> Vec<Value> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path);
    serde_saphyr::from_multiple(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Loads the definitions, the manifests, and roles: members may write groups, Syncs and operator actions, Ann may
/// approve as well.
async fn install(client: &Client) {
    for plural in [
        "syncs",
        "syncgroups",
        "rolloutactions",
        "rolloutapprovals",
        "deletionapprovals",
    ] {
        let definition = &read(&format!("crds/{plural}.starling.dev.yaml"))[0];
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        create(client, path, definition).await;
        until(plural, || async {
            let found = send(client, "admin", "GET", &format!("{API}/{plural}"), &Value::Null).await;
            (found.0 == 200).then_some(())
        })
        .await;
    }
    for object in read("deploy/manifests/30-people.yaml") {
        let path = match object["kind"].as_str().unwrap() {
            "ClusterRole" => format!("{RBAC}/clusterroles"),
            "ValidatingAdmissionPolicy" => format!("{ADMISSION}/validatingadmissionpolicies"),
            _ => format!("{ADMISSION}/validatingadmissionpolicybindings"),
        };
        create(client, &path, &object).await;
    }
    create(
        client,
        "/api/v1/namespaces",
        &json!({"metadata": {"name": "team"}}),
    )
    .await;
    let rule = json!({"apiGroups": ["starling.dev"], "verbs": ["*"],
        "resources": ["syncs", "syncgroups", "rolloutactions"]});
    let role = json!({"metadata": {"name": "members"}, "rules": [rule]});
    create(client, &format!("{RBAC}/clusterroles"), &role).await;
    for (role, kind, name) in [
        ("members", "Group", "members"),
        ("starling-approver", "User", "ann"),
    ] {
        let binding = json!({"metadata": {"name": role},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}]});
        create(client, &format!("{RBAC}/namespaces/team/rolebindings"), &binding).await;
    }
}

async fn server() -> (World, Client) {
    let world = World::with(Options {
        authorization: AuthorizationMode::Rbac,
        ..Options::default()
    })
    .await;
    let (_cluster, client) = world.cluster("management").await;
    (world, client)
}

fn action(by: &str, more: &Value) -> Value {
    let mut spec = json!({"group": "gated", "rollout": 1, "by": by, "reason": "r"});
    for (field, value) in more.as_object().unwrap() {
        spec[field] = value.clone();
    }
    typed("RolloutAction", &json!({"generateName": "a-"}), &spec)
}

/// Asserts that Otto is denied with these words and that Ann is not.
async fn only_ann(client: &Client, method: &str, path: &str, body: impl Fn(&str) -> Value, words: &str) {
    let (code, denied) = send(client, "otto", method, path, &body("otto")).await;
    let message = denied["message"].as_str().unwrap_or_default();
    assert!(code == 403 && message.contains(words), "{path}: {code} {denied}");
    let (code, allowed) = send(client, "ann", method, path, &body("ann")).await;
    assert!(code < 300, "{path}: {allowed}");
}

/// Asserts that Otto may do something.
async fn otto_may(client: &Client, method: &str, path: &str, body: &Value) {
    let (code, allowed) = send(client, "otto", method, path, body).await;
    assert!(code < 300, "{path}: {allowed}");
}

#[tokio::test]
async fn tenant_shipped_policies_deny_forged_names_and_passing_of_approvals() {
    let (_world, client) = server().await;
    install(&client).await;
    let actions = format!("{API}/rolloutactions");
    let pause = json!({"action": "Pause"});
    let (code, denied) = send(&client, "otto", "POST", &actions, &action("ann", &pause)).await;
    assert_eq!((code, &denied["reason"]), (403, &json!("Forbidden")));
    let message = denied["message"].as_str().unwrap();
    let words = "is forbidden: ValidatingAdmissionPolicy 'operator-actions.starling.dev' with binding \
        'operator-actions.starling.dev' denied request: spec.by: ann is not the user who makes the request, otto";
    assert!(
        message.starts_with("rolloutactions.starling.dev \"a-") && message.ends_with(words),
        "{message}"
    );
    otto_may(&client, "POST", &actions, &action("otto", &pause)).await;
    let (_, list) = send(&client, "admin", "GET", &actions, &Value::Null).await;
    let by: Vec<_> = { list["items"].as_array().unwrap().iter() }
        .map(|item| &item["spec"]["by"])
        .collect();
    assert_eq!(by, ["otto"], "what is denied is not stored");

    let words = "promotions.starling.dev' denied request: promoting or skipping a stage";
    for more in [
        json!({"action": "Promote", "stage": "all"}),
        json!({"action": "Skip", "stage": "all"}),
        json!({"action": "Rollback", "revision": "main@sha1:1"}),
    ] {
        only_ann(&client, "POST", &actions, |by| action(by, &more), words).await;
    }
    otto_may(
        &client,
        "POST",
        &actions,
        &action("otto", &json!({"action": "Rollback"})),
    )
    .await;
    let approval = |by: &str| {
        let spec = json!({"group": "gated", "rollout": 1, "stage": "all", "releaseDigest": "d", "by": by});
        typed("RolloutApproval", &json!({"generateName": "a-"}), &spec)
    };
    let approvals = format!("{API}/rolloutapprovals");
    let (code, _) = send(&client, "ann", "POST", &approvals, &approval("otto")).await;
    assert_eq!(code, 403);
    let (code, _) = send(&client, "ann", "POST", &approvals, &approval("ann")).await;
    assert_eq!(code, 201);
}

#[tokio::test]
async fn tenant_shipped_policies_protect_stages_syncs_of_groups_and_approving_annotations() {
    let (_world, client) = server().await;
    install(&client).await;
    let stages = json!([{"name": "all", "beforeStageTasks": [{"type": "Approval"}]}]);
    let spec = json!({"clusterSelector": {},
        "syncs": [{"name": "app", "sourceRef": {"name": "s"}}], "rolloutStrategy": {"stages": stages}});
    let group = typed("SyncGroup", &json!({"name": "gated"}), &spec);
    create(&client, &format!("{API}/syncgroups"), &group).await;
    let spec = json!({"clusterRef": {"name": "c"}, "sourceRef": {"name": "s"},
        "groupRef": {"name": "gated", "entry": "app"}});
    let sync = typed("Sync", &json!({"name": "of-group"}), &spec);
    create(&client, &format!("{API}/syncs"), &sync).await;

    let group = format!("{API}/syncgroups/gated");
    otto_may(&client, "PATCH", &group, &json!({"spec": {"suspend": true}})).await;
    let without = json!({"spec": {"rolloutStrategy": {"stages": [{"name": "all"}]}}});
    let words =
        "the stages of a group with Approval tasks may be changed by users who may create rolloutapprovals";
    only_ann(&client, "PATCH", &group, |_| without.clone(), words).await;

    let sync = format!("{API}/syncs/of-group");
    otto_may(&client, "PATCH", &sync, &json!({"spec": {"suspend": true}})).await;
    let revision = json!({"spec": {"revision": "main@sha1:2"}});
    let words = "the Syncs of a group may be written by the controller";
    only_ann(&client, "PATCH", &sync, |_| revision.clone(), words).await;
    let controller = "system:serviceaccount:starling-system:starling";
    let other = json!({"spec": {"revision": "main@sha1:3"}});
    let (code, _) = send(&client, controller, "PATCH", &sync, &other).await;
    assert_eq!(code, 200);
    let (_, stored) = send(&client, "admin", "GET", &sync, &Value::Null).await;
    assert_eq!(stored["spec"]["revision"], "main@sha1:3");

    let annotation = json!({"metadata": {"annotations": {"starling.dev/approve-deletions": "d"}}});
    let words = "an annotation that approves deletions requires the permission to create deletionapprovals";
    only_ann(&client, "PATCH", &group, |_| annotation.clone(), words).await;
}

#[tokio::test]
async fn tenant_policies_hold_after_a_restore_and_end_with_their_binding() {
    let (world, client) = server().await;
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"],
        "resources": ["configmaps"]});
    let expression = json!({"expression": "object.metadata.name != 'no'"});
    let policy = json!({"metadata": {"name": "p"}, "spec": {"matchConstraints": {"resourceRules": [rule]},
        "validations": [expression]}});
    let binding =
        json!({"metadata": {"name": "b"}, "spec": {"policyName": "p", "validationActions": ["Deny"]}});
    let maps = "/api/v1/namespaces/default/configmaps";
    let map = json!({"metadata": {"name": "no"}});
    let bindings = format!("{ADMISSION}/validatingadmissionpolicybindings");
    create(
        &client,
        &format!("{ADMISSION}/validatingadmissionpolicies"),
        &policy,
    )
    .await;
    let trial = format!("{maps}?dryRun=All");
    create(&client, &trial, &map).await;
    create(&client, &bindings, &binding).await;
    assert_eq!(send(&client, "admin", "POST", &trial, &map).await.0, 422);
    let cluster = world.server.cluster("management").unwrap();
    let backup = cluster.backup();
    let (code, _) = send(&client, "admin", "DELETE", &format!("{bindings}/b"), &Value::Null).await;
    assert_eq!(code, 200);
    create(&client, &trial, &map).await;
    cluster.set_back(&backup, false, jiff::Timestamp::now());
    assert_eq!(send(&client, "admin", "POST", &trial, &map).await.0, 422);
}
