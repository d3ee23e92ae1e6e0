//! The known health of the objects of a Sync: a cache, whose loss costs requests.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use super::counts;
use crate::object::ObjectId;
use crate::resource_version::compare;

/// The objects of one Sync that have a health.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HealthRecords {
    objects: BTreeMap<ObjectId, Known>,
}

/// The known health of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Known {
    /// The `resourceVersion` in which it was found healthy.
    healthy_at: Option<String>,
    /// The newest `resourceVersion` that is known; empty if none is.
    reached: String,
}

/// The freshness of a read of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Freshness {
    /// The read shows the state of the object.
    Fresh,
    /// The read is older than the last known write, and shows nothing. A read from the watch cache of another API
    /// server than the one that was written to may be that old.
    Stale,
}

impl HealthRecords {
    /// Returns those of `objects` that have a health, which is not known yet.
    pub fn new<'a>(objects: impl IntoIterator<Item = &'a ObjectId>) -> Self {
        let objects = objects
            .into_iter()
            .filter(|key| counts(&key.group, &key.kind))
            .map(|key| (key.clone(), Known::default()))
            .collect();
        Self { objects }
    }

    /// Reports whether no object has a health.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Returns all objects that have a health.
    #[must_use]
    pub fn all(&self) -> BTreeSet<ObjectId> {
        self.objects.keys().cloned().collect()
    }

    /// Returns the objects to read: those that are not known to be healthy in their current version.
    #[must_use]
    pub fn to_read(&self) -> BTreeSet<ObjectId> {
        self.objects
            .iter()
            .filter(|(_, known)| known.healthy_at.is_none())
            .map(|(key, _)| key.clone())
            .collect()
    }

    /// Records the current versions on the member. An object with another version, or without one, has to be read
    /// again.
    pub fn now_at(&mut self, versions: &BTreeMap<ObjectId, String>) {
        for (key, known) in &mut self.objects {
            let version = versions.get(key);
            if known.healthy_at.as_ref() != version {
                known.healthy_at = None;
            }
            if let Some(version) = version {
                known.reached.clone_from(version);
            }
        }
    }

    /// Records the version in the response of the last apply of an object.
    pub fn applied_at(&mut self, key: &ObjectId, version: &str) {
        if let Some(known) = self.objects.get_mut(key) {
            version.clone_into(&mut known.reached);
        }
    }

    /// Records a write to an object, which has to be read again.
    pub fn touch(&mut self, key: &ObjectId) {
        if let Some(known) = self.objects.get_mut(key) {
            known.healthy_at = None;
        }
    }

    /// Records an object that was read in `version`, healthy or not. An object that does not exist has an empty
    /// version.
    #[must_use]
    pub fn found(&mut self, key: &ObjectId, version: &str, healthy: bool) -> Freshness {
        let Some(known) = self.objects.get_mut(key) else {
            return Freshness::Fresh;
        };
        if compare(version, &known.reached) == Some(Ordering::Less) {
            known.healthy_at = None;
            return Freshness::Stale;
        }
        known.healthy_at = healthy.then(|| version.to_owned());
        Freshness::Fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(kind: &str, name: &str) -> ObjectId {
        let group = if kind == "Deployment" { "apps" } else { "" };
        ObjectId {
            group: group.into(),
            kind: kind.into(),
            namespace: "shop".into(),
            name: name.into(),
        }
    }

    fn names(keys: &BTreeSet<ObjectId>) -> Vec<&str> {
        keys.iter().map(|key| key.name.as_str()).collect()
    }

    #[test]
    fn only_objects_that_changed_since_they_were_healthy_are_read_again() {
        let objects = [
            key("Deployment", "a"),
            key("Deployment", "b"),
            key("Deployment", "c"),
            key("ConfigMap", "d"),
        ];
        let mut records = HealthRecords::new(&objects);
        assert_eq!(names(&records.to_read()), ["a", "b", "c"]);
        for object in &objects {
            assert_eq!(records.found(object, "5", true), Freshness::Fresh);
        }
        assert!(records.to_read().is_empty());
        assert_eq!(
            names(&records.all()),
            ["a", "b", "c"],
            "a ConfigMap has no health"
        );
        // `a` has the same version, `b` another one, `c` is not in the list.
        records.now_at(&[(objects[0].clone(), "5".into()), (objects[1].clone(), "6".into())].into());
        assert_eq!(names(&records.to_read()), ["b", "c"]);
        let _ = records.found(&objects[1], "6", true);
        let _ = records.found(&objects[2], "7", false);
        records.touch(&objects[0]);
        assert_eq!(names(&records.to_read()), ["a", "c"]);
    }

    #[test]
    fn a_set_of_config_maps_needs_no_request() {
        let records = HealthRecords::new(&[key("ConfigMap", "a"), key("Secret", "b")]);
        assert!(records.is_empty() && records.to_read().is_empty());
    }

    #[test]
    fn a_read_older_than_the_last_write_is_stale() {
        let (a, b) = (key("Deployment", "a"), key("Deployment", "b"));
        let mut records = HealthRecords::new([&a, &b]);
        records.applied_at(&a, "10");
        for (version, read, left) in [
            ("9", Freshness::Stale, vec!["a", "b"]),
            ("10", Freshness::Fresh, vec!["b"]),
            ("100", Freshness::Fresh, vec!["b"]),
            // Stale again after a fresh read: what counts is the version of the apply, not that of the read.
            ("8", Freshness::Stale, vec!["a", "b"]),
            // A server without numeric versions.
            ("a9", Freshness::Fresh, vec!["b"]),
        ] {
            assert_eq!(records.found(&a, version, true), read, "{version}");
            assert_eq!(names(&records.to_read()), left, "{version}");
        }
        assert_eq!(
            records.found(&b, "1", true),
            Freshness::Fresh,
            "nothing is known of b's writes"
        );
        // Another writer, or a restore of the storage of the member, changed it since: the drift check finds it.
        records.now_at(&[(a.clone(), "7".into())].into());
        assert_eq!(records.found(&a, "7", true), Freshness::Fresh);
        assert_eq!(records.found(&a, "6", true), Freshness::Stale);
    }

    #[test]
    fn an_object_that_does_not_exist_is_no_stale_read() {
        let a = key("Deployment", "a");
        let mut records = HealthRecords::new([&a]);
        records.applied_at(&a, "10");
        assert_eq!(records.found(&a, "", false), Freshness::Fresh);
        assert_eq!(names(&records.to_read()), ["a"]);
    }
}
