//! Decides whether an object is deleted and recreated because a field that changed is immutable.

use super::budget::Confirmation;
use super::claim::Claim;
use super::prune::Live;
use crate::ids::{OwnerLabel, Uid};
use crate::object::ObjectId;

/// The decision about an object with a changed immutable field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recreation {
    /// Delete the object, with this UID as the precondition, and create it again.
    Do {
        /// The UID of the live object.
        uid: Uid,
    },
    /// Leave the object.
    Refuse(RecreationObstacle),
}

/// Why an object with a changed immutable field is not recreated, as advice for the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RecreationObstacle {
    /// Neither the Sync nor the object asks for it.
    #[error(
        "set force: true, or annotate the object with starling.dev/force: enabled, to delete and recreate the object"
    )]
    NotForced,
    /// Objects or data that belong to it would be deleted with it.
    #[error(
        "force does not recreate this kind, because what depends on it would be lost: delete the object by hand"
    )]
    TakesOthersAlong,
    /// Its deletion needs an approval.
    #[error(
        "force does not recreate the object, because it has starling.dev/deletion: Confirm: delete the object by hand, \
         or remove the annotation in git and on the cluster"
    )]
    NeedsApproval,
    /// It is not known to be an object of the Sync.
    #[error("force does not recreate the object, because it is not this Sync's object")]
    NotOwned,
    /// An annotation of the live object protects it.
    #[error(
        "force does not recreate the object, because it has starling.dev/prune: disabled or starling.dev/reconcile: \
         disabled"
    )]
    Protected,
}

/// Checks whether an object may be recreated, as far as that is known without reading it: `force` of the Sync or the
/// object is required, and no data or other objects may be lost with it. What a prune deletes only after an approval is
/// not recreated: the list that a person approves does not contain objects that are still in git.
///
/// # Errors
/// [`RecreationObstacle`].
pub fn may_recreate(
    key: &ObjectId,
    force: bool,
    confirmation: Confirmation<'_>,
) -> Result<(), RecreationObstacle> {
    if !force {
        return Err(RecreationObstacle::NotForced);
    }
    if confirmation.takes_others_along(key) {
        return Err(RecreationObstacle::TakesOthersAlong);
    }
    if confirmation.objects.contains(key) {
        return Err(RecreationObstacle::NeedsApproval);
    }
    Ok(())
}

/// Decides about one object, by the live object. An object that is not known to be ours is never deleted, even with
/// `force`.
#[must_use]
pub fn recreation(
    key: &ObjectId,
    force: bool,
    claim: Claim<'_>,
    owner: &OwnerLabel,
    live: Live<'_>,
    confirmation: Confirmation<'_>,
) -> Recreation {
    if let Err(obstacle) = may_recreate(key, force, confirmation) {
        return Recreation::Refuse(obstacle);
    }
    if !claim.is_of(live, owner) {
        return Recreation::Refuse(RecreationObstacle::NotOwned);
    }
    if live.prune_disabled {
        return Recreation::Refuse(RecreationObstacle::Protected);
    }
    Recreation::Do { uid: live.uid.into() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn only_owned_objects_without_data_are_recreated() {
        let live = Live::MINE;
        let protected = Live {
            prune_disabled: true,
            ..live
        };
        let stranger = Live {
            owner: Some("other"),
            ..live
        };
        let unlabelled = Live { owner: None, ..live };
        let copied = Live {
            owner_is_applied: false,
            ..live
        };
        for (group, kind, force, known, live, expected) in [
            ("", "Service", true, Claim::Confirmed("u"), live, None),
            ("batch", "Job", true, Claim::Confirmed("u"), live, None),
            (
                "",
                "Service",
                false,
                Claim::Confirmed("u"),
                live,
                Some(RecreationObstacle::NotForced),
            ),
            (
                "",
                "Service",
                true,
                Claim::Confirmed("v"),
                live,
                Some(RecreationObstacle::NotOwned),
            ),
            (
                "",
                "Service",
                true,
                Claim::New,
                live,
                Some(RecreationObstacle::NotOwned),
            ),
            ("", "Service", true, Claim::Unconfirmed, live, None),
            (
                "",
                "Service",
                true,
                Claim::Unconfirmed,
                copied,
                Some(RecreationObstacle::NotOwned),
            ),
            (
                "",
                "Service",
                true,
                Claim::Confirmed("u"),
                stranger,
                Some(RecreationObstacle::NotOwned),
            ),
            (
                "",
                "Service",
                true,
                Claim::Confirmed("u"),
                protected,
                Some(RecreationObstacle::Protected),
            ),
            (
                "",
                "Service",
                true,
                Claim::Confirmed("u"),
                unlabelled,
                Some(RecreationObstacle::NotOwned),
            ),
            (
                "",
                "Namespace",
                true,
                Claim::Confirmed("u"),
                live,
                Some(RecreationObstacle::TakesOthersAlong),
            ),
            (
                "",
                "PersistentVolume",
                true,
                Claim::Confirmed("u"),
                live,
                Some(RecreationObstacle::TakesOthersAlong),
            ),
            (
                "",
                "PersistentVolumeClaim",
                true,
                Claim::Confirmed("u"),
                live,
                Some(RecreationObstacle::TakesOthersAlong),
            ),
            (
                "apiextensions.k8s.io",
                "CustomResourceDefinition",
                true,
                Claim::Confirmed("u"),
                live,
                Some(RecreationObstacle::TakesOthersAlong),
            ),
            (
                "example.test",
                "Namespace",
                true,
                Claim::Confirmed("u"),
                live,
                None,
            ),
        ] {
            let key = ObjectId {
                group: group.into(),
                kind: kind.into(),
                namespace: "shop".into(),
                name: "a".into(),
            };
            let none = Confirmation::default();
            match (
                recreation(&key, force, known, &OwnerLabel::new("me"), live, none),
                expected,
            ) {
                (Recreation::Do { uid }, None) => assert_eq!(uid, "u", "{kind}"),
                (Recreation::Refuse(obstacle), Some(expected)) => assert_eq!(obstacle, expected, "{kind}"),
                (other, expected) => panic!("{kind}: {other:?}, expected {expected:?}"),
            }
        }
    }

    #[test]
    fn what_a_prune_deletes_only_after_an_approval_is_not_recreated() {
        let key = |name: &str| ObjectId {
            group: "cluster.x-k8s.io".into(),
            kind: "Cluster".into(),
            namespace: "shop".into(),
            name: name.into(),
        };
        let (kinds, objects) = ([key("a").group_kind()].into(), [key("b")].into());
        let (none, nothing) = (BTreeSet::new(), BTreeSet::new());
        for (name, kinds, objects, expected) in [
            ("a", &none, &nothing, None),
            ("a", &kinds, &nothing, Some(RecreationObstacle::TakesOthersAlong)),
            ("a", &none, &objects, None),
            ("b", &none, &objects, Some(RecreationObstacle::NeedsApproval)),
        ] {
            let confirmation = Confirmation { kinds, objects };
            let claim = Claim::Confirmed("u");
            let refused = match recreation(
                &key(name),
                true,
                claim,
                &OwnerLabel::new("me"),
                Live::MINE,
                confirmation,
            ) {
                Recreation::Do { .. } => None,
                Recreation::Refuse(obstacle) => Some(obstacle),
            };
            assert_eq!(refused, expected, "{name}");
        }
    }
}
