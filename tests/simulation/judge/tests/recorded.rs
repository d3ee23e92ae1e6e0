//! Recorded histories: the controller and the embedded API server in this process, four members, a real repository. The
//! judge accepts them, and rejects copies that were tampered with.

use anyhow::{Result, ensure};
use jiff::Timestamp;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use starling_api::{Source, SyncResource};
use starling_apiserver::faults::{Effect, Fault};
use starling_testkit::wait;

use super::fleet::{TIMEOUT, World, record};
use super::{broken, tamper};
use crate::judge::Push;

/// Runs two commits without faults.
async fn two_commits(world: &mut World) -> Result<Timestamp> {
    world.succeeded(1).await?;
    world.push(2)?;
    world.succeeded(2).await?;
    world.reconcile_again().await?;
    let idle_since = Timestamp::now();
    world.reconcile_again().await?;
    Ok(idle_since)
}

/// Runs three commits, the last one directly after the second, while responses are lost on both sides, watches end, and
/// one member is unreachable.
async fn three_commits_with_faults(world: &mut World) -> Result<Timestamp> {
    let m4_faults = world.members["m4"].faults();
    for member in world.members.values() {
        member.faults().add(
            Fault::always(Effect::LoseResponse)
                .on(&["patch", "delete"])
                .one_in(3)
                .times(3),
        );
        member.faults().add(
            Fault::always(Effect::Error(503))
                .on(&["patch"])
                .one_in(4)
                .times(2),
        );
    }
    let hub = world.management.faults();
    let statuses = ["syncs", "syncs/status", "syncgroups/status", "sources/status"];
    hub.add(
        Fault::always(Effect::LoseResponse)
            .on(&["patch"])
            .of(&statuses)
            .one_in(4)
            .times(20),
    );
    hub.add(
        Fault::always(Effect::CutWatch(3))
            .on(&["watch"])
            .one_in(2)
            .times(10),
    );
    world.succeeded(1).await?;
    m4_faults.clear();
    let refuse_all = m4_faults.add(Fault::always(Effect::Refuse));
    world.push(2)?;
    world.observed(2).await?;
    world.push(3)?;
    world.observed(3).await?;
    world.applied_on_all_but("m4").await?;
    for handle in world.members.values().chain([&world.management]) {
        handle.faults().clear();
    }
    let m4_faults = world.members["m4"].faults();
    m4_faults.remove(refuse_all);
    for handle in world.members.values().chain([&world.management]) {
        ensure!(
            handle.faults().hits() > 0,
            "no fault was injected into {}",
            handle.name()
        );
    }
    world.probe("m4").await?;
    // A rollout succeeds without unreachable clusters.
    world.applied_on(4).await?;
    world.succeeded(3).await?;
    world.reconcile_again().await?;
    let idle_since = Timestamp::now();
    world.reconcile_again().await?;
    Ok(idle_since)
}

/// Runs the events of a year: a crash with the loss of the disk during a rollout, a suspended cluster, a cluster that
/// leaves with its objects and comes back, a manual edit, a branch that is reset to an older commit.
async fn a_year_of_events(world: &mut World) -> Result<Timestamp> {
    world.succeeded(1).await?;
    world.push(2)?;
    world.applied_on(1).await?;
    world.crash().await?;
    world.succeeded(2).await?;

    world.change("m3", json!({"spec": {"suspend": true}})).await?;
    world.push(3)?;
    world.applied_on(3).await?;
    world.change("m3", json!({"spec": {"suspend": false}})).await?;
    world.succeeded(3).await?;

    world
        .change("m4", json!({"metadata": {"labels": {"fleet": null}}}))
        .await?;
    let syncs = world.api::<SyncResource>();
    let has_left = || async {
        syncs
            .list(&ListParams::default())
            .await
            .is_ok_and(|list| list.items.len() == 3)
    };
    wait::until(TIMEOUT, "the cluster has left", has_left).await?;
    world
        .change("m4", json!({"metadata": {"labels": {"fleet": "yes"}}}))
        .await?;
    world.applied_on(4).await?;
    world.succeeded(3).await?;

    let kubeconfig = kube::config::Kubeconfig::from_yaml(&world.members["m1"].kubeconfig())?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await?;
    let maps: Api<k8s_openapi::api::core::v1::ConfigMap> = Api::namespaced(Client::try_from(config)?, "shop");
    let edit = Patch::Merge(json!({"data": {"round": "mine"}}));
    maps.patch("settings", &PatchParams::default(), &edit).await?;
    world.reconcile_again().await?;

    // A branch that goes back is not followed otherwise.
    let accept = Patch::Merge(json!({"spec": {"allowDowngrade": true}}));
    let sources = world.api::<Source>();
    sources.patch("shop", &PatchParams::default(), &accept).await?;
    let back = world.pushes[1].clone();
    world.repository.force_reset("main", &back.commit)?;
    world.pushes.push(Push {
        at: Timestamp::now(),
        ..back
    });
    world.applied_on(4).await?;
    world.succeeded(4).await?;
    world.reconcile_again().await?;
    let idle_since = Timestamp::now();
    world.reconcile_again().await?;
    Ok(idle_since)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recorded_history_is_accepted_and_its_tampered_copies_are_rejected() -> Result<()> {
    let history = record("0%", two_commits).await?;
    let (_, message) = broken(&history);
    ensure!(message.is_empty(), "{message}");
    tamper::all_are_rejected(&history)?;
    tamper::every_write_is_needed(&history)
}

/// The invariants hold under faults, and the judge has no false alarm.
#[tokio::test(flavor = "multi_thread")]
async fn a_recorded_history_with_faults_is_accepted() -> Result<()> {
    let history = record("100%", three_commits_with_faults).await?;
    let (_, message) = broken(&history);
    ensure!(message.is_empty(), "{message}");
    Ok(())
}

/// The judge attributes neither the changes of operators to the controller nor the writes that they cause.
#[tokio::test(flavor = "multi_thread")]
async fn a_recorded_year_is_accepted() -> Result<()> {
    let history = record("100%", a_year_of_events).await?;
    let (_, message) = broken(&history);
    ensure!(message.is_empty(), "{message}");
    Ok(())
}
