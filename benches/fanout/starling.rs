//! The program under test, as a process of its own, and the measurement of a change on all members.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kube::api::{DeleteParams, ListParams};
use serde_json::json;
use starling_api::conditions::{self, READY};
use starling_api::{Cluster, REQUESTED_AT, RolloutPhase, Source, SyncGroup, SyncResource};
use starling_controlplane::RequestCounts;
use starling_testkit::{Change, Fleet, GitRepo, Process};

use crate::content::Content;
use crate::usage::{self, Reading};
use crate::watch::Watch;

/// Branch on which a commit is prepared before it is pushed to `main`.
const STAGING: &str = "staging";

/// Requests to all members by verb and resource, dry runs apart.
pub(crate) type Requests = BTreeMap<String, u64>;

/// Measurements of a case.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sample {
    /// Time from the push to the last cluster.
    pub(crate) wall: Duration,
    /// Time from the new revision in the status of the Source to the last cluster; `None` without a push.
    pub(crate) after_poll: Option<Duration>,
    /// CPU time of the program and of its children.
    pub(crate) cpu: Reading,
    /// Peak resident memory of the program.
    pub(crate) peak_mib: f64,
    pub(crate) requests: Requests,
}

/// The program on a fleet.
pub(crate) struct Starling<'a> {
    pub(crate) fleet: &'a Fleet,
    pub(crate) members: usize,
    process: Process,
}

/// An application that is rolled out.
pub(crate) struct Application {
    pub(crate) name: String,
    pub(crate) content: Content,
    repo: GitRepo,
}

impl Application {
    pub(crate) fn new(name: &str, objects: usize) -> Result<Self> {
        Ok(Self {
            name: name.to_owned(),
            content: Content::new(name, objects),
            repo: GitRepo::init()?,
        })
    }

    /// Commits the content to a branch that no Source follows.
    fn prepare(&self) -> Result<String> {
        let files = self.content.files();
        let changes: Vec<_> = files
            .iter()
            .map(|(path, text)| Change::Write(path, text.as_bytes()))
            .collect();
        Ok(self.repo.commit_to(STAGING, &changes, "change")?)
    }
}

impl<'a> Starling<'a> {
    /// Starts the program and waits until all members are registered and ready.
    pub(crate) async fn start(
        fleet: &'a Fleet,
        program: &str,
        members: usize,
        concurrency: &str,
    ) -> Result<Self> {
        let process = fleet.controller(program, &["--concurrency", concurrency])?;
        for name in (1..=members).map(|n| format!("m{n}")) {
            fleet
                .until::<Cluster>(&name, "ready", |cluster| {
                    let conditions = cluster.status.as_ref().map(|status| &status.conditions);
                    conditions
                        .and_then(|all| conditions::find(all, READY))
                        .is_some_and(|ready| ready.status == "True")
                })
                .await?;
        }
        Ok(Self {
            fleet,
            members,
            process,
        })
    }

    /// Returns the process ID.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid().unsigned_abs()
    }

    /// Measures the first apply. The group exists and waits for its Source, which is created after the push.
    pub(crate) async fn first(&self, app: &Application) -> Result<Sample> {
        let entry = json!({"name": "app", "sourceRef": {"name": app.name}, "path": "./app"});
        let strategy = json!({"maxConcurrency": "100%", "jitter": "0s"});
        let spec = json!({"clusterSelector": {}, "syncs": [entry], "rolloutStrategy": strategy});
        self.fleet.put_group(&app.name, spec).await?;
        self.push(app, async || {
            self.fleet
                .put_source(&app.name, &app.repo.url(), json!({"branch": "main"}))
                .await
        })
        .await
    }

    /// Measures a push of the current content, which the Source finds at its next poll.
    pub(crate) async fn change(&self, app: &Application) -> Result<Sample> {
        self.push(app, async || Ok(())).await
    }

    async fn push(&self, app: &Application, then: impl AsyncFn() -> Result<()>) -> Result<Sample> {
        let commit = app.prepare()?;
        let (name, end) = (app.name.clone(), commit.clone());
        let polled = Watch::begin("the poll", self.fleet.api(), 1, move |source: &Source| {
            let status = source.status.as_ref();
            source.metadata.name.as_ref() == Some(&name)
                && status.is_some_and(|status| status.revision.ends_with(&end))
        })
        .await?;
        let end = commit.clone();
        let applied = Watch::begin(
            "the last cluster",
            self.fleet.api(),
            self.members,
            move |sync: &SyncResource| {
                let status = sync.status.as_ref();
                status.is_some_and(|status| status.last_applied_revision.ends_with(&end))
            },
        )
        .await?;

        let measure = Measure::begin(self).await?;
        app.repo.force_reset("main", &commit)?;
        then().await?;
        let (polled, applied) = (polled.time().await?, applied.time().await?);
        let mut taken = measure.end(self, applied).await?;
        taken.after_poll = Some(applied.saturating_duration_since(polled));
        self.fleet
            .rollout(&app.name, &commit, RolloutPhase::Succeeded)
            .await?;
        self.verify(app).await?;
        Ok(taken)
    }

    /// Verifies the content of all members.
    async fn verify(&self, app: &Application) -> Result<()> {
        for name in (1..=self.members).map(|n| format!("m{n}")) {
            let data = self
                .fleet
                .config_map(&name, &app.content.namespace, &Content::first())
                .await?;
            let found = data.and_then(|data| data.get("version").cloned());
            ensure!(found == Some(app.content.value(0)), "{name} has {found:?}");
        }
        Ok(())
    }

    /// Measures a requested reconcile of every Sync that finds nothing changed.
    pub(crate) async fn reconcile(&self, round: usize) -> Result<Sample> {
        let requested = format!("bench-{round}-{:?}", Instant::now());
        let expected = requested.clone();
        let handled = Watch::begin(
            "the last reconcile",
            self.fleet.api(),
            self.members,
            move |sync: &SyncResource| {
                let status = sync.status.as_ref();
                status.is_some_and(|status| status.last_handled_reconcile_at == expected)
            },
        )
        .await?;
        let syncs = self.fleet.syncs().await?;
        let patch = json!({"metadata": {"annotations": {REQUESTED_AT: requested}}});
        let measure = Measure::begin(self).await?;
        let patches = syncs.iter().map(|sync| async {
            let name = sync.metadata.name.as_deref().context("a Sync without a name")?;
            self.fleet.patch::<SyncResource>(name, patch.clone()).await
        });
        futures::future::try_join_all(patches).await?;
        let handled = handled.time().await?;
        measure.end(self, handled).await
    }

    /// Deletes the objects of an application on the management cluster, so that the next application is alone.
    pub(crate) async fn delete(&self, app: &Application) -> Result<()> {
        self.fleet.delete::<SyncGroup>(&app.name).await?;
        self.fleet.delete::<Source>(&app.name).await?;
        // No controller manager runs here that would delete the dependents of the group.
        self.fleet
            .api::<SyncResource>()
            .delete_collection(&DeleteParams::default(), &ListParams::default())
            .await?;
        Ok(())
    }

    async fn request_counts(&self) -> Result<Vec<RequestCounts>> {
        let mut counts = Vec::new();
        for name in (1..=self.members).map(|n| format!("m{n}")) {
            counts.push(self.fleet.plane(&name)?.request_counts().await?);
        }
        Ok(counts)
    }
}

/// Readings at the start of a case.
struct Measure {
    counts: Vec<RequestCounts>,
    usage: Reading,
    start: Instant,
}

impl Measure {
    async fn begin(starling: &Starling<'_>) -> Result<Self> {
        let counts = starling.request_counts().await?;
        usage::reset_peak(starling.pid())?;
        Ok(Self {
            counts,
            usage: Reading::of(starling.pid())?,
            start: Instant::now(),
        })
    }

    async fn end(self, starling: &Starling<'_>, end: Instant) -> Result<Sample> {
        let cpu = Reading::of(starling.pid())?.since(&self.usage);
        let peak_mib = usage::peak_mib(starling.pid())?;
        let mut requests = Requests::new();
        for (after, before) in starling.request_counts().await?.iter().zip(&self.counts) {
            add(&mut requests, &after.since(before));
        }
        Ok(Sample {
            wall: end.saturating_duration_since(self.start),
            after_poll: None,
            cpu,
            peak_mib,
            requests,
        })
    }
}

/// Adds the requests of one member that [`RequestCounts::by_verb`] counts.
fn add(requests: &mut Requests, counts: &RequestCounts) {
    let dry: u64 = counts.series.iter().filter(|s| s.dry_run).map(|s| s.count).sum();
    for (verb, count) in counts.by_verb() {
        *requests.entry(verb).or_insert(0) += count;
    }
    if dry > 0 {
        *requests.entry("of them dry runs".into()).or_insert(0) += dry;
    }
}
