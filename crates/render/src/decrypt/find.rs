//! Finds the encrypted parts of an object, and replaces them by plaintext. Pure.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map, Value};

use super::DecryptProblem;
use super::cipher::{self, Document};

/// The prefix of metadata keys that an environment file adds to a Secret besides the variables.
const METADATA_KEY: &str = "sops_";

/// The location of an encrypted part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Location {
    /// The object itself, which has the mapping `sops`.
    Object,
    /// A value of a Secret that is an encrypted file; `data` is in base64, `stringData` is not.
    Value { field: &'static str, key: String },
    /// Values of a Secret that were the lines of an encrypted environment file.
    Variables,
}

impl fmt::Display for Location {
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
pub(super) struct EncryptedPart {
    pub(super) location: Location,
    pub(super) document: Document,
}

/// Returns every encrypted part of an object, or only the object if it is encrypted itself.
pub(super) fn locations(object: &Value) -> Result<Vec<EncryptedPart>, (String, DecryptProblem)> {
    if cipher::is_document(object) {
        let document =
            cipher::of_mapping(object).map_err(|problem| (Location::Object.to_string(), problem))?;
        return Ok(vec![EncryptedPart {
            location: Location::Object,
            document,
        }]);
    }
    if !is_secret(object) {
        return Ok(Vec::new());
    }
    if let Some(text) = variables(object) {
        let document =
            cipher::of_variables(&text).map_err(|problem| (Location::Variables.to_string(), problem))?;
        return Ok(vec![EncryptedPart {
            location: Location::Variables,
            document,
        }]);
    }
    let mut found = Vec::new();
    for field in ["data", "stringData"] {
        for (key, value) in entries(object, field) {
            let location = Location::Value {
                field,
                key: key.clone(),
            };
            let Some(content) = content(field, value) else {
                continue;
            };
            let document =
                cipher::of_file(key, &content).map_err(|problem| (location.to_string(), problem))?;
            found.extend(document.map(|document| EncryptedPart { location, document }));
        }
    }
    Ok(found)
}

/// Replaces an encrypted part by its plaintext; `None` if the plaintext does not have the expected form.
pub(super) fn put(object: &mut Value, location: &Location, plaintext: Vec<u8>) -> Option<()> {
    match location {
        Location::Object => None,
        Location::Value { field, key } => {
            let value = object.get_mut(*field)?.get_mut(key)?;
            *value = Value::String(match *field {
                "data" => BASE64.encode(plaintext),
                _ => String::from_utf8(plaintext).ok()?,
            });
            Some(())
        }
        Location::Variables => {
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

/// Returns the path of an encrypted value in an object without metadata of SOPS.
pub(super) fn ciphertext_without_metadata(object: &Value) -> Option<String> {
    if is_secret(object) {
        let encrypted_value = |(key, value): (&String, &Value)| {
            let content = content("data", value)?;
            let text = std::str::from_utf8(&content).ok()?;
            cipher::is_value(text.trim()).then(|| format!("data[{key}]"))
        };
        if let Some(field) = entries(object, "data").find_map(encrypted_value) {
            return Some(field);
        }
    }
    ciphertext_below(object, "")
}

fn ciphertext_below(value: &Value, path: &str) -> Option<String> {
    match value {
        Value::String(text) => cipher::is_value(text).then(|| path.to_owned()),
        Value::Array(items) => items
            .iter()
            .enumerate()
            .find_map(|(index, item)| ciphertext_below(item, &format!("{path}[{index}]"))),
        Value::Object(fields) => fields.iter().find_map(|(key, field)| {
            let path = if path.is_empty() {
                key.clone()
            } else {
                format!("{path}.{key}")
            };
            ciphertext_below(field, &path)
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => None,
    }
}

/// Reassembles an environment file that kustomize split into keys: its metadata and the encrypted values, without other
/// keys of the same generator.
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

/// Returns the bytes of a value of a Secret; kustomize splits long base64 into lines.
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
    fn ciphertext_without_metadata_is_found() {
        let deep =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "spec": {"list": [{"a": "b"}, {"a": SECRET}]}});
        assert_eq!(
            ciphertext_without_metadata(&deep).as_deref(),
            Some("spec.list[1].a")
        );
        assert_eq!(
            ciphertext_without_metadata(&secret(json!({"k": BASE64.encode(SECRET)}))).as_deref(),
            Some("data[k]")
        );
        let harmless =
            json!({"data": {"readme": format!("a value looks like {SECRET}"), "n": 1, "none": null}});
        assert_eq!(ciphertext_without_metadata(&harmless), None);
    }

    #[test]
    fn variables_are_replaced_without_their_metadata_and_other_keys_stay() {
        let mut object = secret(json!({
            "PASSWORD": BASE64.encode(SECRET), "HOST": BASE64.encode("db"),
            "sops_mac": BASE64.encode(SECRET), "sops_version": BASE64.encode("3.13.3"),
            "sops_age__list_0__map_enc": BASE64.encode("a\\nb\n"),
        }));
        let locations = locations(&object).unwrap();
        let document = &locations[0].document;
        assert!(
            document.text.contains("sops_age__list_0__map_enc=a\\nb\\n\n"),
            "{}",
            document.text
        );
        assert!(!document.text.contains("HOST"));
        put(
            &mut object,
            &Location::Variables,
            b"{\"PASSWORD\": \"hunter2\"}".to_vec(),
        )
        .unwrap();
        assert_eq!(
            object["data"],
            json!({"PASSWORD": BASE64.encode("hunter2"), "HOST": BASE64.encode("db")})
        );
        assert_eq!(put(&mut object, &Location::Variables, b"[1]".to_vec()), None);
    }

    #[test]
    fn plain_objects_have_no_encrypted_parts() {
        let cases = [
            secret(json!({"a": BASE64.encode("plain"), "b": "not base64!", "c": 1})),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": format!("sops:\n  mac: {SECRET}\n")}}),
            json!({"apiVersion": "x/v1", "kind": "Thing", "sops": {"enabled": true}}),
        ];
        for object in cases {
            assert!(locations(&object).unwrap().is_empty(), "{object}");
        }
    }
}
