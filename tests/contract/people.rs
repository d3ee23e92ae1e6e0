//! `deploy/manifests/30-people.yaml`: who may say what to rollouts, and that nobody speaks in another's name.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use kube::config::Kubeconfig;
use serde_json::{Value, json};
use starling_controlplane::{Assets, ControlPlanes, Options};
use starling_testkit::fleet::PATIENCE;
use starling_testkit::wait;
use tempfile::NamedTempFile;
use tokio::process::Command;

use crate::PROGRAM;
use crate::kubectl::{Answer, Kubectl};
use crate::refused::{lay, valid};
use crate::server::install;

const NAMESPACE: &str = "fleet";

/// A server of its own: the policy is about every namespace, and others say things in other names.
struct Office {
    kubectl: Kubectl,
    planes: ControlPlanes,
}

impl Office {
    async fn open() -> Result<Self> {
        let planes = ControlPlanes::start(&Assets::find()?, &["management"], Options::default()).await?;
        let kubectl = Kubectl::new(planes.assets(), planes.get("management")?);
        install(&kubectl).await?;
        kubectl.run(&["create", "namespace", NAMESPACE]).await?;
        let people = Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/manifests/30-people.yaml");
        let people = people.to_string_lossy().into_owned();
        kubectl
            .run(&["apply", "--validate=strict", "-f", &people])
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
        let office = Self { kubectl, planes };
        office.until_in_force().await?;
        Ok(office)
    }

    /// API servers take a moment to compile a policy, and say nowhere when they are done. Nothing is kept of what is tried
    /// until then.
    async fn until_in_force(&self) -> Result<()> {
        wait::until(PATIENCE, "both kinds are under the policy", async || {
            for kind in ["RolloutApproval", "RolloutAction"] {
                let tried = self
                    .says(None, kind, json!({"by": "nobody"}), &["--dry-run=server"])
                    .await;
                let tried = tried.map_err(|error| error.to_string())?;
                if tried.ok || !tried.err.contains("is not who asks") {
                    return Err(format!("{kind}: {}{}", tried.out, tried.err));
                }
            }
            Ok(())
        })
        .await?;
        Ok(())
    }

    /// Makes an object of a kind as a person; `None`: as the one who may do anything.
    async fn says(&self, user: Option<&str>, kind: &str, over: Value, more: &[&str]) -> Result<Answer> {
        let mut body = valid(kind);
        lay(&mut body["spec"], &over);
        let mut call = vec!["-n", NAMESPACE, "create", "-o", "name", "-f", "-"];
        call.extend(user.into_iter().flat_map(|user| ["--as", user]));
        call.extend(more);
        self.kubectl.call(&call, &body.to_string()).await
    }

    /// That, and it has to be taken; the name of the object.
    async fn is_heard(&self, user: &str, kind: &str, over: Value) -> Result<String> {
        let answer = self.says(Some(user), kind, over, &[]).await?;
        ensure!(answer.ok, "{user} makes a {kind}: {}", answer.err);
        Ok(answer.out.trim().to_owned())
    }

    /// That, and it has to be refused with these words.
    async fn is_refused(&self, user: Option<&str>, kind: &str, over: Value, words: &str) -> Result<()> {
        let answer = self.says(user, kind, over.clone(), &[]).await?;
        ensure!(!answer.ok, "{user:?} made a {kind} {over}");
        ensure!(
            answer.err.contains(words),
            "{user:?}, {kind} {over} is refused with: {}",
            answer.err
        );
        Ok(())
    }

    /// A kubeconfig with which everything is asked as somebody.
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

    /// What a word of somebody on the command line comes to.
    async fn commands(&self, user: &str, words: &[&str]) -> Result<Answer> {
        let kubeconfig = self.kubeconfig_of(user)?;
        let output = Command::new(PROGRAM)
            .args(words)
            .args(["-n", NAMESPACE, "--reason", "because"])
            .arg("--kubeconfig")
            .arg(kubeconfig.path())
            .output()
            .await?;
        Ok(Answer {
            ok: output.status.success(),
            out: String::from_utf8(output.stdout)?,
            err: String::from_utf8(output.stderr)?,
        })
    }

    /// A group whose canary waits for an approval, as a controller would leave it.
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
async fn approvers_approve_operators_steer_and_nobody_speaks_in_anothers_name() -> Result<()> {
    let office = Office::open().await?;
    let (ann, olga) = (Some("ann"), Some("olga"));
    let by = |name: &str| json!({"by": name});
    let (approval, action) = ("RolloutApproval", "RolloutAction");

    let approved = office.is_heard("ann", approval, by("ann")).await?;
    let steered = office.is_heard("olga", action, by("olga")).await?;

    let forged = |name: &str, user: &str| format!("spec.by: {name} is not who asks: that is {user}");
    office
        .is_refused(ann, approval, by("bob"), &forged("bob", "ann"))
        .await?;
    office
        .is_refused(olga, action, by("ann"), &forged("ann", "olga"))
        .await?;
    // Whoever may do anything may not do this either.
    for kind in [approval, action] {
        office
            .is_refused(None, kind, by("ann"), "spec.by: ann is not who asks")
            .await?;
    }

    office
        .is_refused(
            olga,
            approval,
            by("olga"),
            "cannot create resource \"rolloutapprovals\"",
        )
        .await?;
    office
        .is_refused(
            ann,
            action,
            by("ann"),
            "cannot create resource \"rolloutactions\"",
        )
        .await?;
    assert_eq!(office.count("rolloutapprovals").await?, 1);
    assert_eq!(office.count("rolloutactions").await?, 1);

    // What was said is said: not to be changed by whoever may do anything, nor touched by who said it.
    for (user, name, words) in [
        (None, &approved, "an approval cannot be changed"),
        (None, &steered, "an action cannot be changed"),
        (ann, &approved, "cannot patch resource"),
        (olga, &steered, "cannot patch resource"),
    ] {
        for patch in [r#"{"spec":{"by":"bob"}}"#, r#"{"spec":{"rollout":2}}"#] {
            let mut call = vec!["-n", NAMESPACE, "patch", name, "--type=merge", "-p", patch];
            call.extend(user.into_iter().flat_map(|user| ["--as", user]));
            let answer = office.kubectl.call(&call, "").await?;
            assert!(!answer.ok, "{name} was changed by {patch}");
            assert!(answer.err.contains(words), "{name} {patch}: {}", answer.err);
        }
    }
    for (user, name) in [("ann", &approved), ("olga", &steered)] {
        let answer = office
            .kubectl
            .call(&["-n", NAMESPACE, "delete", name, "--as", user], "")
            .await?;
        assert!(
            answer.err.contains("cannot delete resource"),
            "{name}: {}",
            answer.err
        );
    }
    Ok(())
}

/// What is said on the command line is said with the caller's own rights, and in the caller's name.
#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_has_the_rights_and_the_name_of_whoever_calls_it() -> Result<()> {
    let office = Office::open().await?;
    office.group_that_waits().await?;
    let (pause, approve) = (["pause", "web"], ["approve", "web"]);
    for (user, words, kind, may) in [
        ("ann", &pause, "rolloutactions", false),
        ("olga", &pause, "rolloutactions", true),
        ("olga", &approve, "rolloutapprovals", false),
        ("ann", &approve, "rolloutapprovals", true),
        // Who may nothing does not even see the group.
        ("mallory", &pause, "syncgroups", false),
        ("mallory", &approve, "syncgroups", false),
    ] {
        let before = (
            office.count("rolloutactions").await?,
            office.count("rolloutapprovals").await?,
        );
        let answer = office.commands(user, words).await?;
        assert_eq!(answer.ok, may, "{user} {words:?}: {}{}", answer.out, answer.err);
        if may {
            let list = office.kubectl.json(&["-n", NAMESPACE, "get", kind]).await?;
            let said = &list["items"][0]["spec"];
            assert_eq!((&said["by"], &said["reason"]), (&json!(user), &json!("because")));
            assert_eq!((&said["group"], &said["rollout"]), (&json!("web"), &json!(7)));
        } else {
            assert!(
                answer.err.contains(kind) && answer.err.contains("cannot"),
                "{}",
                answer.err
            );
            let after = (
                office.count("rolloutactions").await?,
                office.count("rolloutapprovals").await?,
            );
            assert_eq!(after, before, "{user} {words:?}");
        }
    }
    Ok(())
}
