//! Encrypted manifests: their values and the keys.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use http::{HeaderValue, StatusCode, header};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use serde_json::json;
use starling_api::SyncResource;
use starling_testkit::canary::Canary;
use starling_testkit::fleet::TIMEOUT;
use starling_testkit::{AgeKey, Fault, Fleet, GitRepo, Match, SopsTools, wait};

/// sops, with a wrapper script that logs its arguments, its environment and the files in its folder at the end.
pub(crate) struct EncryptedSource {
    tools: SopsTools,
    pub(crate) key: AgeKey,
    pub(crate) script: String,
    leak_switch: PathBuf,
}

impl EncryptedSource {
    pub(crate) fn install(fleet: &Fleet, children: &Path) -> Result<Self> {
        let tools = SopsTools::find()?;
        let (script, leak_switch) = (fleet.directory().join("sops"), fleet.directory().join("leak"));
        // While the file `leak_switch` exists, the script prints all its input, and exits with the status in the file.
        let text = format!(
            "#!/bin/sh\n\
             {{ echo \"$0 $*\"; export -p; }} >> '{children}'\n\
             if [ -e '{leak_switch}' ]; then\n\
             status=$(/bin/cat '{leak_switch}')\n\
             /bin/cat /dev/stdin; /bin/cat /dev/stdin >&2\n\
             '{sops}' \"$@\"; '{sops}' \"$@\" >&2\n\
             exit \"$status\"\n\
             fi\n\
             '{sops}' \"$@\"; status=$?\n\
             /bin/cat \"$HOME\"/* \"$HOME\"/.[!.]* >> '{children}'\n\
             exit $status\n",
            children = children.display(),
            leak_switch = leak_switch.display(),
            sops = tools.sops().display(),
        );
        std::fs::write(&script, text)?;
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755))?;
        Ok(Self {
            key: tools.key()?,
            tools,
            script: script.to_string_lossy().into_owned(),
            leak_switch,
        })
    }

    fn encrypt(&self, data: &str) -> Result<String> {
        let manifest =
            format!("apiVersion: v1\nkind: Secret\nmetadata:\n  name: sealed\n  namespace: default\n{data}");
        self.tools.encrypt_secret(&manifest, &[&self.key])
    }
}

/// One Sync whose encrypted Secret is in every situation that causes messages about it.
pub(crate) async fn reconcile_with_failures(
    fleet: &Fleet,
    encrypted: &EncryptedSource,
    plain: &Canary,
) -> Result<()> {
    let value = &plain.value;
    let repo = GitRepo::init()?;
    let valid = encrypted.encrypt(&format!("stringData:\n  password: {value}\n"))?;
    repo.commit(&[("app/secret.yaml", &valid)], "sealed")?;
    fleet
        .put_source("sealed", &repo.url(), json!({"branch": "main"}))
        .await?;
    put_keys(fleet, &format!("# a comment\n{}\n", encrypted.key.identity())).await?;
    let spec = json!({"clusterRef": {"name": "m1"}, "sourceRef": {"name": "sealed"}, "path": "./app",
        "decryption": {"provider": "sops", "secretRef": {"name": "age"}}, "retryInterval": "1s", "wait": false});
    fleet
        .put::<SyncResource>(json!({"metadata": {"name": "sealed"}, "spec": spec}))
        .await?;
    // The previous test ended with a 401, after which the credentials are not used until a reconcile is requested.
    wait::until(TIMEOUT, "the encrypted Secret is applied", async || {
        crate::reconcile(fleet)
            .await
            .map_err(|error| format!("{error:#}"))?;
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
    assert_eq!(data["password"].0, value.as_bytes(), "it was decrypted");

    // The errors of the member, or of a server that replaces it, about the decrypted Secret.
    for (what, data) in [
        ("base64", format!("data:\n  password: \"{value}!\"\n")),
        ("type", format!("data:\n  password: [\"{value}\"]\n")),
        ("key", format!("stringData:\n  \"not a key\": {value}\n")),
    ] {
        repo.commit(&[("app/secret.yaml", &encrypted.encrypt(&data)?)], what)?;
        crate::until_attempted(fleet, "sealed", &repo).await?;
    }
    refused_by_the_member(fleet, encrypted, &repo, value).await?;

    // A replaced value, about which sops prints a long error.
    let line = valid
        .lines()
        .find(|line| line.contains("password:"))
        .context("password")?;
    let broken = valid.replace(line, &format!("  password: {value}"));
    // The plaintext would be in git, so another value is used.
    let broken = broken.replace(value.as_str(), "from-somebody-else");
    let failed = "DecryptionFailed";
    repo.commit(&[("app/secret.yaml", &broken)], "replaced")?;
    until_reason(fleet, &repo, failed).await?;
    // Invalid keys, and keys of other recipients.
    repo.commit(&[("app/secret.yaml", &valid)], "good again")?;
    crate::until_ready(fleet, "sealed", "True").await?;
    let identity = encrypted.key.identity();
    let other = encrypted.tools.key()?;
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

    // A sops that prints all its input.
    for status in ["1", "25", "128", "0"] {
        std::fs::write(&encrypted.leak_switch, status)?;
        repo.commit(&[("app/note.txt", status)], "gossip")?;
        until_reason(fleet, &repo, failed).await?;
    }
    std::fs::remove_file(&encrypted.leak_switch)?;
    repo.commit(&[("app/note.txt", "the end")], "good again")?;
    crate::until_ready(fleet, "sealed", "True").await?;
    other_kinds(fleet, encrypted, &repo, value).await
}

/// An encrypted ConfigMap: its value is as secret as that of a Secret. The server repeats it, as it does when a schema
/// of a definition refuses a value, about this object and about another one.
async fn other_kinds(fleet: &Fleet, encrypted: &EncryptedSource, repo: &GitRepo, value: &str) -> Result<()> {
    let proxy = fleet.proxy("m1")?;
    let body = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Invalid", "code": 422,
        "message": format!("ConfigMap \"sealed\" is invalid: data.password: Invalid value: \"{value}\"")});
    for (number, refused) in ["/configmaps/sealed", "/configmaps/beside"]
        .into_iter()
        .enumerate()
    {
        let fault = Fault::Status {
            code: StatusCode::UNPROCESSABLE_ENTITY,
            headers: vec![(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))],
            body: body.to_string().into(),
        };
        let rule = proxy.on(Match::writes().path_ends_with(refused).times(1), fault);
        let sealed = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: sealed\n  namespace: default\ndata:\n  \
             password: {value}\n  number: \"{number}\"\n"
        );
        let sealed = encrypted.tools.encrypt_secret(&sealed, &[&encrypted.key])?;
        let beside = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: beside\n  namespace: default\ndata:\n  n: \
             \"{number}\"\n"
        );
        repo.commit(
            &[("app/map.yaml", &sealed), ("app/beside.yaml", &beside)],
            "another kind",
        )?;
        wait::until(TIMEOUT, format!("{refused} was answered"), async || {
            rule.fired() > 0
        })
        .await?;
        crate::until_ready(fleet, "sealed", "True").await?;
    }
    // The member is where the value belongs; the search would find it there.
    let last = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: sealed\n  namespace: default\ndata: {}\n";
    let head = repo.commit(&[("app/map.yaml", last)], "no value")?;
    let applied = |sync: &SyncResource| {
        let status = sync.status.as_ref();
        status.is_some_and(|status| status.last_applied_revision.ends_with(&head))
    };
    fleet.until("sealed", "the value is gone", applied).await?;
    Ok(())
}

/// An admission webhook, or a panicking server, that repeats the decrypted value.
async fn refused_by_the_member(
    fleet: &Fleet,
    encrypted: &EncryptedSource,
    repo: &GitRepo,
    value: &str,
) -> Result<()> {
    let proxy = fleet.proxy("m1")?;
    for (code, body) in [
        (
            StatusCode::UNPROCESSABLE_ENTITY,
            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Invalid", "code": 422,
                "message": format!("denied: password {value} is too long")})
            .to_string(),
        ),
        // A member that lies about the fields of the Secret.
        (
            StatusCode::BAD_REQUEST,
            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": value, "code": 400,
                "message": value, "details": {"causes": [{"field": format!("data[{value}]"), "message": value},
                    {"field": value, "message": value}]}})
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
        repo.commit(&[("app/secret.yaml", &encrypted.encrypt(&data)?)], "refused")?;
        wait::until(TIMEOUT, format!("{code} was answered"), async || rule.fired() > 0).await?;
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
