//! Recognises documents of SOPS, with their format and recipients. Pure.

use serde_json::{Map, Value};

use super::super::yaml;
use super::DecryptProblem;

/// The prefix of every encrypted value.
const VALUE: &str = "ENC[AES256_GCM,data:";
/// The allowed metadata besides the keys: any other field is removed, because it may be the address of a key service.
const METADATA: [&str; 11] = [
    "lastmodified",
    "mac",
    "version",
    "unencrypted_suffix",
    "encrypted_suffix",
    "unencrypted_regex",
    "encrypted_regex",
    "unencrypted_comment_regex",
    "encrypted_comment_regex",
    "mac_only_encrypted",
    "shamir_threshold",
];
/// Maximum documents in one value.
const MAX_DOCUMENTS: usize = 100;

/// The format of a document, with the names that `sops` uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Json,
    Yaml,
    Dotenv,
    Ini,
    Binary,
}

impl Format {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Json => "json",
            Self::Yaml => "yaml",
            Self::Dotenv => "dotenv",
            Self::Ini => "ini",
            Self::Binary => "binary",
        }
    }
}

/// An encrypted document whose only keys are age recipients.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Document {
    pub(super) format: Format,
    /// The format of the decrypted document.
    pub(super) output: Format,
    pub(super) text: String,
}

/// Whether a text is one encrypted value.
pub(super) fn is_value(text: &str) -> bool {
    text.starts_with(VALUE) && text.ends_with(']')
}

/// Whether a mapping is an encrypted document.
pub(super) fn is_document(value: &Value) -> bool {
    let has_text = |key: &str| value["sops"][key].is_string();
    has_text("mac") || (has_text("lastmodified") && has_text("version"))
}

/// An encrypted mapping as a document.
pub(super) fn of_mapping(value: &Value) -> Result<Document, DecryptProblem> {
    let mut value = value.clone();
    keep_age(&mut value)?;
    Ok(Document {
        format: Format::Json,
        output: Format::Json,
        text: value.to_string(),
    })
}

/// Parses a file as a document, if it is one; `name` distinguishes a binary file from similar JSON.
pub(super) fn of_file(name: &str, content: &[u8]) -> Result<Option<Document>, DecryptProblem> {
    let Ok(text) = std::str::from_utf8(content) else {
        return Ok(None);
    };
    // Most files are not encrypted, and this test is cheap.
    if !text.contains("sops") || !text.contains(VALUE) {
        return Ok(None);
    }
    if text.trim_start().starts_with('{') {
        return json(name, text);
    }
    let begins = |start: &str| text.lines().any(|line| line.starts_with(start));
    if begins("sops_mac=") {
        return lines(text, Format::Dotenv).map(Some);
    }
    if begins("[sops]") {
        return lines(text, Format::Ini).map(Some);
    }
    if begins("sops:") {
        yaml_text(text)
    } else {
        Ok(None)
    }
}

/// Parses the lines `KEY=VALUE` of an encrypted environment file as a document with JSON output.
pub(super) fn of_variables(text: &str) -> Result<Document, DecryptProblem> {
    let document = lines(text, Format::Dotenv)?;
    Ok(Document {
        output: Format::Json,
        ..document
    })
}

fn json(name: &str, text: &str) -> Result<Option<Document>, DecryptProblem> {
    let Ok(value) = serde_json::from_str::<Value>(text) else {
        return Ok(None);
    };
    if !is_document(&value) {
        return Ok(None);
    }
    let keys: Vec<&str> = value
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, _)| key.as_str())
        .collect();
    let wrapped = keys == ["data", "sops"] || keys == ["sops", "data"];
    let format = if wrapped && !name.ends_with(".json") {
        Format::Binary
    } else {
        Format::Json
    };
    let text = with_age_only(&value, text)?;
    Ok(Some(Document {
        format,
        output: format,
        text,
    }))
}

fn yaml_text(text: &str) -> Result<Option<Document>, DecryptProblem> {
    let Ok(documents) = yaml::read(text.as_bytes(), MAX_DOCUMENTS) else {
        return Ok(None);
    };
    if !documents.iter().any(is_document) {
        return Ok(None);
    }
    let mut text = text.to_owned();
    let alone = documents.len() == 1;
    for document in documents {
        let kept = with_age_only(&document, &text)?;
        if kept != text && !alone {
            // To remove keys from one of several documents, the YAML would have to be rewritten.
            return Err(DecryptProblem::NoRecipient);
        }
        text = kept;
    }
    Ok(Some(Document {
        format: Format::Yaml,
        output: Format::Yaml,
        text,
    }))
}

/// Returns the unchanged text if it has age recipients only; otherwise rewritten without the other keys.
fn with_age_only(value: &Value, text: &str) -> Result<String, DecryptProblem> {
    let mut kept = value.clone();
    keep_age(&mut kept)?;
    // JSON is YAML, too.
    Ok(if kept == *value {
        text.to_owned()
    } else {
        kept.to_string()
    })
}

/// Removes everything unknown from the metadata, in particular keys other than age recipients.
fn keep_age(document: &mut Value) -> Result<(), DecryptProblem> {
    let metadata = document["sops"]
        .as_object_mut()
        .ok_or(DecryptProblem::NoRecipient)?;
    metadata.retain(|key, value| match key.as_str() {
        "age" => is_some_list(value),
        "key_groups" => {
            let groups = value.as_array_mut().map(std::mem::take).unwrap_or_default();
            *value = groups.iter().filter_map(age_of_group).collect();
            is_some_list(value)
        }
        key => METADATA.contains(&key),
    });
    if metadata.contains_key("age") || metadata.contains_key("key_groups") {
        Ok(())
    } else {
        Err(DecryptProblem::NoRecipient)
    }
}

fn age_of_group(group: &Value) -> Option<Value> {
    let age = group.get("age").filter(|age| is_some_list(age))?;
    Some(Value::Object(Map::from_iter([("age".to_owned(), age.clone())])))
}

fn is_some_list(value: &Value) -> bool {
    value.as_array().is_some_and(|list| !list.is_empty())
}

/// The same for formats of lines, where the metadata is flattened: `sops_age__list_0__map_enc=…`, or without the prefix
/// in the section `[sops]`.
fn lines(text: &str, format: Format) -> Result<Document, DecryptProblem> {
    let mut in_metadata = false;
    let mut age = false;
    let mut kept = String::with_capacity(text.len());
    for line in text.lines() {
        let key = match format {
            Format::Ini => {
                if line.starts_with('[') {
                    in_metadata = line.trim_end() == "[sops]";
                }
                in_metadata.then_some(line).filter(|line| !line.starts_with('['))
            }
            _ => line.strip_prefix("sops_"),
        };
        let name = key
            .and_then(|line| line.split_once('='))
            .map(|(name, _)| name.trim());
        let known = match name {
            None => key.is_none_or(|rest| rest.trim().is_empty()),
            Some(name) if is_age(name) => {
                age = true;
                true
            }
            Some(name) => METADATA.contains(&name),
        };
        if known {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    if !age {
        return Err(DecryptProblem::NoRecipient);
    }
    Ok(Document {
        format,
        output: format,
        text: kept,
    })
}

fn is_age(name: &str) -> bool {
    name.starts_with("age__list_")
        || (name.starts_with("key_groups__list_") && name.contains("__map_age__list_"))
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
    fn sealed(keys: Value) -> Value {
        let mut sops = json!({"mac": SECRET, "lastmodified": "2026-11-21T00:00:00Z", "version": "3.13.3"});
        for (key, value) in keys.as_object().into_iter().flatten() {
            sops[key] = value.clone();
        }
        json!({"a": SECRET, "sops": sops})
    }

    fn age() -> Value {
        json!([{"recipient": "age1x", "enc": "e"}])
    }

    #[test]
    fn keys_of_other_services_are_removed() {
        let vault = json!([{"vault_address": "http://127.0.0.1:8200", "engine_path": "t", "key_name": "k"}]);
        for foreign in [
            "hc_vault",
            "kms",
            "gcp_kms",
            "azure_kv",
            "hckms",
            "pgp",
            "something_new",
        ] {
            let document = of_mapping(&sealed(json!({"age": age(), foreign: vault}))).unwrap();
            assert!(
                !document.text.contains("8200") && document.text.contains("age1x"),
                "{foreign}"
            );
            assert_eq!(
                of_mapping(&sealed(json!({foreign: vault}))),
                Err(DecryptProblem::NoRecipient)
            );
            let text = sealed(json!({"age": age(), foreign: vault})).to_string();
            let file = of_file("f.json", text.as_bytes()).unwrap().unwrap();
            assert!(
                !file.text.contains("8200") && file.text.contains("age1x"),
                "{foreign}"
            );
            let groups = json!([{foreign: vault, "age": age()}, {foreign: vault}]);
            let document = of_mapping(&sealed(json!({"key_groups": groups}))).unwrap();
            assert!(
                !document.text.contains("8200") && document.text.contains("age1x"),
                "{foreign} in a group"
            );
        }
    }

    #[test]
    fn keys_are_removed_from_line_formats_too() {
        let dotenv = format!(
            "A={SECRET}\nsops_hc_vault__list_0__map_vault_address=http://127.0.0.1:8200\n\
             sops_age__list_0__map_enc=e\nsops_version=3.13.3\nsops_mac={SECRET}\n"
        );
        let document = of_file("x", dotenv.as_bytes()).unwrap().unwrap();
        assert_eq!(document.format, Format::Dotenv);
        assert!(!document.text.contains("8200"));
        assert!(document.text.contains(&format!("A={SECRET}\n")) && document.text.contains("sops_mac="));
        let ini = format!(
            "[main]\nhc_vault__list_0__map_vault_address = kept\na = {SECRET}\n\n[sops]\n\
             hc_vault__list_0__map_vault_address = http://127.0.0.1:8200\nage__list_0__map_enc = e\nmac = {SECRET}\n"
        );
        let document = of_file("x", ini.as_bytes()).unwrap().unwrap();
        assert_eq!(document.format, Format::Ini);
        assert!(!document.text.contains("8200") && document.text.contains("= kept"));
        let other_keys = format!("A={SECRET}\nsops_pgp__list_0__map_enc=e\nsops_mac={SECRET}\n");
        assert_eq!(
            of_file("x", other_keys.as_bytes()),
            Err(DecryptProblem::NoRecipient)
        );
    }

    #[test]
    fn files_are_recognised_by_their_content() {
        let json = sealed(json!({"age": age()}));
        let binary = json!({"data": SECRET, "sops": json["sops"]}).to_string();
        let yaml = format!("a: {SECRET}\nsops:\n  age: [{{recipient: age1x, enc: e}}]\n  mac: {SECRET}\n");
        for (name, content, format) in [
            ("a.json", json.to_string(), Some(Format::Json)),
            ("key", binary.clone(), Some(Format::Binary)),
            ("a.json", binary, Some(Format::Json)),
            ("config", yaml.clone(), Some(Format::Yaml)),
            ("a.json", "{\"sops\": 1}".into(), None),
            ("a.yaml", format!("sops: {SECRET}\n"), None),
            ("a.env", "sops_mac=unencrypted\n".into(), None),
            ("a.txt", format!("how sops works: {SECRET}"), None),
        ] {
            let found = of_file(name, content.as_bytes()).unwrap();
            assert_eq!(
                found.as_ref().map(|document| document.format),
                format,
                "{content}"
            );
        }
        // A document with age recipients only is not changed, comments included.
        let commented = format!("# why\n{yaml}");
        assert_eq!(
            of_file("x", commented.as_bytes()).unwrap().unwrap().text,
            commented
        );
        assert_eq!(of_file("x", b"\xff sops ENC[AES256_GCM,data:"), Ok(None));
    }
}
