//! `deploy/manifests`: a server accepts the manifests, and their permissions are sufficient and minimal.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use starling_api::conditions::{self, POLICY_MISSING};
use starling_api::{FIRST_CREATED_AT, RolloutAction, RolloutPhase, SyncGroup, UNVERIFIED_BY};
use starling_testkit::fleet::{MANAGEMENT, NAMESPACE, TIMEOUT};
use starling_testkit::{Fleet, FleetOptions, GitRepo, Launch, Process, program, wait};

use crate::kubectl::Kubectl;
use crate::refusal_cases::lay;
use crate::running::config_map;

const ACCOUNT: &str = "system:serviceaccount:starling-system:starling";

fn manifests() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/manifests")
}

/// A rollout by the program with only the token of the ServiceAccount in the manifests.
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
    let bindings = std::process::Command::new(program())
        .args(["install", "--namespaces", NAMESPACE, "--no-crds"])
        .output()?;
    kubectl
        .feed(
            &["apply", "--validate=strict", "-f", "-"],
            &String::from_utf8(bindings.stdout)?,
        )
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
    let group = |policy: &str| json!({"clusterSelector": {}, "syncs": [entry], "deletionPolicy": policy});
    fleet.put_group("shop", group("Delete")).await?;
    let controller = start(&fleet, token.trim())?;
    fleet.rollout("shop", &first, RolloutPhase::Succeeded).await?;
    let second = repo.commit(&[("app/a.yaml", &config_map("settings", "two"))], "two")?;
    fleet.rollout("shop", &second, RolloutPhase::Succeeded).await?;
    old_actions_approvals_and_releases_are_deleted(&fleet, &kubectl, &repo).await?;
    tenant_a_missing_policy_is_reported_and_nothing_is_attributed(&fleet, &kubectl).await?;
    // The deletion of the group: finalizers, other deleted objects, events.
    fleet.delete::<SyncGroup>("shop").await?;
    wait::until(TIMEOUT, "the group is gone", async || {
        let found = fleet.api::<SyncGroup>().get_opt("shop").await;
        match found.map_err(|e| e.to_string())? {
            None => Ok(()),
            Some(group) => Err(format!("{:?}", group.status)),
        }
    })
    .await?;
    let maps: Api<ConfigMap> = Api::namespaced(fleet.member("m1").await?, "default");
    assert!(maps.get_opt("settings").await?.is_none());
    let last = repo.commit(&[("app/a.yaml", &config_map("settings", "last"))], "last")?;
    fleet.put_group("shop", group("Orphan")).await?;
    fleet.rollout("shop", &last, RolloutPhase::Succeeded).await?;
    // A cluster that leaves: its Sync is deleted.
    fleet.delete::<starling_api::Cluster>("m1").await?;
    fleet
        .group_status("shop", "no cluster is left", |status| status.clusters.total == 0)
        .await?;
    wait::until(TIMEOUT, "its Sync is gone", async || {
        let syncs = fleet.syncs().await.map_err(|e| e.to_string())?;
        if syncs.is_empty() {
            Ok(())
        } else {
            Err(format!("{} Syncs", syncs.len()))
        }
    })
    .await?;
    drop(controller);

    let events = plane.audit_events()?;
    let own: Vec<_> = events.iter().filter(|event| event.user() == ACCOUNT).collect();
    assert!(
        own.iter()
            .any(|event| event.is_write() && event.resource() == "syncs"),
        "another user wrote"
    );
    for (verb, resource) in [
        ("patch", "syncgroups"),
        ("get", "namespaces"),
        ("get", "customresourcedefinitions"),
        ("create", "events"),
        ("delete", "controllerrevisions"),
        ("delete", "rolloutactions"),
        ("delete", "rolloutapprovals"),
    ] {
        let used = own
            .iter()
            .any(|event| event.verb() == verb && event.resource() == resource);
        assert!(used, "{verb} {resource} is permitted and was not needed");
    }
    let refused: Vec<String> = own
        .iter()
        .filter(|event| matches!(event.status(), Some(401 | 403)))
        .map(|event| format!("{} {}", event.verb(), event.uri()))
        .collect();
    assert!(refused.is_empty(), "forbidden: {refused:?}");
    no_more_than_needed(&kubectl).await
}

/// After twenty more rollouts, the actions and approvals of the first two are deleted, and only the newest releases are
/// kept.
async fn old_actions_approvals_and_releases_are_deleted(
    fleet: &Fleet,
    kubectl: &Kubectl,
    repo: &GitRepo,
) -> Result<()> {
    let whoami = kubectl.json(&["auth", "whoami"]).await?;
    let me = whoami["status"]["userInfo"]["username"]
        .as_str()
        .context("a name")?;
    let create_for = async |kind: &str, rollout: i64, more: Value| -> Result<String> {
        let mut spec = json!({"group": "shop", "rollout": rollout, "by": me, "reason": "to be forgotten"});
        lay(&mut spec, &more);
        let object = json!({"apiVersion": "starling.dev/v1alpha1", "kind": kind,
            "metadata": {"generateName": "said-", "namespace": NAMESPACE}, "spec": spec});
        let made = kubectl
            .feed(&["create", "-o", "name", "-f", "-"], &object.to_string())
            .await?;
        Ok(made.trim().to_owned())
    };
    let resume = json!({"action": "Resume"});
    let approve = json!({"stage": "canary", "releaseDigest": format!("sha256:{}", "a".repeat(64))});
    let mut first_two = Vec::new();
    for rollout in [1, 2] {
        first_two.push(create_for("RolloutAction", rollout, resume.clone()).await?);
        first_two.push(create_for("RolloutApproval", rollout, approve.clone()).await?);
    }
    let kept = [
        create_for("RolloutAction", 3, resume).await?,
        create_for("RolloutApproval", 3, approve).await?,
    ];
    for rollout in 3..=22 {
        let commit = repo.commit(
            &[("app/a.yaml", &config_map("settings", &rollout.to_string()))],
            "more",
        )?;
        let status = fleet.rollout("shop", &commit, RolloutPhase::Succeeded).await?;
        assert_eq!(status.rollout.map(|rollout| rollout.id), Some(rollout));
    }
    wait::until(TIMEOUT, "what was said to the first two is gone", async || {
        let listed = kubectl
            .run(&[
                "-n",
                NAMESPACE,
                "get",
                "rolloutactions,rolloutapprovals",
                "-o",
                "name",
            ])
            .await
            .map_err(|error| error.to_string())?;
        let remaining = first_two.iter().any(|name| listed.contains(name.as_str()));
        if remaining { Err(listed) } else { Ok(()) }
    })
    .await?;
    for name in &kept {
        kubectl.run(&["-n", NAMESPACE, "get", name]).await?;
    }
    let releases: Api<ControllerRevision> = fleet.api();
    // The current release, which is also the last known good, and the ten releases before it.
    wait::until(TIMEOUT, "the newest releases are left", async || {
        let kept = releases.list(&ListParams::default()).await;
        let mut kept: Vec<i64> = kept
            .map_err(|error| error.to_string())?
            .iter()
            .map(|release| release.revision)
            .collect();
        kept.sort_unstable();
        if kept == (12..=22).collect::<Vec<i64>>() {
            Ok(())
        } else {
            Err(format!("{kept:?}"))
        }
    })
    .await?;
    Ok(())
}

/// Without the admission policy, anybody may write any `by`.
async fn tenant_a_missing_policy_is_reported_and_nothing_is_attributed(
    fleet: &Fleet,
    kubectl: &Kubectl,
) -> Result<()> {
    let missing = async || -> Result<Option<String>> {
        let group = fleet.get::<SyncGroup>("shop").await?;
        let conditions = group.status.map(|status| status.conditions).unwrap_or_default();
        Ok(conditions::find(&conditions, POLICY_MISSING).map(|condition| condition.message.clone()))
    };
    assert_eq!(missing().await?, None, "the policies are in force");
    let unverified = async || -> Result<Vec<String>> {
        let actions: Api<RolloutAction> = fleet.api();
        let actions = actions.list(&ListParams::default()).await?;
        let mut marked: Vec<RolloutAction> = actions.items;
        marked.retain(|action| action.annotations().contains_key(UNVERIFIED_BY));
        Ok(marked.iter().map(ResourceExt::name_any).collect())
    };
    assert!(unverified().await?.is_empty());

    let binding = "validatingadmissionpolicybinding/operator-actions.starling.dev";
    kubectl.run(&["delete", binding]).await?;
    wait::until(TIMEOUT, "the missing binding is reported", async || {
        let told = missing().await.map_err(|error| error.to_string())?;
        match told {
            Some(message) if message.contains("operator-actions.starling.dev not found") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .await?;
    let forged = json!({"apiVersion": "starling.dev/v1alpha1", "kind": "RolloutAction",
        "metadata": {"name": "forged", "namespace": NAMESPACE, "annotations": {FIRST_CREATED_AT: "2020-01-01T00:00:00Z"}},
        "spec": {"group": "shop", "rollout": 22, "action": "Pause", "by": "admin", "reason": "forged"}});
    wait::until(TIMEOUT, "the policy is no longer enforced", async || {
        let made = kubectl.feed(&["create", "-f", "-"], &forged.to_string()).await;
        made.map(drop).map_err(|error| error.to_string())
    })
    .await?;
    wait::until(TIMEOUT, "the forged name is marked", async || {
        let marked = unverified().await.map_err(|error| error.to_string())?;
        if marked == ["forged"] {
            Ok(())
        } else {
            Err(format!("{marked:?}"))
        }
    })
    .await?;

    let manifest = manifests().join("30-people.yaml");
    kubectl.run(&["apply", "-f", &manifest.to_string_lossy()]).await?;
    wait::until(TIMEOUT, "the policies are back", async || {
        match missing().await.map_err(|error| error.to_string())? {
            None => Ok(()),
            Some(message) => Err(message),
        }
    })
    .await?;
    assert_eq!(unverified().await?, ["forged"], "the mark stays");
    kubectl
        .run(&["-n", NAMESPACE, "delete", "rolloutaction/forged"])
        .await?;
    Ok(())
}

async fn no_more_than_needed(kubectl: &Kubectl) -> Result<()> {
    let may = async |arguments: &[&str]| -> Result<bool> {
        let call = [&["auth", "can-i", "--as", ACCOUNT], arguments].concat();
        Ok(kubectl.call(&call, "").await?.out.trim() == "yes")
    };
    assert!(may(&["get", "secrets", "-n", "fleet"]).await?);
    // A renewed token is written back; a Secret is never created.
    assert!(may(&["patch", "secrets", "-n", "fleet"]).await?);
    for arguments in [
        &["get", "secrets", "-n", "other"][..],
        &["get", "secrets", "-n", "kube-system"],
        &["patch", "secrets", "-n", "other"],
        // Only with --job-gate-service-account.
        &["create", "jobs.batch", "-n", "fleet"],
        &["list", "secrets", "-n", "fleet"],
        &["watch", "secrets", "-A"],
        &["create", "secrets", "-n", "fleet"],
        &["patch", "sources.starling.dev", "-n", "fleet"],
        &["patch", "clusters.starling.dev", "-n", "fleet"],
        &["delete", "syncgroups.starling.dev", "-n", "fleet"],
        &["delete", "namespaces"],
        &["list", "namespaces"],
        &["patch", "customresourcedefinitions"],
        &["get", "customresourcedefinition/others.example.test"],
        &["list", "events.events.k8s.io", "-n", "fleet"],
        &["delete", "events.events.k8s.io", "-n", "fleet"],
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
    let file = fleet.directory().join("service-account.kubeconfig");
    std::fs::write(&file, kubeconfig.to_string())?;
    let port = starling_controlplane::free_port()?;
    let mut launch = Launch::new("starling", program(), fleet.log())
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

/// The Deployment uses existing arguments of the program, and the Pod Security level `restricted` admits it.
#[test]
fn the_deployment_is_restricted_and_its_arguments_exist() -> Result<()> {
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
    let output = std::process::Command::new(program())
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
    let unknown = std::process::Command::new(program())
        .args(&arguments)
        .arg("--no-such-thing")
        .output()?;
    assert!(!unknown.status.success());
    Ok(())
}
