//! The program is killed while it deletes the objects of a Sync: the next process continues, and deletes only the
//! remaining objects.

use anyhow::{Context, Result, ensure};
use http::Method;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, ListParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use starling_api::SyncResource;
use starling_api::conditions::{READY, find};
use starling_testkit::fleet::{MANAGEMENT, TIMEOUT};
use starling_testkit::{Fault, Fleet, FleetOptions, GitRepo, Match, Stage, wait};

use crate::ONE_AT_A_TIME;
use crate::supervisor::Supervisor;

const SYNC: &str = "shop";
/// More objects than concurrent requests to a member, so that they are not all deleted at once.
const OBJECTS: usize = 30;

fn name(number: usize) -> String {
    format!("o{number:02}")
}

fn map(name: &str) -> String {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"}})
        .to_string()
}

/// When the program is killed: description, server and request.
fn moments() -> [(&'static str, &'static str, Match); 5] {
    let delete = || Match::method(Method::DELETE).path_contains("/namespaces/default/configmaps/o");
    let inventory = Match::method(Method::DELETE).path_contains("/starling-inventory-");
    let removal = Match::method(Method::PATCH).path_contains("/configmaps/starling-hub-");
    let finalizer = Match::method(Method::PATCH)
        .path_ends_with(format!("/syncs/{SYNC}"))
        .body_contains("\"finalizers\":[]");
    [
        ("the first object", "m1", delete().nth(1)),
        ("the tenth object", "m1", delete().nth(10)),
        ("the inventory, its number first", "m1", removal),
        ("the inventory", "m1", inventory),
        ("the finalizer", MANAGEMENT, finalizer),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_continues_after_a_kill_at_any_time() -> Result<()> {
    let _guard = ONE_AT_A_TIME.lock().await;
    let fleet = Fleet::start(FleetOptions {
        members: 1,
        proxied: true,
        ..FleetOptions::default()
    })
    .await?;
    let repo = GitRepo::init()?;
    let files: Vec<(String, String)> = (0..OBJECTS)
        .map(|number| (format!("app/{}.yaml", name(number)), map(&name(number))))
        .collect();
    let files: Vec<(&str, &str)> = files.iter().map(|(p, t)| (p.as_str(), t.as_str())).collect();
    repo.commit(&files, "thirty")?;
    fleet.add_cluster("m1", &[]).await?;
    fleet
        .put_source(SYNC, &repo.url(), json!({"branch": "main"}))
        .await?;
    let member = fleet.member("m1").await?;
    let foreign = serde_json::from_str(&map("theirs"))?;
    Api::<ConfigMap>::namespaced(member.clone(), "default")
        .create(&PostParams::default(), &foreign)
        .await?;
    let program = Supervisor::default();
    program.start(&fleet)?;
    for (what, server, request) in moments() {
        for stage in [Stage::Before, Stage::After] {
            let what = format!("{stage:?} the delete of {what}");
            kill_and_continue(&fleet, &program, (server, request.clone(), stage), &what)
                .await
                .with_context(|| what.clone())?;
            let remaining = remaining(&member).await?;
            ensure!(remaining == ["theirs"], "{what}: {remaining:?}");
        }
    }
    let deletes = fleet.proxy("m1")?.requests();
    let unconditional = deletes.iter().find(|request| {
        let object = request.method == Method::DELETE && request.path.contains("/namespaces/default/");
        object && !String::from_utf8_lossy(&request.body).contains("\"uid\"")
    });
    ensure!(unconditional.is_none(), "without precondition: {unconditional:?}");
    Ok(())
}

/// Creates and deletes the Sync; the program is killed once during the deletion.
async fn kill_and_continue(
    fleet: &Fleet,
    program: &Supervisor,
    (server, request, stage): (&str, Match, Stage),
    what: &str,
) -> Result<()> {
    let spec = json!({"clusterRef": {"name": "m1"}, "sourceRef": {"name": SYNC}, "path": "./app",
        "deletionPolicy": "Delete", "wait": false});
    fleet
        .put::<SyncResource>(json!({"metadata": {"name": SYNC}, "spec": spec}))
        .await?;
    let ready = |sync: &SyncResource| {
        let status = sync.status.clone().unwrap_or_default();
        find(&status.conditions, READY).is_some_and(|ready| ready.status == "True")
    };
    fleet.until(SYNC, "Ready", ready).await?;
    let proxy = fleet.proxy(server)?;
    let supervisor = program.clone();
    let hook = Fault::hook(move |now, _| {
        if now == stage {
            // The wait for the process determines whether this kill ended it.
            drop(supervisor.kill());
        }
    });
    let kill = proxy.on(request.clone(), hook);
    if stage == Stage::Before {
        // Rules apply in order: the program is already dead, and its pending requests are not delivered.
        proxy.on(request, Fault::CutBefore);
    }
    fleet.delete::<SyncResource>(SYNC).await?;
    program.ended(what).await?;
    ensure!(kill.fired() > 0, "{what}: the deletion ended before the kill");
    proxy.clear();
    program.start(fleet)?;
    wait::until(TIMEOUT, format!("{what}: the Sync is gone"), async || {
        let found = fleet.api::<SyncResource>().get_opt(SYNC).await;
        match found.map_err(|e| e.to_string())? {
            None => Ok(()),
            Some(sync) => Err(format!("{:?}", sync.status)),
        }
    })
    .await?;
    Ok(())
}

/// Returns the names of the objects in the namespace, and of the inventories.
async fn remaining(member: &Client) -> Result<Vec<String>> {
    let mut remaining = Vec::new();
    for namespace in ["default", "starling-system"] {
        let maps: Api<ConfigMap> = Api::namespaced(member.clone(), namespace);
        let maps = maps.list(&ListParams::default()).await?;
        remaining.extend(maps.iter().map(ResourceExt::name_any));
    }
    // The number of the removal stays: it is how the member remembers that there was one.
    remaining.retain(|name| name != "kube-root-ca.crt" && !name.starts_with("starling-hub-"));
    Ok(remaining)
}
