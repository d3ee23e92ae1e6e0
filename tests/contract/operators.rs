//! `deploy/manifests/30-people.yaml`: which users may create actions and approvals, only in their own name.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use kube::config::Kubeconfig;
use serde_json::{Value, json};
use starling_controlplane::{Assets, ControlPlanes, Options};
use starling_testkit::fleet::TIMEOUT;
use starling_testkit::{program, wait};
use tempfile::NamedTempFile;
use tokio::process::Command;

use crate::kubectl::{CommandOutput, Kubectl};
use crate::refusal_cases::{lay, valid};
use crate::server::install;

const NAMESPACE: &str = "fleet";

/// A separate server: the policy applies to every namespace, and other tests act in other names.
struct PolicyServer {
    kubectl: Kubectl,
    planes: ControlPlanes,
}

impl PolicyServer {
    async fn open() -> Result<Self> {
        let planes = ControlPlanes::start(&Assets::find()?, &["management"], Options::default()).await?;
        let kubectl = Kubectl::new(planes.assets(), planes.get("management")?);
        install(&kubectl).await?;
        kubectl.run(&["create", "namespace", NAMESPACE]).await?;
        let policy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/manifests/30-people.yaml");
        let policy = policy.to_string_lossy().into_owned();
        kubectl
            .run(&["apply", "--validate=strict", "-f", &policy])
            .await?;
        for (user, role) in [("ann", "starling-approver"), ("olga", "starling-operator")] {
            let (user_flag, role_flag) = (format!("--user={user}"), format!("--clusterrole={role}"));
            let bind = [
                "-n",
                NAMESPACE,
                "create",
                "rolebinding",
                user,
                &role_flag,
                &user_flag,
            ];
            kubectl.run(&bind).await?;
        }
        let server = Self { kubectl, planes };
        server.until_in_force().await?;
        Ok(server)
    }

    /// An API server takes a moment to compile a policy, and does not report when it is done. The attempts until then
    /// are dry runs.
    async fn until_in_force(&self) -> Result<()> {
        wait::until(TIMEOUT, "all kinds are under the policy", async || {
            for kind in ["RolloutApproval", "RolloutAction", "DeletionApproval"] {
                let attempt = self
                    .create_as(None, kind, json!({"by": "nobody"}), &["--dry-run=server"])
                    .await;
                let attempt = attempt.map_err(|error| error.to_string())?;
                if attempt.ok || !attempt.err.contains("is not the user who makes the request") {
                    return Err(format!("{kind}: {}{}", attempt.out, attempt.err));
                }
            }
            let promote = json!({"by": "olga", "action": "Promote", "stage": "canary"});
            let attempt = self
                .create_as(Some("olga"), "RolloutAction", promote, &["--dry-run=server"])
                .await;
            let attempt = attempt.map_err(|error| error.to_string())?;
            if attempt.ok {
                return Err("promotions pass".to_owned());
            }
            Ok(())
        })
        .await?;
        Ok(())
    }

    /// Creates an object of a kind as a user; `None`: as the administrator.
    async fn create_as(
        &self,
        user: Option<&str>,
        kind: &str,
        over: Value,
        more: &[&str],
    ) -> Result<CommandOutput> {
        let mut body = valid(kind);
        lay(&mut body["spec"], &over);
        let mut call = vec!["-n", NAMESPACE, "create", "-o", "name", "-f", "-"];
        call.extend(user.into_iter().flat_map(|user| ["--as", user]));
        call.extend(more);
        self.kubectl.call(&call, &body.to_string()).await
    }

    /// Asserts that the object is created; returns its name.
    async fn assert_created(&self, user: &str, kind: &str, over: Value) -> Result<String> {
        let output = self.create_as(Some(user), kind, over, &[]).await?;
        ensure!(output.ok, "{user} makes a {kind}: {}", output.err);
        Ok(output.out.trim().to_owned())
    }

    /// Asserts that the object is refused with this message.
    async fn assert_refused(&self, user: Option<&str>, kind: &str, over: Value, words: &str) -> Result<()> {
        let output = self.create_as(user, kind, over.clone(), &[]).await?;
        ensure!(!output.ok, "{user:?} made a {kind} {over}");
        ensure!(
            output.err.contains(words),
            "{user:?}, {kind} {over} is refused with: {}",
            output.err
        );
        Ok(())
    }

    /// Creates a kubeconfig that impersonates a user.
    fn kubeconfig_of(&self, user: &str) -> Result<NamedTempFile> {
        let text = self.planes.get("management")?.kubeconfig_yaml();
        let mut kubeconfig = Kubeconfig::from_yaml(&text)?;
        for info in &mut kubeconfig.auth_infos {
            if let Some(info) = &mut info.auth_info {
                info.impersonate = Some(user.to_owned());
            }
        }
        let file = NamedTempFile::new()?;
        serde_json::to_writer(&file, &kubeconfig)?;
        Ok(file)
    }

    /// Runs a command of the program as a user.
    async fn commands(&self, user: &str, words: &[&str]) -> Result<CommandOutput> {
        let kubeconfig = self.kubeconfig_of(user)?;
        let output = Command::new(program())
            .args(words)
            .args(["-n", NAMESPACE, "--reason", "because"])
            .arg("--kubeconfig")
            .arg(kubeconfig.path())
            .output()
            .await?;
        Ok(CommandOutput {
            ok: output.status.success(),
            out: String::from_utf8(output.stdout)?,
            err: String::from_utf8(output.stderr)?,
        })
    }

    /// Creates a group whose canary waits for an approval, as a controller would.
    async fn group_that_waits(&self) -> Result<()> {
        let mut group = valid("SyncGroup");
        group["metadata"]["name"] = "web".into();
        group["metadata"]["namespace"] = NAMESPACE.into();
        group["spec"]["rolloutStrategy"] = json!({"stages": [
            {"name": "canary", "clusterSelector": {}, "afterStageTasks": [{"type": "Approval"}]},
        ]});
        let made = self
            .kubectl
            .call(&["apply", "-f", "-"], &group.to_string())
            .await?;
        ensure!(made.ok, "the group: {}", made.err);
        let stage = json!({"name": "canary", "phase": "AwaitingApproval"});
        let status = json!({"status": {"rollout": {"id": 7, "release": "r", "phase": "Progressing",
            "releaseDigest": "sha256:01", "stage": "canary", "stages": [stage]}}});
        let patch = status.to_string();
        let group = ["-n", NAMESPACE, "patch", "syncgroup", "web"];
        let call = [
            &group[..],
            &["--subresource=status", "--type=merge", "-p", &patch],
        ]
        .concat();
        self.kubectl.run(&call).await?;
        Ok(())
    }

    async fn count(&self, kind: &str) -> Result<usize> {
        let list = self.kubectl.json(&["-n", NAMESPACE, "get", kind]).await?;
        Ok(list["items"].as_array().context("items")?.len())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn approvers_and_operators_act_only_in_their_own_name() -> Result<()> {
    let server = PolicyServer::open().await?;
    let (ann, olga) = (Some("ann"), Some("olga"));
    let by = |name: &str| json!({"by": name});
    let (approval, action, deletions) = ("RolloutApproval", "RolloutAction", "DeletionApproval");

    let approved = server.assert_created("ann", approval, by("ann")).await?;
    let steered = server.assert_created("olga", action, by("olga")).await?;
    let deleted = server.assert_created("ann", deletions, by("ann")).await?;

    let impersonation_error =
        |name: &str, user: &str| format!("spec.by: {name} is not the user who makes the request, {user}");
    server
        .assert_refused(ann, approval, by("bob"), &impersonation_error("bob", "ann"))
        .await?;
    server
        .assert_refused(olga, action, by("ann"), &impersonation_error("ann", "olga"))
        .await?;
    server
        .assert_refused(ann, deletions, by("bob"), &impersonation_error("bob", "ann"))
        .await?;
    // Not even an administrator may do this.
    for kind in [approval, action, deletions] {
        server
            .assert_refused(
                None,
                kind,
                by("ann"),
                "spec.by: ann is not the user who makes the request",
            )
            .await?;
    }

    server
        .assert_refused(
            olga,
            approval,
            by("olga"),
            "cannot create resource \"rolloutapprovals\"",
        )
        .await?;
    server
        .assert_refused(
            ann,
            action,
            by("ann"),
            "cannot create resource \"rolloutactions\"",
        )
        .await?;
    server
        .assert_refused(
            olga,
            deletions,
            by("olga"),
            "cannot create resource \"deletionapprovals\"",
        )
        .await?;
    for kind in ["rolloutapprovals", "rolloutactions", "deletionapprovals"] {
        assert_eq!(server.count(kind).await?, 1, "{kind}");
    }

    // Actions and approvals are immutable: neither an administrator nor their author can change them.
    for (user, name, words) in [
        (None, &approved, "RolloutApproval is immutable"),
        (None, &steered, "RolloutAction is immutable"),
        (None, &deleted, "DeletionApproval is immutable"),
        (ann, &approved, "cannot patch resource"),
        (ann, &deleted, "cannot patch resource"),
        (olga, &steered, "cannot patch resource"),
    ] {
        for patch in [r#"{"spec":{"by":"bob"}}"#, r#"{"spec":{"group":"other"}}"#] {
            let mut call = vec!["-n", NAMESPACE, "patch", name, "--type=merge", "-p", patch];
            call.extend(user.into_iter().flat_map(|user| ["--as", user]));
            let output = server.kubectl.call(&call, "").await?;
            assert!(!output.ok, "{name} was changed by {patch}");
            assert!(output.err.contains(words), "{name} {patch}: {}", output.err);
        }
    }
    for (user, name) in [("ann", &approved), ("olga", &steered), ("ann", &deleted)] {
        let output = server
            .kubectl
            .call(&["-n", NAMESPACE, "delete", name, "--as", user], "")
            .await?;
        assert!(
            output.err.contains("cannot delete resource"),
            "{name}: {}",
            output.err
        );
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn tenant_passing_an_approval_requires_the_permission_to_approve() -> Result<()> {
    let server = PolicyServer::open().await?;
    server.group_that_waits().await?;
    let kubectl = &server.kubectl;
    let editor = "--verb=get,patch,update,create";
    let resource = "--resource=syncs.starling.dev,syncgroups.starling.dev";
    let role = ["-n", NAMESPACE, "create", "role", "editor", editor, resource];
    kubectl.run(&role).await?;
    for user in ["ann", "olga"] {
        let (name, user) = (format!("{user}-edits"), format!("--user={user}"));
        let bind = [
            "-n",
            NAMESPACE,
            "create",
            "rolebinding",
            &name,
            "--role=editor",
            &user,
        ];
        kubectl.run(&bind).await?;
    }
    let mut sync = valid("Sync");
    sync["metadata"]["name"] = "web-m1".into();
    sync["spec"]["groupRef"] = json!({"name": "web", "entry": "app"});
    sync["spec"]["revision"] = format!("main@sha1:{}", "a".repeat(40)).into();
    let made = kubectl
        .call(&["-n", NAMESPACE, "create", "-f", "-"], &sync.to_string())
        .await?;
    ensure!(made.ok, "{}", made.err);

    let refusal = "require the permission to create rolloutapprovals";
    // Ann may not create operator actions, so only the refusals are those of one role.
    for over in [
        json!({"action": "Promote", "stage": "canary", "by": "olga"}),
        json!({"action": "Skip", "stage": "canary", "by": "olga"}),
        json!({"action": "Rollback", "revision": "main@sha1:1234567", "by": "olga"}),
    ] {
        server
            .assert_refused(Some("olga"), "RolloutAction", over, refusal)
            .await?;
    }
    server
        .assert_created("olga", "RolloutAction", json!({"action": "Pause", "by": "olga"}))
        .await?;
    server
        .assert_created(
            "olga",
            "RolloutAction",
            json!({"action": "Rollback", "by": "olga"}),
        )
        .await?;

    let patch = async |user: &str, object: &str, patch: Value| -> Result<CommandOutput> {
        let patch = patch.to_string();
        let call = [
            "-n",
            NAMESPACE,
            "patch",
            object,
            "--type=merge",
            "-p",
            &patch,
            "--as",
            user,
        ];
        kubectl.call(&call, "").await
    };
    let no_task =
        json!({"spec": {"rolloutStrategy": {"stages": [{"name": "canary", "clusterSelector": {}}]}}});
    let no_strategy = json!({"spec": {"rolloutStrategy": null}});
    let other_clusters = json!({"spec": {"rolloutStrategy": {"stages": [{"name": "canary",
        "clusterSelector": {"matchLabels": {"tier": "none"}}, "afterStageTasks": [{"type": "Approval"}]}]}}});
    let revision = json!({"spec": {"revision": format!("main@sha1:{}", "b".repeat(40))}});
    let path = json!({"spec": {"path": "./other"}});
    let digest = format!("sha256:{}", "a".repeat(64));
    let deletions = json!({"metadata": {"annotations": {"starling.dev/approve-deletions": digest}}});
    let membership = json!({"metadata": {"annotations": {"starling.dev/approve-membership": digest}}});
    for (object, change) in [
        ("syncgroup/web", &deletions),
        ("syncgroup/web", &membership),
        ("sync/web-m1", &deletions),
    ] {
        let refused = patch("olga", object, change.clone()).await?;
        ensure!(
            !refused.ok && refused.err.contains("create deletionapprovals"),
            "{object} {change}: {}{}",
            refused.out,
            refused.err
        );
        let allowed = patch("ann", object, change.clone()).await?;
        ensure!(allowed.ok, "{object} {change}: {}", allowed.err);
    }
    for (object, change) in [
        ("syncgroup/web", &no_task),
        ("syncgroup/web", &no_strategy),
        ("syncgroup/web", &other_clusters),
        ("sync/web-m1", &revision),
        ("sync/web-m1", &path),
    ] {
        let refused = patch("olga", object, change.clone()).await?;
        ensure!(
            !refused.ok && refused.err.contains("create rolloutapprovals"),
            "{object} {change}: {}{}",
            refused.out,
            refused.err
        );
    }
    // What passes no approval needs no such permission.
    for (object, change) in [
        ("syncgroup/web", json!({"spec": {"suspend": true}})),
        (
            "syncgroup/web",
            json!({"spec": {"rolloutStrategy": {"maxConcurrency": 2}}}),
        ),
        ("sync/web-m1", json!({"spec": {"suspend": true}})),
        ("sync/web-m1", json!({"metadata": {"annotations": {"note": "x"}}})),
    ] {
        let allowed = patch("olga", object, change.clone()).await?;
        ensure!(allowed.ok, "{object} {change}: {}", allowed.err);
    }
    for (object, change) in [("sync/web-m1", revision), ("syncgroup/web", no_task)] {
        let allowed = patch("ann", object, change.clone()).await?;
        ensure!(allowed.ok, "{object} {change}: {}", allowed.err);
    }
    Ok(())
}

/// The command line uses the permissions and the name of the caller.
#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_uses_the_permissions_and_name_of_its_caller() -> Result<()> {
    let server = PolicyServer::open().await?;
    server.group_that_waits().await?;
    let (pause, approve) = (&["pause", "web"][..], &["approve", "web"][..]);
    let digest = format!("sha256:{}", "a".repeat(64));
    let deletions = &["approve-deletions", "group", "web", "--digest", &digest][..];
    for (user, words, kind, may) in [
        ("ann", pause, "rolloutactions", false),
        ("olga", pause, "rolloutactions", true),
        ("olga", approve, "rolloutapprovals", false),
        ("ann", approve, "rolloutapprovals", true),
        ("olga", deletions, "deletionapprovals", false),
        ("ann", deletions, "deletionapprovals", true),
        // A user without permissions cannot read the group.
        ("mallory", pause, "syncgroups", false),
        ("mallory", approve, "syncgroups", false),
    ] {
        let before = (
            server.count("rolloutactions").await?,
            server.count("rolloutapprovals").await?,
            server.count("deletionapprovals").await?,
        );
        let output = server.commands(user, words).await?;
        assert_eq!(output.ok, may, "{user} {words:?}: {}{}", output.out, output.err);
        if may {
            let list = server.kubectl.json(&["-n", NAMESPACE, "get", kind]).await?;
            let spec = &list["items"][0]["spec"];
            assert_eq!((&spec["by"], &spec["reason"]), (&json!(user), &json!("because")));
            assert_eq!(spec["group"], json!("web"));
            match kind {
                "deletionapprovals" => assert_eq!(spec["digest"], json!(digest)),
                _ => assert_eq!(spec["rollout"], json!(7)),
            }
        } else {
            assert!(
                output.err.contains(kind) && output.err.contains("cannot"),
                "{}",
                output.err
            );
            let after = (
                server.count("rolloutactions").await?,
                server.count("rolloutapprovals").await?,
                server.count("deletionapprovals").await?,
            );
            assert_eq!(after, before, "{user} {words:?}");
        }
    }
    Ok(())
}
