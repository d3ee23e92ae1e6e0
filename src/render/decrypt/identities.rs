//! age identities: what opens encrypted objects.

use std::fmt;

/// How every age identity begins, the post-quantum ones (`AGE-SECRET-KEY-PQ-1…`) too.
const PREFIX: &str = "AGE-SECRET-KEY-";

/// Identities, one a line. Debug does not print them.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Identities(String);

/// A line that is no identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} is no age identity: lines begin with {PREFIX} or #")]
pub struct IdentityError {
    /// Counted from 1.
    pub line: usize,
}

impl Identities {
    /// Takes the identities of a key file as `age-keygen` writes it: comments and empty lines are left out.
    ///
    /// Only keys themselves are taken. Other things that age understands (plugins, SSH keys, files with a passphrase)
    /// would have `sops` start programs or ask questions.
    ///
    /// # Errors
    /// [`IdentityError`] names the line, without quoting it.
    pub fn add(&mut self, file: &[u8]) -> Result<(), IdentityError> {
        for (index, line) in file.split(|byte| *byte == b'\n').enumerate() {
            let wrong = IdentityError { line: index + 1 };
            let line = std::str::from_utf8(line).map_err(|_| wrong)?.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let allowed = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'-';
            if !line.starts_with(PREFIX) || !line.bytes().all(allowed) {
                return Err(wrong);
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
    fn key_files_are_read_as_age_keygen_writes_them() {
        let mut all = Identities::default();
        assert!(all.is_empty());
        all.add(b"# created: 2026\n# public key: age1x\nAGE-SECRET-KEY-1ABC\r\n\n")
            .unwrap();
        all.add(b"  AGE-SECRET-KEY-PQ-1DEF  ").unwrap();
        assert_eq!(all.reveal(), b"AGE-SECRET-KEY-1ABC\nAGE-SECRET-KEY-PQ-1DEF\n");
        assert!(!format!("{all:?}").contains("ABC"));
    }

    #[test]
    fn what_would_start_a_program_or_is_no_key_is_refused_without_quoting_it() {
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
