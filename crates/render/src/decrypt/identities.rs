//! age identities, which decrypt objects.

use std::fmt;

/// The prefix of every age identity, including the post-quantum ones (`AGE-SECRET-KEY-PQ-1…`).
const PREFIX: &str = "AGE-SECRET-KEY-";

/// Identities, one per line. Debug does not print them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Identities(String);

/// A line that is not an identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} is not an age identity: lines begin with {PREFIX} or #")]
pub struct IdentityError {
    /// Counted from 1.
    pub line: usize,
}

impl Identities {
    /// Adds the identities of a key file as `age-keygen` writes it. Skips comments and empty lines.
    ///
    /// Accepts keys only. For other identities of age (plugins, SSH keys, files with a passphrase), `sops` would start
    /// programs or prompt.
    ///
    /// # Errors
    /// [`IdentityError`] names the line, without quoting it.
    pub fn add(&mut self, file: &[u8]) -> Result<(), IdentityError> {
        for (index, line) in file.split(|byte| *byte == b'\n').enumerate() {
            let error = IdentityError { line: index + 1 };
            let line = std::str::from_utf8(line).map_err(|_| error)?.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let allowed = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'-';
            if !line.starts_with(PREFIX) || !line.bytes().all(allowed) {
                return Err(error);
            }
            self.0.push_str(line);
            self.0.push('\n');
        }
        Ok(())
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn reveal(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl fmt::Debug for Identities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identities(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_files_of_age_keygen_are_read() {
        let mut all = Identities::default();
        assert!(all.is_empty());
        all.add(b"# created: 2026\n# public key: age1x\nAGE-SECRET-KEY-1ABC\r\n\n")
            .unwrap();
        all.add(b"  AGE-SECRET-KEY-PQ-1DEF  ").unwrap();
        assert_eq!(all.reveal(), b"AGE-SECRET-KEY-1ABC\nAGE-SECRET-KEY-PQ-1DEF\n");
        assert!(!format!("{all:?}").contains("ABC"));
    }

    #[test]
    fn plugins_and_invalid_keys_are_refused_without_quoting_them() {
        for file in [
            &b"AGE-SECRET-KEY-1ABC\nAGE-PLUGIN-YUBIKEY-1XYZ"[..],
            b"#\n-----BEGIN OPENSSH PRIVATE KEY-----",
            b"#\nage1publickey",
            b"\nAGE-SECRET-KEY-1ABC;rm",
            b"\n\xff\xfe",
        ] {
            let error = Identities::default().add(file).unwrap_err();
            assert_eq!(error.line, 2);
            assert!(!error.to_string().contains("XYZ"));
        }
    }
}
