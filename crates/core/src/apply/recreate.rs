//! Whether an object is deleted and made anew because a field of it cannot be changed.

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

/// Decides about one object, with the object as it is on the member now. `known_uid` is the UID that was applied last,
/// empty if none is known. An object that is not known to be ours is never deleted, whoever asks.
#[must_use]
pub fn recreation(key: &ObjectKey, asked: bool, known_uid: &str, owner: &str, live: Live<'_>) -> Recreation {
    if let Err(advice) = may_recreate(key, asked) {
        return Recreation::Refuse(advice);
    }
    let ours = !known_uid.is_empty() && known_uid == live.uid && live.owner == Some(owner);
    if !ours {
        return Recreation::Refuse("force does not make it anew, because it is not this Sync's object");
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
        let live = Live {
            uid: "u",
            owner: Some("me"),
            owner_is_applied: true,
        };
        let stranger = Live {
            owner: Some("other"),
            ..live
        };
        let unlabelled = Live { owner: None, ..live };
        for (group, kind, asked, known, live, words) in [
            ("", "Service", true, "u", live, None),
            ("batch", "Job", true, "u", live, None),
            ("", "Service", false, "u", live, Some("set force: true")),
            ("", "Service", true, "v", live, Some("not this Sync's object")),
            ("", "Service", true, "", live, Some("not this Sync's object")),
            ("", "Service", true, "u", stranger, Some("not this Sync's object")),
            (
                "",
                "Service",
                true,
                "u",
                unlabelled,
                Some("not this Sync's object"),
            ),
            ("", "Namespace", true, "u", live, Some("would be lost")),
            ("", "PersistentVolume", true, "u", live, Some("would be lost")),
            (
                "",
                "PersistentVolumeClaim",
                true,
                "u",
                live,
                Some("would be lost"),
            ),
            (
                "apiextensions.k8s.io",
                "CustomResourceDefinition",
                true,
                "u",
                live,
                Some("would be lost"),
            ),
            ("example.test", "Namespace", true, "u", live, None),
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
