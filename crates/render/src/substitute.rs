//! `${NAME}` in rendered objects, replaced by a cluster's values.
//!
//! Works on parsed scalars, so that no value can change the structure of an object. Only known names are replaced,
//! because scripts and configuration files contain `${…}` of their own.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

/// The fields that a rule of [`FIXED_TEXT`] covers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Covers {
    /// Everything below the field.
    Below,
    /// The items of the field, if it is a list.
    Items,
    /// The field `value` of the items of the field, if it is a list.
    ItemValues,
    /// The field itself.
    Itself,
}

/// Fields that are strings in Kubernetes, so that `"1"` and `"true"` must remain strings.
///
/// In all other fields, a scalar that consists of one `${NAME}` takes the type of its value, so that `replicas:
/// ${REPLICAS}` works. This table is complete with two additions: fields whose name ends in `Name`
/// (`serviceAccountName`, `secretName`), and the data of ConfigMaps and Secrets.
const FIXED_TEXT: &[(&str, Covers)] = &[
    ("labels", Covers::Below),
    ("annotations", Covers::Below),
    ("matchLabels", Covers::Below),
    ("matchExpressions", Covers::Below),
    ("nodeSelector", Covers::Below),
    // The selector of a Service; that of a Deployment has `matchLabels`.
    ("selector", Covers::Below),
    ("args", Covers::Items),
    ("command", Covers::Items),
    ("env", Covers::ItemValues),
    ("name", Covers::Itself),
    ("namespace", Covers::Itself),
];

/// The data of a ConfigMap or a Secret: always strings.
const DATA_FIELDS: [&str; 3] = ["data", "stringData", "binaryData"];

/// The substituted text exceeds the remaining limit.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooLarge;

/// Substitutes in one object. Without values, nothing changes, not even `$${NAME}`, so that substitution never affects
/// a Sync that does not use it.
///
/// `remaining` is the number of bytes that may still be produced; it is reduced by the bytes of this object.
pub(super) fn substitute(
    object: &mut Value,
    values: &BTreeMap<String, String>,
    remaining: &mut usize,
) -> Result<(), TooLarge> {
    if values.is_empty() {
        return Ok(());
    }
    let has_data =
        object["apiVersion"] == "v1" && (object["kind"] == "ConfigMap" || object["kind"] == "Secret");
    let mut run = Run { values, remaining };
    let Value::Object(fields) = object else {
        return Ok(());
    };
    for (key, value) in fields {
        let text = has_data && DATA_FIELDS.contains(&key.as_str());
        run.field(key, value, text)?;
    }
    Ok(())
}

struct Run<'a> {
    values: &'a BTreeMap<String, String>,
    remaining: &'a mut usize,
}

impl Run<'_> {
    fn field(&mut self, key: &str, value: &mut Value, text: bool) -> Result<(), TooLarge> {
        let rule = FIXED_TEXT
            .iter()
            .find(|(name, _)| *name == key)
            .map(|(_, covers)| *covers);
        match (rule, value) {
            (Some(Covers::Below), value) => self.value(value, true),
            (Some(Covers::Items), Value::Array(items)) => items
                .iter_mut()
                .try_for_each(|item| self.value(item, text || item.is_string())),
            (Some(Covers::ItemValues), Value::Array(items)) => {
                items.iter_mut().try_for_each(|item| self.item_value(item, text))
            }
            (rule, value) => {
                let named = rule == Some(Covers::Itself) || key.ends_with("Name");
                let fixed = named && value.is_string();
                self.value(value, text || fixed)
            }
        }
    }

    fn item_value(&mut self, item: &mut Value, text: bool) -> Result<(), TooLarge> {
        let Value::Object(fields) = item else {
            return self.value(item, text);
        };
        for (key, value) in fields {
            if key == "value" {
                self.value(value, true)?;
            } else {
                self.field(key, value, text)?;
            }
        }
        Ok(())
    }

    fn value(&mut self, value: &mut Value, text: bool) -> Result<(), TooLarge> {
        match value {
            Value::String(scalar) => {
                if let Some(replaced) = self.scalar(scalar, text)? {
                    *value = replaced;
                }
                Ok(())
            }
            Value::Array(items) => items.iter_mut().try_for_each(|item| self.value(item, text)),
            Value::Object(fields) => self.fields(fields, text),
            Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
        }
    }

    fn fields(&mut self, fields: &mut Map<String, Value>, text: bool) -> Result<(), TooLarge> {
        fields
            .iter_mut()
            .try_for_each(|(key, value)| self.field(key, value, text))
    }

    /// Returns the replacement of a scalar; none if it contains nothing to replace.
    fn scalar(&mut self, scalar: &str, text: bool) -> Result<Option<Value>, TooLarge> {
        if !scalar.contains("${") {
            return Ok(None);
        }
        if let Some(whole) = expression(scalar).filter(|whole| whole.length == scalar.len())
            && let Some(value) = self.values.get(whole.name)
        {
            self.take(value)?;
            return Ok(Some(if text {
                Value::String(value.clone())
            } else {
                typed(value)
            }));
        }
        self.inside(scalar).map(|replaced| Some(Value::String(replaced)))
    }

    /// Replaces every expression in a longer text. Values are not substituted again.
    fn inside(&mut self, scalar: &str) -> Result<String, TooLarge> {
        let mut result = String::with_capacity(scalar.len());
        let mut rest = scalar;
        while let Some(at) = rest.find('$') {
            let (before, from) = rest.split_at(at);
            self.take(before)?;
            result.push_str(before);
            let escaped = from.strip_prefix('$').filter(|next| next.starts_with("${"));
            let (output, length) = if let Some((next, found)) =
                escaped.and_then(|next| expression(next).map(|found| (next, found)))
            {
                (&next[..found.length], found.length + 1)
            } else if let Some(found) = expression(from) {
                let value = self.values.get(found.name).map(String::as_str);
                (value.unwrap_or(&from[..found.length]), found.length)
            } else {
                ("$", 1)
            };
            self.take(output)?;
            result.push_str(output);
            rest = &from[length..];
        }
        self.take(rest)?;
        result.push_str(rest);
        Ok(result)
    }

    fn take(&mut self, text: &str) -> Result<(), TooLarge> {
        *self.remaining = self.remaining.checked_sub(text.len()).ok_or(TooLarge)?;
        Ok(())
    }
}

/// `${NAME}`, `${NAME:-default}` or `${NAME:=default}` at the start of a text.
struct Expression<'a> {
    name: &'a str,
    /// Bytes up to and including the closing brace.
    length: usize,
}

/// Parses an expression; other forms of a shell (`${NAME:?}`, `${#NAME}`) are not expressions.
fn expression(text: &str) -> Option<Expression<'_>> {
    let inner = text.strip_prefix("${")?;
    let end = inner
        .find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .unwrap_or(inner.len());
    let (name, rest) = inner.split_at(end);
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    if rest.starts_with('}') {
        return Some(Expression {
            name,
            length: end + 3,
        });
    }
    let default = rest.strip_prefix(":-").or_else(|| rest.strip_prefix(":="))?;
    Some(Expression {
        name,
        length: 2 + end + 2 + closing(default)? + 1,
    })
}

/// Returns the position of the brace that closes a default, which may contain further `${…}`.
fn closing(default: &str) -> Option<usize> {
    let mut open = 0_usize;
    for (at, byte) in default.bytes().enumerate() {
        match byte {
            b'{' if at > 0 && default.as_bytes()[at - 1] == b'$' => open += 1,
            b'}' if open == 0 => return Some(at),
            b'}' => open -= 1,
            _ => {}
        }
    }
    None
}

/// Parses a value as an integer or a boolean, or else as a string. Only plain forms are parsed: `0644`, `1e3`, `yes`
/// and `1.0` remain strings.
fn typed(value: &str) -> Value {
    match value {
        "true" => return Value::Bool(true),
        "false" => return Value::Bool(false),
        _ => {}
    }
    match value.parse::<i64>() {
        Ok(number) if number.to_string() == value => Value::from(number),
        _ => Value::String(value.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn values(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn replaced(mut object: Value, pairs: &[(&str, &str)]) -> Value {
        substitute(&mut object, &values(pairs), &mut 100_000).expect("within the limit");
        object
    }

    #[test]
    fn expressions_in_a_text() {
        let pairs = [("A", "1"), ("B_2", "two"), ("_X", "${A}"), ("E", "")];
        for (input, expected) in [
            ("x ${A} y", "x 1 y"),
            ("${A}${B_2}", "1two"),
            ("${OTHER} ${A}", "${OTHER} 1"),
            ("$${A} ${A}", "${A} 1"),
            ("$${OTHER}", "${OTHER}"),
            ("$$${A}", "$${A}"),
            ("$$ ${A}", "$$ 1"),
            ("$A $(A) ${A", "$A $(A) ${A"),
            ("${A:-9}!", "1!"),
            ("${A:=9}!", "1!"),
            ("${OTHER:-9}!", "${OTHER:-9}!"),
            ("${OTHER:-${A}}!", "${OTHER:-${A}}!"),
            ("${A:-${OTHER}}!", "1!"),
            (
                "${A:?no} ${A:0:1} ${#A} ${A^^} ${1} ${} ${A }",
                "${A:?no} ${A:0:1} ${#A} ${A^^} ${1} ${} ${A }",
            ),
            ("<${_X}>", "<${A}>"),
            ("<${E}>", "<>"),
            ("é${A}€", "é1€"),
            ("cost: 5$", "cost: 5$"),
        ] {
            assert_eq!(
                replaced(json!({ "v": input }), &pairs),
                json!({ "v": expected }),
                "{input}"
            );
        }
    }

    #[test]
    fn without_values_nothing_changes() {
        let object = json!({"v": "$${A} ${A:-x}"});
        assert_eq!(replaced(object.clone(), &[]), object);
    }

    #[test]
    fn a_whole_scalar_takes_the_type_of_its_value() {
        for (value, expected) in [
            ("3", json!(3)),
            ("-3", json!(-3)),
            ("0", json!(0)),
            ("true", json!(true)),
            ("false", json!(false)),
            ("yes", json!("yes")),
            ("True", json!("True")),
            ("0644", json!("0644")),
            ("+3", json!("+3")),
            ("-0", json!("-0")),
            ("1.0", json!("1.0")),
            ("1e3", json!("1e3")),
            ("", json!("")),
            ("null", json!("null")),
            ("9223372036854775808", json!("9223372036854775808")),
            ("a: {b: c}", json!("a: {b: c}")),
        ] {
            assert_eq!(
                replaced(json!({"spec": {"v": "${V}"}}), &[("V", value)])["spec"]["v"],
                expected
            );
            assert_eq!(
                replaced(json!({"spec": {"v": "${V:-7}"}}), &[("V", value)])["spec"]["v"],
                expected
            );
            assert_eq!(
                replaced(json!({"spec": {"v": " ${V}"}}), &[("V", value)])["spec"]["v"],
                format!(" {value}")
            );
        }
    }

    #[test]
    fn string_fields_of_kubernetes_remain_strings() {
        let object = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": {"name": "${N}", "namespace": "${N}", "labels": {"a": "${N}"}, "annotations": {"b": "${T}"}},
            "spec": {
                "replicas": "${N}",
                "paused": "${T}",
                "selector": {"matchLabels": {"a": "${N}"}, "matchExpressions": [{"values": ["${N}"]}]},
                "template": {
                    "metadata": {"labels": {"a": "${N}"}},
                    "spec": {
                        "nodeSelector": {"zone": "${N}"},
                        "serviceAccountName": "${N}",
                        "containers": [{
                            "name": "${N}",
                            "args": ["${N}", "x"],
                            "command": ["${T}"],
                            "env": [
                                {"name": "${N}", "value": "${N}"},
                                {"name": "x", "valueFrom": {"secretKeyRef": {"key": "k", "name": "${N}", "optional": "${T}"}}},
                            ],
                            "ports": [{"containerPort": "${N}"}],
                        }],
                    },
                },
            },
        });
        let result = replaced(object, &[("N", "1"), ("T", "true")]);
        let spec = &result["spec"];
        let pod = &spec["template"]["spec"];
        let container = &pod["containers"][0];
        assert_eq!(
            result["metadata"],
            json!({"name": "1", "namespace": "1", "labels": {"a": "1"}, "annotations": {"b": "true"}})
        );
        assert_eq!((&spec["replicas"], &spec["paused"]), (&json!(1), &json!(true)));
        assert_eq!(
            spec["selector"],
            json!({"matchLabels": {"a": "1"}, "matchExpressions": [{"values": ["1"]}]})
        );
        assert_eq!(spec["template"]["metadata"]["labels"]["a"], "1");
        assert_eq!(
            (&pod["nodeSelector"]["zone"], &pod["serviceAccountName"]),
            (&json!("1"), &json!("1"))
        );
        assert_eq!(
            (&container["args"], &container["command"]),
            (&json!(["1", "x"]), &json!(["true"]))
        );
        assert_eq!(container["env"][0], json!({"name": "1", "value": "1"}));
        assert_eq!(
            container["env"][1]["valueFrom"]["secretKeyRef"],
            json!({"key": "k", "name": "1", "optional": true})
        );
        assert_eq!(container["ports"][0]["containerPort"], 1);
    }

    #[test]
    fn data_is_text_in_config_maps_and_secrets_only() {
        for (kind, api, expected) in [
            ("ConfigMap", "v1", json!("1")),
            ("Secret", "v1", json!("1")),
            ("Secret", "example.com/v1", json!(1)),
            ("Widget", "example.com/v1", json!(1)),
        ] {
            let object = json!({"apiVersion": api, "kind": kind, "data": {"a": "${N}"}});
            assert_eq!(
                replaced(object, &[("N", "1")])["data"]["a"],
                expected,
                "{api} {kind}"
            );
        }
    }

    #[test]
    fn keys_are_not_replaced() {
        let object = json!({"data": {"${N}": 1}});
        assert_eq!(replaced(object.clone(), &[("N", "1")]), object);
    }

    #[test]
    fn the_limit_covers_substituted_text() {
        let mut object = json!({"v": "${A}${A}${A}"});
        let mut remaining = 25;
        assert_eq!(
            substitute(&mut object, &values(&[("A", "0123456789")]), &mut remaining),
            Err(TooLarge)
        );
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[${}A:=\\-x é]{0,24}") {
            let mut object = json!({"v": text});
            let _ = substitute(&mut object, &values(&[("A", "1"), ("x", "$${A}")]), &mut 1000);
        }

        #[test]
        fn a_text_without_listed_names_and_escapes_stays(text in "[${}B:=\\-x é]{0,24}") {
            prop_assume!(!text.contains("$$"));
            let object = json!({"v": text});
            prop_assert_eq!(replaced(object.clone(), &[("A", "1")]), object);
        }
    }
}
