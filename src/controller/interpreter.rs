//! Carries out the effects of the rollout machine, in their order.
//!
//! The machine decides ([`starling_core::rollout`]); the interpreter writes to the ledger, and to the management
//! cluster through [`GroupApi`]. The interpreter decides only what an error means: an effect that later effects depend
//! on ends the pass, and one of several independent effects does not prevent the others. The next pass steps from the
//! state that is known then.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use starling_api::{EntryRevision, SyncGroupStatus};
use starling_core::ids::{ClusterName, GroupId, ReleaseDigest, RolloutNumber, SyncName};
use starling_core::journal::{Draft, Recorder};
use starling_core::rollout::{
    self, Action, Admission, AdmissionRef, Effect, OpenGate, Outcome, ReleaseSnapshot, Removal,
    RolloutIntent, StatusWrite,
};
use starling_ledger::{
    Admission as Intent, AdmissionKey, AdmissionOutcome, EntryOnCluster, LedgerError, NewEntry, Rollout,
    RolloutOutcome,
};

use super::ports::Ledger;

/// Maximum number of removals that are counted with one write. Each is confirmed shortly before it is carried out.
const COUNTED_TOGETHER: usize = 16;

/// The operations on the management cluster that the effects of one pass over a group need.
pub trait GroupApi: Send {
    /// The error of a write.
    type Error: Send;

    /// Returns an error if what the pass has decided must not be carried out any more. Precedes each effect.
    ///
    /// # Errors
    /// The reason.
    fn may_continue(&self) -> Result<(), Self::Error>;

    /// Returns the name of the Sync of an entry on a cluster.
    fn sync_name(&self, cluster: &str, entry: &str) -> String;

    /// Stores a release.
    fn store_release(
        &mut self,
        rollout: RolloutNumber,
        snapshot: &Arc<ReleaseSnapshot>,
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Writes the status of the group.
    fn write_status(&mut self, write: &StatusWrite) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Records that an admission is settled, so that later passes do not settle it again.
    fn settled(&mut self, admission: &AdmissionRef);

    /// Removes the settled admissions that newly recorded admissions replace.
    fn reopened(&mut self, admissions: &[Admission]);

    /// Evaluates the open gates, and ends all others.
    fn evaluate_gates(&mut self, open: Vec<OpenGate>);

    /// Writes Syncs, each independently of the others. Returns whether all were written.
    fn admit(&mut self, admissions: &[Admission]) -> impl Future<Output = Result<bool, Self::Error>> + Send;

    /// Returns whether a Sync is really to be removed: its cluster may only be missing in the cache.
    fn confirm_removal(
        &mut self,
        removal: &Removal,
    ) -> impl Future<Output = Result<bool, Self::Error>> + Send;

    /// Counts confirmed removals against the deletion budget of the group, with one write at most. Precedes them.
    fn count_removals(
        &mut self,
        removals: &[Removal],
    ) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Removes a Sync.
    fn remove_sync(&mut self, removal: &Removal) -> impl Future<Output = Result<(), Self::Error>> + Send;

    /// Logs the error of a removal. The next pass tries again.
    fn removal_failed(&mut self, removal: &Removal, error: Self::Error);

    /// Logs that removals could not be counted, so that none of them is carried out. The next pass tries again.
    fn removals_not_counted(&mut self, removals: &[Removal], error: Self::Error);

    /// Allows prunes that Syncs request.
    fn allow_prunes(&mut self, syncs: &[SyncName]) -> impl Future<Output = ()> + Send;

    /// Deletes objects that nothing refers to. The next rollout that ends deletes the rest.
    fn collect_garbage(
        &mut self,
        rollout: RolloutNumber,
        named: &BTreeSet<ReleaseDigest>,
    ) -> impl Future<Output = ()> + Send;

    /// Computes the release digest of the rollout. Returns the time until the next pass, if one is required.
    fn digest_release(&mut self) -> impl Future<Output = Option<Duration>> + Send;

    /// Writes the marks and owner references that are missing, each independently of the others. Returns the time
    /// until the next pass if one could not be written.
    fn write_marks(&mut self) -> impl Future<Output = Option<Duration>> + Send;
}

/// The reason why a pass ended before all effects were carried out.
#[derive(Debug)]
pub enum Interrupted<E> {
    /// A request to the management cluster failed.
    Api(E),
    /// A write to the ledger failed.
    Ledger(LedgerError),
}

impl<E> From<LedgerError> for Interrupted<E> {
    fn from(error: LedgerError) -> Self {
        Self::Ledger(error)
    }
}

/// The results of the effects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct CarriedOut {
    /// Every admission was written.
    pub all_admitted: bool,
    /// Every removal was carried out.
    pub all_removed: bool,
    /// The time until the next pass, if one is required without an event.
    pub again: Option<Duration>,
}

/// The group that the ledger records effects of.
#[derive(Clone, Debug)]
pub struct RecordedGroup {
    /// The identity ([`starling_core::identity`]).
    pub id: GroupId,
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// The interpreter of the effects of one pass over one group.
pub struct Interpreter<'a, A> {
    /// The group.
    pub group: &'a RecordedGroup,
    /// The time of the pass.
    pub now: Timestamp,
    /// The ledger: intents, outcomes and the journal.
    pub ledger: &'a dyn Ledger,
    /// The management cluster.
    pub api: A,
}

impl<A: GroupApi> Interpreter<'_, A> {
    /// Carries effects out. `recorder` follows the appended entries of the journal.
    ///
    /// # Errors
    /// [`Interrupted`]: the effects after the failed one were not carried out.
    pub async fn carry_out(
        &mut self,
        effects: Vec<Effect>,
        recorder: &mut Recorder,
    ) -> Result<CarriedOut, Interrupted<A::Error>> {
        let mut done = CarriedOut {
            all_admitted: true,
            all_removed: true,
            again: None,
        };
        // The epoch is for a later check against the Lease: without elected leaders all effects have the same epoch.
        for Effect { epoch: _, action } in effects {
            self.api.may_continue().map_err(Interrupted::Api)?;
            match action {
                Action::AppendJournal { rollout, draft } => {
                    append(self.ledger, self.group, rollout, &draft).await?;
                    recorder.wrote(*draft);
                }
                Action::StoreRelease { rollout, snapshot } => {
                    let stored = self.api.store_release(rollout, &snapshot).await;
                    stored.map_err(Interrupted::Api)?;
                }
                Action::RecordRollout(intent) => self.record_rollout(intent).await?,
                Action::WriteStatus(write) => {
                    self.api.write_status(&write).await.map_err(Interrupted::Api)?;
                }
                Action::EndRollout { rollout, outcome } => self.end_rollout(rollout, outcome).await?,
                Action::EvaluateGates(open) => self.api.evaluate_gates(open),
                Action::SettleAdmission { admission, reason } => {
                    self.fail_admission(&admission, &reason).await?;
                    self.api.settled(&admission);
                }
                Action::RecordAdmissions(admissions) => {
                    // Reopening comes first because the response may be lost. A needless removal only costs a commit.
                    self.api.reopened(&admissions);
                    self.record_admissions(&admissions).await?;
                }
                Action::Admit(admissions) => {
                    let admitted = self.api.admit(&admissions).await;
                    done.all_admitted &= admitted.map_err(Interrupted::Api)?;
                }
                Action::RemoveSyncs(removals) => done.all_removed &= self.remove(removals).await?,
                Action::AllowPrunes(syncs) => self.api.allow_prunes(&syncs).await,
                Action::CollectGarbage { rollout, named } => {
                    self.api.collect_garbage(rollout, &named).await;
                }
                Action::DigestRelease => {
                    done.again = sooner(done.again, self.api.digest_release().await);
                }
                Action::WriteMarks => done.again = sooner(done.again, self.api.write_marks().await),
            }
        }
        Ok(done)
    }

    async fn record_rollout(&self, intent: RolloutIntent) -> Result<(), LedgerError> {
        let RolloutIntent {
            id,
            release,
            revisions,
            started_at,
            previous,
        } = intent;
        let RecordedGroup {
            id: group_id,
            namespace,
            name,
        } = self.group;
        tracing::info!(group = %name, namespace, rollout = id.get(), %release, revisions = %list(&revisions), "rollout starts");
        let rollout = Rollout {
            group_id: group_id.clone(),
            id,
            namespace: namespace.clone(),
            name: name.clone(),
            release,
            revisions: revisions
                .into_iter()
                .map(|entry| (entry.sync, entry.revision))
                .collect(),
            started_at,
            previous: previous.map(stored),
        };
        self.ledger.begin_rollout(&rollout).await?;
        Ok(())
    }

    async fn end_rollout(&self, rollout: RolloutNumber, outcome: Outcome) -> Result<(), LedgerError> {
        self.ledger
            .end_rollout(&self.group.id, rollout, stored(outcome), self.now)
            .await?;
        Ok(())
    }

    async fn fail_admission(&self, admission: &AdmissionRef, reason: &str) -> Result<(), LedgerError> {
        let key = key_of(&self.group.id, admission);
        self.ledger
            .settle_admission(&key, AdmissionOutcome::Failed, reason, self.now)
            .await?;
        Ok(())
    }

    async fn record_admissions(&self, admissions: &[Admission]) -> Result<(), LedgerError> {
        let intents: Vec<Intent> = admissions
            .iter()
            .map(|admission| self.intent(admission))
            .collect();
        self.ledger.record_admissions(&intents).await
    }

    fn intent(&self, admission: &Admission) -> Intent {
        let Admission {
            cluster,
            entry,
            release: _,
            rollout,
            target,
            revision,
            at,
            retried_for: _,
        } = admission;
        Intent {
            key: AdmissionKey {
                group_id: self.group.id.clone(),
                rollout: *rollout,
                entry: entry.clone(),
                cluster: cluster.clone(),
                target: target.clone(),
            },
            sync_namespace: self.group.namespace.clone(),
            sync_name: self.api.sync_name(cluster, entry).into(),
            revision: revision.clone(),
            admitted_at: *at,
        }
    }

    /// Removes Syncs, those of each cluster independently of the others. Returns whether all of them were removed.
    async fn remove(&mut self, removals: Vec<Removal>) -> Result<bool, LedgerError> {
        let mut waiting = BTreeSet::new();
        for removals in removals.chunks(COUNTED_TOGETHER) {
            let confirmed = self.confirmed(removals, &mut waiting).await;
            if let Err(error) = self.api.count_removals(&confirmed).await {
                waiting.extend(confirmed.iter().map(|removal| removal.cluster.clone()));
                self.api.removals_not_counted(&confirmed, error);
                continue;
            }
            self.remove_counted(&confirmed, &mut waiting).await?;
        }
        Ok(waiting.is_empty())
    }

    /// Returns the removals that the management cluster confirms. For the others, the cache will receive the Cluster,
    /// and the next pass decides again. `waiting`: the clusters with a Sync that stays. What follows it there may be
    /// what it depends on, and stays as well: an operator goes after its instances.
    async fn confirmed(&mut self, removals: &[Removal], waiting: &mut BTreeSet<ClusterName>) -> Vec<Removal> {
        let mut confirmed = Vec::with_capacity(removals.len());
        for removal in removals {
            if waiting.contains(&removal.cluster) {
                continue;
            }
            match self.api.confirm_removal(removal).await {
                Ok(true) => {
                    confirmed.push(removal.clone());
                    continue;
                }
                Ok(false) => {}
                Err(error) => self.api.removal_failed(removal, error),
            }
            waiting.insert(removal.cluster.clone());
        }
        confirmed
    }

    async fn remove_counted(
        &mut self,
        removals: &[Removal],
        waiting: &mut BTreeSet<ClusterName>,
    ) -> Result<(), LedgerError> {
        for removal in removals {
            if waiting.contains(&removal.cluster) {
                continue;
            }
            if let Err(error) = self.api.remove_sync(removal).await {
                self.api.removal_failed(removal, error);
                waiting.insert(removal.cluster.clone());
                continue;
            }
            // After the removal: a Sync that could not be removed may still be applied, and only the first end counts.
            // If the process dies in between, the next start finds an admission without a Sync.
            let place = EntryOnCluster {
                group_id: &self.group.id,
                entry: &removal.entry,
                cluster: &removal.cluster,
            };
            self.ledger.leave(place, self.now).await?;
        }
        Ok(())
    }
}

/// Appends an entry to the journal of a group.
///
/// # Errors
/// [`LedgerError`] if it cannot be written.
pub(super) async fn append(
    ledger: &dyn Ledger,
    group: &RecordedGroup,
    rollout: RolloutNumber,
    draft: &Draft,
) -> Result<(), LedgerError> {
    let entry = NewEntry {
        group_id: group.id.clone(),
        namespace: group.namespace.clone(),
        name: group.name.clone(),
        rollout,
        at: draft.at,
        body: draft.body.clone(),
        is_whole: draft.is_whole,
    };
    ledger.append_journal(&entry).await
}

fn sooner(one: Option<Duration>, other: Option<Duration>) -> Option<Duration> {
    one.into_iter().chain(other).min()
}

/// Returns the key of an admission in the ledger.
#[must_use]
pub fn key_of(group_id: &GroupId, admission: &AdmissionRef) -> AdmissionKey {
    let AdmissionRef {
        cluster,
        entry,
        rollout,
        target,
    } = admission.clone();
    AdmissionKey {
        group_id: group_id.clone(),
        rollout,
        entry,
        cluster,
        target,
    }
}

/// Returns the outcome of a rollout in the ledger.
#[must_use]
pub fn stored(outcome: Outcome) -> RolloutOutcome {
    match outcome {
        Outcome::Succeeded => RolloutOutcome::Succeeded,
        Outcome::Superseded => RolloutOutcome::Superseded,
        Outcome::Failed => RolloutOutcome::Failed,
    }
}

/// Returns the outcome of a rollout for the machine; `None` for an abandoned rollout, which the machine does not
/// produce.
#[must_use]
pub fn outcome(stored: RolloutOutcome) -> Option<Outcome> {
    match stored {
        RolloutOutcome::Succeeded => Some(Outcome::Succeeded),
        RolloutOutcome::Superseded => Some(Outcome::Superseded),
        RolloutOutcome::Failed => Some(Outcome::Failed),
        RolloutOutcome::Abandoned => None,
    }
}

fn list(revisions: &[EntryRevision]) -> String {
    let texts: Vec<String> = revisions
        .iter()
        .map(|entry| format!("{}={}", entry.sync, entry.revision))
        .collect();
    texts.join(" ")
}

/// The admissions that remain open after [`close_interrupted`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct StillOpen {
    /// An admission has no Sync yet. If its cluster leaves before the Sync is written, nothing else ends the admission.
    pub awaits_sync: bool,
}

/// Ends in the ledger what an interrupted pass or process left open: the rollouts of a group that its status has ended,
/// and the admissions whose Sync is gone or has been admitted by a later rollout. Returns what remains open.
///
/// # Errors
/// [`LedgerError`] if an end cannot be read or recorded.
pub async fn close_interrupted(
    ledger: &dyn Ledger,
    group_id: &GroupId,
    status: &SyncGroupStatus,
    syncs: impl Fn(&Intent) -> AdmittedSync,
    now: Timestamp,
) -> Result<StillOpen, LedgerError> {
    close_rollouts(ledger, group_id, status, now).await?;
    close_admissions(ledger, group_id, syncs, now).await
}

/// The Sync of an admission in the ledger.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdmittedSync {
    /// There is no Sync, and the group does not want one: it was removed, or never written.
    Gone,
    /// There is no Sync yet, and the group will write it.
    Awaited,
    /// The Sync cannot be read, or names no rollout.
    Unknown,
    /// The last admission of the Sync.
    At(AdmissionRef),
}

/// Ends the admissions that no Sync will end.
async fn close_admissions(
    ledger: &dyn Ledger,
    group_id: &GroupId,
    syncs: impl Fn(&Intent) -> AdmittedSync,
    now: Timestamp,
) -> Result<StillOpen, LedgerError> {
    let mut awaits_sync = false;
    for admission in ledger.open_admissions(group_id).await? {
        let key = &admission.key;
        match syncs(&admission) {
            AdmittedSync::Awaited => awaits_sync = true,
            AdmittedSync::Unknown => {}
            AdmittedSync::Gone => {
                let place = EntryOnCluster {
                    group_id,
                    entry: &key.entry,
                    cluster: &key.cluster,
                };
                ledger.leave(place, now).await?;
            }
            AdmittedSync::At(current) if current.rollout > key.rollout => {
                let reason = format!("rollout {} was admitted", current.rollout);
                let superseded = AdmissionOutcome::Superseded;
                ledger.settle_admission(key, superseded, &reason, now).await?;
            }
            AdmittedSync::At(_) => {}
        }
    }
    Ok(StillOpen { awaits_sync })
}

/// Ends in the ledger the rollouts of a group that status has ended, but whose end was not recorded because the pass or
/// the process was interrupted.
///
/// # Errors
/// [`LedgerError`] if an end cannot be read or recorded.
async fn close_rollouts(
    ledger: &dyn Ledger,
    group_id: &GroupId,
    status: &SyncGroupStatus,
    now: Timestamp,
) -> Result<(), LedgerError> {
    let records = ledger.rollouts(group_id).await?;
    let previous = |id: RolloutNumber| {
        let next = RolloutNumber::new(id.get() + 1);
        let successor = records.iter().find(|record| record.rollout.id == next);
        successor.and_then(|record| record.rollout.previous.and_then(outcome))
    };
    for record in records.iter().filter(|record| record.end.is_none()) {
        let id = record.rollout.id;
        if let Some(outcome) = rollout::ended(id, status, previous(id)) {
            let end = ledger.end_rollout(group_id, id, stored(outcome), now);
            end.await?;
        }
    }
    Ok(())
}
