//! The ports of the controller: everything that reads a clock, opens a connection, or starts a thread or a process.
//!
//! Outside simulations the adapters of this workspace implement the ports. A simulation passes others, which use
//! simulated time and no randomness of the machine, so that the same seed gives the same history (ADR 27).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use jiff::Timestamp;
use starling_core::apply::{Record, Recorded};
use starling_core::ids::{ClusterId, GroupId, OwnerLabel, RolloutNumber};
use starling_core::journal::JournalEntry;
use starling_core::object::ObjectId;
use starling_ledger::{
    Admission, AdmissionKey, AdmissionOutcome, Attempt, AttemptEnd, AttemptId, AttemptRecord, Due,
    EntryOnCluster, Existing, Forgotten, LedgerError, NewEntry, QueueKey, Rollout, RolloutOutcome,
    RolloutRecord,
};
use starling_member::Network;
use starling_net::clock::Clock;
use starling_net::web::{Post, Reply, WebError};

use super::artifacts::Artifacts;
use super::manifests::ManifestBuilder;

/// The adapters of a controller.
pub struct Ports {
    /// The clock.
    pub clock: Clock,
    /// The network that connects to members. The client of the management cluster is passed separately.
    pub network: Network,
    /// The ledger: state that survives a restart.
    pub ledger: Arc<dyn Ledger>,
    /// The artifacts of Sources.
    pub artifacts: Arc<dyn Artifacts>,
    /// The builder of manifests.
    pub manifest_builder: Arc<dyn ManifestBuilder>,
    /// The HTTP client for gates.
    pub web: Arc<dyn Web>,
}

/// Declares a port and implements it for an adapter: each method calls the method of the adapter with the same name.
macro_rules! port {
    (
        $(#[$about:meta])*
        $port:ident is $adapter:ty, failing with $error:ty {
            $($(#[$doc:meta])* fn $method:ident($($argument:ident: $type:ty),*) -> $answer:ty;)*
        }
        $($(#[$other_doc:meta])* fn $other:ident($($other_argument:ident: $other_type:ty),*) => $other_answer:ty;)*
    ) => {
        $(#[$about])*
        pub trait $port: Send + Sync {
            $(
                $(#[$doc])*
                fn $method<'a>(&'a self, $($argument: $type),*) -> BoxFuture<'a, Result<$answer, $error>>;
            )*
            $(
                $(#[$other_doc])*
                fn $other<'a>(&'a self, $($other_argument: $other_type),*) -> BoxFuture<'a, $other_answer>;
            )*
        }

        impl $port for $adapter {
            $(
                fn $method<'a>(&'a self, $($argument: $type),*) -> BoxFuture<'a, Result<$answer, $error>> {
                    <$adapter>::$method(self, $($argument),*).boxed()
                }
            )*
            $(
                fn $other<'a>(&'a self, $($other_argument: $other_type),*) -> BoxFuture<'a, $other_answer> {
                    <$adapter>::$other(self, $($other_argument),*).boxed()
                }
            )*
        }
    };
}

port! {
    /// Requests to servers that users name; see [`starling_net::web::Web`].
    Web is starling_net::web::Web, failing with WebError {
        /// Sends a request and reads the response.
        fn post(post: &'a Post) -> Reply;
    }
}

port! {
    /// The ledger; see [`starling_ledger::Ledger`] for each method.
    Ledger is starling_ledger::Ledger, failing with LedgerError {
        /// Records that targets are admitted.
        fn record_admissions(admissions: &'a [Admission]) -> ();
        /// Records the end of an admission.
        fn settle_admission(
            key: &'a AdmissionKey,
            outcome: AdmissionOutcome,
            reason: &'a str,
            ended_at: Timestamp
        ) -> bool;
        /// Records that an entry left a cluster.
        fn leave(place: EntryOnCluster<'a>, ended_at: Timestamp) -> bool;
        /// Returns the open admissions of a group.
        fn open_admissions(group_id: &'a GroupId) -> Vec<Admission>;
        /// Ends what is open of groups that no longer exist.
        fn abandon_others(groups: &'a BTreeSet<GroupId>, ended_at: Timestamp) -> ();
        /// Records that an attempt starts.
        fn begin_attempt(attempt: &'a Attempt) -> AttemptId;
        /// Records the end of an attempt.
        fn finish_attempt(id: AttemptId, end: &'a AttemptEnd) -> bool;
        /// Reports whether certainly no attempt has written to the member for an admission.
        fn nothing_written(admission: &'a Admission, attempted: Option<Timestamp>) -> bool;
        /// Returns the attempts that an earlier process did not end.
        fn interrupted_attempts() -> Vec<AttemptRecord>;
        /// Ends the attempts that an earlier process did not end.
        fn close_interrupted(ended_at: Timestamp) -> u64;
        /// Records that a rollout begins.
        fn begin_rollout(rollout: &'a Rollout) -> bool;
        /// Records the end of a rollout.
        fn end_rollout(
            group_id: &'a GroupId,
            id: RolloutNumber,
            outcome: RolloutOutcome,
            ended_at: Timestamp
        ) -> bool;
        /// Returns the rollouts of a group.
        fn rollouts(group_id: &'a GroupId) -> Vec<RolloutRecord>;
        /// Appends to the journal of a group.
        fn append_journal(entry: &'a NewEntry) -> ();
        /// Returns the journal of a group from its newest whole entry on.
        fn journal_tail(group_id: &'a GroupId) -> Vec<JournalEntry>;
        /// Returns the member records of an owner's objects on a cluster, and their attempt.
        fn load_records(cluster_id: &'a ClusterId, owner: &'a OwnerLabel) -> Recorded;
        /// Returns the other owners of objects on a cluster.
        fn other_owners(
            cluster_id: &'a ClusterId,
            owner: &'a OwnerLabel,
            objects: &'a BTreeSet<ObjectId>
        ) -> BTreeMap<ObjectId, Vec<OwnerLabel>>;
        /// Writes and deletes member records.
        fn save_records(
            cluster_id: &'a ClusterId,
            owner: &'a OwnerLabel,
            upserts: &'a BTreeMap<ObjectId, Record>,
            deletes: &'a BTreeSet<ObjectId>
        ) -> ();
        /// Records the attempt that the member records of an owner on a cluster belong to.
        fn set_record_attempt(
            cluster_id: &'a ClusterId,
            owner: &'a OwnerLabel,
            attempted_at: Timestamp
        ) -> ();
        /// Deletes the member records of an owner on a cluster.
        fn drop_owner_records(cluster_id: &'a ClusterId, owner: &'a OwnerLabel) -> ();
        /// Writes the times at which keys are due.
        fn save_due(entries: &'a [Due]) -> ();
        /// Deletes the times at which keys are due.
        fn remove_due(keys: &'a [QueueKey]) -> ();
        /// Returns the times at which keys are due.
        fn load_queue() -> Vec<Due>;
        /// Deletes what belongs to objects that do not exist.
        fn forget_deleted(existing: &'a Existing, ended_before: Timestamp) -> Forgotten;
        /// Commits a small write, which shows whether the ledger accepts writes.
        fn check_writable() -> ();
    }
    /// Closes the ledger.
    fn close() => ();
}
