//! Invalid definitions: the real server and this crate must report the same causes.

use serde_json::{Value, json};
use starling_apiserver::crd::{self, Definition};

use crate::causes::{Outcome, compare, of_causes, of_status};
use crate::crd::definition;
use crate::real::Real;

const PATH: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Changes an object at JSON pointers; null removes.
fn changed(mut object: Value, changes: &Value) -> Value {
    for (pointer, value) in changes.as_object().unwrap() {
        let mut place = &mut object;
        let mut steps: Vec<String> = pointer[1..]
            .split('/')
            .map(|step| step.replace("~1", "/"))
            .collect();
        let last = steps.pop().unwrap();
        for step in steps {
            place = match step.parse::<usize>() {
                Ok(index) => &mut place[index],
                Err(_) => &mut place[step.as_str()],
            };
        }
        match place {
            Value::Array(items) => items.push(value.clone()),
            Value::Object(fields) if value.is_null() => {
                fields.remove(&last);
            }
            place => place[last.as_str()] = value.clone(),
        }
    }
    object
}

fn ours(definition: &Value, old: Option<&Value>) -> Outcome {
    let mut definition = definition.clone();
    crd::apply_defaults(&mut definition);
    crd::prepare(&mut definition, old);
    let answer = match old {
        None => Definition::from_object(&definition),
        Some(old) => Definition::updated(&definition, old),
    };
    match answer {
        Ok(_) => Outcome::Accepted,
        Err(causes) => of_causes(&causes),
    }
}

/// Changes of any part of a definition.
fn of_definitions() -> Vec<Value> {
    let second = json!({"name": "v2", "served": true, "storage": false,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"x": {"type": "string"}}}}});
    let same = json!({"name": "v2", "served": true, "storage": false, "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object"}}}}});
    let column = |column: Value| json!({"/spec/versions/0/additionalPrinterColumns": [column]});
    let scale = |scale: Value| json!({"/spec/versions/0/subresources/scale": scale});
    let selectable = |fields: Value| {
        json!({"/spec/versions/0/selectableFields": fields, "/spec/versions/0/schema/openAPIV3Schema/properties/spec":
            {"type": "object", "properties": {"a": {"type": "string"}, "o": {"type": "object"},
                "m": {"type": "object", "additionalProperties": {"type": "string"}}}}})
    };
    vec![
        json!({}),
        json!({"/metadata/name": "other.test.dev"}),
        json!({"/metadata/name": "Other"}),
        json!({"/spec/group": "nodots", "/metadata/name": "things.nodots"}),
        json!({"/spec/group": "Upper.dev", "/metadata/name": "things.upper.dev"}),
        json!({"/spec/group": ""}),
        json!({"/spec/scope": ""}),
        json!({"/spec/scope": "Everywhere"}),
        json!({"/spec/names/plural": "Things"}),
        json!({"/spec/names/plural": ""}),
        json!({"/spec/names/kind": ""}),
        json!({"/spec/names/kind": "My Thing"}),
        json!({"/spec/names/singular": "a_b"}),
        json!({"/spec/names/listKind": "Thing"}),
        json!({"/spec/names/listKind": null, "/spec/names/singular": null}),
        json!({"/spec/names/shortNames": ["ok", "Not"], "/spec/names/categories": ["all", "1st"]}),
        json!({"/spec/versions": []}),
        json!({"/spec/versions/0/name": "V1"}),
        json!({"/spec/versions/0/storage": false}),
        json!({"/spec/versions/1": same}),
        json!({"/spec/versions/1": second}),
        json!({"/spec/versions/1": second, "/spec/versions/2": second}),
        json!({"/spec/versions/1": second, "/spec/versions/0/storage": false}),
        json!({"/spec/versions/0/schema": null}),
        json!({"/spec/versions/0/schema": {}}),
        json!({"/spec/versions/0/deprecated": true, "/spec/versions/0/deprecationWarning": "old"}),
        json!({"/spec/versions/0/deprecationWarning": "old"}),
        json!({"/spec/versions/0/deprecated": true, "/spec/versions/0/deprecationWarning": ""}),
        json!({"/spec/preserveUnknownFields": true}),
        json!({"/spec/conversion": {"strategy": "Magic"}}),
        json!({"/spec/conversion": {"strategy": "Webhook"}}),
        json!({"/spec/group": "k8s.io", "/metadata/name": "things.k8s.io"}),
        json!({"/spec/group": "x.k8s.io", "/metadata/name": "things.x.k8s.io",
            "/metadata/annotations": {"api-approved.kubernetes.io": "unapproved, a test"}}),
        json!({"/spec/group": "x.k8s.io", "/metadata/name": "things.x.k8s.io",
            "/metadata/annotations": {"api-approved.kubernetes.io": "somehow"}}),
        column(json!({"name": "A", "type": "string", "jsonPath": ".spec.a"})),
        column(json!({"name": "", "type": "text", "jsonPath": "spec.a", "format": "x"})),
        column(json!({"name": "A", "type": "", "jsonPath": ""})),
        scale(json!({"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"})),
        scale(
            json!({"specReplicasPath": "spec.replicas", "statusReplicasPath": ".spec.replicas",
            "labelSelectorPath": ".metadata.x"}),
        ),
        scale(json!({"specReplicasPath": "", "statusReplicasPath": ""})),
        selectable(json!([{"jsonPath": ".spec.a"}])),
        selectable(
            json!([{"jsonPath": ".spec.a"}, {"jsonPath": ".spec.a"}, {"jsonPath": ".spec.o"},
            {"jsonPath": ".spec.none"}, {"jsonPath": ".spec['a']"}, {"jsonPath": ""}]),
        ),
    ]
}

/// Schemas of the field `spec`.
fn of_fields() -> Vec<Value> {
    let of = |a: Value| json!({"type": "object", "properties": {"a": a}});
    let keyed = |item: Value, keys: Value| {
        of(
            json!({"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys, "items": item}),
        )
    };
    vec![
        json!({}),
        json!({"type": "text"}),
        json!({"type": "null"}),
        of(json!({"type": "array"})),
        of(json!({"type": "array", "items": [{"type": "string"}]})),
        of(json!({"type": "array", "items": {}})),
        of(json!({"type": "string", "uniqueItems": true})),
        of(json!({"type": "string", "pattern": "a("})),
        of(json!({"$ref": "#/x"})),
        of(json!({"type": "object", "patternProperties": {"x": {"type": "string"}}})),
        of(json!({"type": "object", "definitions": {"x": {"type": "string"}}})),
        of(json!({"type": "object", "dependencies": {"x": ["y"]}})),
        of(json!({"id": "x", "type": "string"})),
        of(
            json!({"type": "object", "properties": {"x": {"type": "string"}}, "additionalProperties": {"type": "string"}}),
        ),
        of(json!({"type": "object", "properties": {"x": {"type": "string"}}, "additionalProperties": false})),
        of(json!({"type": "object", "additionalProperties": true})),
        of(json!({"x-kubernetes-preserve-unknown-fields": true})),
        of(json!({"type": "object", "x-kubernetes-preserve-unknown-fields": false})),
        of(json!({"x-kubernetes-int-or-string": true})),
        of(json!({"x-kubernetes-int-or-string": true, "x-kubernetes-preserve-unknown-fields": true})),
        of(json!({"x-kubernetes-int-or-string": true, "anyOf": [{"type": "integer"}, {"type": "string"}]})),
        of(json!({"anyOf": [{"type": "integer"}, {"type": "string"}], "type": "string"})),
        of(
            json!({"x-kubernetes-int-or-string": true, "allOf": [{"anyOf": [{"type": "integer"}, {"type": "string"}]},
            {"minimum": 1}]}),
        ),
        of(json!({"x-kubernetes-embedded-resource": true})),
        of(json!({"type": "object", "x-kubernetes-embedded-resource": true})),
        of(
            json!({"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true}),
        ),
        of(
            json!({"type": "object", "x-kubernetes-embedded-resource": true, "properties": {"kind": {"type": "integer"},
            "metadata": {"type": "string"}}}),
        ),
        of(json!({"type": "string", "x-kubernetes-map-type": "atomic"})),
        of(json!({"type": "object", "x-kubernetes-map-type": "loose"})),
        of(json!({"type": "string", "x-kubernetes-list-type": "set"})),
        of(json!({"type": "array", "x-kubernetes-list-type": "bag", "items": {"type": "string"}})),
        of(json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "object"}})),
        of(
            json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "array",
            "x-kubernetes-list-type": "set", "items": {"type": "string"}}}),
        ),
        of(
            json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string", "nullable": true}}),
        ),
        of(json!({"type": "array", "x-kubernetes-list-map-keys": ["k"], "items": {"type": "object"}})),
        of(
            json!({"type": "array", "x-kubernetes-list-type": "set", "x-kubernetes-list-map-keys": ["k"],
            "items": {"type": "string"}}),
        ),
        keyed(
            json!({"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}}}),
            json!(["k"]),
        ),
        keyed(
            json!({"type": "object", "properties": {"k": {"type": "string"}}}),
            json!(["k"]),
        ),
        keyed(
            json!({"type": "object", "properties": {"k": {"type": "string", "default": "x"}}}),
            json!(["k"]),
        ),
        keyed(
            json!({"type": "object", "properties": {"k": {"type": "string", "default": "x", "nullable": true}},
            "nullable": true}),
            json!(["k"]),
        ),
        keyed(
            json!({"type": "object", "required": ["k"], "properties": {"k": {"type": "object"}}}),
            json!(["k", "k", "l"]),
        ),
        keyed(json!({"type": "string"}), json!(["k"])),
        keyed(json!({"type": "object"}), json!([])),
        of(json!({"type": "string", "allOf": [{"type": "string"}]})),
        of(
            json!({"type": "string", "oneOf": [{"description": "x", "title": "y", "default": "z", "nullable": true}]}),
        ),
        of(json!({"type": "object", "anyOf": [{"required": ["x"]}, {"properties": {"x": {"minimum": 1}}}]})),
        of(json!({"type": "object", "not": {"properties": {"metadata": {}}, "additionalProperties": {}}})),
        of(json!({"type": "array", "items": {"type": "string"}, "allOf": [{"items": {"pattern": "x"}}]})),
        of(json!({"type": "string", "allOf": [{"items": {"pattern": "x"}}]})),
        of(
            json!({"type": "string", "allOf": [{"x-kubernetes-list-type": "set", "x-kubernetes-validations":
            [{"rule": "true"}], "x-kubernetes-map-type": "atomic", "x-kubernetes-int-or-string": true}]}),
        ),
        of(json!({"type": "integer", "default": 1, "maximum": 3})),
        of(json!({"type": "integer", "default": 5, "maximum": 3})),
        of(json!({"type": "integer", "default": "x"})),
        of(json!({"type": "object", "default": {"x": 1, "y": 2}, "properties": {"x": {"type": "integer"}}})),
        of(
            json!({"type": "object", "default": {}, "required": ["x"], "properties": {"x": {"type": "integer"}}}),
        ),
        of(json!({"type": "string", "default": "b", "x-kubernetes-validations": [{"rule": "self == 'a'"}]})),
        of(json!({"type": "array", "items": {"type": "string", "default": 5}})),
    ]
}

/// Rules of the field `spec`.
fn of_rules() -> Vec<Value> {
    let schema = |rules: Value| {
        json!({"type": "object", "x-kubernetes-validations": rules, "properties": {
            "n": {"type": "integer"}, "s": {"type": "string", "maxLength": 10},
            "m": {"type": "object", "maxProperties": 5, "additionalProperties": {"type": "string", "maxLength": 9}},
            "l": {"type": "array", "maxItems": 5, "items": {"type": "string", "maxLength": 9}}}})
    };
    let rule = |rule: &str| schema(json!([{"rule": rule}]));
    vec![
        rule("self.n > 0"),
        rule(""),
        rule("self.n"),
        rule("self.none > 0"),
        rule("none > 0"),
        rule("self.n > 'a'"),
        rule("self.s == 1"),
        rule("self.s.lower() == 'a'"),
        rule("self.l.all(x, x.startsWith('a')) && self.m.exists(k, self.m[k] == 'x')"),
        rule("self.n >"),
        rule("has(self.s) ? self.s.size() > 1 : true"),
        rule("oldSelf.n <= self.n"),
        rule("self.n >\n0"),
        schema(json!([{"rule": "true", "message": " "}])),
        schema(json!([{"rule": "true", "message": "a\nb"}])),
        schema(json!([{"rule": "true", "messageExpression": " "}])),
        schema(json!([{"rule": "true", "messageExpression": "self.n"}])),
        schema(json!([{"rule": "true", "messageExpression": "self.none"}])),
        schema(json!([{"rule": "true", "messageExpression": "'n is not' + ' right'"}])),
        schema(json!([{"rule": "true", "reason": "Because"}])),
        schema(json!([{"rule": "true", "reason": "FieldValueForbidden", "fieldPath": ".n"}])),
        schema(json!([{"rule": "true", "fieldPath": ".none"}])),
        schema(json!([{"rule": "true", "fieldPath": ".m['x']"}])),
        schema(json!([{"rule": "true", "fieldPath": "n"}])),
        schema(json!([{"rule": "true", "optionalOldSelf": true}])),
        schema(
            json!([{"rule": "!oldSelf.hasValue() || oldSelf.value().n <= self.n", "optionalOldSelf": true}]),
        ),
        json!({"type": "object", "properties": {"l": {"type": "array", "maxItems": 5, "items": {"type": "string",
            "maxLength": 5, "x-kubernetes-validations": [{"rule": "self == oldSelf"}]}}}}),
    ]
}

#[tokio::test]
async fn definitions_are_rejected_as_on_the_real_server() {
    let real = Real::start().await;
    let base = || {
        let schema = json!({"type": "object", "properties": {"spec": {"type": "object"}}});
        definition("test.dev", "Thing", &schema)
    };
    let spec = "/spec/versions/0/schema/openAPIV3Schema/properties/spec";
    let schema = "/spec/versions/0/schema/openAPIV3Schema";
    let roots = [
        json!({"type": "string"}),
        json!({"type": "object", "nullable": true}),
        json!({"type": "object", "additionalProperties": {"type": "string"}}),
        json!({"type": "object", "properties": {"kind": {"type": "integer"}, "metadata": {"type": "string"}}}),
        json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"name": {"type": "string",
            "maxLength": 5}}}}}),
        json!({"type": "object", "properties": {"metadata": {"type": "object", "properties": {"labels":
            {"type": "object"}}}}}),
        json!({"type": "object", "properties": {"metadata": {"type": "object", "default": {}}}}),
        json!({"properties": {"spec": {"type": "object"}}}),
    ];
    let cases = of_definitions()
        .into_iter()
        .chain(roots.into_iter().map(|root| json!({ schema: root })))
        .chain(
            of_fields()
                .into_iter()
                .chain(of_rules())
                .map(|field| json!({ spec: field })),
        );
    let mut differences = Vec::new();
    let mut accepted = 0;
    let mut count = 0;
    for changes in cases {
        count += 1;
        let object = changed(base(), &changes);
        // A dry run, so that the server does not serve it.
        let answer = real.post(&format!("{PATH}?dryRun=All"), &object).await;
        let wanted = of_status(&answer);
        accepted += usize::from(wanted == Outcome::Accepted);
        differences.extend(compare(&changes.to_string(), &wanted, &ours(&object, None)));
    }
    assert!(
        differences.is_empty(),
        "{} of {count} differ:\n{}",
        differences.len(),
        differences.join("\n")
    );
    assert!(
        accepted >= 25 && count - accepted >= 80,
        "{accepted} of {count} are taken"
    );
}

#[tokio::test]
async fn fields_that_storage_depends_on_are_immutable() {
    let real = Real::start().await;
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object"}}});
    let object = definition("fixed.test.dev", "Fixed", &schema);
    crate::crd::establish(&real, &object).await;
    let path = format!("{PATH}/fixeds.fixed.test.dev");
    let stored = real.get(&path).await.body;
    for changes in [
        json!({"/spec/scope": "Cluster"}),
        json!({"/spec/names/kind": "Other"}),
        json!({"/spec/names/plural": "others"}),
        json!({"/spec/group": "other.test.dev"}),
        json!({"/spec/names/shortNames": ["fx"]}),
        json!({"/spec/versions/0/name": "v2"}),
    ] {
        let object = changed(stored.clone(), &changes);
        let answer = real
            .send("PUT", &format!("{path}?dryRun=All"), "application/json", &object)
            .await;
        let difference = compare(
            &changes.to_string(),
            &of_status(&answer),
            &ours(&object, Some(&stored)),
        );
        assert_eq!(difference, None);
    }
}
