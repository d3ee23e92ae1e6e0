//! Hyphen ranges: `1.0 - 2.0` is rewritten to `>=1.0, <=2.0` before anything else is read.

use super::parse::trim_start;
use super::version::Written;

/// A hyphen range found in a text.
struct Hyphen<'a> {
    /// All of it, with the spaces around it.
    text: &'a str,
    from: &'a str,
    to: &'a str,
}

/// Rewrites all hyphen ranges, or returns nothing if there is none.
///
/// This happens before the text is split at `||` and, like the library, without regard to what stands before:
/// the space in front is part of the hyphen range, so that a comparator before it needs a comma. What comes out
/// of a misplaced one is no range any more and refused later.
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

/// The leftmost hyphen range and what follows it.
fn first(text: &str) -> Option<(Hyphen<'_>, &str)> {
    text.char_indices().find_map(|(start, _)| at(&text[start..]))
}

/// The hyphen range at the front of a text, if there is one.
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
