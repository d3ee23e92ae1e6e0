//! The members that a schema may have, and its validation rules.

use serde_json::{Map, Value, json};
use thiserror::Error;

use super::{defaults, is_set, member, members, schemas, structural};
use crate::cause::Cause;
use crate::crd::rules::{self, field_path};
use crate::crd::schema::{Schema, flag, list, text, texts};
use crate::value::go_json;

type Node = Map<String, Value>;

/// The members of JSON Schema that are not supported, in the order of the API server.
const UNSUPPORTED: [(&str, &str); 6] = [
    ("id", "id is not supported"),
    ("additionalItems", "additionalItems is not supported"),
    ("patternProperties", "patternProperties is not supported"),
    ("definitions", "definitions is not supported"),
    ("dependencies", "dependencies is not supported"),
    ("$ref", "$ref is not supported"),
];

const TYPES: [&str; 6] = ["array", "boolean", "integer", "number", "object", "string"];

/// The members that the root may have besides the schema if `status` is a subresource, by their names in JSON and in
/// Go.
const AT_ROOT: [(&str, &str); 22] = [
    ("description", "Description"),
    ("type", "Type"),
    ("format", "Format"),
    ("title", "Title"),
    ("maximum", "Maximum"),
    ("exclusiveMaximum", "ExclusiveMaximum"),
    ("minimum", "Minimum"),
    ("exclusiveMinimum", "ExclusiveMinimum"),
    ("maxLength", "MaxLength"),
    ("minLength", "MinLength"),
    ("pattern", "Pattern"),
    ("maxItems", "MaxItems"),
    ("minItems", "MinItems"),
    ("uniqueItems", "UniqueItems"),
    ("multipleOf", "MultipleOf"),
    ("required", "Required"),
    ("items", "Items"),
    ("properties", "Properties"),
    ("externalDocs", "ExternalDocs"),
    ("example", "Example"),
    ("x-kubernetes-preserve-unknown-fields", "XPreserveUnknownFields"),
    ("x-kubernetes-validations", "XValidations"),
];

/// Why a node must not have a default.
#[derive(Debug, Clone, Error)]
enum DefaultForbidden {
    #[error("must not be set in top-level {field}")]
    TopLevel { field: String },
    #[error("must not be set inside additionalProperties applying to object metadata")]
    MetadataValues,
}

/// Why a schema has no structural form.
#[derive(Debug, Error)]
enum StructureError {
    #[error("internal error: 'x-kubernetes-preserve-unknown-fields' must be true or undefined")]
    PreserveUnknownFields,
    #[error("OpenAPIV3Schema 'items' must be a schema, but is an array")]
    ItemsArray,
    #[error("OpenAPIV3Schema '{member}' is not supported")]
    Unsupported { member: &'static str },
}

/// The restrictions that a node inherits from its parents.
#[derive(Clone, Default)]
struct Context {
    /// Why the node must not have a default; `None` if it may.
    no_defaults: Option<DefaultForbidden>,
    inside_metadata: bool,
    /// The first parent whose values have no old values to compare with.
    no_old: Option<String>,
    is_root: bool,
    /// Whether rules are compiled: not within `allOf` and the like, nor in a schema that is not structural.
    rules: bool,
    of_resource: bool,
}

/// The errors of the schema and of its rules; rules are only compiled if the schema has no errors.
#[derive(Default)]
struct Found {
    schema: Vec<Cause>,
    rules: Vec<Cause>,
}

impl Found {
    fn merge(&mut self, other: Self) {
        self.schema.extend(other.schema);
        self.rules.extend(other.rules);
    }
}

/// Returns what is wrong with the schema of a version; `path` is that of the member `schema`.
pub(super) fn check(schema: &Value, has_status: bool, path: &str, causes: &mut Vec<Cause>) {
    let Some(node) = schema.as_object() else {
        return;
    };
    let before = causes.len();
    let path = format!("{path}.openAPIV3Schema");
    if has_status {
        check_root(node, &path, causes);
    }
    if flag(node, "nullable") {
        causes.push(Cause::forbidden(
            format!("{path}.nullable"),
            "nullable cannot be true at the root",
        ));
    }
    let structure = check_structure(node);
    let mut compiles = false;
    if structure.is_ok() {
        let of_structure = structural::check(node, &path);
        compiles = of_structure.is_empty();
        causes.extend(of_structure);
        if compiles {
            let length = causes.len();
            defaults::check(&Schema::read(schema), &path, causes);
            compiles = causes.len() == length;
        }
    }
    let context = Context {
        is_root: true,
        rules: compiles,
        of_resource: true,
        ..Context::default()
    };
    let found = check_node(node, &path, &context);
    causes.extend(found.schema);
    causes.extend(found.rules);
    if let Err(error) = structure
        && causes.len() == before
    {
        causes.push(Cause::invalid(path, &json!(""), error.to_string()));
    }
}

fn check_root(schema: &Node, path: &str, causes: &mut Vec<Cause>) {
    if text(schema, "type") != "object" && is_set(schema, "type") {
        let why = "only \"object\" is allowed as the type at the root of the schema if the status subresource is \
                   enabled";
        let found = json!(text(schema, "type"));
        causes.push(Cause::invalid(format!("{path}.type"), &found, why));
    }
    let stranger = schema
        .keys()
        .any(|name| is_set(schema, name) && !AT_ROOT.iter().any(|(known, _)| known == name));
    if stranger {
        let names: Vec<_> = AT_ROOT.iter().map(|(_, name)| *name).collect();
        let why = format!(
            "only [{}] fields are allowed at the root of the schema if the status subresource is enabled",
            names.join(" ")
        );
        causes.push(Cause::invalid_shown(
            path,
            &go_json(&Value::Object(schema.clone())),
            &why,
        ));
    }
}

/// Checks that a schema and its children have a structural form.
fn check_structure(schema: &Node) -> Result<(), StructureError> {
    if schema.get("x-kubernetes-preserve-unknown-fields") == Some(&json!(false)) {
        return Err(StructureError::PreserveUnknownFields);
    }
    if schema.get("items").is_some_and(Value::is_array) {
        return Err(StructureError::ItemsArray);
    }
    const FIELDS: [(&str, &str); 7] = [
        ("id", "id"),
        ("$schema", "schema"),
        ("$ref", "$ref"),
        ("patternProperties", "patternProperties"),
        ("dependencies", "dependencies"),
        ("additionalItems", "additionalItems"),
        ("definitions", "definitions"),
    ];
    if let Some((_, member)) = FIELDS.iter().find(|(name, _)| is_set(schema, name)) {
        return Err(StructureError::Unsupported { member });
    }
    below(schema).try_for_each(|(_, schema)| check_structure(schema))
}

/// Returns the child schemas with their path segments.
fn below(schema: &Node) -> impl Iterator<Item = (String, &Node)> {
    let listed = ["allOf", "oneOf", "anyOf"].into_iter().flat_map(|name| {
        schemas(schema, name).map(move |(place, schema)| (format!("{name}[{place}]"), schema))
    });
    let named = ["not", "items", "additionalProperties"]
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), member(schema, name)?)));
    let properties =
        members(schema, "properties").map(|(name, schema)| (format!("properties[{name}]"), schema));
    listed.chain(named).chain(properties)
}

fn check_node(schema: &Node, path: &str, context: &Context) -> Found {
    let mut found = Found::default();
    check_members(schema, path, context, &mut found.schema);
    if schema.contains_key("additionalProperties")
        && members(schema, "properties").next().is_some()
        && schema.get("additionalProperties") != Some(&json!(true))
    {
        let why = "additionalProperties and properties are mutual exclusive";
        found
            .schema
            .push(Cause::forbidden(format!("{path}.additionalProperties"), why));
    }
    for (step, node) in below(schema) {
        let context = context.below(schema, &step, path);
        found.merge(check_node(node, &format!("{path}.{step}"), &context));
    }
    check_relations(schema, path, &mut found.schema);
    check_keys(schema, path, &mut found.schema);
    check_rules(schema, path, context, &mut found);
    found
}

impl Context {
    /// Returns the restrictions of a child node.
    fn below(&self, schema: &Node, step: &str, path: &str) -> Self {
        let mut context = Self {
            is_root: false,
            of_resource: false,
            ..self.clone()
        };
        let embedded = flag(schema, "x-kubernetes-embedded-resource");
        let node = |step: &str| member(schema, step);
        match step {
            "items" => {
                if text(schema, "x-kubernetes-list-type") != "map" {
                    context.no_old.get_or_insert_with(|| path.to_owned());
                }
                context.of_resource =
                    node("items").is_some_and(|items| flag(items, "x-kubernetes-embedded-resource"));
            }
            "additionalProperties" => {
                if self.inside_metadata {
                    context.no_defaults = Some(DefaultForbidden::MetadataValues);
                }
                context.of_resource = node("additionalProperties")
                    .is_some_and(|below| flag(below, "x-kubernetes-embedded-resource"));
            }
            step => match step
                .strip_prefix("properties[")
                .and_then(|name| name.strip_suffix(']'))
            {
                Some(name) => {
                    if (self.is_root || embedded) && matches!(name, "metadata" | "kind" | "apiVersion") {
                        context.inside_metadata = true;
                        if self.is_root {
                            let field = name.to_owned();
                            context.no_defaults = Some(DefaultForbidden::TopLevel { field });
                        }
                    }
                    context.of_resource = members(schema, "properties")
                        .any(|(known, below)| known == name && flag(below, "x-kubernetes-embedded-resource"));
                }
                None => context.rules = false,
            },
        }
        context
    }
}

/// Checks for members that are not allowed or have the wrong type.
fn check_members(schema: &Node, path: &str, context: &Context, causes: &mut Vec<Cause>) {
    let ty = text(schema, "type");
    if !ty.is_empty() && !TYPES.contains(&ty.as_str()) {
        causes.push(Cause::not_supported(format!("{path}.type"), &json!(ty), TYPES));
    }
    if schema.get("default").is_some_and(|default| !default.is_null())
        && let Some(reason) = &context.no_defaults
    {
        causes.push(Cause::forbidden(format!("{path}.default"), &reason.to_string()));
    }
    for (name, why) in UNSUPPORTED {
        if is_set(schema, name) {
            causes.push(Cause::forbidden(format!("{path}.{name}"), why));
        }
    }
    if ty == "null" {
        let why = "type cannot be set to null, use nullable as an alternative";
        causes.push(Cause::forbidden(format!("{path}.type"), why));
    }
    if schema.get("items").is_some_and(Value::is_array) {
        let why = "items must be a schema object and not an array";
        causes.push(Cause::forbidden(format!("{path}.items"), why));
    }
    if context.inside_metadata && flag(schema, "x-kubernetes-embedded-resource") {
        let place = format!("{path}.x-kubernetes-embedded-resource");
        causes.push(Cause::forbidden(
            place,
            "must not be used inside of resource meta",
        ));
    }
    if flag(schema, "uniqueItems") {
        let why = "uniqueItems cannot be set to true since the runtime complexity becomes quadratic";
        causes.push(Cause::forbidden(format!("{path}.uniqueItems"), why));
    }
    if schema.get("x-kubernetes-preserve-unknown-fields") == Some(&json!(false)) {
        let place = format!("{path}.x-kubernetes-preserve-unknown-fields");
        causes.push(Cause::invalid(place, &json!(false), "must be true or undefined"));
    }
}

/// Checks `x-kubernetes-list-type` and `x-kubernetes-map-type`.
fn check_relations(schema: &Node, path: &str, causes: &mut Vec<Cause>) {
    let ty = text(schema, "type");
    for (name, wanted, known) in [
        ("x-kubernetes-map-type", "object", &["atomic", "granular"][..]),
        ("x-kubernetes-list-type", "array", &["atomic", "set", "map"]),
    ] {
        let Some(relation) = schema.get(name).and_then(Value::as_str) else {
            continue;
        };
        if ty != wanted {
            let why = format!("must be {wanted} if {name} is specified");
            let place = format!("{path}.type");
            causes.push(if ty.is_empty() {
                Cause::required(place, &why)
            } else {
                Cause::invalid(place, &json!(ty), &why)
            });
        } else if relation == "set" {
            check_set(schema, path, causes);
        }
        if !known.contains(&relation) {
            causes.push(Cause::not_supported(
                format!("{path}.{name}"),
                &json!(relation),
                known,
            ));
        }
    }
}

/// Checks that the items of a set are scalars or atomic.
fn check_set(schema: &Node, path: &str, causes: &mut Vec<Cause>) {
    let Some(items) = member(schema, "items") else {
        return;
    };
    let list_type = items.get("x-kubernetes-list-type").unwrap_or(&Value::Null);
    let (name, divisible) = match text(items, "type").as_str() {
        "array" => (
            "x-kubernetes-list-type",
            !list_type.is_null() && list_type != "atomic",
        ),
        "object" => (
            "x-kubernetes-map-type",
            text(items, "x-kubernetes-map-type") != "atomic",
        ),
        _ => return,
    };
    if divisible {
        let why = "must be atomic as item of a list with x-kubernetes-list-type=set";
        causes.push(Cause::invalid(format!("{path}.items.{name}"), list_type, why));
    }
}

/// Checks the keys of a list's items.
fn check_keys(schema: &Node, path: &str, causes: &mut Vec<Cause>) {
    let list_type = text(schema, "x-kubernetes-list-type");
    let keys = texts(schema, "x-kubernetes-list-map-keys");
    let of_keys = format!("{path}.x-kubernetes-list-map-keys");
    if !keys.is_empty() && list_type != "map" {
        let why = "must be map if x-kubernetes-list-map-keys is non-empty";
        let place = format!("{path}.x-kubernetes-list-type");
        causes.push(if list_type.is_empty() {
            Cause::required(place, why)
        } else {
            Cause::invalid(place, &json!(list_type), why)
        });
    }
    let items = member(schema, "items");
    if list_type == "map" {
        if keys.is_empty() {
            let why = "must not be empty if x-kubernetes-list-type is map";
            causes.push(Cause::required(of_keys, why));
        }
        let Some(items) = items else {
            let why = "must have a schema if x-kubernetes-list-type is map";
            causes.push(Cause::required(format!("{path}.items"), why));
            return;
        };
        if text(items, "type") == "object" {
            check_key_fields(items, &keys, path, causes);
        } else {
            let why = "must be object if parent array's x-kubernetes-list-type is map";
            let found = json!(text(items, "type"));
            causes.push(Cause::invalid(format!("{path}.items.type"), &found, why));
        }
    }
    if let Some(items) = items.filter(|_| matches!(list_type.as_str(), "map" | "set")) {
        check_required_keys(items, &list_type, &keys, path, causes);
    }
}

fn check_key_fields(items: &Node, keys: &[String], path: &str, causes: &mut Vec<Cause>) {
    let place = format!("{path}.x-kubernetes-list-map-keys");
    for (number, key) in keys.iter().enumerate() {
        match members(items, "properties").find(|(name, _)| name == key) {
            Some((_, property)) if matches!(text(property, "type").as_str(), "array" | "object") => {
                let why = "must be a scalar type if parent array's x-kubernetes-list-type is map";
                let place = format!("{path}.items.properties[{key}].type");
                causes.push(Cause::invalid(place, &json!(text(items, "type")), why));
            }
            Some(_) => {}
            None => {
                let why = "entries must all be names of item properties";
                causes.push(Cause::invalid(place.clone(), &json!(keys), why));
            }
        }
        if keys[..number].contains(key) {
            let why = "must not contain duplicate entries";
            causes.push(Cause::invalid(place.clone(), &json!(keys), why));
        }
    }
}

/// Checks that keys are required or have a default, and are not nullable.
fn check_required_keys(items: &Node, list_type: &str, keys: &[String], path: &str, causes: &mut Vec<Cause>) {
    if flag(items, "nullable") {
        let why = format!("cannot be nullable when x-kubernetes-list-type is {list_type}");
        causes.push(Cause::forbidden(format!("{path}.items.nullable"), &why));
    }
    if list_type != "map" {
        return;
    }
    let required = texts(items, "required");
    for key in keys {
        let Some((_, property)) = members(items, "properties").find(|(name, _)| name == key) else {
            continue;
        };
        let place = format!("{path}.items.properties[{key}]");
        if !required.contains(key) && property.get("default").is_none_or(Value::is_null) {
            let why = "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required \
                       property";
            causes.push(Cause::required(format!("{place}.default"), why));
        }
        if flag(property, "nullable") {
            let why = "this property is in x-kubernetes-list-map-keys, so it cannot be nullable";
            causes.push(Cause::forbidden(format!("{place}.nullable"), why));
        }
    }
}

fn check_rules(schema: &Node, path: &str, context: &Context, found: &mut Found) {
    let entries = list(schema, "x-kubernetes-validations");
    if entries.is_empty() {
        return;
    }
    let node = Schema::read(&Value::Object(schema.clone()));
    let path = format!("{path}.x-kubernetes-validations");
    for (number, entry) in entries.iter().enumerate() {
        check_rule(entry, &node, &format!("{path}[{number}]"), &mut found.schema);
    }
    if !found.schema.is_empty() || !context.rules {
        return;
    }
    let compiled = rules::compile_here(&node.rules, &node, context.of_resource);
    for (number, (rule, entry)) in compiled.iter().zip(entries).enumerate() {
        let place = format!("{path}[{number}]");
        if let Err(error) = &rule.program {
            found.rules.push(Cause::invalid_shown(
                format!("{place}.rule"),
                &shown(entry),
                &error.to_string(),
            ));
        }
        if let Err(error) = &rule.message {
            found.rules.push(Cause::invalid_shown(
                format!("{place}.messageExpression"),
                &shown(entry),
                &error.to_string(),
            ));
        }
        if rule.uses_old {
            if let Some(above) = &context.no_old {
                let why = format!(
                    "oldSelf cannot be used on the uncorrelatable portion of the schema within {above}"
                );
                found
                    .rules
                    .push(Cause::invalid(format!("{place}.rule"), &entry["rule"], &why));
            }
        } else if let Some(optional) = entry.get("optionalOldSelf").filter(|it| !it.is_null()) {
            let why = "may not be set if oldSelf is not used in rule";
            found
                .rules
                .push(Cause::invalid(format!("{place}.optionalOldSelf"), optional, why));
        }
    }
}

/// Returns a rule in the API server's internal form, as causes show it.
fn shown(entry: &Value) -> String {
    let text = |name: &str| go_json(&json!(entry[name].as_str().unwrap_or_default()));
    format!(
        "{{\"Rule\":{},\"Message\":{},\"MessageExpression\":{},\"Reason\":{},\"FieldPath\":{},\"OptionalOldSelf\":{}}}",
        text("rule"),
        text("message"),
        text("messageExpression"),
        go_json(&entry["reason"]),
        text("fieldPath"),
        go_json(&entry["optionalOldSelf"]),
    )
}

/// Returns what is wrong with a rule before it is compiled.
fn check_rule(entry: &Value, schema: &Schema, path: &str, causes: &mut Vec<Cause>) {
    const REASONS: [&str; 4] = [
        "FieldValueDuplicate",
        "FieldValueForbidden",
        "FieldValueInvalid",
        "FieldValueRequired",
    ];
    let text = |name: &str| entry[name].as_str().unwrap_or_default();
    let has_lines = |text: &str| text.contains(['\n', '\r']);
    let place = |name: &str| format!("{path}.{name}");
    let (rule, message) = (text("rule").trim(), text("message").trim());
    if rule.is_empty() {
        causes.push(Cause::required(place("rule"), "rule is not specified"));
    } else if message.is_empty() && !text("message").is_empty() {
        let why = "must be non-empty if specified";
        causes.push(Cause::invalid(place("message"), &entry["message"], why));
    } else if has_lines(message) {
        let why = "must not contain line breaks";
        causes.push(Cause::invalid(place("message"), &entry["message"], why));
    } else if has_lines(rule) && message.is_empty() {
        let why = "message must be specified if rule contains line breaks";
        causes.push(Cause::required(place("message"), why));
    }
    let expression = text("messageExpression");
    if !expression.is_empty() && expression.trim().is_empty() {
        let why = "messageExpression must be non-empty if specified";
        causes.push(Cause::required(place("messageExpression"), why));
    }
    if let Some(reason) = entry["reason"]
        .as_str()
        .filter(|reason| !REASONS.contains(reason))
    {
        causes.push(Cause::not_supported(place("reason"), &json!(reason), REASONS));
    }
    let of_field = text("fieldPath");
    if !of_field.is_empty() && of_field.trim().is_empty() {
        let why = "must be non-empty if specified";
        causes.push(Cause::invalid(place("fieldPath"), &entry["fieldPath"], why));
    }
    if has_lines(of_field) {
        let why = "must not contain line breaks";
        causes.push(Cause::invalid(place("fieldPath"), &entry["fieldPath"], why));
    }
    if !of_field.is_empty() && field_path(of_field, schema).is_err() {
        causes.push(Cause::invalid(
            place("fieldPath"),
            &entry["fieldPath"],
            "must be a valid path",
        ));
    }
}
