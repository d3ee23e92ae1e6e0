//! Compares the ledger in memory with SQLite: the same calls return the same results, also after a crash.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use starling::controller::ports::Ledger as Port;
use starling_apiserver::random::Random;
use starling_core::apply::{ManagementState, Record};
use starling_core::ids::{ClusterId, GroupId, OwnerLabel, RolloutNumber};
use starling_core::journal::check_chain;
use starling_core::object::ObjectId;
use starling_ledger::{
    Admission, AdmissionKey, AdmissionOutcome, Attempt, AttemptEnd, AttemptId, AttemptOutcome, Due,
    EntryOnCluster, Existing, Ledger, LedgerError, LedgerView, NewEntry, ObjectCounts, QueueKey, Rollout,
    RolloutOutcome,
};
use starling_testkit::wait;

use crate::fakes::ledger::{Disk, MemoryLedger};

/// Number of sequences of calls.
const SEQUENCES: u64 = 200;
/// Calls of a sequence: enough to exceed the limits of attempts and rollouts.
const CALLS: usize = 110;

/// A call. There are few names, so that calls concern the same rows.
#[derive(Clone, Debug)]
enum Call {
    Admit(Vec<Admission>),
    Settle(AdmissionKey, AdmissionOutcome, String, Timestamp),
    Leave(AdmissionKey, Timestamp),
    AbandonOthers(BTreeSet<GroupId>, Timestamp),
    ForgetDeleted(Existing, Timestamp),
    Begin(Attempt),
    NothingWritten(Admission, Option<Timestamp>),
    Finish(AttemptId, AttemptEnd),
    CloseInterrupted(Timestamp),
    BeginRollout(Rollout),
    EndRollout(GroupId, RolloutNumber, RolloutOutcome, Timestamp),
    Journal(NewEntry),
    Save(
        ClusterId,
        OwnerLabel,
        BTreeMap<ObjectId, Record>,
        BTreeSet<ObjectId>,
    ),
    DropOwner(ClusterId, OwnerLabel),
    OfAttempt(ClusterId, OwnerLabel, Timestamp),
    Due(Vec<Due>),
    NotDue(Vec<QueueKey>),
    /// An orderly restart of the process.
    Restart,
    /// A crash of the process.
    Crash,
}

struct Generator(Random);

impl Generator {
    fn below(&mut self, limit: u64) -> u64 {
        self.0.below(limit)
    }

    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[usize::try_from(self.below(of.len() as u64)).unwrap()].clone()
    }

    fn name(&mut self, of: &str) -> String {
        format!("{of}{}", self.below(3))
    }

    fn group(&mut self) -> GroupId {
        GroupId::new(self.name("g"))
    }

    fn cluster(&mut self) -> ClusterId {
        ClusterId::new(self.name("c"))
    }

    fn owner(&mut self) -> OwnerLabel {
        OwnerLabel::new(self.name("o"))
    }

    fn rollout(&mut self) -> RolloutNumber {
        RolloutNumber::new(i64::try_from(self.below(25)).unwrap())
    }

    /// Returns a time with a finer resolution than the stored one.
    fn time(&mut self) -> Timestamp {
        let nanos = 1_700_000_000_000_000_000 + i128::from(self.below(50)) * 1_000_000_123;
        Timestamp::from_nanosecond(nanos).unwrap()
    }

    fn text(&mut self) -> String {
        match self.below(4) {
            0 => String::new(),
            1 => "it's \"so\"; --".to_owned(),
            2 => "ü".repeat(300),
            _ => "for want of a nail".to_owned(),
        }
    }

    fn admission_key(&mut self) -> AdmissionKey {
        AdmissionKey {
            group_id: self.group(),
            rollout: self.rollout(),
            entry: self.name("e").into(),
            cluster: self.name("c").into(),
            target: self.name("t").into(),
        }
    }

    fn admission(&mut self) -> Admission {
        Admission {
            key: self.admission_key(),
            sync_namespace: "ns".to_owned(),
            sync_name: self.name("s").into(),
            revision: self.name("r"),
            admitted_at: self.time(),
        }
    }

    fn attempt(&mut self) -> Attempt {
        Attempt {
            sync_id: format!("s{}", self.below(2)),
            namespace: "ns".to_owned(),
            name: "s".to_owned(),
            cluster: self.name("c").into(),
            target: self.name("t").into(),
            revision: self.name("r"),
            number: u32::try_from(self.below(9)).unwrap(),
            started_at: self.time(),
        }
    }

    fn end(&mut self) -> AttemptEnd {
        let count = u32::try_from(self.below(100)).unwrap();
        AttemptEnd {
            outcome: self.one(&[
                AttemptOutcome::Succeeded,
                AttemptOutcome::Failed,
                AttemptOutcome::Superseded,
            ]),
            reason: self.name("R"),
            message: self.text(),
            counts: ObjectCounts {
                created: count,
                failed: count / 2,
                ..ObjectCounts::default()
            },
            ended_at: self.time(),
        }
    }

    fn object(&mut self) -> ObjectId {
        ObjectId {
            group: self.one(&[String::new(), "apps".to_owned()]),
            kind: self.name("K"),
            namespace: self.one(&[String::new(), "ns".to_owned()]),
            name: self.name("o"),
        }
    }

    fn record(&mut self) -> Record {
        Record {
            digest: self.text(),
            resource_version: self.below(100).to_string(),
            fields_digest: self.name("f"),
            fields_time: self.name("2026-01-01T00:00:0"),
            uid: self.name("u").into(),
            management: ManagementState {
                left_alone: self.below(2) == 0,
                owner: OwnerLabel::new(self.one(&["", "o1"])),
                released: String::new(),
            },
        }
    }

    fn several<T>(&mut self, most: u64, mut draw: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.below(most)).map(|_| draw(self)).collect()
    }

    fn existing(&mut self) -> Existing {
        Existing {
            groups: self.several(3, |draw| draw.group()).into_iter().collect(),
            syncs: self
                .several(3, |draw| draw.attempt().sync_id)
                .into_iter()
                .collect(),
            clusters: self.several(3, |draw| draw.cluster()).into_iter().collect(),
        }
    }

    fn queue_key(&mut self) -> QueueKey {
        QueueKey {
            kind: self.name("K"),
            namespace: "ns".to_owned(),
            name: self.name("q"),
        }
    }

    fn call(&mut self) -> Call {
        match self.below(71) {
            69 | 70 => {
                let attempted = (self.below(2) == 0).then(|| self.time());
                Call::NothingWritten(self.admission(), attempted)
            }
            67 | 68 => Call::ForgetDeleted(self.existing(), self.time()),
            63..=65 => Call::Leave(self.admission_key(), self.time()),
            66 => Call::AbandonOthers(
                self.several(4, |draw| draw.group()).into_iter().collect(),
                self.time(),
            ),
            40..=59 => Call::Journal(NewEntry {
                group_id: GroupId::new(self.one(&["g0", "g0", "g0", "g1"])),
                namespace: "ns".to_owned(),
                name: "g".to_owned(),
                rollout: self.rollout(),
                at: self.time(),
                body: format!("{:?}", self.text()),
                is_whole: self.below(4) == 0,
            }),
            60..=62 => Call::OfAttempt(self.cluster(), self.owner(), self.time()),
            0..=6 => Call::Admit(self.several(4, Self::admission)),
            7..=10 => {
                let outcome = self.one(&[
                    AdmissionOutcome::Applied,
                    AdmissionOutcome::Failed,
                    AdmissionOutcome::Failed,
                    AdmissionOutcome::Left,
                ]);
                Call::Settle(self.admission_key(), outcome, self.text(), self.time())
            }
            11..=18 => Call::Begin(self.attempt()),
            19..=23 => Call::Finish(
                AttemptId::new(i64::try_from(1 + self.below(40)).unwrap()),
                self.end(),
            ),
            24 => Call::CloseInterrupted(self.time()),
            25..=29 => Call::BeginRollout(Rollout {
                group_id: GroupId::new(self.one(&["g0", "g0", "g1"])),
                id: self.rollout(),
                namespace: "ns".to_owned(),
                name: "g".to_owned(),
                release: self.name("rel").into(),
                revisions: [("app".to_owned(), self.name("r"))].into(),
                started_at: self.time(),
                previous: self.one(&[
                    None,
                    Some(RolloutOutcome::Succeeded),
                    Some(RolloutOutcome::Failed),
                ]),
            }),
            30 | 31 => {
                let outcome = self.one(&[RolloutOutcome::Succeeded, RolloutOutcome::Superseded]);
                Call::EndRollout(GroupId::new("g0"), self.rollout(), outcome, self.time())
            }
            32..=34 => {
                let upserts = self.several(5, |draw| (draw.object(), draw.record()));
                let deletes = self.several(4, Self::object);
                let upserts = upserts.into_iter().collect();
                Call::Save(
                    self.cluster(),
                    self.owner(),
                    upserts,
                    deletes.into_iter().collect(),
                )
            }
            35 => Call::DropOwner(self.cluster(), self.owner()),
            36 => {
                let due = self.several(4, |draw| Due {
                    key: draw.queue_key(),
                    at: draw.time(),
                });
                Call::Due(due)
            }
            37 => Call::NotDue(self.several(3, Self::queue_key)),
            38 => Call::Restart,
            _ => Call::Crash,
        }
    }
}

fn text_of<T: Debug>(result: Result<T, LedgerError>) -> String {
    // The error texts of SQLite differ.
    result.map_or_else(|_| "refused".to_owned(), |result| format!("{result:?}"))
}

async fn run_call(ledger: &dyn Port, call: &Call) -> String {
    match call {
        Call::Admit(admissions) => text_of(ledger.record_admissions(admissions).await),
        Call::Settle(key, outcome, reason, at) => {
            text_of(ledger.settle_admission(key, *outcome, reason, *at).await)
        }
        Call::Leave(key, at) => {
            let place = EntryOnCluster {
                group_id: &key.group_id,
                entry: &key.entry,
                cluster: &key.cluster,
            };
            text_of(ledger.leave(place, *at).await)
        }
        Call::AbandonOthers(groups, at) => text_of(ledger.abandon_others(groups, *at).await),
        Call::ForgetDeleted(existing, at) => text_of(ledger.forget_deleted(existing, *at).await),
        Call::NothingWritten(admission, attempted) => {
            text_of(ledger.nothing_written(admission, *attempted).await)
        }
        Call::Begin(attempt) => text_of(ledger.begin_attempt(attempt).await),
        Call::Finish(id, end) => text_of(ledger.finish_attempt(*id, end).await),
        Call::CloseInterrupted(at) => text_of(ledger.close_interrupted(*at).await),
        Call::BeginRollout(rollout) => text_of(ledger.begin_rollout(rollout).await),
        Call::EndRollout(group, id, outcome, at) => {
            text_of(ledger.end_rollout(group, *id, *outcome, *at).await)
        }
        Call::Journal(entry) => text_of(ledger.append_journal(entry).await),
        Call::Save(cluster, owner, upserts, deletes) => {
            text_of(ledger.save_records(cluster, owner, upserts, deletes).await)
        }
        Call::DropOwner(cluster, owner) => text_of(ledger.drop_owner_records(cluster, owner).await),
        Call::OfAttempt(cluster, owner, attempted_at) => {
            text_of(ledger.set_record_attempt(cluster, owner, *attempted_at).await)
        }
        Call::Due(due) => text_of(ledger.save_due(due).await),
        Call::NotDue(keys) => text_of(ledger.remove_due(keys).await),
        Call::Restart | Call::Crash => String::new(),
    }
}

/// Returns everything that the port can read.
async fn contents(ledger: &dyn Port) -> Vec<String> {
    let mut all = vec![
        text_of(ledger.interrupted_attempts().await),
        text_of(ledger.load_queue().await),
    ];
    let objects: BTreeSet<ObjectId> = (0..3)
        .map(|n| ObjectId {
            group: "apps".to_owned(),
            kind: "K1".to_owned(),
            namespace: "ns".to_owned(),
            name: format!("o{n}"),
        })
        .collect();
    for n in 0..3 {
        let group = GroupId::new(format!("g{n}"));
        all.push(text_of(ledger.rollouts(&group).await));
        all.push(text_of(ledger.journal_tail(&group).await));
        for m in 0..3 {
            let (cluster, owner) = (ClusterId::new(format!("c{n}")), OwnerLabel::new(format!("o{m}")));
            all.push(text_of(ledger.load_records(&cluster, &owner).await));
            all.push(text_of(ledger.other_owners(&cluster, &owner, &objects).await));
        }
    }
    all
}

/// Returns the histories that only commands read.
async fn histories(sqlite: &Ledger, fake: &MemoryLedger, folder: &Path) -> (Vec<String>, Vec<String>) {
    let (mut one, mut other) = (Vec::new(), Vec::new());
    // While the ledger is open elsewhere, as `starling verify` does.
    let mut journals = LedgerView::open(folder)
        .await
        .unwrap()
        .journals("ns", "g")
        .await
        .unwrap();
    journals.sort_by(|one, other| one.group_id.cmp(&other.group_id));
    for journal in journals {
        assert_eq!(check_chain(&journal.chain, &journal.entries), []);
        other.push(text_of(fake.journal(&journal.group_id)));
        one.push(text_of(Ok::<_, LedgerError>(Some(journal))));
    }
    for n in 0..3 {
        let (group, sync) = (GroupId::new(format!("g{n}")), format!("s{n}"));
        one.push(text_of(sqlite.attempts(&sync).await));
        other.push(text_of(fake.attempts(&sync)));
        one.push(text_of(sqlite.open_admissions(&group).await));
        other.push(text_of(fake.open_admissions(&group)));
        for rollout in 0..25 {
            let rollout = RolloutNumber::new(rollout);
            one.push(text_of(sqlite.admissions(&group, rollout).await));
            other.push(text_of(fake.admissions(&group, rollout)));
        }
    }
    (one, other)
}

async fn compare(seed: u64) -> anyhow::Result<()> {
    let mut draw = Generator(Random::named(seed, "ledger"));
    let folder = tempfile::tempdir()?;
    let disk = Disk::default();
    let mut sqlite = Ledger::open(folder.path()).await?.0;
    let mut fake = MemoryLedger::open(&disk, Duration::ZERO);
    let mut calls = Vec::new();
    for _ in 0..CALLS {
        let call = draw.call();
        calls.push(call.clone());
        match &call {
            Call::Restart => {
                sqlite.close().await;
                Port::close(&fake).await;
                let closed = (
                    run_call(&sqlite, &calls[0]).await,
                    run_call(&fake, &calls[0]).await,
                );
                anyhow::ensure!(closed.0 == closed.1, "seed {seed}, closed: {closed:?}");
                drop(sqlite);
            }
            // Its writer ends a little after it is dropped.
            Call::Crash => drop(sqlite),
            _ => {
                let results = (run_call(&sqlite, &call).await, run_call(&fake, &call).await);
                anyhow::ensure!(
                    results.0 == results.1,
                    "seed {seed}: {results:#?} to the last of {calls:#?}"
                );
                continue;
            }
        }
        sqlite = wait::until(Duration::from_secs(10), "the folder is free", async || {
            Ledger::open(folder.path()).await
        })
        .await?
        .0;
        fake = MemoryLedger::open(&disk, Duration::ZERO);
        let all = (contents(&sqlite).await, contents(&fake).await);
        anyhow::ensure!(all.0 == all.1, "seed {seed}: after {calls:#?}\n{all:#?}");
    }
    let all = (contents(&sqlite).await, contents(&fake).await);
    anyhow::ensure!(all.0 == all.1, "seed {seed}: after {calls:#?}\n{all:#?}");
    let histories = histories(&sqlite, &fake, folder.path()).await;
    anyhow::ensure!(
        histories.0 == histories.1,
        "seed {seed}: after {calls:#?}\n{histories:#?}"
    );
    sqlite.close().await;
    Ok(())
}

#[test]
fn the_ledger_in_memory_behaves_like_sqlite() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(async {
        for seed in 0..SEQUENCES {
            compare(seed).await?;
        }
        Ok(())
    })
}
