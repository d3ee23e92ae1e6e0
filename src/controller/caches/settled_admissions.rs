//! Admissions that this process has settled as failed by time, so that no pass settles them again.
//!
//! The cache only saves commits: for each admission only the first end counts in the ledger. Without the cache every
//! pass over a group with a thousand failed clusters would make a thousand commits.

use std::collections::BTreeMap;

use starling_core::ids::{ClusterName, EntryName, GroupId};
use starling_core::rollout::{Admission, AdmissionRef};

use crate::controller::keyed::{Keyed, per_object};
use crate::controller::object_key::ObjectKey;

/// The settled admissions of each group.
#[derive(Debug, Default)]
pub struct SettledAdmissions {
    known: Keyed<GroupAdmissions>,
}

per_object!(SettledAdmissions, known);

/// The settled admissions of one group.
#[derive(Debug, Default)]
struct GroupAdmissions {
    /// Identity of the group: another group with the same name has none of these admissions.
    id: GroupId,
    /// The newest settled admission of each cluster and entry.
    settled: BTreeMap<(ClusterName, EntryName), AdmissionRef>,
}

impl SettledAdmissions {
    /// Returns whether an admission is settled.
    #[must_use]
    pub fn contains(&self, group: &ObjectKey, id: &GroupId, admission: &AdmissionRef) -> bool {
        let known = self.known.lock();
        let settled = known.get(group).filter(|of_group| of_group.id == *id);
        settled.and_then(|of_group| of_group.settled.get(&place(admission))) == Some(admission)
    }

    /// Records that an admission is settled.
    pub fn add(&self, group: &ObjectKey, id: &GroupId, admission: &AdmissionRef) {
        let mut known = self.known.lock();
        let of_group = known.entry(group.clone()).or_default();
        if of_group.id != *id {
            *of_group = GroupAdmissions {
                id: id.clone(),
                settled: BTreeMap::new(),
            };
        }
        of_group.settled.insert(place(admission), admission.clone());
    }

    /// Removes the settled admissions that new admissions replace.
    pub fn reopen(&self, group: &ObjectKey, admissions: &[Admission]) {
        let mut known = self.known.lock();
        let Some(of_group) = known.get_mut(group) else {
            return;
        };
        for admission in admissions {
            let place = (admission.cluster.clone(), admission.entry.clone());
            of_group.settled.remove(&place);
        }
    }
}

fn place(admission: &AdmissionRef) -> (ClusterName, EntryName) {
    (admission.cluster.clone(), admission.entry.clone())
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use starling_core::ids::RolloutNumber;

    use super::*;

    #[test]
    fn an_admission_is_settled_until_its_place_is_admitted_again() {
        let (settled, group) = (SettledAdmissions::default(), ObjectKey::new("fleet", "shop"));
        let of = |cluster: &str, target: &str| AdmissionRef {
            cluster: cluster.into(),
            entry: "app".into(),
            rollout: RolloutNumber::new(1),
            target: target.into(),
        };
        assert!(!settled.contains(&group, &GroupId::new("u"), &of("a", "x")));
        settled.add(&group, &GroupId::new("u"), &of("a", "x"));
        settled.add(&group, &GroupId::new("u"), &of("b", "x"));
        assert!(settled.contains(&group, &GroupId::new("u"), &of("a", "x")));
        assert!(
            !settled.contains(&group, &GroupId::new("u"), &of("a", "y")),
            "another target"
        );
        assert!(
            !settled.contains(&group, &GroupId::new("v"), &of("a", "x")),
            "another group of the name"
        );
        let retry = Admission {
            cluster: "a".into(),
            entry: "app".into(),
            release: "r".into(),
            rollout: RolloutNumber::new(1),
            target: "x".into(),
            revision: String::new(),
            at: Timestamp::UNIX_EPOCH,
            retried_for: Some(Timestamp::UNIX_EPOCH),
        };
        settled.reopen(&group, &[retry]);
        assert!(!settled.contains(&group, &GroupId::new("u"), &of("a", "x")));
        assert!(settled.contains(&group, &GroupId::new("u"), &of("b", "x")));
    }
}
