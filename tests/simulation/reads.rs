//! Objects of the clusters as the user reads them. Most have not changed since they were last read.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::de::DeserializeOwned;
use starling_apiserver::server::ClusterHandle;
use starling_apiserver::store::{Range, Stored};

/// The objects of one resource, each parsed once for each stored version.
pub(crate) struct Reads<T> {
    table: &'static str,
    objects: Mutex<BTreeMap<Key, Parsed<T>>>,
}

/// A cluster, and a key of its store.
type Key = (String, Box<str>);

struct Parsed<T> {
    from: Arc<Stored>,
    object: Arc<T>,
}

impl<T: DeserializeOwned> Reads<T> {
    /// Creates the reads of a table of the store.
    pub(crate) fn new(table: &'static str) -> Self {
        Self {
            table,
            objects: Mutex::default(),
        }
    }

    /// Returns all objects of a cluster, by their keys.
    pub(crate) fn list(&self, cluster: &ClusterHandle) -> anyhow::Result<Vec<Arc<T>>> {
        let stored: Vec<Arc<Stored>> = {
            let state = cluster.cluster().state();
            state.store.list(self.table, Range::default()).cloned().collect()
        };
        { stored.into_iter() }
            .map(|stored| self.parse(cluster.name(), stored))
            .collect()
    }

    /// Returns an object of a cluster.
    pub(crate) fn get(&self, cluster: &ClusterHandle, key: &str) -> anyhow::Result<Option<Arc<T>>> {
        let stored = cluster.stored(self.table, key);
        stored
            .map(|stored| self.parse(cluster.name(), stored))
            .transpose()
    }

    fn parse(&self, cluster: &str, stored: Arc<Stored>) -> anyhow::Result<Arc<T>> {
        let mut objects = self.objects.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (cluster.to_owned(), stored.head.key());
        // The kept version cannot have been freed, so its address is that of no other.
        if let Some(parsed) = objects.get(&key)
            && Arc::ptr_eq(&parsed.from, &stored)
        {
            return Ok(Arc::clone(&parsed.object));
        }
        let object: Arc<T> = Arc::new(serde_json::from_value(stored.read())?);
        let parsed = Parsed {
            from: stored,
            object: Arc::clone(&object),
        };
        objects.insert(key, parsed);
        Ok(object)
    }
}
