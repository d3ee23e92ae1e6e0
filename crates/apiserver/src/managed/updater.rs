//! The ownership of fields after a write.
//!
//! The rules are those of structured-merge-diff's `merge` package: a manager owns what it applied or changed. Other
//! managers lose the fields that it changes; for an apply without force those are conflicts. Fields that an applier
//! no longer applies are removed, unless another manager owns them too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;
use thiserror::Error;

use super::conflict::Conflicts;
use super::entries::{Entry, ManagedFields, Manager};
use super::versions::{ResetFields, Versions};
use crate::fields::FieldSet;
use crate::schema::Type;
use crate::typed::{Comparison, Duplicates, Typed, ValidationErrors};
use crate::value::equal;

/// The types and the reset fields of one endpoint.
pub(super) struct Updater<'a> {
    pub(super) versions: &'a Versions,
    pub(super) reset: &'a ResetFields,
    pub(super) version: &'a Arc<str>,
    pub(super) ty: &'a Type,
}

impl Updater<'_> {
    /// Removes the differences between two objects from the other managers, and returns the differences.
    ///
    /// # Errors
    /// An object does not match another version of its kind.
    pub(super) fn update(
        &self,
        live: &Value,
        new: &Value,
        managed: &mut ManagedFields,
    ) -> Result<FieldSet, OtherVersionError> {
        self.reconcile(live, managed)?;
        self.check_in_versions(new, managed)
            .map_err(OtherVersionError::New)?;
        let (comparison, conflicts) = self.differences(live, new, managed, None);
        remove_lost_fields(managed, conflicts);
        let Comparison {
            modified, mut added, ..
        } = comparison;
        added.extend(modified);
        Ok(added)
    }

    /// Merges a configuration into an object and records its fields; returns no object if nothing changes.
    pub(super) fn apply(
        &self,
        live: &Value,
        config: Typed<'_>,
        managed: &mut ManagedFields,
        manager: &Manager,
        force: bool,
    ) -> Result<Option<Value>, ApplyFailure> {
        self.reconcile(live, managed)?;
        let merged = self.ty.trust(live).merge(config);
        let mut fields = config.to_field_set();
        if let Some(reset) = self.reset.get(self.version) {
            fields = fields.recursive_difference(reset);
        }
        let last = managed.take(manager);
        managed.put(Entry {
            manager: manager.clone(),
            api_version: Arc::clone(self.version),
            time: last.as_ref().and_then(|last| last.time),
            fields,
        });
        let new = match &last {
            Some(last) => self.prune(merged, managed, manager, last),
            None => merged,
        };
        let (_, conflicts) = self.differences(live, &new, managed, Some(manager));
        if !force && conflicts.iter().any(|loss| !loss.conflicting.is_empty()) {
            let conflicting = conflicts
                .into_iter()
                .filter(|loss| !loss.conflicting.is_empty())
                .map(|loss| (loss.manager, loss.conflicting));
            return Err(ApplyFailure::Conflicts(Conflicts::new(conflicting.collect())));
        }
        remove_lost_fields(managed, conflicts);
        Ok((!equal(live, &new)).then_some(new))
    }

    /// Adapts entries to types that have changed since; drops entries of versions that are no longer served.
    fn reconcile(&self, live: &Value, managed: &mut ManagedFields) -> Result<(), OtherVersionError> {
        managed
            .entries_mut()
            .retain(|entry| self.versions.get(&entry.api_version).is_some());
        self.check_in_versions(live, managed)
            .map_err(OtherVersionError::Live)?;
        for entry in managed.entries_mut() {
            let ty = self.versions.get(&entry.api_version);
            if let Some(fields) = ty.and_then(|ty| ty.reconcile(&entry.fields)) {
                entry.fields = fields;
            }
        }
        Ok(())
    }

    /// Checks that an object matches the other versions that entries refer to. Conversion is stricter than other
    /// checks: associative lists must not have duplicate items.
    fn check_in_versions(&self, object: &Value, managed: &ManagedFields) -> Result<(), ValidationErrors> {
        let mut checked: BTreeSet<&Arc<str>> = BTreeSet::from([self.version]);
        for version in managed.entries().iter().map(|entry| &entry.api_version) {
            if let (true, Some(ty)) = (checked.insert(version), self.versions.get(version)) {
                let converted = self.versions.convert(object, self.version, version);
                ty.check(&converted, Duplicates::Refused)?;
            }
        }
        Ok(())
    }

    /// Compares two objects in each version that an entry refers to; returns what each other manager loses.
    fn differences(
        &self,
        live: &Value,
        new: &Value,
        managed: &ManagedFields,
        manager: Option<&Manager>,
    ) -> (Comparison, Vec<Loss>) {
        let compare = |version: &str, ty: &Type| {
            let live = self.versions.convert(live, self.version, version);
            let new = self.versions.convert(new, self.version, version);
            let comparison = ty.trust(&live).compare(&new);
            match self.reset.get(version) {
                Some(reset) => comparison.without(reset),
                None => comparison,
            }
        };
        let here = compare(self.version, self.ty);
        let mut elsewhere: BTreeMap<Arc<str>, Comparison> = BTreeMap::new();
        let mut loss = Vec::new();
        for entry in managed
            .entries()
            .iter()
            .filter(|entry| manager != Some(&entry.manager))
        {
            let comparison = if entry.api_version == *self.version {
                &here
            } else if let Some(ty) = self.versions.get(&entry.api_version) {
                elsewhere
                    .entry(Arc::clone(&entry.api_version))
                    .or_insert_with(|| compare(&entry.api_version, ty))
            } else {
                continue;
            };
            let mut conflicting = entry.fields.intersection(&comparison.modified);
            conflicting.extend(entry.fields.intersection(&comparison.added));
            loss.push(Loss {
                manager: entry.manager.clone(),
                conflicting,
                removed: entry.fields.intersection(&comparison.removed),
            });
        }
        (here, loss)
    }

    /// Removes the fields that the manager applied before and does not apply now, unless another manager owns them.
    fn prune(&self, merged: Value, managed: &ManagedFields, manager: &Manager, last: &Entry) -> Value {
        let applied = managed.entry(manager).map(|entry| &entry.fields);
        let same_version = last.api_version == *self.version;
        // The common and cheap case: no field was dropped, so none has to be removed.
        if last.fields.is_empty() || same_version && applied.is_some_and(|now| last.fields.is_subset(now)) {
            return merged;
        }
        let Some(ty) = self.versions.get(&last.api_version) else {
            return merged;
        };
        let merged = self.versions.convert(&merged, self.version, &last.api_version);
        let last_fields = ty.with_declared_fields(&last.fields);
        let pruned = ty.trust(&merged).remove_items(&last_fields);
        let pruned = self.add_back_owned(&merged, pruned, &last.api_version, managed);

        // Only fields that the manager had are removed; the other fields of a removed item are kept.
        let merged_fields = ty.with_declared_fields(&ty.trust(&merged).to_field_set());
        let pruned_fields = ty.with_declared_fields(&ty.trust(&pruned).to_field_set());
        let gone = merged_fields
            .difference(&pruned_fields)
            .intersection(&last_fields);
        let pruned = ty.trust(&merged).remove_items(&gone);
        self.versions
            .convert(&pruned, &last.api_version, self.version)
            .into_owned()
    }

    /// Restores the removed fields that another manager owns.
    ///
    /// The versions that entries refer to are processed one after the other, that of the objects first.
    fn add_back_owned(
        &self,
        merged: &Value,
        pruned: Value,
        version: &Arc<str>,
        managed: &ManagedFields,
    ) -> Value {
        let mut owned: BTreeMap<&Arc<str>, FieldSet> = BTreeMap::new();
        for entry in managed.entries() {
            owned
                .entry(&entry.api_version)
                .or_default()
                .extend(entry.fields.clone());
        }
        let first = owned.remove_entry(version);
        let mut at = version;
        let mut pruned = pruned;
        for (next, owned) in first.into_iter().chain(owned) {
            let Some(ty) = self.versions.get(next) else {
                continue;
            };
            let whole = self.versions.convert(merged, version, next);
            pruned = self.versions.convert(&pruned, at, next).into_owned();
            at = next;
            let whole_fields = ty.with_declared_fields(&ty.trust(&whole).to_field_set());
            let mut kept = ty.with_declared_fields(&ty.trust(&pruned).to_field_set());
            kept.extend(ty.with_declared_fields(&owned));
            pruned = ty.trust(&whole).remove_items(&whole_fields.difference(&kept));
        }
        self.versions.convert(&pruned, at, version).into_owned()
    }
}

/// Why an object cannot be read in another version that an entry refers to.
#[derive(Debug, Error)]
pub enum OtherVersionError {
    /// The stored object does not match that version.
    #[error("{0}")]
    Live(ValidationErrors),
    /// The new object does not match that version.
    #[error("failed to convert new object: {0}")]
    New(ValidationErrors),
}

/// Why an apply fails.
pub(super) enum ApplyFailure {
    Conflicts(Conflicts),
    OtherVersion(OtherVersionError),
}

impl From<OtherVersionError> for ApplyFailure {
    fn from(error: OtherVersionError) -> Self {
        Self::OtherVersion(error)
    }
}

/// The fields that a manager loses by a write.
struct Loss {
    manager: Manager,
    /// The fields whose values change.
    conflicting: FieldSet,
    /// The fields that are removed.
    removed: FieldSet,
}

fn remove_lost_fields(managed: &mut ManagedFields, all: Vec<Loss>) {
    for loss in all {
        let entry = managed
            .entries_mut()
            .iter_mut()
            .find(|entry| entry.manager == loss.manager);
        let Some(entry) = entry else { continue };
        for lost in [&loss.conflicting, &loss.removed] {
            if !lost.is_empty() {
                entry.fields = entry.fields.difference(lost);
            }
        }
    }
    managed.entries_mut().retain(|entry| !entry.fields.is_empty());
}

/// Records the changes of an updater, in addition to its earlier ones.
pub(super) fn record(
    managed: &mut ManagedFields,
    manager: Manager,
    version: &Arc<str>,
    mut fields: FieldSet,
    now: Timestamp,
) {
    if let Some(previous) = managed.take(&manager) {
        fields.extend(previous.fields);
    }
    managed.put(Entry {
        manager,
        api_version: Arc::clone(version),
        time: Some(now),
        fields,
    });
}
