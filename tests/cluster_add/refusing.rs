//! What is refused, in which words, and that nothing is left behind then.

use anyhow::{Context, Result};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use starling_api::Cluster;

use crate::world::{Scene, scene};

async fn refused(scene: &Scene, context: &str, more: &[&str], told: &[&str]) -> Result<()> {
    let said = scene.try_add(context, "eu-1", more).await?;
    assert!(!said.ok, "{}", said.out);
    let error = said.last();
    for told in told {
        assert!(error.contains(told), "{told:?} is not in {error}");
    }
    Ok(())
}

#[test]
fn wrong_contexts_namespaces_and_roles_are_answered_with_what_would_be_right() -> Result<()> {
    scene("wrong", async |scene| {
        refused(
            scene,
            "nowhere",
            &[],
            &[
                "no context \"nowhere\"",
                "dry, happy, hub, hub-2, renewed, shared",
            ],
        )
        .await?;
        refused(
            scene,
            "hub-2",
            &["--hub-context", "gone"],
            &["the management cluster", "no context \"gone\""],
        )
        .await?;
        let missing = ["cluster", "add", "hub-2", "--name", "eu-1", "-n", "missing"];
        let said = scene.starling(&missing).await?;
        assert!(
            !said.ok && said.err.contains("namespaces \"missing\" not found"),
            "{}",
            said.err
        );
        // The member's context as the management cluster: it has no definitions.
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
            &["no-such-role", "make it there first"],
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
                "something was left behind"
            );
        }
        Ok(())
    })
}

#[test]
fn a_kubeconfig_that_the_controller_could_not_use_is_refused() -> Result<()> {
    scene("unusable", async |scene| {
        for (field, value, told) in [
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
            refused(scene, "shared", &[], &[told]).await?;
        }
        let clusters: Api<Cluster> = Api::namespaced(scene.fleet().hub().clone(), scene.namespace);
        assert!(clusters.list(&ListParams::default()).await?.items.is_empty());
        Ok(())
    })
}

#[test]
fn a_name_that_is_taken_by_another_cluster_is_refused() -> Result<()> {
    scene("taken", async |scene| {
        scene.add("shared", "eu-1", &[]).await?;
        let before = scene.secret("eu-1").await?;
        let clusters: Api<Cluster> = Api::namespaced(scene.fleet().hub().clone(), scene.namespace);
        let status = json!({"apiVersion": "starling.dev/v1alpha1", "kind": "Cluster", "metadata": {"name": "eu-1"},
            "status": {"clusterID": "another"}});
        // As the controller of an earlier time has written it; the present one writes what it sees.
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
            &["Cluster taken/eu-1", "another", "take another --name"],
        )
        .await?;
        let after = scene.secret("eu-1").await?;
        assert_eq!(before.resource_version(), after.resource_version());
        Ok(())
    })
}

/// Whoever may not give rights learns which right is missing, on which side, for which object.
#[test]
fn a_caller_without_the_rights_learns_which_object_was_refused() -> Result<()> {
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
