//! At rest nothing is written.

use crate::judge::member::{Stand, is_ours};
use crate::judge::violation::{Rule, Violation};
use crate::judge::world::World;

/// Once nobody changes anything and everything had the time to come to rest, nothing is written to a member: neither objects
/// nor inventories.
///
/// Evidence: our writes after `quiet_since`, but for those to an object that somebody else has changed since then.
pub(super) fn nothing_is_written_at_rest(world: &World<'_>) -> Vec<Violation> {
    let Some(since) = world.history.quiet_since else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for (&cluster, members) in &world.members {
        for stands in members.iter().flat_map(|member| member.objects.values()) {
            let late = stands.iter().skip_while(|stand| stand.write.at <= since);
            let is_provoked = |stand: &&Stand<'_>| !is_ours(stand.write) && stand.changed;
            let unprovoked = late.take_while(|stand| !is_provoked(stand));
            found.extend(
                unprovoked
                    .filter(|stand| is_ours(stand.write))
                    .map(|stand| Violation {
                        rule: Rule::Quiet,
                        at: stand.write.at,
                        cluster: Some(cluster.to_owned()),
                        words: format!("{} was written though nothing had changed", stand.write.key()),
                    }),
            );
        }
    }
    found
}
