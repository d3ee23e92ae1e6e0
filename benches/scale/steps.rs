//! All steps on a fleet of one size.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use starling_testkit::{Change, GitRepo};

use crate::content;
use crate::hub::{self, Hub};
use crate::options::Options;
use crate::program::Program;
use crate::serving::{Counts, MANAGEMENT, Serving, member};
use crate::table::Sample;
use crate::usage::{self, Reading};

/// Colour of a cluster after the change of its parameter.
const OTHER_COLOUR: &str = "green";
/// Number of clusters whose parameter changes, one after another. The kernel counts CPU time in steps of 10 ms, which
/// is about the cost of one cluster.
const RECOLOURED: usize = 10;

/// A fleet and its clients.
pub(crate) struct Fleet {
    members: usize,
    serving: Serving,
    kubeconfigs: BTreeMap<String, String>,
    hub: Hub,
    repo: GitRepo,
    folder: tempfile::TempDir,
    /// Memory of an empty cluster in KiB.
    empty_kib: f64,
}

impl Fleet {
    /// Starts the server, creates the clusters and registers them. The controller is not started.
    pub(crate) async fn start(members: usize) -> Result<Self> {
        let mut serving = Serving::start()?;
        // The response proves that the memory that all clusters share is allocated.
        serving.counts().await?;
        let before = usage::resident_mib(serving.pid()?)?;
        let mut kubeconfigs = serving.create(members).await?;
        let empty = usage::resident_mib(serving.pid()?)? - before;
        let management = kubeconfigs
            .remove(MANAGEMENT)
            .context("the management cluster has no kubeconfig")?;
        let folder = tempfile::tempdir()?;
        std::fs::write(folder.path().join("kubeconfig"), &management)?;
        let hub = Hub::install(&management).await?;
        hub.add_clusters(&kubeconfigs).await?;
        Ok(Self {
            members,
            serving,
            kubeconfigs,
            hub,
            repo: GitRepo::init()?,
            folder,
            empty_kib: empty * 1024.0 / members as f64,
        })
    }

    /// Returns the path of the controller's log.
    pub(crate) fn log(&self) -> PathBuf {
        self.folder.path().join("starling.log")
    }

    /// Describes the cost of an empty cluster.
    pub(crate) fn empty_cluster(&self) -> String {
        format!(
            "{} empty clusters: {:.1} KiB of the server's memory each",
            self.members, self.empty_kib
        )
    }

    /// Runs all steps.
    pub(crate) async fn run(&mut self, options: &Options) -> Result<Vec<Sample>> {
        let mut taken = Vec::new();
        let mut program = Program::start(self.folder.path(), options)?;
        taken.push(self.connect(&program).await?);
        taken.push(self.first(&program).await?);
        taken.push(self.one_change(&program).await?);
        taken.push(self.all_change(&program).await?);
        taken.push(self.no_change(&program).await?);
        program.stop().await?;
        program = Program::start(self.folder.path(), options)?;
        taken.extend(self.restart(&program).await?);
        taken.push(self.rest(&program, Duration::from_secs(options.rest)).await?);
        program.stop().await?;
        Ok(taken)
    }

    /// Measures the first start of a controller, until all Clusters are ready.
    async fn connect(&mut self, program: &Program) -> Result<Sample> {
        let measure = Measure::begin(self, program).await?;
        let members = self.members as u64;
        self.serving
            .until("statuses of Clusters", &measure.traffic, |traffic| {
                traffic.management.requests.get("patch").copied() >= Some(members)
            })
            .await?;
        self.hub.until_ready(self.members).await?;
        measure.end("connect", self.members, self, program).await
    }

    /// Measures the first apply on all clusters.
    async fn first(&mut self, program: &Program) -> Result<Sample> {
        let commit = self.commit(1)?;
        let measure = Measure::begin(self, program).await?;
        self.hub.begin(&self.repo.url()).await?;
        self.hub.until_rolled(&commit, self.members).await?;
        let taken = measure.end("first apply", self.members, self, program).await?;
        self.verify(1, &[]).await?;
        Ok(taken)
    }

    /// Measures the change of a parameter of one cluster after another.
    async fn one_change(&mut self, program: &Program) -> Result<Sample> {
        let names = self.recoloured();
        let measure = Measure::begin(self, program).await?;
        for name in &names {
            self.hub.recolour(name, OTHER_COLOUR).await?;
            hub::until_applied(self.kubeconfig(name)?, 1, OTHER_COLOUR).await?;
            self.hub.until_rolled("", self.members).await?;
        }
        let taken = measure.end("one change", names.len(), self, program).await?;
        self.verify(1, &names).await?;
        Ok(taken)
    }

    fn recoloured(&self) -> Vec<String> {
        let step = (self.members / RECOLOURED).max(1);
        (0..self.members)
            .step_by(step)
            .take(RECOLOURED)
            .map(member)
            .collect()
    }

    /// Measures the rollout of a commit that changes one object on each cluster.
    async fn all_change(&mut self, program: &Program) -> Result<Sample> {
        let measure = Measure::begin(self, program).await?;
        let commit = self.commit(2)?;
        self.hub.until_rolled(&commit, self.members).await?;
        let taken = measure.end("all change", self.members, self, program).await?;
        self.verify(2, &self.recoloured()).await?;
        Ok(taken)
    }

    /// Measures a reconcile of every Sync that finds nothing changed.
    async fn no_change(&mut self, program: &Program) -> Result<Sample> {
        let requested = "a round";
        let measure = Measure::begin(self, program).await?;
        self.hub.request_all(requested).await?;
        // The counts show most of the progress without a list of thousands of Syncs.
        let writes = 2 * self.members as u64;
        self.serving
            .until("a reconcile of each Sync", &measure.traffic, |traffic| {
                traffic.management.written >= writes
            })
            .await?;
        self.hub.until_handled(requested, self.members).await?;
        let taken = measure
            .end("nothing changed", self.members, self, program)
            .await?;
        Ok(taken)
    }

    /// Measures the start of a controller with everything in sync: until the controller is ready, and until each member
    /// got a request.
    async fn restart(&mut self, program: &Program) -> Result<[Sample; 2]> {
        let measure = Measure::begin(self, program).await?;
        program.ready().await?;
        let ready = measure.end("restart, ready", self.members, self, program).await?;
        self.serving
            .until("a request to each member", &measure.traffic, |traffic| {
                traffic.members.fewest > 0
            })
            .await?;
        let observed = measure
            .end("restart, all seen", self.members, self, program)
            .await?;
        ensure_unwritten(&observed)?;
        // The status of the group may change; a status write for each Sync or Cluster would be a thundering herd.
        let statuses = observed.traffic.management.written;
        ensure!(
            statuses < 10,
            "restart: {statuses} writes on the management cluster"
        );
        Ok([ready, observed])
    }

    /// Measures a controller at rest.
    async fn rest(&mut self, program: &Program, length: Duration) -> Result<Sample> {
        let measure = Measure::begin(self, program).await?;
        tokio::time::sleep(length).await;
        let taken = measure.end("at rest", self.members, self, program).await?;
        ensure_unwritten(&taken)?;
        Ok(taken)
    }

    fn commit(&self, revision: usize) -> Result<String> {
        let files = content::files(revision);
        let changes: Vec<_> = files
            .iter()
            .map(|(path, text)| Change::Write(path, text.as_bytes()))
            .collect();
        Ok(self.repo.commit_to("main", &changes, "change")?)
    }

    fn kubeconfig(&self, name: &str) -> Result<&str> {
        let found = self.kubeconfigs.get(name).map(String::as_str);
        found.with_context(|| format!("no kubeconfig of {name}"))
    }

    /// Verifies the content of the first member, of the last one and of some between.
    async fn verify(&self, version: usize, recoloured: &[String]) -> Result<()> {
        let step = (self.members / 20).max(1);
        for index in (0..self.members).step_by(step).chain([self.members - 1]) {
            let name = member(index);
            let colour = if recoloured.contains(&name) {
                OTHER_COLOUR
            } else {
                "blue"
            };
            let applied = hub::applied(self.kubeconfig(&name)?).await?;
            ensure!(
                applied == (format!("version {version}"), colour.to_owned()),
                "{name} has {applied:?}"
            );
        }
        Ok(())
    }
}

fn ensure_unwritten(taken: &Sample) -> Result<()> {
    ensure!(
        taken.traffic.members.written == 0,
        "{}: {} writes to members that were in sync",
        taken.step,
        taken.traffic.members.written
    );
    Ok(())
}

/// Readings at the start of a step.
struct Measure {
    traffic: Counts,
    controller: Reading,
    server: Reading,
    start: Instant,
}

impl Measure {
    async fn begin(fleet: &mut Fleet, program: &Program) -> Result<Self> {
        let server = fleet.serving.pid()?;
        usage::reset_peak(program.pid())?;
        usage::reset_peak(server)?;
        Ok(Self {
            traffic: fleet.serving.counts().await?,
            controller: Reading::of(program.pid())?,
            server: Reading::of(server)?,
            start: Instant::now(),
        })
    }

    async fn end(
        &self,
        step: &'static str,
        clusters: usize,
        fleet: &mut Fleet,
        program: &Program,
    ) -> Result<Sample> {
        let wall = self.start.elapsed();
        let server = fleet.serving.pid()?;
        let used = Reading::of(program.pid())?.since(&self.controller);
        let taken = Sample {
            step,
            members: fleet.members,
            clusters,
            wall,
            controller: used.own,
            children: used.children,
            server: Reading::of(server)?.since(&self.server).own,
            controller_mib: usage::peak_mib(program.pid())?,
            server_mib: usage::peak_mib(server)?,
            traffic: fleet.serving.counts().await?.since(&self.traffic),
        };
        println!("{}", taken.line());
        Ok(taken)
    }
}
