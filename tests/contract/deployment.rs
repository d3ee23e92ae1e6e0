//! `deploy/manifests`: a server takes them, and what they permit is enough and not more.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use starling_api::RolloutPhase;
use starling_testkit::fleet::MANAGEMENT;
use starling_testkit::{Fleet, FleetOptions, GitRepo, Launch, Process};

use crate::PROGRAM;
use crate::kubectl::Kubectl;
use crate::running::config_map;

const ACCOUNT: &str = "system:serviceaccount:starling-system:starling";

fn manifests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/manifests")
}

/// A rollout by the program that has the token of the manifests' ServiceAccount and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_with_the_rights_of_the_manifests() -> Result<()> {
    let fleet = Fleet::start(FleetOptions {
        members: 1,
        audit: true,
        ..FleetOptions::default()
    })
    .await?;
    let plane = fleet.plane(MANAGEMENT)?;
    let kubectl = Kubectl::new(fleet.planes().assets(), &plane);
    let folder = manifests();
    kubectl
        .run(&["apply", "--validate=strict", "-f", &folder.to_string_lossy()])
        .await?;
    let token = kubectl
        .run(&["-n", "starling-system", "create", "token", "starling"])
        .await?;

    let repo = GitRepo::init()?;
    let first = repo.commit(&[("app/a.yaml", &config_map("settings", "one"))], "one")?;
    fleet.add_cluster("m1", &[]).await?;
    fleet
        .put_source("shop", &repo.url(), json!({"branch": "main"}))
        .await?;
    let entry = json!({"name": "app", "sourceRef": {"name": "shop"}, "path": "./app"});
    let group = json!({"clusterSelector": {}, "syncs": [entry]});
    fleet.put_group("shop", group).await?;
    let controller = start(&fleet, token.trim())?;
    fleet.rollout("shop", &first, RolloutPhase::Succeeded).await?;
    let second = repo.commit(&[("app/a.yaml", &config_map("settings", "two"))], "two")?;
    fleet.rollout("shop", &second, RolloutPhase::Succeeded).await?;
    // A cluster that leaves: its Sync is deleted.
    fleet.delete::<starling_api::Cluster>("m1").await?;
    fleet
        .group_status("shop", "no cluster is left", |status| status.clusters.total == 0)
        .await?;
    starling_testkit::wait::until(
        starling_testkit::fleet::PATIENCE,
        "its Sync is gone",
        async || {
            let syncs = fleet.syncs().await.map_err(|e| e.to_string())?;
            if syncs.is_empty() {
                Ok(())
            } else {
                Err(format!("{} Syncs", syncs.len()))
            }
        },
    )
    .await?;
    drop(controller);

    let events = plane.audit_events()?;
    let own: Vec<_> = events.iter().filter(|event| event.user() == ACCOUNT).collect();
    assert!(
        own.iter()
            .any(|event| event.is_write() && event.resource() == "syncs"),
        "it was somebody else"
    );
    let refused: Vec<String> = own
        .iter()
        .filter(|event| matches!(event.status(), Some(401 | 403)))
        .map(|event| format!("{} {}", event.verb(), event.uri()))
        .collect();
    assert!(refused.is_empty(), "forbidden: {refused:?}");
    no_more_than_needed(&kubectl).await
}

async fn no_more_than_needed(kubectl: &Kubectl) -> Result<()> {
    let may = async |arguments: &[&str]| -> Result<bool> {
        let call = [&["auth", "can-i", "--as", ACCOUNT], arguments].concat();
        Ok(kubectl.call(&call, "").await?.out.trim() == "yes")
    };
    assert!(may(&["get", "secrets", "-n", "fleet"]).await?);
    // A renewed token is written back; a Secret is never made.
    assert!(may(&["patch", "secrets", "-n", "fleet"]).await?);
    for arguments in [
        &["list", "secrets", "-n", "fleet"][..],
        &["watch", "secrets", "-A"],
        &["create", "secrets", "-n", "fleet"],
        &["patch", "sources.starling.dev", "-n", "fleet"],
        &["patch", "syncgroups.starling.dev", "-n", "fleet"],
        &["delete", "clusters.starling.dev", "-n", "fleet"],
        &["deletecollection", "syncs.starling.dev", "-n", "fleet"],
        &["get", "configmaps", "-n", "fleet"],
        &["get", "configmap/other", "-n", "starling-system"],
        &["delete", "namespace/starling-system"],
        &["create", "clusterrolebindings"],
        &["impersonate", "users"],
        &["create", "pods", "-n", "starling-system"],
    ] {
        assert!(!may(arguments).await?, "it may {}", arguments.join(" "));
    }
    Ok(())
}

fn start(fleet: &Fleet, token: &str) -> Result<Process> {
    let plane = fleet.plane(MANAGEMENT)?;
    let mut kubeconfig: Value = serde_saphyr::from_str(&plane.kubeconfig_yaml())?;
    kubeconfig["users"][0]["user"] = json!({"token": token});
    let file = fleet.folder().join("service-account.kubeconfig");
    std::fs::write(&file, kubeconfig.to_string())?;
    let port = starling_controlplane::free_port()?;
    let mut launch = Launch::new("starling", PROGRAM, fleet.log())
        .args(["controller", "--allow-insecure-sources", "--listen"])
        .arg(format!("127.0.0.1:{port}"))
        .arg("--kubeconfig")
        .arg(&file)
        .arg("--data-dir")
        .arg(fleet.data_dir());
    if let Some(kustomize) = fleet.planes().assets().kustomize() {
        launch = launch.arg("--kustomize").arg(kustomize);
    }
    Ok(Process::start(&launch)?)
}

/// The Deployment calls the program with arguments that it takes, and Pod Security's `restricted` would admit it.
#[test]
fn the_deployment_is_restricted_and_its_arguments_are_real() -> Result<()> {
    let text = std::fs::read_to_string(manifests().join("20-controller.yaml"))?;
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text)?;
    let deployment = documents
        .iter()
        .find(|d| d["kind"] == "Deployment")
        .context("a Deployment")?;
    assert_eq!(deployment["spec"]["replicas"], 1);
    assert_eq!(deployment["spec"]["strategy"]["type"], "Recreate");
    let pod = &deployment["spec"]["template"]["spec"];
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    let container = &pod["containers"][0];
    let security = &container["securityContext"];
    assert_eq!(security["allowPrivilegeEscalation"], false);
    assert_eq!(security["readOnlyRootFilesystem"], true);
    assert_eq!(security["capabilities"], json!({"drop": ["ALL"]}));
    assert_eq!(container["livenessProbe"]["httpGet"]["path"], "/healthz");
    assert_eq!(container["readinessProbe"]["httpGet"]["path"], "/readyz");

    let arguments: Vec<&str> = container["args"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    // `--help` last: every argument before it is parsed, and an unknown one is an error.
    let output = std::process::Command::new(PROGRAM)
        .args(&arguments)
        .arg("--help")
        .output()?;
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let help = String::from_utf8_lossy(&output.stdout).into_owned();
    for argument in arguments
        .iter()
        .filter_map(|argument| argument.strip_prefix("--"))
    {
        let name = argument.split('=').next().unwrap_or_default();
        assert!(help.contains(&format!("--{name}")), "--{name} is not in the help");
    }
    let wrong = std::process::Command::new(PROGRAM)
        .args(&arguments)
        .arg("--no-such-thing")
        .output()?;
    assert!(!wrong.status.success());
    Ok(())
}
