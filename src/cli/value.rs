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

/// Parses the name of a ServiceAccount or a namespace.
pub(super) fn dns_name(text: &str) -> Result<String, InvalidValue> {
    if is_account_name(text) {
        Ok(text.to_owned())
    } else {
        Err(InvalidValue::new("expected a DNS name, such as deployer"))
    }
}
