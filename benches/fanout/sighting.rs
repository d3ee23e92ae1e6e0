//! When something was first seen to be so on the management cluster.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::StreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, ResourceExt};
use starling_testkit::fleet::Kind;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// How long is waited.
const TIMEOUT: Duration = Duration::from_secs(300);

/// A watch that waits for a number of objects to satisfy a predicate.
pub(crate) struct Sighting {
    what: String,
    task: JoinHandle<Result<Instant>>,
}

impl Sighting {
    /// Begins to watch, and returns once the watch is open: what happens from here on is seen.
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
            let (mut seen, mut open) = (BTreeSet::new(), Some(open));
            while let Some(event) = events.next().await {
                match event? {
                    Event::Apply(object) | Event::InitApply(object) if satisfied(&object) => {
                        seen.insert(object.name_any());
                        if seen.len() == count {
                            return Ok(Instant::now());
                        }
                    }
                    Event::InitDone => {
                        if let Some(open) = open.take() {
                            // Nobody may be waiting any more; then nobody is told.
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

    /// When the last one of the objects was seen to satisfy the predicate.
    pub(crate) async fn time(self) -> Result<Instant> {
        tokio::time::timeout(TIMEOUT, self.task)
            .await
            .with_context(|| format!("waited {TIMEOUT:?} for {}", self.what))??
    }
}
