//! `starling why`, `history` and `verify`, during a rollout, after a crash, and after the journal was edited.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use serde_json::{Value, json};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{ConnectOptions, Connection};
use starling_core::journal::{Body, JournalEntry, RecordedPlan, Whole, hash};
use starling_core::plan::{AdmittedRelease, Decision, HoldReason};
use starling_ledger::LedgerView;
use starling_testkit::{GitRepo, program, wait};
use tokio::process::Command;

use crate::world::{TIMEOUT, World};

/// Clusters and their tiers: a canary that is approved, two clusters that roll out sequentially, one whose window never
/// opens.
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

/// Returns the exit code and output of a command of a user.
async fn starling(world: &World, arguments: &[&str]) -> Result<(Option<i32>, String)> {
    let output = Command::new(program())
        .args(arguments)
        .env("KUBECONFIG", world.kubeconfig())
        .env("HOME", world.path())
        .output()
        .await?;
    let text = [output.stdout, output.stderr].concat();
    Ok((output.status.code(), String::from_utf8(text)?))
}

/// Returns the output of a successful command.
async fn stdout(world: &World, arguments: &[&str]) -> Result<String> {
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

/// Waits until the group satisfies a predicate.
async fn group_until(world: &World, what: &str, is_so: impl Fn(&Value) -> bool) -> Result<Value> {
    let check = async || {
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
    Ok(wait::until(TIMEOUT, what, check).await?)
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

/// Returns when a cluster was last admitted.
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
async fn a_rollout_is_explained_recorded_and_verified() -> Result<()> {
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
    let recorded_output = async |world: &World, arguments: Vec<String>| {
        stdout(world, &arguments.iter().map(String::as_str).collect::<Vec<_>>()).await
    };

    // The rollout waits for an approval: the group, and a cluster with further obstacles.
    group_until(&world, "the canary waits", waits_for_approval(1)).await?;
    let why = stdout(&world, &ask(&["why", "shop"])).await?;
    contains(
        &why,
        &[
            "stage canary: 1 of 4 clusters are on this release, 3 waiting",
            "1. stage canary waits for an approval (eu-2, us-1, us-2) [AwaitingApproval]",
            "until the stage is approved: starling approve shop --stage canary --reason \"…\"",
            "No ETA: waiting for a person or a cluster",
        ],
    );
    let why = stdout(&world, &ask(&["why", "cluster/us-2"])).await?;
    contains(
        &why,
        &[
            "1. stage canary waits for an approval [AwaitingApproval]",
            "2. then the window \"deny 00:00-24:00 UTC\" blocks starts for weeks [WindowClosed]",
            "3. then a slot: 0 of 1 in use now [NoSlot]",
        ],
    );

    // A user approves. Two clusters roll out sequentially, and the last one is still blocked.
    stdout(
        &world,
        &ask(&["approve", "shop", "--stage", "canary", "--reason", "looks good"]),
    )
    .await?;
    let done = |status: &Value| status["clusters"]["updated"] == 3;
    group_until(&world, "three of four have it", done).await?;
    let why = stdout(&world, &ask(&["why", "cluster/us-2", "-o", "json"])).await?;
    let why: Value = serde_json::from_str(&why)?;
    assert_eq!(
        why[0]["explanation"]["blockers"][0]["reason"], "WindowClosed",
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
    let why = stdout(&world, &["why", &sync, "-n", "fleet"]).await?;
    contains(&why, &["is on this release"]);

    // The past, from the journal of a running controller.
    let (first, second) = (
        admitted_at(&world, "eu-2").await?,
        admitted_at(&world, "us-1").await?,
    );
    // As texts, `53.66Z` comes after `53.663Z`.
    let (earlier, later): (Timestamp, Timestamp) = (first.parse()?, second.parse()?);
    assert!(earlier < later, "{first} {second}");
    let mut past = recorded(&["why", "cluster/us-1"]);
    past.extend(["--at".to_owned(), first.clone()]);
    contains(
        &recorded_output(&world, past).await?,
        &["1. all slots are in use (maxConcurrency 1): eu-2 [NoSlot]"],
    );
    let mut past = recorded(&["why"]);
    past.insert(1, sync_of(&world, "us-1").await?);
    past.extend(["--at".to_owned(), first.clone()]);
    contains(
        &recorded_output(&world, past).await?,
        &["1. all slots are in use (maxConcurrency 1): eu-2 [NoSlot]"],
    );
    let mut past = recorded(&["why", "shop"]);
    past.extend(["--at".to_owned(), second.clone()]);
    contains(
        &recorded_output(&world, past).await?,
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
            &recorded_output(&world, history).await?,
            &[
                "ROLLOUT   STARTED",
                "3/4",
                "app=main@sha1:",
                "approve stage canary by",
                "looks good",
            ],
        );
    }
    let verified = recorded_output(&world, recorded(&["verify", "shop"])).await?;
    contains(
        &verified,
        &["verified: the hash chain is intact, and no plan violates a rule"],
    );

    // A crash during another rollout: the journal continues.
    repo.commit(&[("deploy/settings.yaml", &settings("green"))], "green")?;
    group_until(&world, "the second rollout waits", waits_for_approval(2)).await?;
    let before = entries(&world).await?;
    world.kill()?;
    world.start(&[]).await?;
    stdout(
        &world,
        &ask(&["approve", "shop", "--stage", "canary", "--reason", "again"]),
    )
    .await?;
    group_until(&world, "three of four have the second", done).await?;
    let after = entries(&world).await?;
    assert_eq!(&after[..before.len()], &before[..]);
    let is_whole = |entry: &&JournalEntry| matches!(Body::read(&entry.body), Ok(Body::Whole(_)));
    let wholes = after.iter().filter(is_whole);
    let wholes: Vec<i64> = wholes.map(|entry| entry.rollout.get()).collect();
    assert_eq!(wholes, [1, 2], "a new process goes on with what changed");
    recorded_output(&world, recorded(&["verify", "shop"])).await?;
    let history = recorded_output(&world, recorded(&["history", "shop", "-o", "json"])).await?;
    let history: Value = serde_json::from_str(&history)?;
    assert_eq!(
        (&history[0]["rollout"], &history[1]["rollout"]),
        (&json!(2), &json!(1))
    );
    assert_eq!(history[1]["outcome"], "superseded", "{history:#}");
    assert_eq!(history[0]["actions"][0]["reason"], "again", "{history:#}");
    assert!(history[1].get("recordedFrom").is_none(), "{history:#}");
    world.stop().await?;

    let verify = ["verify", "shop", "-n", "fleet", "--data-dir", data];
    for (tamper, expected) in [
        (Tamper::Edit, "entry 2 was altered: its hash does not match"),
        (Tamper::Forge, "the plan breaks a rule"),
    ] {
        let copy = tempfile::tempdir()?;
        let ledger = world.data().join("controller/ledger.db");
        std::fs::copy(&ledger, copy.path().join("ledger.db"))?;
        tamper.with(copy.path(), &after).await?;
        let folder = copy.path().to_str().context("a path")?;
        let mut verify = verify;
        verify[5] = folder;
        let (code, text) = starling(&world, &verify).await?;
        assert_eq!(code, Some(1), "{text}");
        contains(&text, &[expected, "journal of fleet/shop is invalid: "]);
        if matches!(tamper, Tamper::Forge) {
            assert!(!text.contains("hash"), "the chain fits: {text}");
            // The change was in the first rollout; the second is valid.
            for (rollout, expected) in [("1", Some(1)), ("2", Some(0))] {
                let (code, text) = starling(&world, &[&verify[..], &["--rollout", rollout]].concat()).await?;
                assert_eq!(code, expected, "rollout {rollout}: {text}");
            }
        }
    }
    contains(
        &stdout(&world, &verify).await?,
        &["verified: the hash chain is intact"],
    );
    let recorded_output: Value =
        serde_json::from_str(&stdout(&world, &[&verify[..], &["-o", "json"]].concat()).await?)?;
    let newest = after.last().context("an entry")?;
    assert_eq!(
        recorded_output["journals"][0]["newestHash"], newest.hash,
        "{recorded_output:#}"
    );
    let (code, text) = starling(&world, &[&verify[..], &["--rollout", "99"]].concat()).await?;
    assert_eq!(code, Some(2), "{text}");
    contains(&text, &["has no entry of rollout 99"]);
    Ok(())
}

async fn entries(world: &World) -> Result<Vec<JournalEntry>> {
    let mut view = LedgerView::open(&world.data().join("controller")).await?;
    let mut journals = view.journals("fleet", "shop").await?;
    view.close().await;
    Ok(journals.pop().context("a journal")?.entries)
}

/// A manipulation of the file.
#[derive(Clone, Copy)]
enum Tamper {
    /// Changes one entry.
    Edit,
    /// Admits a cluster that had to wait for a slot, and recomputes every hash.
    Forge,
}

impl Tamper {
    async fn with(self, folder: &Path, entries: &[JournalEntry]) -> Result<()> {
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
            Self::Forge => forge_plan(&mut file, entries).await?,
        }
        file.close().await?;
        Ok(())
    }
}

async fn forge_plan(file: &mut SqliteConnection, entries: &[JournalEntry]) -> Result<()> {
    let (mut before, mut previous): (String, Option<RecordedPlan>) =
        (starling_core::journal::BEGINNING.to_owned(), None);
    let mut changed = false;
    for entry in entries {
        let recorded = RecordedPlan::after(previous, Body::read(&entry.body)?)?;
        let mut entry = entry.clone();
        let waits = recorded.plan.decisions.iter().find(|(_, decision)| {
            matches!(
                decision,
                Decision::Hold {
                    reason: HoldReason::NoSlot,
                    ..
                }
            )
        });
        if let (false, Some((name, _))) = (changed, waits) {
            let mut recorded = recorded.clone();
            let start = Decision::Start {
                entries: vec!["app".into()],
                to: AdmittedRelease::Release,
            };
            recorded.plan.decisions.insert(name.clone(), start);
            let beginning_lost = false;
            entry.body = Body::Whole(Whole {
                beginning_lost,
                recorded,
            })
            .write()?;
            changed = true;
        }
        entry.hash = hash(&before, &entry);
        sqlx::query("UPDATE journal SET entry = ?2, hash = ?3 WHERE seq = ?1")
            .bind(entry.seq)
            .bind(&entry.body)
            .bind(&entry.hash)
            .execute(&mut *file)
            .await?;
        (before, previous) = (entry.hash, Some(recorded));
    }
    ensure!(changed, "nobody had to wait for a slot");
    sqlx::query("UPDATE journal_chains SET last_hash = ?1")
        .bind(&before)
        .execute(file)
        .await?;
    Ok(())
}
