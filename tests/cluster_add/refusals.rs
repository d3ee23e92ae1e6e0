//! Refused calls: their errors, and that they create nothing.

use anyhow::{Context, Result};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use starling_api::Cluster;

use crate::world::{Scene, scene};

async fn refused(scene: &Scene, context: &str, more: &[&str], expected: &[&str]) -> Result<()> {
    let output = scene.try_add(context, "eu-1", more).await?;
    assert!(!output.ok, "{}", output.out);
    let error = output.last();
    for expected in expected {
        assert!(error.contains(expected), "{expected:?} is not in {error}");
    }
    Ok(())
}

#[test]
fn wrong_contexts_namespaces_and_roles_are_refused_with_a_remedy() -> Result<()> {
    scene("wrong", async |scene| {
        refused(
            scene,
            "nowhere",
            &[],
            &[
                "context \"nowhere\" not found",
                "dry, happy, hub, hub-2, renewed, shared",
            ],
        )
        .await?;
        refused(
            scene,
            "hub-2",
            &["--hub-context", "gone"],
            &["the management cluster", "context \"gone\" not found"],
        )
        .await?;
        let missing = ["cluster", "add", "hub-2", "--name", "eu-1", "-n", "missing"];
        let output = scene.starling(&missing).await?;
        assert!(
            !output.ok && output.err.contains("namespaces \"missing\" not found"),
            "{}",
            output.err
        );
        // The context of the member as the management cluster, which has no definitions.
        refused(
            scene,
            "shared",
            &["--hub-context", "renewed"],
            &["list Clusters", "kubectl apply -f crds/"],
        )
        .await?;
        refused(
            scene,
            "hub-2",
            &["--role", "no-such-role"],
            &["no-such-role", "create it first"],
        )
        .await?;
        refused(
            scene,
            "hub-2",
            &["--labels", "Not/A/Label=x"],
            &["cluster.starling.dev/eu-1", "Not/A/Label"],
        )
        .await?;
        refused(
            scene,
            "hub-2",
            &["--server", "http://plain.example.com"],
            &["must start with https://"],
        )
        .await?;
        for context in ["shared", "hub-2"] {
            assert_eq!(
                scene.accounts_on(context).await?,
                [""; 0],
                "an object was left behind"
            );
        }
        Ok(())
    })
}

#[test]
fn a_kubeconfig_that_the_controller_could_not_use_is_refused() -> Result<()> {
    scene("unusable", async |scene| {
        for (field, value, expected) in [
            (
                "insecure-skip-tls-verify",
                json!(true),
                "--certificate-authority=FILE",
            ),
            ("proxy-url", json!("http://proxy:3128"), "without a proxy"),
            (
                "certificate-authority-data",
                json!(""),
                "has no certificate authority",
            ),
            ("server", json!(""), "clusters[shared].server is empty"),
        ] {
            let mut kubeconfig = scene.kubeconfig()?;
            let entries = kubeconfig["clusters"].as_array_mut().context("clusters")?;
            let entry = entries
                .iter_mut()
                .find(|entry| entry["name"] == "shared")
                .context("the member")?;
            entry["cluster"][field] = value;
            scene.write_kubeconfig("config", &kubeconfig)?;
            refused(scene, "shared", &[], &[expected]).await?;
        }
        let clusters: Api<Cluster> = Api::namespaced(scene.fleet().hub().clone(), scene.namespace);
        assert!(clusters.list(&ListParams::default()).await?.items.is_empty());
        Ok(())
    })
}

#[test]
fn the_name_of_another_cluster_is_refused() -> Result<()> {
    scene("taken", async |scene| {
        scene.add("shared", "eu-1", &[]).await?;
        let before = scene.secret("eu-1").await?;
        let clusters: Api<Cluster> = Api::namespaced(scene.fleet().hub().clone(), scene.namespace);
        let status = json!({"apiVersion": "starling.dev/v1alpha1", "kind": "Cluster", "metadata": {"name": "eu-1"},
            "status": {"clusterID": "another"}});
        // As an earlier controller wrote it; the current one writes the identity that it reads.
        clusters
            .patch(
                "eu-1",
                &PatchParams::default(),
                &Patch::Merge(json!({"spec": {"suspend": true}})),
            )
            .await?;
        scene
            .condition("eu-1", "Ready", "suspended", |ready| {
                ready.is_some_and(|c| c.reason == "Suspended")
            })
            .await?;
        clusters
            .patch_status("eu-1", &PatchParams::default(), &Patch::Merge(status))
            .await?;
        refused(
            scene,
            "shared",
            &[],
            &["Cluster taken/eu-1", "another", "use another --name"],
        )
        .await?;
        let after = scene.secret("eu-1").await?;
        assert_eq!(before.resource_version(), after.resource_version());
        Ok(())
    })
}

/// A caller who may not grant permissions gets the missing permission, with its side and object.
#[test]
fn a_caller_without_permissions_gets_the_refused_object() -> Result<()> {
    scene("powerless", async |scene| {
        let (certificate, key) = scene.world.authority.client("system:nobody")?;
        let encoded = |text: &str| Value::String(base64(text));
        let mut kubeconfig = scene.kubeconfig()?;
        let users = kubeconfig["users"].as_array_mut().context("users")?;
        let user = users
            .iter_mut()
            .find(|user| user["name"] == "shared")
            .context("the user")?;
        user["user"] =
            json!({"client-certificate-data": encoded(&certificate), "client-key-data": encoded(&key)});
        scene.write_kubeconfig("config", &kubeconfig)?;
        refused(
            scene,
            "shared",
            &[],
            &[
                "namespace/kube-system",
                "the member (context \"shared\")",
                "\"jane\" cannot get",
            ],
        )
        .await
    })
}

fn base64(text: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(text)
}
