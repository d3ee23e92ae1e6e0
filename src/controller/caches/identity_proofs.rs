//! Whether two Clusters that report one identity are one member, as far as that was proven lately.

use std::time::Duration;

use starling_core::identity_claim::Proof;
use tokio::time::Instant;

use crate::controller::keyed::{Keyed, per_object};
use crate::controller::object_key::ObjectKey;

/// Time for which a proof counts: each of them writes to both members.
const VALID: Duration = Duration::from_mins(10);

/// Proofs by the Cluster that was probed.
#[derive(Debug, Default)]
pub struct IdentityProofs {
    by_cluster: Keyed<Vec<Proven>>,
}

per_object!(IdentityProofs, by_cluster);

/// The Cluster and the credentials that a proof is about. With others, a member may be another one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// The other Cluster.
    pub other: ObjectKey,
    /// The version of both Secrets.
    pub made_from: [String; 2],
}

#[derive(Clone, Debug)]
struct Proven {
    about: Subject,
    proof: Proof,
    at: Instant,
}

impl IdentityProofs {
    /// Returns a proof that still counts.
    #[must_use]
    pub fn get(&self, cluster: &ObjectKey, about: &Subject) -> Option<Proof> {
        let known = self.by_cluster.get(cluster)?;
        let mut known = known.into_iter();
        known
            .find(|proven| proven.about == *about && proven.at.elapsed() < VALID)
            .map(|proven| proven.proof)
    }

    /// Records a proof.
    pub fn set(&self, cluster: &ObjectKey, about: Subject, proof: Proof) {
        let mut known = self.by_cluster.get(cluster).unwrap_or_default();
        known.retain(|proven| proven.about.other != about.other && proven.at.elapsed() < VALID);
        known.push(Proven {
            about,
            proof,
            at: Instant::now(),
        });
        self.by_cluster.set(cluster, known);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_proof_counts_for_a_while_and_for_its_credentials() {
        let proofs = IdentityProofs::default();
        let cluster = ObjectKey::new("shop", "eu");
        let about = |other: &str, version: &str| Subject {
            other: ObjectKey::new("shop", other),
            made_from: ["1".to_owned(), version.to_owned()],
        };
        proofs.set(&cluster, about("us", "1"), Proof::Same);
        proofs.set(&cluster, about("asia", "1"), Proof::Different);
        assert_eq!(proofs.get(&cluster, &about("us", "1")), Some(Proof::Same));
        assert_eq!(proofs.get(&cluster, &about("asia", "1")), Some(Proof::Different));
        assert_eq!(proofs.get(&cluster, &about("us", "2")), None);
        proofs.set(&cluster, about("us", "2"), Proof::Different);
        assert_eq!(proofs.get(&cluster, &about("us", "1")), None);
        tokio::time::advance(VALID).await;
        assert_eq!(proofs.get(&cluster, &about("us", "2")), None);
    }
}
