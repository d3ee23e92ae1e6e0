//! One size of fleet, through all steps.

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
use crate::table::Taken;
use crate::usage::{self, Reading};

/// The colour of a cluster, after it was given another one.
const OTHER_COLOUR: &str = "green";
/// Clusters that are given another one, one after the other: the kernel counts CPU in steps of 10 ms, about what one of
/// them takes.
const RECOLOURED: usize = 10;

/// A fleet, and who works on it.
pub(crate) struct Fleet {
    members: usize,
    serving: Serving,
    kubeconfigs: BTreeMap<String, String>,
    hub: Hub,
    repo: GitRepo,
    folder: tempfile::TempDir,
    /// KiB of an empty cluster.
    empty_kib: f64,
}

impl Fleet {
    /// Starts the server, makes the clusters and registers them. The controller does not run yet.
    pub(crate) async fn start(members: usize) -> Result<Self> {
        let mut serving = Serving::start()?;
        // What all clusters share is there with the answer.
        serving.counts().await?;
        let before = usage::resident_mib(serving.pid()?)?;
        let mut kubeconfigs = serving.make(members).await?;
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

    /// The controller's log.
    pub(crate) fn log(&self) -> PathBuf {
        self.folder.path().join("starling.log")
    }

    /// What an empty cluster costs.
    pub(crate) fn empty_cluster(&self) -> String {
        format!(
            "{} empty clusters: {:.1} KiB of the server's memory each",
            self.members, self.empty_kib
        )
    }

    /// All steps.
    pub(crate) async fn run(&mut self, options: &Options) -> Result<Vec<Taken>> {
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

    /// A controller that starts for the first time, until all Clusters are ready.
    async fn connect(&mut self, program: &Program) -> Result<Taken> {
        let measure = Measure::begin(self, program).await?;
        let members = self.members as u64;
        self.serving
            .until("statuses of Clusters", &measure.seen, |seen| {
                seen.management.requests.get("patch").copied() >= Some(members)
            })
            .await?;
        self.hub.until_ready(self.members).await?;
        measure.end("connect", self.members, self, program).await
    }

    /// The first apply of all.
    async fn first(&mut self, program: &Program) -> Result<Taken> {
        let commit = self.commit(1)?;
        let measure = Measure::begin(self, program).await?;
        self.hub.begin(&self.repo.url()).await?;
        self.hub.until_rolled(&commit, self.members).await?;
        let taken = measure.end("first apply", self.members, self, program).await?;
        self.verify(1, &[]).await?;
        Ok(taken)
    }

    /// A parameter of one cluster changes, and then of the next one.
    async fn one_change(&mut self, program: &Program) -> Result<Taken> {
        let names = self.recoloured();
        let measure = Measure::begin(self, program).await?;
        for name in &names {
            self.hub.recolour(name, OTHER_COLOUR).await?;
            hub::until_held(self.kubeconfig(name)?, 1, OTHER_COLOUR).await?;
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

    /// A commit that changes one object on each cluster.
    async fn all_change(&mut self, program: &Program) -> Result<Taken> {
        let measure = Measure::begin(self, program).await?;
        let commit = self.commit(2)?;
        self.hub.until_rolled(&commit, self.members).await?;
        let taken = measure.end("all change", self.members, self, program).await?;
        self.verify(2, &self.recoloured()).await?;
        Ok(taken)
    }

    /// A round of looks at all clusters that finds nothing changed.
    async fn no_change(&mut self, program: &Program) -> Result<Taken> {
        let asked = "a round";
        let measure = Measure::begin(self, program).await?;
        self.hub.ask_all(asked).await?;
        // Most of them without a list of thousands of Syncs.
        let writes = 2 * self.members as u64;
        self.serving
            .until("a look at each", &measure.seen, |seen| {
                seen.management.written >= writes
            })
            .await?;
        self.hub.until_answered(asked, self.members).await?;
        let taken = measure
            .end("nothing changed", self.members, self, program)
            .await?;
        Ok(taken)
    }

    /// A controller that starts with everything in sync: until it is ready, and until it has seen each member.
    async fn restart(&mut self, program: &Program) -> Result<[Taken; 2]> {
        let measure = Measure::begin(self, program).await?;
        program.ready().await?;
        let ready = measure.end("restart, ready", self.members, self, program).await?;
        self.serving
            .until("a look at each member", &measure.seen, |seen| {
                seen.members.fewest > 0
            })
            .await?;
        let seen = measure
            .end("restart, all seen", self.members, self, program)
            .await?;
        ensure_unwritten(&seen)?;
        // The group may say something new of itself; a status of each Sync or Cluster would be a herd.
        let statuses = seen.seen.management.written;
        ensure!(
            statuses < 10,
            "restart: {statuses} writes on the management cluster"
        );
        Ok([ready, seen])
    }

    /// Nothing happens: what the controller does by itself.
    async fn rest(&mut self, program: &Program, length: Duration) -> Result<Taken> {
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

    /// What counts is what the members hold: the first, the last and some between are asked.
    async fn verify(&self, version: usize, recoloured: &[String]) -> Result<()> {
        let step = (self.members / 20).max(1);
        for index in (0..self.members).step_by(step).chain([self.members - 1]) {
            let name = member(index);
            let colour = if recoloured.contains(&name) {
                OTHER_COLOUR
            } else {
                "blue"
            };
            let held = hub::held(self.kubeconfig(&name)?).await?;
            ensure!(
                held == (format!("version {version}"), colour.to_owned()),
                "{name} holds {held:?}"
            );
        }
        Ok(())
    }
}

fn ensure_unwritten(taken: &Taken) -> Result<()> {
    ensure!(
        taken.seen.members.written == 0,
        "{}: {} writes to members that were in sync",
        taken.step,
        taken.seen.members.written
    );
    Ok(())
}

/// Readings at the begin of a step.
struct Measure {
    seen: Counts,
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
            seen: fleet.serving.counts().await?,
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
    ) -> Result<Taken> {
        let wall = self.start.elapsed();
        let server = fleet.serving.pid()?;
        let used = Reading::of(program.pid())?.since(&self.controller);
        let taken = Taken {
            step,
            members: fleet.members,
            clusters,
            wall,
            controller: used.own,
            children: used.children,
            server: Reading::of(server)?.since(&self.server).own,
            controller_mib: usage::peak_mib(program.pid())?,
            server_mib: usage::peak_mib(server)?,
            seen: fleet.serving.counts().await?.since(&self.seen),
        };
        println!("{}", taken.line());
        Ok(taken)
    }
}
