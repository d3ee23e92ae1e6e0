//! Whether an object is deleted and made anew because a field of it cannot be changed.

use super::claim::Claim;
use super::prune::Live;
use crate::object::ObjectKey;

/// What happens to an object with an immutable field that is to be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recreation {
    /// Delete it, with this UID as the precondition, and make it anew.
    Do {
        /// The UID of the live object.
        uid: String,
    },
    /// Leave it: what a person can do about it.
    Refuse(&'static str),
}

/// Whether an object may be made anew, as far as that can be told without looking at it: somebody has to ask (`force` of
/// the Sync or the object), and it must not take data or other objects with it.
///
/// # Errors
/// What a person can do instead.
pub fn may_recreate(key: &ObjectKey, asked: bool) -> Result<(), &'static str> {
    if !asked {
        return Err(
            "set force: true, or annotate the object with starling.dev/force: enabled, to have it deleted and made anew",
        );
    }
    match (key.group.as_str(), key.kind.as_str()) {
        ("", "Namespace" | "PersistentVolume" | "PersistentVolumeClaim")
        | ("apiextensions.k8s.io", "CustomResourceDefinition") => Err(
            "force does not make this kind anew, because what depends on it would be lost: delete it by hand",
        ),
        _ => Ok(()),
    }
}

/// Decides about one object, with the object as it is on the member now. One that is not known to be ours is never deleted,
/// whoever asks.
#[must_use]
pub fn recreation(key: &ObjectKey, asked: bool, claim: Claim<'_>, owner: &str, live: Live<'_>) -> Recreation {
    if let Err(advice) = may_recreate(key, asked) {
        return Recreation::Refuse(advice);
    }
    if !claim.is_of(live, owner) {
        return Recreation::Refuse("force does not make it anew, because it is not this Sync's object");
    }
    if live.prune_disabled {
        return Recreation::Refuse(
            "force does not make it anew, because it carries starling.dev/prune: disabled or starling.dev/reconcile: disabled",
        );
    }
    Recreation::Do {
        uid: live.uid.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_ours_and_holds_no_data_is_made_anew() {
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
        for (group, kind, asked, known, live, words) in [
            ("", "Service", true, Claim::Confirmed("u"), live, None),
            ("batch", "Job", true, Claim::Confirmed("u"), live, None),
            (
                "",
                "Service",
                false,
                Claim::Confirmed("u"),
                live,
                Some("set force: true"),
            ),
            (
                "",
                "Service",
                true,
                Claim::Confirmed("v"),
                live,
                Some("not this Sync's object"),
            ),
            (
                "",
                "Service",
                true,
                Claim::New,
                live,
                Some("not this Sync's object"),
            ),
            ("", "Service", true, Claim::Unconfirmed, live, None),
            (
                "",
                "Service",
                true,
                Claim::Unconfirmed,
                copied,
                Some("not this Sync's object"),
            ),
            (
                "",
                "Service",
                true,
                Claim::Confirmed("u"),
                stranger,
                Some("not this Sync's object"),
            ),
            (
                "",
                "Service",
                true,
                Claim::Confirmed("u"),
                protected,
                Some("starling.dev/prune: disabled"),
            ),
            (
                "",
                "Service",
                true,
                Claim::Confirmed("u"),
                unlabelled,
                Some("not this Sync's object"),
            ),
            (
                "",
                "Namespace",
                true,
                Claim::Confirmed("u"),
                live,
                Some("would be lost"),
            ),
            (
                "",
                "PersistentVolume",
                true,
                Claim::Confirmed("u"),
                live,
                Some("would be lost"),
            ),
            (
                "",
                "PersistentVolumeClaim",
                true,
                Claim::Confirmed("u"),
                live,
                Some("would be lost"),
            ),
            (
                "apiextensions.k8s.io",
                "CustomResourceDefinition",
                true,
                Claim::Confirmed("u"),
                live,
                Some("would be lost"),
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
            let key = ObjectKey {
                group: group.into(),
                kind: kind.into(),
                namespace: "shop".into(),
                name: "a".into(),
            };
            match (recreation(&key, asked, known, "me", live), words) {
                (Recreation::Do { uid }, None) => assert_eq!(uid, "u", "{kind}"),
                (Recreation::Refuse(text), Some(words)) => assert!(text.contains(words), "{kind}: {text}"),
                (other, words) => panic!("{kind}: {other:?}, expected {words:?}"),
            }
        }
    }
}
