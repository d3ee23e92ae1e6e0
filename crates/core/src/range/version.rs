//! Parses versions as in tags, and orders them.

use std::cmp::Ordering;

use semver::{BuildMetadata, Prerelease, Version};

/// The longest version in bytes; the limit of the Go library.
pub const MAX_VERSION_LEN: usize = 256;

/// A version as written: any number may be missing or a wildcard, and nothing is interpreted yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Written<'a> {
    /// The whole text, with the leading `v`.
    pub(super) text: &'a str,
    pub(super) major: &'a str,
    pub(super) minor: Option<&'a str>,
    pub(super) patch: Option<&'a str>,
    /// The prerelease, without the hyphen.
    pub(super) pre: Option<&'a str>,
    /// The build metadata, without the plus sign.
    pub(super) build: Option<&'a str>,
}

impl<'a> Written<'a> {
    /// Parses a version at the start of a text and returns the rest; `None`: there is no version.
    ///
    /// Each part is included if it exists, so the longest version is found. The next character alone decides, so the
    /// result is unique.
    pub(super) fn take(text: &'a str) -> Option<(Self, &'a str)> {
        let (major, rest) = take_while(text.strip_prefix('v').unwrap_or(text), is_number_char)?;
        let (minor, rest) = optional(rest, |rest| take_while(rest.strip_prefix('.')?, is_number_char));
        let (patch, rest) = optional(rest, |rest| take_while(rest.strip_prefix('.')?, is_number_char));
        let (pre, rest) = optional(rest, |rest| take_identifiers(rest.strip_prefix('-')?));
        let (build, rest) = optional(rest, |rest| take_identifiers(rest.strip_prefix('+')?));
        let text = &text[..text.len() - rest.len()];
        Some((
            Self {
                text,
                major,
                minor,
                patch,
                pre,
                build,
            },
            rest,
        ))
    }
}

/// Reports whether a character can be part of a number of a range. The expression of the library contains the bar by
/// mistake: it is never part of a number, but is accepted after a wildcard.
fn is_number_char(c: char) -> bool {
    c.is_ascii_digit() || matches!(c, 'x' | 'X' | '*' | '|')
}

fn is_identifier_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '-'
}

/// Returns the characters at the start that `wanted` accepts, at least one, and the rest.
fn take_while(text: &str, wanted: impl Fn(char) -> bool) -> Option<(&str, &str)> {
    let end = text.find(|c| !wanted(c)).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

/// Returns identifiers joined by dots; a dot without an identifier after it stays in the rest.
fn take_identifiers(text: &str) -> Option<(&str, &str)> {
    let (_, mut rest) = take_while(text, is_identifier_char)?;
    while let Some((_, further)) = rest
        .strip_prefix('.')
        .and_then(|r| take_while(r, is_identifier_char))
    {
        rest = further;
    }
    Some(text.split_at(text.len() - rest.len()))
}

fn optional<'a>(
    text: &'a str,
    take: impl Fn(&'a str) -> Option<(&'a str, &'a str)>,
) -> (Option<&'a str>, &'a str) {
    take(text).map_or((None, text), |(taken, rest)| (Some(taken), rest))
}

/// Parses a number of a version: digits only, below 2^64. Leading zeros are dropped.
pub(super) fn number(part: &str) -> Option<u64> {
    // `u64::from_str` would accept a sign.
    part.bytes()
        .all(|b| b.is_ascii_digit())
        .then(|| part.parse().ok())
        .flatten()
}

/// Parses a version like the Go library: `v1.2.3`, `1.9` and `2` are versions, missing numbers are zero.
///
/// Leading zeros of a number are dropped (`v1.02` is 1.2.0), but a numeric part of a prerelease must not have any.
/// Returns `None` for a text that is not a version, such as `latest` or `release-1.2`.
#[must_use]
pub fn parse_version(tag: &str) -> Option<Version> {
    if tag.len() > MAX_VERSION_LEN {
        return None;
    }
    let (written, rest) = Written::take(tag)?;
    if !rest.is_empty() {
        return None;
    }
    Some(Version {
        major: number(written.major)?,
        minor: written.minor.map_or(Some(0), number)?,
        patch: written.patch.map_or(Some(0), number)?,
        pre: Prerelease::new(written.pre.unwrap_or_default()).ok()?,
        build: BuildMetadata::new(written.build.unwrap_or_default()).ok()?,
    })
}

/// Reports whether a version is written in full: three numbers without leading zeros, with or without a `v`.
///
/// Flux accepts no other tags. A tag such as `20240131` or `v2` may not be a version.
#[must_use]
pub fn is_full_version(tag: &str) -> bool {
    tag.len() <= MAX_VERSION_LEN && Version::parse(tag.strip_prefix('v').unwrap_or(tag)).is_ok()
}

/// Compares two versions by precedence. Build metadata is ignored, as in the Go library.
///
/// The order differs from that of `semver` in one more point: a number in a prerelease of more than 64 bits is compared
/// like a word, character by character.
#[must_use]
pub fn precedence(a: &Version, b: &Version) -> Ordering {
    (a.major, a.minor, a.patch)
        .cmp(&(b.major, b.minor, b.patch))
        .then_with(|| prerelease(&a.pre, &b.pre))
}

/// Compares the prereleases of one version; a version without one is the release and comes last.
fn prerelease(a: &Prerelease, b: &Prerelease) -> Ordering {
    match (a.is_empty(), b.is_empty()) {
        (true, true) => Ordering::Equal,
        (true, false) => Ordering::Greater,
        (false, true) => Ordering::Less,
        (false, false) => a
            .split('.')
            .map(Identifier::of)
            .cmp(b.split('.').map(Identifier::of)),
    }
}

/// A part of a prerelease; numbers come before words.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Identifier<'a> {
    Number(u64),
    Word(&'a str),
}

impl<'a> Identifier<'a> {
    fn of(text: &'a str) -> Self {
        number(text).map_or(Self::Word(text), Self::Number)
    }
}
/// Drops leading spaces: the five that `\s` matches in Go, and no others.
pub(super) fn trim_start(text: &str) -> &str {
    text.trim_start_matches([' ', '\t', '\n', '\r', '\x0c'])
}
