//! Workers: take a key, hand it to its loop, note when it wants to be looked at again.

use std::collections::{BTreeMap, HashMap};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::FutureExt;
use jiff::{SignedDuration, Timestamp};
use starling_core::backoff;
use tokio_util::sync::CancellationToken;

use super::cache::ObjectKey;
use super::context::{Context, Next};
use super::reconcile::{self, ReconcileError};
use super::workqueue::Workqueue;
use crate::ledger::{Due, QueueKey};

/// Wait after a reconcile that could not even report, or that panicked; doubles.
const RETRY: Duration = Duration::from_secs(1);

/// The four kinds, as the ledger names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Loop {
    Source,
    Cluster,
    Sync,
    SyncGroup,
}

impl Loop {
    pub(super) const ALL: [Self; 4] = [Self::Source, Self::Cluster, Self::Sync, Self::SyncGroup];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Source => "Source",
            Self::Cluster => "Cluster",
            Self::Sync => "Sync",
            Self::SyncGroup => "SyncGroup",
        }
    }

    pub(super) fn queue(self, context: &Context) -> &Workqueue {
        match self {
            Self::Source => &context.queues.sources,
            Self::Cluster => &context.queues.clusters,
            Self::Sync => &context.queues.syncs,
            Self::SyncGroup => &context.queues.groups,
        }
    }

    async fn reconcile(self, context: &Context, key: &ObjectKey) -> Result<Next, ReconcileError> {
        match self {
            Self::Source => reconcile::source::reconcile(context, key).await,
            Self::Cluster => reconcile::cluster::reconcile(context, key).await,
            Self::Sync => reconcile::sync::reconcile(context, key).await,
            Self::SyncGroup => reconcile::sync_group::reconcile(context, key).await,
        }
    }
}

/// Times that the ledger does not know yet; a `None` is a key that waits for no time.
#[derive(Default)]
pub(super) struct Schedule(Mutex<BTreeMap<(Loop, ObjectKey), Option<Timestamp>>>);

impl Schedule {
    fn note(&self, of: Loop, key: &ObjectKey, due: Option<Timestamp>) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert((of, key.clone()), due);
    }

    /// Writes what changed since the last call into the ledger, in one commit.
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
        let (saved, removed) = tokio::join!(context.ledger.save_due(&set), context.ledger.remove_due(&gone));
        for error in [saved, removed].into_iter().filter_map(Result::err) {
            tracing::warn!(error = %crate::chain(&error), "the queue was not written to the ledger");
        }
    }
}

/// Failures in a row, by key.
type Failures = Mutex<HashMap<ObjectKey, u32>>;

/// What the workers of one loop share.
pub(super) struct Crew {
    of: Loop,
    context: Arc<Context>,
    schedule: Arc<Schedule>,
    failures: Failures,
}

impl Crew {
    pub(super) fn new(of: Loop, context: Arc<Context>, schedule: Arc<Schedule>) -> Self {
        Self {
            of,
            context,
            schedule,
            failures: Failures::default(),
        }
    }

    /// One worker, until `stop`; what it has begun it finishes.
    pub(super) async fn work(self: Arc<Self>, stop: CancellationToken) {
        let queue = self.of.queue(&self.context);
        loop {
            let key = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                key = queue.next() => key,
            };
            let next = self.look(&key).await;
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

    /// One bad object must not end the process, nor a worker.
    async fn look(&self, key: &ObjectKey) -> Next {
        let kind = self.of.as_str();
        let looked = AssertUnwindSafe(self.of.reconcile(&self.context, key))
            .catch_unwind()
            .await;
        match looked {
            Ok(Ok(next)) => next,
            Ok(Err(error)) => {
                tracing::warn!(kind, object = %key, error = %crate::chain(&error), "reconcile failed");
                Next::Retry(RETRY)
            }
            Err(_) => {
                tracing::error!(kind, object = %key, "reconcile panicked; this object is tried again later");
                Next::Retry(RETRY)
            }
        }
    }

    fn wait(&self, key: &ObjectKey, next: Next) -> Option<Duration> {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        match next {
            Next::Retry(start) => {
                let count = failures.entry(key.clone()).or_insert(0);
                *count = count.saturating_add(1);
                // A minute at most: this is about what is wrong around an object, not about its own backoff.
                let wait = backoff::delay(start, *count, &key.to_string());
                Some(wait.min(Duration::from_secs(60).max(start)))
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
