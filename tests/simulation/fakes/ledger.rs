//! The ledger in memory. `tests/simulation/ledger_model.rs` compares it with SQLite.

use std::collections::{BTreeMap, BTreeSet};
use std::future::ready;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use jiff::Timestamp;
use starling::controller::ports;
use starling_core::apply::{Record, Recorded};
use starling_core::ids::{ClusterId, ClusterName, EntryName, GroupId, OwnerLabel, RolloutNumber};
use starling_core::journal::{Chain, ChainEnd, JournalEntry, hash};
use starling_core::object::ObjectId;
use starling_ledger::{
    Admission, AdmissionEnd, AdmissionKey, AdmissionOutcome, AdmissionRecord, Attempt, AttemptEnd, AttemptId,
    AttemptOutcome, AttemptRecord, Due, EntryOnCluster, Existing, Forgotten, GroupJournal, LedgerError,
    NOTHING_WRITTEN, NewEntry, ObjectCounts, QueueKey, Rollout, RolloutEnd, RolloutOutcome, RolloutRecord,
};

use crate::world::now;

/// Maximum number of attempts of a Sync, and of rollouts of a group.
const KEPT: usize = 20;
/// Maximum length of a message or reason, in bytes.
const MAX_TEXT: usize = 512;

/// The data on the disk.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tables {
    admissions: Vec<AdmissionRecord>,
    attempts: BTreeMap<i64, AttemptRecord>,
    last_attempt: i64,
    rollouts: Vec<RolloutRecord>,
    /// By cluster ID and owner.
    records: BTreeMap<(ClusterId, OwnerLabel), BTreeMap<ObjectId, Record>>,
    /// The attempts of the records, by cluster ID and owner.
    record_attempts: BTreeMap<(ClusterId, OwnerLabel), Timestamp>,
    queue: BTreeMap<QueueKey, Timestamp>,
    /// By group; the limit of the total size is not modelled.
    journals: BTreeMap<GroupId, JournalTable>,
}

/// The journal of a group.
#[derive(Clone, Debug)]
struct JournalTable {
    chain: Chain,
    /// Each with whether it is independent of earlier entries.
    entries: Vec<(JournalEntry, bool)>,
}

impl JournalTable {
    fn group_journal(&self, group_id: &GroupId) -> GroupJournal {
        GroupJournal {
            group_id: group_id.clone(),
            chain: self.chain.clone(),
            entries: self.entries.iter().map(|(entry, _)| entry.clone()).collect(),
        }
    }
}

/// A disk with a ledger. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk {
    tables: Arc<Mutex<Tables>>,
    /// The snapshots, in order.
    snapshots: Arc<Mutex<Vec<Tables>>>,
    /// Every entry of the journals that was ever committed. It is no part of the disk: a disk that is lost or put back
    /// erases no evidence.
    written: Arc<Mutex<Vec<WrittenEntry>>>,
}

/// An entry of the journal of a group, when it was committed.
#[derive(Clone, Debug)]
pub(crate) struct WrittenEntry {
    /// Time of the commit, by the clock of the simulation.
    pub(crate) at: Timestamp,
    /// Hash of the previous entry of the group on the same disk.
    pub(crate) previous: String,
    pub(crate) entry: JournalEntry,
}

impl Disk {
    /// Replaces the disk with an empty one.
    pub(crate) fn replace(&self) {
        *self.tables() = Tables::default();
    }

    /// Takes a snapshot.
    pub(crate) fn take_snapshot(&self) {
        let snapshot = self.tables().clone();
        self.snapshots
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(snapshot);
    }

    /// Puts the disk back to a snapshot: 0 is the last one; the first one, if there are fewer.
    pub(crate) fn put_back(&self, age: usize) {
        let snapshots = self.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
        let snapshot = snapshots.iter().rev().nth(age).or(snapshots.first());
        *self.tables() = snapshot.cloned().unwrap_or_default();
    }

    /// Returns the journals of all groups.
    pub(crate) fn journals(&self) -> Vec<GroupJournal> {
        let tables = self.tables();
        let journals = tables.journals.iter();
        journals
            .map(|(group_id, table)| table.group_journal(group_id))
            .collect()
    }

    /// Returns all entries of journals that were ever committed, in order.
    pub(crate) fn written(&self) -> Vec<WrittenEntry> {
        self.written
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn witness(&self, written: WrittenEntry) {
        self.written
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(written);
    }

    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The open ledger of one process.
#[derive(Debug)]
pub(crate) struct MemoryLedger {
    disk: Disk,
    /// Duration of a commit. Data is committed in its first half and acknowledged in its second, so that a crash can
    /// come between the two.
    commit: Duration,
    last_before: i64,
    closed: AtomicBool,
    calls: AtomicU64,
}

impl MemoryLedger {
    pub(crate) fn open(disk: &Disk, commit: Duration) -> Self {
        let last_before = disk.tables().attempts.keys().next_back().copied().unwrap_or(0);
        Self {
            disk: disk.clone(),
            commit,
            last_before,
            closed: AtomicBool::new(false),
            calls: AtomicU64::new(0),
        }
    }

    /// Runs one transaction.
    async fn write<T>(
        &self,
        change: impl FnOnce(&mut Tables) -> Result<T, LedgerError>,
    ) -> Result<T, LedgerError> {
        self.check()?;
        // Every second transaction is on the disk before its acknowledgement, the others at the same time.
        let early = self.calls.fetch_add(1, Ordering::Relaxed).is_multiple_of(2);
        if !early {
            self.pause().await;
        }
        let response = change(&mut self.disk.tables());
        if early {
            self.pause().await;
        }
        response
    }

    fn read<T>(&self, read: impl FnOnce(&Tables) -> T) -> Result<T, LedgerError> {
        self.check()?;
        Ok(read(&self.disk.tables()))
    }

    fn check(&self) -> Result<(), LedgerError> {
        if self.closed.load(Ordering::SeqCst) {
            return Err(LedgerError::Closed);
        }
        Ok(())
    }

    async fn pause(&self) {
        if !self.commit.is_zero() {
            tokio::time::sleep(self.commit).await;
        }
    }

    pub(crate) fn open_admissions(&self, group_id: &GroupId) -> Result<Vec<Admission>, LedgerError> {
        self.read(|tables| {
            let open = tables.admissions.iter().filter(|row| row.end.is_none());
            open.filter(|row| row.admission.key.group_id == *group_id)
                .map(|row| row.admission.clone())
                .collect()
        })
    }

    pub(crate) fn admissions(
        &self,
        group_id: &GroupId,
        rollout: RolloutNumber,
    ) -> Result<Vec<AdmissionRecord>, LedgerError> {
        let of = |row: &&AdmissionRecord| {
            row.admission.key.group_id == *group_id && row.admission.key.rollout == rollout
        };
        self.read(|tables| tables.admissions.iter().filter(of).cloned().collect())
    }

    pub(crate) fn journal(&self, group_id: &GroupId) -> Result<Option<GroupJournal>, LedgerError> {
        self.read(|tables| {
            let table = tables.journals.get(group_id)?;
            Some(table.group_journal(group_id))
        })
    }

    pub(crate) fn attempts(&self, sync_id: &str) -> Result<Vec<AttemptRecord>, LedgerError> {
        self.read(|tables| {
            let newest_first = tables.attempts.values().rev();
            newest_first
                .filter(|row| row.attempt.sync_id == sync_id)
                .cloned()
                .collect()
        })
    }
}

impl Tables {
    fn admit(&mut self, admissions: &[Admission]) {
        self.reopen(admissions);
        for admission in admissions {
            self.insert(admission);
        }
        let groups: BTreeSet<&GroupId> = admissions.iter().map(|one| &one.key.group_id).collect();
        self.supersede(&groups);
    }

    /// Deletes the ended rows of targets that are admitted again.
    fn reopen(&mut self, admissions: &[Admission]) {
        let is_reopened = |at: usize, row: &AdmissionRecord| {
            let key = &row.admission.key;
            let later = || {
                let later = self.admissions[at + 1..].iter();
                later.filter(|newer| slot(&newer.admission.key) == slot(key))
            };
            let given_up = matches!(
                row.end,
                Some(AdmissionEnd {
                    outcome: AdmissionOutcome::Failed | AdmissionOutcome::Left,
                    ..
                })
            );
            let returns = given_up || later().next().is_some();
            let is_stale = later().any(|newer| newer.admission.key.rollout != key.rollout);
            let mut again = admissions.iter().filter(|admission| admission.key == *key);
            let is_again = again.any(|again| micros(again.admitted_at) != row.admission.admitted_at);
            row.end.is_some() && returns && !is_stale && is_again
        };
        let rows = self.admissions.iter().enumerate();
        let kept: Vec<bool> = rows.map(|(at, row)| !is_reopened(at, row)).collect();
        let mut kept = kept.into_iter();
        self.admissions.retain(|_| kept.next().unwrap_or(true));
    }

    fn insert(&mut self, admission: &Admission) {
        let mut rows = self.admissions.iter_mut();
        if let Some(row) = rows.find(|row| row.admission.key == admission.key) {
            if row.end.is_none() {
                row.admission.admitted_at = micros(admission.admitted_at);
            }
            return;
        }
        self.admissions.push(AdmissionRecord {
            admission: Admission {
                admitted_at: micros(admission.admitted_at),
                ..admission.clone()
            },
            end: None,
            reason: String::new(),
        });
    }

    fn leave(&mut self, place: EntryOnCluster<'_>, at: Timestamp) -> bool {
        let open = |row: &&mut AdmissionRecord| row.end.is_none() && slot(&row.admission.key) == place;
        let row = self.admissions.iter_mut().find(open);
        row.map(|row| {
            row.end = Some(AdmissionEnd {
                outcome: AdmissionOutcome::Left,
                ended_at: micros(at),
            });
        })
        .is_some()
    }

    fn abandon_others(&mut self, groups: &BTreeSet<GroupId>, at: Timestamp) {
        let rollouts = self.rollouts.iter_mut().filter(|row| row.end.is_none());
        for row in rollouts.filter(|row| !groups.contains(&row.rollout.group_id)) {
            row.end = Some(RolloutEnd {
                outcome: RolloutOutcome::Abandoned,
                ended_at: micros(at),
            });
        }
        let admissions = self.admissions.iter_mut().filter(|row| row.end.is_none());
        for row in admissions.filter(|row| !groups.contains(&row.admission.key.group_id)) {
            row.end = Some(AdmissionEnd {
                outcome: AdmissionOutcome::Left,
                ended_at: micros(at),
            });
        }
    }

    fn forget_deleted(&mut self, existing: &Existing, before: Timestamp) -> Forgotten {
        let before = micros(before);
        let mut forgotten = Forgotten::default();
        let count = |from: usize, to: usize| u64::try_from(from - to).unwrap_or(0);
        let rows = self.rollouts.len();
        self.rollouts.retain(|row| {
            existing.groups.contains(&row.rollout.group_id)
                || row.end.as_ref().is_none_or(|end| end.ended_at >= before)
        });
        forgotten.rollouts = count(rows, self.rollouts.len());
        let rows = self.admissions.len();
        self.admissions.retain(|row| {
            existing.groups.contains(&row.admission.key.group_id)
                || row.end.as_ref().is_none_or(|end| end.ended_at >= before)
        });
        forgotten.admissions = count(rows, self.admissions.len());
        let rows = self.attempts.len();
        self.attempts.retain(|_, row| {
            existing.syncs.contains(&row.attempt.sync_id)
                || row.end.as_ref().is_none_or(|end| end.ended_at >= before)
        });
        forgotten.attempts = count(rows, self.attempts.len());
        let rows = |tables: &Self| tables.records.values().map(BTreeMap::len).sum::<usize>();
        let before = rows(self);
        self.records
            .retain(|(cluster, _), _| existing.clusters.contains(cluster));
        self.record_attempts
            .retain(|(cluster, _), _| existing.clusters.contains(cluster));
        forgotten.records = count(before, rows(self));
        forgotten
    }

    /// Ends every open row that is not the newest of its entry and cluster.
    fn supersede(&mut self, groups: &BTreeSet<&GroupId>) {
        let mut newest: BTreeMap<(GroupId, EntryName, ClusterName), Admission> = BTreeMap::new();
        for row in self.admissions.iter_mut().rev() {
            let key = &row.admission.key;
            if !groups.contains(&key.group_id) {
                continue;
            }
            let place = (key.group_id.clone(), key.entry.clone(), key.cluster.clone());
            match newest.get(&place) {
                None => drop(newest.insert(place, row.admission.clone())),
                Some(newer) if row.end.is_none() => {
                    row.end = Some(AdmissionEnd {
                        outcome: AdmissionOutcome::Superseded,
                        ended_at: newer.admitted_at,
                    });
                    let AdmissionKey { target, rollout, .. } = &newer.key;
                    row.reason = format!("target {target} of rollout {rollout} was admitted");
                }
                Some(_) => {}
            }
        }
    }

    fn settle(
        &mut self,
        key: &AdmissionKey,
        outcome: AdmissionOutcome,
        reason: &str,
        at: Timestamp,
    ) -> Result<bool, LedgerError> {
        let open = |row: &&mut AdmissionRecord| row.end.is_none() && row.admission.key == *key;
        let Some(row) = self.admissions.iter_mut().find(open) else {
            return Ok(false);
        };
        if outcome == AdmissionOutcome::Failed && reason.is_empty() {
            return Err(LedgerError::Write {
                operation: format!("settle the admission of {} on {}", key.entry, key.cluster),
                source: sqlx::Error::Protocol("a failure without a reason".into()),
            });
        }
        row.end = Some(AdmissionEnd {
            outcome,
            ended_at: micros(at),
        });
        row.reason = clip(reason);
        Ok(true)
    }

    fn begin_attempt(&mut self, attempt: &Attempt) -> AttemptId {
        self.last_attempt += 1;
        let id = AttemptId::new(self.last_attempt);
        let attempt = Attempt {
            started_at: micros(attempt.started_at),
            ..attempt.clone()
        };
        let sync_id = attempt.sync_id.clone();
        let row = AttemptRecord {
            id,
            attempt,
            end: None,
        };
        self.attempts.insert(self.last_attempt, row);
        let mut of_sync: Vec<i64> = Vec::new();
        for (number, row) in self.attempts.iter().rev() {
            if row.attempt.sync_id == sync_id {
                of_sync.push(*number);
            }
        }
        if let Some(oldest) = of_sync.get(KEPT).copied() {
            self.attempts.retain(|number, row| {
                row.attempt.sync_id != sync_id || row.end.is_none() || *number > oldest
            });
        }
        id
    }

    fn finish_attempt(&mut self, id: AttemptId, end: &AttemptEnd) -> bool {
        let open = |row: &&mut AttemptRecord| row.id == id && row.end.is_none();
        let Some(row) = self.attempts.values_mut().find(open) else {
            return false;
        };
        row.end = Some(AttemptEnd {
            message: clip(&end.message),
            ended_at: micros(end.ended_at),
            ..end.clone()
        });
        true
    }

    fn nothing_written(&self, admission: &Admission, attempted: Option<Timestamp>) -> bool {
        let admitted_at = micros(admission.admitted_at);
        let is_open = self.admissions.iter().any(|row| {
            row.end.is_none()
                && row.admission.key == admission.key
                && row.admission.admitted_at == admitted_at
        });
        let sync_id = format!("{}/{}", admission.sync_namespace, admission.sync_name);
        let attempts: Vec<&AttemptRecord> = self
            .attempts
            .values()
            .filter(|row| row.attempt.sync_id == sync_id && row.attempt.target == admission.key.target)
            .collect();
        let wrote_nothing = |row: &&AttemptRecord| {
            row.end
                .as_ref()
                .is_some_and(|end| end.outcome == AttemptOutcome::Failed && end.reason == NOTHING_WRITTEN)
        };
        let knows = |at: Timestamp| attempts.iter().any(|row| row.attempt.started_at == micros(at));
        is_open && attempts.len() < KEPT && attempts.iter().all(wrote_nothing) && attempted.is_none_or(knows)
    }

    fn interrupted(&self, last: i64) -> Vec<AttemptRecord> {
        let before = self.attempts.range(..=last).map(|(_, row)| row);
        before.filter(|row| row.end.is_none()).cloned().collect()
    }

    fn close_interrupted(&mut self, last: i64, at: Timestamp) -> u64 {
        let mut ended = 0;
        for (_, row) in self.attempts.range_mut(..=last) {
            if row.end.is_none() {
                ended += 1;
                row.end = Some(AttemptEnd {
                    outcome: AttemptOutcome::Interrupted,
                    reason: String::new(),
                    message: String::new(),
                    counts: ObjectCounts::default(),
                    ended_at: micros(at),
                });
            }
        }
        ended
    }

    fn begin_rollout(&mut self, rollout: &Rollout) -> bool {
        let same = |row: &&mut RolloutRecord| {
            row.rollout.group_id == rollout.group_id && row.rollout.id == rollout.id
        };
        let started_at = micros(rollout.started_at);
        // A lost rollout whose number begins again.
        self.rollouts.retain(|row| {
            let is_same = row.rollout.group_id == rollout.group_id && row.rollout.id == rollout.id;
            !(is_same && row.end.is_some() && row.rollout.started_at < started_at)
        });
        match self.rollouts.iter_mut().find(same) {
            None => self.rollouts.push(RolloutRecord {
                rollout: Rollout {
                    started_at,
                    ..rollout.clone()
                },
                end: None,
            }),
            Some(row)
                if row.end.is_none()
                    && (row.rollout.release != rollout.release
                        || row.rollout.started_at != started_at
                        || row.rollout.previous != rollout.previous) =>
            {
                row.rollout.release.clone_from(&rollout.release);
                row.rollout.revisions.clone_from(&rollout.revisions);
                row.rollout.started_at = started_at;
                row.rollout.previous = rollout.previous;
            }
            Some(_) => return false,
        }
        self.prune_rollouts(&rollout.group_id);
        true
    }

    fn prune_rollouts(&mut self, group: &GroupId) {
        let mut of_group = 0;
        let mut data: Vec<RolloutRecord> = Vec::new();
        for row in self.rollouts.drain(..).rev() {
            let ours = row.rollout.group_id == *group;
            of_group += usize::from(ours);
            if !ours || of_group <= KEPT || row.end.is_none() {
                data.push(row);
            }
        }
        data.reverse();
        self.rollouts = data;
        let ids: BTreeSet<RolloutNumber> = self
            .rollouts
            .iter()
            .filter(|row| row.rollout.group_id == *group)
            .map(|row| row.rollout.id)
            .collect();
        self.admissions.retain(|row| {
            let key = &row.admission.key;
            key.group_id != *group || row.end.is_none() || ids.contains(&key.rollout)
        });
    }

    fn end_rollout(
        &mut self,
        group: &GroupId,
        id: RolloutNumber,
        outcome: RolloutOutcome,
        at: Timestamp,
    ) -> bool {
        let open = |row: &&mut RolloutRecord| {
            row.end.is_none() && row.rollout.group_id == *group && row.rollout.id == id
        };
        let found = self.rollouts.iter_mut().find(open);
        let ended_at = micros(at);
        found
            .map(|row| row.end = Some(RolloutEnd { outcome, ended_at }))
            .is_some()
    }

    fn append_journal(&mut self, new: &NewEntry) -> WrittenEntry {
        let table = self
            .journals
            .entry(new.group_id.clone())
            .or_insert_with(|| JournalTable {
                chain: Chain {
                    cut: ChainEnd::beginning(),
                    newest: ChainEnd::beginning(),
                },
                entries: Vec::new(),
            });
        let mut entry = JournalEntry {
            group_id: new.group_id.clone(),
            namespace: new.namespace.clone(),
            name: new.name.clone(),
            rollout: new.rollout,
            seq: table.chain.newest.seq + 1,
            at: micros(new.at),
            body: new.body.clone(),
            hash: String::new(),
        };
        entry.hash = hash(&table.chain.newest.hash, &entry);
        let written = WrittenEntry {
            at: now(),
            previous: table.chain.newest.hash.clone(),
            entry: entry.clone(),
        };
        table.chain.newest = end_of(&entry);
        table.entries.push((entry, new.is_whole));
        let begins = |two: &[(JournalEntry, bool)]| two[0].0.rollout != two[1].0.rollout;
        let first_of_each = table
            .entries
            .windows(2)
            .enumerate()
            .filter(|(_, two)| begins(two));
        let firsts: Vec<usize> = first_of_each.map(|(place, _)| place + 1).collect();
        // There is one more run than there are positions at which a run begins.
        if let Some(surplus) = (firsts.len() + 1)
            .checked_sub(KEPT)
            .filter(|surplus| *surplus > 0)
        {
            let cut = table.entries.drain(..firsts[surplus - 1]).next_back();
            table.chain.cut = cut.map_or_else(ChainEnd::beginning, |(entry, _)| end_of(&entry));
        }
        written
    }

    fn journal_tail(&self, group_id: &GroupId) -> Vec<JournalEntry> {
        let Some(table) = self.journals.get(group_id) else {
            return Vec::new();
        };
        let first_of_run = table
            .entries
            .windows(2)
            .rposition(|two| two[0].0.rollout != two[1].0.rollout)
            .map_or(0, |place| place + 1);
        let whole = table.entries.iter().rposition(|(_, is_whole)| *is_whole);
        let from = whole.unwrap_or(0).max(first_of_run);
        table.entries[from..]
            .iter()
            .map(|(entry, _)| entry.clone())
            .collect()
    }

    fn other_owners(
        &self,
        cluster: &ClusterId,
        owner: &OwnerLabel,
        objects: &BTreeSet<ObjectId>,
    ) -> BTreeMap<ObjectId, Vec<OwnerLabel>> {
        let mut owners: BTreeMap<ObjectId, Vec<OwnerLabel>> = BTreeMap::new();
        for ((of, other), records) in &self.records {
            if of == cluster && other != owner {
                for key in records.keys().filter(|key| objects.contains(*key)) {
                    owners.entry(key.clone()).or_default().push(other.clone());
                }
            }
        }
        owners
    }

    fn recorded(&self, place: &(ClusterId, OwnerLabel)) -> Recorded {
        let objects = self.records.get(place).cloned().unwrap_or_default();
        let attempted_at = self.record_attempts.get(place);
        Recorded {
            attempted_at: attempted_at.copied().filter(|_| !objects.is_empty()),
            objects,
        }
    }

    fn save_records(
        &mut self,
        cluster: &ClusterId,
        owner: &OwnerLabel,
        upserts: &BTreeMap<ObjectId, Record>,
        deletes: &BTreeSet<ObjectId>,
    ) {
        let place = (cluster.clone(), owner.clone());
        let known = self.records.entry(place).or_default();
        known.retain(|key, _| !deletes.contains(key));
        known.extend(upserts.clone());
    }
}

fn slot(key: &AdmissionKey) -> EntryOnCluster<'_> {
    EntryOnCluster {
        group_id: &key.group_id,
        entry: &key.entry,
        cluster: &key.cluster,
    }
}

fn end_of(entry: &JournalEntry) -> ChainEnd {
    ChainEnd {
        seq: entry.seq,
        hash: entry.hash.clone(),
    }
}

fn micros(time: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(time.as_microsecond()).unwrap_or(time)
}

fn clip(text: &str) -> String {
    text[..text.floor_char_boundary(MAX_TEXT)].to_owned()
}

type PortFuture<'a, T> = BoxFuture<'a, Result<T, LedgerError>>;

impl ports::Ledger for MemoryLedger {
    fn record_admissions<'a>(&'a self, admissions: &'a [Admission]) -> PortFuture<'a, ()> {
        if admissions.is_empty() {
            return ready(Ok(())).boxed();
        }
        self.write(|tables| {
            tables.admit(admissions);
            Ok(())
        })
        .boxed()
    }

    fn settle_admission<'a>(
        &'a self,
        key: &'a AdmissionKey,
        outcome: AdmissionOutcome,
        reason: &'a str,
        ended_at: Timestamp,
    ) -> PortFuture<'a, bool> {
        self.write(move |tables| tables.settle(key, outcome, reason, ended_at))
            .boxed()
    }

    fn leave<'a>(&'a self, place: EntryOnCluster<'a>, ended_at: Timestamp) -> PortFuture<'a, bool> {
        self.write(move |tables| Ok(tables.leave(place, ended_at)))
            .boxed()
    }

    fn open_admissions<'a>(&'a self, group_id: &'a GroupId) -> PortFuture<'a, Vec<Admission>> {
        async move { MemoryLedger::open_admissions(self, group_id) }.boxed()
    }

    fn abandon_others<'a>(
        &'a self,
        groups: &'a BTreeSet<GroupId>,
        ended_at: Timestamp,
    ) -> PortFuture<'a, ()> {
        self.write(move |tables| {
            tables.abandon_others(groups, ended_at);
            Ok(())
        })
        .boxed()
    }

    fn forget_deleted<'a>(
        &'a self,
        existing: &'a Existing,
        ended_before: Timestamp,
    ) -> PortFuture<'a, Forgotten> {
        self.write(move |tables| Ok(tables.forget_deleted(existing, ended_before)))
            .boxed()
    }

    fn begin_attempt<'a>(&'a self, attempt: &'a Attempt) -> PortFuture<'a, AttemptId> {
        self.write(|tables| Ok(tables.begin_attempt(attempt))).boxed()
    }

    fn finish_attempt<'a>(&'a self, id: AttemptId, end: &'a AttemptEnd) -> PortFuture<'a, bool> {
        self.write(move |tables| Ok(tables.finish_attempt(id, end)))
            .boxed()
    }

    fn nothing_written<'a>(
        &'a self,
        admission: &'a Admission,
        attempted: Option<Timestamp>,
    ) -> PortFuture<'a, bool> {
        async move { self.read(|tables| tables.nothing_written(admission, attempted)) }.boxed()
    }

    fn interrupted_attempts<'a>(&'a self) -> PortFuture<'a, Vec<AttemptRecord>> {
        async { self.read(|tables| tables.interrupted(self.last_before)) }.boxed()
    }

    fn close_interrupted<'a>(&'a self, ended_at: Timestamp) -> PortFuture<'a, u64> {
        self.write(move |tables| Ok(tables.close_interrupted(self.last_before, ended_at)))
            .boxed()
    }

    fn begin_rollout<'a>(&'a self, rollout: &'a Rollout) -> PortFuture<'a, bool> {
        self.write(|tables| Ok(tables.begin_rollout(rollout))).boxed()
    }

    fn end_rollout<'a>(
        &'a self,
        group_id: &'a GroupId,
        id: RolloutNumber,
        outcome: RolloutOutcome,
        ended_at: Timestamp,
    ) -> PortFuture<'a, bool> {
        self.write(move |tables| Ok(tables.end_rollout(group_id, id, outcome, ended_at)))
            .boxed()
    }

    fn rollouts<'a>(&'a self, group_id: &'a GroupId) -> PortFuture<'a, Vec<RolloutRecord>> {
        let of = move |row: &&RolloutRecord| row.rollout.group_id == *group_id;
        async move { self.read(|tables| tables.rollouts.iter().rev().filter(of).cloned().collect()) }.boxed()
    }

    fn append_journal<'a>(&'a self, entry: &'a NewEntry) -> PortFuture<'a, ()> {
        self.write(|tables| {
            let written = tables.append_journal(entry);
            self.disk.witness(written);
            Ok(())
        })
        .boxed()
    }

    fn journal_tail<'a>(&'a self, group_id: &'a GroupId) -> PortFuture<'a, Vec<JournalEntry>> {
        async move { self.read(|tables| tables.journal_tail(group_id)) }.boxed()
    }

    fn load_records<'a>(
        &'a self,
        cluster_id: &'a ClusterId,
        owner: &'a OwnerLabel,
    ) -> PortFuture<'a, Recorded> {
        let place = (cluster_id.clone(), owner.clone());
        async move { self.read(|tables| tables.recorded(&place)) }.boxed()
    }

    fn set_record_attempt<'a>(
        &'a self,
        cluster_id: &'a ClusterId,
        owner: &'a OwnerLabel,
        attempted_at: Timestamp,
    ) -> PortFuture<'a, ()> {
        let place = (cluster_id.clone(), owner.clone());
        self.write(move |tables| {
            tables.record_attempts.insert(place, micros(attempted_at));
            Ok(())
        })
        .boxed()
    }

    fn other_owners<'a>(
        &'a self,
        cluster_id: &'a ClusterId,
        owner: &'a OwnerLabel,
        objects: &'a BTreeSet<ObjectId>,
    ) -> PortFuture<'a, BTreeMap<ObjectId, Vec<OwnerLabel>>> {
        async move { self.read(|tables| tables.other_owners(cluster_id, owner, objects)) }.boxed()
    }

    fn save_records<'a>(
        &'a self,
        cluster_id: &'a ClusterId,
        owner: &'a OwnerLabel,
        upserts: &'a BTreeMap<ObjectId, Record>,
        deletes: &'a BTreeSet<ObjectId>,
    ) -> PortFuture<'a, ()> {
        if upserts.is_empty() && deletes.is_empty() {
            return ready(Ok(())).boxed();
        }
        self.write(move |tables| {
            tables.save_records(cluster_id, owner, upserts, deletes);
            Ok(())
        })
        .boxed()
    }

    fn drop_owner_records<'a>(
        &'a self,
        cluster_id: &'a ClusterId,
        owner: &'a OwnerLabel,
    ) -> PortFuture<'a, ()> {
        let place = (cluster_id.clone(), owner.clone());
        self.write(move |tables| {
            tables.records.remove(&place);
            tables.record_attempts.remove(&place);
            Ok(())
        })
        .boxed()
    }

    fn save_due<'a>(&'a self, entries: &'a [Due]) -> PortFuture<'a, ()> {
        if entries.is_empty() {
            return ready(Ok(())).boxed();
        }
        let entries = entries.iter().map(|due| (due.key.clone(), micros(due.at)));
        self.write(move |tables| {
            tables.queue.extend(entries);
            Ok(())
        })
        .boxed()
    }

    fn remove_due<'a>(&'a self, keys: &'a [QueueKey]) -> PortFuture<'a, ()> {
        if keys.is_empty() {
            return ready(Ok(())).boxed();
        }
        self.write(move |tables| {
            tables.queue.retain(|key, _| !keys.contains(key));
            Ok(())
        })
        .boxed()
    }

    fn load_queue<'a>(&'a self) -> PortFuture<'a, Vec<Due>> {
        let due = |tables: &Tables| {
            let mut queue: Vec<Due> = tables
                .queue
                .iter()
                .map(|(key, at)| Due {
                    key: key.clone(),
                    at: *at,
                })
                .collect();
            queue.sort_by(|one, other| (one.at, &one.key).cmp(&(other.at, &other.key)));
            queue
        };
        async move { self.read(due) }.boxed()
    }

    fn check_writable<'a>(&'a self) -> PortFuture<'a, ()> {
        ready(self.check()).boxed()
    }

    fn close<'a>(&'a self) -> BoxFuture<'a, ()> {
        async { self.closed.store(true, Ordering::SeqCst) }.boxed()
    }
}
