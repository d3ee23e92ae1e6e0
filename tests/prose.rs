//! The form of prose, and the words of serialised fields and of names in code.
//!
//! Comments and documentation have lines of at most 120 characters, which rustfmt does not enforce: it leaves comments
//! as they are. Programs read serialised names, so a retired word must not survive there behind a `rename`. Readers
//! know the words of `docs/GLOSSARY.md`, so the names of types, functions and modules have no retired word either.

use std::io;
use std::path::{Path, PathBuf};

/// Maximum number of characters of a line of prose.
const WIDTH: usize = 120;

/// Names that serialised fields had before `docs/GLOSSARY.md`, and must not have.
const RETIRED: [&str; 4] = ["held", "look", "word", "words"];

/// Words that `docs/GLOSSARY.md` replaced by those of Kubernetes, Flux and Argo CD. No type, variant, field, constant,
/// function or module of [`SOURCES`] has one of them in its name, nor its plural; there are no exceptions.
const RETIRED_IN_NAMES: [&str; 21] = [
    "beside",
    "contest",
    "course",
    "departure",
    "desk",
    "doubt",
    "errand",
    "eye",
    "look",
    "looked",
    "mood",
    "outlook",
    "promise",
    "room",
    "roster",
    "shelf",
    "surrounding",
    "told",
    "unsure",
    "wish",
    "workshop",
];

/// Further retired words, which functions may have in their names: the names of tests are sentences.
const RETIRED_IN_DATA: [&str; 4] = ["asked", "seen", "standing", "vector"];

/// Where names are checked. The embedded API server has the words of Kubernetes' own code.
const SOURCES: [&str; 11] = [
    "src",
    "crates/api/src",
    "crates/controlplane/src",
    "crates/core/src",
    "crates/expression/src",
    "crates/git/src",
    "crates/ledger/src",
    "crates/member/src",
    "crates/net/src",
    "crates/render/src",
    "crates/testkit/src",
];

/// The keywords that a name of a type, constant, function or module follows.
const DEFINING: [&str; 9] = [
    "const", "enum", "fn", "mod", "static", "struct", "trait", "type", "union",
];

/// The keywords of types with fields or variants.
const WITH_MEMBERS: [&str; 3] = ["enum", "struct", "union"];

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

/// Returns the numbers of the comment lines of a TOML or YAML file that are too long.
fn long_hash_comments(source: &str) -> Vec<usize> {
    let lines = source.lines().enumerate();
    let long = lines.filter(|(_, line)| line.trim_start().starts_with('#') && width(line) > WIDTH);
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

/// Returns the lower-case words of a name in snake or camel case.
fn words(name: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut last = '_';
    let mut rest = name.chars().peekable();
    while let Some(char) = rest.next() {
        // The last capital of several belongs to the next word.
        let ends_capitals = rest.peek().is_some_and(|next| next.is_lowercase());
        if char == '_' || (char.is_uppercase() && (!last.is_uppercase() || ends_capitals)) {
            words.push(String::new());
        }
        if let Some(word) = words.last_mut().filter(|_| char != '_') {
            word.extend(char.to_lowercase());
        }
        last = char;
    }
    words.retain(|word| !word.is_empty());
    words
}

/// Whether a name has one of these words.
fn has_one(name: &str, retired: &[&str]) -> bool {
    let is_retired = |word: &String| {
        let singular = word.strip_suffix('s').unwrap_or(word);
        retired.contains(&word.as_str()) || retired.contains(&singular)
    };
    words(name).iter().any(is_retired)
}

/// Whether the name of a type, variant, field, constant or module has a retired word.
fn is_retired(name: &str) -> bool {
    has_one(name, &RETIRED_IN_NAMES) || has_one(name, &RETIRED_IN_DATA)
}

/// Returns the identifiers and keywords of a line of Rust.
fn tokens(code: &str) -> Vec<&str> {
    let tokens = code.split(|char: char| !(char.is_alphanumeric() || char == '_'));
    tokens.filter(|token| !token.is_empty()).collect()
}

/// Returns the names of the fields and variants on a line within the body of a type.
fn members(code: &str) -> Vec<&str> {
    // A field is before the first colon of its pair; `::` is that of a path.
    let fields = code.split([',', '{', '(']).filter_map(|part| {
        let (name, _) = part.split_once(':').filter(|(_, rest)| !rest.starts_with(':'))?;
        tokens(name).last().copied()
    });
    let first = tokens(code).first().copied();
    let variant = first.filter(|name| name.starts_with(char::is_uppercase));
    fields.chain(variant).collect()
}

/// Returns the numbers of the lines of a Rust source that define a type, variant, field, constant, function or module
/// with a retired word.
fn retired_definitions(source: &str) -> Vec<usize> {
    let mut found = Vec::new();
    // The open braces of the type whose body the line is in.
    let mut depth = 0;
    for (index, line) in source.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        let code = if code.trim_start().starts_with("#[") {
            ""
        } else {
            code
        };
        let tokens = tokens(code);
        let mut pairs = tokens.windows(2);
        let defines = pairs.any(|pair| match pair[0] {
            "fn" => has_one(pair[1], &RETIRED_IN_NAMES),
            keyword => DEFINING.contains(&keyword) && is_retired(pair[1]),
        });
        let is_type = tokens.windows(2).any(|pair| WITH_MEMBERS.contains(&pair[0]));
        let has_members = depth > 0 && members(code).into_iter().any(is_retired);
        if defines || has_members {
            found.push(index + 1);
        }
        if depth > 0 || is_type {
            depth += code.matches('{').count();
            depth = depth.saturating_sub(code.matches('}').count());
        }
    }
    found
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
    for extension in ["toml", "yaml"] {
        assert_eq!(
            places(extension, long_hash_comments).unwrap(),
            Vec::<String>::new()
        );
    }
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
fn names_have_the_words_of_the_glossary() {
    let all = places("rs", retired_definitions).unwrap().into_iter();
    let found = all.filter(|place| SOURCES.iter().any(|folder| Path::new(place).starts_with(folder)));
    assert_eq!(found.collect::<Vec<_>>(), Vec::<String>::new());
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
fn a_comment_of_a_configuration_is_long_by_characters() {
    let long = "x".repeat(120);
    for (source, expected) in [
        (format!("# {long}\nkey = \"{long}\"\n  # {long}"), vec![1, 3]),
        (format!("# {}", &long[2..]), vec![]),
    ] {
        assert_eq!(long_hash_comments(&source), expected, "{source}");
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

#[test]
fn a_retired_word_is_found_in_the_names_of_definitions() {
    for (source, expected) in [
        ("mod look;\nmod lookup;", vec![1]),
        ("pub(super) struct Looked<'a> {", vec![1]),
        (
            "enum HTTPRoom {}\nstruct RosterIndex;\ntype Bedroom = u8;",
            vec![1, 2],
        ),
        ("    async fn why_is_told(&self) {", vec![1]),
        ("trait Wish {} // fine", vec![1]),
        ("fn departures() {}\nfn who_left() {}", vec![1]),
        ("// fn look()\nlet room = 1;\nlook(room);", vec![]),
        ("fn unimplemented(look: u8) {}", vec![]),
        ("fn it_is_seen() {}\nmod seen;", vec![2]),
        (
            "const LOOK: u8 = 1;\npub(super) static LOOKS: u8 = 1;\nconst fn room() {}",
            vec![1, 2, 3],
        ),
        (
            "struct A {\n    pub(super) look: u8,\n    lookup: look::Eye,\n}\nlook: 1,",
            vec![2],
        ),
        (
            "enum A {\n    Seen,\n    B { desk: u8 },\n    C(Look),\n    #[look]\n    D {\n        room: u8,\n    },\n}",
            vec![2, 3, 7],
        ),
        ("struct A(u8);\nlet b = B { look: 1 };", vec![]),
    ] {
        assert_eq!(retired_definitions(source), expected, "{source}");
    }
}
