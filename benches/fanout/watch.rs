//! A watch on the management cluster that reports when objects reach a state.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::StreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, ResourceExt};
use starling_testkit::fleet::Kind;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Maximum time of a watch.
const TIMEOUT: Duration = Duration::from_secs(300);

/// A watch that waits for a number of objects to satisfy a predicate.
pub(crate) struct Watch {
    what: String,
    task: JoinHandle<Result<Instant>>,
}

impl Watch {
    /// Starts the watch and returns once it is open, so that it misses no later change.
    pub(crate) async fn begin<K>(
        what: &str,
        api: Api<K>,
        count: usize,
        satisfied: impl Fn(&K) -> bool + Send + 'static,
    ) -> Result<Self>
    where
        K: Kind + Send + 'static,
    {
        let (open, opened) = oneshot::channel();
        let task = tokio::spawn(async move {
            let mut events = watcher::watcher(api, watcher::Config::default()).boxed();
            let (mut found, mut open) = (BTreeSet::new(), Some(open));
            while let Some(event) = events.next().await {
                match event? {
                    Event::Apply(object) | Event::InitApply(object) if satisfied(&object) => {
                        found.insert(object.name_any());
                        if found.len() == count {
                            return Ok(Instant::now());
                        }
                    }
                    Event::InitDone => {
                        if let Some(open) = open.take() {
                            // The receiver may be gone.
                            let _ = open.send(());
                        }
                    }
                    _ => {}
                }
            }
            anyhow::bail!("the watch ended")
        });
        opened
            .await
            .with_context(|| format!("open the watch for {what}"))?;
        Ok(Self {
            what: what.to_owned(),
            task,
        })
    }

    /// Waits for the time at which the last of the objects satisfied the predicate.
    pub(crate) async fn time(self) -> Result<Instant> {
        tokio::time::timeout(TIMEOUT, self.task)
            .await
            .with_context(|| format!("waited {TIMEOUT:?} for {}", self.what))??
    }
}
