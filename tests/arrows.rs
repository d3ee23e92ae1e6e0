//! Which package, and which module of the program, may use which other one (ADR 34).
//!
//! A dependency that is not listed fails, and so does a listed dependency that no longer exists: the lists are
//! complete.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

type Arrows = BTreeSet<(String, String)>;

/// The packages of the workspace that each package depends on.
const PACKAGES: &[(&str, &[&str])] = &[
    ("api", &[]),
    ("core", &["api"]),
    ("expression", &["core"]),
    ("net", &["core"]),
    ("git", &["net"]),
    ("render", &["api", "core"]),
    ("ledger", &["core"]),
    ("member", &["api", "core", "net"]),
    ("apiserver", &[]),
    ("controlplane", &[]),
    ("testkit", &["api", "controlplane"]),
    (
        PROGRAM,
        &[
            "api",
            "apiserver",
            "controlplane",
            "core",
            "expression",
            "git",
            "ledger",
            "member",
            "net",
            "render",
        ],
    ),
];

/// The packages that their tests use in addition.
const IN_TESTS: &[(&str, &[&str])] = &[
    ("apiserver", &["controlplane"]),
    ("member", &["controlplane", "testkit"]),
    ("render", &["controlplane", "testkit"]),
    (
        "suites",
        &["api", "apiserver", "controlplane", "core", "ledger", "testkit"],
    ),
    (PROGRAM, &["testkit"]),
];

/// The top-level modules of `src` that each module uses.
const MODULES: &[(&str, &[&str])] = &[
    ("cli", &["controller", "read_model", "server"]),
    ("read_model", &["controller"]),
];

/// The name of the program's package in the lists. The others have their names without `starling-`.
const PROGRAM: &str = "the program";

fn listed(list: &[(&str, &[&str])]) -> Arrows {
    let pairs = list
        .iter()
        .flat_map(|(from, to)| to.iter().map(|to| ((*from).to_owned(), (*to).to_owned())));
    pairs.collect()
}

/// Describes each difference between the arrows found and the list.
fn differences(found: &Arrows, list: &[(&str, &[&str])]) -> Vec<String> {
    let listed = listed(list);
    let new = found.difference(&listed);
    let removed = listed.difference(found);
    new.map(|(from, to)| format!("{from} uses {to}, which is not in the list"))
        .chain(removed.map(|(from, to)| format!("{from} no longer uses {to}, but the list says so")))
        .collect()
}

/// Reads the arrows between packages from `cargo metadata`: normal dependencies, and those of tests.
fn packages(metadata: &Value) -> (Arrows, Arrows) {
    let short = |name: &Value| {
        let name = name.as_str()?;
        if name == "starling" {
            return Some(PROGRAM.to_owned());
        }
        name.strip_prefix("starling-").map(str::to_owned)
    };
    let (mut built, mut tests) = (Arrows::new(), Arrows::new());
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let Some(from) = short(&package["name"]) else {
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let Some(to) = short(&dependency["name"]) else {
                continue;
            };
            let arrows = if dependency["kind"] == "dev" {
                &mut tests
            } else {
                &mut built
            };
            arrows.insert((from.clone(), to));
        }
    }
    (built, tests)
}

/// Returns the modules that a source names by `crate::`, alone or in braces. Comments are ignored.
fn named(source: &str) -> BTreeSet<String> {
    let code: Vec<&str> = source
        .lines()
        .map(|line| line.split_once("//").map_or(line, |(code, _)| code))
        .collect();
    let code = code.join("\n");
    let mut named = BTreeSet::new();
    for (at, _) in code.match_indices("crate::") {
        let before = code[..at].chars().next_back();
        if before.is_some_and(|before| before.is_alphanumeric() || before == '_') {
            continue;
        }
        let rest = &code[at + "crate::".len()..];
        match rest.strip_prefix('{') {
            Some(group) => named.extend(first_words_of_group(group)),
            None => named.extend([first_word(rest)]),
        }
    }
    named.remove("");
    named
}

fn first_word(text: &str) -> String {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
    text[..end.unwrap_or(text.len())].to_owned()
}

/// Returns the first word of each part of `a::b, c::{d, e}, f}`.
fn first_words_of_group(group: &str) -> Vec<String> {
    let (mut depth, mut parts) = (0, vec![String::new()]);
    for c in group.chars() {
        match c {
            '}' if depth == 0 => break,
            ',' if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if let Some(part) = parts.last_mut() {
            part.push(c);
        }
    }
    parts.iter().map(|part| first_word(part.trim_start())).collect()
}

/// Returns the arrows between modules, given each source with its top-level module.
fn modules(sources: &[(String, String)]) -> Arrows {
    let all: BTreeSet<&str> = sources.iter().map(|(module, _)| module.as_str()).collect();
    let mut arrows = Arrows::new();
    for (from, source) in sources {
        for to in named(source) {
            if to != *from && all.contains(to.as_str()) {
                arrows.insert((from.clone(), to));
            }
        }
    }
    arrows
}

fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Reads the sources in a folder, each with its top-level module, except those of the crate root.
fn sources(folder: &Path) -> io::Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(here) = folders.pop() {
        for entry in std::fs::read_dir(here)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let top = path
                    .strip_prefix(folder)
                    .ok()
                    .and_then(|within| within.iter().next());
                let top = top.unwrap_or_default().to_string_lossy();
                let top = top.strip_suffix(".rs").unwrap_or(&top);
                if !["lib", "main"].contains(&top) {
                    found.push((top.to_owned(), std::fs::read_to_string(&path)?));
                }
            }
        }
    }
    Ok(found)
}

#[test]
fn packages_use_those_of_the_list() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args([
            "metadata",
            "--no-deps",
            "--format-version",
            "1",
            "--offline",
            "--locked",
        ])
        .current_dir(checkout())
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let (built, tests) = packages(&serde_json::from_slice(&output.stdout).unwrap());
    assert_eq!(differences(&built, PACKAGES), Vec::<String>::new());
    assert_eq!(differences(&tests, IN_TESTS), Vec::<String>::new(), "in tests");
}

#[test]
fn modules_use_those_of_the_list() {
    let found = modules(&sources(&checkout().join("src")).unwrap());
    assert_eq!(differences(&found, MODULES), Vec::<String>::new());
}

#[test]
fn new_and_removed_arrows_are_differences() {
    let metadata = json!({"packages": [
        {"name": "starling", "dependencies": [{"name": "starling-git", "kind": null}, {"name": "serde", "kind": null}]},
        {"name": "starling-git", "dependencies": [
            {"name": "starling-render", "kind": null}, {"name": "starling-testkit", "kind": "dev"},
        ]},
        {"name": "starling-render", "dependencies": [{"name": "starling-git", "kind": "build"}]},
    ]});
    let (built, tests) = packages(&metadata);
    let list: &[(&str, &[&str])] = &[(PROGRAM, &["git", "core"]), ("render", &["git"])];
    let expected = [
        "git uses render, which is not in the list",
        "the program no longer uses core, but the list says so",
    ];
    assert_eq!(differences(&built, list), expected);
    assert_eq!(tests, listed(&[("git", &["testkit"])]));
}

#[test]
fn modules_are_found_in_every_notation() {
    for (source, names) in [
        ("use crate::a::B;", vec!["a"]),
        ("use crate::{a, b::{c, d}, e::F};", vec!["a", "b", "e"]),
        ("use crate::{\n    a::B,\n    c,\n};\n", vec!["a", "c"]),
        ("let x = crate::a::f(crate::b::g());", vec!["a", "b"]),
        ("pub(in crate::a) fn f() {}", vec!["a"]),
        ("let x = supercrate::a; // crate::b\n/// [`crate::c`]", vec![]),
    ] {
        let expected: BTreeSet<String> = names.into_iter().map(str::to_owned).collect();
        assert_eq!(named(source), expected, "{source}");
    }
    let source = |module: &str, text: &str| (module.to_owned(), text.to_owned());
    let found = modules(&[
        source(
            "cli",
            "use crate::controller::X; use crate::cli::Y; use crate::chain;",
        ),
        source("controller", "fn f() { crate::cli::complain() }"),
    ]);
    let list: &[(&str, &[&str])] = &[("cli", &["controller", "server"]), ("controller", &[])];
    let expected = [
        "controller uses cli, which is not in the list",
        "cli no longer uses server, but the list says so",
    ];
    assert_eq!(differences(&found, list), expected);
}
