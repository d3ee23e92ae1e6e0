//! One management cluster, five members, one unreachable Cluster, and one controller, shared by concurrent tests:
//! starting them takes ten times as long as most tests.
//!
//! Each test is a [`Scene`]: its name is a label on its clusters and the prefix of the names of its objects, so scenes
//! are independent. A test that makes clusters unavailable is an [`exclusive_scene`]; all others are a
//! [`shared_scene`].

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Weak};

use anyhow::{Context, Result};
use futures::FutureExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use starling_api::conditions::{self, Condition, READY};
use starling_api::{Cluster, REQUESTED_AT, RolloutPhase, Source, SyncGroup, SyncGroupStatus, SyncResource};
use starling_controlplane::{Assets, Process};
use starling_testkit::fleet::{Kind, MANAGEMENT, TIMEOUT};
use starling_testkit::{FaultProxy, Fleet, FleetOptions, GitRepo, Match, SopsTools, program, wait};
use tokio::runtime::Runtime;
use tokio::sync::RwLock;

/// The five members.
pub(crate) const MEMBERS: [&str; 5] = ["m1", "m2", "m3", "m4", "m5"];
/// The unreachable Cluster.
pub(crate) const UNREACHABLE: &str = "ghost";

/// All tests run on one runtime, because the shared world must not end with the first test.
#[expect(clippy::expect_used, reason = "without a runtime there is nothing to test")]
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| Runtime::new().expect("a runtime"));
/// The world while a test uses it; the last test stops it.
static WORLD: LazyLock<tokio::sync::Mutex<Weak<World>>> = LazyLock::new(Default::default);

pub(crate) struct World {
    /// The first field, so that the controller stops before its clusters.
    controller: Process,
    pub(crate) fleet: Fleet,
    kustomize: FailingKustomize,
    scenes_lock: RwLock<()>,
}

impl World {
    async fn shared() -> Result<Arc<Self>> {
        let mut known = WORLD.lock().await;
        if let Some(world) = known.upgrade() {
            return Ok(world);
        }
        let world = Arc::new(Self::start().await?);
        *known = Arc::downgrade(&world);
        Ok(world)
    }

    async fn start() -> Result<Self> {
        let fleet = Fleet::start(FleetOptions {
            members: MEMBERS.len(),
            proxied: true,
            ..FleetOptions::default()
        })
        .await?;
        for name in MEMBERS {
            fleet.add_cluster(name, &[]).await?;
        }
        fleet.add_unreachable(UNREACHABLE, &[]).await?;
        let kustomize = FailingKustomize::install(fleet.directory())?;
        let script = kustomize.script.to_string_lossy().into_owned();
        // Only one scene needs sops, and fails if it is missing.
        let sops = SopsTools::find()
            .ok()
            .map(|tools| tools.sops().to_string_lossy().into_owned());
        let mut more = vec!["--kustomize", &script, "--job-gate-service-account", "smoke"];
        more.extend(sops.iter().flat_map(|path| ["--sops", path]));
        let controller = fleet.controller(program(), &more)?;
        for name in MEMBERS {
            fleet.until(name, "Ready", is_ready).await?;
        }
        Ok(Self {
            controller,
            fleet,
            kustomize,
            scenes_lock: RwLock::new(()),
        })
    }

    /// Returns the last log lines of the controller about one scene.
    fn log_of(&self, scene: &str) -> String {
        let tail = self.controller.log_tail(3_000).unwrap_or_default();
        let lines: Vec<&str> = tail.lines().filter(|line| line.contains(scene)).collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }
}

/// Runs a test concurrently with others.
pub(crate) fn shared_scene(name: &'static str, test: impl AsyncFnOnce(&Scene) -> Result<()>) -> Result<()> {
    RUNTIME.block_on(async {
        let world = World::shared().await?;
        let _guard = world.scenes_lock.read().await;
        Scene::run_scene(&world, name, test).await
    })
}

/// Runs a test that makes clusters unavailable, without concurrent tests.
pub(crate) fn exclusive_scene(
    name: &'static str,
    test: impl AsyncFnOnce(&Scene) -> Result<()>,
) -> Result<()> {
    RUNTIME.block_on(async {
        let world = World::shared().await?;
        let _guard = world.scenes_lock.write().await;
        let result = Scene::run_scene(&world, name, test).await;
        let healed = world.heal().await;
        result.and(healed)
    })
}

impl World {
    /// Waits until all members are reachable and reported as such, and the controller notices changes of Clusters:
    /// after a cut connection it reads them again within seconds, and the next test would find a group without
    /// clusters.
    async fn heal(&self) -> Result<()> {
        self.fleet.proxy(MANAGEMENT)?.clear();
        for name in MEMBERS {
            let proxy = self.fleet.proxy(name)?;
            proxy.refuse(false).await?;
            proxy.clear();
        }
        let mut requests = Vec::new();
        for name in MEMBERS {
            requests.push((name, self.look_at(name).await?));
        }
        for (name, requested) in requests {
            let is_back = |cluster: &Cluster| {
                let status = cluster.status.as_ref();
                is_ready(cluster)
                    && status.is_some_and(|status| status.last_handled_reconcile_at == requested)
            };
            self.fleet.until(name, "Ready again", is_back).await?;
        }
        Ok(())
    }

    /// Requests a probe of a cluster, and returns the value of the request.
    pub(crate) async fn look_at(&self, cluster: &str) -> Result<String> {
        let request = jiff::Timestamp::now().to_string();
        let patch = json!({"metadata": {"annotations": {REQUESTED_AT: request}}});
        self.fleet.patch::<Cluster>(cluster, patch).await?;
        Ok(request)
    }
}

/// One test in the world.
pub(crate) struct Scene {
    pub(crate) world: Arc<World>,
    pub(crate) name: &'static str,
    pub(crate) repo: GitRepo,
}

impl Scene {
    async fn run_scene(
        world: &Arc<World>,
        name: &'static str,
        test: impl AsyncFnOnce(&Self) -> Result<()>,
    ) -> Result<()> {
        let scene = Self {
            world: world.clone(),
            name,
            repo: GitRepo::init()?,
        };
        // After a failed assertion, the world must still be cleaned up for the following tests.
        let result = AssertUnwindSafe(test(&scene)).catch_unwind().await;
        let result = result.unwrap_or_else(|_| Err(anyhow::anyhow!("an assertion failed, see above")));
        let result = result.map_err(|error| {
            let log = world.log_of(name);
            error.context(format!("scene {name}; of it the controller logged\n{log}\n"))
        });
        let cleaned_up = scene.clean_up().await;
        result.and(cleaned_up)
    }

    /// Deletes the objects of the scene on the management cluster. The objects on the members stay.
    async fn clean_up(&self) -> Result<()> {
        self.delete_all::<SyncGroup>().await?;
        self.delete_all::<SyncResource>().await?;
        self.delete_all::<Source>().await
    }

    async fn delete_all<K: Kind>(&self) -> Result<()> {
        let api = self.fleet().api::<K>();
        for object in api.list(&ListParams::default()).await? {
            let name = object.name_any();
            let rest = name.strip_prefix(self.name);
            // A scene may be named like the beginning of another one.
            if !rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('-')) {
                continue;
            }
            match api.delete(&name, &DeleteParams::default()).await {
                // The Syncs of a group are deleted with it, concurrently with this loop.
                Err(kube::Error::Api(status)) if status.is_not_found() => {}
                deleted => drop(deleted?),
            }
        }
        Ok(())
    }

    pub(crate) fn fleet(&self) -> &Fleet {
        &self.world.fleet
    }

    pub(crate) fn proxy(&self, member: &str) -> Result<Arc<FaultProxy>> {
        self.fleet().proxy(member)
    }

    /// Returns a name with the prefix of this scene.
    pub(crate) fn own(&self, name: &str) -> String {
        format!("{}-{name}", self.name)
    }

    /// Returns the name of the group's Sync on a cluster.
    pub(crate) fn sync_name(&self, cluster: &str) -> String {
        format!("{}-app-{cluster}", self.name)
    }

    /// Commits ConfigMaps, by name and value, to the folder `app`.
    pub(crate) fn commit(&self, maps: &[(&str, &str)]) -> Result<String> {
        let files: Vec<(String, String)> = maps
            .iter()
            .map(|(name, value)| (format!("app/{name}.yaml"), config_map(&self.own(name), value)))
            .collect();
        let files: Vec<(&str, &str)> = files.iter().map(|(p, t)| (p.as_str(), t.as_str())).collect();
        Ok(self.repo.commit(&files, "change")?)
    }

    /// Creates the Source of this scene, which follows `main`.
    pub(crate) async fn follow_main(&self) -> Result<()> {
        self.fleet()
            .put_source(self.name, &self.repo.url(), json!({"branch": "main"}))
            .await
    }

    /// Labels the clusters for the scene's selector.
    pub(crate) async fn select(&self, clusters: &[&str]) -> Result<()> {
        for cluster in clusters {
            self.label(cluster, self.name, Some("yes")).await?;
        }
        Ok(())
    }

    /// Sets or removes a label of a Cluster.
    pub(crate) async fn label(&self, cluster: &str, key: &str, value: Option<&str>) -> Result<()> {
        let patch = json!({"metadata": {"labels": {key: value}}});
        self.fleet().patch::<Cluster>(cluster, patch).await?;
        Ok(())
    }

    /// The selector of the clusters given to [`Self::select`].
    pub(crate) fn selector(&self) -> Value {
        json!({"matchLabels": {self.name: "yes"}})
    }

    /// Applies the scene's group for the selected clusters: one entry, the folder `app`, with additional fields.
    pub(crate) async fn group(&self, strategy: Value, entry_fields: Value) -> Result<()> {
        let mut entry = json!({"name": "app", "sourceRef": {"name": self.name}, "path": "./app"});
        merge(&mut entry, entry_fields);
        let spec = json!({"clusterSelector": self.selector(), "syncs": [entry], "rolloutStrategy": strategy});
        self.fleet().put_group(self.name, spec).await
    }

    /// Waits until the scene's group has rolled out this commit to every reachable cluster.
    pub(crate) async fn succeeded(&self, commit: &str) -> Result<SyncGroupStatus> {
        self.fleet()
            .rollout(self.name, commit, RolloutPhase::Succeeded)
            .await
    }

    /// Waits until the status of the scene's group satisfies a predicate.
    pub(crate) async fn status(
        &self,
        what: &str,
        satisfied: impl Fn(&SyncGroupStatus) -> bool,
    ) -> Result<SyncGroupStatus> {
        self.fleet().group_status(self.name, what, satisfied).await
    }

    /// Waits until the Sync of a cluster satisfies a predicate.
    pub(crate) async fn sync(
        &self,
        cluster: &str,
        what: &str,
        satisfied: impl Fn(&SyncResource) -> bool,
    ) -> Result<SyncResource> {
        self.fleet()
            .until(&self.sync_name(cluster), what, satisfied)
            .await
    }

    /// A ConfigMap of this scene on a member.
    pub(crate) async fn map(&self, member: &str, name: &str) -> Result<Option<ConfigMap>> {
        let api: Api<ConfigMap> = Api::namespaced(self.fleet().member(member).await?, "default");
        Ok(api.get_opt(&self.own(name)).await?)
    }

    /// Its value.
    pub(crate) async fn value(&self, member: &str, name: &str) -> Result<Option<String>> {
        let map = self.map(member, name).await?;
        Ok(map.and_then(|map| map.data.unwrap_or_default().remove("value")))
    }

    /// Its value on several members.
    pub(crate) async fn values(&self, members: &[&str], name: &str) -> Result<Vec<Option<String>>> {
        let mut values = Vec::new();
        for member in members {
            values.push(self.value(member, name).await?);
        }
        Ok(values)
    }

    /// Waits until a ConfigMap on a member has this value, or does not exist.
    pub(crate) async fn until_value(&self, member: &str, name: &str, value: Option<&str>) -> Result<()> {
        let what = format!("{} = {value:?} on {member}", self.own(name));
        wait::until(TIMEOUT, what, async || {
            let value_now = self.value(member, name).await.map_err(|e| format!("{e:#}"))?;
            (value_now.as_deref() == value)
                .then_some(())
                .ok_or(format!("{value_now:?}"))
        })
        .await?;
        Ok(())
    }

    /// Requests that write a ConfigMap of this scene.
    pub(crate) fn writes_of(&self, name: &str) -> Match {
        Match::writes().path_ends_with(format!("/configmaps/{}", self.own(name)))
    }

    /// Returns the values of a ConfigMap of this scene that were sent to a member, without repetitions.
    pub(crate) fn values_sent(&self, member: &str, name: &str, candidates: &[&str]) -> Result<Vec<String>> {
        let path_end = format!("/configmaps/{}", self.own(name));
        let mut sent: Vec<String> = Vec::new();
        for request in self.proxy(member)?.requests() {
            if request.method != http::Method::PATCH || !request.path.ends_with(&path_end) {
                continue;
            }
            let body = String::from_utf8_lossy(&request.body).into_owned();
            let value = candidates
                .iter()
                .find(|value| body.contains(&format!("\"value\":\"{value}\"")));
            let value = value.with_context(|| format!("none of {candidates:?} in {body}"))?;
            if sent.last().map(String::as_str) != Some(*value) {
                sent.push((*value).to_owned());
            }
        }
        Ok(sent)
    }

    /// Makes kustomize print half of its output and fail, for renders with objects of this scene.
    pub(crate) fn break_kustomize(&self, broken: bool) -> Result<()> {
        self.world.kustomize.set(self.name, broken)
    }
}

/// A kustomize that fails halfway on demand.
struct FailingKustomize {
    script: PathBuf,
    markers: PathBuf,
}

impl FailingKustomize {
    /// The script only knows the output: a marker file per scene selects the renders that fail. It runs without PATH,
    /// so it uses shell built-ins only.
    fn install(folder: &Path) -> Result<Self> {
        let assets = Assets::find()?;
        let kustomize = assets.kustomize().context("kustomize among the built programs")?;
        let (script, markers) = (folder.join("kustomize"), folder.join("broken"));
        std::fs::create_dir_all(&markers)?;
        let text = format!(
            r#"#!/bin/sh
out=$('{kustomize}' "$@") || exit $?
for marker in '{markers}'/*; do
  case "$out" in *"name: ${{marker##*/}}-"*)
    printf '%s\n' "${{out%%data:*}}"
    echo 'the disk is full' >&2
    exit 1;;
  esac
done
printf '%s\n' "$out"
"#,
            kustomize = kustomize.display(),
            markers = markers.display(),
        );
        std::fs::write(&script, text)?;
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755))?;
        Ok(Self { script, markers })
    }

    fn set(&self, scene: &str, broken: bool) -> Result<()> {
        let marker = self.markers.join(scene);
        if broken {
            std::fs::write(marker, "")?;
        } else {
            std::fs::remove_file(marker)?;
        }
        Ok(())
    }
}

/// A ConfigMap with one value, in namespace `default`.
pub(crate) fn config_map(name: &str, value: &str) -> String {
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\n  namespace: default\ndata:\n  value: \"{value}\"\n"
    )
}

/// `Some` of each, to compare with [`Scene::values`].
pub(crate) fn all(value: &str, count: usize) -> Vec<Option<String>> {
    vec![Some(value.to_owned()); count]
}

/// Whether a Cluster is Ready at its current generation.
pub(crate) fn is_ready(cluster: &Cluster) -> bool {
    let generation = cluster.metadata.generation.unwrap_or(0);
    let status = cluster.status.as_ref();
    status.is_some_and(|status| conditions::is_true(&status.conditions, READY, generation))
}

/// Status and reason of the condition Ready.
pub(crate) fn ready(conditions: &[Condition]) -> (String, String) {
    conditions::find(conditions, READY)
        .map(|c| (c.status.clone(), c.reason.clone()))
        .unwrap_or_default()
}

/// Status and reason of a Sync's condition Ready.
pub(crate) fn sync_ready(sync: &SyncResource) -> (String, String) {
    let conditions = sync.status.as_ref().map(|status| status.conditions.as_slice());
    ready(conditions.unwrap_or_default())
}

/// Returns the clusters with problems, and their reasons.
pub(crate) fn problems(status: &SyncGroupStatus) -> BTreeMap<String, String> {
    let problems = status.problems.iter();
    problems.map(|p| (p.cluster.clone(), p.reason.clone())).collect()
}

/// Returns the reasons that block the waiting clusters.
pub(crate) fn blocked_by(status: &SyncGroupStatus) -> BTreeSet<String> {
    let blockers = status.rollout.iter().flat_map(|rollout| &rollout.blocked_by);
    blockers.map(|blocker| blocker.reason.clone()).collect()
}

pub(crate) fn merge(into: &mut Value, fields: Value) {
    if let (Some(into), Value::Object(fields)) = (into.as_object_mut(), fields) {
        into.extend(fields);
    }
}

/// The clean-up of a scene deletes every object whose name begins with its own, while others run.
#[test]
fn no_scene_is_named_like_the_beginning_of_another_one() -> Result<()> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("e2e");
    let mut names: Vec<String> = Vec::new();
    for file in std::fs::read_dir(&directory)? {
        let text = std::fs::read_to_string(file?.path())?;
        let calls = text.split("_scene(").skip(1);
        let called = calls.filter_map(|rest| rest.trim_start().strip_prefix('"')?.split_once('"'));
        names.extend(called.map(|(name, _)| name.to_owned()));
    }
    assert!(names.len() > 100, "{names:?}");
    names.sort();
    for (place, name) in names.iter().enumerate() {
        let others = names[..place].iter().chain(&names[place + 1..]);
        let prefix = format!("{name}-");
        let conflicts: Vec<&String> = { others }
            .filter(|other| *other == name || other.starts_with(&prefix))
            .collect();
        assert!(conflicts.is_empty(), "{name} and {conflicts:?}");
    }
    Ok(())
}
