//! Compares version ranges with the results of Masterminds/semver, which `tests/oracle` recorded.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking, in its own functions too"
)]

use std::cmp::Ordering;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use starling_core::range::{Range, is_full_version, parse_version, precedence};

/// Cases that were written by hand.
#[derive(Deserialize)]
struct Table {
    versions: Vec<String>,
    ranges: Vec<Judged>,
    parsing: Vec<Parsed>,
    /// A row per version: the comparison with each version, one of `<`, `=` and `>`.
    order: Vec<String>,
}

#[derive(Deserialize)]
struct Judged {
    range: String,
    verdict: String,
}

#[derive(Deserialize)]
struct Parsed {
    text: String,
    version: Option<String>,
    /// Whether Flux accepts it as a tag.
    full: bool,
}

/// Random cases.
#[derive(Deserialize)]
struct Corpus {
    samples: Vec<Sample>,
}

#[derive(Deserialize)]
struct Sample {
    #[serde(rename = "r")]
    range: String,
    #[serde(rename = "v", default)]
    versions: Vec<String>,
    #[serde(rename = "m")]
    verdict: String,
}

fn read<T: DeserializeOwned>(json: &str) -> T {
    serde_json::from_str(json).unwrap()
}

fn table() -> Table {
    read(include_str!("data/ranges.json"))
}

/// Returns the result for a range in the notation of the oracle: `!` if it is rejected, else a digit per version.
fn verdict(range: &str, versions: &[String]) -> String {
    let Ok(range) = Range::parse(range) else {
        return "!".to_owned();
    };
    let digit = |text: &String| {
        let version = parse_version(text).unwrap_or_else(|| panic!("{text:?} is not read as a version"));
        if range.matches(&version) { '1' } else { '0' }
    };
    versions.iter().map(digit).collect()
}

/// Reports differences, the first few in full.
fn report(total: usize, differences: &[String]) {
    let shown = differences
        .iter()
        .take(20)
        .cloned()
        .collect::<Vec<_>>()
        .join("\n");
    assert!(
        differences.is_empty(),
        "{} of {total} differ from the Go library:\n{shown}",
        differences.len()
    );
}

fn difference(range: &str, versions: &[String], wanted: &str) -> Option<String> {
    let got = verdict(range, versions);
    if got == wanted {
        return None;
    }
    let places = wanted
        .chars()
        .zip(got.chars())
        .zip(versions)
        .filter(|((wanted, got), _)| wanted != got);
    let versions: Vec<&str> = places.map(|(_, version)| version.as_str()).collect();
    Some(format!(
        "{range:?}: wanted {wanted}, got {got}; versions concerned: {versions:?}"
    ))
}

#[test]
fn written_ranges_have_the_meaning_of_flux() {
    let Table { versions, ranges, .. } = table();
    assert!(
        ranges.len() >= 400 && versions.len() >= 60,
        "the table has shrunk"
    );
    let refused = ranges.iter().filter(|case| case.verdict == "!").count();
    assert!(refused >= 80, "{refused} refused ranges are too few");
    let differences: Vec<String> = ranges
        .iter()
        .filter_map(|case| difference(&case.range, &versions, &case.verdict))
        .collect();
    report(ranges.len(), &differences);
}

#[test]
fn random_ranges_have_the_meaning_of_flux() {
    let Corpus { samples } = read(include_str!("data/ranges-random.json"));
    let verdicts: String = samples.iter().map(|sample| sample.verdict.as_str()).collect();
    for (verdict, least) in [('0', 5000), ('1', 2000), ('!', 500)] {
        let count = verdicts.matches(verdict).count();
        assert!(count >= least, "{count} verdicts {verdict:?} are too few");
    }
    let differences: Vec<String> = samples
        .iter()
        .filter_map(|sample| difference(&sample.range, &sample.versions, &sample.verdict))
        .collect();
    report(samples.len(), &differences);
}

#[test]
fn versions_are_parsed_as_by_the_library() {
    let Table { parsing, .. } = table();
    assert!(parsing.len() >= 120, "the table has shrunk");
    let differences: Vec<String> = parsing
        .iter()
        .filter_map(|case| {
            let text = case.text.as_str();
            let wanted = (case.version.clone(), case.full);
            let got = (
                parse_version(text).map(|version| version.to_string()),
                is_full_version(text),
            );
            (got != wanted).then(|| format!("{text:?}: wanted {wanted:?}, got {got:?}"))
        })
        .collect();
    report(parsing.len(), &differences);
}

#[test]
fn versions_have_the_order_of_flux() {
    let Table { versions, order, .. } = table();
    assert_eq!(order.len(), versions.len());
    let mut differences = Vec::new();
    for (left, row) in versions.iter().zip(&order) {
        assert_eq!(row.len(), versions.len());
        for (right, wanted) in versions.iter().zip(row.chars()) {
            let got = match precedence(&parse_version(left).unwrap(), &parse_version(right).unwrap()) {
                Ordering::Less => '<',
                Ordering::Equal => '=',
                Ordering::Greater => '>',
            };
            if got != wanted {
                differences.push(format!("{left} {wanted} {right}, not {got}"));
            }
        }
    }
    report(versions.len() * versions.len(), &differences);
}
