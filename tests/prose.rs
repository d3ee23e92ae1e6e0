//! The form of prose, and the words of serialised fields.
//!
//! Comments and documentation have lines of at most 120 characters, which rustfmt does not enforce: it leaves comments
//! as they are. Programs read serialised names, so a retired word must not survive there behind a `rename`.

use std::io;
use std::path::{Path, PathBuf};

/// Maximum number of characters of a line of prose.
const WIDTH: usize = 120;

/// Names that serialised fields had before `docs/GLOSSARY.md`, and must not have.
const RETIRED: [&str; 4] = ["held", "look", "word", "words"];

/// Returns the width of a line without its URLs, which cannot be broken.
fn width(line: &str) -> usize {
    let urls = line.split_whitespace().filter(|word| word.contains("://"));
    let urls: usize = urls.map(|url| url.chars().count()).sum();
    line.chars().count() - urls
}

/// Returns the numbers of the comment lines of a Rust source that are too long.
fn long_comments(source: &str) -> Vec<usize> {
    let lines = source.lines().enumerate();
    let long = lines.filter(|(_, line)| line.trim_start().starts_with("//") && width(line) > WIDTH);
    long.map(|(index, _)| index + 1).collect()
}

/// Returns the numbers of the lines of a Markdown document that are too long, outside code fences and tables.
fn long_paragraphs(document: &str) -> Vec<usize> {
    let mut fence: Option<&str> = None;
    let mut long = Vec::new();
    for (index, line) in document.lines().enumerate() {
        let text = line.trim_start();
        let marker = ["```", "~~~"].into_iter().find(|marker| text.starts_with(marker));
        match (fence, marker) {
            (None, Some(_)) => fence = marker,
            (Some(open), Some(close)) if open == close => fence = None,
            (None, None) if !text.starts_with('|') && width(line) > WIDTH => long.push(index + 1),
            _ => {}
        }
    }
    long
}

/// Returns the numbers of the lines of a Rust source that rename a serialised field to a retired word.
fn retired_names(source: &str) -> Vec<usize> {
    let is_retired = |line: &str| {
        let names = line.split("rename = \"").skip(1);
        let mut names = names.filter_map(|rest| rest.split('"').next());
        names.any(|name| RETIRED.contains(&name))
    };
    let lines = source.lines().enumerate();
    let found = lines.filter(|(_, line)| is_retired(line));
    found.map(|(index, _)| index + 1).collect()
}

/// Reads the files of the checkout with an extension, without hidden and build directories.
fn files(extension: &str) -> io::Result<Vec<(PathBuf, String)>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (mut found, mut directories) = (Vec::new(), vec![root.clone()]);
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory)? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path.is_dir() {
                if !name.starts_with('.') && name != "target" {
                    directories.push(path);
                }
            } else if path.extension().is_some_and(|of| of == extension) {
                let within = path.strip_prefix(&root).unwrap_or(&path).to_owned();
                found.push((within, std::fs::read_to_string(&path)?));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Returns the places that a finder finds in the files with an extension, each as `PATH:LINE`.
fn places(extension: &str, finder: impl Fn(&str) -> Vec<usize>) -> io::Result<Vec<String>> {
    let files = files(extension)?;
    assert!(!files.is_empty(), "no files with the extension {extension}");
    let places = files.iter().flat_map(|(path, text)| {
        let lines = finder(text).into_iter();
        lines.map(move |line| format!("{}:{line}", path.display()))
    });
    Ok(places.collect())
}

#[test]
fn comments_fit_the_width() {
    assert_eq!(places("rs", long_comments).unwrap(), Vec::<String>::new());
}

#[test]
fn documentation_fits_the_width() {
    assert_eq!(places("md", long_paragraphs).unwrap(), Vec::<String>::new());
}

#[test]
fn serialised_fields_have_the_words_of_the_glossary() {
    assert_eq!(places("rs", retired_names).unwrap(), Vec::<String>::new());
}

#[test]
fn a_comment_is_long_by_characters_without_urls() {
    let of = |length: usize| "ä".repeat(length);
    for (source, expected) in [
        (format!("// {}\n", of(117)), vec![]),
        (format!("fn f() {{}}\n    /// {}\n", of(113)), vec![2]),
        (format!("//! {}", of(117)), vec![1]),
        (format!("let x = \"{}\"; // short", of(200)), vec![]),
        (format!("// See https://example.com/{}.", of(200)), vec![]),
        (format!("// https://example.com {}", of(120)), vec![1]),
    ] {
        assert_eq!(long_comments(&source), expected, "{source}");
    }
}

#[test]
fn tables_and_code_may_be_longer_than_paragraphs() {
    let long = "x".repeat(121);
    for (document, expected) in [
        (format!("# Title\n\n{long}\n- {long}\n"), vec![3, 4]),
        (format!("| {long} |\n  | {long} |\n"), vec![]),
        (format!("```sh\n{long}\n~~~\n{long}\n```\n{long}\n"), vec![6]),
        (format!("  ~~~\n  {long}\n  ~~~\n"), vec![]),
        (format!("[text](https://example.com/{long})\n"), vec![]),
    ] {
        assert_eq!(long_paragraphs(&document), expected, "{document}");
    }
}

#[test]
fn a_retired_name_is_found_in_every_notation() {
    for (source, expected) in [
        ("#[serde(rename = \"words\")]", vec![1]),
        ("#[serde(\n    default,\n    rename = \"look\",\n)]", vec![3]),
        (
            "#[serde(rename = \"a\")] x: A, #[serde(rename = \"held\")]",
            vec![1],
        ),
        ("#[serde(rename = \"lookup\")]", vec![]),
        ("held: u32, // words", vec![]),
    ] {
        assert_eq!(retired_names(source), expected, "{source}");
    }
}
