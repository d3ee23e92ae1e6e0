//! What is on the program's disk is lost while it is down: that costs time and history, and no write to a member
//! that is in step.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use http::Method;
use starling::ledger::AttemptOutcome;
use starling_testkit::fleet::PATIENCE;
use starling_testkit::{Fault, Match, Stage};

use crate::TURN;
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

/// Requests to the members that only a look at single objects makes: GET of an object, and dry runs.
fn looked_at(world: &World) -> Result<usize> {
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
    let status = world.supervisor.stop(PATIENCE).await?;
    ensure!(status.is_some_and(|status| status.success()), "{status:?}");
    Ok(())
}

/// Stops the program, does something to its data folder, starts it, and has every Sync looked at: no member may
/// see a write. Then a commit rolls as ever. Returns how many dry runs the looks took.
async fn without_a_write(
    world: &mut World,
    what: &str,
    damage: impl Fn(&Path) -> Result<()>,
) -> Result<usize> {
    stop(world).await?;
    damage(&world.fleet.data_dir()).with_context(|| what.to_owned())?;
    let (before, dry_before) = (totals(world)?, looked_at(world)?);
    world.restart()?;
    world.look_at_all(what).await.with_context(|| what.to_owned())?;
    world.settled().await.with_context(|| what.to_owned())?;
    let (after, dry_after) = (totals(world)?, looked_at(world)?);
    ensure!(before == after, "{what}: writes {before:?} became {after:?}");
    world.push_next()?;
    world
        .settled()
        .await
        .with_context(|| format!("{what}: the round after it"))?;
    Ok(dry_after - dry_before)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_or_damaged_ledger_or_mirror_costs_no_write_to_a_member_in_step() -> Result<()> {
    let _turn = TURN.lock().await;
    let mut world = World::start().await?;
    world.supervisor.start(&world.fleet)?;
    for _ in 0..2 {
        world.push_next()?;
        world.settled().await?;
    }

    let dry = without_a_write(&mut world, "nothing-lost", |_| Ok(())).await?;
    ensure!(
        dry == 0,
        "with its records at hand the program made {dry} dry runs"
    );

    let dry = without_a_write(&mut world, "ledger-deleted", |data| {
        for path in ledger_files(data)? {
            std::fs::remove_file(path)?;
        }
        Ok(())
    })
    .await?;
    ensure!(dry > 0, "without records nobody asked the members what they hold");

    let dry = without_a_write(&mut world, "ledger-garbage", |data| {
        for path in ledger_files(data)? {
            std::fs::write(path, b"this is no database".repeat(1_000))?;
        }
        Ok(())
    })
    .await?;
    ensure!(dry > 0, "without records nobody asked the members what they hold");
    let aside = moved_aside(&world.fleet.data_dir())?;
    ensure!(aside == 1, "{aside} ledgers were moved aside");

    without_a_write(&mut world, "mirror-deleted", |data| {
        Ok(std::fs::remove_dir_all(data.join("git"))?)
    })
    .await?;
    ensure!(
        world.fleet.data_dir().join("git").exists(),
        "the mirror was not fetched again"
    );

    // All of it at once: the program starts as on a new machine.
    without_a_write(&mut world, "folder-deleted", |data| {
        Ok(std::fs::remove_dir_all(data)?)
    })
    .await?;
    world.check_writes().await?;
    stop(&world).await?;
    world.check_ledger().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_that_was_cut_off_is_closed_and_made_again_and_a_restart_in_step_writes_nothing()
-> Result<()> {
    let _turn = TURN.lock().await;
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
            // Should the program have ended before, `ended` returns and the attempts tell.
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

    // In step: this start has nothing to do.
    stop(&world).await?;
    let before = totals(&world)?;
    world.restart()?;
    world.look_at_all("in-step").await?;
    world.settled().await?;
    ensure!(before == totals(&world)?, "a restart in step wrote to a member");
    stop(&world).await?;

    let attempts = world.check_ledger().await?;
    let of_round: Vec<_> = attempts["m2"]
        .iter()
        .filter(|record| record.attempt.revision.ends_with(&round.commit))
        .filter_map(|record| record.end.as_ref().map(|end| end.outcome))
        .collect();
    // The newest first. What was cut off does not count as a failure of the revision.
    ensure!(
        of_round == [AttemptOutcome::Succeeded, AttemptOutcome::Interrupted],
        "{:#?}",
        attempts["m2"]
    );
    Ok(())
}
