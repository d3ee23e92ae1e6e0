//! Redacts the error output of a failed build for a status.
//!
//! kustomize quotes its input: plugin configurations and scalars between backticks, patches between brackets, literals
//! of generators verbatim. Any of them may be from a Secret, so they are removed.

use std::path::Path;

use super::check::SecretLiterals;

/// The replacement of a removed text.
const OMITTED: &str = "…";
/// Shorter texts are not treated as secrets, because their removal would make the message unreadable.
const MIN_SECRET: usize = 3;

/// What kustomize writes before a document that it quotes.
const NODE_CONTENTS: &str = "node contents";

/// Returns the error output as one line, without directories of this host and without quoted content.
pub(super) fn message(stderr: &str, directories: &[&Path], secret_literals: &SecretLiterals) -> String {
    // The trace of a crash follows, which is too long for a status.
    let mut text = stderr
        .split("\n\ngoroutine ")
        .next()
        .unwrap_or_default()
        .to_owned();
    let mut secrets: Vec<&str> = secret_literals
        .0
        .iter()
        .map(|secret| secret.trim())
        .filter(|secret| secret.len() >= MIN_SECRET)
        .collect();
    // The longest first: one may be part of another.
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    for secret in secrets {
        text = text.replace(secret, OMITTED);
    }
    // Whole documents follow, as YAML.
    if let Some((before, _)) = text.split_once(NODE_CONTENTS) {
        text = format!("{before}{NODE_CONTENTS}: {OMITTED}");
    }
    text = remove_between(&text, "`", "`");
    text = remove_between(&text, "patch from [", "]");
    for directory in directories {
        let directory = directory.display().to_string();
        text = text
            .replace(&format!("{directory}/"), "")
            .replace(&directory, ".");
    }
    let parts: Vec<&str> = text
        .split(|c: char| c.is_whitespace() || c.is_control())
        .filter(|word| !word.is_empty())
        .collect();
    parts.join(" ")
}

/// Removes the text between the first opening and the last closing mark, because the content may contain the mark.
/// Without a closing mark (the text was truncated), everything after the opening one is removed.
fn remove_between(text: &str, open: &str, close: &str) -> String {
    let Some(start) = text.find(open).map(|at| at + open.len()) else {
        return text.to_owned();
    };
    let end = text[start..].rfind(close).map_or(text.len(), |at| start + at);
    format!("{}{OMITTED}{}", &text[..start], &text[end..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(stderr: &str) -> String {
        message(
            stderr,
            &[Path::new("/srv/tree"), Path::new("/tmp/x")],
            &SecretLiterals(vec!["hunter2".to_owned()]),
        )
    }

    #[test]
    fn directories_of_the_host_become_relative() {
        assert_eq!(
            plain("Error: '/srv/tree/apps/a.yaml' is bad\n  in /tmp/x\n"),
            "Error: 'apps/a.yaml' is bad in ."
        );
    }

    #[test]
    fn tenant_documents_that_kustomize_quotes_are_removed() {
        let error = "Error: wrong node kind: expected MappingNode but got ScalarNode: node contents:\npassword: s3same\n";
        assert_eq!(
            plain(error),
            "Error: wrong node kind: expected MappingNode but got ScalarNode: node contents: …"
        );
    }

    #[test]
    fn quoted_content_is_removed() {
        assert_eq!(
            plain("invalid literal source hunter2, expected key=value"),
            "invalid literal source …, expected key=value"
        );
        assert_eq!(
            plain("cannot unmarshal !!str `s3cret` into int"),
            "cannot unmarshal !!str `…` into int"
        );
        assert_eq!(plain("config: `a: `b` c` failed"), "config: `…` failed");
        assert_eq!(plain("config: `a: b"), "config: `…");
        assert_eq!(
            plain("unable to parse SM or JSON patch from [a: [b]\nc]"),
            "unable to parse SM or JSON patch from […]"
        );
    }

    #[test]
    fn the_trace_of_a_crash_is_removed() {
        assert_eq!(
            plain("panic: index out of range\n\ngoroutine 1 [running]:\nmain.main()\n"),
            "panic: index out of range"
        );
    }

    #[test]
    fn control_characters_do_not_reach_a_terminal() {
        assert_eq!(plain("a\u{1b}[31mb\0c"), "a [31mb c");
    }
}
