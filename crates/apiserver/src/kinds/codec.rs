//! The JSON form of built-in kinds: what Go reads and writes.
//!
//! The API server decodes an object of a built-in kind into a Go struct. Unknown fields are dropped (or rejected, see
//! `fieldValidation`), null and empty values are omitted or filled in, and quantities and times get their canonical
//! form. `codec.json` describes the structs as far as that requires; `tests/oracle/apply/codec` generates it.

mod reader;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, LazyLock};

use serde::Deserialize;
use serde_json::{Map, Value};

pub use reader::CodecError;

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    // The file is part of the program and a test reads it; a table that cannot be read has no kinds.
    serde_json::from_str::<File>(include_str!("codec.json"))
        .ok()
        .map(build)
        .unwrap_or_default()
});

/// A Go type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GoType(usize);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    kinds: BTreeMap<String, usize>,
    types: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    #[serde(rename = "n", default)]
    name: Arc<str>,
    #[serde(rename = "f")]
    fields: Option<Vec<(String, usize, u8)>>,
    #[serde(rename = "l")]
    list: Option<usize>,
    #[serde(rename = "m")]
    map: Option<usize>,
    #[serde(rename = "p")]
    plain: Option<Plain>,
    #[serde(rename = "b", default)]
    numbers: Vec<(u64, String, usize, u8)>,
}

/// A scalar type, or a type with a custom encoding.
#[derive(Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Plain {
    String,
    Bool,
    Int,
    Int32,
    Int64,
    Uint16,
    Uint32,
    Uint64,
    Float64,
    Bytes,
    Time,
    Microtime,
    Duration,
    Quantity,
    IntOrString,
    Any,
}

#[derive(Default)]
struct Table {
    kinds: HashMap<(String, String), GoType>,
    types: Vec<Type>,
}

struct Type {
    name: Arc<str>,
    shape: Shape,
    numbers: Vec<Message>,
}

/// A field of a protobuf message.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) number: u64,
    /// The name of the field in JSON; empty for a struct whose fields are inline in JSON.
    pub(super) name: String,
    pub(super) ty: GoType,
    /// Whether the field is repeated, one item each.
    pub(super) repeated: bool,
}

/// The structure of a type.
pub(super) enum View {
    Struct(&'static [Message]),
    List(GoType),
    Map(GoType),
    Plain(Plain),
}

enum Shape {
    Struct(BTreeMap<String, Field>),
    List(GoType),
    Map(GoType),
    Plain(Plain),
}

struct Field {
    ty: GoType,
    leave_out: LeaveOut,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum LeaveOut {
    /// Never omitted; an absent value is written as the zero value of its type.
    Never,
    /// Omitted if empty or zero (`omitempty`).
    Empty,
    /// Omitted if null.
    Null,
    /// Omitted if the struct is zero (`omitzero`).
    Zero,
    /// Never omitted; an absent value is written as null.
    Nil,
}

fn build(file: File) -> Table {
    let types = file
        .types
        .into_iter()
        .map(|mut entry| Type {
            numbers: std::mem::take(&mut entry.numbers)
                .into_iter()
                .map(|(number, name, ty, repeated)| Message {
                    number,
                    name,
                    ty: GoType(ty),
                    repeated: repeated == 1,
                })
                .collect(),
            name: Arc::clone(&entry.name),
            shape: match entry {
                Entry {
                    fields: Some(fields), ..
                } => Shape::Struct(
                    fields
                        .into_iter()
                        .map(|(name, ty, leave)| {
                            let leave_out = match leave {
                                0 => LeaveOut::Never,
                                1 => LeaveOut::Empty,
                                2 => LeaveOut::Null,
                                3 => LeaveOut::Zero,
                                _ => LeaveOut::Nil,
                            };
                            (
                                name,
                                Field {
                                    ty: GoType(ty),
                                    leave_out,
                                },
                            )
                        })
                        .collect(),
                ),
                Entry {
                    list: Some(element), ..
                } => Shape::List(GoType(element)),
                Entry {
                    map: Some(element), ..
                } => Shape::Map(GoType(element)),
                Entry { plain, .. } => Shape::Plain(plain.unwrap_or(Plain::Any)),
            },
        })
        .collect();
    let kinds = file
        .kinds
        .into_iter()
        .filter_map(|(name, number)| {
            let (version, kind) = name.rsplit_once('/')?;
            Some(((version.to_owned(), kind.to_owned()), GoType(number)))
        })
        .collect();
    Table { kinds, types }
}

/// The kinds that every version has: the options of requests (`metav1.AddToGroupVersion`).
const OPTIONS: &[&str] = &[
    "CreateOptions",
    "DeleteOptions",
    "GetOptions",
    "ListOptions",
    "PatchOptions",
    "UpdateOptions",
];

/// Returns the Go type of a built-in kind; `None` if the table does not have it.
pub fn go_type(api_version: &str, kind: &str) -> Option<GoType> {
    let api_version = match (api_version, kind) {
        (_, kind) if OPTIONS.contains(&kind) => "v1",
        // The first version has the same fields.
        ("policy/v1beta1", "Eviction") => "policy/v1",
        _ => api_version,
    };
    TABLE
        .kinds
        .get(&(api_version.to_owned(), kind.to_owned()))
        .copied()
}

/// The name of a struct with its package: `v1.Container`. Each struct has one set of defaults.
pub type StructName = str;

impl GoType {
    fn get(self) -> Option<&'static Type> {
        TABLE.types.get(self.0)
    }

    /// Returns the structure of the type.
    pub(super) fn view(self) -> View {
        match self.get() {
            Some(ty) => match &ty.shape {
                Shape::Struct(_) => View::Struct(&ty.numbers),
                Shape::List(element) => View::List(*element),
                Shape::Map(element) => View::Map(*element),
                Shape::Plain(plain) => View::Plain(*plain),
            },
            None => View::Plain(Plain::Any),
        }
    }

    /// Converts an object to the form that Go writes; returns the paths of unknown fields.
    ///
    /// # Errors
    /// [`CodecError`] for the first value that does not match the type of its field.
    pub fn normalize(self, object: &mut Value) -> Result<Vec<String>, CodecError> {
        reader::read(self, object)
    }

    /// Calls a function with each struct of an object, the outer ones first, as Go sets defaults.
    pub fn each_struct(
        self,
        object: &mut Value,
        visit: &mut dyn FnMut(&StructName, &mut Map<String, Value>),
    ) {
        let Some(ty) = self.get() else { return };
        match (&ty.shape, object) {
            (Shape::Struct(fields), Value::Object(map)) => {
                visit(&ty.name, map);
                for (name, value) in map {
                    if let Some(field) = fields.get(name) {
                        field.ty.each_struct(value, visit);
                    }
                }
            }
            (Shape::List(element), Value::Array(items)) => {
                for item in items {
                    element.each_struct(item, visit);
                }
            }
            (Shape::Map(element), Value::Object(map)) => {
                for value in map.values_mut() {
                    element.each_struct(value, visit);
                }
            }
            _ => {}
        }
    }
}

/// What visits a struct: its name, its fields, and where it is.
type VisitStruct<'a> = dyn FnMut(&StructName, &Map<String, Value>, &Place<'_>) + 'a;

/// Where a value is in an object, without the text until it is needed.
#[derive(Debug, Clone, Copy)]
pub enum Place<'a> {
    /// The object.
    Root,
    /// A field of a struct or a key of a map.
    Field(&'a Place<'a>, &'a str),
    /// An item of a list.
    Index(&'a Place<'a>, usize),
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Field(Self::Root, name) => f.write_str(name),
            Self::Field(place, name) => write!(f, "{place}.{name}"),
            Self::Index(place, index) => write!(f, "{place}[{index}]"),
        }
    }
}

impl GoType {
    /// Visits the structs of an object, except for those in its status, with their places.
    pub fn each_struct_at(self, object: &Value, place: &Place<'_>, visit: &mut VisitStruct<'_>) {
        let Some(ty) = self.get() else { return };
        match (&ty.shape, object) {
            (Shape::Struct(fields), Value::Object(map)) => {
                visit(&ty.name, map, place);
                for (name, value) in map {
                    let is_status = name == "status" && matches!(place, Place::Root);
                    if let Some(field) = fields.get(name).filter(|_| !is_status) {
                        field.ty.each_struct_at(value, &Place::Field(place, name), visit);
                    }
                }
            }
            (Shape::List(element), Value::Array(items)) => {
                for (index, item) in items.iter().enumerate() {
                    element.each_struct_at(item, &Place::Index(place, index), visit);
                }
            }
            (Shape::Map(element), Value::Object(map)) => {
                for (key, value) in map {
                    element.each_struct_at(value, &Place::Field(place, key), visit);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn normalized(api_version: &str, kind: &str, mut object: Value) -> (Value, Vec<String>) {
        let ty = go_type(api_version, kind).unwrap();
        let unknown = ty.normalize(&mut object).unwrap();
        (object, unknown)
    }

    #[test]
    fn the_whole_table_can_be_read() {
        assert!(TABLE.kinds.len() >= 60, "{}", TABLE.kinds.len());
    }

    #[test]
    fn empty_values_are_omitted_and_unknown_fields_reported() {
        let (object, unknown) = normalized(
            "v1",
            "ConfigMap",
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "labels": {}, "color": 1}, "data": {}, "dats": {}}),
        );
        assert_eq!(
            object,
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}})
        );
        assert_eq!(unknown, ["dats", "metadata.color"]);
        let (object, unknown) = normalized(
            "apps/v1",
            "Deployment",
            json!({"spec": {"replicas": 0, "paused": false, "template": {"spec": {"containers": [
                {"name": "a", "imag": "b", "resources": {"limits": {"cpu": "1000m", "memory": 1024}}}]}}}}),
        );
        assert_eq!(unknown, ["spec.template.spec.containers[0].imag"]);
        assert_eq!(
            object,
            json!({"metadata": {}, "status": {}, "spec": {"replicas": 0, "selector": null, "strategy": {}, "template": {
                "metadata": {}, "spec": {"containers": [{"name": "a", "resources": {"limits": {"cpu": "1", "memory": "1024"}}}]}}}})
        );
    }

    #[test]
    fn a_value_of_the_wrong_type_is_rejected_with_the_error_of_go() {
        let ty = go_type("apps/v1", "Deployment").unwrap();
        for (object, text) in [
            (
                json!({"spec": {"replicas": "3"}}),
                "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32",
            ),
            (
                json!({"spec": {"template": {"spec": {"containers": [{"image": 1}]}}}}),
                "json: cannot unmarshal number into Go struct field Container.spec.template.spec.containers.image of type string",
            ),
            (
                json!({"metadata": {"labels": {"a": 1}}}),
                "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string",
            ),
            (
                json!({"spec": {"replicas": 1.5}}),
                "json: cannot unmarshal number 1.5 into Go struct field DeploymentSpec.spec.replicas of type int32",
            ),
            (
                json!([]),
                "json: cannot unmarshal array into Go value of type v1.Deployment",
            ),
            (
                json!({"metadata": {"creationTimestamp": 1}}),
                "json: cannot unmarshal number into Go value of type string",
            ),
            (
                json!({"metadata": {"creationTimestamp": "now"}}),
                "parsing time \"now\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"now\" as \"2006\"",
            ),
            (
                json!({"spec": {"strategy": {"rollingUpdate": {"maxSurge": true}}}}),
                "json: cannot unmarshal bool into Go value of type int32",
            ),
            (
                json!({"spec": {"template": {"spec": {"overhead": {"cpu": "x"}}}}}),
                "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
            ),
        ] {
            let error = ty.normalize(&mut object.clone()).unwrap_err();
            assert_eq!(error.to_string(), text);
        }
        let secret = go_type("v1", "Secret").unwrap();
        let error = secret.normalize(&mut json!({"data": {"a": "?"}})).unwrap_err();
        assert_eq!(error.to_string(), "illegal base64 data at input byte 0");
    }
}
