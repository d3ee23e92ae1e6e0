//! `deploy/manifests/30-people.yaml`: who may say what to rollouts, and that nobody speaks in another's name.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use starling_controlplane::{Assets, ControlPlanes, Options};
use starling_testkit::fleet::PATIENCE;
use starling_testkit::wait;

use crate::kubectl::{Answer, Kubectl};
use crate::refused::{lay, valid};
use crate::server::install;

const NAMESPACE: &str = "fleet";

/// A server of its own: the policy is about every namespace, and others say things in other names.
struct Office {
    kubectl: Kubectl,
    _planes: ControlPlanes,
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
        let office = Self {
            kubectl,
            _planes: planes,
        };
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
