//! Five members behind proxies, the program, and one round of commits.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use kube::ResourceExt;
use kube::runtime::watcher::{self, Event};
use serde_json::json;
use starling_api::conditions::{self, READY};
use starling_api::{Cluster, REQUESTED_AT, SyncResource};
use starling_testkit::{Change, Fleet, FleetOptions, GitRepo, Process};
use tokio::sync::oneshot;

use crate::{Options, PROGRAM};

/// Name of the cluster that is black-holed.
const BAD: &str = "m5";
const MEMBERS: usize = 5;
/// Branch on which a commit is prepared before it is pushed to `main`.
const STAGING: &str = "staging";
/// Maximum time of a round.
const TIMEOUT: Duration = Duration::from_secs(300);

/// The fleet under test.
pub(crate) struct Bench {
    /// The first field, so that the program ends before its clusters.
    _program: Process,
    fleet: Fleet,
    apps: Vec<App>,
    objects: usize,
    round: usize,
}

/// A group over all clusters.
struct App {
    name: String,
    repo: GitRepo,
}

impl Bench {
    pub(crate) async fn start(options: &Options) -> Result<Self> {
        eprintln!("starting 1 + {MEMBERS} control planes");
        let fleet = Fleet::start(FleetOptions {
            members: MEMBERS,
            proxied: true,
            ..FleetOptions::default()
        })
        .await?;
        for n in 1..=MEMBERS {
            fleet.add_cluster(&format!("m{n}"), &[]).await?;
        }
        let program = fleet.controller(PROGRAM, &["--concurrency", &options.concurrency])?;
        let mut bench = Self {
            _program: program,
            fleet,
            apps: Vec::new(),
            objects: options.objects,
            round: 0,
        };
        for n in 1..=MEMBERS {
            bench.ready(&format!("m{n}")).await?;
        }
        for n in 0..options.groups {
            let app = bench.app(&format!("app{n}")).await?;
            bench.apps.push(app);
        }
        Ok(bench)
    }

    async fn app(&self, name: &str) -> Result<App> {
        let repo = GitRepo::init()?;
        repo.commit(&[("README", "nothing yet")], "first")?;
        let app = App {
            name: name.to_owned(),
            repo,
        };
        self.fleet
            .put_source(name, &app.repo.url(), json!({"branch": "main"}))
            .await?;
        let entry = json!({"name": "app", "sourceRef": {"name": name}, "path": "./app"});
        let strategy = json!({"maxConcurrency": "100%", "jitter": "0s"});
        let spec = json!({"clusterSelector": {}, "syncs": [entry], "rolloutStrategy": strategy});
        self.fleet.put_group(name, spec).await?;
        Ok(app)
    }

    async fn ready(&self, cluster: &str) -> Result<()> {
        let is_ready = |cluster: &Cluster| {
            let conditions = cluster.status.as_ref().map(|status| &status.conditions);
            conditions
                .and_then(|all| conditions::find(all, READY))
                .is_some_and(|ready| ready.status == "True")
        };
        self.fleet.until::<Cluster>(cluster, "ready", is_ready).await?;
        Ok(())
    }

    /// Pushes a change of every object to every group, and returns the time of each healthy cluster for each group. In
    /// a bad round, the fifth cluster does not respond from the push on. It is reachable and up to date again before
    /// the round ends.
    pub(crate) async fn round(&mut self, bad: bool) -> Result<Vec<Duration>> {
        self.round += 1;
        let commits = self.prepare()?;
        let healthy = (MEMBERS - 1) * self.apps.len();
        let applied = self.watch(commits.clone(), healthy, Some(BAD)).await?;
        let proxy = self.fleet.proxy(BAD)?;
        proxy.black_hole(bad);
        let pushed = Instant::now();
        for (app, commit) in self.apps.iter().zip(&commits) {
            app.repo.force_reset("main", commit)?;
        }
        let times = tokio::time::timeout(TIMEOUT, applied)
            .await
            .context("the healthy clusters")???;
        let caught_up = self
            .watch(commits.clone(), MEMBERS * self.apps.len(), None)
            .await?;
        proxy.black_hole(false);
        if bad {
            let patch = json!({"metadata": {"annotations": {REQUESTED_AT: format!("round-{}", self.round)}}});
            self.fleet.patch::<Cluster>(BAD, patch).await?;
        }
        tokio::time::timeout(TIMEOUT, caught_up)
            .await
            .context("the fifth cluster")???;
        self.ready(BAD).await?;
        // The content of the members has to match, not only the status.
        for member in (1..=MEMBERS).map(|n| format!("m{n}")) {
            for app in &self.apps {
                let data = self
                    .fleet
                    .config_map(&member, "default", &format!("{}-0", app.name))
                    .await?;
                let value = data.and_then(|data| data.get("round").cloned());
                ensure!(value == Some(self.round.to_string()), "{member} has {value:?}");
            }
        }
        Ok(times
            .into_values()
            .map(|at| at.saturating_duration_since(pushed))
            .collect())
    }

    /// Commits the content of this round to a branch that no Source follows, one commit per group.
    fn prepare(&self) -> Result<Vec<String>> {
        let round = self.round;
        self.apps
            .iter()
            .map(|app| {
                let files: Vec<(String, String)> = (0..self.objects)
                    .map(|n| {
                        let name = format!("{}-{n}", app.name);
                        let map = json!({"apiVersion": "v1", "kind": "ConfigMap",
                            "metadata": {"name": name, "namespace": "default"}, "data": {"round": round.to_string()}});
                        (format!("app/{name}.yaml"), format!("{map}\n"))
                    })
                    .collect();
                let changes: Vec<_> = files
                    .iter()
                    .map(|(path, text)| Change::Write(path, text.as_bytes()))
                    .collect();
                Ok(app.repo.commit_to(STAGING, &changes, "round")?)
            })
            .collect()
    }

    /// Watches until this number of Syncs have applied one of the commits, without the Syncs of the excluded cluster.
    /// Returns once the watch is open.
    async fn watch(
        &self,
        commits: Vec<String>,
        count: usize,
        excluded: Option<&'static str>,
    ) -> Result<tokio::task::JoinHandle<Result<BTreeMap<String, Instant>>>> {
        let api = self.fleet.api::<SyncResource>();
        let (open, opened) = oneshot::channel();
        let task = tokio::spawn(async move {
            let mut events = watcher::watcher(api, watcher::Config::default()).boxed();
            let (mut times, mut open) = (BTreeMap::new(), Some(open));
            while let Some(event) = events.next().await {
                match event? {
                    Event::Apply(sync) | Event::InitApply(sync) => {
                        let applied = sync
                            .status
                            .as_ref()
                            .map_or("", |status| &status.last_applied_revision);
                        let counts = excluded.is_none_or(|excluded| sync.spec.cluster_ref.name != excluded);
                        if counts && commits.iter().any(|commit| applied.ends_with(commit.as_str())) {
                            times.entry(sync.name_any()).or_insert_with(Instant::now);
                        }
                    }
                    Event::InitDone => {
                        if let Some(open) = open.take() {
                            // The receiver may be gone.
                            let _ = open.send(());
                        }
                    }
                    Event::Init | Event::Delete(_) => {}
                }
                if times.len() == count && open.is_none() {
                    return Ok(times);
                }
            }
            anyhow::bail!("the watch ended")
        });
        opened.await.context("open the watch")?;
        Ok(task)
    }
}
