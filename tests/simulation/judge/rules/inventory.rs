//! Every object on a member is in an inventory.

use crate::judge::history::Verb;
use crate::judge::member::owner;
use crate::judge::violation::{Rule, Violation};
use crate::judge::world::World;

/// An object of a Sync is written only after an inventory of its owner on the member lists it: whatever happens after
/// the write, its owner is known, and the object can be pruned.
///
/// Evidence: the current inventories at each of Starling's writes that created or changed an object.
pub(super) fn objects_are_listed_before_they_are_written(world: &World<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (&cluster, members) in &world.members {
        for member in members {
            for own in member
                .own_writes
                .iter()
                .filter(|own| own.write.verb == Verb::Write)
            {
                let (key, label) = (own.write.key(), owner(&own.write.object));
                let inventories = member.inventories(own.write.at);
                let is_listed = inventories
                    .iter()
                    .any(|(of, listed, _)| of == label && *listed == key);
                if world.owner(label).is_none() || is_listed {
                    continue;
                }
                found.push(Violation {
                    rule: Rule::NotListed,
                    at: own.write.at,
                    cluster: Some(cluster.to_owned()),
                    message: format!("{key} was written, and no inventory of its owner listed it"),
                });
            }
        }
    }
    found
}
