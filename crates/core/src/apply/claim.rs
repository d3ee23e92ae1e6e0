//! The ownership of an object: what is known of it before the object is written, and which of two Syncs keeps the
//! object.

use std::collections::{BTreeMap, BTreeSet};

use super::Live;
use crate::ids::OwnerLabel;
use crate::object::ObjectId;

/// The known ownership of an object before the object is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim<'a> {
    /// No ownership is known.
    New,
    /// An earlier attempt meant to write it, and its response is unknown: the object may be ours, another owner's, or
    /// absent.
    Unconfirmed,
    /// The object with this UID was ours.
    Confirmed(&'a str),
}

impl Claim<'_> {
    /// Reports whether the live object is the one that is claimed.
    ///
    /// Without a known response, our own entry of `metadata.managedFields` proves that an apply of ours succeeded:
    /// controllers do not copy it. On its own it proves nothing, since an object that was released keeps it.
    #[must_use]
    pub fn is_of(self, live: Live<'_>, owner: &OwnerLabel) -> bool {
        match self {
            Self::New => false,
            Self::Unconfirmed => live.is_applied_by(owner),
            Self::Confirmed(uid) => uid == live.uid && live.owner == Some(owner.as_str()),
        }
    }

    /// Reports whether fields that other managers own are taken back from them: an earlier apply succeeded and its
    /// response was lost, so the other managers came later. Not if the object is to be kept, as one that was released.
    #[must_use]
    pub fn takes_back(self, live: Live<'_>, owner: &OwnerLabel) -> bool {
        self == Self::Unconfirmed && self.is_of(live, owner) && !live.prune_disabled
    }
}

/// Another Sync of this installation on the same cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimant {
    /// The name of the Sync, for messages.
    pub name: String,
    /// Whether the target of the Sync is applied. Otherwise it is unknown which objects the Sync will still want.
    pub settled: bool,
    /// The objects that the Sync will render when it is at the revision of the Sync that asks; `None`: every object
    /// that it has.
    pub wants: Option<BTreeSet<ObjectId>>,
}

impl Claimant {
    fn keeps(&self, key: &ObjectId) -> bool {
        self.settled && self.wants.as_ref().is_none_or(|wants| wants.contains(key))
    }
}

/// Returns the owner that keeps the object `key` from being taken; `None`: there is none.
///
/// `recorded` are the owners that the ledger has the object for; `label` is the owner label that was last observed on
/// the object, if it is not ours. A settled owner with the object wants it and keeps it. An owner that is not settled,
/// will not render the object, no longer has the object, or no longer has a Sync, hands it over. A label that belongs
/// to no Sync of this installation is that of another installation, which cannot be asked: it keeps the object. That
/// the Sync of a label is gone (`has_given_up`) is known also if the ledger has nothing about the label.
#[must_use]
pub fn kept_by(
    key: &ObjectId,
    recorded: &[OwnerLabel],
    label: Option<&OwnerLabel>,
    claimants: &BTreeMap<OwnerLabel, Claimant>,
    has_given_up: impl Fn(&OwnerLabel) -> bool,
) -> Option<String> {
    let holder = recorded
        .iter()
        .filter_map(|owner| claimants.get(owner))
        .find(|claimant| claimant.keeps(key))
        .map(|claimant| claimant.name.clone());
    let stranger = || {
        label
            .filter(|label| !claimants.contains_key(*label) && !recorded.iter().any(|owner| owner == *label))
            .filter(|label| !has_given_up(label))
            .map(|label| format!("the owner {label}, which is no Sync of this installation on this cluster"))
    };
    holder.or_else(stranger)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unconfirmed_object_that_is_proven_ours_is_taken_back() {
        let ours = Live::MINE;
        let copied = Live {
            owner_is_applied: false,
            ..ours
        };
        let foreign = Live {
            owner: Some("other"),
            ..ours
        };
        let protected = Live {
            prune_disabled: true,
            ..ours
        };
        for (claim, live, expected) in [
            (Claim::Unconfirmed, ours, true),
            (Claim::Unconfirmed, copied, false),
            (Claim::Unconfirmed, foreign, false),
            (Claim::Unconfirmed, protected, false),
            // The object was released, or never meant to be written.
            (Claim::New, ours, false),
            // A confirmed object is applied by force from the start.
            (Claim::Confirmed("u"), ours, false),
        ] {
            assert_eq!(
                claim.takes_back(live, &OwnerLabel::new("me")),
                expected,
                "{claim:?} {live:?}"
            );
        }
    }

    #[test]
    fn a_settled_owner_with_the_object_keeps_it() {
        let claimant = |name: &str, settled| Claimant {
            name: format!("Sync fleet/{name}"),
            settled,
            wants: None,
        };
        let object = |name: &str| ObjectId {
            group: String::new(),
            kind: "ConfigMap".into(),
            namespace: "shop".into(),
            name: name.into(),
        };
        let moving = |wants: &[&str]| Claimant {
            wants: Some(wants.iter().map(|name| object(name)).collect()),
            ..claimant("m", true)
        };
        let claimants = BTreeMap::from([
            ("aa".to_owned(), claimant("a", true)),
            ("bb".to_owned(), claimant("b", false)),
            ("gives".to_owned(), moving(&["another"])),
            ("keeps".to_owned(), moving(&["object"])),
        ])
        .into_iter()
        .map(|(owner, claimant)| (OwnerLabel::new(owner), claimant))
        .collect();
        let stranger = "the owner zz, which is no Sync of this installation on this cluster";
        for (recorded, label, expected) in [
            (&[][..], None, None),
            (&["aa"], None, Some("Sync fleet/a")),
            (&["aa"], Some("aa"), Some("Sync fleet/a")),
            (&["gives"], Some("gives"), None),
            (&["gives", "aa"], Some("gives"), Some("Sync fleet/a")),
            (&["keeps"], Some("keeps"), Some("Sync fleet/m")),
            (&["bb"], None, None),
            (&["bb", "aa"], Some("bb"), Some("Sync fleet/a")),
            (&["gone"], None, None),
            // The Sync that had the object is gone: the label that is left does not keep it.
            (&["gone"], Some("gone"), None),
            // The object has the label, but the Sync released it.
            (&[], Some("aa"), None),
            (&[], Some("zz"), Some(stranger)),
            // The cluster was in another group in between, and its ledger records went with its Sync.
            (&[], Some("left"), None),
            (&["aa"], Some("left"), Some("Sync fleet/a")),
            (&["bb"], Some("zz"), Some(stranger)),
        ] {
            let recorded: Vec<OwnerLabel> = recorded.iter().map(|owner| OwnerLabel::new(*owner)).collect();
            let label = label.map(OwnerLabel::new);
            assert_eq!(
                kept_by(
                    &object("object"),
                    &recorded,
                    label.as_ref(),
                    &claimants,
                    |label| label.as_str() == "left"
                )
                .as_deref(),
                expected,
                "{recorded:?} {label:?}"
            );
        }
    }
}
