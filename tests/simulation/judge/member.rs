//! The objects of one member at each moment, from the member's journal.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;
use starling_api::{FIELD_MANAGER, INVENTORY_PREFIX, OWNER_LABEL, REMOVALS_PREFIX, SYSTEM_NAMESPACE};

use super::history::{Key, Verb, Write};

/// One version of an object.
#[derive(Clone, Debug)]
pub(crate) struct ObjectVersion<'h> {
    pub(crate) write: &'h Write,
    /// Whether more than status and the API server's own fields changed.
    pub(crate) changed: bool,
}

/// A write of Starling to an object of a Sync.
#[derive(Clone, Debug)]
pub(crate) struct OwnWrite<'h> {
    pub(crate) write: &'h Write,
    /// As in [`ObjectVersion`].
    pub(crate) changed: bool,
    /// Whether another writer created, changed or deleted the object since Starling's last write to it, or Starling
    /// deleted it.
    pub(crate) is_repair: bool,
}

impl ObjectVersion<'_> {
    pub(crate) fn is_gone(&self) -> bool {
        self.write.verb == Verb::Delete
    }
}

/// One member, from its creation to its end or to a rebuild under the same name.
#[derive(Debug, Default)]
pub(crate) struct Member<'h> {
    /// UID of its `kube-system`; empty if the journal does not contain it.
    pub(crate) identity: String,
    /// The creation time; none: the start of the run.
    pub(crate) since: Option<Timestamp>,
    /// Every version of every object, in order.
    pub(crate) objects: BTreeMap<Key, Vec<ObjectVersion<'h>>>,
    /// Starling's writes to objects of Syncs, in order, without inventories and Starling's namespace.
    pub(crate) own_writes: Vec<OwnWrite<'h>>,
}

impl<'h> Member<'h> {
    /// Reads a journal: one member, and one more for each rebuild. A rebuilt member has no objects of the old one.
    pub(crate) fn read(writes: &'h [Write]) -> Vec<Self> {
        let mut members = vec![Self::default()];
        for write in writes {
            let (is_born, uid) = (
                write.kind == "Namespace" && write.name == "kube-system",
                uid(&write.object),
            );
            let known = members.last().is_some_and(|last| last.identity == uid);
            if is_born && !known {
                members.push(Self {
                    identity: uid.to_owned(),
                    since: Some(write.at),
                    ..Self::default()
                });
            }
            if let Some(last) = members.last_mut() {
                last.take(write);
            }
        }
        members
    }

    fn take(&mut self, write: &'h Write) {
        let key = write.key();
        let is_sync_write = is_own(write) && !is_internal(&key);
        let versions = self.objects.entry(key).or_default();
        let changed = versions.last().is_none_or(|before| {
            before.is_gone()
                || write.verb != Verb::Write
                || content(&before.write.object) != content(&write.object)
        });
        if is_sync_write {
            // Another Sync is another writer.
            let is_of_same_owner = |version: &ObjectVersion<'_>| {
                is_own(version.write) && owner(&version.write.object) == owner(&write.object)
            };
            let is_repair = match versions.iter().rposition(is_of_same_owner) {
                Some(last) => {
                    versions[last].is_gone() || versions[last + 1..].iter().any(|version| version.changed)
                }
                None => true,
            };
            self.own_writes.push(OwnWrite {
                write,
                changed,
                is_repair,
            });
        }
        versions.push(ObjectVersion { write, changed });
    }

    /// Returns all versions of an object.
    pub(crate) fn versions(&self, key: &Key) -> &[ObjectVersion<'h>] {
        self.objects.get(key).map(Vec::as_slice).unwrap_or_default()
    }

    /// Returns the entries of all current inventories at a moment, each with its owner.
    pub(crate) fn inventories(&self, at: Timestamp) -> Vec<(String, Key, String)> {
        let from = Key {
            group: String::new(),
            kind: "ConfigMap".into(),
            namespace: SYSTEM_NAMESPACE.into(),
            name: INVENTORY_PREFIX.into(),
        };
        let mut entries = Vec::new();
        for (key, versions) in self.objects.range(from..) {
            let Some(rest) = key.name.strip_prefix(INVENTORY_PREFIX) else {
                break;
            };
            let owner = rest.split('-').next().unwrap_or_default();
            let known = versions.partition_point(|version| version.write.at <= at);
            if let Some(version) = versions[..known].last().filter(|version| !version.is_gone()) {
                let listed = listed(&version.write.object);
                entries.extend(listed.into_iter().map(|(key, uid)| (owner.to_owned(), key, uid)));
            }
        }
        entries
    }
}

/// Whether the controller wrote it.
pub(crate) fn is_own(write: &Write) -> bool {
    write.manager == FIELD_MANAGER
}

/// Whether an object on the member belongs to Starling and to no Sync.
fn is_internal(key: &Key) -> bool {
    let is_named = |prefix: &str| key.namespace == SYSTEM_NAMESPACE && key.name.starts_with(prefix);
    is_named(INVENTORY_PREFIX)
        || is_named(REMOVALS_PREFIX)
        || (key.kind == "Namespace" && key.name == SYSTEM_NAMESPACE)
}

/// Returns `metadata.uid`.
pub(crate) fn uid(object: &Value) -> &str {
    text(object, "/metadata/uid")
}

/// Returns the owner in an object's label; empty without the label.
pub(crate) fn owner(object: &Value) -> &str {
    let labels = object.pointer("/metadata/labels");
    let label = labels.and_then(|labels| labels.get(OWNER_LABEL));
    label.and_then(Value::as_str).unwrap_or_default()
}

/// Returns a text field of an object; empty without it.
pub(crate) fn text<'o>(object: &'o Value, pointer: &str) -> &'o str {
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// Returns the object without status and the fields that the API server adds.
fn content(object: &Value) -> Value {
    let mut content = object.clone();
    if let Some(fields) = content.as_object_mut() {
        fields.remove("status");
    }
    if let Some(metadata) = content.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in [
            "managedFields",
            "resourceVersion",
            "generation",
            "creationTimestamp",
        ] {
            metadata.remove(field);
        }
    }
    content
}

/// Returns the entries of one shard: lines of group, kind, namespace, name and UID after the first line.
fn listed(map: &Value) -> Vec<(Key, String)> {
    let lines = text(map, "/data/inventory").lines().skip(1);
    lines
        .filter_map(|line| {
            let mut fields = line.split('\t').map(str::to_owned);
            let key = Key {
                group: fields.next()?,
                kind: fields.next()?,
                namespace: fields.next()?,
                name: fields.next()?,
            };
            Some((key, fields.next()?))
        })
        .collect()
}
