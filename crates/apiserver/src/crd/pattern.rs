//! Go regular expressions on Rust's engine.
//!
//! Both engines belong to the RE2 family and differ in details: in Go, `\d`, `\w`, `\s` and `\b` match ASCII only, a
//! brace that is not a repetition is literal, and classes do not nest.

use std::fmt;
use std::sync::OnceLock;

use regex::{Regex, RegexBuilder};
use thiserror::Error;

/// The size limit of a compiled expression, enough for the thousandfold repetition that Go allows.
const SIZE_LIMIT: usize = 64 << 20;

/// Why an expression is invalid, in the form of Go's messages.
#[derive(Debug, Error)]
#[error("error parsing regexp: {}: `{pattern}`", problem(source))]
pub(super) struct PatternError {
    pattern: String,
    source: regex::Error,
}

/// Returns the last line of an error, which the others only explain.
fn problem(error: &regex::Error) -> String {
    let text = error.to_string();
    let last = text.lines().last().unwrap_or_default();
    last.strip_prefix("error: ").unwrap_or(last).to_owned()
}

/// A pattern of a schema.
pub(super) struct Pattern {
    pub(super) text: String,
    /// The compiled expression or its error, on first use: a definition may have hundreds of patterns.
    compiled: OnceLock<Result<Regex, PatternError>>,
}

impl Pattern {
    pub(super) fn new(text: String) -> Self {
        Self {
            text,
            compiled: OnceLock::new(),
        }
    }

    /// Returns whether a string matches, or why the expression is invalid.
    pub(super) fn matches(&self, text: &str) -> Result<bool, &PatternError> {
        let compiled = self.compiled.get_or_init(|| compile(&self.text)).as_ref()?;
        Ok(compiled.is_match(text))
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

/// Compiles a Go regular expression.
///
/// # Errors
/// [`PatternError`].
pub(super) fn compile(pattern: &str) -> Result<Regex, PatternError> {
    RegexBuilder::new(&translate(pattern))
        .size_limit(SIZE_LIMIT)
        .build()
        .map_err(|source| PatternError {
            pattern: pattern.to_owned(),
            source,
        })
}

/// Translates a Go expression to an equivalent Rust expression.
fn translate(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len() + 8);
    let mut rest = pattern.chars();
    let mut in_class = false;
    // A closing bracket right after the opening one is a literal.
    let mut class_is_empty = false;
    while let Some(char) = rest.next() {
        let was_empty = std::mem::take(&mut class_is_empty);
        match char {
            '\\' => escape(&mut out, &mut rest, in_class),
            '[' if in_class => match posix_class(rest.as_str()) {
                Some(class) => {
                    out.push('[');
                    out.push_str(class);
                    rest = rest.as_str()[class.len()..].chars();
                }
                None => out.push_str("\\["),
            },
            '[' => {
                in_class = true;
                class_is_empty = true;
                out.push('[');
                if let Some(negated) = rest.as_str().strip_prefix('^') {
                    out.push('^');
                    rest = negated.chars();
                }
            }
            ']' if in_class && was_empty => out.push_str("\\]"),
            ']' => {
                in_class = false;
                out.push(']');
            }
            '&' | '~' if in_class => {
                out.push('\\');
                out.push(char);
            }
            '{' if !in_class && !counts(rest.as_str()) => out.push_str("\\{"),
            char => out.push(char),
        }
    }
    out
}

/// Returns the rest of `[:alpha:]` after its first bracket.
fn posix_class(rest: &str) -> Option<&str> {
    let inner = rest.strip_prefix(':')?;
    let end = inner.find(":]")?;
    let name = inner[..end].trim_start_matches('^');
    (!name.is_empty() && name.chars().all(|char| char.is_ascii_lowercase())).then(|| &rest[..end + 3])
}

/// Returns whether a brace starts a repetition.
fn counts(rest: &str) -> bool {
    let Some((count, _)) = rest.split_once('}') else {
        return false;
    };
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match count.split_once(',') {
        None => is_number(count),
        Some((least, most)) => is_number(least) && (most.is_empty() || is_number(most)),
    }
}

/// Translates an escape sequence.
fn escape(out: &mut String, rest: &mut std::str::Chars<'_>, in_class: bool) {
    let Some(char) = rest.next() else {
        out.push('\\');
        return;
    };
    match char {
        'd' => out.push_str("[0-9]"),
        'D' => out.push_str("[^0-9]"),
        'w' => out.push_str("[0-9A-Za-z_]"),
        'W' => out.push_str("[^0-9A-Za-z_]"),
        's' => out.push_str("[\\t\\n\\x0c\\r ]"),
        'S' => out.push_str("[^\\t\\n\\x0c\\r ]"),
        'b' | 'B' if !in_class => {
            out.push_str("(?-u:\\");
            out.push(char);
            out.push(')');
        }
        'Q' if !in_class => {
            let quoted = rest.as_str();
            let (literal, after) = quoted.split_once("\\E").unwrap_or((quoted, ""));
            out.push_str(&regex::escape(literal));
            *rest = after.chars();
        }
        char if char.is_ascii_punctuation() => out.push_str(&regex::escape(&char.to_string())),
        char => {
            out.push('\\');
            out.push(char);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_match_as_in_go() {
        for (pattern, text, matches) in [
            (r"^\d+$", "123", true),
            (r"^\d+$", "١٢٣", false),
            (r"^\w$", "é", false),
            (r"^[\w-]+$", "a-b_9", true),
            (r"^[^\W]+$", "ab", true),
            (r"^[[a]+$", "[a", true),
            (r"^[]a]+$", "]a", true),
            (r"^[^]a]+$", "b", true),
            (r"^[[:alpha:]_]+$", "ab_", true),
            (r"^a{$", "a{", true),
            (r"^a{,2}$", "a{,2}", true),
            (r"^a{2,3}$", "aaa", true),
            (r"^{x}$", "{x}", true),
            (r"^\Qa.b\E$", "a.b", true),
            (r"^\Qa.b\E$", "axb", false),
            (r"^a\/b\_\-\<$", "a/b_-<", true),
            (r"^[a&&b]+$", "a&b", true),
            (r"\bx\b", "éx", true),
            (r"^\S+$", "a\u{b}b", true),
            (r"^(?:[a-z0-9]{1,63})$", "a", true),
        ] {
            let regex = compile(pattern).unwrap_or_else(|problem| panic!("{problem}"));
            assert_eq!(regex.is_match(text), matches, "{pattern} on {text}");
        }
        let error = compile("a(").unwrap_err();
        assert_eq!(error.to_string(), "error parsing regexp: unclosed group: `a(`");
    }
}
