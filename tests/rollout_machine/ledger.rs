//! The ledger for the interpreter: the real one, with a fault at any call.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use jiff::Timestamp;
use starling::controller::ports;
use starling_core::apply::{Record, Recorded};
use starling_core::ids::{ClusterId, GroupId, OwnerLabel, RolloutNumber};
use starling_core::journal::JournalEntry;
use starling_core::object::ObjectId;
use starling_ledger::{
    Admission, AdmissionKey, AdmissionOutcome, Attempt, AttemptEnd, AttemptId, AttemptRecord, Due,
    EntryOnCluster, Existing, Forgotten, Ledger, LedgerError, NewEntry, QueueKey, Rollout, RolloutOutcome,
    RolloutRecord,
};
use tempfile::TempDir;
use tokio::sync::OnceCell;

use crate::faults::{Faults, Interrupted};

/// Returns a directory for files that need not outlive the process: in memory where the system has such a directory.
fn directory() -> TempDir {
    TempDir::new_in("/dev/shm").or_else(|_| TempDir::new()).unwrap()
}

/// Creates a ledger without records, and returns its directory.
///
/// Each test creates hundreds of them, and to migrate one takes longer than all that happens in it. It is migrated once
/// and copied from then on.
pub(crate) async fn new_ledger() -> TempDir {
    static FILES: OnceCell<Vec<(OsString, Vec<u8>)>> = OnceCell::const_new();
    let read = || async {
        let directory = directory();
        let (ledger, _) = Ledger::open(directory.path()).await.unwrap();
        ledger.close().await;
        let files = std::fs::read_dir(directory.path()).unwrap().map(Result::unwrap);
        files
            .map(|file| (file.file_name(), std::fs::read(file.path()).unwrap()))
            .collect()
    };
    let directory = self::directory();
    for (name, content) in FILES.get_or_init(read).await {
        std::fs::write(directory.path().join(name), content).unwrap();
    }
    directory
}

/// The port of the ledger.
pub(crate) struct Port<'m> {
    pub(crate) ledger: &'m Ledger,
    pub(crate) faults: &'m Faults,
    /// Whether the end of the admission of a removed Sync is recorded.
    pub(crate) records_leaves: bool,
}

/// Any error is sufficient: the faults record its meaning.
fn refused(_: Interrupted) -> LedgerError {
    LedgerError::Closed
}

macro_rules! with_faults {
    ($(fn $method:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        $(
            fn $method<'a>(&'a self, $($argument: $type),*) -> BoxFuture<'a, Result<$result, LedgerError>> {
                async move {
                    let passage = self.faults.enter().map_err(refused)?;
                    // An error of the ledger itself fails the test.
                    let result = self.ledger.$method($($argument),*).await.unwrap();
                    passage.leave().map_err(refused)?;
                    Ok(result)
                }
                .boxed()
            }
        )*
    };
}

impl ports::Ledger for Port<'_> {
    with_faults! {
        fn record_admissions(admissions: &'a [Admission]) -> ();
        fn settle_admission(
            key: &'a AdmissionKey,
            outcome: AdmissionOutcome,
            reason: &'a str,
            ended_at: Timestamp
        ) -> bool;
        fn open_admissions(group_id: &'a GroupId) -> Vec<Admission>;
        fn abandon_others(groups: &'a BTreeSet<GroupId>, ended_at: Timestamp) -> ();
        fn forget_deleted(existing: &'a Existing, ended_before: Timestamp) -> Forgotten;
        fn begin_attempt(attempt: &'a Attempt) -> AttemptId;
        fn finish_attempt(id: AttemptId, end: &'a AttemptEnd) -> bool;
        fn nothing_written(admission: &'a Admission, attempted: Option<Timestamp>) -> bool;
        fn interrupted_attempts() -> Vec<AttemptRecord>;
        fn close_interrupted(ended_at: Timestamp) -> u64;
        fn begin_rollout(rollout: &'a Rollout) -> bool;
        fn end_rollout(
            group_id: &'a GroupId,
            id: RolloutNumber,
            outcome: RolloutOutcome,
            ended_at: Timestamp
        ) -> bool;
        fn rollouts(group_id: &'a GroupId) -> Vec<RolloutRecord>;
        fn append_journal(entry: &'a NewEntry) -> ();
        fn journal_tail(group_id: &'a GroupId) -> Vec<JournalEntry>;
        fn load_records(cluster_id: &'a ClusterId, owner: &'a OwnerLabel) -> Recorded;
        fn other_owners(
            cluster_id: &'a ClusterId,
            owner: &'a OwnerLabel,
            objects: &'a BTreeSet<ObjectId>
        ) -> BTreeMap<ObjectId, Vec<OwnerLabel>>;
        fn save_records(
            cluster_id: &'a ClusterId,
            owner: &'a OwnerLabel,
            upserts: &'a BTreeMap<ObjectId, Record>,
            deletes: &'a BTreeSet<ObjectId>
        ) -> ();
        fn set_record_attempt(
            cluster_id: &'a ClusterId,
            owner: &'a OwnerLabel,
            attempted_at: Timestamp
        ) -> ();
        fn drop_owner_records(cluster_id: &'a ClusterId, owner: &'a OwnerLabel) -> ();
        fn save_due(entries: &'a [Due]) -> ();
        fn remove_due(keys: &'a [QueueKey]) -> ();
        fn load_queue() -> Vec<Due>;
        fn check_writable() -> ();
    }

    fn leave<'a>(
        &'a self,
        place: EntryOnCluster<'a>,
        ended_at: Timestamp,
    ) -> BoxFuture<'a, Result<bool, LedgerError>> {
        async move {
            if !self.records_leaves {
                return Ok(false);
            }
            let passage = self.faults.enter().map_err(refused)?;
            let result = self.ledger.leave(place, ended_at).await.unwrap();
            passage.leave().map_err(refused)?;
            Ok(result)
        }
        .boxed()
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        self.ledger.close().boxed()
    }
}
