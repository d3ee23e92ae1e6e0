//! The turns of the workers of a loop: who waits for long gives its turn back.
//!
//! A reconcile may wait for minutes for something that it cannot hasten: a definition that is not established, an
//! object that hangs on its finalizer, a git server that drips. The lanes of the work queue bound how many keys of one
//! cluster do so. Twenty clusters with a Sync each would still hold all workers.

use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

use super::object_key::ObjectKey;
use super::workqueue::Workqueue;

/// The time after which a reconcile gives its turn back. Most attempts take less than a second; those that take longer
/// wait, since the limits of a member let no attempt compute for long.
const GIVEN_BACK_AFTER: Duration = Duration::from_secs(10);
/// How many reconciles may go on without a turn, for each worker. Beyond that, they keep their turns, and the lanes
/// keep their limits: the number of attempts at a time, and the memory that they need, stays bounded.
const WITHOUT_TURN: usize = 4;

/// The turns of a loop.
#[derive(Debug)]
pub(super) struct WorkerTurns {
    turns: Semaphore,
    without_turn: Semaphore,
}

impl WorkerTurns {
    /// Creates one turn for each worker.
    pub(super) fn new(workers: usize) -> Self {
        Self {
            turns: Semaphore::new(workers),
            without_turn: Semaphore::new(workers * WITHOUT_TURN),
        }
    }

    /// Returns the number of tasks for a number of workers: a task that has given its turn back still runs.
    pub(super) fn tasks(workers: usize) -> usize {
        workers * (1 + WITHOUT_TURN)
    }

    /// Waits for a turn. `None`: there are none any more.
    pub(super) async fn take(&self) -> Option<SemaphorePermit<'_>> {
        self.turns.acquire().await.ok()
    }

    /// Does the work on a key with a turn, which is given back if the work takes long.
    pub(super) async fn run<T>(
        &self,
        turn: SemaphorePermit<'_>,
        queue: &Workqueue,
        key: &ObjectKey,
        work: impl Future<Output = T>,
    ) -> T {
        tokio::pin!(work);
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = tokio::time::sleep(GIVEN_BACK_AFTER) => {}
        }
        let Ok(_place) = self.without_turn.try_acquire() else {
            return work.await;
        };
        queue.give_back(key);
        drop(turn);
        work.await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::time::Instant;

    use super::super::shares::Limits;
    use super::super::workqueue::LaneRules;
    use super::*;

    const LONG: Duration = Duration::from_secs(300);

    /// Runs a loop of two workers over keys of one lane each, of which those that begin with `slow` take long. Returns
    /// when each of the others was done.
    async fn run(keys: &[String]) -> Vec<(String, Duration)> {
        let workers = 2;
        let queue = Workqueue::with_lanes(LaneRules {
            lane_of: Box::new(|key| Some(key.clone())),
            is_suspect: Box::new(|_| false),
            of_namespace: Box::new(move || workers),
            limits: Limits {
                lane: 1,
                suspects: workers,
            },
        });
        for name in keys {
            queue.add(ObjectKey::new("ns", name));
        }
        let (queue, turns) = (Arc::new(queue), Arc::new(WorkerTurns::new(workers)));
        let (sender, mut done) = tokio::sync::mpsc::unbounded_channel();
        let start = Instant::now();
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..WorkerTurns::tasks(workers) {
            let (queue, turns, sender) = (queue.clone(), turns.clone(), sender.clone());
            tasks.spawn(async move {
                while let Some(turn) = turns.take().await {
                    let key = queue.next().await;
                    let is_slow = key.name.starts_with("slow");
                    let work = tokio::time::sleep(if is_slow { LONG } else { Duration::ZERO });
                    turns.run(turn, &queue, &key, work).await;
                    if !is_slow {
                        sender.send((key.name.clone(), start.elapsed())).unwrap();
                    }
                    queue.done(&key);
                }
            });
        }
        let healthy = keys.iter().filter(|name| !name.starts_with("slow")).count();
        let mut ended = Vec::new();
        while ended.len() < healthy {
            ended.extend(done.recv().await);
        }
        ended
    }

    /// Guards against twenty clusters with a definition that is never established, which hold all workers.
    #[tokio::test(start_paused = true)]
    async fn tenant_who_waits_inside_an_attempt_gives_its_worker_back() {
        let keys = ["slow-1", "slow-2", "slow-3", "slow-4", "healthy"].map(str::to_owned);
        let ended = run(&keys).await;
        assert!(ended[0].1 <= 3 * GIVEN_BACK_AFTER, "{ended:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn the_number_of_attempts_without_a_turn_is_bounded() {
        let slow = (0..2 * (1 + WITHOUT_TURN)).map(|n| format!("slow-{n}"));
        let keys: Vec<String> = slow.chain(["healthy".to_owned()]).collect();
        let ended = run(&keys).await;
        assert!(ended[0].1 >= LONG, "all turns and places are taken: {ended:?}");
    }
}
