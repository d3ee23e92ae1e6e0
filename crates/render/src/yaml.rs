//! The YAML reader.
//!
//! The reference is `sigs.k8s.io/yaml`, which kubectl and kustomize use. If this reader cannot produce the same value,
//! it fails; it never returns a different value. Errors contain the position and the kind of problem, and never quote
//! the input, which may be a Secret.

use std::fmt;

use serde_json::{Number, Value};
use serde_saphyr::Error;
use serde_saphyr::granit_parser::{Event, Parser, ScalarStyle};

/// Maximum levels of nesting. The schema of a CustomResourceDefinition rarely exceeds 40; the reader recurses.
const MAX_DEPTH: usize = 100;
/// Stack of the reading thread. A level takes 20 KiB in an unoptimised build (measured), so 100 take 2 MiB.
const STACK_BYTES: usize = 8 << 20;
/// Maximum sequences, mappings and scalars in one input: 20,000 objects of 100 each. A value takes about 100 bytes.
pub(super) const MAX_NODES: usize = 2_000_000;
/// Maximum anchors and aliases in one input; users write a few, and the output of kustomize has none.
const MAX_ALIASES: usize = 10_000;
/// From here on, a float has lost digits of the written integer, or is not a meaningful number in a manifest.
const BEYOND_64_BITS: f64 = 9_223_372_036_854_775_808.0;

/// An error in an input, with its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct YamlError {
    /// Document, counted from 1; empty documents count if a line is known.
    pub document: usize,
    /// Line and column, counted from 1, where known.
    pub at: Option<(u64, u64)>,
    /// The problem; fixed text.
    pub problem: &'static str,
}

impl fmt::Display for YamlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "document {}", self.document)?;
        if let Some((line, column)) = self.at {
            write!(f, ", line {line}, column {column}")?;
        }
        write!(f, ": {}", self.problem)
    }
}

impl std::error::Error for YamlError {}

/// Reads all documents of an input; skips empty ones.
///
/// # Errors
/// Anything that is not YAML, duplicate keys, numbers out of range, more than `max_documents`, deep nesting, and
/// aliases that expand too far.
pub(super) fn read(input: &[u8], max_documents: usize) -> Result<Vec<Value>, YamlError> {
    read_within(input, max_documents, MAX_NODES)
}

/// Returns the number of sequences, mappings and scalars of a value.
pub(super) fn nodes(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(nodes).sum::<usize>(),
        Value::Object(fields) => 1 + fields.values().map(|value| 1 + nodes(value)).sum::<usize>(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 1,
    }
}

/// Reads as [`read`] does, with a maximum for the sequences, mappings and scalars.
///
/// # Errors
/// As [`read`].
pub(super) fn read_within(
    input: &[u8],
    max_documents: usize,
    max_nodes: usize,
) -> Result<Vec<Value>, YamlError> {
    let whole = |problem| YamlError {
        document: 1,
        at: None,
        problem,
    };
    let text = std::str::from_utf8(input).map_err(|_| whole("the text is not UTF-8"))?;
    // The reader recurses, and a stack overflow aborts the process, so the maximum depth and the stack size must match.
    std::thread::scope(|scope| {
        std::thread::Builder::new()
            .name("yaml".to_owned())
            .stack_size(STACK_BYTES)
            .spawn_scoped(scope, || parse(text, max_documents, max_nodes))
            .map_err(|_| whole("the system has no thread left to read it with"))?
            .join()
            .unwrap_or_else(|_| Err(whole("the reader failed on this text")))
    })
}

fn parse(text: &str, max_documents: usize, max_nodes: usize) -> Result<Vec<Value>, YamlError> {
    let options = || options(text.len(), max_documents, max_nodes);
    let quoted = has_ambiguous_word(text).then(|| quote_texts(text));
    let source = quoted.as_deref().unwrap_or(text);
    let parsed = match serde_saphyr::from_multiple_with_options(source, options()) {
        Err(error) if matches!(error.without_snippet(), Error::NonFiniteFloat { .. }) => {
            serde_saphyr::from_multiple_with_options(&quote_texts(text), options())
        }
        parsed => parsed,
    };
    let mut documents: Vec<Value> = parsed.map_err(|error| locate(text, &error))?;
    documents.retain(|document| !document.is_null());
    for (index, document) in documents.iter_mut().enumerate() {
        normalise(document).map_err(|NumberTooLarge| YamlError {
            document: index + 1,
            at: None,
            problem: "a number does not fit into 64 bits; quote it if it is a text",
        })?;
    }
    Ok(documents)
}

/// Quotes plain scalars that Go reads as strings and the library as another type.
///
/// This is necessary because kustomize removes the quotes that a user put around such a string. They are numbers too
/// large for a float (`12e5678`, which may be an abbreviated commit hash) and words in mixed case (`nO`). The pass
/// costs half as much as a parse, so it runs only if the text contains such a word.
fn quote_texts(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 64);
    let mut done = 0;
    // A syntax error ends the pass here, and the reader reports it afterwards.
    for (event, span) in Parser::new_from_str(text).map_while(Result::ok) {
        let Event::Scalar(value, ScalarStyle::Plain, _, None) = event else {
            continue;
        };
        let range = span
            .start
            .byte_offset()
            .zip(span.end.byte_offset())
            .map(|(start, end)| start..end);
        let Some(range) = range.filter(|range| range.start >= done) else {
            continue;
        };
        let meant = overflows(&value) || is_ambiguous_word(&value);
        if meant && text.get(range.clone()) == Some(value.as_ref()) {
            quoted.push_str(&text[done..range.start]);
            quoted.push('"');
            quoted.push_str(&value);
            quoted.push('"');
            done = range.end;
        }
    }
    quoted.push_str(&text[done..]);
    quoted
}

fn has_ambiguous_word(text: &str) -> bool {
    text.split(|c: char| !c.is_ascii_alphabetic())
        .any(is_ambiguous_word)
}

/// Whether a word is true, false or null for the library only: Go accepts `no`, `No` and `NO`, but not `nO`.
fn is_ambiguous_word(word: &str) -> bool {
    const WORDS: [&str; 7] = ["yes", "no", "on", "off", "true", "false", "null"];
    if !(2..=5).contains(&word.len()) || !WORDS.iter().any(|known| word.eq_ignore_ascii_case(known)) {
        return false;
    }
    let rest = &word.as_bytes()[1..];
    let lower = rest.iter().all(u8::is_ascii_lowercase);
    let upper = word.bytes().all(|byte| byte.is_ascii_uppercase());
    !lower && !upper
}

/// Whether a plain scalar is written as a decimal number that no 64-bit float can hold.
fn overflows(scalar: &str) -> bool {
    let decimal = scalar
        .bytes()
        .all(|byte| byte.is_ascii_digit() || b"+-._eE".contains(&byte));
    decimal && scalar.replace('_', "").parse::<f64>().is_ok_and(f64::is_infinite)
}

fn options(bytes: usize, max_documents: usize, max: usize) -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            flow_nesting_limit: MAX_DEPTH,
            // Empty documents between separators count too; kustomize never writes them.
            max_documents: max_documents.saturating_mul(2).saturating_add(16),
            max_nodes: max,
            max_events: max.saturating_mul(2),
            max_aliases: MAX_ALIASES,
            max_anchors: MAX_ALIASES,
            // The caller limits the input; without aliases, a scalar cannot be longer than the input.
            max_total_scalar_bytes: bytes.saturating_mul(2).saturating_add(1 << 20),
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: 100_000 },
        duplicate_keys: serde_saphyr::options::DuplicateKeyPolicy::Error,
        non_finite_float_policy: serde_saphyr::options::NonFiniteFloatPolicy::Reject,
        legacy_octal_numbers: true,
        with_snippet: false,
    }
}

/// A number without a fraction does not fit into 64 bits.
struct NumberTooLarge;

/// Converts numbers to the form of Go's JSON: a float without a fraction is an integer (`1e3` is `1000`).
fn normalise(value: &mut Value) -> Result<(), NumberTooLarge> {
    match value {
        Value::Number(number) => {
            if let Some(whole) = whole(number)? {
                *number = whole;
            }
            Ok(())
        }
        Value::Array(items) => items.iter_mut().try_for_each(normalise),
        Value::Object(fields) => fields.values_mut().try_for_each(normalise),
        Value::Null | Value::Bool(_) | Value::String(_) => Ok(()),
    }
}

fn whole(number: &Number) -> Result<Option<Number>, NumberTooLarge> {
    let Some(float) = number.as_f64().filter(|_| number.is_f64()) else {
        return Ok(None);
    };
    if float.abs() >= BEYOND_64_BITS {
        return Err(NumberTooLarge);
    }
    if float.fract() != 0.0 {
        return Ok(None);
    }
    #[expect(
        clippy::cast_possible_truncation,
        reason = "whole and below 2^63 in size, checked above"
    )]
    Ok(Some(Number::from(float as i64)))
}

fn locate(text: &str, error: &Error) -> YamlError {
    let at = error
        .location()
        .map(|location| (location.line(), location.column()));
    let at = at.filter(|(line, _)| *line > 0);
    let document = at.map_or(1, |(line, _)| document_at(text, line));
    YamlError {
        document,
        at,
        problem: problem(error),
    }
}

/// Returns the number of the document of a line: a `---` at the start of any line starts a document.
fn document_at(text: &str, line: u64) -> usize {
    let separates = |line: &str| {
        line.strip_prefix("---")
            .is_some_and(|rest| rest.is_empty() || rest.starts_with([' ', '\t', '\r']))
    };
    let lines = usize::try_from(line).unwrap_or(usize::MAX);
    let above = || text.lines().take(lines);
    let bare = |line: &str| line.trim().is_empty() || line.starts_with(['#', '%']);
    // The first document needs no separator.
    let implicit = above()
        .find(|line| !bare(line))
        .is_some_and(|first| !separates(first));
    let documents = above().filter(|line| separates(line)).count() + usize::from(implicit);
    documents.max(1)
}

/// Returns a fixed text for each kind of error: the texts of the library may contain keys, tags and values of the
/// input.
fn problem(error: &Error) -> &'static str {
    match error.without_snippet() {
        Error::AliasError { error, .. } => problem(error),
        Error::DuplicateMappingKey { .. } => "a key occurs twice in one mapping",
        Error::NonFiniteFloat { .. } => "a number is infinite or not a number; quote it if it is a text",
        Error::Budget { .. }
        | Error::AliasReplayLimitExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. }
        | Error::AliasReplayCounterOverflow { .. } => {
            "too many documents, values, aliases or levels of nesting"
        }
        Error::UnknownAnchor { .. } | Error::RecursiveReferencesRequireWeakTypes { .. } => {
            "an alias names no finished anchor"
        }
        Error::InvalidScalar { .. } => "a scalar does not fit its tag",
        Error::InvalidBinaryBase64 { .. } | Error::BinaryNotUtf8 { .. } => {
            "a !!binary value cannot be decoded"
        }
        Error::MergeValueNotMapOrSeqOfMaps { .. } => "a merge key takes a mapping",
        Error::Eof { .. } => "the text ends too early",
        _ => "the text is not valid YAML",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn one(yaml: &str) -> Result<Value, YamlError> {
        read(yaml.as_bytes(), 100).map(|mut documents| {
            assert_eq!(documents.len(), 1, "{yaml}");
            documents.remove(0)
        })
    }

    /// The expected values are those of `sigs.k8s.io/yaml` 1.6.0.
    #[test]
    fn scalars_read_as_kubectl_reads_them() {
        let table = [
            ("yes", json!(true)),
            ("no", json!(false)),
            ("on", json!(true)),
            ("off", json!(false)),
            ("y", json!(true)),
            ("n", json!(false)),
            ("NO", json!(false)),
            ("Yes", json!(true)),
            ("TRUE", json!(true)),
            ("nO", json!("nO")),
            ("tRUE", json!("tRUE")),
            ("NULl", json!("NULl")),
            ("Null", json!(null)),
            ("0644", json!(420)),
            ("010", json!(8)),
            ("08", json!(8)),
            ("1_000", json!(1000)),
            ("0b11", json!(3)),
            ("0x1F", json!(31)),
            ("0o644", json!(420)),
            ("1e3", json!(1000)),
            ("1.0", json!(1)),
            ("1.5", json!(1.5)),
            ("-7", json!(-7)),
            ("9223372036854775807", json!(9_223_372_036_854_775_807_i64)),
            ("18446744073709551615", json!(18_446_744_073_709_551_615_u64)),
            ("1:20", json!("1:20")),
            ("~", json!(null)),
            ("", json!(null)),
            ("\"yes\"", json!("yes")),
            ("'0644'", json!("0644")),
            ("\"12e5678\"", json!("12e5678")),
            ("12e5678", json!("12e5678")),
            ("-1.5e400", json!("-1.5e400")),
            ("!custom x", json!("x")),
            ("!!binary aGVsbG8=", json!("hello")),
            ("!!str 12", json!("12")),
            ("2026-11-21", json!("2026-11-21")),
            ("12:30:45", json!("12:30:45")),
            ("${REPLICAS}", json!("${REPLICAS}")),
        ];
        for (input, expected) in table {
            assert_eq!(
                one(&format!("v: {input}\n")),
                Ok(json!({ "v": expected })),
                "{input}"
            );
        }
    }

    #[test]
    fn merge_keys_boms_and_line_breaks_are_supported() {
        assert_eq!(
            one("base: &b {x: 1}\nd:\n  <<: *b\n  y: 2\n"),
            Ok(json!({"base": {"x": 1}, "d": {"x": 1, "y": 2}}))
        );
        assert_eq!(one("\u{feff}a: 1\r\nb: x\r\n"), Ok(json!({"a": 1, "b": "x"})));
    }

    #[test]
    fn empty_documents_are_skipped() {
        let documents = read(
            b"---\n---\na: 1\n---\n# only a comment\n---\nnull\n---\nb: 2\n",
            10,
        );
        assert_eq!(documents, Ok(vec![json!({"a": 1}), json!({"b": 2})]));
        assert_eq!(read(b"", 10), Ok(vec![]));
    }

    #[test]
    fn values_that_would_change_are_an_error() {
        for input in [
            ".inf",
            "-.inf",
            ".nan",
            "18446744073709551616",
            "-9223372036854775809",
            "1e300",
            "123456789012345678901234567890",
        ] {
            assert!(one(&format!("v: {input}\n")).is_err(), "{input}");
        }
    }

    #[test]
    fn errors_contain_the_position_and_never_the_content() {
        let error = read(
            b"a: 1\n---\nb: 1\n---\nstringData:\n  s3cret: hunter2\n  s3cret: hunter2\n",
            10,
        )
        .expect_err("duplicate key");
        assert_eq!((error.document, error.at.map(|at| at.0)), (3, Some(7)), "{error}");
        for input in [
            "s3cret: hunter2\ns3cret: hunter2\n",
            "a: \"hunter2\nb: c\n",
            "a: *hunter2\n",
            "hunter2: [\n",
            "a: !!int hunter2\n",
            "a: b: hunter2\n",
        ] {
            let error = one(input).expect_err(input);
            let text = format!("{error} {error:?}");
            assert!(!text.contains("hunter2") && !text.contains("s3cret"), "{text}");
        }
    }

    #[test]
    fn hostile_structures_are_refused() {
        let mut bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n".to_owned();
        for level in 1..10 {
            let previous = level - 1;
            let aliases = vec![format!("*a{previous}"); 9].join(",");
            bomb.push_str(&format!("a{level}: &a{level} [{aliases}]\n"));
        }
        let documents = "---\na: 1\n".repeat(1000);
        for (name, input) in [
            ("alias bomb", bomb),
            ("flow nesting", "[".repeat(100_000)),
            ("block nesting", "- ".repeat(100_000)),
            ("one level too many", "- ".repeat(MAX_DEPTH + 1)),
            ("documents", documents),
            ("alias cycle", "a: &a [*a]\n".to_owned()),
            ("NUL", "a: \0\n".to_owned()),
            ("tab indentation", "a:\n\tb: 1\n".to_owned()),
        ] {
            assert!(read(input.as_bytes(), 100).is_err(), "{name}");
        }
        assert!(read(b"a: \xff\n", 100).is_err(), "invalid UTF-8");
        assert!(read(b"\xff\xfea\0:\0 \x001\0", 100).is_err(), "UTF-16");
    }

    #[test]
    fn numbers_that_are_too_large_are_strings_everywhere() {
        let text = "é: 12e5678 # 12e5678\nk: |\n  x: 12e5678\nl: [12e5678, '12e5678', a 12e5678]\n12e5678: &a 1_2e5678\nm: *a\n";
        let expected = json!({
            "é": "12e5678", "k": "x: 12e5678\n", "l": ["12e5678", "12e5678", "a 12e5678"],
            "12e5678": "1_2e5678", "m": "1_2e5678",
        });
        assert_eq!(one(text), Ok(expected));
        assert!(one("a: 12e5678\nb: .inf\n").is_err());
        assert!(one("a: !!float 12e5678\n").is_err());
        let broken = one("a: 12e5678\nb: [\n").expect_err("syntax");
        assert_ne!(
            broken.problem,
            problem(&Error::NonFiniteFloat {
                value: String::new(),
                location: serde_saphyr::Location::UNKNOWN
            })
        );
    }

    #[test]
    fn the_deepest_structure_that_is_allowed_fits_the_stack() {
        let text = format!("{}1", "- ".repeat(MAX_DEPTH));
        assert!(read(text.as_bytes(), 1).is_ok());
    }

    #[test]
    fn a_large_scalar_passes() {
        let text = format!("a: {}\n", "x".repeat(10 << 20));
        assert_eq!(
            one(&text).map(|v| v["a"].as_str().map(str::len)),
            Ok(Some(10 << 20))
        );
    }
}
