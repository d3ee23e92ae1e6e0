//! The controller renews the token in time, without repeated requests, and reports a failure.
//!
//! Servers issue no token for less than ten minutes, so the tests do not wait for the expiry of a token, but change its
//! annotations.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use starling_api::conditions::{CREDENTIALS_EXPIRING, READY};
use starling_api::{TOKEN_EXPIRES_AT, TOKEN_ISSUED_AT, TOKEN_LIFETIME};
use starling_testkit::fleet::TIMEOUT;
use starling_testkit::wait;

use crate::world::{Scene, scene};

const NAME: &str = "eu-1";

/// Sets the issue time and expiry of the token in the annotations of the Secret, relative to now.
async fn set_token_times(scene: &Scene, issued: SignedDuration, expires: SignedDuration) -> Result<()> {
    let at =
        |offset: SignedDuration| -> Result<String> { Ok(Timestamp::now().checked_add(offset)?.to_string()) };
    let annotations = json!({TOKEN_ISSUED_AT: at(issued)?, TOKEN_EXPIRES_AT: at(expires)?});
    let secrets: Api<Secret> = Api::namespaced(scene.fleet().hub().clone(), scene.namespace);
    let patch = json!({"metadata": {"annotations": annotations}});
    secrets
        .patch(
            &format!("{NAME}-kubeconfig"),
            &PatchParams::default(),
            &Patch::Merge(patch),
        )
        .await?;
    Ok(())
}

fn token(kubeconfig: &str) -> Result<String> {
    let kubeconfig: Value = serde_saphyr::from_str(kubeconfig)?;
    Ok(kubeconfig["users"][0]["user"]["token"]
        .as_str()
        .context("a token")?
        .to_owned())
}

/// Returns the number of token requests of Starling's account.
async fn requests(scene: &Scene, user: &str) -> Result<usize> {
    let events = scene.fleet().plane("m2")?.audit_events()?;
    Ok(events
        .iter()
        .filter(|event| event.user() == user && event.uri().ends_with("/token"))
        .count())
}

async fn renewed_once(scene: &Scene) -> Result<()> {
    let before = scene.stored_kubeconfig(NAME).await?;
    let annotations_before = scene.secret(NAME).await?.annotations().clone();
    // A token in the first half of its lifetime is not renewed.
    set_token_times(scene, SignedDuration::from_mins(-4), SignedDuration::from_mins(6)).await?;
    scene.reconcile(NAME).await?;
    assert_eq!(scene.stored_kubeconfig(NAME).await?, before);

    set_token_times(scene, SignedDuration::from_mins(-8), SignedDuration::from_mins(2)).await?;
    scene.reconcile(NAME).await?;
    let after = wait::until(TIMEOUT, "another token", async || {
        let now = scene
            .stored_kubeconfig(NAME)
            .await
            .map_err(|e| format!("{e:#}"))?;
        (now != before).then_some(now).ok_or("the same token".to_owned())
    })
    .await?;
    assert_ne!(token(&before)?, token(&after)?);
    let without_token = |text: &str| -> Result<Value> {
        let mut value: Value = serde_saphyr::from_str(text)?;
        value["users"] = Value::Null;
        Ok(value)
    };
    assert_eq!(
        without_token(&before)?,
        without_token(&after)?,
        "only the token is another one"
    );
    let annotations = scene.secret(NAME).await?.annotations().clone();
    let life = |annotations: &BTreeMap<String, String>| -> Result<(Timestamp, Timestamp)> {
        Ok((
            annotations[TOKEN_ISSUED_AT].parse()?,
            annotations[TOKEN_EXPIRES_AT].parse()?,
        ))
    };
    let (issued, expires) = life(&annotations)?;
    assert!(issued > life(&annotations_before)?.0);
    let granted = expires.duration_since(issued);
    assert!(
        granted > SignedDuration::from_mins(9) && granted < SignedDuration::from_mins(11),
        "{granted:?}"
    );
    assert_eq!(annotations[TOKEN_LIFETIME], annotations_before[TOKEN_LIFETIME]);
    // The new token is used and works.
    scene.reconcile(NAME).await?;
    scene.is_ready(NAME).await?;
    scene.as_starling(NAME).await?.apiserver_version().await?;
    assert_eq!(
        scene.stored_kubeconfig(NAME).await?,
        after,
        "renewed once, not in every reconcile"
    );
    let log = std::fs::read_to_string(scene.fleet().log())?;
    assert!(log.contains("token renewed"));
    for text in [&before, &after] {
        assert!(!log.contains(&token(text)?), "the log holds a token");
    }
    Ok(())
}

async fn refused_without_repetition(scene: &Scene) -> Result<()> {
    let account = scene.account(NAME).await?;
    let user = format!("system:serviceaccount:starling-system:{account}");
    let bindings: Api<RoleBinding> = Api::namespaced(scene.member("renewed").await?, "starling-system");
    let binding = bindings.get(&account).await?;
    bindings.delete(&account, &Default::default()).await?;
    let client = scene.as_starling(NAME).await?;
    // The default grant permits token requests too; without it, the account has only its own Role.
    let maps: Api<k8s_openapi::api::core::v1::ConfigMap> = Api::namespaced(client, "starling-system");
    wait::until(
        TIMEOUT,
        "the loss of its rights",
        async || matches!(maps.get("x").await, Err(kube::Error::Api(status)) if status.code == 403),
    )
    .await?;
    let before = requests(scene, &user).await?;
    set_token_times(scene, SignedDuration::from_mins(-8), SignedDuration::from_mins(2)).await?;
    scene.reconcile(NAME).await?;
    let failing = scene
        .condition(NAME, CREDENTIALS_EXPIRING, "the renewal failed", |c| {
            c.is_some_and(|c| c.status == "True" && c.reason == "RenewalFailed")
        })
        .await?
        .context("the condition")?;
    for expected in ["eu-1-kubeconfig", &account, "forbidden", "starling cluster add"] {
        assert!(
            failing.message.contains(expected),
            "{expected} is not in {}",
            failing.message
        );
    }
    // The old token still works, and further reconciles send no requests.
    scene.is_ready(NAME).await?;
    for _ in 0..5 {
        scene.reconcile(NAME).await?;
    }
    wait::until(TIMEOUT, "the request is in the audit log", async || {
        requests(scene, &user).await.is_ok_and(|count| count > before)
    })
    .await?;
    assert_eq!(requests(scene, &user).await?, before + 1, "requested repeatedly");
    let still = scene
        .condition(NAME, CREDENTIALS_EXPIRING, "still there", |c| c.is_some())
        .await?;
    assert_eq!(still.context("the condition")?.message, failing.message);
    drop(binding);
    Ok(())
}

async fn ended_and_added_again(scene: &Scene) -> Result<()> {
    set_token_times(
        scene,
        SignedDuration::from_mins(-20),
        SignedDuration::from_mins(-10),
    )
    .await?;
    scene.reconcile(NAME).await?;
    let ended = scene
        .condition(NAME, CREDENTIALS_EXPIRING, "the token has ended", |c| {
            c.is_some_and(|c| c.reason == "Expired")
        })
        .await?
        .context("the condition")?;
    assert!(
        ended.message.contains("starling cluster add"),
        "{}",
        ended.message
    );

    scene
        .add(
            "renewed",
            NAME,
            &["--impersonate-only", "--token-lifetime", "10m"],
        )
        .await?;
    scene.reconcile(NAME).await?;
    scene
        .condition(NAME, CREDENTIALS_EXPIRING, "all is well again", |c| c.is_none())
        .await?;
    scene
        .condition(NAME, READY, "Ready", |c| c.is_some_and(|c| c.status == "True"))
        .await?;
    Ok(())
}

#[test]
fn a_token_is_renewed_once_in_its_second_half_and_a_failed_renewal_is_not_repeated() -> Result<()> {
    scene("renewed", async |scene| {
        scene
            .add(
                "renewed",
                NAME,
                &["--impersonate-only", "--token-lifetime", "10m"],
            )
            .await?;
        scene.is_ready(NAME).await?;
        renewed_once(scene).await?;
        refused_without_repetition(scene).await?;
        ended_and_added_again(scene).await
    })
}
