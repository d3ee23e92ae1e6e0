//! What checks for drift found of each Sync's objects: which are left alone, and which were repaired.
//!
//! Kept in memory: what is lost with the process is found again by the next check for drift, at the price of one more
//! repair in a drift fight. What was reported stays in the status.

use std::collections::{BTreeMap, BTreeSet};

use starling_core::drift_fight::DriftFight;
use starling_core::fields::FieldSet;
use starling_core::object::ObjectId;

use crate::controller::keyed::Keyed;

/// What the checks for drift of one Sync found.
#[derive(Clone, Debug, Default)]
pub struct DriftState {
    /// Objects that git or somebody on the member asks to leave alone.
    pub left_alone: BTreeSet<ObjectId>,
    /// Objects that were repaired, and have not been found in step since.
    pub repaired: BTreeMap<ObjectId, Repaired>,
}

/// An object that was repaired.
#[derive(Clone, Debug)]
pub struct Repaired {
    /// How often in a row, and when.
    pub fight: DriftFight,
    /// Our fields as the last repair left them; `None` if this process made none.
    pub fields: Option<FieldSet>,
    /// Which fields were lost since, and to whom; empty while that is not known.
    pub lost: LostFields,
}

/// Fields that were lost since the last repair, by who holds them now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LostFields(BTreeMap<Holder, Vec<String>>);

/// Who holds a field.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holder {
    /// No field manager: the field was removed.
    Nobody,
    /// The field manager of this name, which its client chose and may have left empty.
    Manager(String),
}

impl LostFields {
    /// Adds a field.
    pub fn add(&mut self, field: String, holder: Holder) {
        self.0.entry(holder).or_default().push(field);
    }

    /// Whether it is not known which fields were lost.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The fields of each holder.
    pub fn iter(&self) -> impl Iterator<Item = (&Holder, &[String])> {
        self.0.iter().map(|(holder, fields)| (holder, fields.as_slice()))
    }
}

/// What the checks for drift of all Syncs found, as far as this process has made any.
pub type DriftStates = Keyed<DriftState>;
