//! Clusters by equal differences: two hundred clusters are shown as the few distinct changes to them.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Failure, ObjectChange};
use crate::digest;

/// The preview of one cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterPreview {
    /// Objects that change, in the order in which they are written.
    pub changes: Vec<ObjectChange>,
    /// Failures of the apply or of the preview.
    pub failures: Vec<Failure>,
    /// Whether something could not be previewed.
    pub unknown: bool,
    /// Notes that are no failures, such as objects that stay because prune is off.
    pub notes: Vec<String>,
    /// Whether the Cluster is suspended: nothing changes, and it is not previewed.
    pub suspended: bool,
}

impl ClusterPreview {
    /// Adds a failure of the apply.
    pub fn fail(&mut self, entry: &str, message: String) {
        self.failures.push(Failure {
            entry: entry.to_owned(),
            message,
        });
    }

    /// Adds a failure of the preview.
    pub fn fail_unknown(&mut self, entry: &str, message: String) {
        self.fail(entry, message);
        self.unknown = true;
    }
}

/// Clusters with the same changes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Distinct {
    /// The names of the clusters.
    pub clusters: Vec<String>,
    /// The changes on each of them.
    pub objects: Vec<ObjectChange>,
    /// The notes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Clusters without changes, with the same notes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Noted {
    /// The names of the clusters.
    pub clusters: Vec<String>,
    /// The notes.
    pub notes: Vec<String>,
}

/// Clusters with the same failures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failing {
    /// The names of the clusters.
    pub clusters: Vec<String>,
    /// The failures of the apply or of the preview.
    pub failures: Vec<Failure>,
}

/// The preview of a whole group.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Overview {
    /// All clusters.
    pub clusters: usize,
    /// Clusters without changes and notes.
    pub unchanged: Vec<String>,
    /// Suspended clusters. A rollout skips them, and so does a preview.
    pub suspended: Vec<String>,
    /// The distinct changes, that on most clusters first.
    pub changes: Vec<Distinct>,
    /// The notes on clusters without changes, those on most clusters first. A note is no difference.
    pub noted: Vec<Noted>,
    /// The failures, those on most clusters first. A cluster may have both failures and changes.
    pub failing: Vec<Failing>,
    /// The parts that could not be previewed, those on most clusters first.
    pub unknown: Vec<Failing>,
}

impl Overview {
    /// Groups clusters by their changes.
    #[must_use]
    pub fn of(previews: BTreeMap<String, ClusterPreview>) -> Self {
        let mut overview = Self {
            clusters: previews.len(),
            ..Self::default()
        };
        let mut changes: BTreeMap<String, Distinct> = BTreeMap::new();
        let mut noted: BTreeMap<Vec<String>, Vec<String>> = BTreeMap::new();
        let mut failing: BTreeMap<Vec<Failure>, Vec<String>> = BTreeMap::new();
        let mut unknown: BTreeMap<Vec<Failure>, Vec<String>> = BTreeMap::new();
        for (cluster, preview) in previews {
            let ClusterPreview {
                changes: objects,
                mut failures,
                unknown: is_unknown,
                notes,
                suspended,
            } = preview;
            failures.sort();
            if suspended {
                overview.suspended.push(cluster);
                continue;
            }
            if objects.is_empty() && failures.is_empty() && notes.is_empty() {
                overview.unchanged.push(cluster);
                continue;
            }
            if objects.is_empty() && !notes.is_empty() {
                noted.entry(notes).or_default().push(cluster.clone());
            } else if !objects.is_empty() {
                let key = digest::of(&(&objects, &notes));
                let slot = changes.entry(key).or_insert_with(|| Distinct {
                    clusters: Vec::new(),
                    objects,
                    notes,
                });
                slot.clusters.push(cluster.clone());
            }
            if !failures.is_empty() {
                let list = if is_unknown { &mut unknown } else { &mut failing };
                list.entry(failures).or_default().push(cluster);
            }
        }
        overview.changes = changes.into_values().collect();
        overview
            .changes
            .sort_by(|a, b| (b.clusters.len(), &a.clusters).cmp(&(a.clusters.len(), &b.clusters)));
        let noted = most_first(noted).into_iter();
        overview.noted = noted.map(|(notes, clusters)| Noted { clusters, notes }).collect();
        let failing_of = |(failures, clusters)| Failing { clusters, failures };
        overview.failing = most_first(failing).into_iter().map(failing_of).collect();
        overview.unknown = most_first(unknown).into_iter().map(failing_of).collect();
        overview
    }

    /// Reports whether anything changes.
    #[must_use]
    pub fn changes_anything(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Reports whether everything could be previewed and nothing fails.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.failing.is_empty() && self.unknown.is_empty()
    }

    /// Returns a text such as `200 clusters: 3 distinct changes on 150, 42 unchanged, 2 would fail, 3 not previewed, 3
    /// suspended`.
    #[must_use]
    pub fn summary(&self) -> String {
        let count = |lists: &[Failing]| lists.iter().map(|list| list.clusters.len()).sum::<usize>();
        let changed: usize = self.changes.iter().map(|one| one.clusters.len()).sum();
        let noted: usize = self.noted.iter().map(|one| one.clusters.len()).sum();
        let mut parts = Vec::new();
        match self.changes.len() {
            0 => parts.push("no changes".to_owned()),
            1 => parts.push(format!("1 distinct change on {changed}")),
            many => parts.push(format!("{many} distinct changes on {changed}")),
        }
        for (number, what) in [
            (self.unchanged.len(), "unchanged"),
            (noted, "with notes only"),
            (count(&self.failing), "would fail"),
            (count(&self.unknown), "not previewed"),
            (self.suspended.len(), "suspended"),
        ] {
            if number > 0 {
                parts.push(format!("{number} {what}"));
            }
        }
        let plural = if self.clusters == 1 { "" } else { "s" };
        format!("{} cluster{plural}: {}", self.clusters, parts.join(", "))
    }
}

/// Returns the values with their clusters, that of most clusters first.
fn most_first<T>(lists: BTreeMap<T, Vec<String>>) -> Vec<(T, Vec<String>)> {
    let mut lists: Vec<(T, Vec<String>)> = lists.into_iter().collect();
    lists.sort_by(|(_, a), (_, b)| (b.len(), a).cmp(&(a.len(), b)));
    lists
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::ObjectId;
    use crate::preview::{FieldChange, PreviewChange};

    fn object(name: &str, change: PreviewChange) -> ObjectChange {
        ObjectChange {
            entry: "app".into(),
            key: ObjectId {
                group: "apps".into(),
                kind: "Deployment".into(),
                namespace: "shop".into(),
                name: name.into(),
            },
            change,
        }
    }

    fn replicas(from: u32, to: u32) -> PreviewChange {
        PreviewChange::Update {
            fields: vec![FieldChange {
                path: ".spec.replicas".into(),
                from: Some(from.into()),
                to: Some(to.into()),
            }],
        }
    }

    fn changed(objects: Vec<ObjectChange>) -> ClusterPreview {
        ClusterPreview {
            changes: objects,
            ..ClusterPreview::default()
        }
    }

    fn failed(message: &str, unknown: bool) -> ClusterPreview {
        ClusterPreview {
            failures: vec![Failure {
                entry: "app".into(),
                message: message.into(),
            }],
            unknown,
            ..ClusterPreview::default()
        }
    }

    #[test]
    fn clusters_are_grouped_by_their_changes() {
        let overview = Overview::of(
            [
                ("a", changed(vec![object("web", replicas(1, 2))])),
                ("b", changed(vec![object("web", replicas(2, 3))])),
                ("c", changed(vec![object("web", replicas(2, 3))])),
                ("d", ClusterPreview::default()),
                ("e", failed("forbidden", false)),
                ("f", failed("no answer", true)),
                ("g", failed("forbidden", false)),
            ]
            .map(|(name, preview)| (name.to_owned(), preview))
            .into(),
        );
        let of: Vec<_> = overview
            .changes
            .iter()
            .map(|one| one.clusters.join(" "))
            .collect();
        assert_eq!(of, ["b c", "a"]);
        assert_eq!(overview.unchanged, ["d"]);
        assert_eq!(overview.failing[0].clusters, ["e", "g"]);
        assert_eq!(
            overview.summary(),
            "7 clusters: 2 distinct changes on 3, 1 unchanged, 2 would fail, 1 not previewed"
        );
        assert!(overview.changes_anything() && !overview.is_sound());
    }

    #[test]
    fn a_cluster_can_have_failures_and_changes() {
        let mut half = failed("forbidden", false);
        half.changes = vec![object("web", PreviewChange::Create)];
        let overview = Overview::of([("a".to_owned(), half)].into());
        assert_eq!(
            overview.summary(),
            "1 cluster: 1 distinct change on 1, 1 would fail"
        );
        assert!(overview.unchanged.is_empty());
    }

    #[test]
    fn notes_are_kept_on_clusters_without_changes() {
        let noted = |note: &str| ClusterPreview {
            notes: vec![note.into()],
            ..ClusterPreview::default()
        };
        let mut half = failed("forbidden", false);
        half.notes = vec!["stays".into()];
        let overview = Overview::of(
            [
                ("a", noted("stays")),
                ("b", noted("stays")),
                ("c", noted("another")),
                ("d", half),
                ("e", ClusterPreview::default()),
            ]
            .map(|(name, preview)| (name.to_owned(), preview))
            .into(),
        );
        let of = overview.noted.iter().map(|one| one.clusters.join(" "));
        assert_eq!(of.collect::<Vec<_>>(), ["a b d", "c"]);
        assert_eq!(overview.unchanged, ["e"]);
        assert!(!overview.changes_anything(), "a word is no difference");
        assert_eq!(
            overview.summary(),
            "5 clusters: no changes, 1 unchanged, 4 with notes only, 1 would fail"
        );
    }

    #[test]
    fn a_suspended_cluster_is_left_out_and_is_no_failure() {
        let suspended = ClusterPreview {
            suspended: true,
            ..ClusterPreview::default()
        };
        let previews = [
            ("a", suspended),
            ("b", changed(vec![object("web", PreviewChange::Create)])),
        ];
        let overview = Overview::of(previews.map(|(name, preview)| (name.to_owned(), preview)).into());
        assert_eq!(overview.suspended, ["a"]);
        assert!(overview.is_sound() && overview.unchanged.is_empty());
        assert_eq!(
            overview.summary(),
            "2 clusters: 1 distinct change on 1, 1 suspended"
        );
    }

    #[test]
    fn no_changes_are_reported() {
        let overview = Overview::of([("a".to_owned(), ClusterPreview::default())].into());
        assert_eq!(overview.summary(), "1 cluster: no changes, 1 unchanged");
        assert!(overview.is_sound() && !overview.changes_anything());
    }
}
