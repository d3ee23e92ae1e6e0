//! `kill -9` before and after each named effect.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use starling_testkit::fleet::PATIENCE;
use starling_testkit::{Fault, Stage, wait};

use crate::TURN;
use crate::effects::{EFFECTS, Effect, Occasion};
use crate::world::{CONCURRENCY, Round, World};

/// The member that leaves and comes back.
const GUEST: &str = "m3";

/// A kill that waits for its request.
struct Armed {
    what: String,
    /// Whether the process died by this kill.
    struck: Arc<AtomicBool>,
}

/// Kills the program at `stage` of the effect's first request. Before: the server never sees the request. After:
/// the program never sees the answer.
fn arm(world: &World, effect: &Effect, stage: Stage, round: &Round) -> Result<Armed> {
    let struck = Arc::new(AtomicBool::new(false));
    let (supervisor, strikes) = (world.supervisor.clone(), Arc::clone(&struck));
    let proxy = world.fleet.proxy(effect.server)?;
    let first = (effect.request)(round);
    let hook = Fault::hook(move |now, _| {
        if now == stage && !strikes.load(Ordering::SeqCst) && supervisor.kill().is_ok() {
            strikes.store(true, Ordering::SeqCst);
        }
    });
    proxy.on(first.clone(), hook);
    if stage == Stage::Before {
        // Rules strike in their order: by now the program is dead, and its last words are not delivered.
        proxy.on(first, Fault::CutBefore);
    }
    Ok(Armed {
        what: format!("{}, {stage:?}", effect.name),
        struck,
    })
}

impl Armed {
    /// Waits for the death of the program, and puts the kill away.
    async fn killed(self, world: &World) -> Result<()> {
        let Self { what, struck } = self;
        world.supervisor.ended(&what).await?;
        let log = world.supervisor.process()?.log_tail(40)?;
        // The hook notes the kill a moment after it.
        wait::until(
            Duration::from_secs(5),
            format!("{what}: the cause of death"),
            async || {
                struck
                    .load(Ordering::SeqCst)
                    .then_some(())
                    .ok_or_else(|| log.clone())
            },
        )
        .await?;
        world.clear_faults()
    }

    async fn kill_and_restart(self, world: &World) -> Result<()> {
        self.killed(world).await?;
        world.restart()
    }
}

fn of(occasion: Occasion) -> impl Iterator<Item = (&'static Effect, Stage)> {
    static ALL: [Effect; EFFECTS.len()] = EFFECTS;
    ALL.iter()
        .filter(move |effect| effect.occasion == occasion)
        .flat_map(|effect| [Stage::Before, Stage::After].map(|stage| (effect, stage)))
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_before_and_after_each_named_effect_nothing_is_lost_and_nothing_is_done_twice() -> Result<()> {
    let _turn = TURN.lock().await;
    let mut world = World::start().await?;
    let mut kills = 0;
    let begun = Instant::now();

    let round = world.prepare()?;
    world.push(&round)?;
    for (effect, stage) in of(Occasion::FirstRound) {
        let armed = arm(&world, effect, stage, &round)?;
        world.supervisor.start(&world.fleet)?;
        armed.killed(&world).await?;
        kills += 1;
    }
    world.restart()?;
    world.settled().await.context("the first round")?;

    for (effect, stage) in of(Occasion::Push) {
        let round = world.prepare()?;
        let armed = arm(&world, effect, stage, &round)?;
        world.push(&round)?;
        let what = armed.what.clone();
        let since = Instant::now();
        armed.kill_and_restart(&world).await?;
        world.settled().await.with_context(|| what.clone())?;
        world.writes().with_context(|| what.clone())?;
        eprintln!(
            "round {}: killed at {what}; in step after {:?}",
            round.number,
            since.elapsed()
        );
        kills += 1;
    }

    // The last kill must not be put right by what follows, so what follows has a round of its own.
    world.push_next()?;
    world.settled().await.context("a round without a kill")?;
    let pairs = of(Occasion::Leave).zip(of(Occasion::Join));
    for ((leaving, stage), (joining, _)) in pairs {
        let round = world.round().clone();
        let armed = arm(&world, leaving, stage, &round)?;
        world.leave(GUEST).await?;
        armed.kill_and_restart(&world).await?;
        world.settled().await.context(leaving.name)?;
        let armed = arm(&world, joining, stage, &round)?;
        world.join(GUEST).await?;
        armed.kill_and_restart(&world).await?;
        world.settled().await.context(joining.name)?;
        kills += 2;
    }

    let writes = world.check_writes().await?;
    ensure!(kills == 2 * EFFECTS.len(), "{kills} kills");
    let most = world.most_in_flight()?;
    ensure!(
        most == CONCURRENCY,
        "{most} clusters in flight at most: the bound was not tried"
    );
    let status = world.supervisor.stop(PATIENCE).await?;
    ensure!(status.is_some_and(|status| status.success()), "{status:?}");
    world.check_ledger().await?;
    eprintln!("{kills} kills in {:?}; {writes:?}", begun.elapsed());
    Ok(())
}
