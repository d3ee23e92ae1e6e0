//! The secret values of a rendered set: what its Secrets contain, and what was encrypted in git, whatever the kind.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

/// The replacement of a secret value in a message.
const REMOVED: &str = "…";
/// Shorter values are not removed: they occur in every message, which would tell their place and nothing else.
const SHORTEST: usize = 4;

/// Values that no message may contain. They are not printed.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct SecretValues {
    values: Arc<[String]>,
    /// The keys of Secrets, which messages may contain.
    keys: Arc<BTreeSet<String>>,
}

impl fmt::Debug for SecretValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretValues({})", self.values.len())
    }
}

impl SecretValues {
    /// Keeps these values, and the lines of those that have several: messages quote lines.
    pub fn new(values: impl IntoIterator<Item = String>) -> Self {
        let mut kept = Vec::new();
        for value in values {
            let lines = value.lines().map(str::trim);
            kept.extend(lines.map(str::to_owned));
            kept.push(value.trim().to_owned());
        }
        kept.retain(|value| value.len() >= SHORTEST);
        // The longest first: one may be part of another.
        kept.sort_by(|one, other| other.len().cmp(&one.len()).then_with(|| one.cmp(other)));
        kept.dedup();
        Self {
            values: kept.into(),
            keys: Arc::default(),
        }
    }

    /// Returns these values, with the keys of the Secrets that have them.
    #[must_use]
    pub fn with_keys(self, keys: BTreeSet<String>) -> Self {
        Self {
            keys: keys.into(),
            ..self
        }
    }

    /// Returns whether a Secret has this key. A member that names another one may have made it up of a value.
    #[must_use]
    pub fn has_key(&self, key: &str) -> bool {
        self.keys.contains(key)
    }

    /// Returns these values and others.
    #[must_use]
    pub fn with(&self, others: Vec<String>) -> Self {
        Self::new(self.values.iter().cloned().chain(others))
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Returns whether a text contains one of the values.
    #[must_use]
    pub fn are_in(&self, text: &str) -> bool {
        self.values.iter().any(|value| text.contains(value.as_str()))
    }

    /// Returns a text without the values.
    #[must_use]
    pub fn removed_from<'t>(&self, text: &'t str) -> Cow<'t, str> {
        let mut text = Cow::Borrowed(text);
        for value in &*self.values {
            if text.contains(value.as_str()) {
                text = Cow::Owned(text.replace(value.as_str(), REMOVED));
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenant_values_and_their_lines_are_removed_and_never_printed() {
        let values = SecretValues::new([
            "hunter2".into(),
            "hunter22".into(),
            "one line\nother line\n".into(),
            "no".into(),
        ]);
        for (text, expected) in [
            (
                "spec.password: Invalid value: \"hunter2\"",
                "spec.password: Invalid value: \"…\"",
            ),
            ("hunter22 and hunter2", "… and …"),
            ("at other line: no", "at …: no"),
            ("nothing", "nothing"),
        ] {
            assert_eq!(values.removed_from(text), expected);
            assert_eq!(values.are_in(text), text != expected);
        }
        assert_eq!(format!("{values:?}"), "SecretValues(5)");
    }
}
