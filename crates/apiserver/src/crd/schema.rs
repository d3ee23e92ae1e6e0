//! The parsed `openAPIV3Schema` of a version.
//!
//! Parsing is lenient: members of the wrong type count as missing. [`super::check`] validates schemas.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::pattern::Pattern;

/// A node of a schema.
#[derive(Debug, Default)]
pub(super) struct Schema {
    /// The type; empty for none.
    pub(super) ty: String,
    /// The format; empty for none and for formats that custom resources do not support.
    pub(super) format: String,
    pub(super) nullable: bool,
    pub(super) default: Option<Value>,
    pub(super) enumeration: Vec<Value>,
    pub(super) pattern: Option<Pattern>,
    pub(super) minimum: Option<f64>,
    pub(super) exclusive_minimum: bool,
    pub(super) maximum: Option<f64>,
    pub(super) exclusive_maximum: bool,
    pub(super) multiple_of: Option<f64>,
    pub(super) min_length: Option<i64>,
    pub(super) max_length: Option<i64>,
    pub(super) min_items: Option<i64>,
    pub(super) max_items: Option<i64>,
    pub(super) min_properties: Option<i64>,
    pub(super) max_properties: Option<i64>,
    pub(super) required: Vec<String>,
    pub(super) properties: BTreeMap<String, Schema>,
    pub(super) additional: Option<Additional>,
    pub(super) items: Option<Box<Schema>>,
    pub(super) all_of: Vec<Schema>,
    pub(super) any_of: Vec<Schema>,
    pub(super) one_of: Vec<Schema>,
    pub(super) not: Option<Box<Schema>>,
    pub(super) preserve_unknown: bool,
    pub(super) embedded: bool,
    pub(super) int_or_string: bool,
    /// `atomic`, `set` or `map`; empty for none.
    pub(super) list_type: String,
    pub(super) list_keys: Vec<String>,
    pub(super) rules: Vec<Rule>,
}

/// The value of `additionalProperties`.
#[derive(Debug)]
pub(super) enum Additional {
    Any,
    None,
    Schema(Box<Schema>),
}

/// A rule of `x-kubernetes-validations`.
#[derive(Debug, Default, Clone)]
pub(super) struct Rule {
    pub(super) rule: String,
    pub(super) message: String,
    pub(super) message_expression: String,
    pub(super) reason: Option<String>,
    pub(super) field_path: String,
    pub(super) optional_old_self: Option<bool>,
}

/// The formats that custom resources support, without hyphens; others are ignored.
const FORMATS: [&str; 26] = [
    "bsonobjectid",
    "uri",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "cidr",
    "mac",
    "uuid",
    "uuid3",
    "uuid4",
    "uuid5",
    "isbn",
    "isbn10",
    "isbn13",
    "creditcard",
    "ssn",
    "hexcolor",
    "rgbcolor",
    "byte",
    "password",
    "date",
    "duration",
    "datetime",
    "k8sshortname",
    "k8slongname",
];

impl Schema {
    /// Parses a node and its children.
    pub(super) fn read(value: &Value) -> Self {
        let Value::Object(map) = value else {
            return Self::default();
        };
        let format = text(map, "format");
        let known = FORMATS.contains(&format.replace('-', "").as_str());
        Self {
            ty: text(map, "type"),
            format: if known { format } else { String::new() },
            nullable: flag(map, "nullable"),
            default: map.get("default").filter(|value| !value.is_null()).cloned(),
            enumeration: list(map, "enum").to_vec(),
            pattern: Some(text(map, "pattern"))
                .filter(|pattern| !pattern.is_empty())
                .map(Pattern::new),
            minimum: map.get("minimum").and_then(Value::as_f64),
            exclusive_minimum: flag(map, "exclusiveMinimum"),
            maximum: map.get("maximum").and_then(Value::as_f64),
            exclusive_maximum: flag(map, "exclusiveMaximum"),
            multiple_of: map.get("multipleOf").and_then(Value::as_f64),
            min_length: map.get("minLength").and_then(Value::as_i64),
            max_length: map.get("maxLength").and_then(Value::as_i64),
            min_items: map.get("minItems").and_then(Value::as_i64),
            max_items: map.get("maxItems").and_then(Value::as_i64),
            min_properties: map.get("minProperties").and_then(Value::as_i64),
            max_properties: map.get("maxProperties").and_then(Value::as_i64),
            required: texts(map, "required"),
            properties: match map.get("properties") {
                Some(Value::Object(properties)) => properties
                    .iter()
                    .map(|(name, schema)| (name.clone(), Self::read(schema)))
                    .collect(),
                _ => BTreeMap::new(),
            },
            additional: match map.get("additionalProperties") {
                Some(Value::Bool(true)) => Some(Additional::Any),
                Some(Value::Bool(false)) => Some(Additional::None),
                Some(schema @ Value::Object(_)) => Some(Additional::Schema(Box::new(Self::read(schema)))),
                _ => None,
            },
            items: below(map, "items"),
            all_of: schemas(map, "allOf"),
            any_of: schemas(map, "anyOf"),
            one_of: schemas(map, "oneOf"),
            not: below(map, "not"),
            preserve_unknown: flag(map, "x-kubernetes-preserve-unknown-fields"),
            embedded: flag(map, "x-kubernetes-embedded-resource"),
            int_or_string: flag(map, "x-kubernetes-int-or-string"),
            list_type: text(map, "x-kubernetes-list-type"),
            list_keys: texts(map, "x-kubernetes-list-map-keys"),
            rules: list(map, "x-kubernetes-validations")
                .iter()
                .filter_map(Value::as_object)
                .map(Rule::read)
                .collect(),
        }
    }

    /// Returns the schema of undeclared fields; `None` if there is none.
    pub(super) fn additional_schema(&self) -> Option<&Self> {
        match &self.additional {
            Some(Additional::Schema(schema)) => Some(schema),
            _ => None,
        }
    }

    /// Returns the schema of a field, declared or not.
    pub(super) fn field(&self, name: &str) -> Option<&Self> {
        self.properties.get(name).or_else(|| self.additional_schema())
    }

    /// Returns whether the node or one of its structural children has a rule.
    pub(super) fn has_rules(&self) -> bool {
        !self.rules.is_empty()
            || self.items.as_deref().is_some_and(Self::has_rules)
            || self.additional_schema().is_some_and(Self::has_rules)
            || self.properties.values().any(Self::has_rules)
            || self.all_of.iter().any(Self::has_rules)
    }
}

impl Rule {
    fn read(map: &Map<String, Value>) -> Self {
        Self {
            rule: text(map, "rule"),
            message: text(map, "message"),
            message_expression: text(map, "messageExpression"),
            reason: map.get("reason").and_then(Value::as_str).map(str::to_owned),
            field_path: text(map, "fieldPath"),
            optional_old_self: map.get("optionalOldSelf").and_then(Value::as_bool),
        }
    }
}

pub(super) fn text(map: &Map<String, Value>, name: &str) -> String {
    map.get(name)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

pub(super) fn flag(map: &Map<String, Value>, name: &str) -> bool {
    map.get(name) == Some(&Value::Bool(true))
}

pub(super) fn list<'a>(map: &'a Map<String, Value>, name: &str) -> &'a [Value] {
    map.get(name)
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default()
}

pub(super) fn texts(map: &Map<String, Value>, name: &str) -> Vec<String> {
    list(map, name)
        .iter()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect()
}

fn below(map: &Map<String, Value>, name: &str) -> Option<Box<Schema>> {
    map.get(name)
        .filter(|value| value.is_object())
        .map(|schema| Box::new(Schema::read(schema)))
}

fn schemas(map: &Map<String, Value>, name: &str) -> Vec<Schema> {
    list(map, name).iter().map(Schema::read).collect()
}
