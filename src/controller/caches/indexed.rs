//! Indexed objects: a query for one cluster among thousands must not scan all objects.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use kube::ResourceExt;

use crate::controller::object_key::ObjectKey;

/// The function that returns the key of an object in the index.
pub type IndexBy<K> = fn(&K) -> Option<ObjectKey>;

/// A secondary index that follows every change of the objects of a cache.
pub trait SecondaryIndex<K>: Default {
    /// Applies a change of an object from the state `before`, or from absence, to the state `after`, or to absence.
    fn change(&mut self, before: Option<&Arc<K>>, after: Option<&Arc<K>>);
}

impl<K> SecondaryIndex<K> for () {
    fn change(&mut self, _: Option<&Arc<K>>, _: Option<&Arc<K>>) {}
}

/// Objects by key. `by_index` contains the same objects.
pub(super) struct IndexedObjects<K, B> {
    by_key: BTreeMap<ObjectKey, Arc<K>>,
    by_index: HashMap<ObjectKey, BTreeSet<ObjectKey>>,
    index: Option<IndexBy<K>>,
    secondary: B,
}

impl<K, B> fmt::Debug for IndexedObjects<K, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.by_key.keys()).finish()
    }
}

impl<K, B: SecondaryIndex<K>> IndexedObjects<K, B> {
    pub(super) fn new(index: Option<IndexBy<K>>) -> Self {
        Self {
            by_key: BTreeMap::new(),
            by_index: HashMap::new(),
            index,
            secondary: B::default(),
        }
    }

    pub(super) fn secondary(&self) -> &B {
        &self.secondary
    }

    pub(super) fn get(&self, key: &ObjectKey) -> Option<&Arc<K>> {
        self.by_key.get(key)
    }

    pub(super) fn insert(&mut self, key: ObjectKey, object: Arc<K>) {
        let place = self.place(&object);
        self.secondary.change(self.by_key.get(&key), Some(&object));
        let before = self.by_key.insert(key.clone(), object);
        let place_before = before.and_then(|before| self.place(&before));
        if place_before != place {
            self.leave(place_before.as_ref(), &key);
            if let Some(place) = place {
                self.by_index.entry(place).or_default().insert(key);
            }
        }
    }

    pub(super) fn remove(&mut self, key: &ObjectKey) -> Option<Arc<K>> {
        let removed = self.by_key.remove(key)?;
        self.secondary.change(Some(&removed), None);
        let place = self.place(&removed);
        self.leave(place.as_ref(), key);
        Some(removed)
    }

    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Returns all objects, in the order of their keys.
    pub(super) fn values(&self) -> impl Iterator<Item = &Arc<K>> {
        self.by_key.values()
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &ObjectKey> {
        self.by_key.keys()
    }

    /// Returns whether the objects are in more than one namespace.
    pub(super) fn has_several_namespaces(&self) -> bool {
        let (first, last) = (self.by_key.first_key_value(), self.by_key.last_key_value());
        let namespace = |found: Option<(&ObjectKey, &Arc<K>)>| found.map(|(key, _)| key.namespace.clone());
        namespace(first) != namespace(last)
    }

    /// Returns the objects of a namespace, in the order of their names.
    pub(super) fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = &Arc<K>> {
        let first = ObjectKey::new(namespace, "");
        self.by_key
            .range(first..)
            .take_while(move |(key, _)| key.namespace == namespace)
            .map(|(_, object)| object)
    }

    /// Returns the objects that the index has for a key, in the order of their own keys; none if the cache has no
    /// index.
    pub(super) fn indexed(&self, by: &ObjectKey) -> impl Iterator<Item = &Arc<K>> {
        self.by_index
            .get(by)
            .into_iter()
            .flatten()
            .filter_map(|key| self.by_key.get(key))
    }

    fn place(&self, object: &K) -> Option<ObjectKey> {
        self.index.and_then(|index| index(object))
    }

    fn leave(&mut self, place: Option<&ObjectKey>, key: &ObjectKey) {
        let Some(place) = place else { return };
        if let Some(keys) = self.by_index.get_mut(place) {
            keys.remove(key);
            if keys.is_empty() {
                self.by_index.remove(place);
            }
        }
    }
}

/// Returns the key of the Cluster that a Sync is for.
pub(in crate::controller) fn cluster_of(sync: &starling_api::SyncResource) -> Option<ObjectKey> {
    let namespace = sync.namespace().unwrap_or_default();
    Some(ObjectKey::new(namespace, &sync.spec.cluster_ref.name))
}

/// Returns the identity of a Cluster as a key. Its namespace is empty, since Clusters of two namespaces may share a
/// member.
pub(in crate::controller) fn identity_of(cluster: &starling_api::Cluster) -> Option<ObjectKey> {
    let id = &cluster.status.as_ref()?.cluster_id;
    (!id.is_empty()).then(|| ObjectKey::new("", id))
}

/// Returns the key of the group that an approval is for.
pub(in crate::controller) fn group_of_approval(
    approval: &starling_api::RolloutApproval,
) -> Option<ObjectKey> {
    let namespace = approval.namespace().unwrap_or_default();
    Some(ObjectKey::new(namespace, &approval.spec.group))
}

/// Returns the key of the group that an operator action is for.
pub(in crate::controller) fn group_of_action(action: &starling_api::RolloutAction) -> Option<ObjectKey> {
    let namespace = action.namespace().unwrap_or_default();
    Some(ObjectKey::new(namespace, &action.spec.group))
}

/// Returns the key of the group or the Sync that an approval of deletions is for.
pub(in crate::controller) fn subject_of_deletions(
    approval: &starling_api::DeletionApproval,
) -> Option<ObjectKey> {
    let namespace = approval.namespace().unwrap_or_default();
    let spec = &approval.spec;
    match (&spec.group, &spec.sync) {
        (Some(group), _) => Some(group_to_delete_from(&namespace, group)),
        (None, Some(sync)) => Some(sync_to_delete_from(&namespace, sync)),
        (None, None) => None,
    }
}

/// Returns the key of the approvals of deletions of a group. A Sync may have the same name.
pub(in crate::controller) fn group_to_delete_from(namespace: &str, group: &str) -> ObjectKey {
    ObjectKey::new(namespace, format!("group/{group}"))
}

/// Returns the key of the approvals of deletions of a Sync.
pub(in crate::controller) fn sync_to_delete_from(namespace: &str, sync: &str) -> ObjectKey {
    ObjectKey::new(namespace, format!("sync/{sync}"))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    fn object(name: &str, label: Option<&str>) -> (ObjectKey, Arc<ConfigMap>) {
        let mut object = ConfigMap::default();
        object.metadata.name = Some(name.into());
        object.metadata.labels = label.map(|label| BTreeMap::from([("of".to_owned(), label.to_owned())]));
        (ObjectKey::new("", name), Arc::new(object))
    }

    fn by_label(object: &ConfigMap) -> Option<ObjectKey> {
        object.labels().get("of").map(|label| ObjectKey::new("", label))
    }

    #[test]
    fn the_index_follows_what_is_put_changed_and_removed() {
        let mut objects: IndexedObjects<_, ()> = IndexedObjects::new(Some(by_label as IndexBy<ConfigMap>));
        for (name, label) in [("a", Some("x")), ("b", Some("x")), ("c", None)] {
            let (key, object) = object(name, label);
            objects.insert(key, object);
        }
        let found = |objects: &IndexedObjects<ConfigMap, ()>, label: &str| -> Vec<String> {
            let by = ObjectKey::new("", label);
            objects.indexed(&by).map(|object| object.name_any()).collect()
        };
        assert_eq!(found(&objects, "x"), ["a", "b"]);
        for (name, label) in [("a", Some("y")), ("b", None), ("c", Some("x"))] {
            let (key, object) = object(name, label);
            objects.insert(key, object);
        }
        assert_eq!(
            (found(&objects, "x"), found(&objects, "y")),
            (vec!["c".into()], vec!["a".into()])
        );
        objects.remove(&ObjectKey::new("", "a"));
        objects.remove(&ObjectKey::new("", "c"));
        assert!(objects.by_index.is_empty());
    }
}
