//! A faulty cluster affects only itself.

use std::time::Duration;

use anyhow::{Context, Result};
use http::{HeaderValue, Method, StatusCode, header};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::ClusterRoleBinding;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;
use starling_api::{Cluster, SyncResource};
use starling_testkit::{Fault, FaultProxy, Match, RequestInfo, wait};

use crate::world::{Scene, all, exclusive_scene, is_ready, problems, ready, sync_ready};

const FAULTY_MEMBER: &str = "m5";
const HEALTHY_MEMBERS: [&str; 4] = ["m1", "m2", "m3", "m4"];
const MEMBERS: [&str; 5] = ["m1", "m2", "m3", "m4", "m5"];
/// The timeout of conditions that need one or two probe periods.
const PERIODS: Duration = Duration::from_secs(180);

/// A first commit on all five members.
async fn first_rollout(scene: &Scene) -> Result<()> {
    let first = scene.commit(&[("settings", "v1")])?;
    scene.follow_main().await?;
    scene.select(&MEMBERS).await?;
    scene.group(json!({"maxConcurrency": "100%"}), json!({})).await?;
    scene.succeeded(&first).await?;
    Ok(())
}

/// Pushes a value, and waits until the four healthy members have it, and the status of the group reports it, while the
/// faulty member does not.
async fn until_healthy_members_have(scene: &Scene, value: &str) -> Result<()> {
    let commit = scene.commit(&[("settings", value)])?;
    scene
        .status("four updated, one not", |status| {
            let rollout = status.rollout.as_ref();
            let rolled = rollout.and_then(|rollout| rollout.revisions.first());
            status.clusters.updated == 4 && rolled.is_some_and(|rolled| rolled.revision.ends_with(&commit))
        })
        .await?;
    assert_eq!(scene.values(&HEALTHY_MEMBERS, "settings").await?, all(value, 4));
    assert_eq!(
        scene.value(FAULTY_MEMBER, "settings").await?.as_deref(),
        Some("v1")
    );
    Ok(())
}

fn cluster_ready(cluster: &Cluster) -> (String, String) {
    let conditions = cluster.status.as_ref().map(|status| status.conditions.as_slice());
    ready(conditions.unwrap_or_default())
}

/// The faulty member does not use the workers of the others: no other member waits for it, and it catches up when it is
/// reachable again.
#[test]
fn t13_other_members_finish_during_the_timeout_of_a_black_holed_member() -> Result<()> {
    exclusive_scene("blackhole", async |scene| {
        first_rollout(scene).await?;
        let bad = scene.proxy(FAULTY_MEMBER)?;
        bad.black_hole(true);
        until_healthy_members_have(scene, "v2").await?;
        let status = scene
            .status("the faulty member reported", |status| {
                problems(status).contains_key(FAULTY_MEMBER)
            })
            .await?;
        assert_eq!(
            status.clusters.failed, 0,
            "unreachable, which is not a failure of the revision"
        );
        until_healthy_members_have(scene, "v3").await?;
        bad.black_hole(false);
        scene
            .status("all updated", |status| status.clusters.updated == 5)
            .await?;
        assert_eq!(scene.values(&MEMBERS, "settings").await?, all("v3", 5));
        Ok(())
    })
}

#[test]
fn t14_a_member_with_a_latency_of_29_seconds_slows_no_other() -> Result<()> {
    exclusive_scene("slow", async |scene| {
        first_rollout(scene).await?;
        let bad = scene.proxy(FAULTY_MEMBER)?;
        let slow = bad.on(Match::any(), Fault::Latency(Duration::from_secs(29)));
        for value in ["v2", "v3"] {
            until_healthy_members_have(scene, value).await?;
        }
        assert!(slow.fired() > 0, "it received requests");
        // Longer than the timeout for the head of a response.
        let lost = |cluster: &Cluster| cluster_ready(cluster) == ("Unknown".into(), "Unreachable".into());
        scene.fleet().until(FAULTY_MEMBER, "Unreachable", lost).await?;
        bad.remove(&slow);
        scene
            .status("all updated", |status| status.clusters.updated == 5)
            .await?;
        assert_eq!(scene.values(&MEMBERS, "settings").await?, all("v3", 5));
        Ok(())
    })
}

/// Returns every request to the faulty member since a time.
fn since(proxy: &FaultProxy, from: Timestamp) -> Vec<RequestInfo> {
    let requests = proxy.requests().into_iter();
    requests.filter(|request| request.when >= from).collect()
}

#[test]
fn t15_an_open_breaker_allows_one_probe_per_period_and_the_first_response_closes_it() -> Result<()> {
    exclusive_scene("breaker", async |scene| {
        first_rollout(scene).await?;
        let bad = scene.proxy(FAULTY_MEMBER)?;
        let cut = bad.on(Match::any(), Fault::CutBefore);
        until_healthy_members_have(scene, "v2").await?;
        // One attempt and the following probe have failed.
        let lost = |cluster: &Cluster| cluster_ready(cluster) == ("Unknown".into(), "Unreachable".into());
        scene.fleet().until(FAULTY_MEMBER, "Unreachable", lost).await?;
        let open = Timestamp::now();
        // More work for the member does not cause more requests.
        for value in ["v3", "v4"] {
            until_healthy_members_have(scene, value).await?;
        }
        wait::until(PERIODS, "two more probes", async || since(&bad, open).len() >= 2).await?;
        let whens: Vec<Timestamp> = since(&bad, open).iter().map(|request| request.when).collect();
        assert!(since(&bad, open).iter().all(|request| request.path == "/version"));
        for pair in whens.windows(2) {
            let interval = pair[1].duration_since(pair[0]);
            assert!(
                interval >= SignedDuration::from_secs(30),
                "{interval:?} between two probes"
            );
        }
        let healed = Timestamp::now();
        bad.remove(&cut);
        wait::until(PERIODS, "caught up", async || {
            scene
                .value(FAULTY_MEMBER, "settings")
                .await
                .ok()
                .flatten()
                .as_deref()
                == Some("v4")
        })
        .await?;
        let first = since(&bad, healed).into_iter().next().context("a request")?;
        assert_eq!((first.path.as_str(), first.status), ("/version", Some(200)));
        let waited = first.when.duration_since(healed);
        assert!(
            waited <= SignedDuration::from_secs(60),
            "{waited:?}: two probe periods"
        );
        // v2 was admitted before the member was lost; v3 was superseded meanwhile.
        let sent = scene.values_sent(FAULTY_MEMBER, "settings", &["v1", "v2", "v3", "v4"])?;
        assert!(sent == ["v1", "v2", "v4"] || sent == ["v1", "v4"], "{sent:?}");
        Ok(())
    })
}

/// A second valid token of a member, for a ServiceAccount with all permissions.
async fn another_token(scene: &Scene, member: &str) -> Result<String> {
    let client = scene.fleet().member(member).await?;
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), "default");
    let account = serde_json::from_value(json!({"metadata": {"name": "rotated"}}))?;
    accounts.create(&PostParams::default(), &account).await?;
    let binding: ClusterRoleBinding = serde_json::from_value(json!({"metadata": {"name": "rotated"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "namespace": "default", "name": "rotated"}]}))?;
    Api::all(client).create(&PostParams::default(), &binding).await?;
    let request = serde_json::from_value(json!({"spec": {"audiences": []}}))?;
    let answer = accounts
        .create_token_request("rotated", &PostParams::default(), &request)
        .await?;
    Ok(answer.status.context("a token")?.token)
}

#[test]
fn t16_a_token_that_expires_during_an_attempt_is_not_reused_and_the_next_attempt_continues() -> Result<()> {
    exclusive_scene("expiry", async |scene| {
        let names: Vec<String> = (0..8).map(|n| format!("n{n}")).collect();
        let maps = |value: &'static str| -> Vec<(&str, &str)> {
            names.iter().map(|name| (name.as_str(), value)).collect()
        };
        let first = scene.commit(&maps("v1"))?;
        scene.follow_main().await?;
        scene.select(&[FAULTY_MEMBER]).await?;
        scene.group(json!({}), json!({})).await?;
        scene.succeeded(&first).await?;

        let bad = scene.proxy(FAULTY_MEMBER)?;
        let plane = scene.fleet().plane(FAULTY_MEMBER)?;
        let old = plane.token().reveal().to_owned();
        let is_old = {
            let old = old.clone();
            move |request: &RequestInfo| request.has_token(&old)
        };
        let new = another_token(scene, FAULTY_MEMBER).await?;
        // The inventory is read and three objects are written; then the token is invalid. The responses are delayed, so
        // that concurrent requests are not mistaken for later ones.
        let begun = Timestamp::now();
        let from_fifth = |skip: usize| {
            let is_old = is_old.clone();
            let seen = std::sync::atomic::AtomicUsize::new(0);
            Match::any().and(move |request| {
                is_old(request) && seen.fetch_add(1, std::sync::atomic::Ordering::SeqCst) >= skip
            })
        };
        let delay = Duration::from_secs(2);
        bad.on(from_fifth(4), Fault::Latency(delay));
        let expired = bad.on(from_fifth(4), Fault::status(StatusCode::UNAUTHORIZED));
        let second = scene.commit(&maps("v2"))?;
        let refused = |c: &Cluster| cluster_ready(c) == ("False".into(), "AuthFailed".into());
        scene.fleet().until(FAULTY_MEMBER, "AuthFailed", refused).await?;
        assert!(expired.fired() > 0);
        let requests = since(&bad, begun);
        let first_401 = requests
            .iter()
            .find(|request| request.status == Some(401))
            .context("a 401")?
            .when;
        let written = |value: &str| {
            let requests = since(&bad, begun).into_iter();
            let written = requests
                .filter(|request| request.is_patch() && request.path.contains("/configmaps/expiry-"))
                .filter(|request| request.status == Some(200))
                .filter(|request| {
                    String::from_utf8_lossy(&request.body).contains(&format!("\"value\":\"{value}\""))
                });
            written.map(|request| request.path).collect::<Vec<_>>()
        };
        let before = written("v2");
        assert!(!before.is_empty() && before.len() < names.len(), "{before:?}");

        // There is no new revision meanwhile; the Secret is renewed, without a requested reconcile.
        let kubeconfig = scene.fleet().kubeconfig(FAULTY_MEMBER)?.replace(&old, &new);
        let secret = json!({"metadata": {"name": format!("{FAULTY_MEMBER}-kubeconfig")}, "stringData": {"value": kubeconfig}});
        scene.fleet().put::<Secret>(secret).await?;
        scene.succeeded(&second).await?;
        wait::until(PERIODS, "caught up", async || {
            let values = scene.value(FAULTY_MEMBER, "n7").await;
            values.ok().flatten().as_deref() == Some("v2")
        })
        .await?;
        let answered = first_401 + SignedDuration::try_from(delay)?;
        let late = since(&bad, answered)
            .into_iter()
            .filter(|request| is_old(request))
            .count();
        assert!(late <= 2, "{late} calls with the old token after the first 401");
        scene.fleet().until(FAULTY_MEMBER, "Ready", is_ready).await?;
        let mut after = written("v2");
        assert!(after.starts_with(&before), "completed writes are not repeated");
        after.sort();
        let count = after.len();
        after.dedup();
        assert_eq!(
            (count, after.len()),
            (names.len(), names.len()),
            "each object once"
        );

        // Restore the state for the following scenes.
        bad.clear();
        let secret = json!({"metadata": {"name": format!("{FAULTY_MEMBER}-kubeconfig")},
            "stringData": {"value": scene.fleet().kubeconfig(FAULTY_MEMBER)?}});
        scene.fleet().put::<Secret>(secret).await
    })
}

/// An error response with `Retry-After`.
fn busy(code: StatusCode, seconds: u32) -> Fault {
    match Fault::status(code) {
        Fault::Status {
            code,
            mut headers,
            body,
        } => {
            headers.push((header::RETRY_AFTER, HeaderValue::from(seconds)));
            Fault::Status { code, headers, body }
        }
        other => other,
    }
}

#[test]
fn t17_429_and_503_responses_free_the_slot_and_are_not_failures() -> Result<()> {
    exclusive_scene("storm", async |scene| {
        let names: Vec<String> = (0..10).map(|n| format!("n{n}")).collect();
        let maps = |value: &'static str| -> Vec<(&str, &str)> {
            names.iter().map(|name| (name.as_str(), value)).collect()
        };
        let first = scene.commit(&maps("v1"))?;
        scene.follow_main().await?;
        scene.select(&MEMBERS).await?;
        scene
            .group(json!({"maxConcurrency": "100%", "maxFailures": 0}), json!({}))
            .await?;
        scene.succeeded(&first).await?;
        let bad = scene.proxy(FAULTY_MEMBER)?;
        let begun = Timestamp::now();
        // The first pause is long enough to be observed; then every third request is throttled, until the limit of the
        // rule.
        let work = || Match::any().path_contains("/configmaps/");
        let every = |n: usize| {
            let seen = std::sync::atomic::AtomicUsize::new(0);
            work().and(move |_| seen.fetch_add(1, std::sync::atomic::Ordering::SeqCst) % n == n - 1)
        };
        bad.on(work().times(1), busy(StatusCode::TOO_MANY_REQUESTS, 8));
        bad.on(every(6).times(8), busy(StatusCode::SERVICE_UNAVAILABLE, 1));
        let throttling = bad.on(every(3).times(16), busy(StatusCode::TOO_MANY_REQUESTS, 1));
        let second = scene.commit(&maps("v2"))?;
        let throttled = |sync: &SyncResource| sync_ready(sync) == ("Unknown".into(), "Throttled".into());
        let sync = scene.sync(FAULTY_MEMBER, "Throttled", throttled).await?;
        let status = sync.status.unwrap_or_default();
        assert_eq!(status.attempts, 0, "no failure of the revision");
        let until: Timestamp = status.next_attempt_time.parse()?;
        assert!(until.duration_since(Timestamp::now()) <= SignedDuration::from_secs(72));

        let status = scene.succeeded(&second).await?;
        assert_eq!((status.clusters.updated, status.clusters.failed), (5, 0));
        assert!(throttling.fired() > 0, "requests were throttled");
        for name in &names {
            assert_eq!(scene.values(&MEMBERS, name).await?, all("v2", 5));
        }
        let tries = since(&bad, begun)
            .iter()
            .filter(|request| request.method == Method::GET && request.path.contains("starling-inventory-"))
            .count();
        // Each throttled request ends an attempt, and an attempt begins with two requests for its inventory.
        assert!((2..=26).contains(&tries), "{tries} tries");
        Ok(())
    })
}
