//! The validation of CustomResourceDefinitions: names, versions, schemas, rules.
//!
//! The checks and their texts are those of `apiextensions/validation`. There, data that all versions share is moved
//! above the versions, so paths of causes refer to that form: `spec.validation` for the schema of all versions, also
//! if there is one version only. Conversion webhooks and the estimated cost of rules are not checked.

mod defaults;
mod openapi;
mod structural;
mod version;

use serde_json::{Map, Value, json};

use super::names::{dns_1035_label, dns_1123_subdomain};
use super::schema::{flag, list, text, texts};
use crate::cause::Cause;
use crate::value;

/// Returns what is wrong with a definition; `old` is the definition that it replaces.
pub(super) fn check(definition: &Value, old: Option<&Value>) -> Vec<Cause> {
    let none = Map::new();
    let spec = definition["spec"].as_object().unwrap_or(&none);
    let mut causes = Vec::new();
    if old.is_none() {
        check_name(definition, spec, &mut causes);
    }
    check_spec(spec, &mut causes);
    if let Some(old) = old {
        check_unchanged(spec, old, &mut causes);
    }
    check_names(
        &definition["status"]["acceptedNames"],
        "status.acceptedNames",
        &mut causes,
    );
    check_stored(definition, &mut causes);
    causes.extend(check_approval(definition, old));
    if spec.get("preserveUnknownFields") == Some(&json!(true)) {
        let why = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema \
                   instead";
        causes.push(Cause::invalid("spec.preserveUnknownFields", &json!(true), why));
    }
    causes
}

fn check_name(definition: &Value, spec: &Map<String, Value>, causes: &mut Vec<Cause>) {
    let name = &definition["metadata"]["name"];
    let Some(found) = name.as_str().filter(|name| !name.is_empty()) else {
        return;
    };
    if let Err(why) = dns_1123_subdomain(found) {
        causes.push(Cause::invalid("metadata.name", name, why.to_string()));
    }
    let plural = spec.get("names").and_then(|names| names["plural"].as_str());
    let wanted = format!("{}.{}", plural.unwrap_or_default(), text(spec, "group"));
    if found != wanted {
        let why = "must be spec.names.plural+\".\"+spec.group";
        causes.push(Cause::invalid("metadata.name", name, why));
    }
}

/// The data that all versions share, which causes show above the versions.
struct Shared<'a> {
    schema: Option<&'a Value>,
    subresources: Option<&'a Value>,
    columns: Option<&'a Value>,
    selectable: Option<&'a Value>,
}

impl<'a> Shared<'a> {
    fn of(versions: &'a [Value]) -> Self {
        let same = |name: &str| {
            let first = &versions.first()?[name];
            (!first.is_null() && versions.iter().all(|version| version[name] == *first)).then_some(first)
        };
        Self {
            schema: same("schema"),
            subresources: same("subresources"),
            columns: same("additionalPrinterColumns"),
            selectable: same("selectableFields"),
        }
    }
}

fn check_spec(spec: &Map<String, Value>, causes: &mut Vec<Cause>) {
    let group = text(spec, "group");
    if group.is_empty() {
        causes.push(Cause::required("spec.group", ""));
    } else if let Err(why) = dns_1123_subdomain(&group) {
        causes.push(Cause::invalid("spec.group", &json!(group), why.to_string()));
    } else if !group.contains('.') {
        let why = "should be a domain with at least one dot";
        causes.push(Cause::invalid("spec.group", &json!(group), why));
    }
    check_choice(spec, "scope", &["Cluster", "Namespaced"], "spec", causes);
    let versions = list(spec, "versions");
    let shared = Shared::of(versions);
    check_versions(versions, &shared, causes);
    if let Some(first) = versions.first()
        && let Err(why) = dns_1035_label(first["name"].as_str().unwrap_or_default())
        && first["name"] != ""
    {
        causes.push(Cause::invalid("spec.version", &first["name"], why.to_string()));
    }
    let none = json!({});
    let names = spec.get("names").unwrap_or(&none);
    for name in ["plural", "singular", "kind", "listKind"] {
        if names[name].as_str().unwrap_or_default().is_empty() {
            causes.push(Cause::required(format!("spec.names.{name}"), ""));
        }
    }
    check_names(names, "spec.names", causes);
    let has_status = versions
        .iter()
        .any(|version| version["subresources"]["status"].is_object());
    if let Some(schema) = shared.schema {
        openapi::check(&schema["openAPIV3Schema"], has_status, "spec.validation", causes);
    }
    if let Some(subresources) = shared.subresources {
        version::check_subresources(subresources, "spec.subresources", causes);
    }
    if let Some(columns) = shared.columns {
        version::check_columns(columns, "spec.additionalPrinterColumns", causes);
    }
    if let Some(selectable) = shared.selectable {
        let schema = shared.schema.map(|schema| &schema["openAPIV3Schema"]);
        version::check_selectable(selectable, schema, "spec.selectableFields", causes);
    }
    check_conversion(spec, causes);
}

fn check_versions(versions: &[Value], shared: &Shared<'_>, causes: &mut Vec<Cause>) {
    for (place, version) in versions.iter().enumerate() {
        if !version["schema"]["openAPIV3Schema"].is_object() {
            let place = format!("spec.versions[{place}].schema.openAPIV3Schema");
            causes.push(Cause::required(place, ""));
        }
    }
    for (place, found) in versions.iter().enumerate() {
        let path = format!("spec.versions[{place}]");
        let name = found["name"].as_str().unwrap_or_default();
        if let Err(why) = dns_1035_label(name) {
            causes.push(Cause::invalid(
                format!("{path}.name"),
                &json!(name),
                why.to_string(),
            ));
        }
        version::check_deprecation(found, &path, causes);
        let has_status = found["subresources"]["status"].is_object();
        if shared.schema.is_none() {
            let schema = &found["schema"]["openAPIV3Schema"];
            openapi::check(schema, has_status, &format!("{path}.schema"), causes);
        }
        if shared.subresources.is_none() {
            version::check_subresources(&found["subresources"], &format!("{path}.subresources"), causes);
        }
        if shared.columns.is_none() {
            let columns = &found["additionalPrinterColumns"];
            version::check_columns(columns, &format!("{path}.additionalPrinterColumns"), causes);
        }
        if shared.selectable.is_none() {
            let schema = &found["schema"]["openAPIV3Schema"];
            let schema = Some(schema).filter(|schema| schema.is_object());
            let selectable = &found["selectableFields"];
            version::check_selectable(selectable, schema, &format!("{path}.selectableFields"), causes);
        }
    }
    let names: Vec<_> = versions.iter().map(|version| &version["name"]).collect();
    let unique = names
        .iter()
        .enumerate()
        .all(|(place, name)| !names[..place].contains(name));
    if !unique {
        causes.push(Cause::invalid_shown(
            "spec.versions",
            &version::shown(versions, shared),
            "must contain unique version names",
        ));
    }
    let storage = versions
        .iter()
        .filter(|version| version["storage"] == true)
        .count();
    if storage != 1 {
        causes.push(Cause::invalid_shown(
            "spec.versions",
            &version::shown(versions, shared),
            "must have exactly one version marked as storage version",
        ));
    }
}

/// Checks a string that must be one of a few.
fn check_choice(
    object: &Map<String, Value>,
    name: &str,
    accepted: &[&str],
    path: &str,
    causes: &mut Vec<Cause>,
) {
    let found = text(object, name);
    let path = format!("{path}.{name}");
    if found.is_empty() {
        causes.push(Cause::required(path, ""));
    } else if !accepted.contains(&found.as_str()) {
        causes.push(Cause::not_supported(path, &json!(found), accepted));
    }
}

fn check_names(names: &Value, path: &str, causes: &mut Vec<Cause>) {
    let none = Map::new();
    let names = names.as_object().unwrap_or(&none);
    for name in ["plural", "singular", "kind", "listKind"] {
        let found = text(names, name);
        let of_kind = name.ends_with("ind");
        let label = if of_kind {
            found.to_lowercase()
        } else {
            found.clone()
        };
        if let Err(why) = dns_1035_label(&label)
            && !found.is_empty()
        {
            let why = if of_kind {
                format!("may have mixed case, but should otherwise match: {why}")
            } else {
                why.to_string()
            };
            causes.push(Cause::invalid(format!("{path}.{name}"), &json!(found), &why));
        }
    }
    let kind = text(names, "kind");
    if !kind.is_empty() && kind == text(names, "listKind") {
        let why = "kind and listKind may not be the same";
        causes.push(Cause::invalid(format!("{path}.listKind"), &json!(kind), why));
    }
    for name in ["shortNames", "categories"] {
        for (place, found) in texts(names, name).iter().enumerate() {
            if let Err(why) = dns_1035_label(found) {
                let path = format!("{path}.{name}[{place}]");
                causes.push(Cause::invalid(path, &json!(found), why.to_string()));
            }
        }
    }
}

fn check_conversion(spec: &Map<String, Value>, causes: &mut Vec<Cause>) {
    let Some(conversion) = spec.get("conversion").and_then(Value::as_object) else {
        return;
    };
    check_choice(
        conversion,
        "strategy",
        &["None", "Webhook"],
        "spec.conversion",
        causes,
    );
    let webhook = conversion.get("webhook").filter(|webhook| !webhook.is_null());
    let is_webhook = text(conversion, "strategy") == "Webhook";
    let config = webhook.map(|webhook| &webhook["clientConfig"]);
    let versions = webhook.and_then(|webhook| webhook["conversionReviewVersions"].as_array());
    if is_webhook && config.is_none_or(Value::is_null) {
        let why = "required when strategy is set to Webhook";
        causes.push(Cause::required("spec.conversion.webhookClientConfig", why));
    }
    if is_webhook && versions.is_none_or(Vec::is_empty) {
        causes.push(Cause::required("spec.conversion.conversionReviewVersions", ""));
    }
    let why = "should not be set when strategy is not set to Webhook";
    if !is_webhook && config.is_some_and(|config| !config.is_null()) {
        causes.push(Cause::forbidden("spec.conversion.webhookClientConfig", why));
    }
    if !is_webhook && versions.is_some_and(|versions| !versions.is_empty()) {
        causes.push(Cause::forbidden("spec.conversion.conversionReviewVersions", why));
    }
}

/// Checks that the fields are unchanged by which objects are stored.
fn check_unchanged(spec: &Map<String, Value>, old: &Value, causes: &mut Vec<Cause>) {
    let conditions = old["status"]["conditions"].as_array();
    let established = conditions
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == "Established" && condition["status"] == "True");
    let spec = Value::Object(spec.clone());
    let of_kind = ["/scope", "/names/kind"].iter().filter(|_| established);
    for pointer in of_kind.chain(&["/group", "/names/plural"]) {
        let found = spec.pointer(pointer).unwrap_or(&Value::Null);
        if old["spec"].pointer(pointer) != Some(found) {
            let path = format!("spec{}", pointer.replace('/', "."));
            causes.push(Cause::invalid(path, found, "field is immutable"));
        }
    }
}

fn check_stored(definition: &Value, causes: &mut Vec<Cause>) {
    let path = "status.storedVersions";
    let stored = &definition["status"]["storedVersions"];
    let Some(names) = stored.as_array().filter(|stored| !stored.is_empty()) else {
        let shown = if stored.is_null() { "null" } else { "[]" };
        causes.push(Cause::invalid_shown(
            path,
            shown,
            "must have at least one stored version",
        ));
        return;
    };
    let versions = definition["spec"]["versions"].as_array();
    let versions: Vec<&Value> = versions.into_iter().flatten().collect();
    for version in &versions {
        if version["storage"] == true && !names.contains(&version["name"]) {
            let why = format!("must have the storage version {}", value::plain(&version["name"]));
            causes.push(Cause::invalid(path, stored, &why));
        }
    }
    for (place, name) in names.iter().enumerate() {
        if !versions.iter().any(|version| version["name"] == *name) {
            let text = value::plain(name);
            let why = format!(
                "missing from spec.versions; {text} was previously a storage version, and must remain in spec.versions \
                 until a storage migration ensures no data remains persisted in {text} and removes {text} from \
                 status.storedVersions"
            );
            causes.push(Cause::invalid(format!("{path}[{place}]"), name, &why));
        }
    }
}

/// Groups of Kubernetes require the API approval annotation.
fn check_approval(definition: &Value, old: Option<&Value>) -> Option<Cause> {
    const ANNOTATION: &str = "api-approved.kubernetes.io";
    let group = definition["spec"]["group"].as_str().unwrap_or_default();
    let is_protected = ["k8s.io", "kubernetes.io"].iter().any(|owner| {
        group
            .strip_suffix(owner)
            .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    });
    let approval = |definition: &Value| definition["metadata"]["annotations"][ANNOTATION].clone();
    let found = approval(definition);
    if !is_protected || old.is_some_and(|old| approval(old) == found) {
        return None;
    }
    let place = format!("metadata.annotations[{ANNOTATION}]");
    let found = found.as_str().unwrap_or_default();
    if found.is_empty() {
        let why = "protected groups must have approval annotation \"api-approved.kubernetes.io\", see \
                   https://github.com/kubernetes/enhancements/pull/1111";
        return Some(Cause::required(place, why));
    }
    let host = found
        .split_once("://")
        .map(|(_, rest)| rest.split('/').next().unwrap_or_default());
    if found.starts_with("unapproved") || host.is_some_and(|host| !host.is_empty()) {
        return None;
    }
    let why = "protected groups must have approval annotation \"api-approved.kubernetes.io\" with either a URL or a \
               reason starting with \"unapproved\", see https://github.com/kubernetes/enhancements/pull/1111";
    Some(Cause::invalid(place, &json!(found), why))
}

/// Returns whether a member of a schema is set and not empty.
fn is_set(schema: &Map<String, Value>, name: &str) -> bool {
    match schema.get(name) {
        None | Some(Value::Null | Value::Bool(false)) => false,
        Some(Value::String(text)) => !text.is_empty(),
        Some(Value::Array(list)) => !list.is_empty(),
        Some(Value::Object(map)) => {
            !map.is_empty() || matches!(name, "not" | "items" | "additionalProperties" | "additionalItems")
        }
        Some(Value::Number(_) | Value::Bool(true)) => true,
    }
}

/// Returns the schemas of a list, such as those of `allOf`.
fn schemas<'a>(
    schema: &'a Map<String, Value>,
    name: &str,
) -> impl Iterator<Item = (usize, &'a Map<String, Value>)> {
    list(schema, name)
        .iter()
        .enumerate()
        .filter_map(|(place, schema)| Some((place, schema.as_object()?)))
}

/// Returns the schemas of a map, such as `properties`.
fn members<'a>(
    schema: &'a Map<String, Value>,
    name: &str,
) -> impl Iterator<Item = (&'a str, &'a Map<String, Value>)> {
    let map = schema.get(name).and_then(Value::as_object);
    map.into_iter()
        .flatten()
        .filter_map(|(name, schema)| Some((name.as_str(), schema.as_object()?)))
}

/// Returns a schema that is a member of another.
fn member<'a>(schema: &'a Map<String, Value>, name: &str) -> Option<&'a Map<String, Value>> {
    schema.get(name).and_then(Value::as_object)
}

/// Returns whether a schema is `x-kubernetes-int-or-string`.
fn is_x_int_or_string(schema: &Map<String, Value>) -> bool {
    flag(schema, "x-kubernetes-int-or-string")
}
