//! Custom resources: the same requests to the real server and to this crate.
//!
//! The tests compare the responses: the object after pruning and defaulting, the causes of a rejection, the warnings.

use serde_json::{Value, json};
use starling_apiserver::crd::{self, Cell, Definition, Version};

use crate::causes::{Outcome, compare, of_causes, of_status};
use crate::crd::{definition, establish};
use crate::real::{Answer, Real};
use crate::refusal_cases;

/// How strict validation reports unknown fields.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Strictness {
    Strict,
    Warn,
}

/// Returns the response of this crate to a create or an update.
fn ours(
    version: &Version,
    object: &Value,
    old: Option<&Value>,
    strictness: Strictness,
) -> (Outcome, Value, Vec<String>) {
    let mut object = object.clone();
    let unknown = match version.decode(&mut object) {
        Ok(unknown) => unknown,
        Err(cause) => return (Outcome::Refused(400, cause.to_string()), object, Vec::new()),
    };
    let unknown: Vec<_> = unknown
        .into_iter()
        .map(|path| format!("unknown field \"{path}\""))
        .collect();
    if strictness == Strictness::Strict && !unknown.is_empty() {
        let text = format!("strict decoding error: {}", unknown.join(", "));
        return (Outcome::Refused(400, text), object, Vec::new());
    }
    if version.has_status() {
        object.as_object_mut().unwrap().remove("status");
        if let Some(status) = old.and_then(|old| old.get("status")) {
            object["status"] = status.clone();
        }
    }
    let verdict = version.validate(&object, old);
    let answered = if verdict.causes.is_empty() {
        Outcome::Accepted
    } else {
        of_causes(&verdict.causes)
    };
    let mut warnings = unknown;
    warnings.extend(verdict.warnings);
    warnings.sort();
    starling_apiserver::settle_numbers(&mut object);
    (answered, object, warnings)
}

/// Removes the fields that only the server sets.
fn without_metadata(object: &Value) -> Value {
    let mut object = object.clone();
    object.as_object_mut().unwrap().remove("metadata");
    object
}

/// Returns the messages of `Warning` headers, sorted.
fn warnings(answer: &Answer) -> Vec<String> {
    let mut warnings: Vec<String> = answer
        .warnings
        .iter()
        .filter_map(|header| header.split_once(" - ").map(|(_, text)| text))
        .map(|text| serde_json::from_str(text).unwrap())
        .collect();
    warnings.sort();
    warnings
}

/// Compares two responses, and the objects if both accepted the request.
fn difference(what: &str, answer: &Answer, got: &(Outcome, Value, Vec<String>)) -> Option<String> {
    let mut wanted = of_status(answer);
    if let (Outcome::Refused(400, text), Outcome::Refused(400, got)) = (&wanted, &got.0) {
        // The server prefixes the message with the kind.
        if text.ends_with(got.as_str()) {
            wanted = Outcome::Refused(400, got.clone());
        }
    }
    if let Some(difference) = compare(what, &wanted, &got.0) {
        return Some(difference);
    }
    if wanted != Outcome::Accepted {
        return None;
    }
    let (left, right) = (without_metadata(&answer.body), without_metadata(&got.1));
    if left != right {
        return Some(format!("{what}\n  wanted {left}\n  got    {right}"));
    }
    let reported = warnings(answer);
    (reported != got.2).then(|| format!("{what}\n  wanted warnings {reported:?}\n  got {:?}", got.2))
}

fn named(object: &Value, name: &str) -> Value {
    let mut object = object.clone();
    object["metadata"]["name"] = json!(name);
    object
}

/// A schema with one field for each kind of constraint.
fn rich_schema() -> Value {
    json!({"type": "object", "properties": {
    "status": {"type": "object", "properties": {"phase": {"type": "string", "enum": ["A", "B"]}, "count": {"type": "integer"}}},
    "spec": {"type": "object", "properties": {
        "text": {"type": "string", "minLength": 2, "maxLength": 4, "pattern": "^[a-z]+$"},
        "choice": {"type": "string", "enum": ["a", "b"]},
        "number": {"type": "number", "minimum": 0.5, "exclusiveMinimum": true, "maximum": 10, "multipleOf": 0.5},
        "int": {"type": "integer", "minimum": 1, "maximum": 10, "exclusiveMaximum": true, "multipleOf": 3},
        "numbers": {"type": "integer", "enum": [1, 2]},
        "yes": {"type": "boolean", "default": true},
        "nullable": {"type": "string", "nullable": true, "default": "n"},
        "nullableChoice": {"type": "string", "nullable": true, "enum": ["a"]},
        "size": {"x-kubernetes-int-or-string": true, "pattern": "^[0-9]+%$", "maximum": 100},
        "date": {"type": "string", "format": "date"},
        "time": {"type": "string", "format": "date-time"},
        "duration": {"type": "string", "format": "duration"},
        "uri": {"type": "string", "format": "uri"},
        "email": {"type": "string", "format": "email"},
        "ip": {"type": "string", "format": "ipv4"},
        "cidr": {"type": "string", "format": "cidr"},
        "host": {"type": "string", "format": "hostname"},
        "uuid": {"type": "string", "format": "uuid"},
        "bytes": {"type": "string", "format": "byte"},
        "short": {"type": "string", "format": "k8s-short-name"},
        "odd": {"type": "string", "format": "unheard-of"},
        "list": {"type": "array", "items": {"type": "integer", "minimum": 1}, "minItems": 1, "maxItems": 3},
        "set": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "items": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
            "items": {"type": "object", "required": ["name"], "properties": {
                "name": {"type": "string"}, "weight": {"type": "integer", "default": 5, "maximum": 9}}}},
        "ports": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["port", "protocol"],
            "items": {"type": "object", "required": ["port"], "properties": {
                "port": {"type": "integer"}, "protocol": {"type": "string", "default": "TCP"}}}},
        "map": {"type": "object", "minProperties": 1, "maxProperties": 2, "additionalProperties": {"type": "integer", "maximum": 5}},
        "nested": {"type": "object", "required": ["a", "b"], "properties": {
            "a": {"type": "string"}, "b": {"type": "object", "default": {}, "properties": {"c": {"type": "integer", "default": 7}}}}},
        "open": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {"known": {"type": "integer"}}},
        "closed": {"type": "object", "additionalProperties": {"type": "object", "properties": {"x": {"type": "string"}}}},
        "any": {"x-kubernetes-preserve-unknown-fields": true},
        "template": {"type": "object", "x-kubernetes-embedded-resource": true, "x-kubernetes-preserve-unknown-fields": true},
        "one": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
            "oneOf": [{"required": ["a"]}, {"required": ["b"]}]},
        "some": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}},
            "anyOf": [{"required": ["a"], "properties": {"a": {"minimum": 5}}}, {"required": ["b"]}]},
        "all": {"type": "integer", "allOf": [{"minimum": 2}, {"maximum": 4}]},
        "none": {"type": "string", "not": {"pattern": "^x"}}
    }}}})
}

fn rich_specs() -> Vec<Value> {
    let of = |pairs: &[(&str, Value)]| {
        let map: serde_json::Map<String, Value> = pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.clone()))
            .collect();
        Value::Object(map)
    };
    let mut specs = vec![json!({}), json!(null), json!("text"), json!([1])];
    for (name, values) in [
        (
            "text",
            json!(["ab", "a", "abcde", "AB", 1, true, null, ["ab"], {"a": 1}, "éa"]),
        ),
        ("choice", json!(["a", "c", 1, null, ""])),
        ("number", json!([1, 0.5, 1.5, 10.5, 0.7, 11, "1", 1e30, -3])),
        (
            "int",
            json!([3, 10, 0, 4, 3.0, 3.5, "3", null, 9_007_199_254_740_993_i64]),
        ),
        ("numbers", json!([1, 3, 1.0])),
        ("yes", json!([false, null, "true", 0])),
        ("nullable", json!([null, "x", 1])),
        ("nullableChoice", json!([null, "a", "b"])),
        ("size", json!([5, "5%", "x", 101, 1.5, true, null, {}])),
        ("date", json!(["2024-02-29", "2024-02-30", "x", 5])),
        (
            "time",
            json!(["2024-01-01T00:00:00Z", "2024-01-01", "2024-01-01T25:00:00Z", 5]),
        ),
        ("duration", json!(["1h", "3 days", "x", 5])),
        ("uri", json!(["https://example.com/x", "x y", "x", "/x"])),
        ("email", json!(["a@b.c", "x"])),
        ("ip", json!(["1.2.3.4", "::1", "x"])),
        ("cidr", json!(["10.0.0.0/8", "10.0.0.0", "x"])),
        ("host", json!(["example.com", "-x", "x_y"])),
        ("uuid", json!(["123e4567-e89b-12d3-a456-426614174000", "x"])),
        ("bytes", json!(["YQ==", "YQ", ""])),
        ("short", json!(["a-b", "A", "a.b"])),
        ("odd", json!(["whatever", 5])),
        (
            "list",
            json!([[1], [], [1, 2, 3, 4], [0, "x", null], "x", {"a": 1}, null]),
        ),
        ("set", json!([["a", "b"], ["a", "a", "a"], ["a", null]])),
        (
            "items",
            json!([[{"name": "a"}], [{"name": "a"}, {"name": "a", "weight": 10}], [{"weight": 1}], [{"name": null}],
            ["x"], [null], [{"name": "a", "none": 1}]]),
        ),
        (
            "ports",
            json!([[{"port": 80}, {"port": 80, "protocol": "TCP"}], [{"port": 80}, {"port": 80, "protocol": "UDP"}]]),
        ),
        (
            "map",
            json!([{"a": 1}, {}, {"a": 1, "b": 2, "c": 3}, {"a": 6, "b": "x"}, {"a": null}, []]),
        ),
        (
            "nested",
            json!([{"a": "x"}, {"b": {}}, {"a": "x", "b": null}, {"a": null}, {"a": "x", "b": {"c": null, "d": 1}}, null]),
        ),
        (
            "open",
            json!([{"known": 1, "x": {"y": [1, null]}}, {"known": "x"}, {"known": null, "n": null}]),
        ),
        (
            "closed",
            json!([{"k": {"x": "a", "y": 1}}, {"k": "x"}, {"k": null}]),
        ),
        ("any", json!([1, {"x": {"y": 1}}, [1, {"z": null}], null])),
        (
            "template",
            json!([{"apiVersion": "v1", "kind": "K", "metadata": {"name": "n", "labels": {"a": "b"}}, "x": {"y": 1}},
            {"kind": "K"}, {"apiVersion": "v1", "kind": ""}, {"apiVersion": "a/b/c", "kind": "K k"},
            {"apiVersion": 1, "kind": "K"}, {"apiVersion": "v1", "kind": "K", "metadata": {"labels": {"a": 1}}},
            {"apiVersion": "v1", "kind": "K", "metadata": {"nothing": 1, "creationTimestamp": null}}]),
        ),
        ("one", json!([{"a": 1}, {"a": 1, "b": "x"}, {}, {"a": "x"}])),
        (
            "some",
            json!([{"a": 6}, {"a": 1}, {"b": "x"}, {}, {"a": 1, "b": 2}]),
        ),
        ("all", json!([3, 1, 5, "x"])),
        ("none", json!(["y", "xy"])),
        ("unknown", json!([1, {"x": {"y": 1}}])),
    ] {
        for value in values.as_array().unwrap() {
            specs.push(of(&[(name, value.clone())]));
        }
    }
    specs.push(of(&[
        ("text", json!("A")),
        ("int", json!(0)),
        ("choice", json!("z")),
        ("one", json!({})),
    ]));
    specs.push(of(&[
        ("unknown", json!(1)),
        ("list", json!([1, 2])),
        ("also", json!(2)),
        ("nested", json!({"z": 1})),
    ]));
    specs
}

#[tokio::test]
async fn objects_are_accepted_and_rejected_as_on_the_real_server() {
    let real = Real::start().await;
    let mut object = definition("rich.test.dev", "Rich", &rich_schema());
    establish(&real, &object).await;
    crd::apply_defaults(&mut object);
    crd::prepare(&mut object, None);
    let definition = Definition::from_object(&object).unwrap();
    let version = definition.version("v1").unwrap();
    let mut differences = Vec::new();
    let mut accepted = 0;
    let specs = rich_specs();
    for (number, spec) in specs.iter().enumerate() {
        let (strictness, parameter) = if number % 3 == 0 {
            (Strictness::Strict, "Strict")
        } else {
            (Strictness::Warn, "Warn")
        };
        let body =
            json!({"apiVersion": "rich.test.dev/v1", "kind": "Rich", "spec": spec, "status": {"phase": "Z"}});
        let body = named(&body, &format!("rich-{number}"));
        let uri = format!("/apis/rich.test.dev/v1/namespaces/default/richs?fieldValidation={parameter}");
        let answer = real.post(&uri, &body).await;
        let got = ours(version, &body, None, strictness);
        accepted += usize::from(got.0 == Outcome::Accepted);
        differences.extend(difference(&spec.to_string(), &answer, &got));
    }
    assert!(
        differences.is_empty(),
        "{} of {} differ:\n{}",
        differences.len(),
        specs.len(),
        differences.join("\n")
    );
    assert!(
        accepted >= 50 && specs.len() - accepted >= 80,
        "{accepted} of {} are taken",
        specs.len()
    );
}

/// A schema with rules of every kind, on fields named after them.
fn ruled_schema() -> Value {
    json!({"type": "object", "x-kubernetes-validations": [
    {"rule": "self.metadata.name.startsWith('ruled-')", "message": "must be ruled"},
    {"rule": "!has(self.spec.n) || self.spec.n != 13", "reason": "FieldValueForbidden", "fieldPath": ".spec.n",
        "message": "unlucky"}],
    "properties": {"spec": {"type": "object", "x-kubernetes-validations": [
        {"rule": "!has(self.n) || !has(self.m) || self.n < self.m"},
        {"rule": "!has(self.locked) || self.locked != 'no'", "messageExpression": "'locked is ' + self.locked"},
        {"rule": "!has(self.n) || self.n < 100", "messageExpression": "[''][1]", "message": "n is too large"},
        {"rule": "has(self.locked) == has(oldSelf.locked)", "message": "locked is locked"},
        {"rule": "!has(self.m) || self.m > 0", "reason": "FieldValueRequired", "message": "m is required to be positive"}],
        "properties": {
            "n": {"type": "integer"}, "m": {"type": "integer"},
            "locked": {"type": "string", "maxLength": 20, "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": " is immutable "}]},
            "namespace": {"type": "string", "maxLength": 20, "x-kubernetes-validations": [{"rule": "self != 'bad'"}]},
            "a-b": {"type": "object", "properties": {"if": {"type": "integer"}}, "x-kubernetes-validations":
                [{"rule": "self.__if__ > 0"}]},
            "list": {"type": "array", "maxItems": 5, "items": {"type": "string", "maxLength": 9}, "x-kubernetes-validations":
                [{"rule": "self.all(x, x.matches('^\\\\w+$'))", "message": "words only"},
                 {"rule": "self.size() == 0 || self[0] != 'first'"}]},
            "items": {"type": "array", "maxItems": 5, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string", "maxLength": 9},
                    "size": {"type": "integer", "x-kubernetes-validations": [{"rule": "self >= oldSelf", "message": "may not shrink"}]}},
                    "x-kubernetes-validations": [{"rule": "self.name != 'bad'", "reason": "FieldValueDuplicate", "message": "x"}]}},
            "map": {"type": "object", "maxProperties": 5, "additionalProperties": {"type": "integer",
                "x-kubernetes-validations": [{"rule": "self % 2 == 0", "message": "even only"}]}},
            "size": {"x-kubernetes-int-or-string": true, "x-kubernetes-validations":
                [{"rule": "type(self) == string ? self.endsWith('%') : self > 0", "message": "a percentage or positive"}]},
            "time": {"type": "string", "format": "date-time", "x-kubernetes-validations":
                [{"rule": "self > timestamp('2020-01-01T00:00:00Z')", "message": "too old"}]},
            "duration": {"type": "string", "format": "duration", "x-kubernetes-validations":
                [{"rule": "self <= duration('1h')", "message": "too long"}]},
            "quantity": {"type": "string", "maxLength": 9, "x-kubernetes-validations":
                [{"rule": "isQuantity(self) && quantity(self).isLessThan(quantity('1Gi'))"}]},
            "number": {"type": "number", "x-kubernetes-validations": [{"rule": "self / 2.0 < 3.5"}]},
            "once": {"type": "integer", "x-kubernetes-validations":
                [{"rule": "oldSelf.hasValue() ? self == oldSelf.value() : self > 0", "optionalOldSelf": true}]},
            "broken": {"type": "array", "maxItems": 3, "items": {"type": "integer"}, "x-kubernetes-validations": [{"rule": "self[2] == 1"}]},
            "strict": {"type": "string", "maxLength": 3, "minLength": 1}
        }}}})
}

#[tokio::test]
async fn rules_are_evaluated_as_on_the_real_server() {
    let real = Real::start().await;
    let mut object = definition("ruled.test.dev", "Ruled", &ruled_schema());
    establish(&real, &object).await;
    crd::apply_defaults(&mut object);
    crd::prepare(&mut object, None);
    let definition = Definition::from_object(&object).unwrap();
    let version = definition.version("v1").unwrap();
    let uri = "/apis/ruled.test.dev/v1/namespaces/default/ruleds";
    let of = |name: &str, spec: &Value| {
        named(
            &json!({"apiVersion": "ruled.test.dev/v1", "kind": "Ruled", "spec": spec}),
            name,
        )
    };
    let mut differences = Vec::new();
    // A first spec, and one that replaces it.
    for (number, (first, second)) in [
        (json!({"n": 1, "m": 2}), json!({"n": 3, "m": 2})),
        (json!({"n": 200, "locked": "no"}), json!({"n": 13})),
        (json!({"n": 12}), json!({"n": 13})),
        (json!({"n": 5, "m": 0}), json!({})),
        (json!({"locked": "a"}), json!({"locked": "b"})),
        (json!({"locked": "a"}), json!({})),
        (json!({}), json!({"locked": "a"})),
        (json!({"namespace": "bad"}), json!({})),
        (json!({"a-b": {"if": 0}}), json!({})),
        (json!({"a-b": {}}), json!({})),
        (json!({"list": ["a", "b c"]}), json!({})),
        (json!({"list": ["é"]}), json!({})),
        (json!({"list": ["first"]}), json!({})),
        (
            json!({"items": [{"name": "a", "size": 2}, {"name": "b", "size": 1}]}),
            json!({"items": [{"name": "b", "size": 1}, {"name": "a", "size": 1}, {"name": "c", "size": 0}]}),
        ),
        (json!({"items": [{"name": "bad"}]}), json!({})),
        (json!({"map": {"a": 2, "b": 3}}), json!({})),
        (json!({"size": "5%"}), json!({"size": 0})),
        (json!({"size": "5"}), json!({})),
        (json!({"time": "2019-01-01T00:00:00Z"}), json!({})),
        (json!({"time": "2024-01-01T00:00:00.5+02:00"}), json!({})),
        (json!({"duration": "2h"}), json!({})),
        (json!({"duration": "30m"}), json!({})),
        (json!({"quantity": "2Gi"}), json!({})),
        (json!({"quantity": "100Mi"}), json!({"quantity": "x"})),
        (json!({"number": 8}), json!({})),
        (json!({"number": 3}), json!({"number": 6.5})),
        (json!({"once": 0}), json!({})),
        (json!({"once": 1}), json!({"once": 2})),
        (json!({"broken": [1]}), json!({})),
        (json!({"broken": [1, 2, 1]}), json!({"broken": [1, 2, 3]})),
        (json!({"strict": "toolong", "n": 200}), json!({})),
        (json!({"strict": ""}), json!({})),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("ruled-{number}");
        let body = of(&name, &first);
        let answer = real.post(uri, &body).await;
        let got = ours(version, &body, None, Strictness::Warn);
        differences.extend(difference(&first.to_string(), &answer, &got));
        if answer.code != 201 {
            continue;
        }
        let old = answer.body;
        let mut body = of(&name, &second);
        body["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"].clone();
        let answer = real
            .send("PUT", &format!("{uri}/{name}"), "application/json", &body)
            .await;
        let got = ours(version, &body, Some(&old), Strictness::Warn);
        differences.extend(difference(&format!("{first} -> {second}"), &answer, &got));
    }
    let body = of("not-it", &json!({}));
    let answer = real.post(uri, &body).await;
    differences.extend(difference(
        "name",
        &answer,
        &ours(version, &body, None, Strictness::Warn),
    ));
    assert!(
        differences.is_empty(),
        "{} differ:\n{}",
        differences.len(),
        differences.join("\n")
    );
}

/// Guards ratcheting: an update may change other fields of an object that is no longer valid.
#[tokio::test]
async fn unchanged_violations_are_tolerated_as_on_the_real_server() {
    let real = Real::start().await;
    let lax = json!({"type": "object", "properties": {
        "status": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}},
        "spec": {"type": "object", "properties": {
        "a": {"type": "string"}, "b": {"type": "string"}, "map": {"type": "object", "additionalProperties": {"type": "string"}},
        "list": {"type": "array", "items": {"type": "string"}},
        "set": {"type": "array", "items": {"type": "string"}},
        "items": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"], "items":
            {"type": "object", "required": ["k"], "properties": {"k": {"type": "string"}, "v": {"type": "string"}}}}}}}});
    let mut object = definition("lax.test.dev", "Lax", &lax);
    establish(&real, &object).await;
    let collection = "/apis/lax.test.dev/v1/namespaces/default/laxs";
    let first = named(
        &json!({"apiVersion": "lax.test.dev/v1", "kind": "Lax", "spec": {"a": "long", "b": "b", "map": {"x": "long", "y": "y"},
            "list": ["long", "l"], "set": ["s", "s"], "items": [{"k": "1", "v": "long"}, {"k": "2", "v": "v"}]}}),
        "lax",
    );
    assert_eq!(real.post(collection, &first).await.code, 201);
    let status = json!({"status": {"a": "long", "b": "b"}});
    let path = format!("{collection}/lax");
    let merge = "application/merge-patch+json";
    let answer = real
        .send("PATCH", &format!("{path}/status"), merge, &status)
        .await;
    let stored = answer.body;
    assert_eq!(answer.code, 200, "{stored}");

    // The definition becomes stricter.
    let short = json!({"type": "string", "maxLength": 1});
    let ruled = json!({"type": "string", "maxLength": 9, "x-kubernetes-validations": [{"rule": "self.size() < 2", "message": "short"}]});
    let schema = &mut object["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"];
    schema["status"]["properties"] = json!({"a": short, "b": short});
    let spec = &mut schema["spec"]["properties"];
    spec["a"] = short.clone();
    spec["b"] = short.clone();
    spec["map"]["additionalProperties"] = ruled.clone();
    spec["list"]["items"] = short.clone();
    spec["set"] = json!({"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}});
    spec["items"]["items"]["properties"]["v"] = ruled;
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/laxs.lax.test.dev";
    let answer = real
        .send("PATCH", definitions, merge, &json!({"spec": object["spec"]}))
        .await;
    assert_eq!(answer.code, 200, "{}", answer.body);
    let definition = Definition::updated(&answer.body, &answer.body).unwrap();
    let version = definition.version("v1").unwrap();
    stricter(&real, &path).await;

    let mut differences = Vec::new();
    for changes in [
        json!({"b": "c"}),
        json!({"a": "longer"}),
        json!({"b": "longer"}),
        json!({"map": {"z": "z"}}),
        json!({"map": {"y": "long"}}),
        json!({"list": ["long", "l", "m"]}),
        json!({"set": ["s", "s", "t"]}),
        json!({"items": [{"k": "2", "v": "w"}, {"k": "1", "v": "long"}]}),
        json!({"items": [{"k": "1", "v": "long"}, {"k": "3", "v": "long"}]}),
    ] {
        let mut body = stored.clone();
        for (name, value) in changes.as_object().unwrap() {
            match (value, &mut body["spec"][name]) {
                (Value::Object(new), Value::Object(old)) => old.extend(new.clone()),
                (new, old) => *old = new.clone(),
            }
        }
        let answer = real
            .send("PUT", &format!("{path}?dryRun=All"), "application/json", &body)
            .await;
        let got = ours(version, &body, Some(&stored), Strictness::Warn);
        differences.extend(difference(&changes.to_string(), &answer, &got));
    }
    for changes in [json!({"b": "c"}), json!({"b": "long"}), json!({"a": "longer"})] {
        let mut body = stored.clone();
        body["status"]
            .as_object_mut()
            .unwrap()
            .extend(changes.as_object().unwrap().clone());
        let uri = format!("{path}/status?dryRun=All");
        let answer = real.send("PUT", &uri, "application/json", &body).await;
        let causes = version.validate_status(&body, &stored).causes;
        let got = if causes.is_empty() {
            Outcome::Accepted
        } else {
            of_causes(&causes)
        };
        differences.extend(compare(&format!("status {changes}"), &of_status(&answer), &got));
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// Waits until the server validates objects by the new schema.
async fn stricter(real: &Real, path: &str) {
    let body = json!({"spec": {"b": "too long"}});
    let uri = format!("{path}?dryRun=All");
    let refusal_cases = async {
        while real
            .send("PATCH", &uri, "application/merge-patch+json", &body)
            .await
            .code
            != 422
        {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), refusal_cases)
        .await
        .unwrap_or_else(|_| panic!("the definition of {path} is not stricter within a minute"));
}

#[tokio::test]
async fn columns_match_those_of_the_real_server() {
    let real = Real::start().await;
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let mut object = definition("shown.test.dev", "Shown", &schema);
    let paths = [
        ("string", ".spec.text"),
        ("string", ".spec.n"),
        ("string", ".spec.f"),
        ("string", ".spec.yes"),
        ("string", ".spec.list"),
        ("string", ".spec.map"),
        ("string", ".spec.null"),
        ("string", ".spec.none"),
        ("integer", ".spec.n"),
        ("integer", ".spec.f"),
        ("integer", ".spec.text"),
        ("number", ".spec.n"),
        ("number", ".spec.f"),
        ("boolean", ".spec.yes"),
        ("boolean", ".spec.n"),
        ("string", ".spec.list[0]"),
        ("string", ".spec.list[-1]"),
        ("string", ".spec.list[1:]"),
        ("string", ".spec.list[*]"),
        ("string", ".spec.list[9]"),
        ("string", ".spec['text']"),
        ("string", r".metadata.annotations.a\.b/c"),
        ("string", ".metadata.annotations['a\\.b/c']"),
        ("string", r#".spec.conditions[?(@.type=="Ready")].status"#),
        ("string", ".spec.conditions[?(@.type=='None')].status"),
        ("string", ".spec.conditions[?(@.weight>1)].type"),
        ("string", ".spec.conditions[?(@.status)].type"),
        ("string", ".spec.conditions[*].type"),
        ("string", "..weight"),
        ("integer", ".spec.conditions[0].weight"),
        ("string", ".spec.list[0,2]"),
        ("string", ".spec.empty"),
        ("string", ".spec"),
    ];
    let columns: Vec<Value> = paths
        .iter()
        .enumerate()
        .map(|(number, (ty, path))| json!({"name": format!("c{number}"), "type": ty, "jsonPath": path}))
        .collect();
    object["spec"]["versions"][0]["additionalPrinterColumns"] = json!(columns);
    establish(&real, &object).await;
    crd::apply_defaults(&mut object);
    crd::prepare(&mut object, None);
    let definition = Definition::from_object(&object).unwrap();
    let version = definition.version("v1").unwrap();
    let collection = "/apis/shown.test.dev/v1/namespaces/default/showns";
    let made = real
        .post(collection, &json!({"apiVersion": "shown.test.dev/v1", "kind": "Shown",
            "metadata": {"name": "shown", "annotations": {"a.b/c": "dotted"}},
            "spec": {"text": "t", "n": 3, "f": 2.5, "yes": true, "list": ["a", "b", "c"], "map": {"k": "<v>", "l": 1}, "null": null,
                "empty": "", "conditions": [{"type": "Ready", "status": "True", "weight": 1}, {"type": "Stalled", "weight": 5}]}}))
        .await;
    assert_eq!(made.code, 201, "{}", made.body);
    let table = real
        .get_as(
            &format!("{collection}/shown"),
            "application/json;as=Table;v=v1;g=meta.k8s.io",
        )
        .await;
    let cells = table.body["rows"][0]["cells"].as_array().unwrap();
    let mut differences = Vec::new();
    for ((column, (ty, path)), wanted) in version.columns().iter().zip(paths).zip(&cells[1..]) {
        let got = match column.cell(&made.body) {
            Cell::Empty => Value::Null,
            Cell::Value(value) => value,
            Cell::Date(text) => json!(text),
        };
        if got != *wanted && !(got.as_f64().is_some() && got.as_f64() == wanted.as_f64()) {
            differences.push(format!("{ty} {path}: wanted {wanted}, got {got}"));
        }
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}

/// Compares the rejections by Starling's own definitions.
#[tokio::test]
async fn starlings_definitions_reject_as_on_the_real_server() {
    let real = Real::start().await;
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crds");
    let mut definitions = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let content = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let mut object: Value = serde_saphyr::from_str(&content).unwrap();
        establish(&real, &object).await;
        crd::apply_defaults(&mut object);
        crd::prepare(&mut object, None);
        definitions.push(Definition::from_object(&object).unwrap());
    }
    assert_eq!(definitions.len(), 7);
    let mut differences = Vec::new();
    let valid = [
        "Source",
        "Cluster",
        "Sync",
        "SyncGroup",
        "RolloutApproval",
        "RolloutAction",
        "DeletionApproval",
    ]
    .map(|kind| (kind, json!({}), ""));
    let cases = refusal_cases::cases();
    assert!(cases.len() >= 58, "{}", cases.len());
    for (number, (kind, over, words)) in valid.into_iter().chain(cases).enumerate() {
        let mut body = refusal_cases::valid(kind);
        refusal_cases::lay(&mut body["spec"], &over);
        let body = named(&body, &format!("case-{number}"));
        let definition = definitions
            .iter()
            .find(|definition| definition.names().kind == kind)
            .unwrap();
        let uri = format!(
            "/apis/starling.dev/v1alpha1/namespaces/default/{}?fieldValidation=Strict",
            definition.names().plural
        );
        let answer = real.post(&uri, &body).await;
        let got = ours(
            definition.version("v1alpha1").unwrap(),
            &body,
            None,
            Strictness::Strict,
        );
        assert_eq!(got.0 == Outcome::Accepted, words.is_empty(), "{kind} {over}");
        differences.extend(difference(&format!("{kind} {over}"), &answer, &got));
    }
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
