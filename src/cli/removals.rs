//! Prints the removals of a group for `plan`, `simulate` and `why`.

use starling_api::DeletionPolicy;
use starling_core::plural::counted;

use super::output::names;
use crate::read_model::removals::{PlannedRemoval, RemovalCause};

/// Returns a line for each removal.
pub(super) fn text(removals: &[PlannedRemoval]) -> String {
    removals.iter().map(line).collect()
}

fn line(removal: &PlannedRemoval) -> String {
    let why = match &removal.cause {
        RemovalCause::GroupDeleted => "the group is being deleted".to_owned(),
        RemovalCause::ClusterUnselected => "the group no longer selects them".to_owned(),
        RemovalCause::EntryRemoved { entry } => format!("the group no longer has entry {entry}"),
        RemovalCause::ObjectsRemoved { entry } => format!("entry {entry} no longer has them"),
        RemovalCause::DeletionsHeld { entry, message } => format!("entry {entry}: {message}"),
    };
    let clusters = names(&removal.clusters);
    let objects = counted(removal.objects, "object", "objects");
    if let RemovalCause::DeletionsHeld { .. } = removal.cause {
        return format!("holds the removal of {objects} on {clusters}: {why}\n");
    }
    match removal.policy {
        DeletionPolicy::Delete => format!("removes {objects} on {clusters}: {why}\n"),
        DeletionPolicy::Orphan => format!("leaves {objects} on {clusters} without an owner: {why}\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn removal(cause: RemovalCause, policy: DeletionPolicy, objects: usize) -> PlannedRemoval {
        let clusters = (1..=3).map(|number| format!("eu-{number}")).collect();
        PlannedRemoval {
            cause,
            policy,
            objects,
            clusters,
        }
    }

    #[test]
    fn each_removal_has_a_line_with_its_objects_its_clusters_and_its_reason() {
        let entry = || "old".to_owned();
        let removals = [
            removal(
                RemovalCause::EntryRemoved { entry: entry() },
                DeletionPolicy::Delete,
                12,
            ),
            removal(
                RemovalCause::ObjectsRemoved { entry: entry() },
                DeletionPolicy::Delete,
                1,
            ),
            removal(RemovalCause::ClusterUnselected, DeletionPolicy::Orphan, 6),
            removal(RemovalCause::GroupDeleted, DeletionPolicy::Delete, 6),
            removal(
                RemovalCause::DeletionsHeld {
                    entry: "app".into(),
                    message: "3 of 20 objects are no longer in git: Namespace shop".into(),
                },
                DeletionPolicy::Delete,
                9,
            ),
        ];
        assert_eq!(
            text(&removals),
            "removes 12 objects on 3 clusters (eu-1, eu-2, eu-3): the group no longer has entry old\n\
             removes 1 object on 3 clusters (eu-1, eu-2, eu-3): entry old no longer has them\n\
             leaves 6 objects on 3 clusters (eu-1, eu-2, eu-3) without an owner: the group no longer selects them\n\
             removes 6 objects on 3 clusters (eu-1, eu-2, eu-3): the group is being deleted\n\
             holds the removal of 9 objects on 3 clusters (eu-1, eu-2, eu-3): entry app: 3 of 20 objects are no longer \
             in git: Namespace shop\n"
        );
    }
}
