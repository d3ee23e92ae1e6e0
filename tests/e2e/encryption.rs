//! Encrypted Secrets: decrypted on the members only.

use std::path::Path;

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use serde_json::json;
use starling_api::SyncResource;
use starling_api::conditions::{self, READY};
use starling_testkit::SopsTools;

use crate::world::{MEMBERS, Scene, shared_scene};

/// A text that no program writes by itself.
const CANARY: &str = "correct-horse-battery-staple";

fn manifest(scene: &Scene, value: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: {}, namespace: default}}\nstringData: {{password: {value}}}\n",
        scene.own("db")
    )
}

/// The password on a member.
async fn password(scene: &Scene, member: &str) -> Result<Option<String>> {
    let api: Api<Secret> = Api::namespaced(scene.fleet().member(member).await?, "default");
    let Some(secret) = api.get_opt(&scene.own("db")).await? else {
        return Ok(None);
    };
    let value = secret
        .data
        .unwrap_or_default()
        .remove("password")
        .context("password")?;
    Ok(Some(String::from_utf8(value.0)?))
}

async fn passwords(scene: &Scene) -> Result<Vec<Option<String>>> {
    let mut found = Vec::new();
    for member in MEMBERS {
        found.push(password(scene, member).await?);
    }
    Ok(found)
}

async fn put_keys(scene: &Scene, name: &str, identities: &[&str]) -> Result<()> {
    let data: serde_json::Map<_, _> = identities
        .iter()
        .enumerate()
        .map(|(n, identity)| (format!("{n}.agekey"), json!(format!("# a comment\n{identity}\n"))))
        .collect();
    let secret = json!({"metadata": {"name": scene.own(name)}, "stringData": data});
    scene.fleet().put::<Secret>(secret).await
}

/// Waits until a Sync without group reports that it cannot decrypt, and returns its message.
async fn refused(scene: &Scene, name: &str, decryption: serde_json::Value) -> Result<String> {
    let mut spec = json!({
        "clusterRef": {"name": "m1"}, "sourceRef": {"name": scene.name}, "path": "./app", "retryInterval": "1s",
    });
    if !decryption.is_null() {
        spec["decryption"] = decryption;
    }
    let sync = json!({"metadata": {"name": scene.own(name)}, "spec": spec});
    scene.fleet().put::<SyncResource>(sync).await?;
    let failed = |sync: &SyncResource| {
        let status = sync.status.clone().unwrap_or_default();
        conditions::find(&status.conditions, READY)
            .filter(|ready| ready.status == "False" && ready.reason == "DecryptionFailed")
            .map(|ready| ready.message.clone())
    };
    let sync = scene
        .fleet()
        .until(&scene.own(name), "DecryptionFailed", |sync: &SyncResource| {
            failed(sync).is_some()
        })
        .await?;
    failed(&sync).context("a message")
}

/// Returns the files below a folder that contain a text.
fn files_with(folder: &Path, text: &str) -> Result<Vec<String>> {
    let mut found = Vec::new();
    let mut ahead = vec![folder.to_owned()];
    while let Some(folder) = ahead.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                ahead.push(entry.path());
            } else if entry.file_type()?.is_file() {
                // The SQLite journal of the ledger may have been deleted meanwhile.
                let bytes = std::fs::read(entry.path()).unwrap_or_default();
                if bytes.windows(text.len()).any(|window| window == text.as_bytes()) {
                    found.push(entry.path().display().to_string());
                }
            }
        }
    }
    Ok(found)
}

#[test]
fn an_encrypted_secret_is_decrypted_on_five_members_only() -> Result<()> {
    shared_scene("sops", async |scene| {
        let tools = SopsTools::find()?;
        let (key, other) = (tools.key()?, tools.key()?);
        let first = tools.encrypt_secret(&manifest(scene, CANARY), &[&key, &other])?;
        assert!(!first.contains(CANARY) && first.contains("ENC["));
        let commit = scene.repo.commit(&[("app/db.yaml", &first)], "encrypted")?;
        put_keys(scene, "age", &[key.identity()]).await?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        let decryption = json!({"provider": "sops", "secretRef": {"name": scene.own("age")}});
        scene
            .group(
                json!({"maxConcurrency": 5}),
                json!({"decryption": decryption, "wait": false}),
            )
            .await?;
        scene.succeeded(&commit).await?;
        assert_eq!(passwords(scene).await?, vec![Some(CANARY.to_owned()); 5]);

        // The plaintext is cached now: only Syncs with the keys may use it.
        put_keys(scene, "wrong", &[tools.key()?.identity()]).await?;
        let named = |name: &str| json!({"provider": "sops", "secretRef": {"name": name}});
        let message = refused(scene, "wrong", named(&scene.own("wrong"))).await?;
        assert!(
            message.contains("sops-db") && message.contains("none of the identities"),
            "{message}"
        );
        let none = refused(scene, "none", json!(null)).await?;
        assert!(
            none.contains("sops-db: sops is encrypted") && none.contains("decryption"),
            "{none}"
        );
        let missing = refused(scene, "missing", named("nowhere")).await?;
        assert!(missing.contains("Secret \"nowhere\" not found"), "{missing}");

        // New keys in the same Secret.
        put_keys(scene, "age", &[other.identity(), tools.key()?.identity()]).await?;
        let second = tools.encrypt_secret(&manifest(scene, "second"), &[&other])?;
        let commit = scene.repo.commit(&[("app/db.yaml", &second)], "other keys")?;
        scene.succeeded(&commit).await?;
        assert_eq!(passwords(scene).await?, vec![Some("second".to_owned()); 5]);

        let statuses: Vec<String> = scene
            .fleet()
            .syncs()
            .await?
            .iter()
            .map(|sync| serde_json::to_string(&sync.status).unwrap_or_default())
            .collect();
        for hidden in [CANARY, key.identity(), other.identity()] {
            assert!(
                !statuses.iter().any(|status| status.contains(hidden)),
                "a status tells"
            );
            assert_eq!(files_with(&scene.fleet().data_dir(), hidden)?, [""; 0]);
            let log = std::fs::read_to_string(scene.fleet().log())?;
            assert!(!log.contains(hidden), "the log contains a secret");
        }
        Ok(())
    })
}
