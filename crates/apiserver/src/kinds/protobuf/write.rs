//! Encoding of responses in protobuf, for Go's typed clients.
//!
//! Fields that are absent in JSON are absent here; Go reads both as the zero value.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value};

use super::MAGIC;
use crate::kinds::codec::{GoType, Message, Plain, View, go_type};
use crate::object::times;

/// The fields of messages that are not stored as objects: of lists and of `Status`.
enum Part {
    Text(u64, &'static str),
    Number(u64, &'static str),
    Of(u64, &'static str, &'static [Part]),
    Each(u64, &'static str, &'static [Part]),
}

const LIST_META: &[Part] = &[
    Part::Text(1, "selfLink"),
    Part::Text(2, "resourceVersion"),
    Part::Text(3, "continue"),
    Part::Number(4, "remainingItemCount"),
];
const CAUSE: &[Part] = &[
    Part::Text(1, "reason"),
    Part::Text(2, "message"),
    Part::Text(3, "field"),
];
const DETAILS: &[Part] = &[
    Part::Text(1, "name"),
    Part::Text(2, "group"),
    Part::Text(3, "kind"),
    Part::Each(4, "causes", CAUSE),
    Part::Number(5, "retryAfterSeconds"),
    Part::Text(6, "uid"),
];
const STATUS: &[Part] = &[
    Part::Of(1, "metadata", LIST_META),
    Part::Text(2, "status"),
    Part::Text(3, "message"),
    Part::Text(4, "reason"),
    Part::Of(5, "details", DETAILS),
    Part::Number(6, "code"),
];

/// Encodes an object, a list or a status; `None` if the kind has no form in protobuf.
pub fn write(object: &Value) -> Option<Vec<u8>> {
    let text = |name: &str| object[name].as_str().unwrap_or_default();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    let raw = message_of(api_version, kind, object)?;
    let mut meta = Vec::new();
    bytes_field(&mut meta, 1, api_version.as_bytes());
    bytes_field(&mut meta, 2, kind.as_bytes());
    let mut out = MAGIC.to_vec();
    bytes_field(&mut out, 1, &meta);
    bytes_field(&mut out, 2, &raw);
    bytes_field(&mut out, 3, b"");
    bytes_field(&mut out, 4, b"");
    Some(out)
}

/// Encodes an event of a watch, with its length before it.
pub fn write_event(event: &Value) -> Option<Vec<u8>> {
    let object = write(&event["object"])?;
    let mut extension = Vec::new();
    bytes_field(&mut extension, 1, &object);
    let mut message = Vec::new();
    bytes_field(
        &mut message,
        1,
        event["type"].as_str().unwrap_or_default().as_bytes(),
    );
    bytes_field(&mut message, 2, &extension);
    let mut out = u32::try_from(message.len()).ok()?.to_be_bytes().to_vec();
    out.append(&mut message);
    Some(out)
}

fn message_of(api_version: &str, kind: &str, object: &Value) -> Option<Vec<u8>> {
    let map = object.as_object()?;
    let mut out = Vec::new();
    if (api_version, kind) == ("v1", "Status") {
        parts(&mut out, STATUS, object);
    } else if let Some(ty) = go_type(api_version, kind) {
        fields(&mut out, ty, map);
    } else if let (Some(of), Some(items)) = (kind.strip_suffix("List"), object["items"].as_array()) {
        let ty = go_type(api_version, of)?;
        let mut meta = Vec::new();
        parts(&mut meta, LIST_META, &object["metadata"]);
        bytes_field(&mut out, 1, &meta);
        for item in items {
            let mut message = Vec::new();
            fields(&mut message, ty, item.as_object()?);
            bytes_field(&mut out, 2, &message);
        }
    } else {
        return None;
    }
    Some(out)
}

fn parts(out: &mut Vec<u8>, parts_of: &[Part], object: &Value) {
    for part in parts_of {
        match part {
            Part::Text(number, name) => {
                if let Some(text) = object[*name].as_str() {
                    bytes_field(out, *number, text.as_bytes());
                }
            }
            Part::Number(number, name) => {
                if let Some(value) = object[*name].as_i64() {
                    number_field(out, *number, value);
                }
            }
            Part::Of(number, name, inner) => {
                if object[*name].is_object() {
                    let mut message = Vec::new();
                    parts(&mut message, inner, &object[*name]);
                    bytes_field(out, *number, &message);
                }
            }
            Part::Each(number, name, inner) => {
                for item in object[*name].as_array().into_iter().flatten() {
                    let mut message = Vec::new();
                    parts(&mut message, inner, item);
                    bytes_field(out, *number, &message);
                }
            }
        }
    }
}

fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// A signed number is written as its two's complement.
fn number_field(out: &mut Vec<u8>, number: u64, value: i64) {
    varint(out, number << 3);
    varint(out, value.cast_unsigned());
}

fn bytes_field(out: &mut Vec<u8>, number: u64, bytes: &[u8]) {
    varint(out, number << 3 | 2);
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Encodes the fields of a struct.
fn fields(out: &mut Vec<u8>, ty: GoType, map: &Map<String, Value>) {
    let View::Struct(numbers) = ty.view() else { return };
    for Message {
        number,
        name,
        ty,
        repeated,
    } in numbers
    {
        if name.is_empty() {
            let mut message = Vec::new();
            fields(&mut message, *ty, map);
            bytes_field(out, *number, &message);
            continue;
        }
        let Some(found) = map.get(name).filter(|found| !found.is_null()) else {
            continue;
        };
        match (ty.view(), found) {
            (View::List(element), Value::Array(items)) if *repeated => {
                for item in items {
                    value(out, *number, element, item);
                }
            }
            (View::Map(element), Value::Object(entries)) => {
                for (key, item) in entries {
                    let mut entry = Vec::new();
                    bytes_field(&mut entry, 1, key.as_bytes());
                    value(&mut entry, 2, element, item);
                    bytes_field(out, *number, &entry);
                }
            }
            _ => value(out, *number, *ty, found),
        }
    }
}

fn value(out: &mut Vec<u8>, number: u64, ty: GoType, given: &Value) {
    match (ty.view(), given) {
        (View::Struct(_), given) => {
            let mut message = Vec::new();
            if let Some(map) = given.as_object() {
                fields(&mut message, ty, map);
            }
            bytes_field(out, number, &message);
        }
        // A list that is a message of its own has its items in field 1.
        (View::List(element), given) => {
            let mut message = Vec::new();
            for item in given.as_array().into_iter().flatten() {
                value(&mut message, 1, element, item);
            }
            bytes_field(out, number, &message);
        }
        (View::Map(_), _) => {}
        (View::Plain(plain), given) => plain_value(out, number, plain, given),
    }
}

fn plain_value(out: &mut Vec<u8>, number: u64, plain: Plain, given: &Value) {
    let text = given.as_str().unwrap_or_default();
    match plain {
        Plain::String => bytes_field(out, number, text.as_bytes()),
        Plain::Bool => number_field(out, number, i64::from(given == true)),
        Plain::Float64 => {
            varint(out, number << 3 | 1);
            out.extend_from_slice(&given.as_f64().unwrap_or_default().to_le_bytes());
        }
        Plain::Int | Plain::Int32 | Plain::Int64 | Plain::Uint16 | Plain::Uint32 | Plain::Uint64 => {
            number_field(out, number, given.as_i64().unwrap_or_default());
        }
        Plain::Bytes => bytes_field(out, number, &STANDARD.decode(text).unwrap_or_default()),
        _ => {
            let mut message = Vec::new();
            structured(&mut message, plain, given);
            bytes_field(out, number, &message);
        }
    }
}

/// Encodes the types that are one value in JSON and a message in protobuf.
fn structured(out: &mut Vec<u8>, plain: Plain, given: &Value) {
    let text = given.as_str().unwrap_or_default();
    match plain {
        Plain::Time | Plain::Microtime => {
            if let Some(time) = times::parse(text) {
                number_field(out, 1, time.as_second());
                number_field(out, 2, i64::from(time.subsec_nanosecond()));
            }
        }
        Plain::Duration => {
            let duration = text.parse::<jiff::SignedDuration>().unwrap_or_default();
            number_field(out, 1, i64::try_from(duration.as_nanos()).unwrap_or_default());
        }
        Plain::Quantity => bytes_field(out, 1, text.as_bytes()),
        Plain::IntOrString => match given {
            Value::String(text) => {
                number_field(out, 1, 1);
                number_field(out, 2, 0);
                bytes_field(out, 3, text.as_bytes());
            }
            given => {
                number_field(out, 1, 0);
                number_field(out, 2, given.as_i64().unwrap_or_default());
                bytes_field(out, 3, b"");
            }
        },
        // JSON within the message.
        _ => bytes_field(out, 1, given.to_string().as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::protobuf::read;

    #[test]
    fn what_is_encoded_is_decoded_to_the_same() {
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "a", "labels": {"a": "b"}, "creationTimestamp": "2026-01-02T03:04:05Z"},
            "spec": {"nodeName": "n", "terminationGracePeriodSeconds": -5, "volumes": [{"name": "v", "emptyDir": {}}],
                "containers": [{"name": "c", "ports": [{"containerPort": 80}], "args": ["", "b"],
                    "resources": {"limits": {"cpu": "1500m"}},
                    "livenessProbe": {"httpGet": {"port": "http"}}, "readinessProbe": {"httpGet": {"port": 80}}}],
                "tolerations": [{"operator": "Exists"}]}});
        let bytes = write(&pod).unwrap();
        assert_eq!(read(&bytes).unwrap(), pod);
        assert!(write(&json!({"apiVersion": "example.org/v1", "kind": "Thing"})).is_none());
    }
}
