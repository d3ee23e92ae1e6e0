//! Refused kubeconfigs, and credentials that must not leak.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Secret;
use serde_json::{Value, json};
use starling_api::conditions::{self, Condition, READY};
use starling_api::{Cluster, Source};
use starling_controlplane::free_port;
use starling_testkit::fleet::{MANAGEMENT, NAMESPACE};

use crate::running::{Running, on_the_fleet};

/// Part of every credential of this module. It must not be in any status, event or log.
const CANARY: &str = "canary-5e1f3bd0c7a94c1e";

/// Returns a kubeconfig of a reachable server, with changes of its cluster and user.
fn kubeconfig(running: &Running, change: impl Fn(&mut Value)) -> Result<String> {
    let plane = running.fleet.plane(MANAGEMENT)?;
    let mut json: Value = serde_saphyr::from_str(&plane.kubeconfig_yaml())?;
    json["users"][0]["user"]["token"] = json!(CANARY);
    change(&mut json);
    Ok(json.to_string())
}

/// A change of the kubeconfig, and the field that the error must name.
type Case = (&'static str, &'static str, Value, &'static str);

fn cases() -> Vec<Case> {
    let user = "/users/0/user";
    let cluster = "/clusters/0/cluster";
    vec![
        (
            user,
            "exec",
            json!({"command": "sh", "args": [CANARY], "env": [{"name": "T", "value": CANARY}]}),
            "exec",
        ),
        (
            user,
            "auth-provider",
            json!({"name": "gcp", "config": {"access-token": CANARY}}),
            "auth-provider",
        ),
        (user, "tokenFile", json!(format!("/var/{CANARY}")), "tokenFile"),
        (
            user,
            "client-certificate",
            json!("/etc/cert.pem"),
            "client-certificate",
        ),
        (user, "client-key", json!("/etc/key.pem"), "client-key"),
        (user, "client-key-data", json!(CANARY), "client-key-data"),
        (user, "username", json!(CANARY), "username"),
        (user, "password", json!(CANARY), "password"),
        (user, "as", json!("system:admin"), "as"),
        (user, "as-groups", json!(["system:masters"]), "as-groups"),
        (user, "token", json!([CANARY]), "token"),
        (user, "token", json!(format!("{CANARY}\nX-Injected: 1")), "token"),
        (
            cluster,
            "certificate-authority",
            json!("/etc/ca.pem"),
            "certificate-authority",
        ),
        (
            cluster,
            "certificate-authority-data",
            json!(CANARY),
            "certificate-authority-data",
        ),
        (
            cluster,
            "insecure-skip-tls-verify",
            json!(true),
            "insecure-skip-tls-verify",
        ),
        (
            cluster,
            "proxy-url",
            json!(format!("http://user:{CANARY}@proxy:3128")),
            "proxy-url",
        ),
        (cluster, "server", json!("http://127.0.0.1:6443"), "server"),
        (
            cluster,
            "server",
            json!(format!("https://user:{CANARY}@h:6443")),
            "server",
        ),
        (cluster, "surprise", json!(CANARY), "surprise"),
    ]
}

async fn add(running: &Running, name: &str, text: &str) -> Result<()> {
    running.fleet.add_cluster_at(name, text, &[]).await
}

/// Waits until a Cluster is not ready, and returns its Ready condition.
async fn refusal(running: &Running, name: &str) -> Result<Condition> {
    let find = |cluster: &Cluster| {
        let found = cluster
            .status
            .as_ref()
            .map(|status| status.conditions.as_slice())
            .unwrap_or_default();
        conditions::find(found, READY)
            .filter(|ready| ready.status != "True")
            .cloned()
    };
    let cluster = running
        .fleet
        .until(name, "refused", |cluster: &Cluster| find(cluster).is_some())
        .await?;
    find(&cluster).context("Ready")
}

async fn kubeconfigs_that_are_refused(running: &Running) -> Result<()> {
    let cases = cases();
    for (n, (at, field, value, _)) in cases.iter().enumerate() {
        let text = kubeconfig(running, |json| {
            if let Some(section) = json.pointer_mut(at) {
                section[*field] = value.clone();
            }
        })?;
        add(running, &format!("refused-{n}"), &text).await?;
    }
    for (n, (at, field, _, named)) in cases.iter().enumerate() {
        let ready = refusal(running, &format!("refused-{n}")).await?;
        assert_eq!(
            (ready.status.as_str(), ready.reason.as_str()),
            ("False", "InvalidKubeconfig"),
            "{at} {field}"
        );
        let list = if at.starts_with("/users") {
            "users["
        } else {
            "clusters["
        };
        // The path of the field within its entry, such as users[admin].exec.
        let path = ready.message.split_whitespace().find(|word| word.contains(list));
        let path = path.with_context(|| format!("{field}: {}", ready.message))?;
        assert!(
            path.trim_end_matches(':').ends_with(&format!("].{named}")),
            "{field}: {}",
            ready.message
        );
    }
    for (name, text) in [
        ("no-yaml", format!("{{token: {CANARY}")),
        ("no-mapping", CANARY.to_owned()),
        ("two-documents", format!("a: 1\n---\n{CANARY}: 2\n")),
    ] {
        add(running, name, &text).await?;
        let ready = refusal(running, name).await?;
        assert_eq!(
            (ready.status.as_str(), ready.reason.as_str()),
            ("False", "InvalidKubeconfig"),
            "{name}"
        );
    }
    Ok(())
}

async fn missing_secrets(running: &Running) -> Result<()> {
    for (name, secret_ref, reason, expected) in [
        ("missing", json!({"name": "nowhere"}), "SecretNotFound", "nowhere"),
        (
            "unnamed",
            json!({"name": ""}),
            "InvalidSpec",
            "spec.kubeConfig.secretRef.name",
        ),
        (
            "wrong-key",
            json!({"name": "odd", "key": "admin.conf"}),
            "InvalidSecret",
            "admin.conf",
        ),
        (
            "no-key",
            json!({"name": "odd"}),
            "InvalidSecret",
            "value, value.yaml, kubeconfig",
        ),
    ] {
        let odd = json!({"metadata": {"name": "odd"}, "stringData": {"other": CANARY}});
        running.fleet.put::<Secret>(odd).await?;
        let cluster = json!({"metadata": {"name": name}, "spec": {"kubeConfig": {"secretRef": secret_ref}}});
        running.fleet.put::<Cluster>(cluster).await?;
        let ready = refusal(running, name).await?;
        assert_eq!(
            (ready.status.as_str(), ready.reason.as_str()),
            ("False", reason),
            "{name}"
        );
        assert!(ready.message.contains(expected), "{name}: {}", ready.message);
    }
    Ok(())
}

/// Invalid credentials that are sent: the responses of servers are part of conditions too.
async fn credentials_that_are_wrong(running: &Running) -> Result<()> {
    add(running, "wrong-token", &kubeconfig(running, |_| {})?).await?;
    let ready = refusal(running, "wrong-token").await?;
    assert_eq!(
        (ready.status.as_str(), ready.reason.as_str()),
        ("False", "AuthFailed")
    );

    let login =
        json!({"metadata": {"name": "login"}, "stringData": {"username": "jane", "password": CANARY}});
    running.fleet.put::<Secret>(login).await?;
    let closed = format!("http://127.0.0.1:{}/shop.git", free_port()?);
    for (name, url, secret) in [
        ("refused-login", closed.clone(), json!({"name": "login"})),
        (
            "login-in-url",
            closed.replace("//", &format!("//jane:{CANARY}@")),
            json!({"name": ""}),
        ),
        ("odd-secret", closed.clone(), json!({"name": "odd"})),
    ] {
        let spec = json!({"url": url, "ref": {"branch": "main"}, "interval": "1s", "secretRef": secret});
        running
            .fleet
            .put::<Source>(json!({"metadata": {"name": name}, "spec": spec}))
            .await?;
        running
            .fleet
            .until(name, "not Ready", |source: &Source| {
                let status = source.status.as_ref();
                let found = status
                    .map(|status| status.conditions.as_slice())
                    .unwrap_or_default();
                conditions::find(found, READY).is_some_and(|ready| ready.status == "False")
            })
            .await?;
    }
    Ok(())
}

async fn assert_no_leaks(running: &Running) -> Result<()> {
    let all = running.kubectl.json(&["get", "starling", "-A"]).await?;
    let items = all["items"].as_array().context("items")?;
    assert!(items.len() > 20, "the objects of this test");
    let token = running.fleet.plane("m1")?.token().reveal().to_owned();
    let events = running
        .kubectl
        .run(&["get", "events", "-A", "-o", "json"])
        .await?;
    let log = std::fs::read_to_string(running.fleet.log())?;
    assert!(log.contains("wrong-token"), "the log is about these objects");
    for secret in [CANARY, &token] {
        for object in items {
            let status = object["status"].to_string();
            assert!(
                !status.contains(secret),
                "{} {}: {status}",
                object["kind"],
                object["metadata"]["name"]
            );
        }
        let leaked: Vec<&str> = log.lines().filter(|line| line.contains(secret)).collect();
        assert!(leaked.is_empty(), "the log contains: {leaked:?}");
        assert!(!events.contains(secret), "an event contains a secret");
    }
    Ok(())
}

#[test]
fn refused_credentials_are_named_by_field_and_never_shown() -> Result<()> {
    on_the_fleet(|running| async move {
        kubeconfigs_that_are_refused(&running).await?;
        missing_secrets(&running).await?;
        credentials_that_are_wrong(&running).await?;
        assert_no_leaks(&running).await?;
        // Other tests share the fleet, so unreachable Clusters must be removed.
        running
            .kubectl
            .run(&[
                "-n",
                NAMESPACE,
                "delete",
                "clusters",
                "--field-selector=metadata.name!=m1",
            ])
            .await?;
        Ok(())
    })
}
