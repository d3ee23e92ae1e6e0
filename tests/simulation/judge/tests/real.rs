//! Histories that really happened: the controller and the embedded API server in this process, four members, a real
//! repository. The judge accepts them, and rejects one that has been tampered with.

use anyhow::{Result, ensure};
use jiff::Timestamp;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use starling_api::SyncResource;
use starling_apiserver::faults::{Effect, Fault};
use starling_testkit::wait;

use super::fleet::{PATIENCE, World, record};
use super::{broken, tamper};
use crate::judge::Push;

/// Two commits, and nothing goes wrong.
async fn two_commits(world: &mut World) -> Result<Timestamp> {
    world.succeeded(1).await?;
    world.push(2)?;
    world.succeeded(2).await?;
    world.look_again().await?;
    let quiet_since = Timestamp::now();
    world.look_again().await?;
    Ok(quiet_since)
}

/// Three commits, the last one on the heels of the second, while answers get lost on both sides, watches end, and one member
/// cannot be reached.
async fn three_commits_in_bad_weather(world: &mut World) -> Result<Timestamp> {
    let lost = world.members["m4"].faults();
    for member in world.members.values() {
        member.faults().add(
            Fault::always(Effect::LoseAnswer)
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
        Fault::always(Effect::LoseAnswer)
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
    lost.clear();
    let dark = lost.add(Fault::always(Effect::Refuse));
    world.push(2)?;
    world.observed(2).await?;
    world.push(3)?;
    world.observed(3).await?;
    world.settled_but_for("m4").await?;
    for handle in world.members.values().chain([&world.management]) {
        handle.faults().clear();
    }
    let lost = world.members["m4"].faults();
    lost.remove(dark);
    for handle in world.members.values().chain([&world.management]) {
        ensure!(
            handle.faults().hits() > 0,
            "nothing happened to {}",
            handle.name()
        );
    }
    world.probe("m4").await?;
    // A group has succeeded without what it cannot reach.
    world.holding(4).await?;
    world.succeeded(3).await?;
    world.look_again().await?;
    let quiet_since = Timestamp::now();
    world.look_again().await?;
    Ok(quiet_since)
}

/// What happens to a fleet in a year: a crash with the loss of the disk in the middle of a rollout, a cluster that is suspended,
/// one that leaves with its objects and comes back, an edit by hand, a branch that is set back.
async fn a_year(world: &mut World) -> Result<Timestamp> {
    world.succeeded(1).await?;
    world.push(2)?;
    world.holding(1).await?;
    world.crash().await?;
    world.succeeded(2).await?;

    world.change("m3", json!({"spec": {"suspend": true}})).await?;
    world.push(3)?;
    world.holding(3).await?;
    world.change("m3", json!({"spec": {"suspend": false}})).await?;
    world.succeeded(3).await?;

    world
        .change("m4", json!({"metadata": {"labels": {"fleet": null}}}))
        .await?;
    let syncs = world.api::<SyncResource>();
    let left = || async {
        syncs
            .list(&ListParams::default())
            .await
            .is_ok_and(|list| list.items.len() == 3)
    };
    wait::until(PATIENCE, "the cluster has left", left).await?;
    world
        .change("m4", json!({"metadata": {"labels": {"fleet": "yes"}}}))
        .await?;
    world.holding(4).await?;
    world.succeeded(3).await?;

    let kubeconfig = kube::config::Kubeconfig::from_yaml(&world.members["m1"].kubeconfig())?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await?;
    let maps: Api<k8s_openapi::api::core::v1::ConfigMap> = Api::namespaced(Client::try_from(config)?, "shop");
    let mine = Patch::Merge(json!({"data": {"round": "mine"}}));
    maps.patch("settings", &PatchParams::default(), &mine).await?;
    world.look_again().await?;

    let back = world.pushes[1].clone();
    world.repository.force_reset("main", &back.commit)?;
    world.pushes.push(Push {
        at: Timestamp::now(),
        ..back
    });
    world.holding(4).await?;
    world.succeeded(4).await?;
    world.look_again().await?;
    let quiet_since = Timestamp::now();
    world.look_again().await?;
    Ok(quiet_since)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_really_happened_is_accepted_and_what_was_tampered_with_is_not() -> Result<()> {
    let history = record("0%", two_commits).await?;
    let (_, words) = broken(&history);
    ensure!(words.is_empty(), "{words}");
    tamper::all_are_noticed(&history)?;
    tamper::nothing_can_be_left_out(&history)
}

/// What the design promises, it keeps under faults, and the judge is not misled by them.
#[tokio::test(flavor = "multi_thread")]
async fn what_really_happened_in_bad_weather_is_accepted() -> Result<()> {
    let history = record("100%", three_commits_in_bad_weather).await?;
    let (_, words) = broken(&history);
    ensure!(words.is_empty(), "{words}");
    Ok(())
}

/// What people do to a fleet is not held against the controller, nor what it has to do for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_year_that_really_happened_is_accepted() -> Result<()> {
    let history = record("100%", a_year).await?;
    let (_, words) = broken(&history);
    ensure!(words.is_empty(), "{words}");
    Ok(())
}
