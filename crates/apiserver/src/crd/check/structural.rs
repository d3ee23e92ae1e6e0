//! The check that a schema is structural: every constrained field has a type, and the schemas within `allOf` and the
//! like have none (KEP-1693).

use serde_json::{Map, Value, json};

use super::{is_set, is_x_int_or_string, member, members, schemas};
use crate::cause::Cause;
use crate::crd::pattern;
use crate::crd::schema::{flag, list, text};

type Node = Map<String, Value>;

/// The position of a node in the schema.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Item,
    Field,
}

/// Returns the violations, sorted.
pub(super) fn check(schema: &Node, path: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    check_node(schema, Level::Root, path, &mut causes);
    check_complete(schema, Some(schema), path, path, &mut causes);
    causes.sort_by_cached_key(Cause::to_string);
    causes
}

fn check_node(schema: &Node, level: Level, path: &str, causes: &mut Vec<Cause>) {
    let ty = text(schema, "type");
    let place = |name: &str| format!("{path}.{name}");
    match member(schema, "items") {
        Some(items) => check_node(items, Level::Item, &place("items"), causes),
        None if ty == "array" => causes.push(Cause::required(place("items"), "must be specified")),
        None => {}
    }
    for (name, property) in members(schema, "properties") {
        check_node(
            property,
            Level::Field,
            &format!("{path}.properties[{name}]"),
            causes,
        );
    }
    if is_set(schema, "additionalProperties") || schema.get("additionalProperties") == Some(&json!(false)) {
        if level == Level::Root {
            causes.push(Cause::forbidden(
                place("additionalProperties"),
                "must not be used at the root",
            ));
        }
        if let Some(below) = member(schema, "additionalProperties") {
            check_node(below, Level::Field, &place("additionalProperties"), causes);
        }
    }
    check_extensions(schema, path, causes);
    check_junctors(schema, listed_types(schema), path, causes);
    check_type(schema, level, path, causes);
    check_meta(schema, level, path, causes);
}

fn check_type(schema: &Node, level: Level, path: &str, causes: &mut Vec<Cause>) {
    let ty = text(schema, "type");
    let embedded = flag(schema, "x-kubernetes-embedded-resource");
    let preserve = flag(schema, "x-kubernetes-preserve-unknown-fields");
    let place = format!("{path}.type");
    if embedded && ty != "object" {
        let why = "must be object if x-kubernetes-embedded-resource is true";
        causes.push(if ty.is_empty() {
            Cause::required(place.clone(), why)
        } else {
            Cause::invalid(place.clone(), &json!(ty), why)
        });
    } else if ty.is_empty() && !is_x_int_or_string(schema) && !preserve {
        let why = match level {
            Level::Root => "must not be empty at the root",
            Level::Item => "must not be empty for specified array items",
            Level::Field => "must not be empty for specified object fields",
        };
        causes.push(Cause::required(place.clone(), why));
    }
    if embedded && schema.contains_key("additionalProperties") {
        let why = "must not be used if x-kubernetes-embedded-resource is set";
        causes.push(Cause::forbidden(format!("{path}.additionalProperties"), why));
    }
    if level == Level::Root && !ty.is_empty() && ty != "object" {
        causes.push(Cause::invalid(place, &json!(ty), "must be object at the root"));
    }
    if embedded && !preserve && members(schema, "properties").next().is_none() {
        let why = "must not be empty if x-kubernetes-embedded-resource is true without \
                   x-kubernetes-preserve-unknown-fields";
        causes.push(Cause::required(format!("{path}.properties"), why));
    }
}

/// Checks that `apiVersion`, `kind` and `metadata` of a resource have their usual types.
fn check_meta(schema: &Node, level: Level, path: &str, causes: &mut Vec<Cause>) {
    let of_resource = level == Level::Root || flag(schema, "x-kubernetes-embedded-resource");
    let property = |wanted: &str| members(schema, "properties").find(|(name, _)| *name == wanted);
    for name in ["kind", "apiVersion"] {
        if let Some((_, found)) = property(name).filter(|_| of_resource) {
            let ty = text(found, "type");
            if ty != "string" {
                let place = format!("{path}.properties[{name}].type");
                causes.push(Cause::invalid(place, &json!(ty), "must be string"));
            }
        }
    }
    let Some((_, metadata)) = property("metadata") else {
        return;
    };
    let place = format!("{path}.properties[metadata]");
    let ty = text(metadata, "type");
    if of_resource && ty != "object" {
        causes.push(Cause::invalid(
            format!("{place}.type"),
            &json!(ty),
            "must be object",
        ));
    }
    if level == Level::Root {
        let only_names =
            members(metadata, "properties").all(|(name, _)| matches!(name, "name" | "generateName"));
        let others = metadata.keys().any(|name| {
            is_set(metadata, name) && !matches!(name.as_str(), "type" | "properties" | "default")
        });
        if others || !only_names {
            let why = "must not specify anything other than name and generateName, but metadata is implicitly specified";
            causes.push(Cause::forbidden(place, why));
        }
    }
}

fn check_extensions(schema: &Node, path: &str, causes: &mut Vec<Cause>) {
    for name in [
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-embedded-resource",
    ] {
        if is_x_int_or_string(schema) && flag(schema, name) {
            let why = "must be false if x-kubernetes-int-or-string is true";
            causes.push(Cause::invalid(format!("{path}.{name}"), &json!(true), why));
        }
    }
}

/// Returns whether a schema lists the two types of an int-or-string.
fn is_int_or_string(schema: &Node) -> bool {
    *list(schema, "anyOf") == [json!({"type": "integer"}), json!({"type": "string"})]
}

/// Which alternative may name types, because the alternatives only list those of an int-or-string.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ListedTypes {
    No,
    Here,
    FirstOfAll,
}

fn listed_types(schema: &Node) -> ListedTypes {
    if is_int_or_string(schema) {
        return ListedTypes::Here;
    }
    match schemas(schema, "allOf").next() {
        Some((0, first)) if is_int_or_string(first) => ListedTypes::FirstOfAll,
        _ => ListedTypes::No,
    }
}

fn check_junctors(schema: &Node, listed: ListedTypes, path: &str, causes: &mut Vec<Cause>) {
    if listed != ListedTypes::Here {
        for (place, part) in schemas(schema, "anyOf") {
            check_nested(
                part,
                ListedTypes::No,
                true,
                &format!("{path}.anyOf[{place}]"),
                causes,
            );
        }
    }
    for (place, part) in schemas(schema, "allOf") {
        let part_listed = if place == 0 && listed == ListedTypes::FirstOfAll {
            ListedTypes::Here
        } else {
            ListedTypes::No
        };
        check_nested(part, part_listed, true, &format!("{path}.allOf[{place}]"), causes);
    }
    for (place, part) in schemas(schema, "oneOf") {
        check_nested(
            part,
            ListedTypes::No,
            true,
            &format!("{path}.oneOf[{place}]"),
            causes,
        );
    }
    if let Some(not) = member(schema, "not") {
        check_nested(not, ListedTypes::No, true, &format!("{path}.not"), causes);
    }
    let expression = text(schema, "pattern");
    if let Some(problem) = pattern::compile(&expression)
        .err()
        .filter(|_| !expression.is_empty())
    {
        let why = format!("must be a valid regular expression, but isn't: {problem}");
        causes.push(Cause::invalid(
            format!("{path}.pattern"),
            &json!(expression),
            &why,
        ));
    }
}

/// The members that are forbidden within `allOf` and the like, with the text of the API server.
const FORBIDDEN: [(&str, &str); 13] = [
    ("type", "must be empty to be structural"),
    ("additionalProperties", "must be undefined to be structural"),
    ("default", "must be undefined to be structural"),
    ("title", "must be empty to be structural"),
    ("description", "must be empty to be structural"),
    ("nullable", "must be false to be structural"),
    (
        "x-kubernetes-preserve-unknown-fields",
        "must be false to be structural",
    ),
    ("x-kubernetes-embedded-resource", "must be false to be structural"),
    ("x-kubernetes-int-or-string", "must be false to be structural"),
    ("x-kubernetes-list-map-keys", "must be empty to be structural"),
    ("x-kubernetes-list-type", "must be undefined to be structural"),
    ("x-kubernetes-map-type", "must be undefined to be structural"),
    ("x-kubernetes-validations", "must be empty to be structural"),
];

fn check_nested(
    schema: &Node,
    listed: ListedTypes,
    metadata_forbidden: bool,
    path: &str,
    causes: &mut Vec<Cause>,
) {
    check_junctors(schema, listed, path, causes);
    if let Some(items) = member(schema, "items") {
        let path = format!("{path}.items");
        check_nested(items, ListedTypes::No, metadata_forbidden, &path, causes);
    }
    for (name, property) in members(schema, "properties") {
        let path = format!("{path}.properties[{name}]");
        check_nested(property, ListedTypes::No, metadata_forbidden, &path, causes);
    }
    for (name, why) in FORBIDDEN {
        if is_set(schema, name) {
            causes.push(Cause::forbidden(format!("{path}.{name}"), why));
        }
    }
    if metadata_forbidden && members(schema, "properties").any(|(name, _)| name == "metadata") {
        let place = format!("{path}.properties[metadata]");
        causes.push(Cause::forbidden(
            place,
            "must not be specified in a nested context",
        ));
    }
}

/// Checks that every field that `values` constrains has a type in `schema`.
fn check_complete(
    values: &Node,
    schema: Option<&Node>,
    schema_path: &str,
    path: &str,
    causes: &mut Vec<Cause>,
) {
    let mut parts: Vec<(String, &Node)> = Vec::new();
    parts.extend(member(values, "not").map(|not| ("not".to_owned(), not)));
    for name in ["allOf", "anyOf", "oneOf"] {
        parts.extend(schemas(values, name).map(|(place, part)| (format!("{name}[{place}]"), part)));
    }
    for (name, part) in parts {
        check_nested_complete(part, schema, schema_path, &format!("{path}.{name}"), causes);
    }
}

fn check_nested_complete(
    values: &Node,
    schema: Option<&Node>,
    schema_path: &str,
    path: &str,
    causes: &mut Vec<Cause>,
) {
    let Some(schema) = schema else {
        let why = format!("because it is defined in {path}");
        causes.push(Cause::required(schema_path, &why));
        return;
    };
    check_complete(values, Some(schema), schema_path, path, causes);
    if let Some(items) = member(values, "items") {
        let paths = (format!("{schema_path}.items"), format!("{path}.items"));
        check_nested_complete(items, member(schema, "items"), &paths.0, &paths.1, causes);
    }
    for (name, property) in members(values, "properties") {
        let below = members(schema, "properties").find(|(known, _)| *known == name);
        let paths = (
            format!("{schema_path}.properties[{name}]"),
            format!("{path}.properties[{name}]"),
        );
        check_nested_complete(
            property,
            below.map(|(_, schema)| schema),
            &paths.0,
            &paths.1,
            causes,
        );
    }
}
