//! The check that the defaults in a schema match the schema.

use serde_json::Value;

use crate::cause::Cause;
use crate::crd::rules::{Change, Rules};
use crate::crd::schema::Schema;
use crate::crd::{embedded, prune, validate};

/// Returns what is wrong with the defaults of a schema. The API server also validates defaulted metadata as part of
/// an object; this check does not, since definitions can hardly have such defaults.
pub(super) fn check(schema: &Schema, path: &str, causes: &mut Vec<Cause>) {
    if let Some(default) = &schema.default {
        causes.extend(check_default(default, schema, &format!("{path}.default")));
    }
    if let Some(items) = &schema.items {
        check(items, &format!("{path}.items"), causes);
    }
    for (name, property) in &schema.properties {
        check(property, &format!("{path}.properties[{name}]"), causes);
    }
}

fn check_default(default: &Value, schema: &Schema, path: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    let mut pruned = default.clone();
    prune::prune_value(&mut pruned, schema);
    if pruned != *default {
        causes.push(Cause::invalid(path, default, "must not have unknown fields"));
    }
    let at = |mut cause: Cause| {
        let below = cause.field.trim_start_matches("<nil>").to_owned();
        cause.field = match below.as_str() {
            "" => path.to_owned(),
            below if below.starts_with('[') => format!("{path}{below}"),
            below => format!("{path}.{below}"),
        };
        cause
    };
    if let Err(cause) = embedded::coerce(&mut pruned, schema) {
        causes.push(at(cause));
        return causes;
    }
    let of_embedded = embedded::check(default, schema);
    if !of_embedded.is_empty() {
        causes.extend(of_embedded.into_iter().map(at));
        return causes;
    }
    let invalid = validate::validate(default, schema, None, path);
    if !invalid.is_empty() {
        causes.extend(invalid);
        return causes;
    }
    // The rules must accept the default both as an unchanged value and as a new one.
    let Some(rules) = Rules::compile(schema) else {
        return causes;
    };
    let mut broken = rules.check(schema, default, Some(default), Change::of(None), path);
    if broken.causes.is_empty() {
        broken = rules.check(schema, default, None, Change::of(None), path);
    }
    causes.extend(broken.causes);
    causes
}
