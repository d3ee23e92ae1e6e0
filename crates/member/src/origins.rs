//! Keeps the origins of objects that one owner hands over to another.

use std::collections::{BTreeMap, BTreeSet};

use starling_core::ids::OwnerLabel;
use starling_core::inventory::{Inventory, Origin};

use super::apply::ApplyJob;
use super::attempt::Attempt;
use super::outcome::{Applied, ApplyOutcome};
use super::transport::Member;

impl Member {
    /// Takes the origins of objects that were handed over from the inventories of their former owners: the first apply
    /// of this owner found them there, whoever created them. If nobody knows a former owner, because the ledger dropped
    /// its record since, all Syncs on the member are asked. An inventory that cannot be read leaves them adopted, as
    /// does a line about another object of that name.
    pub(super) async fn keep_origins(
        &self,
        job: ApplyJob<'_>,
        attempt: &Attempt,
        outcome: &mut ApplyOutcome,
    ) {
        let is_new = |applied: &&mut Applied| applied.origin != Origin::Unknown;
        let mut known: BTreeMap<OwnerLabel, Option<Inventory>> = BTreeMap::new();
        let mut all: Option<BTreeMap<OwnerLabel, Inventory>> = None;
        for applied in outcome.applied.iter_mut().filter(is_new) {
            let mut origins = BTreeSet::new();
            for owner in job.former.get(&applied.key).into_iter().flatten() {
                if !known.contains_key(owner) {
                    let read = self.read_inventory(owner, attempt.deadline).await;
                    known.insert(owner.clone(), read.ok());
                }
                let inventory = known.get(owner).and_then(Option::as_ref);
                origins.extend(inventory.and_then(|inventory| origin_in(inventory, applied)));
            }
            if origins.is_empty() && applied.origin == Origin::Adopted {
                if all.is_none() {
                    all = Some(self.inventories_of(job, attempt).await);
                }
                let inventories = all.iter().flatten();
                origins.extend(inventories.filter_map(|(_, inventory)| origin_in(inventory, applied)));
            }
            // An object that one of them adopted is never deleted.
            match (origins.contains(&false), origins.contains(&true)) {
                (true, _) => applied.origin = Origin::Adopted,
                (false, true) => applied.origin = Origin::Created,
                (false, false) => {}
            }
        }
    }

    /// Reads the inventories of the other Syncs of this installation; none, if they cannot be read.
    async fn inventories_of(&self, job: ApplyJob<'_>, attempt: &Attempt) -> BTreeMap<OwnerLabel, Inventory> {
        let owners = job.siblings.owners();
        if owners.is_empty() {
            return BTreeMap::new();
        }
        let inventories = self.other_inventories(job.owner, attempt).await;
        let mut inventories = inventories.unwrap_or_default().readable;
        inventories.retain(|owner, _| owners.contains_key(owner));
        inventories
    }
}

/// Returns whether an inventory says that its owner created the object that was applied; `None`: it does not list it.
fn origin_in(inventory: &Inventory, applied: &Applied) -> Option<bool> {
    let listed = inventory.entry(&applied.key)?.listed;
    (listed.uid == applied.record.uid).then_some(listed.origin == Origin::Created)
}
