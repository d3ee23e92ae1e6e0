//! The names of branches and tags, and commits, that may be passed to git.

use std::fmt;

/// The longest name of a branch or tag, in bytes. Git stores a ref in a file, and file systems allow 255.
pub const MAX_NAME_LEN: usize = 255;

/// The number of characters of a text that an error quotes.
const QUOTED: usize = 80;

/// The reason why a text is not a name of a branch or tag, or not a commit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// The text is empty.
    #[error("the name is empty")]
    Empty,
    /// The name is longer than [`MAX_NAME_LEN`].
    #[error("the name has {len} bytes, at most {MAX_NAME_LEN} are allowed")]
    TooLong {
        /// The length in bytes.
        len: usize,
    },
    /// The name breaks a rule of git.
    #[error("{name:?} {rule}")]
    Rule {
        /// The name.
        name: String,
        /// The rule, such as "must not contain `..`".
        rule: &'static str,
    },
    /// A full ref, where a short name is required.
    #[error("{name:?} is a full ref: write {short:?}")]
    FullRef {
        /// The name as written.
        name: String,
        /// The short name.
        short: String,
    },
    /// Not a full commit ID.
    #[error("{found:?} is not a full commit: 40 hex digits, or 64 in a sha256 repository")]
    Commit {
        /// The text, truncated to 80 characters.
        found: String,
    },
}

/// The short name of a branch or tag, such as `main` or `v1.4.2`, valid by the rules of `git check-ref-format`.
///
/// The rules are stricter than those of git in two points: a leading `-` could be read as an option, and a full ref
/// (`refs/heads/main`) is a mistake in a field for a short name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RefName(String);

impl RefName {
    /// Validates a name.
    ///
    /// # Errors
    /// [`NameError`] with the rule that the name breaks.
    pub fn new(name: &str) -> Result<Self, NameError> {
        if name.is_empty() {
            return Err(NameError::Empty);
        }
        if name.len() > MAX_NAME_LEN {
            return Err(NameError::TooLong { len: name.len() });
        }
        if let Some(rest) = name.strip_prefix("refs/") {
            let short = rest.split_once('/').map_or(rest, |(_, short)| short);
            return Err(NameError::FullRef {
                name: name.to_owned(),
                short: short.to_owned(),
            });
        }
        match broken_rule(name) {
            Some(rule) => Err(NameError::Rule {
                name: name.to_owned(),
                rule,
            }),
            None => Ok(Self(name.to_owned())),
        }
    }

    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RefName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Returns the first rule of git that a name breaks.
fn broken_rule(name: &str) -> Option<&'static str> {
    if name.chars().any(char::is_control) {
        return Some("must not contain control characters");
    }
    if name.contains([' ', '~', '^', ':', '?', '*', '[', '\\']) {
        return Some("must not contain a space or one of ~ ^ : ? * [ \\");
    }
    if name.starts_with('-') {
        return Some("must not start with `-`");
    }
    if name.contains("..") {
        return Some("must not contain `..`");
    }
    if name.contains("@{") {
        return Some("must not contain `@{`");
    }
    if name == "@" || name == "HEAD" {
        return Some("means whatever is checked out: name a branch or tag");
    }
    if name.ends_with('.') {
        return Some("must not end in a dot");
    }
    if name.split('/').any(str::is_empty) {
        return Some("must not start or end in a slash or contain two in a row");
    }
    if name
        .split('/')
        .any(|part| part.starts_with('.') || part.ends_with(".lock"))
    {
        return Some("must not have a part between slashes that starts with a dot or ends in `.lock`");
    }
    None
}

/// A full commit ID in lower case: 40 hex digits, or 64 in a repository with sha256 objects.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommitId(String);

impl CommitId {
    /// Validates a commit ID. Upper case is accepted; an abbreviation is not, since it may become ambiguous later.
    ///
    /// # Errors
    /// [`NameError::Commit`] for anything else.
    pub fn new(hex: &str) -> Result<Self, NameError> {
        if matches!(hex.len(), 40 | 64) && hex.bytes().all(|b| b.is_ascii_hexdigit()) {
            Ok(Self(hex.to_ascii_lowercase()))
        } else {
            Err(NameError::Commit {
                found: hex.chars().take(QUOTED).collect(),
            })
        }
    }

    /// Returns the hex digits.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the hash function, `sha1` or `sha256`, by the length.
    #[must_use]
    pub fn algorithm(&self) -> &'static str {
        if self.0.len() == 40 { "sha1" } else { "sha256" }
    }
}

impl fmt::Display for CommitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_what_git_accepts() {
        let longest = "a".repeat(MAX_NAME_LEN);
        for name in [
            "main",
            "v1.4.2",
            "team/feature-1",
            "a@b",
            "größe",
            "x.locked",
            "a-",
            "headless",
            "refs",
            &longest,
        ] {
            assert_eq!(RefName::new(name).unwrap().as_str(), name);
        }
    }

    #[test]
    fn rejects_with_the_broken_rule() {
        for (name, rule) in [
            ("-x", "start with `-`"),
            ("--upload-pack=touch", "start with `-`"),
            ("a..b", "`..`"),
            ("a b", "space"),
            ("a\tb", "control"),
            ("a\u{7f}", "control"),
            ("a\nb", "control"),
            ("a~1", "~"),
            ("a^", "^"),
            ("a:b", ":"),
            ("a?", "?"),
            ("a*", "*"),
            ("a[0]", "["),
            ("a\\b", "\\"),
            ("@", "checked out"),
            ("HEAD", "checked out"),
            ("a@{1}", "`@{`"),
            ("a.", "end in a dot"),
            ("/a", "slash"),
            ("a/", "slash"),
            ("a//b", "slash"),
            (".a", "starts with a dot"),
            ("a/.b", "starts with a dot"),
            ("a.lock", ".lock"),
            ("a.lock/b", ".lock"),
        ] {
            let error = RefName::new(name).unwrap_err();
            assert!(matches!(error, NameError::Rule { .. }), "{name:?}: {error}");
            assert!(error.to_string().contains(rule), "{name:?}: {error}");
            assert!(
                !error.to_string().chars().any(char::is_control),
                "{error:?} is printed raw"
            );
        }
        assert_eq!(RefName::new(""), Err(NameError::Empty));
        assert_eq!(
            RefName::new(&"a".repeat(256)),
            Err(NameError::TooLong { len: 256 })
        );
        assert_eq!(
            RefName::new("refs/heads/team/a").unwrap_err().to_string(),
            r#""refs/heads/team/a" is a full ref: write "team/a""#
        );
    }

    #[test]
    fn commits_are_full_and_lower_case() {
        let sha1 = "ABCDEF0123456789abcdef0123456789abcdef01";
        assert_eq!(CommitId::new(sha1).unwrap().as_str(), sha1.to_lowercase());
        assert_eq!(CommitId::new(sha1).unwrap().algorithm(), "sha1");
        assert_eq!(CommitId::new(&"0f".repeat(32)).unwrap().algorithm(), "sha256");
        let [short, long] = [&sha1[..39], &format!("{sha1}0")].map(|hex| CommitId::new(hex).is_err());
        assert!(short && long);
        for bad in ["", "abc1234", "main", &"g".repeat(40), &"é".repeat(20)] {
            assert!(
                matches!(CommitId::new(bad), Err(NameError::Commit { .. })),
                "{bad}"
            );
        }
        let NameError::Commit { found } = CommitId::new(&"z".repeat(10_000)).unwrap_err() else {
            unreachable!()
        };
        assert_eq!(found.len(), QUOTED);
    }
}
