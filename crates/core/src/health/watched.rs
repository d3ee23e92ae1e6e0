//! What is known of the health of a Sync's objects: a cache, whose loss costs requests.

use std::collections::{BTreeMap, BTreeSet};

use super::counts;
use crate::object::ObjectKey;

/// The objects of one Sync whose health counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watched {
    objects: BTreeMap<ObjectKey, Known>,
}

/// What is known of one object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Known {
    /// The `resourceVersion` in which it was found healthy.
    healthy_at: Option<String>,
    /// The last `resourceVersion` that the member is known to have given it; empty if none is known.
    reached: String,
}

/// What a read of an object is worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// It tells how the object is.
    Fresh,
    /// It is of before the last write that is known: it tells nothing. A read from the watch cache of another API server
    /// than the one that was written to may be that old.
    Stale,
}

impl Watched {
    /// Those of `objects` whose health counts; nothing is known of them yet.
    pub fn new<'a>(objects: impl IntoIterator<Item = &'a ObjectKey>) -> Self {
        let objects = objects
            .into_iter()
            .filter(|key| counts(&key.group, &key.kind))
            .map(|key| (key.clone(), Known::default()))
            .collect();
        Self { objects }
    }

    /// Whether there is no object whose health counts.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// All objects whose health counts.
    #[must_use]
    pub fn all(&self) -> BTreeSet<ObjectKey> {
        self.objects.keys().cloned().collect()
    }

    /// Those that have to be read: not found healthy yet, or not since they moved.
    #[must_use]
    pub fn in_question(&self) -> BTreeSet<ObjectKey> {
        self.objects
            .iter()
            .filter(|(_, known)| known.healthy_at.is_none())
            .map(|(key, _)| key.clone())
            .collect()
    }

    /// Takes note of the versions that the member has now. What moved, and what is not among them, is in question again.
    pub fn now_at(&mut self, versions: &BTreeMap<ObjectKey, String>) {
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

    /// Takes note of the version that the last apply of an object was answered with.
    pub fn applied_at(&mut self, key: &ObjectKey, version: &str) {
        if let Some(known) = self.objects.get_mut(key) {
            version.clone_into(&mut known.reached);
        }
    }

    /// Puts an object in question: it was written to.
    pub fn touch(&mut self, key: &ObjectKey) {
        if let Some(known) = self.objects.get_mut(key) {
            known.healthy_at = None;
        }
    }

    /// Takes note of an object that was read in `version`, and was healthy or not. One that is not there has an empty
    /// version.
    #[must_use]
    pub fn found(&mut self, key: &ObjectKey, version: &str, healthy: bool) -> Read {
        let Some(known) = self.objects.get_mut(key) else {
            return Read::Fresh;
        };
        if is_before(version, &known.reached) {
            known.healthy_at = None;
            return Read::Stale;
        }
        known.healthy_at = healthy.then(|| version.to_owned());
        Read::Fresh
    }
}

/// Whether a version of an object is older than another one of the same object. Versions are decimal numbers of any length
/// (KEP-5504); of a server that has others nothing is known to be older.
fn is_before(version: &str, other: &str) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    is_number(version) && is_number(other) && (version.len(), version) < (other.len(), other)
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
            assert_eq!(watched.found(object, "5", true), Read::Fresh);
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
        let _ = watched.found(&objects[1], "6", true);
        let _ = watched.found(&objects[2], "7", false);
        watched.touch(&objects[0]);
        assert_eq!(names(&watched.in_question()), ["a", "c"]);
    }

    #[test]
    fn a_set_of_config_maps_asks_for_nothing() {
        let watched = Watched::new(&[key("ConfigMap", "a"), key("Secret", "b")]);
        assert!(watched.is_empty() && watched.in_question().is_empty());
    }

    #[test]
    fn a_read_of_before_the_last_write_tells_nothing() {
        let (a, b) = (key("Deployment", "a"), key("Deployment", "b"));
        let mut watched = Watched::new([&a, &b]);
        watched.applied_at(&a, "10");
        for (version, read, left) in [
            ("9", Read::Stale, vec!["a", "b"]),
            ("10", Read::Fresh, vec!["b"]),
            ("100", Read::Fresh, vec!["b"]),
            // Stale once more, after a fresh one: what is known is what was applied, not what was read.
            ("8", Read::Stale, vec!["a", "b"]),
            // A server that does not number its versions.
            ("a9", Read::Fresh, vec!["b"]),
        ] {
            assert_eq!(watched.found(&a, version, true), read, "{version}");
            assert_eq!(names(&watched.in_question()), left, "{version}");
        }
        assert_eq!(
            watched.found(&b, "1", true),
            Read::Fresh,
            "nothing is known of b's writes"
        );
        // Another writer, or a restore of the member's storage, has moved it since: the look for drift tells.
        watched.now_at(&[(a.clone(), "7".into())].into());
        assert_eq!(watched.found(&a, "7", true), Read::Fresh);
        assert_eq!(watched.found(&a, "6", true), Read::Stale);
    }

    #[test]
    fn an_object_that_is_gone_is_no_stale_read() {
        let a = key("Deployment", "a");
        let mut watched = Watched::new([&a]);
        watched.applied_at(&a, "10");
        assert_eq!(watched.found(&a, "", false), Read::Fresh);
        assert_eq!(names(&watched.in_question()), ["a"]);
    }
}
