//! What is on a member is known there.

use crate::judge::history::Verb;
use crate::judge::member::owner;
use crate::judge::violation::{Rule, Violation};
use crate::judge::world::World;

/// An object of a Sync is written only once an inventory of its owner on the member lists it: whatever happens after the
/// write, it is known whose it is, and pruned when its time comes.
///
/// Evidence: the inventories that were in force at each of our writes that made or changed an object.
pub(super) fn what_is_written_is_listed_before(world: &World<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (&cluster, members) in &world.members {
        for member in members {
            for ours in member.ours.iter().filter(|ours| ours.write.verb == Verb::Write) {
                let (key, label) = (ours.write.key(), owner(&ours.write.object));
                let inventories = member.inventories(ours.write.at);
                let is_listed = inventories
                    .iter()
                    .any(|(of, listed, _)| of == label && *listed == key);
                if world.owner(label).is_none() || is_listed {
                    continue;
                }
                found.push(Violation {
                    rule: Rule::Unlisted,
                    at: ours.write.at,
                    cluster: Some(cluster.to_owned()),
                    words: format!("{key} was written, and no inventory of its owner listed it"),
                });
            }
        }
    }
    found
}
