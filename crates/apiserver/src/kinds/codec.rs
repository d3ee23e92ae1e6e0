//! The form that objects of built-in kinds have: what Go makes of JSON and writes again.
//!
//! The API server reads an object of a built-in kind into a Go struct. Fields that the struct does not have are lost
//! (or refused, as `fieldValidation` says), null and empty values are left out or filled in, quantities and times get
//! one way of writing. `codec.json` holds the structs as far as that goes; `tests/oracle/apply/codec` makes it.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, LazyLock};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::quantity;
use crate::object::times;

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    // Part of the program, and read by a test; a table that cannot be read knows no kind.
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

/// A type without parts, or with a form of its own.
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

/// A field of a struct in protobuf.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) number: u64,
    /// Its name in JSON; empty for a struct whose fields JSON has inline.
    pub(super) name: String,
    pub(super) ty: GoType,
    /// Whether each item of the list is a field.
    pub(super) repeated: bool,
}

/// What a type is made of.
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
    /// Never; an absent value is written as the zero of its type.
    Never,
    /// If it is empty or zero.
    Empty,
    /// If it is null.
    Null,
    /// If it is a struct without anything in it.
    Zero,
    /// Never; an absent value is written as null.
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

/// The Go type of a built-in kind, none if the table does not have it.
pub fn go_type(api_version: &str, kind: &str) -> Option<GoType> {
    TABLE
        .kinds
        .get(&(api_version.to_owned(), kind.to_owned()))
        .copied()
}

/// What a struct is called, with its package: `v1.Container`. For each struct there is one set of defaults.
pub type StructName = str;

impl GoType {
    fn get(self) -> Option<&'static Type> {
        TABLE.types.get(self.0)
    }

    /// What the type is made of.
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

    /// Gives an object the form that Go gives it, and returns the paths of the fields that it does not have.
    ///
    /// # Errors
    /// The text of Go's error for a value of another type than the field's.
    pub fn normalize(self, object: &mut Value) -> Result<Vec<String>, String> {
        let mut reader = Reader {
            unknown: Vec::new(),
            path: String::new(),
            names: Vec::new(),
            holder: "",
        };
        reader.value(self, object)?;
        Ok(reader.unknown)
    }

    /// Calls a function with each struct in an object, the outer ones first, as Go's defaults are set.
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

struct Reader {
    unknown: Vec<String>,
    /// Where, as strict errors say it: with the places of items.
    path: String,
    /// Where, as Go's own errors say it: names of fields only.
    names: Vec<String>,
    /// The struct around.
    holder: &'static str,
}

impl Reader {
    /// Looks at what lies one step below.
    fn below<T>(
        &mut self,
        step: &str,
        look: impl FnOnce(&mut Self) -> Result<T, String>,
    ) -> Result<T, String> {
        let length = self.path.len();
        self.path.push_str(step);
        let outcome = look(self);
        self.path.truncate(length);
        outcome
    }

    fn mismatch(&self, found: &str, ty: &Type) -> String {
        let target = go_name(ty);
        if self.names.is_empty() {
            return format!("json: cannot unmarshal {found} into Go value of type {target}");
        }
        let holder = self.holder.rsplit('.').next().unwrap_or_default();
        format!(
            "json: cannot unmarshal {found} into Go struct field {holder}.{} of type {target}",
            self.names.join(".")
        )
    }

    fn value(&mut self, ty: GoType, value: &mut Value) -> Result<(), String> {
        let Some(ty) = ty.get() else { return Ok(()) };
        match &ty.shape {
            Shape::Struct(fields) => match value {
                Value::Null => {
                    *value = json!({});
                    self.value_of_struct(ty, fields, value)
                }
                Value::Object(_) => self.value_of_struct(ty, fields, value),
                other => Err(self.mismatch(json_type(other), ty)),
            },
            Shape::List(element) => match value {
                Value::Null => Ok(()),
                Value::Array(items) => {
                    for (place, item) in items.iter_mut().enumerate() {
                        self.below(&format!("[{place}]"), |reader| reader.value(*element, item))?;
                    }
                    Ok(())
                }
                other => Err(self.mismatch(json_type(other), ty)),
            },
            Shape::Map(element) => match value {
                Value::Null => Ok(()),
                Value::Object(map) => {
                    for (name, item) in map {
                        let step = if self.path.is_empty() {
                            name.clone()
                        } else {
                            format!(".{name}")
                        };
                        self.below(&step, |reader| reader.value(*element, item))?;
                        if item.is_null() {
                            *item = match element.get().map(|ty| &ty.shape) {
                                // Written and read again, no bytes are an empty text.
                                Some(Shape::Plain(Plain::Bytes)) => json!(""),
                                _ => zero(*element),
                            };
                        }
                    }
                    Ok(())
                }
                other => Err(self.mismatch(json_type(other), ty)),
            },
            Shape::Plain(plain) => self.plain(*plain, ty, value),
        }
    }

    fn value_of_struct(
        &mut self,
        ty: &'static Type,
        fields: &BTreeMap<String, Field>,
        value: &mut Value,
    ) -> Result<(), String> {
        let Value::Object(map) = value else { return Ok(()) };
        let holder = std::mem::replace(&mut self.holder, &ty.name);
        let given: Vec<String> = map.keys().cloned().collect();
        for name in given {
            let step = if self.path.is_empty() {
                name.clone()
            } else {
                format!(".{name}")
            };
            let Some(field) = fields.get(&name) else {
                self.unknown.push(format!("{}{step}", self.path));
                map.remove(&name);
                continue;
            };
            let Some(value) = map.get_mut(&name) else { continue };
            if value.is_null() && field.leave_out != LeaveOut::Never {
                if field.leave_out != LeaveOut::Nil {
                    map.remove(&name);
                }
                continue;
            }
            self.names.push(name.clone());
            self.below(&step, |reader| reader.value(field.ty, value))?;
            self.names.pop();
            let gone = match field.leave_out {
                LeaveOut::Empty => is_empty(value),
                LeaveOut::Null => value.is_null(),
                LeaveOut::Zero => is_zero(value),
                LeaveOut::Never | LeaveOut::Nil => false,
            };
            if gone {
                map.remove(&name);
            }
        }
        for (name, field) in fields {
            match field.leave_out {
                LeaveOut::Never if map.get(name).is_none_or(Value::is_null) => {
                    map.insert(name.clone(), zero(field.ty));
                }
                LeaveOut::Nil if !map.contains_key(name) => {
                    map.insert(name.clone(), Value::Null);
                }
                _ => {}
            }
        }
        self.holder = holder;
        Ok(())
    }

    fn plain(&self, plain: Plain, ty: &Type, value: &mut Value) -> Result<(), String> {
        if value.is_null() {
            return Ok(());
        }
        match plain {
            Plain::Any => Ok(()),
            Plain::String => match value {
                Value::String(_) => Ok(()),
                other => Err(self.mismatch(json_type(other), ty)),
            },
            Plain::Bool => match value {
                Value::Bool(_) => Ok(()),
                other => Err(self.mismatch(json_type(other), ty)),
            },
            Plain::Int | Plain::Int32 | Plain::Int64 | Plain::Uint16 | Plain::Uint32 | Plain::Uint64 => {
                self.integer(plain, ty, value)
            }
            Plain::Float64 => match value {
                Value::Number(_) => Ok(()),
                other => Err(self.mismatch(json_type(other), ty)),
            },
            Plain::Bytes => self.bytes(ty, value),
            Plain::Time | Plain::Microtime => time(plain == Plain::Microtime, value),
            Plain::Duration => match value {
                Value::String(_) => Ok(()),
                other => Err(self.mismatch(json_type(other), ty)),
            },
            Plain::Quantity => {
                let text = match &*value {
                    Value::String(text) => text.clone(),
                    Value::Number(number) => number.to_string(),
                    other => other.to_string(),
                };
                let canonical = quantity::canonical(&text).ok_or_else(|| {
                    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'".to_owned()
                })?;
                *value = Value::String(canonical);
                Ok(())
            }
            Plain::IntOrString => match value {
                Value::String(_) => Ok(()),
                Value::Number(_) => self.integer(Plain::Int32, ty, value),
                other => Err(format!(
                    "json: cannot unmarshal {} into Go value of type int32",
                    json_type(other)
                )),
            },
        }
    }

    fn integer(&self, plain: Plain, ty: &Type, value: &mut Value) -> Result<(), String> {
        let Value::Number(number) = &*value else {
            return Err(self.mismatch(json_type(value), ty));
        };
        // 80.0 is how some clients write 80; the decoder takes it.
        let whole = number.as_i64().or_else(|| {
            let float = number.as_f64()?;
            #[expect(clippy::cast_possible_truncation, reason = "only whole numbers get here")]
            (float.fract() == 0.0 && float.abs() < 9e15).then_some(float as i64)
        });
        let fits = whole.is_some_and(|whole| match plain {
            Plain::Int32 => i32::try_from(whole).is_ok(),
            Plain::Uint16 => u16::try_from(whole).is_ok(),
            Plain::Uint32 => u32::try_from(whole).is_ok(),
            Plain::Uint64 => u64::try_from(whole).is_ok(),
            _ => true,
        });
        match whole {
            Some(whole) if fits => {
                *value = json!(whole);
                Ok(())
            }
            _ => Err(self.mismatch(&format!("number {number}"), ty)),
        }
    }

    fn bytes(&self, ty: &Type, value: &mut Value) -> Result<(), String> {
        let Value::String(text) = &*value else {
            return Err(self.mismatch(json_type(value), ty));
        };
        let clean: String = text.chars().filter(|char| !matches!(char, '\n' | '\r')).collect();
        match STANDARD.decode(&clean) {
            Ok(bytes) => {
                *value = Value::String(STANDARD.encode(bytes));
                Ok(())
            }
            Err(error) => Err(illegal_base64(&clean, &error)),
        }
    }
}

/// What Go says of a text that is not in Base64.
pub(crate) fn illegal_base64(text: &str, error: &base64::DecodeError) -> String {
    let at = match error {
        base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _) => *at,
        base64::DecodeError::InvalidLength(_) | base64::DecodeError::InvalidPadding => {
            text.len() - text.len() % 4
        }
    };
    format!("illegal base64 data at input byte {at}")
}

fn time(micro: bool, value: &mut Value) -> Result<(), String> {
    let form = if micro {
        "2006-01-02T15:04:05.000000Z07:00"
    } else {
        "2006-01-02T15:04:05Z07:00"
    };
    let text = match &*value {
        Value::String(text) => text,
        other => {
            return Err(format!(
                "json: cannot unmarshal {} into Go value of type string",
                json_type(other)
            ));
        }
    };
    let time = times::parse(text)
        .ok_or_else(|| format!("parsing time {text:?} as {form:?}: cannot parse {text:?} as \"2006\""))?;
    *value = Value::String(if micro {
        times::micros(time)
    } else {
        times::seconds(time)
    });
    Ok(())
}

fn json_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn go_name(ty: &Type) -> &str {
    match ty.shape {
        Shape::Plain(Plain::IntOrString) => "int32",
        _ => &ty.name,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(bool) => !bool,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

/// Whether a struct has nothing but zeros in it.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.values().all(is_zero),
        other => is_empty(other),
    }
}

/// What Go writes for a field that nobody has set.
fn zero(ty: GoType) -> Value {
    let Some(ty) = ty.get() else { return Value::Null };
    match &ty.shape {
        Shape::Struct(fields) => Value::Object(
            fields
                .iter()
                .filter_map(|(name, field)| match field.leave_out {
                    LeaveOut::Never => Some((name.clone(), zero(field.ty))),
                    LeaveOut::Nil => Some((name.clone(), Value::Null)),
                    _ => None,
                })
                .collect(),
        ),
        Shape::List(_) | Shape::Map(_) => Value::Null,
        Shape::Plain(plain) => match plain {
            Plain::String => json!(""),
            Plain::Bool => json!(false),
            Plain::Quantity => json!("0"),
            Plain::Duration => json!("0s"),
            Plain::Bytes | Plain::Time | Plain::Microtime | Plain::Any => Value::Null,
            _ => json!(0),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normalized(api_version: &str, kind: &str, mut object: Value) -> (Value, Vec<String>) {
        let ty = go_type(api_version, kind).unwrap();
        let unknown = ty.normalize(&mut object).unwrap();
        (object, unknown)
    }

    #[test]
    fn the_table_is_read_whole() {
        assert!(TABLE.kinds.len() >= 60, "{}", TABLE.kinds.len());
    }

    #[test]
    fn empty_values_go_and_unknown_fields_are_named() {
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
    fn a_value_of_another_type_is_refused_in_the_words_of_go() {
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
        ] {
            assert_eq!(ty.normalize(&mut object.clone()), Err(text.to_owned()));
        }
    }
}
