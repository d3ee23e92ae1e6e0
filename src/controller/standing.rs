//! How a Sync's objects stand, beyond what is in step: which are left alone, which are contested.
//!
//! Kept in memory: what is lost with the process is found again by the next look for drift, at the price of one more repair
//! of what is contested.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use starling_core::contest::Contest;
use starling_core::fields::FieldSet;
use starling_core::object::ObjectKey;

use super::cache;

/// How the objects of one Sync stand.
#[derive(Clone, Debug, Default)]
pub struct Standing {
    /// Objects that git or somebody on the member asks to leave alone.
    pub left_alone: BTreeSet<ObjectKey>,
    /// Objects that were repaired, and have not been found in step since.
    pub repaired: BTreeMap<ObjectKey, Repaired>,
}

/// An object that was repaired.
#[derive(Clone, Debug)]
pub struct Repaired {
    /// How often in a row, and when.
    pub contest: Contest,
    /// Our fields as the last repair left them; `None` if this process made none.
    pub fields: Option<FieldSet>,
    /// Which fields were lost since, and to whom; empty while that is not known.
    pub taken: String,
}

/// How the objects of all Syncs stand, as far as this process has looked.
#[derive(Debug, Default)]
pub struct Standings(Mutex<HashMap<cache::ObjectKey, Standing>>);

impl Standings {
    /// How a Sync's objects stand; `None`: this process has not looked yet.
    #[must_use]
    pub fn get(&self, sync: &cache::ObjectKey) -> Option<Standing> {
        self.lock().get(sync).cloned()
    }

    /// Takes in how a Sync's objects stand.
    pub fn set(&self, sync: &cache::ObjectKey, standing: Standing) {
        self.lock().insert(sync.clone(), standing);
    }

    /// Forgets a Sync.
    pub fn forget(&self, sync: &cache::ObjectKey) {
        self.lock().remove(sync);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<cache::ObjectKey, Standing>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
