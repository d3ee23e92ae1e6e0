//! What follows if several Clusters report one identity: the UID of the namespace `kube-system`, which a member can
//! claim as it likes.
//!
//! Two Clusters that are one member would own it in turns, so the older Cluster keeps it. That they are one member
//! takes a proof: what was written through one of them is read through the other, in both directions. Otherwise one of
//! them lies, or was restored from a backup of the other, and it cannot be known which. Then each of them continues,
//! and the one that came later gets an identity of its own, so that nothing that is known of the other member counts
//! for it.

use crate::digest::hash64;
use crate::ids::ClusterId;

/// The character before the suffix of an identity of its own. No UID has it.
const SUFFIX: char = '~';

/// Whether two Clusters are one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proof {
    /// Each of them has what was written through the other one.
    Same,
    /// One of them does not have what was written through the other one.
    Different,
    /// One of them did not respond, or refused.
    Unknown,
}

/// The identity that a Cluster reports.
#[derive(Clone, Copy, Debug)]
pub struct Claim<'a> {
    /// The identity that the member claims.
    pub claimed: &'a ClusterId,
    /// The identity in the status of the Cluster; empty before the first probe.
    pub recorded: &'a ClusterId,
    /// The identity that the Cluster gets if another one has the claimed one ([`own`]).
    pub own: &'a ClusterId,
    /// Whether the last probe found that an older Cluster is the same member.
    pub was_refused: bool,
}

/// Another Cluster whose status has the claimed identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rival {
    /// Whether it is older.
    pub is_older: bool,
    /// Whether it is in the same namespace.
    pub is_neighbour: bool,
    /// Whether it is the same member.
    pub proof: Proof,
}

/// The decision on a claim. The number is the place of the rival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClaimVerdict {
    /// The Cluster has the claimed identity.
    Granted,
    /// The Cluster has an identity of its own: another member claims the same one.
    Qualified(usize),
    /// The Cluster is not used: it is the member of an older one, or that is not known yet.
    Refused(usize),
}

/// Returns the identity that a Cluster gets instead of the one that its member claims.
#[must_use]
pub fn own(claimed: &ClusterId, namespace: &str, name: &str) -> ClusterId {
    ClusterId::new(format!(
        "{}{SUFFIX}{:016x}",
        claimed.as_str(),
        hash64(&[namespace, name])
    ))
}

/// Returns the identity that a member claims, of the one in the status of its Cluster.
#[must_use]
pub fn claimed(recorded: &str) -> &str {
    recorded
        .split_once(SUFFIX)
        .map_or(recorded, |(claimed, _)| claimed)
}

/// Returns whether a proof about this rival matters: what a Cluster has, it loses to older ones only.
#[must_use]
pub fn matters(claim: &Claim<'_>, is_older: bool) -> bool {
    is_older || claim.recorded != claim.claimed || claim.was_refused
}

/// Decides on a claim. The rivals are in order of age.
#[must_use]
pub fn decide(claim: &Claim<'_>, rivals: &[Rival]) -> ClaimVerdict {
    let holds = claim.recorded == claim.claimed && !claim.was_refused;
    let is_qualified = claim.recorded == claim.own;
    let mut verdict = ClaimVerdict::Granted;
    for (place, rival) in rivals.iter().enumerate() {
        if !matters(claim, rival.is_older) {
            continue;
        }
        match rival.proof {
            Proof::Same if rival.is_older => return ClaimVerdict::Refused(place),
            // The younger one is refused by its own probe.
            Proof::Same => {}
            Proof::Different => verdict = ClaimVerdict::Qualified(place),
            Proof::Unknown if claim.was_refused => return ClaimVerdict::Refused(place),
            // Whoever has an identity does not lose it to one that does not respond.
            Proof::Unknown if holds => {}
            // Syncs of one group have one inventory on a member: as one member, they would prune each other's objects.
            Proof::Unknown if rival.is_neighbour && !is_qualified => return ClaimVerdict::Refused(place),
            Proof::Unknown => verdict = ClaimVerdict::Qualified(place),
        }
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenant_only_a_proof_takes_an_identity_away() {
        use ClaimVerdict::{Granted, Qualified, Refused};
        use Proof::{Different, Same, Unknown};
        let claimed = ClusterId::new("u");
        let own = own(&claimed, "shop", "eu");
        let none = ClusterId::default();
        let other = ClusterId::new("x");
        let rival = |is_older, is_neighbour, proof| Rival {
            is_older,
            is_neighbour,
            proof,
        };
        // The recorded identity, whether it was refused, the rival, the verdict.
        for (recorded, was_refused, rival, expected) in [
            // A new Cluster.
            (&none, false, rival(true, true, Same), Refused(0)),
            (&none, false, rival(false, true, Same), Granted),
            (&none, false, rival(true, true, Different), Qualified(0)),
            (&none, false, rival(false, false, Different), Qualified(0)),
            (&none, false, rival(true, true, Unknown), Refused(0)),
            (&none, false, rival(true, false, Unknown), Qualified(0)),
            // Its member claims another identity than before.
            (&other, false, rival(true, true, Different), Qualified(0)),
            (&other, false, rival(false, true, Different), Qualified(0)),
            (&other, false, rival(false, true, Unknown), Refused(0)),
            // It has the identity, and an older Cluster claims it.
            (&claimed, false, rival(true, true, Same), Refused(0)),
            (&claimed, false, rival(true, false, Same), Refused(0)),
            (&claimed, false, rival(true, true, Unknown), Granted),
            (&claimed, false, rival(true, false, Unknown), Granted),
            (&claimed, false, rival(true, false, Different), Qualified(0)),
            (&claimed, false, rival(false, false, Different), Granted),
            (&claimed, false, rival(false, true, Same), Granted),
            // It was refused, or got one of its own.
            (&claimed, true, rival(true, false, Unknown), Refused(0)),
            (&none, true, rival(true, false, Different), Qualified(0)),
            (&own, false, rival(true, true, Unknown), Qualified(0)),
            (&own, false, rival(true, true, Same), Refused(0)),
        ] {
            let claim = Claim {
                claimed: &claimed,
                recorded,
                own: &own,
                was_refused,
            };
            assert_eq!(decide(&claim, &[rival]), expected, "{claim:?} {rival:?}");
            assert_eq!(decide(&claim, &[]), Granted);
        }
        let claim = Claim {
            claimed: &claimed,
            recorded: &none,
            own: &own,
            was_refused: false,
        };
        let rivals = [rival(true, false, Different), rival(true, true, Same)];
        assert_eq!(
            decide(&claim, &rivals),
            Refused(1),
            "the same member as one of them"
        );
    }

    #[test]
    fn identities_of_their_own_differ() {
        let claimed = ClusterId::new("u");
        let all =
            [("a", "bc"), ("ab", "c"), ("a", "b")].map(|(namespace, name)| own(&claimed, namespace, name));
        assert!(all[0] != all[1] && all[1] != all[2] && all[0] != all[2]);
        assert_eq!(own(&claimed, "a", "bc"), all[0]);
        assert_eq!(super::claimed(all[0].as_str()), "u");
        assert_eq!(super::claimed("u"), "u");
    }
}
