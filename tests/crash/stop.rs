//! SIGTERM, and the health endpoints meanwhile.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use http::Method;
use starling_controlplane::free_port;
use starling_ledger::AttemptOutcome;
use starling_testkit::fleet::{MANAGEMENT, TIMEOUT};
use starling_testkit::{Fault, Match, page, program, wait};

use crate::ONE_AT_A_TIME;
use crate::world::{CONCURRENCY, MEMBERS, World};

/// The maximum duration of a stop: the grace period of the program is 20 s.
const GRACE: Duration = Duration::from_secs(25);

async fn until_status(address: &str, path: &str, code: u16) -> Result<()> {
    wait::until(
        TIMEOUT,
        format!("{path} answers {code}"),
        async || match page::get(address, path).await {
            Ok((found, _)) if found == code => Ok(()),
            Ok((found, body)) => Err(format!("status {found}: {body}")),
            Err(error) => Err(format!("{error:#}")),
        },
    )
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_without_a_management_cluster_is_healthy_but_not_ready_and_stops_on_sigterm() -> Result<()> {
    let _guard = ONE_AT_A_TIME.lock().await;
    let world = World::start().await?;
    let hub = world.fleet.proxy(MANAGEMENT)?;
    let address = format!("127.0.0.1:{}", free_port()?);

    hub.black_hole(true);
    world
        .supervisor
        .adopt(world.fleet.controller_at(program(), &address, &[])?)?;
    until_status(&address, "/healthz", 200).await?;
    until_status(&address, "/readyz", 503).await?;
    let status = world.supervisor.stop(GRACE).await?;
    ensure!(
        status.is_some_and(|status| status.success()),
        "stopped while it started: {status:?}"
    );

    world
        .supervisor
        .adopt(world.fleet.controller_at(program(), &address, &[])?)?;
    until_status(&address, "/readyz", 503).await?;
    hub.black_hole(false);
    until_status(&address, "/readyz", 200).await?;
    until_status(&address, "/healthz", 200).await?;
    let status = world.supervisor.stop(GRACE).await?;
    ensure!(status.is_some_and(|status| status.success()), "{status:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stop_during_an_apply_finishes_running_attempts_and_starts_none() -> Result<()> {
    let _guard = ONE_AT_A_TIME.lock().await;
    let mut world = World::start().await?;
    let address = format!("127.0.0.1:{}", free_port()?);
    world
        .supervisor
        .adopt(world.fleet.controller_at(program(), &address, &[])?)?;
    world.push_next()?;
    world.settled().await?;

    // Slow members: the stop is during two attempts, and the third cluster is still waiting.
    let applies = || Match::method(Method::PATCH).path_contains("/namespaces/default/");
    let slow: Vec<_> = MEMBERS
        .iter()
        .map(|member| {
            let latency = Fault::Latency(Duration::from_millis(600));
            Ok(world.fleet.proxy(member)?.on(applies(), latency))
        })
        .collect::<Result<_>>()?;
    let round = world.push_next()?;
    wait::until(TIMEOUT, "applies on two members", async || {
        let begun = slow.iter().filter(|rule| rule.fired() > 0).count();
        if begun == CONCURRENCY {
            Ok(())
        } else {
            Err(format!("{begun}"))
        }
    })
    .await?;
    let process = world.supervisor.process()?;
    let stop_sent = Instant::now();
    process.terminate()?;
    until_status(&address, "/readyz", 503).await?;
    until_status(&address, "/healthz", 200).await?;
    ensure!(
        process.exit_status()?.is_none(),
        "it did not wait for the running attempts"
    );
    let status = process.wait(GRACE).await?;
    ensure!(status.success(), "{status:?}");
    eprintln!("stopped {:?} after SIGTERM", stop_sent.elapsed());
    world.clear_faults()?;

    let attempts = world.read_attempts().await?;
    let done: Vec<_> = attempts
        .values()
        .flatten()
        .filter(|record| record.attempt.revision.ends_with(&round.commit))
        .map(|record| record.end.as_ref().map(|end| end.outcome))
        .collect();
    ensure!(
        done == [Some(AttemptOutcome::Succeeded); CONCURRENCY],
        "attempts at the round that was stopped: {done:?}"
    );

    world.restart()?;
    world.settled().await?;
    let writes = world.check_writes().await?;
    let repeated: usize = writes.values().map(|writes| writes.repeated).sum();
    ensure!(
        repeated == 0,
        "after a clean stop {repeated} writes were repeated"
    );
    Ok(())
}
