//! Watches: one for each kind. A watch updates the cache of its kind and reports the changes.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::Api;
use kube::core::DeserializeGuard;
use kube::runtime::WatchStreamExt;
use kube::runtime::utils::{Backoff, ResetTimerBackoff};
use kube::runtime::watcher::{self, watcher};
use starling_core::backoff;
use tokio_util::sync::CancellationToken;

use super::cache::{Cache, Change, SecondaryIndex};
use super::hub::{Hub, Kind};
use crate::controller::waits;

/// The backoff of a watch after consecutive failures.
struct WatchBackoff {
    kind: String,
    failures: u32,
}

impl WatchBackoff {
    fn of(kind: &str) -> Self {
        Self {
            kind: kind.to_owned(),
            failures: 0,
        }
    }
}

impl Iterator for WatchBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        self.failures = self.failures.saturating_add(1);
        Some(backoff::delay(waits::WATCH_RETRY, self.failures, &self.kind).min(waits::WATCH_LONGEST_RETRY))
    }
}

impl Backoff for WatchBackoff {
    fn reset(&mut self) {
        self.failures = 0;
    }
}

/// Watches all objects of one kind until `stop`, in one namespace or in all.
///
/// The list is a consistent read (kube's default): a controller that was killed right after an admission must not start
/// from a list without it.
pub(super) async fn follow<K, B>(
    hub: Hub,
    namespace: Option<String>,
    cache: Arc<Cache<K, B>>,
    on_change: impl Fn(Change<K>),
    stop: CancellationToken,
) where
    K: Kind + Send + Sync + 'static,
    B: SecondaryIndex<K>,
{
    let api: Api<DeserializeGuard<K>> = match &namespace {
        Some(namespace) => Api::namespaced(hub.client(), namespace),
        None => Api::all(hub.client()),
    };
    let kind = K::kind(&());
    // An error of a watch ends nothing. The backoff prevents requests in a loop while the API server is not available.
    let events = watcher(api, watcher::Config::default())
        .backoff(ResetTimerBackoff::new(
            WatchBackoff::of(&kind),
            waits::WATCH_STEADY,
        ))
        .take_until(stop.cancelled_owned());
    tokio::pin!(events);
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                // The first list enqueues no keys: a start enqueues all objects, spread over time. The cache counts as
                // complete before its changes are reported, so `on_change` does not handle the start.
                let is_news = cache.is_synced();
                let changes = cache.observe_event(event);
                if is_news {
                    changes.into_iter().for_each(&on_change);
                }
            }
            Err(error) => {
                tracing::warn!(kind = %kind, error = %crate::chain(&error), "watch interrupted");
                tokio::time::sleep(waits::WATCH_LEAST_RETRY).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
    use kube::api::{Patch, PatchParams, PostParams};
    use kube::config::{KubeConfigOptions, Kubeconfig};
    use kube::runtime::wait::{await_condition, conditions::is_crd_established};
    use kube::{Client, CustomResourceExt, ResourceExt};
    use serde_json::json;
    use starling_api::Source;
    use starling_apiserver::server::{Options, Server};
    use starling_testkit::wait;

    use super::*;

    async fn put(api: &Api<Source>, name: &str) {
        let source = json!({"apiVersion": "starling.dev/v1alpha1", "kind": "Source", "metadata": {"name": name},
            "spec": {"url": "https://git.example.com/a.git", "ref": {"branch": "main"}}});
        let params = PatchParams::apply("test");
        api.patch(name, &params, &Patch::Apply(&source)).await.unwrap();
    }

    /// Guards against all keys being enqueued at once after a start: the changes of the first list enqueued every
    /// object if their report took longer than the rest of the start.
    #[tokio::test(flavor = "multi_thread")]
    async fn what_the_first_list_brings_wakes_nobody() {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let server = Server::start(Options::default()).unwrap();
        let _listening = server.listen(([127, 0, 0, 1], 0).into()).await.unwrap();
        let cluster = server.create_cluster("management").unwrap();
        let kubeconfig = Kubeconfig::from_yaml(&cluster.kubeconfig()).unwrap();
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
        let client = Client::try_from(config.unwrap()).unwrap();
        let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
        let definition = Source::crd();
        definitions
            .create(&PostParams::default(), &definition)
            .await
            .unwrap();
        await_condition(definitions, &definition.name_any(), is_crd_established())
            .await
            .unwrap();
        let api: Api<Source> = Api::namespaced(client.clone(), "default");
        for name in ["a", "b", "c"] {
            put(&api, name).await;
        }

        let (cache, woken) = (
            Arc::new(Cache::<Source>::default()),
            Arc::new(Mutex::new(Vec::new())),
        );
        let stop = CancellationToken::new();
        let report = {
            let woken = Arc::clone(&woken);
            move |change: Change<Source>| woken.lock().unwrap().push(change.object().name_any())
        };
        let following = tokio::spawn(follow(
            Hub::new(client),
            None,
            Arc::clone(&cache),
            report,
            stop.clone(),
        ));
        cache.synced().await;
        put(&api, "d").await;
        let found = wait::until(Duration::from_secs(30), "d to be reported", async || {
            let woken = woken.lock().unwrap().clone();
            woken.iter().any(|name| name == "d").then_some(woken)
        });
        assert_eq!(found.await.unwrap(), ["d"]);
        stop.cancel();
        following.await.unwrap();
    }
}
