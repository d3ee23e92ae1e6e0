//! No write without a change.

use crate::judge::member::{ObjectVersion, is_own};
use crate::judge::violation::{Rule, Violation};
use crate::judge::world::World;

/// Without changes, and after the time to become idle, nothing is written to a member: neither objects nor inventories.
///
/// Evidence: Starling's writes after `idle_since`, except writes to an object that another writer has changed since
/// then.
pub(super) fn nothing_is_written_while_idle(world: &World<'_>) -> Vec<Violation> {
    let Some(since) = world.history.idle_since else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for (&cluster, members) in &world.members {
        for versions in members.iter().flat_map(|member| member.objects.values()) {
            let late = versions.iter().skip_while(|version| version.write.at <= since);
            let is_provoked = |version: &&ObjectVersion<'_>| !is_own(version.write) && version.changed;
            let unprovoked = late.take_while(|version| !is_provoked(version));
            found.extend(
                unprovoked
                    .filter(|version| is_own(version.write))
                    .map(|version| Violation {
                        rule: Rule::Idle,
                        at: version.write.at,
                        cluster: Some(cluster.to_owned()),
                        message: format!("{} was written without a change", version.write.key()),
                    }),
            );
        }
    }
    found
}
