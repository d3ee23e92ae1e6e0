//! What the user wants the management cluster to have. The user knows it, whatever becomes of the management cluster.

use std::collections::BTreeMap;

use crate::content::EXTRA;
use crate::extras::Extras;
use crate::script::{Event, MEMBERS, member};
use crate::staged::Staged;
use crate::user::GROUP;

/// The intended state of the management cluster.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wanted {
    /// All Clusters, by name.
    pub(crate) clusters: BTreeMap<String, WantedCluster>,
    /// Whether the group [`GROUP`] has its stages.
    pub(crate) has_stages: bool,
    /// Whether the groups have the entry [`crate::content::EXTRA`].
    pub(crate) has_extra: bool,
    /// Whether the groups are suspended.
    pub(crate) is_suspended: bool,
    /// Whether the groups have the deletion budget of the script, if it has one.
    pub(crate) has_budget: bool,
}

/// The intended state of a Cluster.
#[derive(Clone, Debug)]
pub(crate) struct WantedCluster {
    pub(crate) is_present: bool,
    /// Whether it has the label of its group.
    pub(crate) is_selected: bool,
    pub(crate) group: &'static str,
    /// Its stage; none without stages.
    pub(crate) stage: Option<&'static str>,
}

impl Wanted {
    /// Returns the initial state.
    pub(crate) fn first(staged: Option<&Staged>, extras: Option<&Extras>) -> Self {
        let cluster = |number: usize| WantedCluster {
            is_present: !staged.is_some_and(|staged| staged.late_members.contains(&number)),
            is_selected: true,
            group: GROUP,
            stage: staged.and_then(|staged| staged.stages.get(number).copied()),
        };
        Self {
            clusters: (0..MEMBERS)
                .map(|number| (member(number), cluster(number)))
                .collect(),
            has_stages: staged.is_some_and(|staged| !staged.starts_without_stages),
            has_extra: extras.is_some_and(|extras| extras.starts_with_entry),
            is_suspended: false,
            has_budget: true,
        }
    }

    /// Takes over what a task of the user is about to change.
    pub(crate) fn change(&mut self, task: &Event) {
        let mut on = |name: &str, change: &dyn Fn(&mut WantedCluster)| {
            self.clusters.get_mut(name).into_iter().for_each(change);
        };
        match task {
            Event::Label { cluster, selected } => on(cluster, &|cluster| cluster.is_selected = *selected),
            Event::Cluster {
                cluster,
                present: false,
            } => on(cluster, &|cluster| cluster.is_present = false),
            Event::Cluster {
                cluster,
                present: true,
            } => on(cluster, &|cluster| {
                (cluster.is_present, cluster.is_selected) = (true, true);
            }),
            Event::Move { cluster, stage } => on(cluster, &|cluster| cluster.stage = Some(*stage)),
            Event::Transfer { cluster, group } => on(cluster, &|cluster| cluster.group = *group),
            Event::Stages => self.has_stages = true,
            Event::Entry { present } => self.has_extra = *present,
            Event::Suspend { on } => self.is_suspended = *on,
            _ => {}
        }
    }

    /// Whether a group has clusters.
    pub(crate) fn has_clusters(&self, group: &str) -> bool {
        let mut clusters = self.clusters.values();
        clusters.any(|cluster| cluster.is_present && cluster.is_selected && cluster.group == group)
    }

    /// Whether a group should have the Sync of an entry on a cluster. `is_back`: a rollback brought the entry back.
    pub(crate) fn has_sync(&self, group: &str, entry: &str, cluster: &str, is_back: bool) -> bool {
        let cluster = self.clusters.get(cluster);
        let is_selected =
            |cluster: &WantedCluster| cluster.is_present && cluster.is_selected && cluster.group == group;
        cluster.is_some_and(is_selected) && (entry != EXTRA || self.has_extra || is_back)
    }
}
