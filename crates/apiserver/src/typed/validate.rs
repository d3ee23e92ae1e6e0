//! The check that a value matches its type.

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt;

use serde_json::{Map as Json, Value};

use super::element::element_of;
use crate::fields::PathElement;
use crate::schema::{List, Map, Relation, Scalar, Schema, Shape, Type, TypeId};
use crate::value;

/// Whether an associative list may have duplicate items.
///
/// An existing object may, if a client created it that does not know the keys. A configuration to apply must not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Duplicates {
    /// Duplicate items are allowed.
    Allowed,
    /// Duplicate items are errors.
    Refused,
}

/// A mismatch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValidationError {
    /// The path, such as `.spec.ports`; empty for the object itself.
    pub path: String,
    /// The message, in the text of the API server.
    pub message: String,
}

/// All mismatches, at least one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValidationErrors(pub Vec<ValidationError>);

impl fmt::Display for ValidationError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() {
            f.write_str(&self.message)
        } else {
            write!(f, "{}: {}", self.path, self.message)
        }
    }
}

impl fmt::Display for ValidationErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = self.0.as_slice() {
            return only.fmt(f);
        }
        f.write_str("errors:")?;
        self.0.iter().try_for_each(|error| write!(f, "\n  {error}"))
    }
}

impl Error for ValidationErrors {}

pub(super) fn validate(ty: &Type, value: &Value, duplicates: Duplicates) -> Result<(), ValidationErrors> {
    let mut walk = Walk {
        schema: &ty.schema,
        duplicates,
        errors: Vec::new(),
    };
    walk.value(Some(ty.id), value);
    if walk.errors.is_empty() {
        Ok(())
    } else {
        Err(ValidationErrors(walk.errors))
    }
}

struct Walk<'a> {
    schema: &'a Schema,
    duplicates: Duplicates,
    errors: Vec<ValidationError>,
}

impl Walk<'_> {
    fn report(&mut self, message: impl Into<String>) {
        self.errors.push(ValidationError {
            path: String::new(),
            message: message.into(),
        });
    }

    /// Checks a child. The path of an error is built on the way up, since errors are rare.
    fn below(&mut self, step: impl FnOnce() -> PathElement, check: impl FnOnce(&mut Self)) {
        let before = self.errors.len();
        check(self);
        if self.errors.len() > before {
            let step = step().to_string();
            for error in &mut self.errors[before..] {
                error.path.insert_str(0, &step);
            }
        }
    }

    fn value(&mut self, ty: Option<TypeId>, value: &Value) {
        let Some(ty) = ty else {
            return self.report("schema error: invalid atom: inlined");
        };
        match self.schema.atom(ty).shape_of(value) {
            Shape::Map(map) => match value {
                Value::Object(fields) => self.map(map, fields),
                Value::Null => {}
                other => self.report(format!("expected map, got &{{{}}}", value::plain(other))),
            },
            Shape::List(list) => match value {
                Value::Array(items) => self.list(list, items),
                Value::Null => {}
                other => self.report(format!("expected list, got &{{{}}}", value::plain(other))),
            },
            Shape::Scalar(scalar) => self.scalar(scalar, value),
            Shape::Nothing => self.report("schema error: invalid atom: inlined"),
        }
    }

    fn scalar(&mut self, scalar: Scalar, value: &Value) {
        match (scalar, value) {
            (_, Value::Null)
            | (Scalar::Numeric, Value::Number(_))
            | (Scalar::String, Value::String(_))
            | (Scalar::Boolean, Value::Bool(_))
            | (Scalar::Untyped, Value::Number(_) | Value::String(_) | Value::Bool(_)) => {}
            (Scalar::Numeric, other) => self.report(format!(
                "expected numeric (int or float), got {}",
                value::go_type(other)
            )),
            (Scalar::String, other) => self.report(format!(
                "expected string, got &value.valueUnstructured{{Value:{}}}",
                value::go_syntax(other)
            )),
            (Scalar::Boolean, other) => {
                self.report(format!("expected boolean, got &{{{}}}", value::plain(other)));
            }
            (Scalar::Untyped, other) => {
                self.report(format!("expected any scalar, got &{{{}}}", value::plain(other)));
            }
        }
    }

    fn map(&mut self, map: &Map, fields: &Json<String, Value>) {
        for (name, value) in fields {
            let step = || PathElement::field(name.as_str());
            match map.type_at(name) {
                Some(ty) => self.below(step, |walk| walk.value(Some(ty), value)),
                None => self.below(step, |walk| walk.report("field not declared in schema")),
            }
        }
    }

    fn list(&mut self, list: &List, items: &[Value]) {
        let mut seen = BTreeSet::new();
        for (place, item) in items.iter().enumerate() {
            let step = match &list.relation {
                Relation::Atomic => PathElement::Index(i64::try_from(place).unwrap_or(i64::MAX)),
                Relation::Set | Relation::Keyed(_) => match element_of(self.schema, list, item) {
                    Ok(element) => element,
                    // Without a path element there is no path to report.
                    Err(problem) => return self.report(format!("element {place}: {problem}")),
                },
            };
            if self.duplicates == Duplicates::Refused && !matches!(list.relation, Relation::Atomic) {
                if seen.contains(&step) {
                    self.report(format!("duplicate entries for key {step}"));
                }
                seen.insert(step.clone());
            }
            self.below(|| step, |walk| walk.value(Some(list.element), item));
        }
    }
}
