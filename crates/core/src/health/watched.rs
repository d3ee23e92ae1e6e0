//! What is known of the health of a Sync's objects: a cache, whose loss costs requests.

use std::collections::{BTreeMap, BTreeSet};

use super::counts;
use crate::object::ObjectKey;

/// The objects of one Sync whose health counts, each with the `resourceVersion` in which it was found healthy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watched {
    healthy_at: BTreeMap<ObjectKey, Option<String>>,
}

impl Watched {
    /// Those of `objects` whose health counts; nothing is known of them yet.
    pub fn new<'a>(objects: impl IntoIterator<Item = &'a ObjectKey>) -> Self {
        let healthy_at = objects
            .into_iter()
            .filter(|key| counts(&key.group, &key.kind))
            .map(|key| (key.clone(), None))
            .collect();
        Self { healthy_at }
    }

    /// Whether there is no object whose health counts.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.healthy_at.is_empty()
    }

    /// All objects whose health counts.
    #[must_use]
    pub fn all(&self) -> BTreeSet<ObjectKey> {
        self.healthy_at.keys().cloned().collect()
    }

    /// Those that have to be read: not found healthy yet, or not since they moved.
    #[must_use]
    pub fn in_question(&self) -> BTreeSet<ObjectKey> {
        self.healthy_at
            .iter()
            .filter(|(_, version)| version.is_none())
            .map(|(key, _)| key.clone())
            .collect()
    }

    /// Takes note of the versions that the member has now. What moved, and what is not among them, is in question again.
    pub fn now_at(&mut self, versions: &BTreeMap<ObjectKey, String>) {
        for (key, known) in &mut self.healthy_at {
            if known.as_ref() != versions.get(key) {
                *known = None;
            }
        }
    }

    /// Puts an object in question: it was written to.
    pub fn touch(&mut self, key: &ObjectKey) {
        if let Some(known) = self.healthy_at.get_mut(key) {
            *known = None;
        }
    }

    /// Takes note of an object that was read: `healthy_at` is its `resourceVersion` if it was found healthy.
    pub fn found(&mut self, key: &ObjectKey, healthy_at: Option<String>) {
        if let Some(known) = self.healthy_at.get_mut(key) {
            *known = healthy_at;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(kind: &str, name: &str) -> ObjectKey {
        let group = if kind == "Deployment" { "apps" } else { "" };
        ObjectKey {
            group: group.into(),
            kind: kind.into(),
            namespace: "shop".into(),
            name: name.into(),
        }
    }

    fn names(keys: &BTreeSet<ObjectKey>) -> Vec<&str> {
        keys.iter().map(|key| key.name.as_str()).collect()
    }

    #[test]
    fn only_what_moved_since_it_was_healthy_is_read_again() {
        let objects = [
            key("Deployment", "a"),
            key("Deployment", "b"),
            key("Deployment", "c"),
            key("ConfigMap", "d"),
        ];
        let mut watched = Watched::new(&objects);
        assert_eq!(names(&watched.in_question()), ["a", "b", "c"]);
        for object in &objects {
            watched.found(object, Some("5".into()));
        }
        assert!(watched.in_question().is_empty());
        assert_eq!(
            names(&watched.all()),
            ["a", "b", "c"],
            "a ConfigMap is not watched"
        );
        // `a` stayed, `b` moved, `c` is not in the list.
        watched.now_at(&[(objects[0].clone(), "5".into()), (objects[1].clone(), "6".into())].into());
        assert_eq!(names(&watched.in_question()), ["b", "c"]);
        watched.found(&objects[1], Some("6".into()));
        watched.found(&objects[2], None);
        watched.touch(&objects[0]);
        assert_eq!(names(&watched.in_question()), ["a", "c"]);
    }

    #[test]
    fn a_set_of_config_maps_asks_for_nothing() {
        let watched = Watched::new(&[key("ConfigMap", "a"), key("Secret", "b")]);
        assert!(watched.is_empty() && watched.in_question().is_empty());
    }
}
