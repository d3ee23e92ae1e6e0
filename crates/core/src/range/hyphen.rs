//! Hyphen ranges: `1.0 - 2.0` is rewritten to `>=1.0, <=2.0` before anything else is parsed.

use super::version::{Written, trim_start};

/// A hyphen range in a text.
struct Hyphen<'a> {
    /// The whole text, with the spaces around it.
    text: &'a str,
    from: &'a str,
    to: &'a str,
}

/// Rewrites all hyphen ranges; `None`: there are none.
///
/// The rewrite happens before the text is split at `||` and, as in the library, without regard to the preceding text:
/// the space before it is part of the hyphen range, so that a comparator before it needs a comma. The result of a
/// misplaced hyphen range is not a range and rejected later.
pub(super) fn rewrite(text: &str) -> Option<String> {
    let mut rewritten: Option<String> = None;
    let mut rest = text;
    while let Some((found, after)) = first(rest) {
        let comparators = format!(">= {}, <= {} ", found.from, found.to);
        rewritten = Some(
            rewritten
                .as_deref()
                .unwrap_or(text)
                .replacen(found.text, &comparators, 1),
        );
        rest = after;
    }
    rewritten
}

/// Returns the leftmost hyphen range and the rest.
fn first(text: &str) -> Option<(Hyphen<'_>, &str)> {
    text.char_indices().find_map(|(start, _)| at(&text[start..]))
}

/// Returns the hyphen range at the start of a text, if there is one.
fn at(text: &str) -> Option<(Hyphen<'_>, &str)> {
    let (from, rest) = Written::take(trim_start(text))?;
    let rest = skip_spaces(rest)?.strip_prefix('-')?;
    let (to, rest) = Written::take(skip_spaces(rest)?)?;
    let rest = trim_start(rest);
    Some((
        Hyphen {
            text: &text[..text.len() - rest.len()],
            from: from.text,
            to: to.text,
        },
        rest,
    ))
}

/// Skips at least one space.
fn skip_spaces(text: &str) -> Option<&str> {
    let rest = trim_start(text);
    (rest.len() < text.len()).then_some(rest)
}
