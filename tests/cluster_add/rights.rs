//! The permissions of the account on the member: enough for Syncs, and no more.

use anyhow::Result;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec,
};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, RoleBinding};
use kube::api::{ListParams, PostParams};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use starling_controlplane::client_from_kubeconfig;

use crate::world::scene;

/// `verb group/resource name namespace`.
async fn may(client: &Client, verb: &str, resource: &str, name: &str, namespace: &str) -> Result<bool> {
    let (group, resource) = resource.split_once('/').unwrap_or(("", resource));
    let (resource, subresource) = resource.split_once(':').unwrap_or((resource, ""));
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                verb: Some(verb.into()),
                group: Some(group.into()),
                resource: Some(resource.into()),
                subresource: Some(subresource.into()),
                name: Some(name.into()),
                namespace: Some(namespace.into()),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let api: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let answer = api.create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

fn object<K: DeserializeOwned>(body: Value) -> Result<K> {
    Ok(serde_json::from_value(body)?)
}

/// Whether a response is a 403.
fn forbidden<T>(answer: kube::Result<T>) -> bool {
    matches!(answer, Err(kube::Error::Api(status)) if status.code == 403)
}

#[test]
fn by_default_any_object_can_be_applied_but_no_permissions_granted() -> Result<()> {
    scene("default-rights", async |scene| {
        scene.add("shared", "eu-1", &[]).await?;
        let client = scene.as_starling("eu-1").await?;
        for (verb, resource) in [
            ("create", "apps/deployments"),
            ("patch", "secrets"),
            ("delete", "namespaces"),
            ("list", "some.example.com/widgets"),
            ("patch", "apiextensions.k8s.io/customresourcedefinitions"),
            ("create", "rbac.authorization.k8s.io/clusterroles"),
            ("impersonate", "serviceaccounts"),
        ] {
            assert!(
                may(&client, verb, resource, "", "").await?,
                "it may not {verb} {resource}"
            );
        }
        for (verb, resource, name) in [
            ("escalate", "rbac.authorization.k8s.io/clusterroles", ""),
            ("bind", "rbac.authorization.k8s.io/clusterroles", "cluster-admin"),
            ("impersonate", "users", "admin"),
            ("impersonate", "groups", "system:masters"),
            (
                "approve",
                "certificates.k8s.io/signers",
                "kubernetes.io/kube-apiserver-client",
            ),
            ("*", "secrets", ""),
        ] {
            assert!(
                !may(&client, verb, resource, name, "").await?,
                "it may {verb} {resource}"
            );
        }
        // The server itself refuses to grant more permissions than the account has.
        let binding = json!({
            "metadata": {"name": "more"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "User", "name": "jane", "apiGroup": "rbac.authorization.k8s.io"}],
        });
        let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
        assert!(forbidden(
            bindings.create(&PostParams::default(), &object(binding)?).await
        ));
        let role = json!({"metadata": {"name": "more"}, "rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]});
        let roles: Api<ClusterRole> = Api::all(client);
        assert!(forbidden(
            roles.create(&PostParams::default(), &object(role)?).await
        ));
        Ok(())
    })
}

#[test]
fn tenant_with_impersonate_only_the_account_has_only_permissions_of_accounts_in_its_namespace() -> Result<()>
{
    scene("borrowed", async |scene| {
        scene
            .add(
                "shared",
                "eu-1",
                &["--impersonate-only", "--impersonate-accounts", "deployer"],
            )
            .await?;
        let (client, admin) = (scene.as_starling("eu-1").await?, scene.member("shared").await?);
        // What the controller itself needs.
        client.apiserver_version().await?;
        Api::<Namespace>::all(client.clone()).get("kube-system").await?;
        let own: Api<ConfigMap> = Api::namespaced(client.clone(), "starling-system");
        let map = || object::<ConfigMap>(json!({"metadata": {"name": "starling-inventory-rights"}}));
        own.create(&PostParams::default(), &map()?).await?;
        own.delete("starling-inventory-rights", &Default::default())
            .await?;
        let account = scene.account("eu-1").await?;
        assert!(
            may(
                &client,
                "create",
                "serviceaccounts:token",
                &account,
                "starling-system"
            )
            .await?
        );
        // And nothing else.
        for (verb, resource, name, namespace) in [
            ("create", "serviceaccounts:token", "other", "starling-system"),
            ("create", "serviceaccounts:token", "default", "kube-system"),
            ("get", "secrets", "", "starling-system"),
            ("create", "configmaps", "", "default"),
            ("get", "namespaces", "default", ""),
            ("list", "namespaces", "", ""),
            ("impersonate", "users", "admin", ""),
            ("impersonate", "groups", "system:masters", ""),
            ("impersonate", "serviceaccounts", "deployer", "default"),
            (
                "impersonate",
                "serviceaccounts",
                "generic-garbage-collector",
                "kube-system",
            ),
            ("impersonate", "serviceaccounts", "admin", "borrowed"),
            (
                "create",
                "rbac.authorization.k8s.io/rolebindings",
                "",
                "starling-system",
            ),
        ] {
            assert!(
                !may(&client, verb, resource, name, namespace).await?,
                "it may {verb} {resource} {name}"
            );
        }
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
        assert!(forbidden(maps.create(&PostParams::default(), &map()?).await));
        assert!(forbidden(
            Api::<Pod>::all(client).list(&ListParams::default()).await
        ));

        // When it impersonates the account of a tenant, it has the permissions of that account.
        let accounts: Api<ServiceAccount> = Api::namespaced(admin.clone(), "borrowed");
        accounts
            .create(
                &PostParams::default(),
                &object(json!({"metadata": {"name": "deployer"}}))?,
            )
            .await?;
        // The built-in roles are empty here, because no controller aggregates them.
        let tenant = json!({"metadata": {"name": "tenant"}, "rules": [
            {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create", "get"]},
        ]});
        let roles: Api<ClusterRole> = Api::all(admin.clone());
        roles.create(&PostParams::default(), &object(tenant)?).await?;
        let binding = json!({
            "metadata": {"name": "deployer"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "tenant"},
            "subjects": [{"kind": "ServiceAccount", "name": "deployer", "namespace": "borrowed"}],
        });
        Api::<RoleBinding>::namespaced(admin, "borrowed")
            .create(&PostParams::default(), &object(binding)?)
            .await?;
        let mut kubeconfig: Value = serde_saphyr::from_str(&scene.stored_kubeconfig("eu-1").await?)?;
        kubeconfig["users"][0]["user"]["as"] = "system:serviceaccount:borrowed:deployer".into();
        let tenant = client_from_kubeconfig("tenant", &kubeconfig.to_string()).await?;
        starling_testkit::wait::until(
            starling_testkit::fleet::TIMEOUT,
            "the tenant's rights are known",
            async || {
                may(&tenant, "create", "configmaps", "", "borrowed")
                    .await
                    .unwrap_or(false)
            },
        )
        .await?;
        let maps: Api<ConfigMap> = Api::namespaced(tenant.clone(), "borrowed");
        maps.create(&PostParams::default(), &map()?).await?;
        assert!(forbidden(
            Api::<Pod>::all(tenant).list(&ListParams::default()).await
        ));
        Ok(())
    })
}

#[test]
fn a_chosen_role_is_bound_and_no_other_permissions_are_granted() -> Result<()> {
    scene("chosen", async |scene| {
        let reader = json!({"metadata": {"name": "pod-reader"}, "rules": [
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
        ]});
        let roles: Api<ClusterRole> = Api::all(scene.member("shared").await?);
        roles.create(&PostParams::default(), &object(reader)?).await?;
        scene.add("shared", "eu-1", &["--role", "pod-reader"]).await?;
        let client = scene.as_starling("eu-1").await?;
        Api::<Pod>::all(client.clone())
            .list(&ListParams::default())
            .await?;
        assert!(!may(&client, "create", "configmaps", "", "default").await?);
        assert!(!may(&client, "impersonate", "serviceaccounts", "", "").await?);
        Ok(())
    })
}
