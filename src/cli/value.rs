//! Errors of option values.

use std::borrow::Cow;

/// Reason why the value of an option is invalid: the expected form, with an example.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct InvalidValue(Cow<'static, str>);

impl InvalidValue {
    pub(super) fn new(message: impl Into<Cow<'static, str>>) -> Self {
        Self(message.into())
    }
}
