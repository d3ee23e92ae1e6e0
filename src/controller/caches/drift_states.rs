//! Drift states: per Sync, the objects with reconcile disabled and the objects that were repaired.
//!
//! The states are kept only in memory. After a restart the next drift check finds them again, at the cost of one more
//! repair in a drift fight. The reported state remains in status.

use std::collections::{BTreeMap, BTreeSet};

use starling_core::drift_fight::DriftFight;
use starling_core::fields::FieldSet;
use starling_core::object::ObjectId;

use crate::controller::keyed::Keyed;

/// The results of the drift checks of one Sync.
#[derive(Clone, Debug, Default)]
pub struct DriftState {
    /// Objects whose reconcile is disabled, in git or on the member.
    pub left_alone: BTreeSet<ObjectId>,
    /// Objects that were repaired and have not been in sync since.
    pub repaired: BTreeMap<ObjectId, Repaired>,
}

/// A repaired object.
#[derive(Clone, Debug)]
pub struct Repaired {
    /// The number and the time of consecutive repairs.
    pub fight: DriftFight,
    /// Fields that Starling applied with the last repair; `None` if this process has not repaired the object.
    pub fields: Option<FieldSet>,
    /// Fields that were lost after the repair, with their new managers; empty while they are unknown.
    pub lost: LostFields,
}

/// Fields that were lost after the last repair, by the current holder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LostFields(BTreeMap<Holder, Vec<String>>);

/// The holder of a field.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holder {
    /// No field manager: the field was removed.
    Nobody,
    /// The field manager with this name. Clients choose the name, and it may be empty.
    Manager(String),
}

impl LostFields {
    /// Adds a field.
    pub fn add(&mut self, field: String, holder: Holder) {
        self.0.entry(holder).or_default().push(field);
    }

    /// Returns whether no lost fields are known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the fields of each holder.
    pub fn iter(&self) -> impl Iterator<Item = (&Holder, &[String])> {
        self.0.iter().map(|(holder, fields)| (holder, fields.as_slice()))
    }
}

/// The drift states of all Syncs that this process has checked.
pub type DriftStates = Keyed<DriftState>;
