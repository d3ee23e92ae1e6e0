//! Manifests that are encrypted: what is in them, and what opens them.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use http::{HeaderValue, StatusCode, header};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use serde_json::json;
use starling_api::SyncResource;
use starling_testkit::canary::Canary;
use starling_testkit::fleet::PATIENCE;
use starling_testkit::{AgeKey, Fault, Fleet, GitRepo, Match, SopsTools, wait};

/// The program that decrypts, and a script around it that writes down what it was given, and what lies in its folder
/// when it is done: its arguments, its environment, its files.
pub(crate) struct Sealed {
    tools: SopsTools,
    pub(crate) key: AgeKey,
    pub(crate) script: String,
    gossip: PathBuf,
}

impl Sealed {
    pub(crate) fn install(fleet: &Fleet, children: &Path) -> Result<Self> {
        let tools = SopsTools::find()?;
        let (script, gossip) = (fleet.folder().join("sops"), fleet.folder().join("gossip"));
        // While the file `gossip` is there it tells everything that it knows, and fails or not as the file says.
        let text = format!(
            "#!/bin/sh\n\
             {{ echo \"$0 $*\"; export -p; }} >> '{children}'\n\
             if [ -e '{gossip}' ]; then\n\
             status=$(/bin/cat '{gossip}')\n\
             /bin/cat /dev/stdin; /bin/cat /dev/stdin >&2\n\
             '{sops}' \"$@\"; '{sops}' \"$@\" >&2\n\
             exit \"$status\"\n\
             fi\n\
             '{sops}' \"$@\"; status=$?\n\
             /bin/cat \"$HOME\"/* \"$HOME\"/.[!.]* >> '{children}'\n\
             exit $status\n",
            children = children.display(),
            gossip = gossip.display(),
            sops = tools.sops().display(),
        );
        std::fs::write(&script, text)?;
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755))?;
        Ok(Self {
            key: tools.key()?,
            tools,
            script: script.to_string_lossy().into_owned(),
            gossip,
        })
    }

    fn encrypt(&self, data: &str) -> Result<String> {
        let manifest =
            format!("apiVersion: v1\nkind: Secret\nmetadata:\n  name: sealed\n  namespace: default\n{data}");
        self.tools.encrypt_secret(&manifest, &[&self.key])
    }
}

/// One Sync whose encrypted Secret goes through everything that makes a program talk about it.
pub(crate) async fn in_trouble(fleet: &Fleet, sealed: &Sealed, plain: &Canary) -> Result<()> {
    let value = &plain.value;
    let repo = GitRepo::init()?;
    let good = sealed.encrypt(&format!("stringData:\n  password: {value}\n"))?;
    repo.commit(&[("app/secret.yaml", &good)], "sealed")?;
    fleet
        .put_source("sealed", &repo.url(), json!({"branch": "main"}))
        .await?;
    put_keys(fleet, &format!("# a comment\n{}\n", sealed.key.identity())).await?;
    let spec = json!({"clusterRef": {"name": "m1"}, "sourceRef": {"name": "sealed"}, "path": "./app",
        "decryption": {"provider": "sops", "secretRef": {"name": "age"}}, "retryInterval": "1s", "wait": false});
    fleet
        .put::<SyncResource>(json!({"metadata": {"name": "sealed"}, "spec": spec}))
        .await?;
    // What came before ended with a 401, after which the credentials are out of use until somebody asks.
    wait::until(PATIENCE, "the encrypted Secret is applied", async || {
        crate::look(fleet).await.map_err(|error| format!("{error:#}"))?;
        let sync = fleet.get::<SyncResource>("sealed").await;
        let status = sync
            .map_err(|error| error.to_string())?
            .status
            .unwrap_or_default();
        let ready = status
            .conditions
            .iter()
            .any(|c| c.type_ == "Ready" && c.status == "True");
        ready
            .then_some(())
            .ok_or_else(|| format!("{:?}", status.conditions))
    })
    .await?;
    let secrets: Api<Secret> = Api::namespaced(fleet.member("m1").await?, "default");
    let data = secrets.get("sealed").await?.data.unwrap_or_default();
    assert_eq!(data["password"].0, value.as_bytes(), "it was opened");

    // What the member, or whoever is in its place, says of what was opened.
    for (what, data) in [
        ("base64", format!("data:\n  password: \"{value}!\"\n")),
        ("type", format!("data:\n  password: [\"{value}\"]\n")),
        ("key", format!("stringData:\n  \"not a key\": {value}\n")),
    ] {
        repo.commit(&[("app/secret.yaml", &sealed.encrypt(&data)?)], what)?;
        crate::until_attempted(fleet, "sealed", &repo).await?;
    }
    refused_by_the_member(fleet, sealed, &repo, value).await?;

    // A value that was replaced: sops complains about it at length.
    let line = good
        .lines()
        .find(|line| line.contains("password:"))
        .context("password")?;
    let broken = good.replace(line, &format!("  password: {value}"));
    // Whoever does this has put the plaintext into git themselves, so another one takes its place.
    let broken = broken.replace(value.as_str(), "from-somebody-else");
    let failed = "DecryptionFailed";
    repo.commit(&[("app/secret.yaml", &broken)], "replaced")?;
    until_reason(fleet, &repo, failed).await?;
    // Keys that are none, and keys of others.
    repo.commit(&[("app/secret.yaml", &good)], "good again")?;
    crate::until_ready(fleet, "sealed", "True").await?;
    let identity = sealed.key.identity();
    let other = sealed.tools.key()?;
    for keys in [
        format!("export SOPS_AGE_KEY={identity}\n"),
        format!("{identity}, {identity}\n"),
        format!("{}\n", other.identity()),
    ] {
        put_keys(fleet, &keys).await?;
        repo.commit(&[("app/note.txt", &format!("{}", keys.len()))], "again")?;
        until_reason(fleet, &repo, failed).await?;
    }
    put_keys(fleet, identity).await?;

    // A sops that tells everything.
    for status in ["1", "25", "128", "0"] {
        std::fs::write(&sealed.gossip, status)?;
        repo.commit(&[("app/note.txt", status)], "gossip")?;
        until_reason(fleet, &repo, failed).await?;
    }
    std::fs::remove_file(&sealed.gossip)?;
    repo.commit(&[("app/note.txt", "the end")], "good again")?;
    crate::until_ready(fleet, "sealed", "True").await
}

/// An admission webhook, or a server in a panic, that repeats what was opened.
async fn refused_by_the_member(fleet: &Fleet, sealed: &Sealed, repo: &GitRepo, value: &str) -> Result<()> {
    let proxy = fleet.proxy("m1")?;
    for (code, body) in [
        (
            StatusCode::UNPROCESSABLE_ENTITY,
            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Invalid", "code": 422,
                "message": format!("denied: password {value} is too long")})
            .to_string(),
        ),
        (StatusCode::INTERNAL_SERVER_ERROR, format!("panic: {value}")),
    ] {
        let json_type = (header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let fault = Fault::Status {
            code,
            headers: vec![json_type],
            body: body.into(),
        };
        let rule = proxy.on(Match::writes().path_ends_with("/secrets/sealed").times(1), fault);
        let data = format!("stringData:\n  password: {value}-{}\n", code.as_u16());
        repo.commit(&[("app/secret.yaml", &sealed.encrypt(&data)?)], "refused")?;
        wait::until(PATIENCE, format!("{code} was answered"), async || rule.fired() > 0).await?;
    }
    Ok(())
}

async fn put_keys(fleet: &Fleet, keys: &str) -> Result<()> {
    let secret = json!({"metadata": {"name": "age"}, "stringData": {"fleet.agekey": keys}});
    fleet.put::<Secret>(secret).await
}

/// Waits until the newest commit was attempted, and ended with a reason.
async fn until_reason(fleet: &Fleet, repo: &GitRepo, reason: &str) -> Result<()> {
    let head = repo.head("main")?;
    let ended = |sync: &SyncResource| {
        let status = sync.status.clone().unwrap_or_default();
        status.last_attempted_revision.ends_with(&head)
            && status
                .conditions
                .iter()
                .any(|c| c.type_ == "Ready" && c.reason == reason)
    };
    fleet
        .until("sealed", &format!("{reason} at {head}"), ended)
        .await?;
    Ok(())
}
