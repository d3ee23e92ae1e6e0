//! One watch per kind: it feeds the cache, and what changed wakes who depends on it.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::Api;
use kube::core::DeserializeGuard;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, watcher};
use tokio_util::sync::CancellationToken;

use super::cache::{Cache, Change};
use super::hub::{Hub, Kind};

/// Follows all objects of one kind until `stop`, in one namespace or in all.
///
/// The list is a consistent read (kube's default): a controller that was killed right after an admission must
/// not start from a list that lacks it.
pub(super) async fn follow<K>(
    hub: Hub,
    namespace: Option<String>,
    cache: Arc<Cache<K>>,
    on_change: impl Fn(Change<K>),
    stop: CancellationToken,
) where
    K: Kind + Send + Sync + 'static,
{
    let api: Api<DeserializeGuard<K>> = match &namespace {
        Some(namespace) => Api::namespaced(hub.client(), namespace),
        None => Api::all(hub.client()),
    };
    let kind = K::kind(&());
    // A watch error is not worth ending anything for; the backoff keeps an API server that is away from being
    // asked in a loop.
    let events = watcher(api, watcher::Config::default())
        .default_backoff()
        .take_until(stop.cancelled_owned());
    tokio::pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => cache.observe_event(event).into_iter().for_each(&on_change),
            Err(error) => {
                tracing::warn!(kind = %kind, error = %crate::chain(&error), "watch interrupted");
                // default_backoff delays the next try; this only keeps the loop from spinning should it not.
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    }
}
