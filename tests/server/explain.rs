//! `starling why`, `history` and `verify`, while a rollout goes on, after a crash, and after somebody edited the journal.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Connection};
use starling::ledger::LedgerView;
use starling_core::journal::{Body, Entry, Look, Whole, hash};
use starling_core::plan::{Decision, HoldReason, To};
use starling_testkit::{GitRepo, wait};
use tokio::process::Command;

use crate::world::{PATIENCE, PROGRAM, World};

/// Clusters and their tiers: a canary that is approved, two that go one after the other, one whose window never opens.
const MEMBERS: [(&str, &str); 4] = [
    ("eu-1", "canary"),
    ("eu-2", "prod"),
    ("us-1", "prod"),
    ("us-2", "frozen"),
];

fn settings(color: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: settings, namespace: default}}\ndata: {{color: {color}}}\n"
    )
}

/// What a command of a person printed, and how it ended.
async fn starling(world: &World, arguments: &[&str]) -> Result<(Option<i32>, String)> {
    let output = Command::new(PROGRAM)
        .args(arguments)
        .env("KUBECONFIG", world.kubeconfig())
        .env("HOME", world.path())
        .output()
        .await?;
    let text = [output.stdout, output.stderr].concat();
    Ok((output.status.code(), String::from_utf8(text)?))
}

/// What a command that ended well printed.
async fn said(world: &World, arguments: &[&str]) -> Result<String> {
    let (code, text) = starling(world, arguments).await?;
    ensure!(code == Some(0), "starling {arguments:?}: {text}");
    Ok(text)
}

async fn apply_fleet(world: &World, url: &str) -> Result<()> {
    world.kubectl(&["create", "namespace", "fleet"], "").await?;
    for (name, tier) in MEMBERS {
        let view = [
            "config",
            "view",
            "--raw",
            "--minify",
            "--flatten",
            "--context",
            name,
        ];
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "fleet"},
            "stringData": {"value": world.kubectl(&view, "").await?},
        });
        let cluster = json!({
            "apiVersion": "starling.dev/v1alpha1", "kind": "Cluster",
            "metadata": {"name": name, "namespace": "fleet", "labels": {"tier": tier}},
            "spec": {"kubeConfig": {"secretRef": {"name": name}}},
        });
        for object in [secret, cluster] {
            world.kubectl(&["apply", "-f", "-"], &object.to_string()).await?;
        }
    }
    let source = json!({
        "apiVersion": "starling.dev/v1alpha1", "kind": "Source", "metadata": {"name": "shop", "namespace": "fleet"},
        "spec": {"url": url, "ref": {"branch": "main"}, "interval": "1s"},
    });
    let tier = |tier: &str| json!({"matchLabels": {"tier": tier}});
    let group = json!({
        "apiVersion": "starling.dev/v1alpha1", "kind": "SyncGroup", "metadata": {"name": "shop", "namespace": "fleet"},
        "spec": {
            "clusterSelector": {},
            "syncs": [{"name": "app", "sourceRef": {"name": "shop"}, "path": "./deploy"}],
            "rolloutStrategy": {
                "maxConcurrency": 1,
                "windows": [{"deny": "00:00-24:00", "clusterSelector": tier("frozen")}],
                "stages": [{
                    "name": "canary", "clusterSelector": tier("canary"),
                    "afterStageTasks": [{"type": "Approval"}],
                }],
            },
        },
    });
    for object in [source, group] {
        world.kubectl(&["apply", "-f", "-"], &object.to_string()).await?;
    }
    Ok(())
}

/// Waits until a field of the group is as it should be.
async fn group_until(world: &World, what: &str, is_so: impl Fn(&Value) -> bool) -> Result<Value> {
    let look = async || {
        let get = ["-n", "fleet", "get", "syncgroup", "shop", "-o", "json"];
        let text = world
            .kubectl(&get, "")
            .await
            .map_err(|error| format!("{error:#}"))?;
        let group: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        if is_so(&group["status"]) {
            Ok(group)
        } else {
            Err(text)
        }
    };
    Ok(wait::until(PATIENCE, what, look).await?)
}

fn waits_for_approval(rollout: i64) -> impl Fn(&Value) -> bool {
    move |status| {
        let rollout_status = &status["rollout"];
        rollout_status["id"] == rollout
            && rollout_status["stages"][0]["phase"] == "AwaitingApproval"
            && rollout_status["releaseDigest"].is_string()
    }
}

/// The metadata of the Sync on a cluster.
async fn of_sync(world: &World, cluster: &str) -> Result<Value> {
    let get = ["-n", "fleet", "get", "syncs.starling.dev", "-o", "json"];
    let syncs: Value = serde_json::from_str(&world.kubectl(&get, "").await?)?;
    let syncs = syncs["items"].as_array().context("items")?;
    let sync = syncs
        .iter()
        .find(|sync| sync["spec"]["clusterRef"]["name"] == cluster);
    Ok(sync.context("a Sync")?["metadata"].clone())
}

/// When a cluster was admitted last.
async fn admitted_at(world: &World, cluster: &str) -> Result<String> {
    let metadata = of_sync(world, cluster).await?;
    let at = metadata["annotations"]["starling.dev/admitted-at"].as_str();
    Ok(at.context("when it was admitted")?.to_owned())
}

/// `sync/NAME` of a cluster.
async fn sync_of(world: &World, cluster: &str) -> Result<String> {
    let metadata = of_sync(world, cluster).await?;
    Ok(format!("sync/{}", metadata["name"].as_str().context("a name")?))
}

fn contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollout_is_explained_told_and_verified() -> Result<()> {
    let repo = GitRepo::init()?;
    repo.commit(&[("deploy/settings.yaml", &settings("blue"))], "blue")?;
    let mut world = World::new()?;
    let clusters: Vec<&str> = MEMBERS.iter().flat_map(|(name, _)| ["--cluster", name]).collect();
    world.start(&clusters).await?;
    apply_fleet(&world, &repo.url()).await?;
    let data = world.data();
    let data = data.to_str().context("a path")?;
    let fleet = ["-n", "fleet"];
    let ask = |arguments: &[&'static str]| [arguments, &fleet].concat();
    let recorded = |arguments: &[&'static str]| -> Vec<String> {
        let all = [&ask(arguments)[..], &["--data-dir", data]].concat();
        all.into_iter().map(str::to_owned).collect()
    };
    let told = async |world: &World, arguments: Vec<String>| {
        said(world, &arguments.iter().map(String::as_str).collect::<Vec<_>>()).await
    };

    // It waits for a person: the group, and a cluster that has more before it.
    group_until(&world, "the canary waits", waits_for_approval(1)).await?;
    let why = said(&world, &ask(&["why", "shop"])).await?;
    contains(
        &why,
        &[
            "in stage canary: 1 of 4 clusters hold this release, 3 waiting",
            "1. stage canary waits for an approval (eu-2, us-1, us-2) [AwaitingApproval]",
            "until somebody approves it: starling approve shop --stage canary --reason \"…\"",
            "there is no estimate: it waits for something that time alone does not bring",
        ],
    );
    let why = said(&world, &ask(&["why", "cluster/us-2"])).await?;
    contains(
        &why,
        &[
            "1. stage canary waits for an approval [AwaitingApproval]",
            "2. then the window \"deny 00:00-24:00 UTC\" keeps it closed for weeks [WindowClosed]",
            "3. then a slot: 0 of 1 are taken now [NoSlot]",
        ],
    );

    // Somebody approves. The two go one after the other, the last one stays behind.
    said(
        &world,
        &ask(&["approve", "shop", "--stage", "canary", "--reason", "looks good"]),
    )
    .await?;
    let done = |status: &Value| status["clusters"]["updated"] == 3;
    group_until(&world, "three of four have it", done).await?;
    let why = said(&world, &ask(&["why", "cluster/us-2", "-o", "json"])).await?;
    let why: Value = serde_json::from_str(&why)?;
    assert_eq!(
        why[0]["explanation"]["chain"][0]["reason"], "WindowClosed",
        "{why:#}"
    );
    let sync = world
        .kubectl(&["-n", "fleet", "get", "syncs.starling.dev", "-o", "name"], "")
        .await?;
    let sync = sync
        .lines()
        .next()
        .context("a Sync")?
        .replace("sync.starling.dev", "sync");
    let why = said(&world, &["why", &sync, "-n", "fleet"]).await?;
    contains(&why, &["holds this release"]);

    // The past, from the journal of a controller that is at work.
    let (first, second) = (
        admitted_at(&world, "eu-2").await?,
        admitted_at(&world, "us-1").await?,
    );
    assert!(first < second, "{first} {second}");
    let mut past = recorded(&["why", "cluster/us-1"]);
    past.extend(["--at".to_owned(), first.clone()]);
    contains(
        &told(&world, past).await?,
        &["1. all slots are taken, 1 (maxConcurrency): eu-2 [NoSlot]"],
    );
    let mut past = recorded(&["why"]);
    past.insert(1, sync_of(&world, "us-1").await?);
    past.extend(["--at".to_owned(), first.clone()]);
    contains(
        &told(&world, past).await?,
        &["1. all slots are taken, 1 (maxConcurrency): eu-2 [NoSlot]"],
    );
    let mut past = recorded(&["why", "shop"]);
    past.extend(["--at".to_owned(), second.clone()]);
    contains(
        &told(&world, past).await?,
        &[
            "eu-1      canary   app",
            "healthy since",
            "approve stage canary by",
            "looks good",
        ],
    );
    for history in [
        ask(&["history", "shop"])
            .iter()
            .map(|text| (*text).to_owned())
            .collect(),
        recorded(&["history", "shop"]),
    ] {
        contains(
            &told(&world, history).await?,
            &[
                "ROLLOUT   STARTED",
                "3/4",
                "app=main@sha1:",
                "approve stage canary by",
                "looks good",
            ],
        );
    }
    let verified = told(&world, recorded(&["verify", "shop"])).await?;
    contains(&verified, &["hold: the chain fits, and no plan breaks a rule"]);

    // A crash in the middle of another one: the journal goes on where it was.
    repo.commit(&[("deploy/settings.yaml", &settings("green"))], "green")?;
    group_until(&world, "the second rollout waits", waits_for_approval(2)).await?;
    let before = entries(&world).await?;
    world.kill()?;
    world.start(&[]).await?;
    said(
        &world,
        &ask(&["approve", "shop", "--stage", "canary", "--reason", "again"]),
    )
    .await?;
    group_until(&world, "three of four have the second", done).await?;
    let after = entries(&world).await?;
    assert_eq!(&after[..before.len()], &before[..]);
    let wholes = after.iter().filter(|entry| entry.body.starts_with("{\"whole\""));
    let wholes: Vec<i64> = wholes.map(|entry| entry.rollout).collect();
    assert_eq!(wholes, [1, 2], "a new process goes on with what changed");
    told(&world, recorded(&["verify", "shop"])).await?;
    let history = told(&world, recorded(&["history", "shop", "-o", "json"])).await?;
    let history: Value = serde_json::from_str(&history)?;
    assert_eq!(
        (&history[0]["rollout"], &history[1]["rollout"]),
        (&json!(2), &json!(1))
    );
    assert_eq!(history[1]["outcome"], "superseded", "{history:#}");
    assert_eq!(history[0]["words"][0]["reason"], "again", "{history:#}");
    assert!(history[1].get("recordedFrom").is_none(), "{history:#}");
    world.stop().await?;

    let verify = ["verify", "shop", "-n", "fleet", "--data-dir", data];
    for (tamper, expected) in [
        (
            Tamper::Edit,
            "entry 2 is not what was written there: its hash does not fit",
        ),
        (Tamper::Forge, "the plan breaks a rule"),
    ] {
        let sound = tempfile::tempdir()?;
        let ledger = world.data().join("controller/ledger.db");
        std::fs::copy(&ledger, sound.path().join("ledger.db"))?;
        tamper.with(sound.path(), &after).await?;
        let folder = sound.path().to_str().context("a path")?;
        let mut verify = verify;
        verify[5] = folder;
        let (code, text) = starling(&world, &verify).await?;
        assert_eq!(code, Some(1), "{text}");
        contains(&text, &[expected, "the journal of fleet/shop does not hold: "]);
        if matches!(tamper, Tamper::Forge) {
            assert!(!text.contains("hash"), "the chain fits: {text}");
            // It was in the first rollout; of the second there is nothing to be said.
            for (rollout, expected) in [("1", Some(1)), ("2", Some(0))] {
                let (code, text) = starling(&world, &[&verify[..], &["--rollout", rollout]].concat()).await?;
                assert_eq!(code, expected, "rollout {rollout}: {text}");
            }
        }
    }
    contains(&said(&world, &verify).await?, &["hold: the chain fits"]);
    let told: Value = serde_json::from_str(&said(&world, &[&verify[..], &["-o", "json"]].concat()).await?)?;
    let newest = after.last().context("an entry")?;
    assert_eq!(told["journals"][0]["newestHash"], newest.hash, "{told:#}");
    let (code, text) = starling(&world, &[&verify[..], &["--rollout", "99"]].concat()).await?;
    assert_eq!(code, Some(2), "{text}");
    contains(&text, &["has no entry of rollout 99"]);
    Ok(())
}

async fn entries(world: &World) -> Result<Vec<Entry>> {
    let mut view = LedgerView::open(&world.data().join("controller")).await?;
    let mut journals = view.journals("fleet", "shop").await?;
    view.close().await;
    Ok(journals.pop().context("a journal")?.entries)
}

/// What somebody does to the file.
#[derive(Clone, Copy)]
enum Tamper {
    /// Changes one entry.
    Edit,
    /// Admits a cluster that had to wait for a slot, and computes every hash anew.
    Forge,
}

impl Tamper {
    async fn with(self, folder: &Path, entries: &[Entry]) -> Result<()> {
        let mut file = SqliteConnectOptions::new()
            .filename(folder.join("ledger.db"))
            .connect()
            .await?;
        sqlx::query("DROP TRIGGER journal_is_append_only")
            .execute(&mut file)
            .await?;
        match self {
            Self::Edit => {
                let edit = "UPDATE journal SET entry = replace(entry, 'shop', 'shop ') || ' ' WHERE seq = 2";
                sqlx::query(edit).execute(&mut file).await?;
            }
            Self::Forge => forge(&mut file, entries).await?,
        }
        file.close().await?;
        Ok(())
    }
}

async fn forge(file: &mut SqliteConnection, entries: &[Entry]) -> Result<()> {
    let (mut before, mut known): (String, Option<Look>) =
        (starling_core::journal::BEGINNING.to_owned(), None);
    let mut forged = false;
    for entry in entries {
        let look = Look::after(known, Body::read(&entry.body)?)?;
        let mut entry = entry.clone();
        let waits = look.plan.decisions.iter().find(|(_, decision)| {
            matches!(
                decision,
                Decision::Hold {
                    reason: HoldReason::NoSlot,
                    ..
                }
            )
        });
        if let (false, Some((name, _))) = (forged, waits) {
            let mut look = look.clone();
            let start = Decision::Start {
                entries: vec!["app".to_owned()],
                to: To::Release,
            };
            look.plan.decisions.insert(name.clone(), start);
            let beginning_lost = false;
            entry.body = serde_json::to_string(&Body::Whole(Whole { beginning_lost, look }))?;
            forged = true;
        }
        entry.hash = hash(&before, &entry);
        sqlx::query("UPDATE journal SET entry = ?2, hash = ?3 WHERE seq = ?1")
            .bind(entry.seq)
            .bind(&entry.body)
            .bind(&entry.hash)
            .execute(&mut *file)
            .await?;
        (before, known) = (entry.hash, Some(look));
    }
    ensure!(forged, "nobody had to wait for a slot");
    sqlx::query("UPDATE journal_chains SET last_hash = ?1")
        .bind(&before)
        .execute(file)
        .await?;
    Ok(())
}
