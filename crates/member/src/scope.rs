//! Objects of cluster-scoped kinds have no namespace: [`starling_core::scope`].
//!
//! Whether a custom resource is cluster-scoped is known from a definition in the same render, or from the discovery of
//! the member. An object whose scope is not known keeps its ID, and is refused if its kind turns out to be
//! cluster-scoped ([`super::paths`]): nothing is ever written, recorded or pruned under two IDs. The next attempt
//! knows the scope.

use std::collections::{BTreeMap, BTreeSet};

use starling_core::inventory::{Inventory, InventoryEntry};
use starling_core::object::{GroupKind, ObjectId, RenderedSet};
use starling_core::scope::{cleared, without_namespace};
use tokio::time::Instant;

use super::attempt::Attempt;
use super::definitions::defined_scopes;
use super::error::MemberError;
use super::resource::{builtin, group_of};
use super::transport::Member;

impl Member {
    /// Returns the set with the IDs that its objects have on this member: without the namespaces of objects of
    /// cluster-scoped kinds, in IDs and bodies. `None` if it has them already. A set without custom resources costs no
    /// request, nor does one whose kinds are known.
    ///
    /// # Errors
    /// [`MemberError::SameObject`] if two manifests are one object; an error that ends an attempt.
    pub async fn scoped(
        &self,
        desired: &RenderedSet,
        deadline: Instant,
    ) -> Result<Option<RenderedSet>, MemberError> {
        self.keeping(&desired.secrets)
            .scoped_within(desired, &Attempt::until(deadline))
            .await
    }

    pub(super) async fn scoped_within(
        &self,
        desired: &RenderedSet,
        attempt: &Attempt,
    ) -> Result<Option<RenderedSet>, MemberError> {
        let with_namespace = desired
            .objects
            .iter()
            .filter(|object| !object.key.namespace.is_empty());
        let kinds: BTreeSet<(&str, &str)> = with_namespace
            .map(|object| (object.api_version.as_str(), object.key.kind.as_str()))
            .collect();
        let (mut defined, mut cluster_scoped) = (None, BTreeSet::new());
        for (api_version, kind) in kinds {
            let group = group_of(api_version);
            let namespaced = match builtin(group, kind) {
                Some(resource) => Some(resource.namespaced),
                None => {
                    let defined = defined.get_or_insert_with(|| defined_scopes(desired));
                    let of = GroupKind {
                        group: group.to_owned(),
                        kind: kind.to_owned(),
                    };
                    match defined.get(&of) {
                        Some(namespaced) => Some(*namespaced),
                        None => self.discovered_scope(api_version, kind, attempt).await?,
                    }
                }
            };
            if namespaced == Some(false) {
                cluster_scoped.insert((api_version, kind));
            }
        }
        Ok(cleared(desired, |object| {
            cluster_scoped.contains(&(object.api_version.as_str(), object.key.kind.as_str()))
        })?)
    }

    /// Returns whether a kind is namespaced; `None` if that is not known now.
    async fn discovered_scope(
        &self,
        api_version: &str,
        kind: &str,
        attempt: &Attempt,
    ) -> Result<Option<bool>, MemberError> {
        let known = || self.kinds().get(api_version, kind);
        if known().is_none() {
            ignore_of_one_kind(self.fetch_kinds(api_version, attempt).await)?;
        }
        Ok(known().map(|resource| resource.namespaced))
    }

    /// Returns an inventory with the IDs that its objects have on this member. An earlier attempt may have claimed an
    /// object of a cluster-scoped kind with the namespace of its manifest. Objects of `desired` have their IDs already.
    pub(super) async fn canonical(
        &self,
        inventory: Inventory,
        desired: Option<&RenderedSet>,
        attempt: &Attempt,
    ) -> Result<Inventory, MemberError> {
        let desired = desired.into_iter().flat_map(|set| &set.objects);
        let desired: BTreeSet<&ObjectId> = desired.map(|object| &object.key).collect();
        let mut namespaced: BTreeMap<GroupKind, bool> = BTreeMap::new();
        let mut moved: Vec<InventoryEntry> = Vec::new();
        for entry in inventory.entries() {
            if entry.key.namespace.is_empty() || desired.contains(&entry.key) {
                continue;
            }
            let kind = entry.key.group_kind();
            let is_namespaced = match namespaced.get(&kind) {
                Some(known) => *known,
                None => {
                    let found = self.resource_unversioned(&kind.group, &kind.kind, attempt).await;
                    let found = ignore_of_one_kind(found)?.flatten();
                    let found = found.is_none_or(|resource| resource.namespaced);
                    namespaced.insert(kind, found);
                    found
                }
            };
            if !is_namespaced {
                moved.push(entry);
            }
        }
        Ok(with_moved(inventory, moved))
    }
}

/// Returns the inventory with these entries under their IDs without namespaces. What is known under such an ID already
/// is newer.
fn with_moved(mut inventory: Inventory, moved: Vec<InventoryEntry>) -> Inventory {
    for InventoryEntry { key, listed } in moved {
        inventory.remove(&key);
        let key = without_namespace(&key);
        let newer = inventory.entry(&key);
        inventory.remove(&key);
        inventory.insert(InventoryEntry { key, listed });
        inventory.extend(newer);
    }
    inventory
}

/// An error about one kind leaves its scope unknown. It is found again, and reported, by the request that needs it.
fn ignore_of_one_kind<T>(result: Result<T, MemberError>) -> Result<Option<T>, MemberError> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.ends_attempt() => Err(error),
        Err(_) => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(namespace: &str, uid: &str) -> InventoryEntry {
        let key = ObjectId {
            group: "example.test".into(),
            kind: "Wide".into(),
            namespace: namespace.into(),
            name: "w".into(),
        };
        InventoryEntry::new(key, uid)
    }

    #[test]
    fn entries_that_become_one_keep_what_is_known() {
        for (first, second, plain, expected) in [
            ("", "", None, ""),
            ("1", "", None, "1"),
            ("", "", Some("2"), "2"),
            ("1", "", Some("2"), "2"),
            ("1", "", Some(""), "1"),
        ] {
            let moved = vec![entry("a", first), entry("b", second)];
            let all = moved.iter().cloned().chain(plain.map(|uid| entry("", uid)));
            let inventory = with_moved(all.collect(), moved.clone());
            assert_eq!(inventory, [entry("", expected)].into_iter().collect());
        }
    }
}
