//! What a bad cluster costs: itself.

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

use crate::world::{Scene, all, alone, is_ready, problems, ready, sync_ready};

const BAD: &str = "m5";
const GOOD: [&str; 4] = ["m1", "m2", "m3", "m4"];
const MEMBERS: [&str; 5] = ["m1", "m2", "m3", "m4", "m5"];
/// How long is waited for what a probe period or two have to pass for.
const PERIODS: Duration = Duration::from_secs(180);

/// A first commit on all five members.
async fn settled(scene: &Scene) -> Result<()> {
    let first = scene.commit(&[("settings", "v1")])?;
    scene.follow_main().await?;
    scene.select(&MEMBERS).await?;
    scene.group(json!({"maxConcurrency": "100%"}), json!({})).await?;
    scene.succeeded(&first).await?;
    Ok(())
}

/// Pushes a value; the four good members get it, and the group knows, while the bad one does not.
async fn others_get(scene: &Scene, value: &str) -> Result<()> {
    let commit = scene.commit(&[("settings", value)])?;
    scene
        .status("four updated, one not", |status| {
            let rollout = status.rollout.as_ref();
            let rolled = rollout.and_then(|rollout| rollout.revisions.first());
            status.clusters.updated == 4 && rolled.is_some_and(|rolled| rolled.revision.ends_with(&commit))
        })
        .await?;
    assert_eq!(scene.values(&GOOD, "settings").await?, all(value, 4));
    assert_eq!(scene.value(BAD, "settings").await?.as_deref(), Some("v1"));
    Ok(())
}

fn cluster_ready(cluster: &Cluster) -> (String, String) {
    let conditions = cluster.status.as_ref().map(|status| status.conditions.as_slice());
    ready(conditions.unwrap_or_default())
}

/// The members' share of the workers is not the bad one's: nobody waits for it, and it is caught up when it is back.
#[test]
fn t13_others_finish_while_a_black_holed_member_is_still_waited_for() -> Result<()> {
    alone("blackhole", async |scene| {
        settled(scene).await?;
        let bad = scene.proxy(BAD)?;
        bad.black_hole(true);
        others_get(scene, "v2").await?;
        let status = scene
            .status("the bad one named", |status| problems(status).contains_key(BAD))
            .await?;
        assert_eq!(
            status.clusters.failed, 0,
            "it is lost, which is no failure of the revision"
        );
        others_get(scene, "v3").await?;
        bad.black_hole(false);
        scene
            .status("all updated", |status| status.clusters.updated == 5)
            .await?;
        assert_eq!(scene.values(&MEMBERS, "settings").await?, all("v3", 5));
        Ok(())
    })
}

#[test]
fn t14_a_member_that_answers_each_call_after_29_seconds_slows_nobody_else() -> Result<()> {
    alone("slow", async |scene| {
        settled(scene).await?;
        let bad = scene.proxy(BAD)?;
        let slow = bad.on(Match::any(), Fault::Latency(Duration::from_secs(29)));
        for value in ["v2", "v3"] {
            others_get(scene, value).await?;
        }
        assert!(slow.fired() > 0, "it was asked");
        // Longer than an answer may take to begin: as good as none.
        let lost = |cluster: &Cluster| cluster_ready(cluster) == ("Unknown".into(), "Unreachable".into());
        scene.fleet().until(BAD, "Unreachable", lost).await?;
        bad.remove(&slow);
        scene
            .status("all updated", |status| status.clusters.updated == 5)
            .await?;
        assert_eq!(scene.values(&MEMBERS, "settings").await?, all("v3", 5));
        Ok(())
    })
}

/// Every request to the bad member since a moment.
fn since(proxy: &FaultProxy, from: Timestamp) -> Vec<RequestInfo> {
    let requests = proxy.requests().into_iter();
    requests.filter(|request| request.when >= from).collect()
}

#[test]
fn t15_an_open_breaker_lets_one_probe_through_per_period_and_the_first_answer_closes_it() -> Result<()> {
    alone("breaker", async |scene| {
        settled(scene).await?;
        let bad = scene.proxy(BAD)?;
        let cut = bad.on(Match::any(), Fault::CutBefore);
        others_get(scene, "v2").await?;
        // One attempt failed, and the probe after it.
        let lost = |cluster: &Cluster| cluster_ready(cluster) == ("Unknown".into(), "Unreachable".into());
        scene.fleet().until(BAD, "Unreachable", lost).await?;
        let open = Timestamp::now();
        // More work for it does not become more requests.
        for value in ["v3", "v4"] {
            others_get(scene, value).await?;
        }
        wait::until(PERIODS, "two more probes", async || since(&bad, open).len() >= 2).await?;
        let whens: Vec<Timestamp> = since(&bad, open).iter().map(|request| request.when).collect();
        assert!(since(&bad, open).iter().all(|request| request.path == "/version"));
        for pair in whens.windows(2) {
            let gap = pair[1].duration_since(pair[0]);
            assert!(gap >= SignedDuration::from_secs(30), "{gap:?} between two probes");
        }
        let healed = Timestamp::now();
        bad.remove(&cut);
        wait::until(PERIODS, "caught up", async || {
            scene.value(BAD, "settings").await.ok().flatten().as_deref() == Some("v4")
        })
        .await?;
        let first = since(&bad, healed).into_iter().next().context("a request")?;
        assert_eq!((first.path.as_str(), first.status), ("/version", Some(200)));
        let waited = first.when.duration_since(healed);
        assert!(
            waited <= SignedDuration::from_secs(60),
            "{waited:?}: two probe periods"
        );
        // v2 was admitted before it was lost; v3 came and went meanwhile.
        let sent = scene.values_sent(BAD, "settings", &["v1", "v2", "v3", "v4"])?;
        assert!(sent == ["v1", "v2", "v4"] || sent == ["v1", "v4"], "{sent:?}");
        Ok(())
    })
}

/// A second valid token of a member: that of a ServiceAccount that may do everything.
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
fn t16_a_token_that_expires_within_an_attempt_is_not_used_again_and_the_next_one_goes_on() -> Result<()> {
    alone("expiry", async |scene| {
        let names: Vec<String> = (0..8).map(|n| format!("n{n}")).collect();
        let maps = |value: &'static str| -> Vec<(&str, &str)> {
            names.iter().map(|name| (name.as_str(), value)).collect()
        };
        let first = scene.commit(&maps("v1"))?;
        scene.follow_main().await?;
        scene.select(&[BAD]).await?;
        scene.group(json!({}), json!({})).await?;
        scene.succeeded(&first).await?;

        let bad = scene.proxy(BAD)?;
        let plane = scene.fleet().plane(BAD)?;
        let old = plane.token().reveal().to_owned();
        let is_old = {
            let old = old.clone();
            move |request: &RequestInfo| request.has_token(&old)
        };
        let new = another_token(scene, BAD).await?;
        // The inventory is read and three objects are written; then the token is worth nothing. The answers take a
        // while, so that what was sent beside them is not mistaken for what is sent after them.
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
        scene.fleet().until(BAD, "AuthFailed", refused).await?;
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
                .filter(|request| {
                    request.method == Method::PATCH && request.path.contains("/configmaps/expiry-")
                })
                .filter(|request| request.status == Some(200))
                .filter(|request| {
                    String::from_utf8_lossy(&request.body).contains(&format!("\"value\":\"{value}\""))
                });
            written.map(|request| request.path).collect::<Vec<_>>()
        };
        let before = written("v2");
        assert!(!before.is_empty() && before.len() < names.len(), "{before:?}");

        // The group is told another revision meanwhile by nobody; the Secret is renewed, and nobody asks for a look.
        let kubeconfig = scene.fleet().kubeconfig(BAD)?.replace(&old, &new);
        let secret =
            json!({"metadata": {"name": format!("{BAD}-kubeconfig")}, "stringData": {"value": kubeconfig}});
        scene.fleet().put::<Secret>(secret).await?;
        scene.succeeded(&second).await?;
        wait::until(PERIODS, "caught up", async || {
            let values = scene.value(BAD, "n7").await;
            values.ok().flatten().as_deref() == Some("v2")
        })
        .await?;
        let answered = first_401 + SignedDuration::try_from(delay)?;
        let late = since(&bad, answered)
            .into_iter()
            .filter(|request| is_old(request))
            .count();
        assert!(late <= 2, "{late} calls with the old token after the first 401");
        scene.fleet().until(BAD, "Ready", is_ready).await?;
        let mut after = written("v2");
        assert!(after.starts_with(&before), "what was done is not done again");
        after.sort();
        let count = after.len();
        after.dedup();
        assert_eq!(
            (count, after.len()),
            (names.len(), names.len()),
            "each object once"
        );

        // As it was, for the scenes that follow.
        bad.clear();
        let secret = json!({"metadata": {"name": format!("{BAD}-kubeconfig")},
            "stringData": {"value": scene.fleet().kubeconfig(BAD)?}});
        scene.fleet().put::<Secret>(secret).await
    })
}

/// A refusal with `Retry-After`.
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
fn t17_a_storm_of_429_and_503_gives_the_slot_back_and_is_no_failure() -> Result<()> {
    alone("storm", async |scene| {
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
        let bad = scene.proxy(BAD)?;
        let begun = Timestamp::now();
        // The first pause is long enough to be seen; then a third of the calls, until the storm is over.
        let work = || Match::any().path_contains("/configmaps/");
        let every = |n: usize| {
            let seen = std::sync::atomic::AtomicUsize::new(0);
            work().and(move |_| seen.fetch_add(1, std::sync::atomic::Ordering::SeqCst) % n == n - 1)
        };
        bad.on(work().times(1), busy(StatusCode::TOO_MANY_REQUESTS, 8));
        bad.on(every(6).times(8), busy(StatusCode::SERVICE_UNAVAILABLE, 1));
        let storm = bad.on(every(3).times(16), busy(StatusCode::TOO_MANY_REQUESTS, 1));
        let second = scene.commit(&maps("v2"))?;
        let throttled = |sync: &SyncResource| sync_ready(sync) == ("Unknown".into(), "Throttled".into());
        let sync = scene.sync(BAD, "Throttled", throttled).await?;
        let status = sync.status.unwrap_or_default();
        assert_eq!(status.attempts, 0, "no failure of the revision");
        let until: Timestamp = status.next_attempt_time.parse()?;
        assert!(until.duration_since(Timestamp::now()) <= SignedDuration::from_secs(72));

        let status = scene.succeeded(&second).await?;
        assert_eq!((status.clusters.updated, status.clusters.failed), (5, 0));
        assert!(storm.fired() > 0, "there was a storm");
        for name in &names {
            assert_eq!(scene.values(&MEMBERS, name).await?, all("v2", 5));
        }
        let tries = since(&bad, begun)
            .iter()
            .filter(|request| request.method == Method::GET && request.path.contains("starling-inventory-"))
            .count();
        assert!((2..=10).contains(&tries), "{tries} tries");
        Ok(())
    })
}
