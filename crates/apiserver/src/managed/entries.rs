//! The entries of `metadata.managedFields`.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Map, Value};
use thiserror::Error;

use crate::fields::{FieldSet, FieldsV1Error, write_json_string};
use crate::value::quoted;

/// How a manager writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operation {
    /// By server-side apply: the fields are its declared configuration, and fields that it omits later are removed.
    Apply,
    /// By any other write: the fields are those that it changed.
    Update,
}

/// A field manager, which has one entry.
///
/// An applier keeps its entry when it changes to another version of the kind; an updater has one for each version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Manager {
    /// The name: given by the client, or derived from its user agent.
    pub name: Arc<str>,
    /// How the manager writes.
    pub operation: Operation,
    /// The version of an updater; empty for an applier.
    pub api_version: Arc<str>,
    /// The subresource that the manager writes to; empty for the object itself.
    pub subresource: Arc<str>,
}

/// An entry: a manager and its fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The manager.
    pub manager: Manager,
    /// The version of the kind that the paths refer to.
    pub api_version: Arc<str>,
    /// The time of the last change of the set, in seconds; `None` for an applier that never changed the object.
    pub time: Option<Timestamp>,
    /// The fields that the manager owns.
    pub fields: FieldSet,
}

/// The entries of an object, in the order of the wire.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ManagedFields {
    entries: Vec<Entry>,
}

/// Why entries cannot be parsed.
#[derive(Debug, Error)]
pub enum ManagedFieldsError {
    /// The value is not a list of objects.
    #[error("metadata.managedFields is not a list of objects")]
    NotAList,
    /// The operation is neither `Apply` nor `Update`.
    #[error("operation must be `Apply` or `Update`")]
    Operation,
    /// The version is missing.
    #[error("apiVersion must not be empty")]
    NoVersion,
    /// The format of the fields is missing.
    #[error("missing fieldsType in managed fields entry {entry}")]
    NoFieldsType {
        /// The index of the entry.
        entry: usize,
    },
    /// The format of the fields is not supported.
    #[error("invalid fieldsType {found:?} in managed fields entry {entry}")]
    FieldsType {
        /// The index of the entry.
        entry: usize,
        /// The value of the field.
        found: String,
    },
    /// The time is invalid.
    #[error("time {found:?} in managed fields entry {entry} is not of the form 2006-01-02T15:04:05Z")]
    Time {
        /// The index of the entry.
        entry: usize,
        /// The value of the field.
        found: String,
    },
    /// The fields cannot be parsed.
    #[error("the fields of managed fields entry {entry} cannot be read")]
    Fields {
        /// The index of the entry.
        entry: usize,
        /// The cause.
        #[source]
        source: FieldsV1Error,
    },
}

impl Operation {
    /// Returns the operation as on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Apply => "Apply",
            Self::Update => "Update",
        }
    }
}

impl Manager {
    pub(super) fn new(
        name: &str,
        operation: Operation,
        api_version: &Arc<str>,
        subresource: &Arc<str>,
    ) -> Self {
        Self {
            name: if name.is_empty() { "unknown" } else { name }.into(),
            operation,
            api_version: match operation {
                Operation::Apply => Arc::from(""),
                Operation::Update => Arc::clone(api_version),
            },
            subresource: Arc::clone(subresource),
        }
    }

    /// Returns the text by which the API server identifies the manager. Only its order matters: messages and the
    /// choice of the oldest updaters follow it.
    pub(super) fn identifier(&self) -> String {
        let mut out = String::from("{");
        for (name, value) in [
            ("manager", &*self.name),
            ("operation", self.operation.as_str()),
            ("apiVersion", &*self.api_version),
            ("subresource", &*self.subresource),
        ] {
            if value.is_empty() {
                continue;
            }
            if out.len() > 1 {
                out.push(',');
            }
            let _ = write!(out, "\"{name}\":");
            write_json_string(&mut out, value);
        }
        out.push('}');
        out
    }

    /// Formats the manager as in messages: `"kubectl" with subresource "status" using apps/v1`.
    pub(super) fn describe(&self) -> String {
        let mut out = quoted(&self.name);
        if !self.subresource.is_empty() {
            let _ = write!(out, " with subresource {}", quoted(&self.subresource));
        }
        if self.operation == Operation::Update {
            let _ = write!(out, " using {}", self.api_version);
        }
        out
    }
}

impl Entry {
    fn seconds(&self) -> i64 {
        self.time.map_or(0, Timestamp::as_second)
    }

    /// Returns the members of the entry except the fields, in the order of the wire, which omits empty ones.
    fn texts(&self) -> [(&'static str, Cow<'_, str>); 6] {
        let time = self.time.map(|time| time.to_string()).unwrap_or_default();
        [
            ("manager", Cow::Borrowed(&self.manager.name)),
            ("operation", Cow::Borrowed(self.manager.operation.as_str())),
            ("apiVersion", Cow::Borrowed(&self.api_version)),
            ("time", Cow::Owned(time)),
            ("fieldsType", Cow::Borrowed("FieldsV1")),
            ("subresource", Cow::Borrowed(&self.manager.subresource)),
        ]
    }

    fn to_map(&self) -> Map<String, Value> {
        let texts = self.texts().into_iter().filter(|(_, text)| !text.is_empty());
        let mut map: Map<_, _> = texts
            .map(|(name, text)| (name.to_owned(), Value::String(text.into_owned())))
            .collect();
        map.insert("fieldsV1".to_owned(), self.fields.to_fields_v1_value());
        map
    }

    fn write(&self, out: &mut String) {
        out.push('{');
        for (name, text) in self.texts() {
            if text.is_empty() {
                continue;
            }
            if name != "manager" {
                out.push(',');
            }
            let _ = write!(out, "\"{name}\":");
            write_json_string(out, &text);
            if name == "fieldsType" {
                let _ = write!(out, ",\"fieldsV1\":{}", self.fields.to_fields_v1());
            }
        }
        out.push('}');
    }

    fn read(place: usize, entry: &Map<String, Value>) -> Result<Self, ManagedFieldsError> {
        let text = |name: &str| entry.get(name).and_then(Value::as_str).unwrap_or_default();
        let operation = match text("operation") {
            "Apply" => Operation::Apply,
            "Update" => Operation::Update,
            _ => return Err(ManagedFieldsError::Operation),
        };
        let api_version: Arc<str> = match text("apiVersion") {
            "" => return Err(ManagedFieldsError::NoVersion),
            version => version.into(),
        };
        match text("fieldsType") {
            "FieldsV1" => {}
            "" => return Err(ManagedFieldsError::NoFieldsType { entry: place }),
            found => {
                return Err(ManagedFieldsError::FieldsType {
                    entry: place,
                    found: found.to_owned(),
                });
            }
        }
        let time = match text("time") {
            "" => None,
            found => Some(found.parse().map_err(|_| ManagedFieldsError::Time {
                entry: place,
                found: found.to_owned(),
            })?),
        };
        let fields = match entry.get("fieldsV1") {
            None | Some(Value::Null) => FieldSet::new(),
            Some(fields) => FieldSet::from_fields_v1_value(fields)
                .map_err(|source| ManagedFieldsError::Fields { entry: place, source })?,
        };
        Ok(Self {
            manager: Manager {
                name: text("manager").into(),
                operation,
                api_version: match operation {
                    Operation::Apply => Arc::from(""),
                    Operation::Update => Arc::clone(&api_version),
                },
                subresource: text("subresource").into(),
            },
            api_version,
            time,
            fields,
        })
    }
}

impl ManagedFields {
    /// Returns an empty list of entries.
    pub const fn new() -> Self {
        Self { entries: Vec::new() }
    }

    /// Parses the list.
    ///
    /// # Errors
    /// [`ManagedFieldsError`]. Of two entries of one manager, the later one counts.
    pub fn from_value(value: &Value) -> Result<Self, ManagedFieldsError> {
        let list = match value {
            Value::Null => return Ok(Self::new()),
            Value::Array(list) => list,
            _ => return Err(ManagedFieldsError::NotAList),
        };
        let mut managed = Self::new();
        for (place, entry) in list.iter().enumerate() {
            let entry = entry.as_object().ok_or(ManagedFieldsError::NotAList)?;
            managed.put(Entry::read(place, entry)?);
        }
        managed.sort();
        Ok(managed)
    }

    /// Returns the list as a JSON value. The path elements are in the order of a JSON map, as in custom resources.
    pub fn to_value(&self) -> Value {
        Value::Array(
            self.entries
                .iter()
                .map(|entry| Value::Object(entry.to_map()))
                .collect(),
        )
    }

    /// Returns the list as text, byte for byte as the API server writes it in objects of built-in kinds.
    pub fn to_json(&self) -> String {
        let mut out = String::from("[");
        for (place, entry) in self.entries.iter().enumerate() {
            if place > 0 {
                out.push(',');
            }
            entry.write(&mut out);
        }
        out.push(']');
        out
    }

    /// Returns the entries.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the entry of a manager.
    pub fn entry(&self, manager: &Manager) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.manager == *manager)
    }

    /// Adds an entry, or replaces that of its manager.
    pub(super) fn put(&mut self, entry: Entry) {
        match self
            .entries
            .iter_mut()
            .find(|other| other.manager == entry.manager)
        {
            Some(place) => *place = entry,
            None => self.entries.push(entry),
        }
    }

    pub(super) fn take(&mut self, manager: &Manager) -> Option<Entry> {
        let place = self.entries.iter().position(|entry| entry.manager == *manager)?;
        Some(self.entries.remove(place))
    }

    pub(super) fn entries_mut(&mut self) -> &mut Vec<Entry> {
        &mut self.entries
    }

    /// Sorts the entries in the order of the wire: appliers first, then by time, name, version and subresource.
    pub(super) fn sort(&mut self) {
        let key = |entry: &Entry| {
            (
                entry.manager.operation,
                entry.seconds(),
                Arc::clone(&entry.manager.name),
                Arc::clone(&entry.api_version),
                Arc::clone(&entry.manager.subresource),
            )
        };
        self.entries.sort_by_cached_key(key);
    }
}
