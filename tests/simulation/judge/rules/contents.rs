//! What contains others stays with what it contains (ADR 50).

use jiff::Timestamp;
use starling_api::{DISABLED, PRUNE, RECONCILE};

use super::deletion::{Deletion, deletions};
use crate::judge::history::Key;
use crate::judge::hub::earlier;
use crate::judge::member::{ObjectVersion, owner, text, uid};
use crate::judge::render::annotation;
use crate::judge::violation::{Rule, Violation};
use crate::judge::world::World;

/// Starling deletes no namespace and no definition while it contains an object of another owner, or one whose
/// annotation asks to keep it: the object would go along.
///
/// Evidence: the objects on the member that have the label of an owner whose inventory lists them, and no deletion
/// timestamp, at the deletion and at the beginning of any attempt that may have decided it. What another owner took in
/// between is not judged.
pub(super) fn containers_stay_with_their_contents(world: &World<'_>) -> Vec<Violation> {
    let containers = deletions(world).into_iter().filter_map(|deletion| {
        let container = Container::of(&deletion)?;
        let kept = container.kept_object(&deletion)?;
        Some(deletion.violation(Rule::Contents, format!("with {kept} in it")))
    });
    containers.collect()
}

/// What an object contains.
enum Container {
    Namespace(String),
    Definition { group: String, kind: String },
}

impl Container {
    fn of(deletion: &Deletion<'_>) -> Option<Self> {
        let key = deletion.key();
        match (key.group.as_str(), key.kind.as_str()) {
            ("", "Namespace") => Some(Self::Namespace(key.name)),
            ("apiextensions.k8s.io", "CustomResourceDefinition") => {
                let object = &deletion.write.object;
                Some(Self::Definition {
                    group: text(object, "/spec/group").to_owned(),
                    kind: text(object, "/spec/names/kind").to_owned(),
                })
            }
            _ => None,
        }
    }

    fn has(&self, key: &Key) -> bool {
        match self {
            Self::Namespace(name) => key.namespace == *name,
            Self::Definition { group, kind } => key.group == *group && key.kind == *kind,
        }
    }

    /// Returns an object in the container that has to stay.
    fn kept_object(&self, deletion: &Deletion<'_>) -> Option<Key> {
        let from = earlier(deletion.at(), deletion.limit());
        let contents = deletion.member.objects.iter().filter(|(key, _)| self.has(key));
        let mut kept = contents.filter(|(key, versions)| {
            let is_kept = |at| Self::is_kept(deletion, key, versions, at);
            is_kept(from) && is_kept(deletion.at())
        });
        kept.next().map(|(key, _)| key.clone())
    }

    fn is_kept(deletion: &Deletion<'_>, key: &Key, versions: &[ObjectVersion<'_>], at: Timestamp) -> bool {
        let known = versions.partition_point(|version| version.write.at <= at);
        let Some(last) = versions[..known].last().filter(|last| !last.is_gone()) else {
            return false;
        };
        let object = &last.write.object;
        let label = owner(object);
        let inventories = deletion.member.inventories(at);
        let is_listed = inventories.iter().any(|(of, listed, listed_uid)| {
            of == label && listed == key && (listed_uid.is_empty() || listed_uid == uid(object))
        });
        let asks_to_stay = [PRUNE, RECONCILE]
            .iter()
            .any(|name| annotation(object, name) == DISABLED);
        is_listed
            && text(object, "/metadata/deletionTimestamp").is_empty()
            && (label != deletion.label || asks_to_stay)
    }
}
