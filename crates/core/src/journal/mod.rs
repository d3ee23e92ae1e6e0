//! The journal of rollouts: the inputs and decisions of every plan that changed something.
//!
//! An entry records one plan with its complete input. A reader can compute every decision again ([`verify`]) and knows
//! the state of the group at any time ([`RecordedPlan::after`]). Most entries are changes of the previous entry
//! ([`change`]); some are whole ([`record`] decides which).
//!
//! The entries of a group form a chain: the hash of each entry covers the hash of the previous one ([`chain`]). An
//! entry that is changed, removed, inserted or moved breaks the chain.

mod chain;
mod change;
mod continuity;
pub mod past;
mod record;
mod verify;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

pub use chain::{BEGINNING, Broken, Chain, ChainEnd, check_chain, hash};
pub use change::{NotReadable, PlanChange};
pub use continuity::Gap;
pub use record::{Draft, Recorder, resume};
pub use verify::{Flaw, FlawKind, VerifyResult, verify};

use crate::ids::{GroupId, RolloutNumber};
use crate::plan::{Plan, PlanInput};

/// A stored entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalEntry {
    /// Identity of the SyncGroup (`status.identity.id`).
    pub group_id: GroupId,
    /// Namespace of the SyncGroup.
    pub namespace: String,
    /// Name of the SyncGroup.
    pub name: String,
    /// `status.rollout.id`.
    pub rollout: RolloutNumber,
    /// The number of the entry in its group, from 1 on and without gaps.
    pub seq: i64,
    /// Time at which the plan was made.
    pub at: Timestamp,
    /// A [`Body`] in JSON.
    pub body: String,
    /// The hash of all fields and of the hash of the previous entry.
    pub hash: String,
}

/// The version of the format of entries. A reader rejects another version.
pub const VERSION: u32 = 4;

/// A body with the version of its format, as it is written.
#[derive(Serialize)]
struct Versioned<'a> {
    version: u32,
    body: &'a Body,
}

/// A body with the version of its format, as it is read. With another version, the body can be anything, or have
/// another name.
#[derive(Deserialize)]
struct AnyVersion<'a> {
    version: u32,
    #[serde(borrow, default)]
    body: Option<&'a RawValue>,
}

/// The content of an entry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Body {
    /// The whole recorded plan.
    Whole(Whole),
    /// The changes since the previous entry, which is of the same rollout.
    Change(PlanChange),
}

/// An entry that can be read without a previous one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Whole {
    /// The state of the group does not follow from the entries before: the rollout had admitted clusters, and the
    /// entries about that are missing, because the ledger was lost or put back to an earlier state, or entries were
    /// deleted because of their age; or the management cluster was put back to an earlier state, and the entries before
    /// are of a past that it lost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub beginning_lost: bool,
    /// The recorded plan.
    pub recorded: RecordedPlan,
}

/// A plan with its input.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordedPlan {
    /// The input of the planner.
    pub input: PlanInput,
    /// The plan.
    pub plan: Plan,
}

impl Body {
    /// Parses the body of an entry.
    ///
    /// # Errors
    /// [`NotReadable`] if the entry has another version, or is not JSON of this format.
    pub fn read(text: &str) -> Result<Self, NotReadable> {
        let form = |error: serde_json::Error| NotReadable::Form(error.to_string());
        let entry: AnyVersion<'_> = serde_json::from_str(text).map_err(form)?;
        if entry.version != VERSION {
            return Err(NotReadable::Version(entry.version));
        }
        let body = entry
            .body
            .ok_or_else(|| NotReadable::Form("has no body".to_owned()))?;
        serde_json::from_str(body.get()).map_err(form)
    }

    /// Serialises the body of an entry.
    ///
    /// # Errors
    /// If it cannot be serialised to JSON.
    pub fn write(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(&Versioned {
            version: VERSION,
            body: self,
        })
    }
}

impl RecordedPlan {
    /// Returns the recorded plan of an entry from that of the previous entry; `None`: this is the first entry that is
    /// read.
    ///
    /// # Errors
    /// [`NotReadable`] if a change has no previous entry.
    pub fn after(before: Option<Self>, body: Body) -> Result<Self, NotReadable> {
        match (before, body) {
            (_, Body::Whole(whole)) => Ok(whole.recorded),
            (Some(before), Body::Change(change)) => Ok(change.apply(before)),
            (None, Body::Change(_)) => Err(NotReadable::NoWhole),
        }
    }
}

#[cfg(test)]
mod tests;
