//! The subresource `scale`, whose object is another one with one field of the object's.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use super::entries::{Entry, ManagedFields, Manager, Operation};
use crate::fields::{FieldSet, Path};

/// The version of scales.
const SCALE_VERSION: &str = "autoscaling/v1";

static REPLICAS: LazyLock<Path> = LazyLock::new(|| Path::of_fields(&["spec", "replicas"]));

/// Where the replicas of a kind are, in each of its versions.
#[derive(Debug, Clone)]
pub struct ScaleMapping {
    version: Arc<str>,
    /// By version; none for a version without the subresource.
    paths: BTreeMap<Arc<str>, Option<Path>>,
}

impl ScaleMapping {
    /// Returns a mapping for requests in a version of the kind.
    pub fn new(
        api_version: &str,
        paths: impl IntoIterator<Item = (impl Into<Arc<str>>, Option<Path>)>,
    ) -> Self {
        Self {
            version: api_version.into(),
            paths: paths
                .into_iter()
                .map(|(version, path)| (version.into(), path))
                .collect(),
        }
    }

    /// Returns the entries of the scale: of those who own the replicas of the object.
    pub fn to_scale(&self, object: &ManagedFields) -> ManagedFields {
        let mut scale = ManagedFields::new();
        for entry in object.entries() {
            let Some(Some(path)) = self.paths.get(&entry.api_version) else {
                continue;
            };
            if entry.fields.has(&path.0) {
                scale.put(Entry {
                    manager: in_version(&entry.manager, &SCALE_VERSION.into()),
                    api_version: SCALE_VERSION.into(),
                    time: entry.time,
                    fields: FieldSet::from_iter([REPLICAS.clone()]),
                });
            }
        }
        scale.sort();
        scale
    }

    /// Returns the entries of the object after a write to its scale. As in the API server, updaters of the scale have
    /// no time there.
    pub fn to_object(&self, object: &ManagedFields, scale: &ManagedFields) -> ManagedFields {
        let mut scale = scale.clone();
        let mut merged = ManagedFields::new();
        for entry in object.entries() {
            let Some(path) = self.paths.get(&entry.api_version) else {
                continue;
            };
            let mut entry = entry.clone();
            // An updater is another one in the scale, by its version; its replicas come back below.
            if let Some(path) = path
                && entry.fields.has(&path.0)
                && scale.take(&entry.manager).is_none()
            {
                entry.fields = entry.fields.difference(&FieldSet::from_iter([path.clone()]));
            }
            if !entry.fields.is_empty() {
                merged.put(entry);
            }
        }
        let Some(Some(path)) = self.paths.get(&self.version) else {
            return merged;
        };
        for entry in scale
            .entries()
            .iter()
            .filter(|entry| entry.fields.has(&REPLICAS.0))
        {
            let manager = in_version(&entry.manager, &self.version);
            let rest = merged.take(&manager);
            let mut fields = FieldSet::from_iter([path.clone()]);
            let time = rest.as_ref().and_then(|rest| rest.time);
            if let Some(rest) = rest {
                fields.extend(rest.fields);
            }
            merged.put(Entry {
                manager,
                api_version: Arc::clone(&self.version),
                time,
                fields,
            });
        }
        merged.sort();
        merged
    }
}

/// The manager in another version of the kind; for an applier it is the same.
fn in_version(manager: &Manager, version: &Arc<str>) -> Manager {
    let mut manager = manager.clone();
    if manager.operation == Operation::Update {
        manager.api_version = Arc::clone(version);
    }
    manager
}
