//! Where an object is encrypted, and how the plaintext goes back there. Pure.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map, Value};

use super::DecryptProblem;
use super::cipher::{self, Document};

/// Keys that an environment file leaves in a Secret beside the variables.
const METADATA_KEY: &str = "sops_";

/// Where an object is encrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// The object itself: it has the mapping `sops`.
    Object,
    /// A value of a Secret that is an encrypted file; `data` is in base64, `stringData` is not.
    Value { field: &'static str, key: String },
    /// Values of a Secret that were the lines of an encrypted environment file.
    Variables,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Object => f.write_str("sops"),
            Self::Value { field, key } => write!(f, "{field}[{key}]"),
            Self::Variables => f.write_str("data[sops_mac]"),
        }
    }
}

/// An encrypted part of an object.
#[derive(Debug)]
pub(super) struct Sealed {
    pub(super) place: Place,
    pub(super) document: Document,
}

/// Every encrypted part of an object; of an object that is encrypted itself, that one only.
pub(super) fn places(object: &Value) -> Result<Vec<Sealed>, (String, DecryptProblem)> {
    if cipher::is_document(object) {
        let document = cipher::of_mapping(object).map_err(|problem| (Place::Object.to_string(), problem))?;
        return Ok(vec![Sealed {
            place: Place::Object,
            document,
        }]);
    }
    if !is_secret(object) {
        return Ok(Vec::new());
    }
    if let Some(text) = variables(object) {
        let document =
            cipher::of_variables(&text).map_err(|problem| (Place::Variables.to_string(), problem))?;
        return Ok(vec![Sealed {
            place: Place::Variables,
            document,
        }]);
    }
    let mut found = Vec::new();
    for field in ["data", "stringData"] {
        for (key, value) in entries(object, field) {
            let place = Place::Value {
                field,
                key: key.clone(),
            };
            let Some(content) = content(field, value) else {
                continue;
            };
            let document = cipher::of_file(key, &content).map_err(|problem| (place.to_string(), problem))?;
            found.extend(document.map(|document| Sealed { place, document }));
        }
    }
    Ok(found)
}

/// Puts plaintext in its place; `None` if it does not fit there.
pub(super) fn put(object: &mut Value, place: &Place, plaintext: Vec<u8>) -> Option<()> {
    match place {
        Place::Object => None,
        Place::Value { field, key } => {
            let value = object.get_mut(*field)?.get_mut(key)?;
            *value = Value::String(match *field {
                "data" => BASE64.encode(plaintext),
                _ => String::from_utf8(plaintext).ok()?,
            });
            Some(())
        }
        Place::Variables => {
            let opened: Map<String, Value> = serde_json::from_slice(&plaintext).ok()?;
            let data = object.get_mut("data")?.as_object_mut()?;
            data.retain(|key, _| !key.starts_with(METADATA_KEY));
            for (key, value) in opened {
                data.insert(key, Value::String(BASE64.encode(value.as_str()?)));
            }
            Some(())
        }
    }
}

/// A value that is encrypted in an object that says nothing about it.
pub(super) fn stray(object: &Value) -> Option<String> {
    if is_secret(object) {
        let lone = |(key, value): (&String, &Value)| {
            let content = content("data", value)?;
            let text = std::str::from_utf8(&content).ok()?;
            cipher::is_value(text.trim()).then(|| format!("data[{key}]"))
        };
        if let Some(field) = entries(object, "data").find_map(lone) {
            return Some(field);
        }
    }
    stray_below(object, "")
}

fn stray_below(value: &Value, path: &str) -> Option<String> {
    match value {
        Value::String(text) => cipher::is_value(text).then(|| path.to_owned()),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .find_map(|(index, item)| stray_below(item, &format!("{path}[{index}]"))),
        Value::Object(fields) => fields.iter().find_map(|(key, field)| {
            let path = if path.is_empty() {
                key.clone()
            } else {
                format!("{path}.{key}")
            };
            stray_below(field, &path)
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => None,
    }
}

/// The environment file that kustomize took apart: its metadata, and the values that are encrypted. What else the same
/// generator put there is not part of it.
fn variables(object: &Value) -> Option<String> {
    let decoded = |value: &Value| content("data", value).and_then(|bytes| String::from_utf8(bytes).ok());
    object["data"].get("sops_mac")?;
    let mut text = String::new();
    for (key, value) in entries(object, "data") {
        let Some(value) = decoded(value) else { continue };
        if key.starts_with(METADATA_KEY) || cipher::is_value(&value) {
            text.push_str(&format!("{key}={}\n", value.replace('\n', "\\n")));
        }
    }
    Some(text)
}

fn entries<'a>(object: &'a Value, field: &str) -> impl Iterator<Item = (&'a String, &'a Value)> {
    object[field].as_object().into_iter().flatten()
}

/// The bytes of a Secret's value; kustomize breaks long base64 into lines.
fn content(field: &str, value: &Value) -> Option<Vec<u8>> {
    let text = value.as_str()?;
    if field != "data" {
        return Some(text.as_bytes().to_vec());
    }
    let text: String = text.chars().filter(|c| !c.is_ascii_whitespace()).collect();
    BASE64.decode(text).ok()
}

fn is_secret(object: &Value) -> bool {
    object["kind"] == "Secret" && object["apiVersion"] == "v1"
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const SECRET: &str = "ENC[AES256_GCM,data:x,iv:x,tag:x,type:str]";

    #[expect(
        clippy::needless_pass_by_value,
        reason = "reads like the literals it is given"
    )]
    fn secret(data: Value) -> Value {
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": data})
    }

    #[test]
    fn ciphertext_that_nothing_describes_is_found() {
        let deep =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "spec": {"list": [{"a": "b"}, {"a": SECRET}]}});
        assert_eq!(stray(&deep).as_deref(), Some("spec.list[1].a"));
        assert_eq!(
            stray(&secret(json!({"k": BASE64.encode(SECRET)}))).as_deref(),
            Some("data[k]")
        );
        let harmless =
            json!({"data": {"readme": format!("a value looks like {SECRET}"), "n": 1, "none": null}});
        assert_eq!(stray(&harmless), None);
    }

    #[test]
    fn variables_go_back_without_their_metadata_and_beside_what_was_there() {
        let mut object = secret(json!({
            "PASSWORD": BASE64.encode(SECRET), "HOST": BASE64.encode("db"),
            "sops_mac": BASE64.encode(SECRET), "sops_version": BASE64.encode("3.13.3"),
            "sops_age__list_0__map_enc": BASE64.encode("a\\nb\n"),
        }));
        let places = places(&object).unwrap();
        let document = &places[0].document;
        assert!(
            document.text.contains("sops_age__list_0__map_enc=a\\nb\\n\n"),
            "{}",
            document.text
        );
        assert!(!document.text.contains("HOST"));
        put(
            &mut object,
            &Place::Variables,
            b"{\"PASSWORD\": \"hunter2\"}".to_vec(),
        )
        .unwrap();
        assert_eq!(
            object["data"],
            json!({"PASSWORD": BASE64.encode("hunter2"), "HOST": BASE64.encode("db")})
        );
        assert_eq!(put(&mut object, &Place::Variables, b"[1]".to_vec()), None);
    }

    #[test]
    fn what_is_not_encrypted_has_no_place() {
        let cases = [
            secret(json!({"a": BASE64.encode("plain"), "b": "not base64!", "c": 1})),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": format!("sops:\n  mac: {SECRET}\n")}}),
            json!({"apiVersion": "x/v1", "kind": "Thing", "sops": {"enabled": true}}),
        ];
        for object in cases {
            assert!(places(&object).unwrap().is_empty(), "{object}");
        }
    }
}
