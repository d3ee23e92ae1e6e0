//! Decodes a value into a Go type, field by field.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use thiserror::Error;

use super::{Field, GoType, LeaveOut, Plain, Shape, Type};
use crate::kinds::quantity;
use crate::object::times;
use crate::value::{IllegalBase64, json_type};

/// Why a value does not have the form of its Go type, in the texts of Go.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum CodecError {
    /// A value of another type than the object, or than a field with a decoder of its own.
    #[error("json: cannot unmarshal {found} into Go value of type {target}")]
    ValueType {
        /// The JSON type of the value, with the value of a number that does not fit.
        found: String,
        /// The Go type.
        target: String,
    },
    /// A value of another type than the field.
    #[error("json: cannot unmarshal {found} into Go struct field {holder}.{field} of type {target}")]
    FieldType {
        /// The JSON type of the value, with the value of a number that does not fit.
        found: String,
        /// The struct that has the field, without its package.
        holder: String,
        /// The names from the object to the field, joined by dots.
        field: String,
        /// The Go type of the field.
        target: String,
    },
    /// A text that is not a quantity.
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Quantity,
    /// A text that is not a time.
    #[error("parsing time {text:?} as {layout:?}: cannot parse {text:?} as \"2006\"")]
    Time {
        /// The text.
        text: String,
        /// The layout of the field's times, as Go writes layouts.
        layout: &'static str,
    },
    /// A text that is not Base64.
    #[error(transparent)]
    Base64(#[from] IllegalBase64),
}

impl CodecError {
    /// Returns the error of a value that a type with a decoder of its own does not take.
    fn value_type(found: &Value, target: &str) -> Self {
        Self::ValueType {
            found: json_type(found).to_owned(),
            target: target.to_owned(),
        }
    }
}

/// Converts a value to the form of a type; returns the paths of unknown fields.
///
/// # Errors
/// The first value that does not match the type of its field.
pub(super) fn read(ty: GoType, value: &mut Value) -> Result<Vec<String>, CodecError> {
    let mut reader = Reader {
        unknown: Vec::new(),
        path: String::new(),
        names: Vec::new(),
        holder: "",
    };
    reader.value(ty, value)?;
    Ok(reader.unknown)
}

struct Reader {
    unknown: Vec<String>,
    /// The path in the form of strict decoding errors: with list indexes.
    path: String,
    /// The path in the form of Go's own errors: field names only.
    names: Vec<String>,
    /// The struct that contains the value.
    holder: &'static str,
}

impl Reader {
    /// Decodes a value one level below.
    fn below<T>(
        &mut self,
        step: &str,
        read_inner: impl FnOnce(&mut Self) -> Result<T, CodecError>,
    ) -> Result<T, CodecError> {
        let length = self.path.len();
        self.path.push_str(step);
        let outcome = read_inner(self);
        self.path.truncate(length);
        outcome
    }

    /// Returns the error of a value of another type than the place that it is at.
    fn mismatch(&self, found: impl Into<String>, ty: &Type) -> CodecError {
        let (found, target) = (found.into(), go_name(ty).to_owned());
        if self.names.is_empty() {
            return CodecError::ValueType { found, target };
        }
        CodecError::FieldType {
            found,
            holder: self.holder.rsplit('.').next().unwrap_or_default().to_owned(),
            field: self.names.join("."),
            target,
        }
    }

    fn value(&mut self, ty: GoType, value: &mut Value) -> Result<(), CodecError> {
        let Some(ty) = ty.get() else { return Ok(()) };
        match &ty.shape {
            Shape::Struct(fields) => match value {
                Value::Null => {
                    *value = json!({});
                    self.value_of_struct(ty, fields, value)
                }
                Value::Object(_) => self.value_of_struct(ty, fields, value),
                other => Err(self.mismatch(json_type(other), ty)),
            },
            Shape::List(element) => match value {
                Value::Null => Ok(()),
                Value::Array(items) => {
                    for (place, item) in items.iter_mut().enumerate() {
                        self.below(&format!("[{place}]"), |reader| reader.value(*element, item))?;
                    }
                    Ok(())
                }
                other => Err(self.mismatch(json_type(other), ty)),
            },
            Shape::Map(element) => match value {
                Value::Null => Ok(()),
                Value::Object(map) => {
                    for (name, item) in map {
                        let step = if self.path.is_empty() {
                            name.clone()
                        } else {
                            format!(".{name}")
                        };
                        self.below(&step, |reader| reader.value(*element, item))?;
                        if item.is_null() {
                            *item = match element.get().map(|ty| &ty.shape) {
                                // Go writes a null byte slice as an empty string.
                                Some(Shape::Plain(Plain::Bytes)) => json!(""),
                                _ => zero(*element),
                            };
                        }
                    }
                    Ok(())
                }
                other => Err(self.mismatch(json_type(other), ty)),
            },
            Shape::Plain(plain) => self.plain(*plain, ty, value),
        }
    }

    fn value_of_struct(
        &mut self,
        ty: &'static Type,
        fields: &BTreeMap<String, Field>,
        value: &mut Value,
    ) -> Result<(), CodecError> {
        let Value::Object(map) = value else { return Ok(()) };
        let holder = std::mem::replace(&mut self.holder, &ty.name);
        let given: Vec<String> = map.keys().cloned().collect();
        for name in given {
            let step = if self.path.is_empty() {
                name.clone()
            } else {
                format!(".{name}")
            };
            let Some(field) = fields.get(&name) else {
                self.unknown.push(format!("{}{step}", self.path));
                map.remove(&name);
                continue;
            };
            let Some(value) = map.get_mut(&name) else { continue };
            if value.is_null() && field.leave_out != LeaveOut::Never {
                if field.leave_out != LeaveOut::Nil {
                    map.remove(&name);
                }
                continue;
            }
            self.names.push(name.clone());
            self.below(&step, |reader| reader.value(field.ty, value))?;
            self.names.pop();
            let gone = match field.leave_out {
                LeaveOut::Empty => is_empty(value),
                LeaveOut::Null => value.is_null(),
                LeaveOut::Zero => is_zero(value),
                LeaveOut::Never | LeaveOut::Nil => false,
            };
            if gone {
                map.remove(&name);
            }
        }
        for (name, field) in fields {
            match field.leave_out {
                LeaveOut::Never if map.get(name).is_none_or(Value::is_null) => {
                    map.insert(name.clone(), zero(field.ty));
                }
                LeaveOut::Nil if !map.contains_key(name) => {
                    map.insert(name.clone(), Value::Null);
                }
                _ => {}
            }
        }
        self.holder = holder;
        Ok(())
    }

    fn plain(&self, plain: Plain, ty: &Type, value: &mut Value) -> Result<(), CodecError> {
        if value.is_null() {
            return Ok(());
        }
        match plain {
            Plain::Any => Ok(()),
            Plain::String => match value {
                Value::String(_) => Ok(()),
                other => Err(self.mismatch(json_type(other), ty)),
            },
            Plain::Bool => match value {
                Value::Bool(_) => Ok(()),
                other => Err(self.mismatch(json_type(other), ty)),
            },
            Plain::Int | Plain::Int32 | Plain::Int64 | Plain::Uint16 | Plain::Uint32 | Plain::Uint64 => {
                self.integer(plain, ty, value)
            }
            Plain::Float64 => match value {
                Value::Number(_) => Ok(()),
                other => Err(self.mismatch(json_type(other), ty)),
            },
            Plain::Bytes => self.bytes(ty, value),
            Plain::Time | Plain::Microtime => time(plain == Plain::Microtime, value),
            Plain::Duration => match value {
                Value::String(_) => Ok(()),
                other => Err(self.mismatch(json_type(other), ty)),
            },
            Plain::Quantity => {
                let text = match &*value {
                    Value::String(text) => text.clone(),
                    Value::Number(number) => number.to_string(),
                    other => other.to_string(),
                };
                let canonical = quantity::canonical(&text).ok_or(CodecError::Quantity)?;
                *value = Value::String(canonical);
                Ok(())
            }
            Plain::IntOrString => match value {
                Value::String(_) => Ok(()),
                Value::Number(_) => self.integer(Plain::Int32, ty, value),
                other => Err(CodecError::value_type(other, "int32")),
            },
        }
    }

    fn integer(&self, plain: Plain, ty: &Type, value: &mut Value) -> Result<(), CodecError> {
        let Value::Number(number) = &*value else {
            return Err(self.mismatch(json_type(value), ty));
        };
        // Some clients write 80 as 80.0, which Kubernetes' decoder accepts.
        let whole = number.as_i64().or_else(|| {
            let float = number.as_f64()?;
            #[expect(clippy::cast_possible_truncation, reason = "only whole numbers get here")]
            (float.fract() == 0.0 && float.abs() < 9e15).then_some(float as i64)
        });
        let fits = whole.is_some_and(|whole| match plain {
            Plain::Int32 => i32::try_from(whole).is_ok(),
            Plain::Uint16 => u16::try_from(whole).is_ok(),
            Plain::Uint32 => u32::try_from(whole).is_ok(),
            Plain::Uint64 => u64::try_from(whole).is_ok(),
            _ => true,
        });
        match whole {
            Some(whole) if fits => {
                *value = json!(whole);
                Ok(())
            }
            _ => Err(self.mismatch(format!("number {number}"), ty)),
        }
    }

    fn bytes(&self, ty: &Type, value: &mut Value) -> Result<(), CodecError> {
        let Value::String(text) = &*value else {
            return Err(self.mismatch(json_type(value), ty));
        };
        let clean: String = text.chars().filter(|char| !matches!(char, '\n' | '\r')).collect();
        match STANDARD.decode(&clean) {
            Ok(bytes) => {
                *value = Value::String(STANDARD.encode(bytes));
                Ok(())
            }
            Err(error) => Err(IllegalBase64::new(&clean, &error).into()),
        }
    }
}

fn time(micro: bool, value: &mut Value) -> Result<(), CodecError> {
    let layout = if micro {
        "2006-01-02T15:04:05.000000Z07:00"
    } else {
        "2006-01-02T15:04:05Z07:00"
    };
    let text = match &*value {
        Value::String(text) => text,
        other => {
            return Err(CodecError::value_type(other, "string"));
        }
    };
    let time = times::parse(text).ok_or_else(|| CodecError::Time {
        text: text.clone(),
        layout,
    })?;
    *value = Value::String(if micro {
        times::micros(time)
    } else {
        times::seconds(time)
    });
    Ok(())
}

fn go_name(ty: &Type) -> &str {
    match ty.shape {
        Shape::Plain(Plain::IntOrString) => "int32",
        _ => &ty.name,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(bool) => !bool,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

/// Returns whether all fields of a struct are zero.
fn is_zero(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.values().all(is_zero),
        other => is_empty(other),
    }
}

/// Returns the zero value of a type as Go writes it.
fn zero(ty: GoType) -> Value {
    let Some(ty) = ty.get() else { return Value::Null };
    match &ty.shape {
        Shape::Struct(fields) => Value::Object(
            fields
                .iter()
                .filter_map(|(name, field)| match field.leave_out {
                    LeaveOut::Never => Some((name.clone(), zero(field.ty))),
                    LeaveOut::Nil => Some((name.clone(), Value::Null)),
                    _ => None,
                })
                .collect(),
        ),
        Shape::List(_) | Shape::Map(_) => Value::Null,
        Shape::Plain(plain) => match plain {
            Plain::String => json!(""),
            Plain::Bool => json!(false),
            Plain::Quantity => json!("0"),
            Plain::Duration => json!("0s"),
            Plain::Bytes | Plain::Time | Plain::Microtime | Plain::Any => Value::Null,
            _ => json!(0),
        },
    }
}
