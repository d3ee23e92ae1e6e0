//! The plan of a release after a restore of the management cluster: the writes that it does not know, and the changes
//! of its Syncs.

use std::collections::BTreeSet;

use serde::Serialize;
use starling_core::digest;
use starling_core::preview::{Failing, Overview};
use starling_core::restore::WriteNumber;

/// A write on a member that the management cluster does not know.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LostWrite {
    /// Name of the Cluster.
    pub cluster: String,
    /// The description of the write.
    pub of: String,
    /// Its number.
    pub number: WriteNumber,
}

/// The plan of a release.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RestorePlan {
    /// The writes that the management cluster does not know.
    pub lost: Vec<LostWrite>,
    /// The changes of the Syncs, by equal difference.
    pub overview: Overview,
}

impl RestorePlan {
    /// The digest over everything that the plan shows, without the texts of errors, which may differ each time.
    #[must_use]
    pub fn digest(&self) -> String {
        let names = |lists: &[Failing]| -> BTreeSet<String> {
            lists.iter().flat_map(|list| list.clusters.clone()).collect()
        };
        let Overview {
            changes,
            noted,
            failing,
            unknown,
            suspended,
            ..
        } = &self.overview;
        digest::of(&(
            &self.lost,
            changes,
            noted,
            names(failing),
            names(unknown),
            suspended,
        ))
    }
}
