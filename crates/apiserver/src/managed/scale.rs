//! The field managers of the subresource `scale`, which shows one field of its object.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use super::entries::{Entry, ManagedFields, Manager, Operation};
use crate::fields::{FieldSet, Path};

/// The version of scales.
const SCALE_VERSION: &str = "autoscaling/v1";

static REPLICAS: LazyLock<Path> = LazyLock::new(|| Path::of_fields(&["spec", "replicas"]));

/// The path of the replicas in each version of a kind.
#[derive(Debug, Clone)]
pub struct ScaleMapping {
    version: Arc<str>,
    /// The paths by version; `None` for a version without the subresource.
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

    /// Returns the entries of the scale: those of the managers that own the replicas of the object.
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

    /// Returns the entries of the object after a write to its scale. As in Kubernetes, updaters of the scale have no
    /// time there.
    pub fn to_object(&self, object: &ManagedFields, scale: &ManagedFields) -> ManagedFields {
        let mut scale = scale.clone();
        let mut merged = ManagedFields::new();
        for entry in object.entries() {
            let Some(path) = self.paths.get(&entry.api_version) else {
                continue;
            };
            let mut entry = entry.clone();
            // In the scale, an updater has another version; its replicas are added again below.
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

/// Returns a manager in another version of the kind; an applier is the same in every version.
fn in_version(manager: &Manager, version: &Arc<str>) -> Manager {
    let mut manager = manager.clone();
    if manager.operation == Operation::Update {
        manager.api_version = Arc::clone(version);
    }
    manager
}
