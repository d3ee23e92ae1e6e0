//! `kill -9` at random moments.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use starling_testkit::fleet::TIMEOUT;

use crate::ONE_AT_A_TIME;
use crate::world::{CONCURRENCY, World};

/// The maximum time from a push to the kill. A push is detected within a second and rolled out in about another one, so
/// kills occur before, during and after the rollout.
const MAX_DELAY: u64 = 1_500;
/// Rounds unless `STARLING_CRASH_ROUNDS` says otherwise.
const ROUNDS: u32 = 20;
/// The number of rounds between two checks of the audit logs, which grow.
const READ_EVERY: u32 = 20;

/// SplitMix64: short, and deterministic on every platform.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

fn setting<T: std::str::FromStr>(name: &str) -> Result<Option<T>>
where
    T::Err: std::error::Error + Send + Sync + 'static,
{
    match std::env::var(name) {
        Ok(text) => Ok(Some(text.parse().with_context(|| format!("{name}={text}"))?)),
        Err(_) => Ok(None),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn random_kills_lose_nothing_and_repeat_nothing() -> Result<()> {
    let _guard = ONE_AT_A_TIME.lock().await;
    let seed = match setting("STARLING_CRASH_SEED")? {
        Some(seed) => seed,
        None => u64::try_from(jiff::Timestamp::now().as_microsecond())?,
    };
    let rounds = setting("STARLING_CRASH_ROUNDS")?.unwrap_or(ROUNDS);
    eprintln!("STARLING_CRASH_SEED={seed} STARLING_CRASH_ROUNDS={rounds}");
    let mut random = Random(seed);
    let begun = Instant::now();

    let mut world = World::start().await?;
    world.supervisor.start(&world.fleet)?;
    world.push_next()?;
    world.settled().await.context("the first round")?;
    for turn in 1..=rounds {
        let delay = Duration::from_millis(random.next() % (MAX_DELAY + 1));
        let round = world.push_next()?;
        let what = format!("round {}, killed after {delay:?}, seed {seed}", round.number);
        // The time of the kill is random, so this does not wait for a condition.
        tokio::time::sleep(delay).await;
        world.supervisor.kill().with_context(|| what.clone())?;
        if random.next().is_multiple_of(4) {
            // A push while the program is down: the rollout is superseded after the restart.
            world.push_next()?;
        }
        world.restart()?;
        if let Err(error) = world.settled().await {
            let log = world.supervisor.process()?.log_tail(80)?;
            return Err(error.context(format!("{what}\n{log}")));
        }
        if turn % READ_EVERY == 0 {
            world.writes().with_context(|| what.clone())?;
        }
    }

    let writes = world.check_writes().await?;
    let max_in_flight = world.most_in_flight()?;
    ensure!(
        max_in_flight == CONCURRENCY,
        "{max_in_flight} clusters in flight at most: the limit was not reached"
    );
    let status = world.supervisor.stop(TIMEOUT).await?;
    ensure!(status.is_some_and(|status| status.success()), "{status:?}");
    world.check_ledger().await?;
    let repeated: usize = writes.values().map(|writes| writes.repeated).sum();
    let changing: usize = writes.values().map(|writes| writes.changing).sum();
    eprintln!(
        "{rounds} kills in {:?}: {changing} writes changed something, {repeated} were repeated and changed nothing",
        begun.elapsed()
    );
    Ok(())
}
