//! The lists of deletions that are approved.

use std::collections::BTreeSet;

use crate::deletion_subject::ApprovalSubject;

/// The digests of lists of deletions that are approved. Clusters of one group may lose different objects, so there may
/// be several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApprovedDigests(BTreeSet<String>);

/// No approved list.
static NONE: ApprovedDigests = ApprovedDigests(BTreeSet::new());

impl ApprovedDigests {
    /// Returns the digests in the value of an annotation, which are separated by commas or spaces.
    #[must_use]
    pub fn of_annotation(value: &str) -> Self {
        Self::in_annotation(value).map(str::to_owned).collect()
    }

    /// Returns the digests in the value of an annotation, in its order.
    pub fn in_annotation(value: &str) -> impl Iterator<Item = &str> {
        value.split([',', ' ', '\n']).filter(|digest| !digest.is_empty())
    }

    /// Reports whether a list is approved.
    #[must_use]
    pub fn contain(&self, digest: &str) -> bool {
        self.0.contains(digest)
    }

    /// Returns the digests, in order.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

impl FromIterator<String> for ApprovedDigests {
    /// Collects digests. A list without a digest is approved by nothing.
    fn from_iter<T: IntoIterator<Item = String>>(digests: T) -> Self {
        Self(digests.into_iter().filter(|digest| !digest.is_empty()).collect())
    }
}

/// The approved deletions of one Sync.
#[derive(Clone, Copy, Debug)]
pub struct ApprovedDeletions<'a> {
    /// The subject that the approvals must have.
    pub subject: ApprovalSubject<'a>,
    /// The digests that are approved.
    pub digests: &'a ApprovedDigests,
}

impl Default for ApprovedDeletions<'_> {
    fn default() -> Self {
        Self {
            subject: ApprovalSubject::default(),
            digests: &NONE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_annotation_approves_each_digest_in_it_and_no_empty_one() {
        let approved = ApprovedDigests::of_annotation("a, b\nc");
        for digest in ["a", "b", "c"] {
            assert!(approved.contain(digest), "{digest}");
        }
        assert!(!approved.contain("d") && !approved.contain("a, b"));
        assert!(!ApprovedDigests::of_annotation("").contain(""));
        assert!(!ApprovedDigests::of_annotation("a,,b").contain(""));
        assert_eq!(approved.iter().collect::<Vec<_>>(), ["a", "b", "c"]);
    }
}
