//! The ports of the controller: everything that reads a clock, opens a connection, starts a thread or a process.
//!
//! Outside simulations these are the adapters of this crate. A simulation hands in others that keep to simulated time
//! and draw nothing from the machine, so that the same seed gives the same history (ADR 27).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use jiff::Timestamp;
use starling_core::apply::Record;
use starling_core::journal::Entry;
use starling_core::object::ObjectId;
use starling_ledger::{
    Admission, AdmissionKey, AdmissionOutcome, Attempt, AttemptEnd, AttemptId, AttemptRecord, Due,
    LedgerError, NewEntry, QueueKey, Rollout, RolloutOutcome, RolloutRecord,
};
use starling_member::Network;
use starling_net::clock::Clock;
use starling_net::web::{Post, Reply, WebError};

use super::artifacts::Artifacts;
use super::manifests::ManifestBuilder;

/// The adapters that a controller is started with.
pub struct Ports {
    /// What time it is.
    pub clock: Clock,
    /// How members are reached. The management cluster's client is handed in on its own.
    pub network: Network,
    /// What is remembered over restarts.
    pub ledger: Arc<dyn Ledger>,
    /// What Sources offer.
    pub artifacts: Arc<dyn Artifacts>,
    /// Builds manifests from artifacts.
    pub manifest_builder: Arc<dyn ManifestBuilder>,
    /// How the servers of gates are asked.
    pub web: Arc<dyn Web>,
}

/// Declares a port, and that an adapter is one: each method is the adapter's of the same name, behind a pointer.
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
    /// Servers that users name, as [`starling_net::web::Web`] describes it.
    Web is starling_net::web::Web, failing with WebError {
        /// Sends a request and reads its answer.
        fn post(post: &'a Post) -> Reply;
    }
}

port! {
    /// What is remembered, as [`starling_ledger::Ledger`] describes each call.
    Ledger is starling_ledger::Ledger, failing with LedgerError {
        /// Records that targets are admitted.
        fn record_admissions(admissions: &'a [Admission]) -> ();
        /// Records how an admission ended.
        fn settle_admission(
            key: &'a AdmissionKey,
            outcome: AdmissionOutcome,
            reason: &'a str,
            ended_at: Timestamp
        ) -> bool;
        /// Records that an attempt starts.
        fn begin_attempt(attempt: &'a Attempt) -> AttemptId;
        /// Records how an attempt ended.
        fn finish_attempt(id: AttemptId, end: &'a AttemptEnd) -> bool;
        /// Attempts that a former process did not end.
        fn interrupted_attempts() -> Vec<AttemptRecord>;
        /// Ends those.
        fn close_interrupted(ended_at: Timestamp) -> u64;
        /// Records that a rollout begins.
        fn begin_rollout(rollout: &'a Rollout) -> bool;
        /// Records how a rollout ended.
        fn end_rollout(
            group_uid: &'a str,
            id: &'a str,
            outcome: RolloutOutcome,
            ended_at: Timestamp
        ) -> bool;
        /// The rollouts of a group.
        fn rollouts(group_uid: &'a str) -> Vec<RolloutRecord>;
        /// Appends to the journal of a group.
        fn append_journal(entry: &'a NewEntry) -> ();
        /// The journal of a group, from its newest whole entry on.
        fn journal_tail(group_uid: &'a str) -> Vec<Entry>;
        /// What is remembered of objects on a cluster.
        fn load_records(cluster_id: &'a str, owner: &'a str) -> BTreeMap<ObjectId, Record>;
        /// Who else has objects on a cluster.
        fn other_owners(
            cluster_id: &'a str,
            owner: &'a str,
            objects: &'a BTreeSet<ObjectId>
        ) -> BTreeMap<ObjectId, Vec<String>>;
        /// Forgets and remembers objects.
        fn save_records(
            cluster_id: &'a str,
            owner: &'a str,
            upserts: &'a BTreeMap<ObjectId, Record>,
            deletes: &'a BTreeSet<ObjectId>
        ) -> ();
        /// Forgets an owner's objects on a cluster.
        fn drop_owner_records(cluster_id: &'a str, owner: &'a str) -> ();
        /// Sets when objects are due.
        fn save_due(entries: &'a [Due]) -> ();
        /// Forgets when they are.
        fn remove_due(keys: &'a [QueueKey]) -> ();
        /// When everything is due.
        fn load_queue() -> Vec<Due>;
    }
    /// Ends it.
    fn close() => ();
}
