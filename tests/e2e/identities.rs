//! Members that claim the identity of another one.

use anyhow::Result;
use bytes::Bytes;
use http::{Method, StatusCode};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::json;
use starling_api::conditions::{self, IDENTITY_CONFLICT};
use starling_api::{Cluster, REQUESTED_AT, RolloutPhase};
use starling_testkit::fleet::TIMEOUT;
use starling_testkit::{Fault, Fleet, FleetOptions, GitRepo, Match, program, wait};

use crate::world::{config_map, is_ready, ready};

const LIAR: &str = "m1";
const VICTIM: &str = "m2";

/// Returns the UID of the namespace `kube-system` of a member.
async fn identity(fleet: &Fleet, member: &str) -> Result<String> {
    let api: Api<Namespace> = Api::all(fleet.member(member).await?);
    Ok(api.get("kube-system").await?.uid().unwrap_or_default())
}

/// Lets a member answer that it has this identity. Everything else it answers as before.
fn claims(fleet: &Fleet, member: &str, uid: &str) -> Result<()> {
    let body = json!({"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": {"name": "kube-system", "uid": uid, "resourceVersion": "1"}});
    let response = Fault::Status {
        code: StatusCode::OK,
        headers: vec![(http::header::CONTENT_TYPE, "application/json".parse()?)],
        body: Bytes::from(body.to_string()),
    };
    let read = Match::method(Method::GET).path_ends_with("/namespaces/kube-system");
    fleet.proxy(member)?.on(read, response);
    Ok(())
}

/// Requests a probe, and waits for it.
async fn probed(fleet: &Fleet, cluster: &str) -> Result<Cluster> {
    let now = jiff::Timestamp::now().to_string();
    let patch = json!({"metadata": {"annotations": {REQUESTED_AT: now}}});
    fleet.patch::<Cluster>(cluster, patch).await?;
    let handled = |cluster: &Cluster| {
        let status = cluster.status.as_ref();
        status.is_some_and(|status| status.last_handled_reconcile_at == now)
    };
    fleet.until(cluster, "probed", handled).await
}

fn conflict(cluster: &Cluster) -> Option<(String, String)> {
    let status = cluster.status.as_ref()?;
    let found = conditions::find(&status.conditions, IDENTITY_CONFLICT)?;
    Some((found.reason.clone(), found.message.clone()))
}

fn recorded(cluster: &Cluster) -> String {
    let status = cluster.status.as_ref();
    status.map(|status| status.cluster_id.clone()).unwrap_or_default()
}

async fn start() -> Result<(Fleet, GitRepo)> {
    let fleet = Fleet::start(FleetOptions {
        members: 2,
        proxied: true,
        ..FleetOptions::default()
    })
    .await?;
    let repo = GitRepo::init()?;
    fleet
        .put_source("source", &repo.url(), json!({"branch": "main"}))
        .await?;
    Ok((fleet, repo))
}

async fn group(fleet: &Fleet) -> Result<()> {
    let entry = json!({"name": "app", "sourceRef": {"name": "source"}, "path": "./app"});
    let spec = json!({"clusterSelector": {"matchLabels": {"fleet": "yes"}}, "syncs": [entry],
        "rolloutStrategy": {"maxConcurrency": "100%"}});
    fleet.put_group("group", spec).await
}

/// Rolls a value out to all Clusters of the group, and returns the values that the members have.
async fn roll(fleet: &Fleet, repo: &GitRepo, value: &str) -> Result<Vec<Option<String>>> {
    let commit = repo.commit(&[("app/map.yaml", &config_map("settings", value))], value)?;
    let status = fleet.rollout("group", &commit, RolloutPhase::Succeeded).await?;
    assert_eq!(status.clusters.unreachable, 0, "{status:?}");
    let mut values = Vec::new();
    for member in [LIAR, VICTIM] {
        let api: Api<ConfigMap> = Api::namespaced(fleet.member(member).await?, "default");
        let map = api.get_opt("settings").await?;
        values.push(map.and_then(|map| map.data.unwrap_or_default().remove("value")));
    }
    Ok(values)
}

/// Returns the marks that proofs left on a member.
async fn marks(fleet: &Fleet, member: &str) -> Result<Vec<String>> {
    let api: Api<ConfigMap> = Api::namespaced(fleet.member(member).await?, "starling-system");
    let names = api.list(&ListParams::default()).await?.into_iter();
    Ok(names
        .map(|map| map.name_any())
        .filter(|name| name.starts_with("starling-identity-"))
        .collect())
}

/// The liar is older, and claims the identity of a member that Starling knows. It gets an identity of its own, and the
/// other one does not even learn of it.
#[tokio::test(flavor = "multi_thread")]
async fn tenant_a_member_that_claims_the_identity_of_another_one_takes_nothing_away() -> Result<()> {
    let (fleet, repo) = start().await?;
    let victim = identity(&fleet, VICTIM).await?;
    let _controller = fleet.controller(program(), &[])?;
    for name in [LIAR, VICTIM] {
        fleet.add_cluster(name, &[("fleet", "yes")]).await?;
        fleet.until(name, "Ready", is_ready).await?;
    }
    group(&fleet).await?;
    let both = |value: &str| vec![Some(value.to_owned()); 2];
    assert_eq!(roll(&fleet, &repo, "one").await?, both("one"));

    claims(&fleet, LIAR, &victim)?;
    let liar = probed(&fleet, LIAR).await?;
    let (reason, message) = conflict(&liar).unwrap_or_default();
    assert_eq!(reason, "OtherCluster", "{message}");
    assert!(
        recorded(&liar) != victim && recorded(&liar).starts_with(&victim),
        "{liar:?}"
    );
    let known = probed(&fleet, VICTIM).await?;
    assert!(is_ready(&known), "{known:?}");
    assert_eq!((recorded(&known), conflict(&known)), (victim, None));
    assert_eq!(roll(&fleet, &repo, "two").await?, both("two"));
    for member in [LIAR, VICTIM] {
        assert_eq!(marks(&fleet, member).await?, [""; 0]);
    }
    Ok(())
}

/// The liar is older, and claims the identity before its owner is registered. Then the owner is used all the same, also
/// while the liar does not respond any more.
#[tokio::test(flavor = "multi_thread")]
async fn tenant_an_identity_that_is_claimed_beforehand_keeps_nobody_out() -> Result<()> {
    let (fleet, repo) = start().await?;
    let victim = identity(&fleet, VICTIM).await?;
    claims(&fleet, LIAR, &victim)?;
    let _controller = fleet.controller(program(), &[])?;
    for name in [LIAR, VICTIM] {
        fleet.add_cluster(name, &[("fleet", "yes")]).await?;
        fleet.until(name, "Ready", is_ready).await?;
    }
    group(&fleet).await?;
    let both = |value: &str| vec![Some(value.to_owned()); 2];
    assert_eq!(roll(&fleet, &repo, "one").await?, both("one"));

    fleet.proxy(LIAR)?.on(Match::any(), Fault::CutBefore);
    for _ in 0..2 {
        let known = probed(&fleet, VICTIM).await?;
        assert!(is_ready(&known), "{known:?}");
    }
    Ok(())
}

/// Two Clusters that are one member: the older one keeps it, and the younger one is used once the older one is gone.
#[tokio::test(flavor = "multi_thread")]
async fn the_older_of_two_clusters_that_are_one_member_keeps_it() -> Result<()> {
    let (fleet, _repo) = start().await?;
    let _controller = fleet.controller(program(), &[])?;
    fleet.add_cluster(VICTIM, &[]).await?;
    fleet.until(VICTIM, "Ready", is_ready).await?;
    // Creation times are whole seconds, and names decide within one.
    fleet
        .add_cluster_at("z-copy", &fleet.kubeconfig(VICTIM)?, &[])
        .await?;
    let refused = |cluster: &Cluster| {
        let conditions = cluster.status.as_ref().map(|status| &*status.conditions);
        ready(conditions.unwrap_or_default()).1 == "IdentityConflict"
    };
    let copy = fleet.until("z-copy", "refused", refused).await?;
    let (reason, message) = conflict(&copy).unwrap_or_default();
    assert_eq!(reason, "SameCluster", "{message}");
    assert!(message.contains(VICTIM), "{message}");
    for _ in 0..2 {
        assert!(refused(&probed(&fleet, "z-copy").await?));
        assert!(is_ready(&probed(&fleet, VICTIM).await?));
    }
    assert_eq!(marks(&fleet, VICTIM).await?, [""; 0]);
    fleet.delete::<Cluster>(VICTIM).await?;
    wait::until(TIMEOUT, "the copy is used", async || {
        let copy = probed(&fleet, "z-copy")
            .await
            .map_err(|error| format!("{error:#}"))?;
        if is_ready(&copy) {
            Ok(())
        } else {
            Err(format!("{copy:?}"))
        }
    })
    .await?;
    Ok(())
}
