//! `kill -9` at random moments.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use starling_testkit::fleet::PATIENCE;

use crate::TURN;
use crate::world::{CONCURRENCY, World};

/// The longest time from a push to the kill. A push is seen within a second and rolled out in about another one,
/// so kills fall before, into and after the rollout.
const LONGEST: u64 = 1_500;
/// Rounds unless `STARLING_CRASH_ROUNDS` says otherwise.
const ROUNDS: u32 = 20;
/// How many rounds are between two readings of the audit logs, which grow.
const READ_EVERY: u32 = 20;

/// SplitMix64: few lines, and the same numbers from the same seed everywhere.
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
async fn killed_at_random_moments_nothing_is_lost_and_nothing_is_done_twice() -> Result<()> {
    let _turn = TURN.lock().await;
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
        let delay = Duration::from_millis(random.next() % (LONGEST + 1));
        let round = world.push_next()?;
        let what = format!("round {}, killed after {delay:?}, seed {seed}", round.number);
        // The moment is the point: nothing is waited for here.
        tokio::time::sleep(delay).await;
        world.supervisor.kill().with_context(|| what.clone())?;
        if random.next().is_multiple_of(4) {
            // Git does not wait for the program: what was rolling is superseded when it comes back.
            world.push_next()?;
        }
        world.restart()?;
        world.settled().await.with_context(|| what.clone())?;
        if turn % READ_EVERY == 0 {
            world.writes().with_context(|| what.clone())?;
        }
    }

    let writes = world.check_writes().await?;
    let most = world.most_in_flight()?;
    ensure!(
        most == CONCURRENCY,
        "{most} clusters in flight at most: the bound was not tried"
    );
    let status = world.supervisor.stop(PATIENCE).await?;
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
