//! Clusters by equal difference: two hundred clusters are read as the three things that would happen to them.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Failure, ObjectChange};
use crate::digest;

/// What would happen on one cluster.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterPreview {
    /// Objects that would change, in the order in which they would be written.
    pub changes: Vec<ObjectChange>,
    /// What would fail, or keeps it from being told.
    pub failures: Vec<Failure>,
    /// Something of it could not be looked at: it is not known what would happen.
    pub unknown: bool,
    /// What is worth a word and fails nothing, such as objects that stay since prune is off.
    pub notes: Vec<String>,
    /// Its Cluster is suspended: nothing would happen on it, and it was not looked at.
    pub suspended: bool,
}

impl ClusterPreview {
    /// Something would fail.
    pub fn fail(&mut self, entry: &str, message: String) {
        self.failures.push(Failure {
            entry: entry.to_owned(),
            message,
        });
    }

    /// Something could not be looked at.
    pub fn fail_unknown(&mut self, entry: &str, message: String) {
        self.fail(entry, message);
        self.unknown = true;
    }
}

/// Clusters with the same changes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Distinct {
    /// Their names.
    pub clusters: Vec<String>,
    /// What would happen on each of them.
    pub objects: Vec<ObjectChange>,
    /// What is worth a word.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Clusters on which no object would change, with the same to be said of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Noted {
    /// Their names.
    pub clusters: Vec<String>,
    /// What is worth a word.
    pub notes: Vec<String>,
}

/// Clusters with the same trouble.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failing {
    /// Their names.
    pub clusters: Vec<String>,
    /// What would fail, or could not be looked at.
    pub failures: Vec<Failure>,
}

/// What would happen in a whole group.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Overview {
    /// Clusters in all.
    pub clusters: usize,
    /// Clusters on which nothing would change, and of which there is nothing to say.
    pub unchanged: Vec<String>,
    /// Clusters that are suspended. A rollout passes them over, and so does a preview.
    pub suspended: Vec<String>,
    /// The distinct changes, that of most clusters first.
    pub changes: Vec<Distinct>,
    /// What is worth a word where no object would change, of most clusters first. It is no difference.
    pub noted: Vec<Noted>,
    /// What would fail, on most clusters first. A cluster may be here and among the changes: what does not fail would change.
    pub failing: Vec<Failing>,
    /// What could not be looked at, on most clusters first.
    pub unknown: Vec<Failing>,
}

impl Overview {
    /// Groups clusters by what would happen on them.
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

    /// Whether anything would change.
    #[must_use]
    pub fn changes_anything(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Whether everything was looked at and nothing would fail.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.failing.is_empty() && self.unknown.is_empty()
    }

    /// `200 clusters: 3 distinct changes on 150, 42 unchanged, 2 would fail, 3 not looked at, 3 suspended`.
    #[must_use]
    pub fn summary(&self) -> String {
        let count = |lists: &[Failing]| lists.iter().map(|list| list.clusters.len()).sum::<usize>();
        let changed: usize = self.changes.iter().map(|one| one.clusters.len()).sum();
        let noted: usize = self.noted.iter().map(|one| one.clusters.len()).sum();
        let mut parts = Vec::new();
        match self.changes.len() {
            0 => parts.push("nothing changes".to_owned()),
            1 => parts.push(format!("1 distinct change on {changed}")),
            many => parts.push(format!("{many} distinct changes on {changed}")),
        }
        for (number, what) in [
            (self.unchanged.len(), "unchanged"),
            (noted, "only noted"),
            (count(&self.failing), "would fail"),
            (count(&self.unknown), "not looked at"),
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

/// What is the same for several clusters, with their names: that of most clusters first.
fn most_first<T>(lists: BTreeMap<T, Vec<String>>) -> Vec<(T, Vec<String>)> {
    let mut lists: Vec<(T, Vec<String>)> = lists.into_iter().collect();
    lists.sort_by(|(_, a), (_, b)| (b.len(), a).cmp(&(a.len(), b)));
    lists
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::ObjectKey;
    use crate::preview::{Change, FieldChange};

    fn object(name: &str, change: Change) -> ObjectChange {
        ObjectChange {
            entry: "app".into(),
            key: ObjectKey {
                group: "apps".into(),
                kind: "Deployment".into(),
                namespace: "shop".into(),
                name: name.into(),
            },
            change,
        }
    }

    fn replicas(from: u32, to: u32) -> Change {
        Change::Update {
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
    fn clusters_are_grouped_by_what_would_happen_to_them() {
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
            "7 clusters: 2 distinct changes on 3, 1 unchanged, 2 would fail, 1 not looked at"
        );
        assert!(overview.changes_anything() && !overview.is_sound());
    }

    #[test]
    fn a_cluster_on_which_something_fails_and_something_changes_is_both() {
        let mut half = failed("forbidden", false);
        half.changes = vec![object("web", Change::Create)];
        let overview = Overview::of([("a".to_owned(), half)].into());
        assert_eq!(
            overview.summary(),
            "1 cluster: 1 distinct change on 1, 1 would fail"
        );
        assert!(overview.unchanged.is_empty());
    }

    #[test]
    fn what_is_worth_a_word_is_kept_where_no_object_changes() {
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
            "5 clusters: nothing changes, 1 unchanged, 4 only noted, 1 would fail"
        );
    }

    #[test]
    fn who_is_suspended_is_left_out_and_fails_nothing() {
        let suspended = ClusterPreview {
            suspended: true,
            ..ClusterPreview::default()
        };
        let previews = [
            ("a", suspended),
            ("b", changed(vec![object("web", Change::Create)])),
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
    fn nothing_to_do_is_said() {
        let overview = Overview::of([("a".to_owned(), ClusterPreview::default())].into());
        assert_eq!(overview.summary(), "1 cluster: nothing changes, 1 unchanged");
        assert!(overview.is_sound() && !overview.changes_anything());
    }
}
