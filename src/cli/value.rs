//! Errors of option values.

use std::borrow::Cow;

use starling_core::expand::is_account_name;

/// Reason why the value of an option is invalid: the expected form, with an example.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct InvalidValue(Cow<'static, str>);

impl InvalidValue {
    pub(super) fn new(message: impl Into<Cow<'static, str>>) -> Self {
        Self(message.into())
    }
}

/// Parses the key of a label: a name of at most 63 letters, digits, `-`, `_` and `.`, after an optional DNS name and
/// `/`.
pub(super) fn label_key(text: &str) -> Result<String, InvalidValue> {
    let (prefix, name) = match text.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, text),
    };
    let is_end = |char: Option<char>| char.is_some_and(|char| char.is_ascii_alphanumeric());
    let is_name = is_end(name.chars().next())
        && is_end(name.chars().next_back())
        && name.len() <= 63
        && name
            .chars()
            .all(|char| char.is_ascii_alphanumeric() || "-_.".contains(char));
    if is_name && prefix.is_none_or(is_account_name) {
        Ok(text.to_owned())
    } else {
        Err(InvalidValue::new(
            "expected the key of a label, such as field.cattle.io/projectId",
        ))
    }
}

/// Parses the name of a ServiceAccount or a namespace.
pub(super) fn dns_name(text: &str) -> Result<String, InvalidValue> {
    if is_account_name(text) {
        Ok(text.to_owned())
    } else {
        Err(InvalidValue::new("expected a DNS name, such as deployer"))
    }
}
