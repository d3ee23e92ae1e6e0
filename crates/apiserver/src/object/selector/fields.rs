//! Field selectors.

use serde_json::Value;
use thiserror::Error;

/// A field selector, as in `?fieldSelector=`. The kind decides which fields it supports.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldSelector(Vec<FieldRequirement>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct FieldRequirement {
    field: String,
    value: String,
    equal: bool,
}

/// Why a text is not a field selector, in the texts of the API server.
#[derive(Debug, PartialEq, Eq, Error)]
pub enum FieldSelectorError {
    /// A term has no operator.
    #[error("invalid selector: '{selector}'; can't understand '{term}'")]
    NoOperator {
        /// The selector.
        selector: String,
        /// The term.
        term: String,
    },
    /// A character that must not be escaped.
    #[error("invalid field selector: invalid escape sequence: \\{char}")]
    Escape {
        /// The character.
        char: char,
    },
    /// A character that must be escaped.
    #[error("invalid field selector: unescaped character in value: {code}")]
    Unescaped {
        /// The number of the character.
        code: u32,
    },
    /// A value ends within an escape sequence.
    #[error("invalid field selector: invalid escape sequence: \\")]
    OpenEscape,
}

impl FieldSelector {
    /// Parses a selector.
    ///
    /// # Errors
    /// [`FieldSelectorError`].
    pub fn parse(text: &str) -> Result<Self, FieldSelectorError> {
        let mut requirements = Vec::new();
        for term in split_terms(text) {
            if term.is_empty() {
                continue;
            }
            let Some((at, length, equal)) = find_sign(&term) else {
                return Err(FieldSelectorError::NoOperator {
                    selector: text.to_owned(),
                    term,
                });
            };
            requirements.push(FieldRequirement {
                field: term[..at].to_owned(),
                value: unescape(&term[at + length..])?,
                equal,
            });
        }
        Ok(Self(requirements))
    }

    /// Returns whether the selector matches every object.
    pub fn is_everything(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the fields that the selector uses.
    pub fn fields(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|requirement| requirement.field.as_str())
    }

    /// Returns whether the selector uses fields that are not in the [`Head`].
    pub fn needs_body(&self) -> bool {
        self.fields()
            .any(|field| !matches!(field, "metadata.name" | "metadata.namespace"))
    }

    /// Returns the value that the selector requires of a field, if it requires one.
    pub fn exact(&self, field: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|requirement| requirement.equal && requirement.field == field)
            .map(|requirement| requirement.value.as_str())
    }

    /// Returns whether the selector matches an object with the given field values.
    pub fn matches(&self, value_of: impl Fn(&str) -> String) -> bool {
        self.0
            .iter()
            .all(|requirement| (value_of(&requirement.field) == requirement.value) == requirement.equal)
    }
}

/// Returns a field of an object by its path, in the form that selectors compare.
pub fn field_value(object: &Value, path: &str) -> String {
    let mut value = object;
    for step in path.split('.') {
        value = &value[step];
    }
    match value {
        Value::String(text) => text.clone(),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        _ => String::new(),
    }
}

/// Splits a text at commas that are not escaped.
fn split_terms(text: &str) -> Vec<String> {
    let mut terms = vec![String::new()];
    let mut escaped = false;
    for char in text.chars() {
        match char {
            ',' if !escaped => terms.push(String::new()),
            _ => {
                if let Some(last) = terms.last_mut() {
                    last.push(char);
                }
            }
        }
        escaped = char == '\\' && !escaped;
    }
    terms
}

fn find_sign(term: &str) -> Option<(usize, usize, bool)> {
    let mut escaped = false;
    for (at, char) in term.char_indices() {
        if !escaped {
            for (sign, equal) in [("!=", false), ("==", true), ("=", true)] {
                if term[at..].starts_with(sign) {
                    return Some((at, sign.len(), equal));
                }
            }
        }
        escaped = char == '\\' && !escaped;
    }
    None
}

fn unescape(text: &str) -> Result<String, FieldSelectorError> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        if matches!(char, ',' | '=') {
            return Err(FieldSelectorError::Unescaped { code: char.into() });
        }
        if char != '\\' {
            out.push(char);
            continue;
        }
        match chars.next() {
            Some(next @ ('\\' | ',' | '=')) => out.push(next),
            Some(char) => return Err(FieldSelectorError::Escape { char }),
            None => return Err(FieldSelectorError::OpenEscape),
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_are_selected() {
        let pod =
            json!({"metadata": {"name": "a"}, "status": {"phase": "Running"}, "spec": {"hostNetwork": true}});
        for (text, selected) in [
            ("", true),
            ("metadata.name=a", true),
            ("metadata.name!=a", false),
            ("metadata.name==a,status.phase=Running", true),
            ("spec.nodeName=", true),
            ("spec.hostNetwork=true", true),
            ("metadata.name=a\\,b", false),
        ] {
            let selector = FieldSelector::parse(text);
            let matched = selector.map(|one| one.matches(|field| field_value(&pod, field)));
            assert_eq!(matched, Ok(selected), "{text}");
        }
        for (text, wanted) in [
            (
                "metadata.name",
                "invalid selector: 'metadata.name'; can't understand 'metadata.name'",
            ),
            ("a=\\x", "invalid field selector: invalid escape sequence: \\x"),
            ("a=\\", "invalid field selector: invalid escape sequence: \\"),
            (
                "a=b=c",
                "invalid field selector: unescaped character in value: 61",
            ),
        ] {
            assert_eq!(FieldSelector::parse(text).unwrap_err().to_string(), wanted);
        }
    }
}
