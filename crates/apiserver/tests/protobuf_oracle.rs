//! Decodes objects that Go has encoded in protobuf, and compares them with the JSON of the same objects.
//! `tests/oracle/apply/protobuf` writes them; the first object of each kind has every field.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot be set up fails by panicking"
)]

use std::collections::BTreeMap;
use std::io::Read as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::read::GzDecoder;
use serde::Deserialize;
use serde_json::Value;
use starling_apiserver::kinds::{codec, protobuf};

#[derive(Deserialize)]
struct Encoded {
    version: String,
    kind: String,
    protobuf: String,
    json: Value,
}

fn corpus() -> Vec<Encoded> {
    let mut text = String::new();
    GzDecoder::new(&include_bytes!("data/protobuf.json.gz")[..])
        .read_to_string(&mut text)
        .unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Adds the paths at which two values differ.
fn differ(path: &str, wanted: &Value, got: &Value, found: &mut Vec<String>) {
    match (wanted, got) {
        (Value::Object(wanted), Value::Object(got)) => {
            let names: std::collections::BTreeSet<&String> = wanted.keys().chain(got.keys()).collect();
            for name in names {
                let (wanted, got) = (
                    wanted.get(name).unwrap_or(&Value::Null),
                    got.get(name).unwrap_or(&Value::Null),
                );
                differ(&format!("{path}.{name}"), wanted, got, found);
            }
        }
        (Value::Array(wanted), Value::Array(got)) if wanted.len() == got.len() => {
            for (index, (wanted, got)) in wanted.iter().zip(got).enumerate() {
                differ(&format!("{path}[{index}]"), wanted, got, found);
            }
        }
        _ if wanted == got => {}
        _ => found.push(format!("{path}: {wanted} became {got}")),
    }
}

#[test]
fn every_field_of_every_kind_is_decoded_as_go_decodes_it() {
    let corpus = corpus();
    let mut kinds = BTreeMap::new();
    let mut found = Vec::new();
    for Encoded {
        version,
        kind,
        protobuf,
        mut json,
    } in corpus
    {
        let name = format!("{version} {kind}");
        let mut object = match protobuf::read(&STANDARD.decode(protobuf).unwrap()) {
            Ok(object) => object,
            Err(error) => {
                found.push(format!("{name}: {error}"));
                continue;
            }
        };
        let ty = codec::go_type(&version, &kind).unwrap();
        ty.normalize(&mut json).unwrap();
        if let Err(error) = ty.normalize(&mut object) {
            found.push(format!("{name}: {error}"));
            continue;
        }
        *kinds.entry(name.clone()).or_insert(0) += 1;
        differ(&name, &json, &object, &mut found);
    }
    assert!(
        found.is_empty(),
        "{} differences:\n{}",
        found.len(),
        found.join("\n")
    );
    assert!(kinds.len() >= 70, "{}", kinds.len());
}
