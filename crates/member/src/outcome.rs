//! The result of an apply, for one object and for a whole render.

use http::StatusCode;
use starling_core::apply::{ApplyReason, ApplyStep, Claim, PruneBlocker, Record};
use starling_core::fields::FieldSet;
use starling_core::inventory::{Inventory, Origin};
use starling_core::object::ObjectId;

use super::call::Operation;
use super::error::MemberError;
use super::metadata::{Metadata, Partial};
use super::transport::ApiResponse;

/// The effect of an apply on an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The object did not exist.
    Created,
    /// The object existed, and its `resourceVersion` differs from the known one. Other writers, such as one of its
    /// status, change the version too.
    Configured,
    /// The object has not changed.
    Unchanged,
}

/// One object that is applied as rendered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The object.
    pub key: ObjectId,
    /// The record to store.
    pub record: Record,
    /// The effect of the apply.
    pub change: Change,
    /// Where the object comes from, if this apply shows it.
    pub origin: Origin,
    /// The fields that Starling applied in a repair, to determine which of them another manager takes next.
    pub fields: Option<FieldSet>,
}

/// The result of an [`ApplyJob`](super::ApplyJob).
#[derive(Debug, Default)]
pub struct ApplyOutcome {
    /// Objects that needed a request and are in step now, ordered by key. Their records are to be stored.
    pub applied: Vec<Applied>,
    /// Number of objects that needed no request.
    pub skipped: usize,
    /// Objects that were not written because an annotation in git or on the member disables their reconciliation, as
    /// far as that was known beforehand, ordered by key.
    pub left_alone: Vec<ObjectId>,
    /// Objects for which a delete was sent, ordered by key. Their records are to be dropped.
    pub deleted: Vec<ObjectId>,
    /// Objects for which a delete was sent, now or before, and that wait for their finalizers, ordered by key. They
    /// stay in the inventory.
    pub terminating: Vec<ObjectId>,
    /// The number of those of them whose delete was sent now.
    pub deleting: usize,
    /// Objects that left the inventory without a delete, because they were gone or Starling does not own the object of
    /// that name. Their records are to be dropped.
    pub released: Vec<ObjectId>,
    /// Objects that were given up and not deleted, ordered by key: they were there before Starling, or objects in
    /// them stay, and their deletion would delete others. Their records are to be dropped.
    pub relinquished: Vec<ObjectId>,
    /// Objects that a user took back from deletion, and that were given up, ordered by key. Their records are to be
    /// dropped.
    pub undeleted: Vec<ObjectId>,
    /// Objects that were handed over to a sibling, ordered by key. They stay in the inventory in case the sibling never
    /// applies them. Their records are to be dropped, so that the sibling can.
    pub handed_over: Vec<ObjectId>,
    /// Objects that were to be deleted and were found to stay within the attempt: protected, handed over, or to be
    /// approved since a moment ago.
    pub(super) kept_now: Vec<ObjectId>,
    /// Objects that could not be applied or deleted, ordered by key. One of them does not stop the others.
    pub failures: Vec<(ObjectId, MemberError)>,
    /// The inventory on the member now, as far as known; empty if it could not be read.
    pub inventory: Inventory,
    /// Whether the inventory on the member listed nothing when the attempt began, or was missing; false if it could not
    /// be read.
    pub inventory_was_empty: bool,
    /// Why nothing was pruned although there was something to prune.
    pub prune_blocker: Option<PruneBlocker>,
    /// Why the attempt ended early: [`MemberError::ends_attempt`], or the inventory could not be read or written.
    /// Objects in none of the lists were not attempted.
    pub interrupted: Option<MemberError>,
    /// Whether a request that may change the member was sent, whatever became of it.
    pub has_written: bool,
}

impl ApplyOutcome {
    /// Whether everything is applied and nothing is left to prune.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.failures.is_empty() && self.interrupted.is_none()
    }

    pub(super) fn sort(&mut self) {
        self.applied.sort_by(|a, b| a.key.cmp(&b.key));
        self.failures.sort_by(|a, b| a.0.cmp(&b.0));
        self.deleted.sort();
        self.terminating.sort();
        self.released.sort();
        self.relinquished.sort();
        self.undeleted.sort();
        self.handed_over.sort();
        self.left_alone.sort();
    }
}

/// An object that an apply would not change.
pub(super) struct InStep {
    /// The record that such an apply would return.
    pub(super) record: Record,
    /// Whether an apply of Starling created the object ([`Metadata::is_created_by_us`]).
    pub(super) is_created_by_us: bool,
}

impl InStep {
    /// Reads the metadata of the object. `digest`: that of the content that it has; empty if that is not known.
    pub(super) fn read(metadata: &Metadata<'_>, digest: &str) -> Self {
        Self {
            record: metadata.record(digest),
            is_created_by_us: metadata.is_created_by_us(),
        }
    }
}

/// An object that needed no write.
pub(super) fn unchanged(step: &ApplyStep<'_>, found: InStep) -> Applied {
    Applied {
        key: step.object.key.clone(),
        change: Change::Unchanged,
        origin: origin_of_existing(step, &found.record.uid, found.is_created_by_us),
        record: found.record,
        fields: None,
    }
}

/// Reads the response to an apply. `before` is the `resourceVersion` that was known before the apply.
pub(super) fn applied(
    step: &ApplyStep<'_>,
    before: Option<&str>,
    response: &ApiResponse,
) -> Result<Applied, MemberError> {
    let operation = Operation::object("apply", &step.object.key);
    let metadata = response.parse::<Partial<'_>>(operation)?.metadata;
    metadata.check(&step.object.key, operation)?;
    let change = match before {
        _ if response.status == StatusCode::CREATED => Change::Created,
        Some(version) if version == metadata.resource_version => Change::Unchanged,
        _ => Change::Configured,
    };
    Ok(Applied {
        key: step.object.key.clone(),
        record: metadata.record(&step.object.digest),
        change,
        origin: origin(step, response.status, &metadata),
        fields: (step.reason == ApplyReason::Drifted).then(|| metadata.our_fields()),
    })
}

/// Returns where an object comes from, as far as the response to an apply shows it.
fn origin(step: &ApplyStep<'_>, status: StatusCode, metadata: &Metadata<'_>) -> Origin {
    if status == StatusCode::CREATED {
        return Origin::Created;
    }
    origin_of_existing(step, &metadata.uid, metadata.is_created_by_us())
}

/// Returns where an object comes from that existed before this attempt, as far as it shows that.
fn origin_of_existing(step: &ApplyStep<'_>, uid: &str, is_created_by_us: bool) -> Origin {
    match step.claim {
        Claim::New => Origin::Adopted,
        // Somebody deleted the object and created another one.
        Claim::Confirmed(known) if *known != *uid => Origin::Adopted,
        Claim::Unconfirmed | Claim::Confirmed(_) if !step.is_unconfirmed => Origin::Unknown,
        // An earlier apply may have created it, and its response is lost, or was not written into the inventory.
        Claim::Unconfirmed | Claim::Confirmed(_) if is_created_by_us => Origin::Created,
        Claim::Unconfirmed | Claim::Confirmed(_) => Origin::Adopted,
    }
}
