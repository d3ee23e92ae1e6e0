//! The objects that the command creates on both sides, in a first and a second run.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::{ConfigMap, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, RoleBinding};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use starling_api::conditions::READY;
use starling_api::{Source, SyncResource};
use starling_testkit::GitRepo;
use starling_testkit::fleet::TIMEOUT;
use starling_testkit::wait;

use crate::world::{Scene, accounts_of, make_namespace, scene, snapshot};

const MANIFESTS: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: shop}
data: {value: one}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: shop-operator}
rules:
- {apiGroups: [apps], resources: [deployments, deployments/status], verbs: [get, list, watch, update, patch]}
- {nonResourceURLs: [/metrics], verbs: [get]}
"#;

async fn put<K>(scene: &Scene, body: Value) -> Result<()>
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned,
{
    let mut body = body;
    body["apiVersion"] = K::api_version(&()).into_owned().into();
    body["kind"] = K::kind(&()).into_owned().into();
    let api: Api<K> = Api::namespaced(scene.fleet().hub().clone(), scene.namespace);
    let name = body["metadata"]["name"].as_str().context("a name")?.to_owned();
    let params = kube::api::PatchParams::apply("tests").force();
    api.patch(&name, &params, &kube::api::Patch::Apply(body)).await?;
    Ok(())
}

/// From a context to a Sync that is applied with the new credential: a namespace, an object in it, and a role as users
/// have them.
#[test]
fn a_member_is_added_and_a_sync_applies_through_its_credential() -> Result<()> {
    scene("happy", async |scene| {
        let output = scene
            .add("happy", "eu-1", &["--labels", "region=eu,tier=prod"])
            .await?;
        let account = scene.account("eu-1").await?;
        for line in [
            "namespace/starling-system created".to_owned(),
            format!("serviceaccount/{account} created"),
            format!("clusterrole.rbac.authorization.k8s.io/{account} created"),
            "secret/eu-1-kubeconfig created".to_owned(),
            "cluster.starling.dev/eu-1 created".to_owned(),
            "Next: kubectl get cluster eu-1 -n happy".to_owned(),
        ] {
            assert!(
                output.lines().any(|output| output == line),
                "{line} is not in\n{output}"
            );
        }
        let cluster = scene.cluster("eu-1").await?;
        let labels: Vec<(&str, &str)> = cluster
            .labels()
            .iter()
            .map(|(k, v)| (k.as_str(), v.as_str()))
            .collect();
        assert_eq!(labels, [("region", "eu"), ("tier", "prod")]);
        let admin = scene.fleet().plane("m1")?.token().reveal().to_owned();
        assert!(
            !scene.stored_kubeconfig("eu-1").await?.contains(&admin),
            "the caller's own token was stored"
        );
        scene.is_ready("eu-1").await?;

        let repo = GitRepo::init()?;
        repo.commit(&[("app/all.yaml", MANIFESTS)], "one")?;
        let source = json!({"url": repo.url(), "ref": {"branch": "main"}, "interval": "1s"});
        put::<Source>(scene, json!({"metadata": {"name": "shop"}, "spec": source})).await?;
        let sync = json!({"clusterRef": {"name": "eu-1"}, "sourceRef": {"name": "shop"}, "path": "./app", "wait": false});
        put::<SyncResource>(scene, json!({"metadata": {"name": "shop"}, "spec": sync})).await?;
        let syncs: Api<SyncResource> = Api::namespaced(scene.fleet().hub().clone(), scene.namespace);
        wait::until(TIMEOUT, "the Sync is Ready", async || {
            let sync = syncs.get("shop").await.map_err(|e| e.to_string())?;
            let conditions = sync.status.unwrap_or_default().conditions;
            let ready = starling_api::conditions::find(&conditions, READY);
            ready
                .is_some_and(|ready| ready.status == "True")
                .then_some(())
                .ok_or(format!("{conditions:#?}"))
        })
        .await?;
        let member = scene.member("happy").await?;
        let maps: Api<ConfigMap> = Api::namespaced(member.clone(), "shop");
        assert_eq!(
            maps.get("settings").await?.data.unwrap_or_default()["value"],
            "one"
        );
        let roles: Api<ClusterRole> = Api::all(member);
        assert_eq!(
            roles.get("shop-operator").await?.rules.unwrap_or_default().len(),
            2
        );
        // Only that account wrote.
        let user = format!("system:serviceaccount:starling-system:{account}");
        let events = scene.fleet().plane("m1")?.audit_events()?;
        assert!(
            events.iter().any(|event| event.is_write()
                && event.user() == user
                && event.uri().contains("/shop/configmaps/settings")),
            "another account wrote"
        );
        Ok(())
    })
}

/// A second run renews the token and changes nothing else; it keeps existing labels.
#[test]
fn a_second_run_renews_the_token_and_changes_nothing_else() -> Result<()> {
    scene("again", async |scene| {
        scene.add("shared", "eu-1", &["--labels", "region=eu"]).await?;
        let (before, token) = (
            scene.cluster("eu-1").await?,
            scene.stored_kubeconfig("eu-1").await?,
        );
        let output = scene.add("shared", "eu-1", &[]).await?;
        let account = scene.account("eu-1").await?;
        let own: Vec<&str> = output.lines().filter(|line| line.contains(&account)).collect();
        assert!(
            own.len() == 5 && own.iter().all(|line| line.ends_with(" unchanged")),
            "{output}"
        );
        assert!(output.contains("secret/eu-1-kubeconfig configured"), "{output}");
        assert!(output.contains("cluster.starling.dev/eu-1 unchanged"), "{output}");
        assert_eq!(scene.cluster("eu-1").await?.labels(), before.labels());
        assert_ne!(
            scene.stored_kubeconfig("eu-1").await?,
            token,
            "the token is not a new one"
        );

        scene.add("shared", "eu-1", &["--labels", "tier=prod"]).await?;
        let labels = scene.cluster("eu-1").await?.labels().clone();
        assert_eq!(
            (labels["region"].as_str(), labels["tier"].as_str()),
            ("eu", "prod")
        );
        Ok(())
    })
}

/// A changed choice must not leave the earlier permissions.
#[test]
fn another_choice_of_permissions_replaces_the_earlier_one() -> Result<()> {
    scene("choice", async |scene| {
        let bindings: Api<ClusterRoleBinding> = Api::all(scene.member("shared").await?);
        let bound = async || -> Result<Option<String>> {
            let name = format!("{}-role", scene.account("eu-1").await?);
            Ok(bindings
                .get_opt(&name)
                .await?
                .map(|binding| binding.role_ref.name))
        };
        let in_namespace: Api<RoleBinding> = Api::namespaced(scene.member("shared").await?, scene.namespace);
        let impersonates = async || -> Result<bool> {
            let name = format!("{}-impersonate", scene.account("eu-1").await?);
            Ok(in_namespace
                .get_opt(&name)
                .await
                .is_ok_and(|found| found.is_some()))
        };
        for (choice, expected) in [
            (&["--role", "cluster-admin"][..], Some("cluster-admin")),
            (&["--role", "view"], Some("view")),
            (&["--impersonate-only"], None),
            (&["--role", "view"], Some("view")),
        ] {
            scene.add("shared", "eu-1", choice).await?;
            assert_eq!(bound().await?.as_deref(), expected);
            assert_eq!(
                impersonates().await?,
                choice.contains(&"--impersonate-only"),
                "{choice:?}"
            );
        }
        Ok(())
    })
}

#[test]
fn a_dry_run_prints_the_new_objects_and_changes_nothing_on_either_side() -> Result<()> {
    scene("dry", async |scene| {
        let (hub, member) = (scene.fleet().hub().clone(), scene.member("dry").await?);
        let of_scene = |objects: std::collections::BTreeMap<String, String>| -> Vec<(String, String)> {
            // Other tests write to the management cluster meanwhile, in other namespaces.
            objects
                .into_iter()
                .filter(|(key, _)| key.contains(" dry/") || key.ends_with("/dry"))
                .collect()
        };
        let before = (of_scene(snapshot(&hub).await?), snapshot(&member).await?);
        let output = scene
            .add(
                "dry",
                "eu-1",
                &["--dry-run", "--labels", "region=eu", "--role", "view"],
            )
            .await?;
        let after = (of_scene(snapshot(&hub).await?), snapshot(&member).await?);
        assert_eq!(before, after);

        let documents: Vec<Value> = serde_saphyr::from_multiple(&output)?;
        let printed: Vec<String> = documents
            .iter()
            .map(|d| {
                format!(
                    "{} {}",
                    d["kind"].as_str().unwrap_or_default(),
                    d["metadata"]["name"].as_str().unwrap_or_default()
                )
            })
            .collect();
        scene
            .add("dry", "eu-1", &["--labels", "region=eu", "--role", "view"])
            .await?;
        let account = scene.account("eu-1").await?;
        let expected = [
            "Namespace starling-system".to_owned(),
            format!("ServiceAccount {account}"),
            format!("Role {account}"),
            format!("RoleBinding {account}"),
            format!("ClusterRole {account}"),
            format!("ClusterRoleBinding {account}"),
            format!("ClusterRoleBinding {account}-role"),
            "Secret eu-1-kubeconfig".to_owned(),
            "Cluster eu-1".to_owned(),
        ];
        assert_eq!(printed, expected);
        // The printed objects are the created ones.
        let created = snapshot(&member).await?;
        let new: Vec<&String> = created
            .keys()
            .filter(|key| !before.1.contains_key(*key))
            .collect();
        assert_eq!(new.len(), 7, "{new:?}");
        Ok(())
    })
}

/// Two namespaces, and two management clusters: each has its own account, and removing one does not affect the others.
#[test]
fn two_namespaces_and_two_management_clusters_are_separate() -> Result<()> {
    scene("one", async |scene| {
        let hub = scene.fleet().hub().clone();
        make_namespace(&hub, "two").await?;
        scene.add("shared", "eu-1", &[]).await?;
        let output = scene
            .starling(&["cluster", "add", "shared", "--name", "eu-1", "-n", "two"])
            .await?;
        assert!(output.ok, "{}", output.last());

        // Another cluster as the management cluster, with namespace and name as on the first.
        let other = scene.member("hub-2").await?;
        let definitions: Api<
            k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
        > = Api::all(other.clone());
        for definition in starling_api::definitions() {
            let params = kube::api::PatchParams::apply("tests").force();
            definitions
                .patch(
                    &definition.name_any(),
                    &params,
                    &kube::api::Patch::Apply(&definition),
                )
                .await?;
        }
        make_namespace(&other, scene.namespace).await?;
        let clusters: Api<starling_api::Cluster> = Api::namespaced(other.clone(), scene.namespace);
        wait::until(TIMEOUT, "the definitions are served", async || {
            clusters.list(&ListParams::default()).await.is_ok()
        })
        .await?;
        let arguments = [
            "cluster",
            "add",
            "shared",
            "--name",
            "eu-1",
            "-n",
            "one",
            "--hub-context",
            "hub-2",
        ];
        let output = scene.starling(&arguments).await?;
        assert!(output.ok, "{}", output.last());

        let accounts: Api<ServiceAccount> = Api::namespaced(scene.member("shared").await?, "starling-system");
        let mut matching = scene.accounts_on("shared").await?;
        matching.extend(accounts_of(&scene.member("shared").await?, "two").await?);
        assert_eq!(matching.len(), 3, "{matching:?}");

        accounts
            .delete(&scene.account("eu-1").await?, &Default::default())
            .await?;
        let secrets: Api<k8s_openapi::api::core::v1::Secret> = Api::namespaced(other, "one");
        let text = secrets
            .get("eu-1-kubeconfig")
            .await?
            .data
            .unwrap_or_default()
            .remove("value")
            .context("value")?;
        let client =
            starling_controlplane::client_from_kubeconfig("eu-1", &String::from_utf8(text.0)?).await?;
        client.apiserver_version().await?;
        Api::<k8s_openapi::api::core::v1::Namespace>::all(client)
            .get("kube-system")
            .await?;
        Ok(())
    })
}
