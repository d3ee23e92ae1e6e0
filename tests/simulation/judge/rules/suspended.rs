//! Suspension is obeyed.

use jiff::SignedDuration;

use super::order::patience;
use crate::judge::hub::{earlier, span};
use crate::judge::member::owner;
use crate::judge::violation::{Rule, Violation};
use crate::judge::world::World;

/// Nothing is written to a member whose Cluster is suspended, or by a Sync that is.
///
/// Evidence: our writes, against the spec of the Cluster, and of the Sync whose owner the object is labelled with. An attempt
/// that has begun is not stopped, so a suspension counts from `timeout` after the controller must have known of it.
pub(super) fn nothing_is_written_while_suspended(world: &World<'_>) -> Vec<Violation> {
    let mut found = Vec::new();
    for (&cluster, members) in &world.members {
        for write in members
            .iter()
            .flat_map(|member| &member.ours)
            .map(|ours| ours.write)
        {
            let of = world.owner(owner(&write.object));
            let stories = of.map(|owner| world.stories(owner, cluster)).unwrap_or_default();
            let timeouts = stories.iter().filter_map(|story| story.target_at(write.at));
            let timeout = timeouts.map(|target| span(target.wanted.template.timeout)).max();
            let from = earlier(write.at, patience(world, timeout.unwrap_or(SignedDuration::ZERO)));
            let track = world.hub.cluster(cluster);
            let is_closed =
                track.is_some_and(|track| track.always(from, write.at, |cluster| cluster.spec.suspend));
            let is_held = stories.iter().any(|story| {
                story
                    .track
                    .always(from, write.at, |sync| sync.spec.template.suspend)
            });
            if is_closed || is_held {
                found.push(Violation {
                    rule: Rule::Suspended,
                    at: write.at,
                    cluster: Some(cluster.to_owned()),
                    words: format!("{} was written while suspended", write.key()),
                });
            }
        }
    }
    found
}
