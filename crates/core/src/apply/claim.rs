//! Whose an object is: what is known of that before it is written, and where two Syncs want it.

use std::collections::BTreeMap;

use super::Live;

/// What is known, before an object is written, of whether it is ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim<'a> {
    /// Nothing.
    New,
    /// An earlier attempt meant to write it, and no answer is known: it may be ours, or somebody else's, or not there.
    Unconfirmed,
    /// The one with this UID was ours.
    Confirmed(&'a str),
}

impl Claim<'_> {
    /// Whether the live object is the one that is claimed.
    ///
    /// Where no answer is known, our own entry of `metadata.managedFields` proves that an apply of ours was taken: nobody copies it.
    /// Alone it proves nothing, for what was let go keeps it.
    #[must_use]
    pub fn is_of(self, live: Live<'_>, owner: &str) -> bool {
        match self {
            Self::New => false,
            Self::Unconfirmed => live.is_applied_by(owner),
            Self::Confirmed(uid) => uid == live.uid && live.owner == Some(owner),
        }
    }

    /// Whether fields that others hold are taken back from them: an earlier apply was taken and its answer lost, so that they came
    /// after it. Not where somebody asks to keep the object, as they do of one that was let go.
    #[must_use]
    pub fn takes_back(self, live: Live<'_>, owner: &str) -> bool {
        self == Self::Unconfirmed && self.is_of(live, owner) && !live.prune_disabled
    }
}

/// Another Sync of this installation on the same cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimant {
    /// Its name, for people.
    pub name: String,
    /// Whether the cluster holds what it wants. While it does not, what it will still want is not known.
    pub settled: bool,
}

/// Who keeps an object from being taken; `None` if nobody does.
///
/// `recorded` are the owners that the ledger has the object for; `label` is the owner that was last seen on the object
/// itself, where it was not ours. An owner that is settled and still has the object wants it: the object stays with it.
/// One that is not settled, no longer has it, or has no Sync any more, hands it over. A label that belongs to no Sync of
/// ours is that of another installation, which cannot be asked: it keeps the object.
#[must_use]
pub fn kept_by(
    recorded: &[String],
    label: Option<&str>,
    claimants: &BTreeMap<String, Claimant>,
) -> Option<String> {
    let holder = recorded
        .iter()
        .filter_map(|owner| claimants.get(owner))
        .find(|claimant| claimant.settled)
        .map(|claimant| claimant.name.clone());
    let stranger = || {
        label
            .filter(|label| !claimants.contains_key(*label) && !recorded.iter().any(|owner| owner == label))
            .map(|label| format!("the owner {label}, which is no Sync of this installation on this cluster"))
    };
    holder.or_else(stranger)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_claimed_without_an_answer_and_is_proven_ours_is_taken_back() {
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
            // What was let go, or never meant to be written.
            (Claim::New, ours, false),
            // What is confirmed is applied by force from the start.
            (Claim::Confirmed("u"), ours, false),
        ] {
            assert_eq!(claim.takes_back(live, "me"), expected, "{claim:?} {live:?}");
        }
    }

    #[test]
    fn whoever_is_settled_and_has_it_keeps_it() {
        let claimant = |name: &str, settled| Claimant {
            name: format!("Sync fleet/{name}"),
            settled,
        };
        let claimants = BTreeMap::from([
            ("aa".to_owned(), claimant("a", true)),
            ("bb".to_owned(), claimant("b", false)),
        ]);
        let stranger = "the owner zz, which is no Sync of this installation on this cluster";
        for (recorded, label, expected) in [
            (&[][..], None, None),
            (&["aa"], None, Some("Sync fleet/a")),
            (&["aa"], Some("aa"), Some("Sync fleet/a")),
            (&["bb"], None, None),
            (&["bb", "aa"], Some("bb"), Some("Sync fleet/a")),
            (&["gone"], None, None),
            // It had the object and its Sync is gone: the label that is left behind keeps nobody.
            (&["gone"], Some("gone"), None),
            // It carries the label, but gave the object up.
            (&[], Some("aa"), None),
            (&[], Some("zz"), Some(stranger)),
            (&["bb"], Some("zz"), Some(stranger)),
        ] {
            let recorded: Vec<String> = recorded.iter().map(|owner| (*owner).to_owned()).collect();
            assert_eq!(
                kept_by(&recorded, label, &claimants).as_deref(),
                expected,
                "{recorded:?} {label:?}"
            );
        }
    }
}
