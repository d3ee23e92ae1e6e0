//! The options of a write.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::rbac::Who;

/// How a write handles fields that the kind does not have (`fieldValidation`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Validation {
    /// Drops unknown fields.
    Ignore,
    /// Drops unknown fields and warns the client.
    #[default]
    Warn,
    /// Rejects the request.
    Strict,
}

/// The options that all writes have in common.
#[derive(Debug, Clone, Copy)]
pub struct Write<'a> {
    /// The field manager: the given name, or one derived from the user agent.
    pub manager: &'a str,
    /// The user who sent the request.
    pub user: &'a str,
    /// The UID of the user; empty if it has none.
    pub uid: &'a str,
    /// The groups of the user.
    pub groups: &'a [String],
    /// What else is known about the user.
    pub extra: &'a BTreeMap<String, Vec<String>>,
    /// Whether the write is a dry run.
    pub dry_run: bool,
    /// How the write handles unknown fields.
    pub validation: Validation,
    /// Whether a server-side apply takes fields that other managers own.
    pub force: bool,
    /// The time of the write.
    pub now: Timestamp,
    /// The subresource that the request writes to, for the journal.
    pub subresource: &'a str,
}

/// The `extra` of a user of whom nothing else is known.
pub static NO_EXTRA: BTreeMap<String, Vec<String>> = BTreeMap::new();

impl Write<'_> {
    /// Returns who writes, for authorization.
    pub(crate) fn who(&self) -> Who<'_> {
        Who {
            name: self.user,
            groups: self.groups,
        }
    }
}
