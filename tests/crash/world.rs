//! A fleet, a repository whose commits are rounds, and the checks after each round.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::json;
use starling_api::{OWNER_LABEL, RolloutPhase, SyncGroup, SyncResource};
use starling_core::ids::GroupId;
use starling_core::journal::verify;
use starling_ledger::{AttemptRecord, Ledger, LedgerView, Rollout, RolloutOutcome};
use starling_testkit::fleet::{Fleet, MANAGEMENT, NAMESPACE, TIMEOUT};
use starling_testkit::{Change, FleetOptions, GitRepo, wait};

use crate::audit::{self, Writes};
use crate::concurrency::ConcurrencyWatch;
use crate::supervisor::Supervisor;

/// The name of the SyncGroup and its Source.
pub(crate) const GROUP: &str = "shop";
/// Maximum clusters in flight.
pub(crate) const CONCURRENCY: usize = 2;
/// Members of the fleet: one more than may be in flight.
pub(crate) const MEMBERS: [&str; 3] = ["m1", "m2", "m3"];
/// The branch of a round before it is pushed to `main`.
const NEXT: &str = "next";

/// One commit: what it changes, adds and removes.
#[derive(Clone, Debug)]
pub(crate) struct Round {
    /// Counts from 1.
    pub(crate) number: u32,
    /// The commit.
    pub(crate) commit: String,
}

impl Round {
    /// The ConfigMap that this round adds.
    pub(crate) fn added(&self) -> String {
        extra(self.number)
    }

    /// The ConfigMap that this round removes; there is none of that name in round 1.
    pub(crate) fn removed(&self) -> String {
        extra(self.number - 1)
    }
}

fn extra(round: u32) -> String {
    format!("extra-{round:04}")
}

fn value(round: u32) -> String {
    format!("round-{round:04}")
}

/// See the module.
pub(crate) struct World {
    pub(crate) fleet: Fleet,
    pub(crate) supervisor: Supervisor,
    repo: GitRepo,
    bound: ConcurrencyWatch,
    /// Clusters that are registered.
    clusters: BTreeSet<String>,
    /// The last pushed round; number 0 before the first.
    last: Round,
    /// Rollout ID of the last round that was checked.
    rollout: i64,
    /// Rounds that were pushed since. The program may skip all but the last.
    pushed: Vec<Round>,
    /// Commits of rounds that the program may have skipped or superseded.
    skippable: BTreeSet<String>,
    /// Objects of rounds that were certainly applied to all members.
    created: BTreeSet<String>,
}

impl World {
    /// Starts a fleet with its objects. The program does not run yet, and nothing is pushed.
    pub(crate) async fn start() -> Result<Self> {
        let fleet = Fleet::start(FleetOptions {
            members: MEMBERS.len(),
            audit: true,
            proxied: true,
            ..FleetOptions::default()
        })
        .await?;
        let repo = GitRepo::init()?;
        for name in MEMBERS {
            fleet.add_cluster(name, &[]).await?;
        }
        fleet
            .put_source(GROUP, &repo.url(), json!({"branch": "main"}))
            .await?;
        // No controller runs the Deployment, so it never becomes healthy.
        let entry = json!({"name": "app", "sourceRef": {"name": GROUP}, "path": "./app", "wait": false});
        let strategy = json!({"maxConcurrency": CONCURRENCY});
        fleet
            .put_group(
                GROUP,
                json!({"clusterSelector": {}, "rolloutStrategy": strategy, "syncs": [entry]}),
            )
            .await?;
        let bound = ConcurrencyWatch::watch(&fleet, CONCURRENCY);
        Ok(Self {
            fleet,
            supervisor: Supervisor::default(),
            repo,
            bound,
            clusters: MEMBERS.map(str::to_owned).into(),
            last: Round {
                number: 0,
                commit: String::new(),
            },
            rollout: 0,
            pushed: Vec::new(),
            skippable: BTreeSet::new(),
            created: BTreeSet::new(),
        })
    }

    /// Commits the next round to another branch, so that its commit is known before the push.
    pub(crate) fn prepare(&self) -> Result<Round> {
        let number = self.last.number + 1;
        let files = [
            ("fixed".to_owned(), config_map("fixed", "always")),
            ("one".to_owned(), config_map("one", &value(number))),
            ("two".to_owned(), config_map("two", &value(number))),
            ("web".to_owned(), deployment("web", &value(number))),
            (extra(number), config_map(&extra(number), &value(number))),
        ]
        .map(|(name, text)| (format!("app/{name}.yaml"), text));
        let deleted_objects = format!("app/{}.yaml", extra(number - 1));
        let mut changes: Vec<_> = files
            .iter()
            .map(|(path, text)| Change::Write(path, text.as_bytes()))
            .collect();
        changes.push(Change::Remove(&deleted_objects));
        let commit = self.repo.commit_to(NEXT, &changes, &value(number))?;
        Ok(Round { number, commit })
    }

    /// Pushes a prepared round.
    pub(crate) fn push(&mut self, round: &Round) -> Result<()> {
        self.repo.force_reset("main", &round.commit)?;
        self.last = round.clone();
        self.pushed.push(round.clone());
        Ok(())
    }

    /// Prepares and pushes.
    pub(crate) fn push_next(&mut self) -> Result<Round> {
        let round = self.prepare()?;
        self.push(&round)?;
        Ok(round)
    }

    /// Removes a cluster from the fleet; its objects stay on the member.
    pub(crate) async fn leave(&mut self, cluster: &str) -> Result<()> {
        self.fleet.delete::<starling_api::Cluster>(cluster).await?;
        self.clusters.remove(cluster);
        Ok(())
    }

    /// Adds a cluster again.
    pub(crate) async fn join(&mut self, cluster: &str) -> Result<()> {
        self.fleet.add_cluster(cluster, &[]).await?;
        self.clusters.insert(cluster.to_owned());
        Ok(())
    }

    /// Starts the program again after it was killed.
    pub(crate) fn restart(&self) -> Result<()> {
        self.supervisor.start(&self.fleet)
    }

    /// Removes all faults.
    pub(crate) fn clear_faults(&self) -> Result<()> {
        for name in MEMBERS.iter().chain([&MANAGEMENT]) {
            self.fleet.proxy(name)?.clear();
        }
        Ok(())
    }

    /// Waits until the last round is applied to all members, and checks the state and the invariants.
    pub(crate) async fn settled(&mut self) -> Result<()> {
        let status = self.rolled_out().await?;
        let rollout = status.rollout.context("a status without rollout")?;
        // Without a new round (a cluster left or joined), there is no new rollout. Otherwise there is at least one, and
        // at most one for each round.
        let new = rollout.id - self.rollout;
        let pushed = i64::try_from(self.pushed.len())?;
        ensure!(
            new <= pushed && (new >= 1) == (pushed >= 1),
            "round {}: rollout {} after {}, with {pushed} rounds pushed",
            self.last.number,
            rollout.id,
            self.rollout
        );
        self.rollout = rollout.id;
        if self.pushed.pop().is_some() {
            self.created.insert(self.last.added());
        }
        self.skippable
            .extend(self.pushed.drain(..).map(|round| round.commit));
        self.check_syncs().await?;
        for member in &self.clusters {
            self.check_member(member).await?;
        }
        self.bound.check()?;
        Ok(())
    }

    async fn rolled_out(&self) -> Result<starling_api::SyncGroupStatus> {
        let (commit, total) = (&self.last.commit, u32::try_from(self.clusters.len())?);
        let what = format!("round {} at {commit} on {total} clusters", self.last.number);
        self.fleet
            .group_status(GROUP, &what, |status| {
                status.clusters.total == total
                    && status.clusters.updated == total
                    && status.rollout.as_ref().is_some_and(|rollout| {
                        rollout.phase == RolloutPhase::Succeeded
                            && rollout.revisions.iter().all(|r| r.revision.ends_with(commit))
                    })
            })
            .await
    }

    /// Every admitted target is applied, and every cluster of the group has one.
    async fn check_syncs(&self) -> Result<()> {
        // A cluster that left does not count immediately, and its Sync is deleted a moment later.
        let syncs = wait::until(TIMEOUT, "one Sync for each cluster", async || {
            let syncs = self.fleet.syncs().await.map_err(|e| e.to_string())?;
            let clusters: BTreeSet<_> = syncs
                .iter()
                .map(|sync| sync.spec.cluster_ref.name.clone())
                .collect();
            if clusters == self.clusters && syncs.len() == self.clusters.len() {
                Ok(syncs)
            } else {
                Err(format!("Syncs of {clusters:?}, clusters {:?}", self.clusters))
            }
        })
        .await?;
        for sync in syncs {
            let status = sync.status.clone().unwrap_or_default();
            ensure!(
                sync.spec.revision.ends_with(&self.last.commit)
                    && status.last_applied_revision == sync.spec.revision
                    && status.last_applied_target == status.last_attempted_target
                    && status.attempts == 0,
                "round {}: {sync:#?}",
                self.last.number
            );
        }
        Ok(())
    }

    /// The objects of Starling on the member are exactly those in git.
    async fn check_member(&self, member: &str) -> Result<()> {
        let number = self.last.number;
        let client = self.fleet.member(member).await?;
        let ours = ListParams::default().labels(OWNER_LABEL);
        let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
        let found: BTreeMap<_, _> = maps
            .list(&ours)
            .await?
            .into_iter()
            .map(|map| {
                let value = map.data.as_ref().and_then(|data| data.get("value").cloned());
                (map.name_any(), value.unwrap_or_default())
            })
            .collect();
        let expected: BTreeMap<_, _> = [
            ("fixed".to_owned(), "always".to_owned()),
            ("one".to_owned(), value(number)),
            ("two".to_owned(), value(number)),
            (extra(number), value(number)),
        ]
        .into();
        ensure!(found == expected, "{member}, round {number}: {found:?}");
        let web: Deployment = Api::namespaced(client, "default").get("web").await?;
        let image = json!(web)["spec"]["template"]["spec"]["containers"][0]["image"].clone();
        ensure!(image == value(number), "{member}, round {number}: web is {image}");
        Ok(())
    }

    /// Returns the writes from the audit logs, by member, after the checks of [`audit::check`].
    pub(crate) fn writes(&self) -> Result<BTreeMap<String, Writes>> {
        MEMBERS
            .iter()
            .map(|member| {
                let events = self.fleet.plane(member)?.audit_events()?;
                Ok(((*member).to_owned(), audit::check(member, &events)?))
            })
            .collect()
    }

    /// Checks the audit logs of the members against all removed objects so far.
    pub(crate) async fn check_writes(&self) -> Result<BTreeMap<String, Writes>> {
        let removed: BTreeSet<String> = (1..self.last.number).map(extra).collect();
        let deleted_objects: BTreeSet<String> = self.created.intersection(&removed).cloned().collect();
        // A server responds before it logs.
        wait::until(TIMEOUT, "every removed object in the audit logs", async || {
            let writes = self.writes().map_err(|error| format!("{error:#}"))?;
            for (member, writes) in writes {
                let logged =
                    |name: &&String| writes.deleted.contains(*name) || writes.cut.contains_key(*name);
                let missing: Vec<_> = deleted_objects.iter().filter(|name| !logged(name)).collect();
                let unexpected: Vec<_> = writes.deleted.difference(&removed).collect();
                if !missing.is_empty() || !unexpected.is_empty() {
                    return Err(format!(
                        "{member}: no deletion of {missing:?}, unexpected deletion of {unexpected:?}"
                    ));
                }
            }
            Ok(())
        })
        .await?;
        self.writes()
    }

    /// Requests a reconcile of every Sync, and waits until all are done.
    pub(crate) async fn reconcile_all(&self, asked: &str) -> Result<()> {
        let names: Vec<String> = self
            .fleet
            .syncs()
            .await?
            .iter()
            .map(ResourceExt::name_any)
            .collect();
        for name in &names {
            let annotation = json!({"metadata": {"annotations": {starling_api::REQUESTED_AT: asked}}});
            self.fleet.patch::<SyncResource>(name, annotation).await?;
        }
        for name in &names {
            self.fleet
                .until::<SyncResource>(name, "a completed reconcile", |sync| {
                    let status = sync.status.clone().unwrap_or_default();
                    status.last_handled_reconcile_at == asked
                })
                .await?;
        }
        Ok(())
    }

    /// Opens the ledger of the stopped program and checks that nothing in it is open. Returns the attempts by cluster.
    pub(crate) async fn check_ledger(&self) -> Result<BTreeMap<String, Vec<AttemptRecord>>> {
        let (ledger, _) = Ledger::open(&self.fleet.data_dir()).await?;
        let open = ledger.interrupted_attempts().await?;
        ensure!(open.is_empty(), "open attempts: {open:#?}");
        let group: SyncGroup = self.fleet.get(GROUP).await?;
        let identity = group.status.and_then(|status| status.identity);
        let id = GroupId::new(identity.context("a group without an identity")?.id);
        let open = ledger.open_admissions(&id).await?;
        ensure!(open.is_empty(), "open admissions: {open:#?}");
        let rollouts = ledger.rollouts(&id).await?;
        ensure!(
            rollouts.iter().all(|record| match record.end {
                Some(end) if end.outcome == RolloutOutcome::Succeeded => true,
                Some(end) if end.outcome == RolloutOutcome::Superseded =>
                    self.may_be_skipped(&record.rollout),
                _ => false,
            }),
            "{rollouts:#?}"
        );
        let attempts = self.attempts(&ledger).await?;
        ledger.close().await;
        self.check_journal(&id).await?;
        Ok(attempts)
    }

    /// Verifies the journal as `starling verify` does: it contains every executed plan, and the chain is valid.
    async fn check_journal(&self, group_id: &GroupId) -> Result<()> {
        let mut view = LedgerView::open(&self.fleet.data_dir()).await?;
        let journals = view.journals(NAMESPACE, GROUP).await?;
        let mut of_group = journals.iter().filter(|journal| journal.group_id == *group_id);
        let journal = of_group.next().context("a group without a journal")?;
        let verdict = verify(&journal.chain, &journal.entries, None);
        ensure!(verdict.flaws.is_empty(), "{:#?}", verdict.flaws);
        ensure!(verdict.starts > 0, "nothing was ever started");
        Ok(())
    }

    fn may_be_skipped(&self, rollout: &Rollout) -> bool {
        rollout
            .revisions
            .values()
            .all(|revision| self.skippable.iter().any(|commit| revision.ends_with(commit)))
    }

    /// Opens the ledger of the stopped program, without checks. Returns the attempts by cluster.
    pub(crate) async fn read_attempts(&self) -> Result<BTreeMap<String, Vec<AttemptRecord>>> {
        let (ledger, _) = Ledger::open(&self.fleet.data_dir()).await?;
        let attempts = self.attempts(&ledger).await?;
        ledger.close().await;
        Ok(attempts)
    }

    async fn attempts(&self, ledger: &Ledger) -> Result<BTreeMap<String, Vec<AttemptRecord>>> {
        let mut attempts = BTreeMap::new();
        for sync in self.fleet.syncs().await? {
            let of_sync = ledger
                .attempts(&format!("{NAMESPACE}/{}", sync.name_any()))
                .await?;
            attempts.insert(sync.spec.cluster_ref.name.clone(), of_sync);
        }
        Ok(attempts)
    }

    /// Returns the maximum number of clusters in flight.
    pub(crate) fn most_in_flight(&self) -> Result<usize> {
        self.bound.check()
    }

    /// Returns the last pushed round.
    pub(crate) fn round(&self) -> &Round {
        &self.last
    }
}

fn config_map(name: &str, value: &str) -> String {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "default"}, "data": {"value": value},
    })
    .to_string()
}

/// A kind with a generation, which no controller runs.
fn deployment(name: &str, image: &str) -> String {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": name, "image": image}]},
            },
        },
    })
    .to_string()
}
