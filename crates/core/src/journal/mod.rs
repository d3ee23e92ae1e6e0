//! The journal of rollouts: what the planner was told, and what it said, each time that something changed.
//!
//! An entry holds one plan with all that it depends on, so that the journal needs nobody's word: whoever reads it can
//! compute every decision again ([`verify`]), and knows what was where at any time ([`fold`](Look::after)). Most entries are
//! written as the change against the entry before ([`change`]); some are whole ([`record`] says which).
//!
//! The entries of a group form a chain: each carries a hash over itself and the hash before it ([`chain`]). What is changed,
//! taken out, put in or moved afterwards does not fit any more.

mod chain;
mod change;
pub mod past;
mod record;
mod sequel;
mod verify;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use chain::{BEGINNING, Broken, Chain, End, check_chain, hash};
pub use change::{Change, NotReadable};
pub use record::{Draft, Recorder, resume};
pub use sequel::Gap;
pub use verify::{Flaw, Verdict, What, verify};

use crate::plan::{Plan, PlanInput};

/// An entry as it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// `metadata.uid` of the SyncGroup.
    pub group_uid: String,
    /// Namespace of the SyncGroup.
    pub namespace: String,
    /// Name of the SyncGroup.
    pub name: String,
    /// `status.rollout.id`.
    pub rollout: i64,
    /// Its number among the entries of the group, from 1 on and without a gap.
    pub seq: i64,
    /// When the plan was made.
    pub at: Timestamp,
    /// What it tells: a [`Body`] in JSON.
    pub body: String,
    /// Of all this, and of the hash of the entry before.
    pub hash: String,
}

/// What an entry tells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Body {
    /// Everything.
    Whole(Whole),
    /// What changed since the entry before, which is of the same rollout.
    Change(Change),
}

/// An entry that needs none before it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Whole {
    /// The rollout had admitted clusters before, and there is nothing about that here: the ledger was lost, or what was there
    /// is cut off.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub beginning_lost: bool,
    /// The plan, and all that it depends on.
    pub look: Look,
}

/// A plan, and what it is an answer to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Look {
    /// What the planner was told.
    pub input: PlanInput,
    /// What it said.
    pub plan: Plan,
}

impl Body {
    /// Reads what an entry tells.
    ///
    /// # Errors
    /// [`NotReadable`] where it is no JSON of this form.
    pub fn read(text: &str) -> Result<Self, NotReadable> {
        serde_json::from_str(text).map_err(|error| NotReadable::Form(error.to_string()))
    }
}

impl Look {
    /// How things stood with an entry, from how they stood with the one before it. `None`: this is the first that is read.
    ///
    /// # Errors
    /// [`NotReadable`] where a change is against nothing.
    pub fn after(before: Option<Self>, body: Body) -> Result<Self, NotReadable> {
        match (before, body) {
            (_, Body::Whole(whole)) => Ok(whole.look),
            (Some(before), Body::Change(change)) => Ok(change.apply(before)),
            (None, Body::Change(_)) => Err(NotReadable::NoWhole),
        }
    }
}

#[cfg(test)]
mod tests;
