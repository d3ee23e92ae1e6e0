//! The program under test, as a process of its own, and what it takes to bring a change everywhere.

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
use crate::sighting::Sighting;
use crate::usage::{self, Reading};

/// Branch on which a commit is prepared before it is pushed to `main`.
const STAGING: &str = "staging";

/// Requests to all members by verb and resource, dry runs apart.
pub(crate) type Requests = BTreeMap<String, u64>;

/// What a case took.
#[derive(Clone, Debug, Default)]
pub(crate) struct Taken {
    /// From the push to the last cluster.
    pub(crate) wall: Duration,
    /// From when the Source showed the revision to the last cluster; `None` where nothing was pushed.
    pub(crate) after_poll: Option<Duration>,
    /// CPU time of the program and of its children.
    pub(crate) cpu: Reading,
    /// The highest resident memory of the program meanwhile.
    pub(crate) peak_mib: f64,
    pub(crate) requests: Requests,
}

/// The program, running on a fleet.
pub(crate) struct Starling<'a> {
    pub(crate) fleet: &'a Fleet,
    pub(crate) members: usize,
    process: Process,
}

/// One application that is rolled out.
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

    /// Commits the content where nobody looks yet.
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

    /// Process ID.
    pub(crate) fn pid(&self) -> u32 {
        self.process.pid().unsigned_abs()
    }

    /// The first apply. The group is there and waits for its Source; the push is followed by the Source.
    pub(crate) async fn first(&self, app: &Application) -> Result<Taken> {
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

    /// A push of the content as it is now; the Source finds it at its next poll.
    pub(crate) async fn change(&self, app: &Application) -> Result<Taken> {
        self.push(app, async || Ok(())).await
    }

    async fn push(&self, app: &Application, then: impl AsyncFn() -> Result<()>) -> Result<Taken> {
        let commit = app.prepare()?;
        let (name, end) = (app.name.clone(), commit.clone());
        let polled = Sighting::begin("the poll", self.fleet.api(), 1, move |source: &Source| {
            let status = source.status.as_ref();
            source.metadata.name.as_ref() == Some(&name)
                && status.is_some_and(|status| status.revision.ends_with(&end))
        })
        .await?;
        let end = commit.clone();
        let applied = Sighting::begin(
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

    /// What counts is what the members hold.
    async fn verify(&self, app: &Application) -> Result<()> {
        for name in (1..=self.members).map(|n| format!("m{n}")) {
            let data = self
                .fleet
                .config_map(&name, &app.content.namespace, &Content::first())
                .await?;
            let found = data.and_then(|data| data.get("version").cloned());
            ensure!(found == Some(app.content.value(0)), "{name} holds {found:?}");
        }
        Ok(())
    }

    /// A round in which every Sync is asked to look and nothing has changed.
    pub(crate) async fn look(&self, round: usize) -> Result<Taken> {
        let asked = format!("bench-{round}-{:?}", Instant::now());
        let expected = asked.clone();
        let answered = Sighting::begin(
            "the last look",
            self.fleet.api(),
            self.members,
            move |sync: &SyncResource| {
                let status = sync.status.as_ref();
                status.is_some_and(|status| status.last_handled_reconcile_at == expected)
            },
        )
        .await?;
        let syncs = self.fleet.syncs().await?;
        let patch = json!({"metadata": {"annotations": {REQUESTED_AT: asked}}});
        let measure = Measure::begin(self).await?;
        let ask = syncs.iter().map(|sync| async {
            let name = sync.metadata.name.as_deref().context("a Sync without a name")?;
            self.fleet.patch::<SyncResource>(name, patch.clone()).await
        });
        futures::future::try_join_all(ask).await?;
        let answered = answered.time().await?;
        measure.end(self, answered).await
    }

    /// Takes an application's objects on the management cluster away, so that the next one is alone.
    pub(crate) async fn forget(&self, app: &Application) -> Result<()> {
        self.fleet.delete::<SyncGroup>(&app.name).await?;
        self.fleet.delete::<Source>(&app.name).await?;
        // No controller manager runs here that would collect what the group owned.
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

/// Readings at the begin of a case.
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

    async fn end(self, starling: &Starling<'_>, end: Instant) -> Result<Taken> {
        let cpu = Reading::of(starling.pid())?.since(&self.usage);
        let peak_mib = usage::peak_mib(starling.pid())?;
        let mut requests = Requests::new();
        for (after, before) in starling.request_counts().await?.iter().zip(&self.counts) {
            add(&mut requests, &after.since(before));
        }
        Ok(Taken {
            wall: end.saturating_duration_since(self.start),
            after_poll: None,
            cpu,
            peak_mib,
            requests,
        })
    }
}

/// Adds the requests of one member; what [`RequestCounts::by_verb`] leaves out is left out here too.
fn add(requests: &mut Requests, counts: &RequestCounts) {
    let dry: u64 = counts.series.iter().filter(|s| s.dry_run).map(|s| s.count).sum();
    for (verb, count) in counts.by_verb() {
        *requests.entry(verb).or_insert(0) += count;
    }
    if dry > 0 {
        *requests.entry("of them dry runs".into()).or_insert(0) += dry;
    }
}
