//! Watches of the embedded API server, in this process and in paused time: a wait of minutes takes no time, and it ends
//! as soon as nothing else can happen.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams, PostParams};
use kube::client::{Body, ConfigExt as _};
use kube::config::AuthInfo;
use kube::runtime::wait::{await_condition, conditions::is_crd_established};
use kube::{Client, CustomResourceExt, ResourceExt};
use serde_json::json;
use starling_api::Source;
use starling_apiserver::faults::{Effect, Fault};
use starling_apiserver::server::{ClusterHandle, Options, Server};
use starling_member::Stream;
use tower::{Layer as _, ServiceExt as _};

use super::super::hub::testing;
use super::super::readiness::{NotReady, Readiness};
use super::super::suspicions::Suspicions;
use super::*;
use crate::controller::object_key::ObjectKey;

const HUB: &str = "management";
/// The time in which a watch has to recover from any fault that has ended.
const RECOVERY: Duration = Duration::from_mins(10);

/// A management cluster with the definition of Sources, and the connections to it.
struct World {
    cluster: ClusterHandle,
    wire: Arc<Wire>,
}

/// The connections of the clients: to which server, and whether they still carry bytes.
struct Wire {
    server: Mutex<Server>,
    /// Counts up when the connections so far fall silent: no bytes, and no end.
    silenced: tokio::sync::watch::Sender<u64>,
    /// Counts up when the connections so far are cut.
    cut: tokio::sync::watch::Sender<u64>,
}

impl Wire {
    fn dial(&self) -> Stream {
        let (near, mut middle) = tokio::io::duplex(64 * 1024);
        let (mut inner, far) = tokio::io::duplex(64 * 1024);
        let server = self.server.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (mut silenced, mut cut) = (self.silenced.subscribe(), self.cut.subscribe());
        tokio::spawn(async move { server.serve(far).await });
        tokio::spawn(async move {
            let carried = async {
                tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut middle, &mut inner) => {}
                    _ = silenced.changed() => std::future::pending().await,
                }
            };
            tokio::select! {
                () = carried => {}
                _ = cut.changed() => {}
            }
        });
        Stream::new(near)
    }

    fn client(self: &Arc<Self>, token: &str) -> Client {
        let mut config = kube::Config::new(format!("http://hub/clusters/{HUB}").parse().unwrap());
        config.auth_info = AuthInfo {
            token: Some(token.to_owned().into()),
            ..AuthInfo::default()
        };
        let wire = Arc::clone(self);
        let dial = tower::service_fn(move |_: Uri| std::future::ready(io::Result::Ok(wire.dial())));
        let http = HttpClient::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .build::<_, Body>(dial)
            .map_err(tower::BoxError::from);
        let service = config.auth_layer().unwrap().unwrap().layer(http);
        Client::new(config.base_uri_layer().layer(service), "default")
    }
}

impl World {
    async fn start() -> Self {
        let options = Options {
            seed: 7,
            secret: Some([7; 32]),
            ..Options::default()
        };
        let server = Server::start(options).unwrap();
        let cluster = server.create_cluster(HUB).unwrap();
        let wire = Arc::new(Wire {
            server: Mutex::new(server),
            silenced: tokio::sync::watch::Sender::new(0),
            cut: tokio::sync::watch::Sender::new(0),
        });
        let hub = Self { cluster, wire };
        hub.install().await;
        hub
    }

    async fn install(&self) {
        let definitions: Api<CustomResourceDefinition> = Api::all(self.client());
        let (definition, name) = (Source::crd(), Source::crd_name());
        definitions
            .create(&PostParams::default(), &definition)
            .await
            .unwrap();
        let established = await_condition(definitions, name, is_crd_established());
        established.await.unwrap();
    }

    /// A client with connections of its own.
    fn client(&self) -> Client {
        self.wire.client(&self.cluster.token())
    }

    /// Continues with the state of another server. It has the same tokens, and after the same requests the same names
    /// and UIDs, so it may be the first one at an earlier time.
    fn set_back(&mut self, backup: &Self) {
        self.cluster = backup.cluster.clone();
        let server = backup.wire.server.lock().unwrap().clone();
        *self.wire.server.lock().unwrap() = server;
        self.cut();
    }

    /// Cuts all connections.
    fn cut(&self) {
        self.wire.cut.send_modify(|count| *count += 1);
    }

    /// Lets all connections fall silent: no bytes, and no end.
    fn silence(&self) {
        self.wire.silenced.send_modify(|count| *count += 1);
    }

    async fn put(&self, name: &str, branch: &str) {
        put(&Api::namespaced(self.client(), "default"), name, branch).await;
    }

    fn fault(&self, verb: &str, effect: Effect) {
        let fault = Fault::always(effect).on(&[verb]).of(&["sources"]).times(1);
        self.cluster.faults().add(fault);
    }
}

async fn put(api: &Api<Source>, name: &str, branch: &str) {
    let source = json!({"apiVersion": "starling.dev/v1alpha1", "kind": "Source", "metadata": {"name": name},
        "spec": {"url": "https://git.example.com/a.git", "ref": {"branch": branch}}});
    let params = PatchParams::apply("test");
    api.patch(name, &params, &Patch::Apply(&source)).await.unwrap();
}

/// A watch of Sources, and the names of the changed objects that it has reported.
struct Following {
    cache: Arc<Cache<Source>>,
    readiness: Readiness,
    suspicions: Arc<Suspicions>,
    reported: Arc<Mutex<Vec<String>>>,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Following {
    fn start(client: Client) -> Self {
        let (cache, reported) = (Arc::new(Cache::default()), Arc::new(Mutex::new(Vec::new())));
        let stop = CancellationToken::new();
        let report = {
            let reported = Arc::clone(&reported);
            move |report: WatchReport<Source>| {
                let line = match report {
                    WatchReport::Changed(change) => change.object().name_any(),
                    WatchReport::SetBack => "set back".to_owned(),
                };
                reported.lock().unwrap().push(line);
            }
        };
        let (readiness, suspicions) = (Readiness::default(), Arc::<Suspicions>::default());
        let state = readiness.watch("Source");
        readiness.started();
        let following = follow(
            Hub::new(client),
            None,
            Arc::clone(&cache),
            (state, suspicions.of_kind("Source")),
            report,
            stop.clone(),
        );
        let task = tokio::spawn(following);
        Self {
            cache,
            readiness,
            suspicions,
            reported,
            stop,
            task,
        }
    }

    async fn synced(&self) {
        let synced = tokio::time::timeout(RECOVERY, self.cache.synced()).await;
        synced.expect("the list is complete");
    }

    fn branch(&self, name: &str) -> Option<String> {
        let source = self.cache.get(&ObjectKey::new("default", name))?;
        source.spec.reference.branch.clone()
    }

    /// Waits until the cache has an object with this branch.
    async fn knows(&self, name: &str, branch: &str) {
        let deadline = tokio::time::Instant::now() + RECOVERY;
        while self.branch(name).as_deref() != Some(branch) {
            let now = tokio::time::Instant::now();
            assert!(now < deadline, "{name} is {:?}, not {branch}", self.branch(name));
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn end(self) {
        self.stop.cancel();
        self.task.await.unwrap();
    }
}

/// Guards against all keys being enqueued at once after a start: the changes of the first list enqueued every object if
/// their report took longer than the rest of the start.
#[tokio::test(start_paused = true)]
async fn what_the_first_list_brings_wakes_nobody() {
    let hub = World::start().await;
    for name in ["a", "b", "c"] {
        hub.put(name, "main").await;
    }
    let following = Following::start(hub.client());
    following.synced().await;
    hub.put("d", "main").await;
    following.knows("d", "main").await;
    assert_eq!(*following.reported.lock().unwrap(), ["d"]);
    following.end().await;
}

/// Guards against groups that go on by a mixture of two pasts: each kind notices a restore with its own next list.
#[tokio::test(start_paused = true)]
async fn a_kind_is_listed_again_when_another_one_is_older() {
    let hub = World::start().await;
    hub.put("a", "main").await;
    let following = Following::start(hub.client());
    following.synced().await;
    let groups = following.suspicions.of_kind("SyncGroup");
    // The watch is open, and nothing changes.
    tokio::time::sleep(Duration::from_secs(1)).await;
    groups.listed(groups.raise().unwrap());
    following.suspicions.compared(1);
    assert!(following.suspicions.is_pending());
    let began = tokio::time::Instant::now();
    while following.suspicions.is_pending() {
        assert!(
            began.elapsed() < Duration::from_secs(5),
            "the watch of Sources goes on"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    hub.put("a", "release").await;
    following.knows("a", "release").await;
    following.end().await;
}

/// Guards against a cache that is frozen forever: the client has no timeout of its own.
#[tokio::test(start_paused = true)]
async fn a_list_that_is_never_answered_is_repeated() {
    let hub = World::start().await;
    hub.put("a", "main").await;
    hub.fault("list", Effect::BlackHole);
    let following = Following::start(hub.client());
    following.synced().await;
    assert_eq!(following.branch("a").as_deref(), Some("main"));

    // The same after the first list: the watch expires, and the list that has to follow gets no response.
    hub.fault("watch", Effect::ExpireWatch(0));
    hub.fault("list", Effect::BlackHole);
    hub.cut();
    hub.put("a", "release").await;
    following.knows("a", "release").await;
    following.end().await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_never_answered_is_repeated() {
    let hub = World::start().await;
    hub.fault("watch", Effect::BlackHole);
    let following = Following::start(hub.client());
    following.synced().await;
    hub.put("a", "main").await;
    following.knows("a", "main").await;
    following.end().await;
}

/// A half-open connection: the peer is gone, and no packet says so.
#[tokio::test(start_paused = true)]
async fn a_watch_that_falls_silent_is_repeated() {
    let hub = World::start().await;
    let following = Following::start(hub.client());
    following.synced().await;
    hub.put("a", "main").await;
    following.knows("a", "main").await;
    hub.silence();
    hub.put("a", "release").await;
    following.knows("a", "release").await;
    following.end().await;
}

/// Guards against a watch that continues from a version that a restored server has not reached: the server accepts it,
/// and sends nothing until then.
#[tokio::test(start_paused = true)]
async fn a_server_that_was_set_back_is_listed_again() {
    let (mut hub, backup) = (World::start().await, World::start().await);
    for world in [&hub, &backup] {
        world.put("a", "main").await;
    }
    for branch in ["one", "two", "three", "four"] {
        hub.put("a", branch).await;
        hub.put("lost", branch).await;
    }
    let following = Following::start(hub.client());
    following.synced().await;
    hub.set_back(&backup);
    following.knows("a", "main").await;
    assert_eq!(following.branch("lost"), None);
    assert_eq!(*following.reported.lock().unwrap(), ["set back", "lost", "a"]);
    hub.put("a", "after").await;
    following.knows("a", "after").await;
    following.end().await;
}

/// A server that was away may come back as it was before, and with a counter that has passed the last known version.
#[tokio::test(start_paused = true)]
async fn a_server_that_was_away_is_listed_again() {
    let (mut hub, backup) = (World::start().await, World::start().await);
    for world in [&hub, &backup] {
        world.put("a", "main").await;
    }
    hub.put("a", "lost").await;
    let following = Following::start(hub.client());
    following.synced().await;
    for branch in ["one", "two", "three", "four"] {
        backup.put("b", branch).await;
    }
    backup.fault("list", Effect::Error(503));
    hub.set_back(&backup);
    following.knows("a", "main").await;
    following.knows("b", "four").await;
    following.end().await;
}

/// A watch that ends as soon as it begins is no reason to begin it in a loop.
#[tokio::test(start_paused = true)]
async fn a_watch_that_ends_at_once_is_repeated_with_a_backoff() {
    let watches = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&watches);
    let hub = testing::responding(move |parts, _| {
        let metadata = json!({"resourceVersion": "7"});
        if !parts.uri.query().unwrap_or_default().contains("watch=true") {
            return (200, json!({"metadata": metadata, "items": []}));
        }
        counted.fetch_add(1, Ordering::SeqCst);
        let bookmark = json!({"apiVersion": "starling.dev/v1alpha1", "kind": "Source", "metadata": metadata});
        (200, json!({"type": "BOOKMARK", "object": bookmark}))
    });
    let following = Following::start(hub.client());
    following.synced().await;
    tokio::time::sleep(Duration::from_mins(1)).await;
    let watches = watches.load(Ordering::SeqCst);
    assert!((4..20).contains(&watches), "{watches} watches in a minute");
    following.end().await;
}

/// A quiet server is up to date: it needs neither events nor bookmarks for that.
#[tokio::test(start_paused = true)]
async fn only_a_watch_that_cannot_begin_again_is_out_of_date() {
    let hub = World::start().await;
    let following = Following::start(hub.client());
    following.synced().await;
    for _ in 0..600 {
        assert_eq!(following.readiness.reasons(), []);
        tokio::time::sleep(Duration::from_secs(1)).await;
    }

    let gone = Fault::always(Effect::Refuse).of(&["sources"]);
    let gone = hub.cluster.faults().add(gone);
    hub.cut();
    let until = async |ready: bool| {
        let began = tokio::time::Instant::now();
        while following.readiness.reasons().is_empty() != ready {
            assert!(began.elapsed() < RECOVERY, "{:?}", following.readiness.reasons());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        began.elapsed()
    };
    let taken = until(false).await;
    assert!(taken <= waits::STALE_AFTER + Duration::from_secs(1), "{taken:?}");
    let reasons = following.readiness.reasons();
    let [NotReady::Stale { kind, age }] = reasons.as_slice() else {
        panic!("{reasons:?}")
    };
    assert!(kind == "Source" && *age >= waits::STALE_AFTER, "{reasons:?}");
    hub.cluster.faults().remove(gone);
    let taken = until(true).await;
    assert!(taken <= waits::WATCH_LONGEST_RETRY * 2, "{taken:?}");

    // A connection that falls silent is noticed when the end of the watch is overdue.
    hub.silence();
    let gone = Fault::always(Effect::BlackHole).of(&["sources"]);
    hub.cluster.faults().add(gone);
    let taken = until(false).await;
    let longest = waits::WATCH_TIMEOUT + waits::WATCH_TIMEOUT / 10 + waits::WATCH_MARGIN;
    assert!(taken <= longest + Duration::from_secs(1), "{taken:?}");
    following.end().await;
}

/// Slow pages must not be requested forever with a deadline that they never meet.
#[tokio::test(start_paused = true)]
async fn a_list_that_is_slow_gets_more_time() {
    let hub = World::start().await;
    hub.put("a", "main").await;
    let slow = Fault::always(Effect::Latency(waits::HUB_TIMEOUT * 3))
        .on(&["list"])
        .of(&["sources"]);
    hub.cluster.faults().add(slow);
    let following = Following::start(hub.client());
    following.synced().await;
    assert_eq!(following.branch("a").as_deref(), Some("main"));
    following.end().await;
}
