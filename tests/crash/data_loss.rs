//! Data on the disk of the program is lost while the program is stopped: that costs time and history, but causes no
//! write to a member in step.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use http::Method;
use starling_ledger::AttemptOutcome;
use starling_testkit::fleet::TIMEOUT;
use starling_testkit::{Fault, Match, Stage};

use crate::ONE_AT_A_TIME;
use crate::world::{MEMBERS, World};

/// The files of the ledger and of SQLite beside it.
fn ledger_files(data: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(data)? {
        let path = entry?.path();
        if name(&path).starts_with("ledger.db") && !name(&path).contains("corrupt") {
            found.push(path);
        }
    }
    ensure!(
        found.iter().any(|path| name(path) == "ledger.db"),
        "no ledger in {found:?}"
    );
    Ok(found)
}

fn name(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

fn delete_ledger(data: &Path) -> Result<()> {
    for path in ledger_files(data)? {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

fn moved_aside(data: &Path) -> Result<usize> {
    let entries = std::fs::read_dir(data)?.collect::<std::io::Result<Vec<_>>>()?;
    Ok(entries
        .iter()
        .filter(|entry| {
            let name = name(&entry.path());
            name.starts_with("ledger.db.corrupt-") && !name.ends_with("-wal") && !name.ends_with("-shm")
        })
        .count())
}

fn totals(world: &World) -> Result<BTreeMap<String, usize>> {
    let writes = world.writes()?;
    Ok(writes
        .into_iter()
        .map(|(member, writes)| (member, writes.total))
        .collect())
}

/// Counts the requests to the members that read single objects: GET of an object, and dry runs.
fn object_reads(world: &World) -> Result<usize> {
    let mut count = 0;
    for member in MEMBERS {
        count += world
            .fleet
            .proxy(member)?
            .requests()
            .iter()
            .filter(|request| request.query.contains("dryRun=All"))
            .count();
    }
    Ok(count)
}

async fn stop(world: &World) -> Result<()> {
    let status = world.supervisor.stop(TIMEOUT).await?;
    ensure!(status.is_some_and(|status| status.success()), "{status:?}");
    Ok(())
}

/// The requests to the members of one round.
#[derive(Debug, PartialEq, Eq)]
struct Cost {
    dry_runs: usize,
    /// Writes by member.
    writes: BTreeMap<String, usize>,
}

/// Stops the program, damages its data folder, starts it, and rolls a commit out. Then every Sync is compared on
/// request, and no member may receive a write. Returns the requests of the rollout.
async fn roll_out_after(world: &mut World, what: &str, damage: impl Fn(&Path) -> Result<()>) -> Result<Cost> {
    stop(world).await?;
    damage(&world.fleet.data_dir()).with_context(|| what.to_owned())?;
    let (before, dry_before) = (totals(world)?, object_reads(world)?);
    world.restart()?;
    world.push_next()?;
    world.settled().await.with_context(|| what.to_owned())?;
    let (after, dry_after) = (totals(world)?, object_reads(world)?);
    let writes = after
        .iter()
        .map(|(member, after)| (member.clone(), after - before[member]));
    let cost = Cost {
        dry_runs: dry_after - dry_before,
        writes: writes.collect(),
    };
    world.reconcile_all(what).await.with_context(|| what.to_owned())?;
    world.settled().await.with_context(|| what.to_owned())?;
    let (compared, dry_compared) = (totals(world)?, object_reads(world)?);
    ensure!(after == compared, "{what}: writes {after:?} became {compared:?}");
    ensure!(dry_compared > dry_after, "{what}: the requests compared nothing");
    Ok(cost)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_old_or_damaged_ledger_or_mirror_causes_no_write_to_a_member_in_step() -> Result<()> {
    let _guard = ONE_AT_A_TIME.lock().await;
    let mut world = World::start().await?;
    world.supervisor.start(&world.fleet)?;
    for _ in 0..2 {
        world.push_next()?;
        world.settled().await?;
    }

    let intact = roll_out_after(&mut world, "nothing-lost", |_| Ok(())).await?;
    ensure!(intact.dry_runs == 0, "with records: {intact:?}");
    // Without records the objects are read, and those in step are not written.
    let compares = |what: &str, cost: &Cost| {
        ensure!(
            cost.dry_runs > 0 && cost.writes == intact.writes,
            "{what}: {cost:?}, and {intact:?} before"
        );
        Ok(())
    };

    let cost = roll_out_after(&mut world, "ledger-deleted", delete_ledger).await?;
    compares("ledger-deleted", &cost)?;

    stop(&world).await?;
    let snapshot: Vec<(PathBuf, Vec<u8>)> = ledger_files(&world.fleet.data_dir())?
        .into_iter()
        .map(|path| Ok((path.clone(), std::fs::read(path)?)))
        .collect::<Result<_>>()?;
    world.restart()?;
    world.push_next()?;
    world.settled().await?;
    let cost = roll_out_after(&mut world, "ledger-put-back", |data| {
        delete_ledger(data)?;
        for (path, bytes) in &snapshot {
            std::fs::write(path, bytes)?;
        }
        Ok(())
    })
    .await?;
    compares("ledger-put-back", &cost)?;

    let cost = roll_out_after(&mut world, "ledger-garbage", |data| {
        for path in ledger_files(data)? {
            std::fs::write(path, b"this is no database".repeat(1_000))?;
        }
        Ok(())
    })
    .await?;
    compares("ledger-garbage", &cost)?;
    let aside = moved_aside(&world.fleet.data_dir())?;
    ensure!(aside == 1, "{aside} ledgers were moved aside");

    roll_out_after(&mut world, "mirror-deleted", |data| {
        Ok(std::fs::remove_dir_all(data.join("git"))?)
    })
    .await?;
    ensure!(
        world.fleet.data_dir().join("git").exists(),
        "the mirror was not fetched again"
    );

    // The whole folder: the program starts as on a new machine.
    roll_out_after(&mut world, "folder-deleted", |data| {
        Ok(std::fs::remove_dir_all(data)?)
    })
    .await?;
    world.check_writes().await?;
    stop(&world).await?;
    world.check_ledger().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_interrupted_attempt_is_closed_and_repeated_and_a_restart_in_step_writes_nothing() -> Result<()> {
    let _guard = ONE_AT_A_TIME.lock().await;
    let mut world = World::start().await?;
    world.supervisor.start(&world.fleet)?;
    world.push_next()?;
    world.settled().await?;

    let round = world.prepare()?;
    let proxy = world.fleet.proxy("m2")?;
    let apply = Match::method(Method::PATCH)
        .path_ends_with("/configmaps/one")
        .times(1);
    let supervisor = world.supervisor.clone();
    let hook = Fault::hook(move |stage, _| {
        if stage == Stage::Before {
            // If the program has already exited, `ended` returns and the attempts show it.
            let _ = supervisor.kill();
        }
    });
    proxy.on(apply.clone(), hook);
    proxy.on(apply, Fault::CutBefore);
    world.push(&round)?;
    world.supervisor.ended("in the middle of an attempt").await?;
    world.clear_faults()?;
    world.restart()?;
    world.settled().await?;

    // In step: this start applies nothing.
    stop(&world).await?;
    let before = totals(&world)?;
    world.restart()?;
    world.reconcile_all("in-step").await?;
    world.settled().await?;
    ensure!(before == totals(&world)?, "a restart in step wrote to a member");
    stop(&world).await?;

    let attempts = world.check_ledger().await?;
    let of_round: Vec<_> = attempts["m2"]
        .iter()
        .filter(|record| record.attempt.revision.ends_with(&round.commit))
        .filter_map(|record| record.end.as_ref().map(|end| end.outcome))
        .collect();
    // The newest first: the requested comparison, the attempt after the start, and the interrupted one, which does not
    // count as a failure of the revision.
    let succeeded = AttemptOutcome::Succeeded;
    ensure!(
        of_round == [succeeded, succeeded, AttemptOutcome::Interrupted],
        "{:#?}",
        attempts["m2"]
    );
    Ok(())
}
