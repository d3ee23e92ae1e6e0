//! Finds the containers that are not deleted because of what is in them.
//!
//! The deletion of a namespace or a definition deletes everything in it, whatever was decided about each object: what
//! another Sync took over, what a person protects, what was there before Starling. So a container that an owner may
//! delete is compared with what stays. The inventories of all owners on the member are asked, because the management
//! cluster does not know those of other installations, or of Syncs that left their objects there.

use std::collections::{BTreeMap, BTreeSet};

use starling_core::apply::containers::{instances, is_container, may_contain};
use starling_core::apply::{Confirmation, Grace, SiblingObjects, is_relinquished};
use starling_core::ids::OwnerLabel;
use starling_core::inventory::format::{self, DATA_KEY, FormatError};
use starling_core::inventory::{Inventory, InventoryEntry, Origin};
use starling_core::object::{ObjectId, RenderedSet};

use super::attempt::Attempt;
use super::error::MemberError;
use super::prune::{PendingDeletions, Prunable};
use super::siblings::{OtherOwner, Siblings};
use super::transport::Member;

/// What an owner may delete, and what stays.
#[derive(Clone, Copy, Debug)]
pub(super) struct ContainerQuestion<'a> {
    /// The owner that deletes.
    pub(super) owner: &'a OwnerLabel,
    /// All of its objects.
    pub(super) inventory: &'a Inventory,
    /// Those that are about to be deleted, and those that were found to stay.
    pub(super) found: &'a PendingDeletions,
    /// Other objects that stay, or are about to be applied.
    pub(super) staying: &'a BTreeSet<ObjectId>,
    /// The other owners that the management cluster knows.
    pub(super) owners: &'a BTreeMap<OwnerLabel, OtherOwner>,
}

/// What left the render of an owner.
#[derive(Clone, Copy, Debug)]
pub(super) struct LeftBehind<'a> {
    /// The owner.
    pub(super) owner: &'a OwnerLabel,
    /// What it renders.
    pub(super) desired: &'a RenderedSet,
    /// What its siblings render.
    pub(super) siblings: &'a SiblingObjects,
    /// What left the render.
    pub(super) pending: &'a PendingDeletions,
    /// The objects that ask for an approval.
    pub(super) confirmation: Confirmation<'a>,
    /// The time between the first render that lacks an object and its deletion.
    pub(super) grace: Grace<'a>,
}

/// The containers that may not be deleted.
#[derive(Debug, Default)]
pub(super) struct ContainersInUse {
    /// Objects in them stay.
    pub(super) kept: BTreeSet<ObjectId>,
    /// Objects in them are being deleted by another Sync, by its rules.
    pub(super) waiting: BTreeMap<ObjectId, String>,
}

/// The inventories of other owners.
#[derive(Debug, Default)]
pub(super) struct OtherInventories {
    pub(super) readable: BTreeMap<OwnerLabel, Inventory>,
    unreadable: Vec<Unreadable>,
}

/// A ConfigMap that is no inventory that this version reads.
#[derive(Debug)]
struct Unreadable {
    name: String,
    text: String,
    source: FormatError,
}

impl OtherInventories {
    /// Takes an inventory that cannot be read and may list an object in a container: whatever its format is, it names
    /// the namespace, or the API group. Others stop nothing.
    fn take_unreadable(&mut self, container: &ObjectId) -> Option<MemberError> {
        let named = instances(container).map_or(&*container.name, |(group, _)| group);
        let found = self.unreadable.iter().position(|one| one.text.contains(named))?;
        let Unreadable { name, source, .. } = self.unreadable.swap_remove(found);
        Some(MemberError::Inventory { name, source })
    }
}

impl ContainersInUse {
    /// Returns why a container is not deleted yet; `None`: nothing in it is being deleted.
    pub(super) fn refusal(&self, key: &ObjectId) -> Option<MemberError> {
        let by = self.waiting.get(key)?;
        Some(MemberError::InUse {
            object: key.clone(),
            why: format!("{by} is deleting the objects in it"),
        })
    }
}

impl Member {
    /// Finds the containers of objects that stay after a prune, and notes in the inventory that they are given up: a
    /// later attempt no longer has the objects in its inventory.
    pub(super) async fn keep_before_prune(
        &self,
        left: LeftBehind<'_>,
        siblings: &dyn Siblings,
        inventory: &mut Inventory,
        attempt: &Attempt,
    ) -> Result<ContainersInUse, MemberError> {
        let SiblingObjects::Known(of_siblings) = left.siblings else {
            // Nothing is pruned.
            return Ok(ContainersInUse::default());
        };
        if !left.pending.entries.iter().any(|entry| is_container(&entry.key)) {
            return Ok(ContainersInUse::default());
        }
        let desired = left.desired.objects.iter().map(|object| &object.key);
        let given_up = left.pending.entries.iter().filter(|entry| {
            is_relinquished(entry, left.confirmation) || left.grace.is_undeleted(entry.listed.left_at)
        });
        let given_up = given_up.map(|entry| &entry.key);
        let staying: BTreeSet<ObjectId> = desired.chain(of_siblings).chain(given_up).cloned().collect();
        let question = ContainerQuestion {
            owner: left.owner,
            inventory,
            found: left.pending,
            staying: &staying,
            owners: &siblings.owners(),
        };
        let in_use = self.containers_in_use(question, attempt).await?;
        for container in &in_use.kept {
            inventory.adopt(container);
        }
        Ok(in_use)
    }

    /// Returns which containers among the objects to delete are in use. Costs a request only if there is one that
    /// Starling created: others are given up anyway.
    ///
    /// # Errors
    /// [`MemberError`] if the inventories on the member cannot be read: what is in a container is unknown then.
    pub(super) async fn containers_in_use(
        &self,
        question: ContainerQuestion<'_>,
        attempt: &Attempt,
    ) -> Result<ContainersInUse, MemberError> {
        let mut in_use = ContainersInUse::default();
        let created = |entry: &&InventoryEntry| {
            is_container(&entry.key)
                && entry.listed.origin == Origin::Created
                && question.found.begin.binary_search(&entry.key).is_ok()
        };
        let containers: Vec<&ObjectId> = question
            .found
            .entries
            .iter()
            .filter(created)
            .map(|entry| &entry.key)
            .collect();
        if containers.is_empty() {
            return Ok(in_use);
        }
        let mut open = Vec::new();
        for container in containers {
            if self
                .has_staying(question, container, &mut in_use, attempt)
                .await?
            {
                in_use.kept.insert(container.clone());
            } else {
                open.push(container);
            }
        }
        if open.is_empty() {
            return Ok(in_use);
        }
        let mut others = self.other_inventories(question.owner, attempt).await?;
        for container in open {
            if let Some(error) = others.take_unreadable(container) {
                return Err(error);
            }
            if self
                .has_others(question, &others.readable, container, &mut in_use, attempt)
                .await?
            {
                in_use.kept.insert(container.clone());
            }
        }
        in_use
            .waiting
            .retain(|container, _| !in_use.kept.contains(container));
        Ok(in_use)
    }

    /// Reports whether a container has an object that stays, as far as the owner knows.
    async fn has_staying(
        &self,
        question: ContainerQuestion<'_>,
        container: &ObjectId,
        in_use: &mut ContainersInUse,
        attempt: &Attempt,
    ) -> Result<bool, MemberError> {
        let staying = question.staying.iter().map(|key| (key, None));
        let kept = question.found.kept.iter().map(|(key, by)| (key, by.as_ref()));
        for (key, by) in staying.chain(kept) {
            if !self.contains(container, key, attempt).await? {
                continue;
            }
            match by.and_then(|by| question.owners.get(by)) {
                Some(OtherOwner { name, goes: true }) => {
                    in_use.waiting.insert(container.clone(), name.clone());
                }
                Some(_) | None => return Ok(true),
            }
        }
        Ok(false)
    }

    /// Reports whether a container has an object of another owner that keeps it.
    async fn has_others(
        &self,
        question: ContainerQuestion<'_>,
        others: &BTreeMap<OwnerLabel, Inventory>,
        container: &ObjectId,
        in_use: &mut ContainersInUse,
        attempt: &Attempt,
    ) -> Result<bool, MemberError> {
        for (owner, inventory) in others {
            let goes = question.owners.get(owner).filter(|other| other.goes);
            for entry in inventory.entries() {
                if question.inventory.contains(&entry.key)
                    || !self.contains(container, &entry.key, attempt).await?
                {
                    continue;
                }
                match self.prunable(owner, &entry, attempt).await {
                    Ok(Prunable::Gone | Prunable::Kept { .. }) => {}
                    Err(error) if error.ends_attempt() => return Err(error),
                    // An object that cannot be read may be there.
                    Ok(Prunable::Target(_)) | Err(_) => match goes {
                        Some(other) => {
                            in_use.waiting.insert(container.clone(), other.name.clone());
                        }
                        None => return Ok(true),
                    },
                }
            }
        }
        Ok(false)
    }

    /// Reports whether the deletion of a container deletes an object. An object of a kind that the member does not
    /// serve is gone.
    pub(super) async fn contains(
        &self,
        container: &ObjectId,
        key: &ObjectId,
        attempt: &Attempt,
    ) -> Result<bool, MemberError> {
        if !may_contain(container, key) {
            return Ok(false);
        }
        let Some((_, plural)) = instances(container) else {
            return Ok(true);
        };
        let resource = self.resource_unversioned(&key.group, &key.kind, attempt).await?;
        Ok(resource.is_some_and(|resource| resource.plural == plural))
    }

    /// Reads the inventories of all other owners on the member.
    pub(super) async fn other_inventories(
        &self,
        owner: &OwnerLabel,
        attempt: &Attempt,
    ) -> Result<OtherInventories, MemberError> {
        let mut others = OtherInventories::default();
        for (name, mut data) in self.list_maps(attempt).await? {
            let Some(other) = format::owner_of(&name).filter(|other| other != owner) else {
                continue;
            };
            let Some(text) = data.remove(DATA_KEY) else {
                continue;
            };
            match format::parse(&text) {
                Ok(shard) => {
                    let known = others.readable.entry(other).or_default();
                    *known = known.union(&shard.entries);
                }
                Err(source) => others.unreadable.push(Unreadable { name, text, source }),
            }
        }
        Ok(others)
    }
}
