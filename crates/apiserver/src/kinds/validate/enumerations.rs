//! The fields whose values Kubernetes enumerates.
//!
//! `enumerations.json` lists them by Go type; `tests/oracle/apply/codec/enumerations.py` takes them from the OpenAPI
//! definitions.

use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;

use serde_json::Value;

use crate::kinds::codec::{GoType, Place};
use crate::status::Cause;

type Enumerated = BTreeMap<String, Vec<String>>;

static TABLE: LazyLock<HashMap<String, Enumerated>> = LazyLock::new(|| {
    // The file is part of the program and a test reads it; a table that cannot be read allows every value.
    serde_json::from_str(include_str!("../enumerations.json")).unwrap_or_default()
});

/// Returns a cause for each value that is none of those that its field allows. The status is not checked.
pub(crate) fn check(ty: GoType, object: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    ty.each_struct_at(object, &Place::Root, &mut |name, fields, place| {
        let Some(enumerated) = TABLE.get(name) else {
            return;
        };
        for (field, allowed) in enumerated {
            let place = Place::Field(place, field);
            match fields.get(field) {
                Some(Value::Array(items)) => {
                    for (index, item) in items.iter().enumerate() {
                        check_value(item, allowed, &Place::Index(&place, index), &mut causes);
                    }
                }
                Some(value) => check_value(value, allowed, &place, &mut causes),
                None => {}
            }
        }
    });
    causes
}

fn check_value(value: &Value, allowed: &[String], place: &Place<'_>, causes: &mut Vec<Cause>) {
    let Some(text) = value.as_str().filter(|text| !text.is_empty()) else {
        return;
    };
    if !allowed.iter().any(|one| one == text) {
        let allowed: Vec<&str> = allowed.iter().map(String::as_str).collect();
        causes.push(Cause::not_supported_text(place.to_string(), text, &allowed));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::codec::go_type;

    #[test]
    fn values_that_are_not_enumerated_are_found_where_they_are() {
        let pod = json!({
            "spec": {"dnsPolicy": "Sometimes", "restartPolicy": "", "tolerations": [
                {"operator": "Exists"}, {"operator": "Gt"}], "containers": [
                {"name": "a", "ports": [{"protocol": "TCP"}, {"protocol": "QUIC"}]}]},
            "status": {"phase": "Dreaming"},
        });
        let causes = check(go_type("v1", "Pod").unwrap(), &pod);
        let fields: Vec<&str> = causes.iter().map(|cause| &*cause.field).collect();
        assert_eq!(
            fields,
            [
                "spec.dnsPolicy",
                "spec.containers[0].ports[1].protocol",
                "spec.tolerations[1].operator"
            ]
        );
        assert_eq!(
            causes[1].message,
            "Unsupported value: \"QUIC\": supported values: \"SCTP\", \"TCP\", \"UDP\""
        );
    }
}
