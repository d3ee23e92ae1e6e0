//! The objects of one member as they were at each moment, told from its own journal.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;
use starling_api::{FIELD_MANAGER, INVENTORY_PREFIX, OWNER_LABEL, SYSTEM_NAMESPACE};

use super::history::{Key, Verb, Write};

/// One version of an object.
#[derive(Clone, Debug)]
pub(crate) struct Stand<'h> {
    pub(crate) write: &'h Write,
    /// Whether more changed than status and what the API server keeps for itself.
    pub(crate) changed: bool,
}

/// A write of ours to an object of a Sync.
#[derive(Clone, Debug)]
pub(crate) struct Ours<'h> {
    pub(crate) write: &'h Write,
    /// As in [`Stand`].
    pub(crate) changed: bool,
    /// Whether the object was made, changed or removed otherwise since our last write to it, or we removed it ourselves.
    pub(crate) is_repair: bool,
}

impl Stand<'_> {
    pub(crate) fn is_gone(&self) -> bool {
        self.write.verb == Verb::Delete
    }
}

/// One member, from its making to its end or to a rebuild under the same name.
#[derive(Debug, Default)]
pub(crate) struct Member<'h> {
    /// UID of its `kube-system`; empty where the journal does not tell.
    pub(crate) identity: String,
    /// Since when it is there; none: from the beginning.
    pub(crate) since: Option<Timestamp>,
    /// Every version of every object, in order.
    pub(crate) objects: BTreeMap<Key, Vec<Stand<'h>>>,
    /// Our writes to objects of Syncs, in order: not the inventories, not our namespace.
    pub(crate) ours: Vec<Ours<'h>>,
}

impl<'h> Member<'h> {
    /// Reads a journal: one member, and one more for each rebuild. Nothing of the old one is there in the new one.
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
        let is_a_syncs = is_ours(write) && !is_own_business(&key);
        let stands = self.objects.entry(key).or_default();
        let changed = stands.last().is_none_or(|before| {
            before.is_gone()
                || write.verb != Verb::Write
                || content(&before.write.object) != content(&write.object)
        });
        if is_a_syncs {
            let is_repair = match stands.iter().rposition(|stand| is_ours(stand.write)) {
                Some(last) => stands[last].is_gone() || stands[last + 1..].iter().any(|stand| stand.changed),
                None => true,
            };
            self.ours.push(Ours {
                write,
                changed,
                is_repair,
            });
        }
        stands.push(Stand { write, changed });
    }

    /// All versions of an object.
    pub(crate) fn stands(&self, key: &Key) -> &[Stand<'h>] {
        self.objects.get(key).map(Vec::as_slice).unwrap_or_default()
    }

    /// The entries of all inventories that were in force at a moment, with the owner that each is of.
    pub(crate) fn inventories(&self, at: Timestamp) -> Vec<(String, Key, String)> {
        let from = Key {
            group: String::new(),
            kind: "ConfigMap".into(),
            namespace: SYSTEM_NAMESPACE.into(),
            name: INVENTORY_PREFIX.into(),
        };
        let mut entries = Vec::new();
        for (key, stands) in self.objects.range(from..) {
            let Some(rest) = key.name.strip_prefix(INVENTORY_PREFIX) else {
                break;
            };
            let owner = rest.split('-').next().unwrap_or_default();
            let known = stands.partition_point(|stand| stand.write.at <= at);
            if let Some(stand) = stands[..known].last().filter(|stand| !stand.is_gone()) {
                let listed = listed(&stand.write.object);
                entries.extend(listed.into_iter().map(|(key, uid)| (owner.to_owned(), key, uid)));
            }
        }
        entries
    }
}

/// Whether the controller wrote it.
pub(crate) fn is_ours(write: &Write) -> bool {
    write.manager == FIELD_MANAGER
}

/// Whether an object is Starling's own on the member, and no Sync's.
fn is_own_business(key: &Key) -> bool {
    let inventory = key.namespace == SYSTEM_NAMESPACE && key.name.starts_with(INVENTORY_PREFIX);
    inventory || (key.kind == "Namespace" && key.name == SYSTEM_NAMESPACE)
}

/// `metadata.uid`.
pub(crate) fn uid(object: &Value) -> &str {
    text(object, "/metadata/uid")
}

/// The owner that an object is labelled with; empty without the label.
pub(crate) fn owner(object: &Value) -> &str {
    let labels = object.pointer("/metadata/labels");
    let label = labels.and_then(|labels| labels.get(OWNER_LABEL));
    label.and_then(Value::as_str).unwrap_or_default()
}

/// A text in an object; empty without it.
pub(crate) fn text<'o>(object: &'o Value, pointer: &str) -> &'o str {
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

/// What people would call the object: without status and what the API server adds.
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

/// The entries of one shard: lines of group, kind, namespace, name and UID behind a first line.
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
