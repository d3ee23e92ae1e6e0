//! `serviceAccountName`: the impersonated users in the audit log of a member.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use starling_api::{Cluster, REQUESTED_AT, Source, SyncResource};
use starling_controlplane::AuditEvent;
use starling_testkit::fleet::{NAMESPACE, TIMEOUT};
use starling_testkit::{Fleet, FleetOptions, GitRepo, Process, program, wait};

use crate::world::{is_ready, ready, sync_ready};

/// The account with write access to ConfigMaps in the namespace `shop` only.
const DEPLOYER: &str = "system:serviceaccount:fleet:deployer";
/// The account without any permission.
const UNPRIVILEGED: &str = "system:serviceaccount:fleet:nobody";

/// A fleet with one member and two accounts on it, with a single Role.
struct Scene {
    /// Dropped before the fleet.
    controller: Option<Process>,
    fleet: Fleet,
    repo: GitRepo,
    member: Client,
}

impl Scene {
    async fn start() -> Result<Self> {
        let fleet = Fleet::start(FleetOptions {
            members: 1,
            audit: true,
            ..FleetOptions::default()
        })
        .await?;
        let member = fleet.member("m1").await?;
        for name in [NAMESPACE, "shop", "other"] {
            create::<Namespace>(&Api::all(member.clone()), json!({"metadata": {"name": name}})).await?;
        }
        create::<Role>(
            &Api::namespaced(member.clone(), "shop"),
            json!({"metadata": {"name": "deployer"}, "rules": [{"apiGroups": [""], "resources": ["configmaps"],
                "verbs": ["get", "list", "create", "patch", "update", "delete"]}]}),
        )
        .await?;
        create::<RoleBinding>(
            &Api::namespaced(member.clone(), "shop"),
            json!({"metadata": {"name": "deployer"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "deployer"},
                "subjects": [{"kind": "ServiceAccount", "namespace": NAMESPACE, "name": "deployer"}]}),
        )
        .await?;
        let token = restricted_token(&member).await?;
        let repo = GitRepo::init()?;
        let kubeconfig = fleet
            .kubeconfig("m1")?
            .replace(fleet.plane("m1")?.token().reveal(), &token);
        fleet.add_cluster_at("m1", &kubeconfig, &[]).await?;
        let controller = fleet.controller(program(), &[])?;
        fleet.until::<Cluster>("m1", "Ready", is_ready).await?;
        Ok(Self {
            controller: Some(controller),
            fleet,
            repo,
            member,
        })
    }

    fn commit(&self, files: &[(&str, String)]) -> Result<String> {
        let files: Vec<_> = files.iter().map(|(path, text)| (*path, text.as_str())).collect();
        Ok(self.repo.commit(&files, "change")?)
    }

    /// Creates a Sync without group for the folder of its name.
    async fn sync(&self, name: &str, account: Option<&str>) -> Result<()> {
        let mut spec = json!({"clusterRef": {"name": "m1"}, "sourceRef": {"name": "s"}, "path": format!("./{name}"),
            "retryInterval": "1s"});
        if let Some(account) = account {
            spec["serviceAccountName"] = account.into();
        }
        self.fleet
            .put::<SyncResource>(json!({"metadata": {"name": name}, "spec": spec}))
            .await
    }

    async fn applied(&self, name: &str, commit: &str) -> Result<()> {
        let applied = |sync: &SyncResource| {
            let status = sync.status.as_ref();
            status.is_some_and(|status| status.last_applied_revision.ends_with(commit))
        };
        let log = || {
            let controller = self.controller.as_ref();
            controller
                .and_then(|controller| controller.log_tail(40).ok())
                .unwrap_or_default()
        };
        let what = format!("applied {commit}");
        let until = self.fleet.until(name, &what, applied);
        until.await.with_context(log)?;
        Ok(())
    }

    /// Requests a reconcile of a Sync and waits until it is done.
    async fn reconcile(&self, name: &str, token: &str) -> Result<()> {
        let patch = json!({"metadata": {"annotations": {REQUESTED_AT: token}}});
        self.fleet.patch::<SyncResource>(name, patch).await?;
        let reconciled = |sync: &SyncResource| {
            let status = sync.status.as_ref();
            status.is_some_and(|status| status.last_handled_reconcile_at == token)
        };
        self.fleet.until(name, "looked", reconciled).await?;
        Ok(())
    }

    async fn value(&self, namespace: &str, name: &str) -> Result<Option<String>> {
        let maps: Api<ConfigMap> = Api::namespaced(self.member.clone(), namespace);
        Ok(maps
            .get_opt(name)
            .await?
            .and_then(|map| map.data?.remove("value")))
    }

    /// Returns the requests of Starling to the member, without those for inventories and probes, by impersonated user.
    fn requests_by_user(&self) -> Result<BTreeMap<String, Vec<AuditEvent>>> {
        let mut by: BTreeMap<String, Vec<AuditEvent>> = BTreeMap::new();
        for event in self.fleet.plane("m1")?.audit_events()? {
            let probe = event.uri() == "/version" || event.name() == "kube-system";
            if event.user_agent().starts_with("starling/") && !probe && !is_inventory(&event) {
                by.entry(event.impersonated_user().to_owned())
                    .or_default()
                    .push(event);
            }
        }
        Ok(by)
    }
}

/// Returns the token of a user with the role in the guide, which covers ConfigMaps: the objects of the Syncs without an
/// account.
async fn restricted_token(member: &Client) -> Result<String> {
    let guide = include_str!("../../docs/guides/isolation.md");
    let role = guide
        .split("```yaml\n")
        .find(|block| block.contains("kind: ClusterRole"))
        .and_then(|block| block.split("```").next())
        .context("the ClusterRole of the guide")?;
    let (own, inventory) = role.split_once("---").context("a Role and a ClusterRole")?;
    let own_role: Api<Role> = Api::namespaced(member.clone(), NAMESPACE);
    create::<Role>(&own_role, serde_saphyr::from_str(own)?).await?;
    create::<ClusterRole>(&Api::all(member.clone()), serde_saphyr::from_str(inventory)?).await?;
    let accounts: Api<ServiceAccount> = Api::namespaced(member.clone(), "kube-system");
    create(&accounts, json!({"metadata": {"name": "starling"}})).await?;
    let subject = json!({"kind": "ServiceAccount", "namespace": "kube-system", "name": "starling"});
    create::<ClusterRoleBinding>(
        &Api::all(member.clone()),
        json!({"metadata": {"name": "starling"}, "subjects": [subject],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "starling"}}),
    )
    .await?;
    create::<RoleBinding>(
        &Api::namespaced(member.clone(), NAMESPACE),
        json!({"metadata": {"name": "starling"}, "subjects": [subject],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "starling"}}),
    )
    .await?;
    let request = serde_json::from_value(json!({"spec": {"audiences": []}}))?;
    let answer = accounts
        .create_token_request("starling", &PostParams::default(), &request)
        .await?;
    Ok(answer.status.context("a token")?.token)
}

fn is_inventory(event: &AuditEvent) -> bool {
    event.namespace() == "starling-system" || event.name() == "starling-system"
}

async fn create<K>(api: &Api<K>, object: Value) -> Result<()>
where
    K: Clone + std::fmt::Debug + DeserializeOwned + serde::Serialize,
{
    api.create(&PostParams::default(), &serde_json::from_value(object)?)
        .await?;
    Ok(())
}

fn map(namespace: &str, name: &str, value: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\n  namespace: {namespace}\ndata:\n  value: \"{value}\"\n"
    )
}

/// A kind that needs discovery, and that no tenant may use.
const FLOW_SCHEMA: &str = "apiVersion: flowcontrol.apiserver.k8s.io/v1\nkind: FlowSchema\nmetadata:\n  name: mixed\nspec:\n  \
    priorityLevelConfiguration:\n    name: exempt\n";

fn verbs(events: &[AuditEvent]) -> BTreeSet<String> {
    events.iter().map(|event| event.verb().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_for_a_sync_impersonate_its_account_except_those_for_the_inventory() -> Result<()> {
    let mut scene = Scene::start().await?;
    let first = scene.commit(&[
        ("deployer/one.yaml", map("shop", "one", "1")),
        ("deployer/two.yaml", map("shop", "two", "1")),
        ("plain/plain.yaml", map("other", "plain", "1")),
    ])?;
    scene
        .fleet
        .put_source("s", &scene.repo.url(), json!({"branch": "main"}))
        .await?;
    scene.sync("deployer", Some("deployer")).await?;
    scene.sync("plain", None).await?;
    scene.applied("deployer", &first).await?;
    scene.applied("plain", &first).await?;

    // Drift: a list that is allowed for the account in its namespace only.
    let maps: Api<ConfigMap> = Api::namespaced(scene.member.clone(), "shop");
    let patch = Patch::Merge(json!({"data": {"value": "edited"}}));
    maps.patch("one", &PatchParams::default(), &patch).await?;
    maps.delete("two", &DeleteParams::default()).await?;
    scene.reconcile("deployer", "drift").await?;
    assert_eq!(scene.value("shop", "one").await?.as_deref(), Some("1"));
    assert_eq!(scene.value("shop", "two").await?.as_deref(), Some("1"));

    // Prune.
    let second = scene.repo.remove(&["deployer/two.yaml"], "gone")?;
    scene.applied("deployer", &second).await?;
    assert_eq!(scene.value("shop", "two").await?, None);

    // The ledger is lost: the objects on the member are read, and nothing is written.
    drop(scene.controller.take());
    std::fs::remove_dir_all(scene.fleet.data_dir())?;
    scene.controller = Some(scene.fleet.controller(program(), &[])?);
    scene.reconcile("deployer", "adopt").await?;

    // Deletion: its objects are deleted.
    let policy = json!({"spec": {"deletionPolicy": "Delete"}});
    scene.fleet.patch::<SyncResource>("deployer", policy).await?;
    let has_finalizer = |sync: &SyncResource| sync.metadata.finalizers.as_ref().is_some_and(|f| f.len() == 1);
    scene
        .fleet
        .until("deployer", "the finalizer", has_finalizer)
        .await?;
    scene.fleet.delete::<SyncResource>("deployer").await?;
    wait::until(TIMEOUT, "the Sync is gone", async || {
        let found = scene.fleet.api::<SyncResource>().get_opt("deployer").await;
        match found.map_err(|e| e.to_string())? {
            None => Ok(()),
            Some(sync) => Err(format!("{:?}", sync.status)),
        }
    })
    .await?;
    assert_eq!(scene.value("shop", "one").await?, None);

    let requests_by_user = scene.requests_by_user()?;
    let users: Vec<_> = requests_by_user.keys().map(String::as_str).collect();
    assert_eq!(users, ["", DEPLOYER]);
    let deployer_requests = &requests_by_user[DEPLOYER];
    for event in deployer_requests {
        let groups: BTreeSet<_> = event.impersonated_groups().into_iter().collect();
        let expected = [
            "system:authenticated",
            "system:serviceaccounts",
            "system:serviceaccounts:fleet",
        ];
        assert_eq!(groups, expected.into(), "{}", event.uri());
    }
    assert_eq!(
        verbs(deployer_requests).into_iter().collect::<Vec<_>>(),
        ["delete", "get", "list", "patch"]
    );
    assert!(
        deployer_requests
            .iter()
            .any(|event| event.uri().contains("dryRun=All")),
        "adopted"
    );
    let lists: BTreeSet<_> = deployer_requests
        .iter()
        .filter(|event| event.verb() == "list")
        .map(|event| (event.namespace().to_owned(), event.status()))
        .collect();
    let expected = [(String::new(), Some(403)), ("shop".to_owned(), Some(200))];
    assert_eq!(lists, expected.into());
    // All requests for the account's objects impersonate the account, and those for the objects of the other Sync do
    // not.
    assert!(
        requests_by_user[""]
            .iter()
            .all(|event| event.namespace() == "other" || event.verb() == "list")
    );
    assert!(deployer_requests.iter().all(|event| event.namespace() != "other"));

    let events = scene.fleet.plane("m1")?.audit_events()?;
    let inventory: Vec<_> = events.iter().filter(|event| is_inventory(event)).collect();
    assert!(inventory.iter().any(|event| event.is_write()));
    assert!(inventory.iter().all(|event| event.impersonated_user().is_empty()));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_account_without_permissions_fails_each_object_and_others_continue() -> Result<()> {
    let scene = Scene::start().await?;
    let commit = scene.commit(&[
        ("mixed/one.yaml", map("shop", "mixed", "1")),
        ("mixed/two.yaml", map("other", "mixed", "1")),
        ("mixed/schema.yaml", FLOW_SCHEMA.to_owned()),
        ("nobody/one.yaml", map("shop", "nobody", "1")),
        ("plain/plain.yaml", map("other", "plain", "1")),
        ("named/one.yaml", map("shop", "named", "1")),
    ])?;
    scene
        .fleet
        .put_source("s", &scene.repo.url(), json!({"branch": "main"}))
        .await?;
    scene.sync("mixed", Some("deployer")).await?;
    scene.sync("nobody", Some("nobody")).await?;
    scene.sync("named", Some("Not A Name")).await?;
    scene.sync("plain", None).await?;
    scene.applied("plain", &commit).await?;
    for (name, forbidden) in [("mixed", 2), ("nobody", 1)] {
        let refused = |sync: &SyncResource| sync_ready(sync) == ("False".into(), "Forbidden".into());
        let sync = scene
            .fleet
            .until::<SyncResource>(name, "Forbidden", refused)
            .await?;
        let problems = sync.status.unwrap_or_default().problems;
        assert_eq!(problems.len(), forbidden, "{problems:?}");
        assert!(
            problems.iter().all(|problem| problem.reason == "Forbidden"),
            "{problems:?}"
        );
    }
    assert_eq!(
        scene.value("shop", "mixed").await?.as_deref(),
        Some("1"),
        "the allowed object"
    );
    for (namespace, name) in [("other", "mixed"), ("shop", "nobody"), ("shop", "named")] {
        assert_eq!(scene.value(namespace, name).await?, None, "{namespace}/{name}");
    }
    // Discovery of the kind impersonates the account in every request.
    let requests_by_user = scene.requests_by_user()?;
    let discovers = |events: &[AuditEvent]| {
        events
            .iter()
            .any(|event| event.uri().starts_with("/apis/flowcontrol"))
    };
    assert!(
        discovers(&requests_by_user[DEPLOYER]) && !requests_by_user.get("").is_some_and(|own| discovers(own))
    );
    assert!(requests_by_user.contains_key(UNPRIVILEGED));

    let named: SyncResource = scene
        .fleet
        .until("named", "Stalled", |sync: &SyncResource| {
            sync_ready(sync) == ("False".into(), "InvalidParameters".into())
        })
        .await?;
    let text = serde_json::to_string(&named.status)?;
    assert!(
        text.contains("spec.serviceAccountName") && text.contains("Not A Name"),
        "{text}"
    );
    let source: Source = scene.fleet.get("s").await?;
    assert_eq!(ready(&source.status.unwrap_or_default().conditions).0, "True");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn tenant_syncs_without_an_account_get_the_one_that_the_operator_sets_or_are_refused() -> Result<()> {
    let mut scene = Scene::start().await?;
    let commit = scene.commit(&[("plain/a.yaml", map("shop", "plain", "one"))])?;
    scene
        .fleet
        .put_source("s", &scene.repo.url(), json!({"branch": "main"}))
        .await?;
    scene.controller = None;
    scene.controller = Some(
        scene
            .fleet
            .controller(program(), &["--require-service-account"])?,
    );
    scene.sync("plain", None).await?;
    scene
        .fleet
        .until::<SyncResource>("plain", "it is refused", |sync: &SyncResource| {
            let conditions = sync.status.iter().flat_map(|status| &status.conditions);
            let mut stalled = conditions.filter(|condition| condition.type_ == "Stalled");
            stalled.any(|condition| condition.reason == "ServiceAccountRequired")
        })
        .await?;
    assert_eq!(scene.value("shop", "plain").await?, None);

    scene.controller = None;
    let default = [
        "--require-service-account",
        "--default-service-account",
        "deployer",
    ];
    scene.controller = Some(scene.fleet.controller(program(), &default)?);
    scene.applied("plain", &commit).await?;
    let requests = scene.requests_by_user()?;
    let written = |event: &AuditEvent| event.is_write() && event.uri().contains("/namespaces/shop/");
    assert!(requests[DEPLOYER].iter().any(written));
    let others = requests.iter().filter(|(user, _)| *user != DEPLOYER);
    assert!(!others.flat_map(|(_, events)| events).any(written));
    Ok(())
}
