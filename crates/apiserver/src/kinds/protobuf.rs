//! Protobuf bodies, which `kubectl create` and Go's typed clients send and accept for built-in kinds.
//!
//! A body is `k8s\0`, then the message `Unknown` with the kind and the bytes of the object. `codec.json` has the field
//! numbers.

mod write;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Map, Value, json};
use thiserror::Error;

pub use write::{write, write_event};

use super::codec::{GoType, Message, Plain, View, go_type};
use crate::object::times;

const MAGIC: &[u8] = b"k8s\0";

/// Why a protobuf body cannot be decoded.
#[derive(Debug, Error)]
pub enum ProtobufError {
    /// The body does not begin as Kubernetes' protobuf does.
    #[error("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")]
    NoPrefix,
    /// The kind has no field numbers.
    #[error("no kind {kind:?} is registered for version {api_version:?}")]
    UnknownKind {
        /// The version of the object.
        api_version: String,
        /// The kind of the object.
        kind: String,
    },
    /// A field is incomplete or of an unknown wire type.
    #[error("proto: the message is cut or broken")]
    Broken,
    /// A text is not UTF-8.
    #[error("proto: invalid UTF-8")]
    Utf8(#[source] std::str::Utf8Error),
    /// A message where the type is not a struct.
    #[error("proto: not a message")]
    NotAMessage,
    /// The wire type of a field differs from that of its Go type.
    #[error("proto: a field has a wire type that is not its own")]
    WireType,
    /// The JSON within a message is invalid.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// A time is out of range.
    #[error(transparent)]
    Time(#[from] jiff::Error),
}

/// Decodes an object.
///
/// # Errors
/// [`ProtobufError`]: the body is not an object, or its kind is not supported in protobuf.
pub fn read(bytes: &[u8]) -> Result<Value, ProtobufError> {
    read_as(bytes, "", "")
}

/// Decodes an object; if it does not name its version and kind, it has the given ones.
///
/// # Errors
/// [`ProtobufError`]: the body is not an object, or its kind is not supported in protobuf.
pub fn read_as(bytes: &[u8], as_version: &str, as_kind: &str) -> Result<Value, ProtobufError> {
    let rest = bytes.strip_prefix(MAGIC).ok_or(ProtobufError::NoPrefix)?;
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    for field in Fields(rest) {
        match field? {
            (1, Wire::Bytes(meta)) => {
                for field in Fields(meta) {
                    match field? {
                        (1, Wire::Bytes(text)) => api_version = string(text)?,
                        (2, Wire::Bytes(text)) => kind = string(text)?,
                        _ => {}
                    }
                }
            }
            (2, Wire::Bytes(object)) => raw = object,
            _ => {}
        }
    }
    if api_version.is_empty() {
        as_version.clone_into(&mut api_version);
    }
    if kind.is_empty() {
        as_kind.clone_into(&mut kind);
    }
    let Some(ty) = go_type(&api_version, &kind) else {
        return Err(ProtobufError::UnknownKind { api_version, kind });
    };
    let mut object = message(ty, raw)?;
    object["apiVersion"] = json!(api_version);
    object["kind"] = json!(kind);
    Ok(object)
}

/// A value on the wire.
#[derive(Clone, Copy)]
enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// An iterator over the fields of a message: numbers and values.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for place in 0..10 {
            let (byte, rest) = self.0.split_first()?;
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << (7 * place);
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn field(&mut self) -> Option<(u64, Wire<'a>)> {
        let tag = self.number()?;
        let wire = match tag & 7 {
            0 => Wire::Number(self.number()?),
            1 => Wire::Number(u64::from_le_bytes(self.bytes(8)?.try_into().ok()?)),
            2 => {
                let length = usize::try_from(self.number()?).ok()?;
                Wire::Bytes(self.bytes(length)?)
            }
            5 => Wire::Number(u64::from(u32::from_le_bytes(self.bytes(4)?.try_into().ok()?))),
            _ => return None,
        };
        Some((tag >> 3, wire))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Wire<'a>), ProtobufError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field.ok_or(ProtobufError::Broken))
    }
}

fn string(bytes: &[u8]) -> Result<String, ProtobufError> {
    let text = std::str::from_utf8(bytes).map_err(ProtobufError::Utf8)?;
    Ok(text.to_owned())
}

fn message(ty: GoType, bytes: &[u8]) -> Result<Value, ProtobufError> {
    let mut map = Map::new();
    fill(&mut map, ty, bytes)?;
    Ok(Value::Object(map))
}

/// Decodes the fields of a struct into a map.
fn fill(map: &mut Map<String, Value>, ty: GoType, bytes: &[u8]) -> Result<(), ProtobufError> {
    let View::Struct(numbers) = ty.view() else {
        return Err(ProtobufError::NotAMessage);
    };
    for field in Fields(bytes) {
        let (number, wire) = field?;
        // As usual in protobuf, unknown fields are ignored.
        let Some(Message {
            name, ty, repeated, ..
        }) = numbers.iter().find(|one| one.number == number)
        else {
            continue;
        };
        if name.is_empty() {
            if let Wire::Bytes(bytes) = wire {
                fill(map, *ty, bytes)?;
            }
            continue;
        }
        match (ty.view(), wire) {
            (View::List(element), wire) if *repeated => {
                let item = value(element, wire)?;
                let list = map.entry(name.clone()).or_insert_with(|| json!([]));
                if let Some(list) = list.as_array_mut() {
                    list.push(item);
                }
            }
            (View::Map(element), Wire::Bytes(bytes)) => {
                let (key, item) = entry(element, bytes)?;
                let entries = map.entry(name.clone()).or_insert_with(|| json!({}));
                entries[key] = item;
            }
            (_, wire) => {
                map.insert(name.clone(), value(*ty, wire)?);
            }
        }
    }
    Ok(())
}

/// Decodes an entry of a map.
fn entry(element: GoType, bytes: &[u8]) -> Result<(String, Value), ProtobufError> {
    let (mut key, mut item) = (String::new(), None);
    for field in Fields(bytes) {
        match field? {
            (1, Wire::Bytes(text)) => key = string(text)?,
            (2, wire) => item = Some(value(element, wire)?),
            _ => {}
        }
    }
    let item = match item {
        Some(item) => item,
        None => value(element, Wire::Bytes(&[]))?,
    };
    Ok((key, item))
}

fn value(ty: GoType, wire: Wire<'_>) -> Result<Value, ProtobufError> {
    match (ty.view(), wire) {
        (View::Struct(_), Wire::Bytes(bytes)) => message(ty, bytes),
        // Go has no items of an empty message: nil, not an empty list.
        (View::List(_), Wire::Bytes([])) => Ok(Value::Null),
        // A list that is a message of its own has its items in field 1.
        (View::List(element), Wire::Bytes(bytes)) => Fields(bytes)
            .map(|field| value(element, field?.1))
            .collect::<Result<Vec<_>, _>>()
            .map(Value::Array),
        (View::Plain(plain), wire) => plain_value(plain, wire),
        _ => Err(ProtobufError::WireType),
    }
}

/// Decodes a signed integer from its two's complement.
#[expect(
    clippy::cast_possible_wrap,
    reason = "protobuf encodes them as their two's complement"
)]
fn signed(number: u64) -> i64 {
    number as i64
}

fn plain_value(plain: Plain, wire: Wire<'_>) -> Result<Value, ProtobufError> {
    Ok(match (plain, wire) {
        (Plain::String, Wire::Bytes(bytes)) => Value::String(string(bytes)?),
        (Plain::Bool, Wire::Number(number)) => Value::Bool(number != 0),
        (Plain::Bool, Wire::Bytes(_)) => Value::Bool(false),
        (Plain::Float64, Wire::Number(number)) => json!(f64::from_bits(number)),
        (Plain::Int | Plain::Int32 | Plain::Int64 | Plain::Uint16 | Plain::Uint32 | Plain::Uint64, wire) => {
            match wire {
                Wire::Number(number) => json!(signed(number)),
                Wire::Bytes(_) => json!(0),
            }
        }
        (Plain::Bytes, Wire::Bytes(bytes)) => Value::String(STANDARD.encode(bytes)),
        (Plain::Time | Plain::Microtime, Wire::Bytes(bytes)) => time(plain == Plain::Microtime, bytes)?,
        (Plain::Quantity, Wire::Bytes(bytes)) => text_under(bytes, 1)?,
        (Plain::IntOrString, Wire::Bytes(bytes)) => int_or_string(bytes)?,
        (Plain::Duration, Wire::Bytes(bytes)) => {
            let nanos = number_under(bytes, 1)?;
            json!(format!("{}s", nanos / 1_000_000_000))
        }
        (Plain::Any, Wire::Bytes(bytes)) => raw(bytes)?,
        _ => return Err(ProtobufError::WireType),
    })
}

fn number_under(bytes: &[u8], wanted: u64) -> Result<i64, ProtobufError> {
    for field in Fields(bytes) {
        if let (number, Wire::Number(value)) = field?
            && number == wanted
        {
            return Ok(signed(value));
        }
    }
    Ok(0)
}

fn text_under(bytes: &[u8], wanted: u64) -> Result<Value, ProtobufError> {
    for field in Fields(bytes) {
        if let (number, Wire::Bytes(text)) = field?
            && number == wanted
        {
            return string(text).map(Value::String);
        }
    }
    Ok(json!(""))
}

/// Decodes a message that has JSON in field 1.
fn raw(bytes: &[u8]) -> Result<Value, ProtobufError> {
    match text_under(bytes, 1)? {
        Value::String(text) if !text.is_empty() => Ok(serde_json::from_str(&text)?),
        _ => Ok(Value::Null),
    }
}

fn time(micro: bool, bytes: &[u8]) -> Result<Value, ProtobufError> {
    let (seconds, nanos) = (number_under(bytes, 1)?, number_under(bytes, 2)?);
    // Go's zero time is null.
    if bytes.is_empty() {
        return Ok(Value::Null);
    }
    let time = Timestamp::new(seconds, i32::try_from(nanos).unwrap_or_default())?;
    Ok(json!(if micro {
        times::micros(time)
    } else {
        times::seconds(time)
    }))
}

fn int_or_string(bytes: &[u8]) -> Result<Value, ProtobufError> {
    if number_under(bytes, 1)? == 0 {
        return Ok(json!(number_under(bytes, 2)?));
    }
    text_under(bytes, 3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_from_kubectl_is_decoded() {
        let bytes = b"k8s\0\x0a\x0f\x0a\x02v1\x12\x09Namespace\x12\x19\x0a\x11\x0a\x01t\x12\x00\x1a\x00\x22\x00\x2a\x002\x008\x00B\x00\x12\x00\x1a\x02\x0a\x00\x1a\x00\x22\x00";
        let object = read(bytes).unwrap();
        assert_eq!(
            (&object["kind"], &object["metadata"]["name"]),
            (&json!("Namespace"), &json!("t"))
        );
        for (bytes, wanted) in [
            (&bytes[..30], "proto: the message is cut or broken"),
            (
                b"{}",
                "provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]",
            ),
            (
                b"k8s\0\x0a\x04\x12\x02No",
                "no kind \"No\" is registered for version \"\"",
            ),
            (b"k8s\0\x0a\x03\x12\x01\xff", "proto: invalid UTF-8"),
        ] {
            assert_eq!(read(bytes).unwrap_err().to_string(), wanted);
        }
    }
}
