//! Reads while the disk fails: of what is on the disk.

use super::request::Call;
use super::route::Route;
use crate::object::head;
use crate::server::Cluster;

/// What a request reads.
pub(super) struct Read {
    group: String,
    plural: String,
    /// Empty for all namespaces.
    namespace: String,
    /// Empty for all objects.
    name: String,
}

impl Read {
    /// Returns what a request reads; `None` if it does not only read objects.
    pub(super) fn of(call: &Call) -> Option<Self> {
        let Route::Resource {
            group,
            plural,
            namespace,
            name,
            ..
        } = &call.route
        else {
            return None;
        };
        matches!(call.verb, "get" | "list" | "watch").then(|| Self {
            group: group.clone(),
            plural: plural.clone(),
            namespace: namespace.clone(),
            name: name.clone(),
        })
    }

    /// Reports whether all that is read is on the disk: a client must not see a write that a crash loses. While the
    /// disk fails, no further write changes anything, so that remains true for the response.
    pub(super) fn is_committed(&self, cluster: &Cluster) -> bool {
        let resource = cluster.state().registry.get(&self.group, &self.plural);
        let Some(resource) = resource else { return false };
        let (namespace, name) = (&*self.namespace, &*self.name);
        let all = if namespace.is_empty() {
            String::new()
        } else {
            format!("{namespace}/")
        };
        !cluster.has_uncommitted(&resource.table, |key| {
            if name.is_empty() {
                key.starts_with(&all)
            } else {
                *key == *head::key(namespace, name)
            }
        })
    }
}
