//! Workers: take a key, pass it to its loop, and requeue it.

use std::collections::{BTreeMap, HashMap};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use jiff::{SignedDuration, Timestamp};
use starling_core::backoff;
use starling_ledger::{Due, QueueKey};
use tokio_util::sync::CancellationToken;

use super::context::{Context, Next};
use super::queues::Loop;
use super::reconcile::{self, ReconcileError};
use super::worker_turns::WorkerTurns;
use crate::controller::object_key::ObjectKey;
use crate::controller::waits;

/// Passes a key to its loop.
async fn reconcile(of: Loop, context: &Context, key: &ObjectKey) -> Result<Next, ReconcileError> {
    // Absence is conclusive only in a complete list, and no worker starts before the lists are complete. No other
    // worker has this key, so no other reconcile of the object runs.
    if !context.objects.contains(of, key) {
        context.caches.forget(of, key);
        return Ok(Next::OnEvent);
    }
    match of {
        Loop::Source => reconcile::source::reconcile(context.of_source(), key).await,
        Loop::Cluster => reconcile::cluster::reconcile(context.of_cluster(), key).await,
        Loop::Sync => Box::pin(reconcile::sync::reconcile(context.of_sync(), key)).await,
        Loop::SyncGroup => reconcile::sync_group::reconcile(context.of_group(), key).await,
    }
}

/// Due times that are not in the ledger yet; `None` if the key waits for no time.
#[derive(Default)]
pub(super) struct Schedule(Mutex<BTreeMap<(Loop, ObjectKey), Option<Timestamp>>>);

impl Schedule {
    fn note(&self, of: Loop, key: &ObjectKey, due: Option<Timestamp>) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert((of, key.clone()), due);
    }

    /// Writes the changes since the last call to the ledger, in one commit.
    pub(super) async fn save(&self, context: &Context) {
        let changed = std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        let (mut set, mut gone) = (Vec::new(), Vec::new());
        for ((of, key), due) in changed {
            let ObjectKey { namespace, name } = key;
            let key = QueueKey {
                kind: of.as_str().to_owned(),
                namespace,
                name,
            };
            match due {
                Some(at) => set.push(Due { key, at }),
                None => gone.push(key),
            }
        }
        if set.is_empty() && gone.is_empty() {
            return;
        }
        let (saved, removed) = tokio::join!(
            context.adapters.ledger.save_due(&set),
            context.adapters.ledger.remove_due(&gone)
        );
        for error in [saved, removed].into_iter().filter_map(Result::err) {
            tracing::warn!(error = %crate::chain(&error), "cannot write the queue to the ledger");
        }
    }
}

/// Consecutive failures by key.
type Failures = Mutex<HashMap<ObjectKey, u32>>;

/// The shared state of the workers of one loop.
pub(super) struct Workers {
    of: Loop,
    context: Arc<Context>,
    schedule: Arc<Schedule>,
    failures: Failures,
    turns: WorkerTurns,
}

impl Workers {
    pub(super) fn new(of: Loop, workers: usize, context: Arc<Context>, schedule: Arc<Schedule>) -> Self {
        Self {
            of,
            context,
            schedule,
            failures: Failures::default(),
            turns: WorkerTurns::new(workers),
        }
    }

    /// Runs one task of the loop until `stop`. The task finishes its current key.
    pub(super) async fn work(self: Arc<Self>, stop: CancellationToken) {
        let queue = self.of.queue(&self.context.queues);
        loop {
            let next = async { Some((self.turns.take().await?, queue.next().await)) };
            let next = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                next = next => next,
            };
            let Some((turn, key)) = next else {
                return;
            };
            // In a box: most tasks are idle, and the future of a reconcile is large.
            let work = Box::pin(self.reconcile(&key));
            let next = self.turns.run(turn, queue, &key, work).await;
            let wait = self.wait(&key, next);
            let due = wait.map(|wait| {
                self.context
                    .now()
                    .saturating_add(SignedDuration::try_from(wait).unwrap_or(SignedDuration::MAX))
                    .unwrap_or(Timestamp::MAX)
            });
            self.schedule.note(self.of, &key, due);
            if let Some(wait) = wait {
                queue.add_after(key.clone(), wait);
            }
            queue.done(&key);
        }
    }

    /// Reconciles an object. A faulty object must end neither the process nor a worker.
    async fn reconcile(&self, key: &ObjectKey) -> Next {
        let kind = self.of.as_str();
        let result = AssertUnwindSafe(reconcile(self.of, &self.context, key))
            .catch_unwind()
            .await;
        match result {
            Ok(Ok(next)) => next,
            Ok(Err(error)) => {
                tracing::warn!(kind, object = %key, error = %crate::chain(&error), "reconcile failed");
                Next::Retry(waits::RECONCILE_RETRY)
            }
            Err(_) => {
                tracing::error!(kind, object = %key, "reconcile panicked; retrying later");
                Next::Retry(waits::RECONCILE_RETRY)
            }
        }
    }

    fn wait(&self, key: &ObjectKey, next: Next) -> Option<Duration> {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        match next {
            Next::Retry(start) => {
                let count = failures.entry(key.clone()).or_insert(0);
                *count = count.saturating_add(1);
                let wait = backoff::delay(start, *count, &key.to_string());
                Some(wait.min(waits::RECONCILE_LONGEST_RETRY.max(start)))
            }
            Next::After(wait) => {
                failures.remove(key);
                Some(wait)
            }
            Next::OnEvent => {
                failures.remove(key);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests;
