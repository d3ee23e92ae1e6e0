//! Secrets do not leak: canary values are used for every secret that the program handles, failures are provoked around
//! them, and then everything that the program wrote is searched for them, in every encoding of
//! [`starling_testkit::canary`].

// Clippy's exception for tests does not reach the functions that they share.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod echo;
mod encrypted;
mod search;

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use http::{HeaderValue, StatusCode};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use starling_api::{REQUESTED_AT, Source, SyncResource};
use starling_controlplane::{Process, free_port};
use starling_testkit::canary::Canary;
use starling_testkit::{Fault, Fleet, FleetOptions, GitRepo, Match, program, wait};

use encrypted::EncryptedSource;
use search::Search;

/// The secret values. The last is in manifests of a repository, the others are in no output at all.
struct Canaries {
    member: Canary,
    password: Canary,
    bearer: Canary,
    identity: Canary,
    encrypted: Canary,
    manifest: Canary,
}

impl Canaries {
    /// Returns the values that must never be on disk, not even briefly: credentials and decrypted values.
    fn never_on_disk(&self) -> Vec<&Canary> {
        vec![
            &self.member,
            &self.password,
            &self.bearer,
            &self.identity,
            &self.encrypted,
        ]
    }

    fn all(&self) -> Vec<&Canary> {
        let mut all = self.never_on_disk();
        all.push(&self.manifest);
        all
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn t52_t53_t54_no_secret_is_in_any_log_status_event_metric_ledger_page_or_temporary_file() -> Result<()>
{
    let options = FleetOptions {
        members: 1,
        proxied: true,
        ..FleetOptions::default()
    };
    let fleet = Fleet::start(options).await?;
    let children = fleet.directory().join("children");
    let encrypted = EncryptedSource::install(&fleet, &children)?;
    let token = fleet.plane("m1")?.token().reveal().to_owned();
    let canaries = Canaries {
        member: Canary::of("token of the member", token),
        password: Canary::new("password of git"),
        bearer: Canary::new("bearer token of git"),
        identity: Canary::of("age identity", encrypted.key.identity().to_owned()),
        encrypted: Canary::new("value of an encrypted Secret in git"),
        manifest: Canary::new("value of a Secret in git"),
    };
    fleet.add_cluster("m1", &[]).await?;

    let temp = fleet.directory().join("tmp");
    std::fs::create_dir_all(&temp)?;
    let kustomize = wrapped_kustomize(&fleet, &children)?;
    let listen = format!("127.0.0.1:{}", free_port()?);
    let programs = ["--kustomize", &kustomize, "--sops", &encrypted.script];
    let launch = fleet.launch(program(), &listen, "trace", &programs)?;
    let controller = Process::start(&launch.env("TMPDIR", &temp))?;
    let search_places = Search::watch(&fleet, &temp, canaries.never_on_disk());

    git_servers_that_echo_credentials(&fleet, &canaries).await?;
    plain_manifests_with_failures(&fleet, &canaries).await?;
    encrypted::reconcile_with_failures(&fleet, &encrypted, &canaries.encrypted).await?;

    let found = search_places
        .search(&fleet, &listen, &children, &canaries.all())
        .await?;
    drop(controller);
    assert!(found.is_empty(), "{found:#?}");
    digests_are_keyed(&fleet)
}

/// The ledger has no digest of a Secret that a guess of its value could be compared with.
fn digests_are_keyed(fleet: &Fleet) -> Result<()> {
    let mut ledger = Vec::new();
    for file in std::fs::read_dir(fleet.data_dir())? {
        let path = file?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with("ledger.db") {
            ledger.extend(std::fs::read(&path)?);
        }
    }
    let text = String::from_utf8_lossy(&ledger);
    assert!(text.contains("hmac-sha256:"), "the digests of Secrets");
    Ok(())
}

/// A wrapper of kustomize that logs its arguments and its environment.
fn wrapped_kustomize(fleet: &Fleet, children: &Path) -> Result<String> {
    let real = fleet
        .planes()
        .assets()
        .kustomize()
        .context("kustomize among the built programs")?;
    let script = fleet.directory().join("kustomize");
    let text = format!(
        "#!/bin/sh\n{{ echo \"$0 $*\"; export -p; }} >> '{}'\nexec '{}' \"$@\"\n",
        children.display(),
        real.display()
    );
    std::fs::write(&script, text)?;
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755))?;
    Ok(script.to_string_lossy().into_owned())
}

/// Two Sources at a server that rejects them and repeats their credentials in every part of its response.
async fn git_servers_that_echo_credentials(fleet: &Fleet, canaries: &Canaries) -> Result<()> {
    let echo = echo::Echo::start().await?;
    let password = json!({"username": "git", "password": canaries.password.value});
    let bearer = json!({"bearerToken": canaries.bearer.value});
    for (name, data) in [("password", password), ("bearer", bearer)] {
        fleet
            .put::<Secret>(json!({"metadata": {"name": name}, "stringData": data}))
            .await?;
        let spec = json!({"url": echo.url(), "ref": {"branch": "main"}, "interval": "1s", "secretRef": {"name": name}});
        fleet
            .put::<Source>(json!({"metadata": {"name": name}, "spec": spec}))
            .await?;
        let failed = |source: &Source| {
            let conditions = source.status.clone().unwrap_or_default().conditions;
            conditions
                .iter()
                .any(|c| c.type_ == "Ready" && c.status == "False")
        };
        fleet.until(name, "Ready=False", failed).await?;
    }
    // The server has received the credentials.
    let received = echo.authorizations();
    assert_eq!(received.len(), 2, "both credentials reached the server");
    Ok(())
}

/// One Sync whose Secret is in every situation that causes messages about an object.
async fn plain_manifests_with_failures(fleet: &Fleet, canaries: &Canaries) -> Result<()> {
    let repo = GitRepo::init()?;
    let value = &canaries.manifest.value;
    let valid = manifest(&format!("stringData:\n  password: {value}\n"), "");
    repo.commit(&[("app/secret.yaml", &valid)], "a Secret")?;
    fleet
        .put_source("repo", &repo.url(), json!({"branch": "main"}))
        .await?;
    let spec = json!({"clusterRef": {"name": "m1"}, "sourceRef": {"name": "repo"}, "path": "./app",
        "retryInterval": "1s", "wait": false});
    fleet
        .put::<SyncResource>(json!({"metadata": {"name": "app"}, "spec": spec}))
        .await?;
    until_ready(fleet, "app", "True").await?;

    // Drift, and its repair.
    let secrets: Api<Secret> = Api::namespaced(fleet.member("m1").await?, "default");
    let edit = json!({"stringData": {"password": format!("{value}-edited")}});
    secrets
        .patch("canary", &PatchParams::default(), &Patch::Merge(edit))
        .await?;
    reconcile(fleet).await?;
    wait::until(starling_testkit::fleet::TIMEOUT, "repaired", async || {
        let secret = secrets.get("canary").await.map_err(|e| e.to_string())?;
        let data = secret.data.unwrap_or_default();
        (data.get("password").is_some_and(|v| v.0 == value.as_bytes()))
            .then_some(())
            .ok_or_else(|| "still edited".to_owned())
    })
    .await?;

    // The errors of an API server and of an admission webhook about a Secret.
    for (what, text) in [
        (
            "base64",
            manifest(&format!("data:\n  password: \"{value}!\"\n"), ""),
        ),
        ("type", manifest(&format!("data:\n  password: [{value}]\n"), "")),
        (
            "key",
            manifest(&format!("stringData:\n  \"{value} is no key\": x\n"), ""),
        ),
        (
            "size",
            manifest(
                &format!("stringData:\n  password: {value}{}\n", "x".repeat(1 << 21)),
                "",
            ),
        ),
        (
            "annotation",
            manifest(
                &format!("stringData:\n  password: {value}\n"),
                &format!("  annotations: {{\"not a key\": {value}}}\n"),
            ),
        ),
        (
            "yaml",
            manifest(&format!("stringData:\n  password: {value}: x: [\n"), ""),
        ),
        (
            "alias",
            manifest(&format!("stringData:\n  password: *{value}\n"), ""),
        ),
    ] {
        repo.commit(&[("app/secret.yaml", &text)], what)?;
        until_attempted(fleet, "app", &repo).await?;
    }
    repo.commit(
        &[("app/secret.yaml", &valid.replace("password", "other"))],
        "another key",
    )?;
    let proxy = fleet.proxy("m1")?;
    let encoded = format!("admission webhook \"w\" denied the request: password {value} is too long");
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Invalid", "code": 422,
        "message": encoded, "details": {"name": "canary", "kind": "secrets", "causes": [{"reason": "FieldValueInvalid",
            "message": format!("Invalid value: {value:?}"), "field": "data.password"}]}});
    let writes = || Match::writes().path_ends_with("/secrets/canary");
    for (code, body) in [
        (StatusCode::UNPROCESSABLE_ENTITY, status.to_string()),
        (StatusCode::INTERNAL_SERVER_ERROR, format!("panic: {value}")),
        (StatusCode::FORBIDDEN, status.to_string().replace("422", "403")),
        (
            StatusCode::OK,
            format!("{{\"kind\": \"Secret\", \"data\": \"{value}\""),
        ),
    ] {
        let json_type = (
            http::header::CONTENT_TYPE,
            HeaderValue::from_static("application/json"),
        );
        let fault = Fault::Status {
            code,
            headers: vec![json_type],
            body: body.into(),
        };
        let rule = proxy.on(writes().times(1), fault);
        reconcile(fleet).await?;
        wait::until(
            starling_testkit::fleet::TIMEOUT,
            format!("{code} was answered"),
            async || rule.fired() > 0,
        )
        .await?;
    }
    // A member that repeats the token of Starling.
    let body = format!("who is {}?", canaries.member.value);
    for code in [StatusCode::BAD_REQUEST, StatusCode::UNAUTHORIZED] {
        let fault = Fault::Status {
            code,
            headers: Vec::new(),
            body: body.clone().into(),
        };
        let rule = proxy.on(Match::any().times(1), fault);
        reconcile(fleet).await?;
        wait::until(
            starling_testkit::fleet::TIMEOUT,
            format!("{code} was answered"),
            async || rule.fired() > 0,
        )
        .await?;
    }
    Ok(())
}

fn manifest(data: &str, metadata: &str) -> String {
    format!("apiVersion: v1\nkind: Secret\nmetadata:\n  name: canary\n  namespace: default\n{metadata}{data}")
}

async fn reconcile(fleet: &Fleet) -> Result<()> {
    let annotations = json!({REQUESTED_AT: jiff::Timestamp::now().to_string()});
    for cluster in ["m1"] {
        fleet
            .patch::<starling_api::Cluster>(cluster, json!({"metadata": {"annotations": annotations}}))
            .await?;
    }
    fleet
        .patch::<SyncResource>("app", json!({"metadata": {"annotations": annotations}}))
        .await?;
    Ok(())
}

async fn until_ready(fleet: &Fleet, name: &str, wanted: &str) -> Result<()> {
    let ready = |sync: &SyncResource| {
        let conditions = sync.status.clone().unwrap_or_default().conditions;
        conditions
            .iter()
            .any(|c| c.type_ == "Ready" && c.status == wanted)
    };
    fleet.until(name, &format!("Ready={wanted}"), ready).await?;
    Ok(())
}

/// Waits until the newest commit was attempted and failed.
async fn until_attempted(fleet: &Fleet, name: &str, repo: &GitRepo) -> Result<()> {
    let head = repo.head("main")?;
    let attempted = |sync: &SyncResource| {
        let status = sync.status.clone().unwrap_or_default();
        let failed: BTreeSet<&str> = status.conditions.iter().map(|c| c.status.as_str()).collect();
        status.last_attempted_revision.ends_with(&head) && status.attempts > 0 && failed.contains("False")
    };
    fleet.until(name, &format!("{head} attempted"), attempted).await?;
    Ok(())
}
