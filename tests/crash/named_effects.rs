//! `kill -9` before and after each named effect.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use starling_testkit::fleet::TIMEOUT;
use starling_testkit::{Fault, Stage, wait};

use crate::ONE_AT_A_TIME;
use crate::effects::{EFFECTS, Effect, Trigger};
use crate::world::{CONCURRENCY, Round, World};

/// The member that leaves and joins again.
const LEAVING_MEMBER: &str = "m3";

/// A kill that waits for its request.
struct Armed {
    what: String,
    /// Whether this kill ended the process.
    killed_here: Arc<AtomicBool>,
}

/// Kills the program at `stage` of the effect's first request. Before: the server never receives the request. After:
/// the program never receives the response.
fn arm(world: &World, effect: &Effect, stage: Stage, round: &Round) -> Result<Armed> {
    let killed_here = Arc::new(AtomicBool::new(false));
    let (supervisor, killed) = (world.supervisor.clone(), Arc::clone(&killed_here));
    let proxy = world.fleet.proxy(effect.server)?;
    let first = (effect.request)(round);
    let hook = Fault::hook(move |now, _| {
        if now == stage && !killed.load(Ordering::SeqCst) && supervisor.kill().is_ok() {
            killed.store(true, Ordering::SeqCst);
        }
    });
    proxy.on(first.clone(), hook);
    if stage == Stage::Before {
        // Rules apply in order: the program is already dead, and its pending requests are not delivered.
        proxy.on(first, Fault::CutBefore);
    }
    Ok(Armed {
        what: format!("{}, {stage:?}", effect.name),
        killed_here,
    })
}

impl Armed {
    /// Waits until the program is killed, and removes the rule.
    async fn killed(self, world: &World) -> Result<()> {
        let Self { what, killed_here } = self;
        world.supervisor.ended(&what).await?;
        let log = world.supervisor.process()?.log_tail(40)?;
        // The hook records the kill a moment later.
        wait::until(
            Duration::from_secs(5),
            format!("{what}: the cause of death"),
            async || {
                killed_here
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

fn of(trigger: Trigger) -> impl Iterator<Item = (&'static Effect, Stage)> {
    static ALL: [Effect; EFFECTS.len()] = EFFECTS;
    ALL.iter()
        .filter(move |effect| effect.trigger == trigger)
        .flat_map(|effect| [Stage::Before, Stage::After].map(|stage| (effect, stage)))
}

#[tokio::test(flavor = "multi_thread")]
async fn kills_before_and_after_each_effect_lose_nothing_and_repeat_nothing() -> Result<()> {
    let _guard = ONE_AT_A_TIME.lock().await;
    let mut world = World::start().await?;
    let mut kills = 0;
    let begun = Instant::now();

    let round = world.prepare()?;
    world.push(&round)?;
    for (effect, stage) in of(Trigger::FirstRound) {
        let armed = arm(&world, effect, stage, &round)?;
        world.supervisor.start(&world.fleet)?;
        armed.killed(&world).await?;
        kills += 1;
    }
    world.restart()?;
    world.settled().await.context("the first round")?;

    for (effect, stage) in of(Trigger::Push) {
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

    // The last kill must not be repaired by the next round, so that is a separate round.
    world.push_next()?;
    world.settled().await.context("a round without a kill")?;
    let pairs = of(Trigger::Leave).zip(of(Trigger::Join));
    for ((leaving, stage), (joining, _)) in pairs {
        let round = world.round().clone();
        let armed = arm(&world, leaving, stage, &round)?;
        world.leave(LEAVING_MEMBER).await?;
        armed.kill_and_restart(&world).await?;
        world.settled().await.context(leaving.name)?;
        let armed = arm(&world, joining, stage, &round)?;
        world.join(LEAVING_MEMBER).await?;
        armed.kill_and_restart(&world).await?;
        world.settled().await.context(joining.name)?;
        kills += 2;
    }

    let writes = world.check_writes().await?;
    ensure!(kills == 2 * EFFECTS.len(), "{kills} kills");
    let max_in_flight = world.most_in_flight()?;
    ensure!(
        max_in_flight == CONCURRENCY,
        "{max_in_flight} clusters in flight at most: the limit was not reached"
    );
    let status = world.supervisor.stop(TIMEOUT).await?;
    ensure!(status.is_some_and(|status| status.success()), "{status:?}");
    world.check_ledger().await?;
    eprintln!("{kills} kills in {:?}; {writes:?}", begun.elapsed());
    Ok(())
}
