//! Errors of option values.

use std::borrow::Cow;

/// Why the value of an option is invalid: what is expected, with an example.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct InvalidValue(Cow<'static, str>);

impl InvalidValue {
    pub(super) fn new(message: impl Into<Cow<'static, str>>) -> Self {
        Self(message.into())
    }
}
