//! Which package, and which module of the program, may use which other one (ADR 34), which third-party packages the
//! packages without IO may use, and that modules do not use each other in circles.
//!
//! A dependency that is not listed fails, and so does a listed dependency that no longer exists: the lists are
//! complete. What a module uses is read from its source: a path in code, in a `use`, or among the arguments of a macro
//! or an attribute.

mod circles;
mod modules;
mod search;
mod source;
mod third_party;
mod tokens;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use modules::{Modules, Tests};

type Arrows = BTreeSet<(String, String)>;

/// The packages of the workspace that each package depends on.
const PACKAGES: &[(&str, &[&str])] = &[
    ("api", &[]),
    ("core", &["api"]),
    ("cel", &[]),
    ("expression", &["cel", "core"]),
    ("net", &["core"]),
    ("git", &["net"]),
    ("render", &["api", "core"]),
    ("ledger", &["core"]),
    ("member", &["api", "core", "net"]),
    ("apiserver", &["cel"]),
    ("controlplane", &[]),
    ("fuzz", &[]),
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
    ("core", &["fuzz"]),
    ("expression", &["fuzz"]),
    ("git", &["fuzz"]),
    ("member", &["controlplane", "fuzz", "testkit"]),
    ("render", &["controlplane", "fuzz", "testkit"]),
    (
        "suites",
        &["api", "apiserver", "controlplane", "core", "ledger", "testkit"],
    ),
    (PROGRAM, &["testkit"]),
];

/// The third-party packages that the packages without IO depend on: all of them.
const THIRD_PARTY: &[(&str, &[&str])] = &[
    (
        "api",
        &[
            "jiff",
            "k8s-openapi",
            "kube-core",
            "kube-derive",
            "schemars",
            "serde",
            "serde_json",
        ],
    ),
    (
        "core",
        &[
            "bytes",
            "hex",
            "hmac",
            "jiff",
            "k8s-openapi",
            "kube-core",
            "semver",
            "serde",
            "serde_json",
            "sha2",
            "thiserror",
        ],
    ),
];

/// Packages that a package of [`THIRD_PARTY`] does not need, not even through others: clients, runtimes, connections,
/// databases and repositories.
const DOING_IO: &[&str] = &[
    "git2",
    "hyper",
    "hyper-util",
    "kube",
    "kube-client",
    "kube-runtime",
    "reqwest",
    "rustls",
    "sqlx",
    "tokio",
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

/// Returns the response of `cargo metadata` about the checkout.
fn metadata(arguments: &[&str]) -> anyhow::Result<Value> {
    let fixed = ["metadata", "--format-version", "1", "--offline", "--locked"];
    Ok(serde_json::from_str(&cargo(&[&fixed, arguments].concat())?)?)
}

fn cargo(arguments: &[&str]) -> anyhow::Result<String> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(arguments)
        .current_dir(checkout())
        .output()?;
    anyhow::ensure!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?)
}

fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

#[test]
fn packages_use_those_of_the_list() {
    let (built, tests) = packages(&metadata(&["--no-deps"]).unwrap());
    assert_eq!(differences(&built, PACKAGES), Vec::<String>::new());
    assert_eq!(differences(&tests, IN_TESTS), Vec::<String>::new(), "in tests");
}

#[test]
fn packages_without_io_use_third_party_packages_of_the_list() {
    // Packages of other platforms need not be downloaded.
    let version = cargo(&["-vV"]).unwrap();
    let host = version
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .unwrap();
    let metadata = metadata(&["--filter-platform", host]).unwrap();
    let direct = third_party::direct(&metadata, THIRD_PARTY);
    assert_eq!(differences(&direct, THIRD_PARTY), Vec::<String>::new());
    let reached = third_party::reached(&metadata, THIRD_PARTY, DOING_IO);
    assert_eq!(reached, Vec::<String>::new());
}

#[test]
fn modules_use_those_of_the_list() {
    let program = Modules::read(&checkout().join("src")).unwrap();
    let found: Arrows = program.uses(&[], Tests::Count).into_keys().collect();
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
fn no_modules_use_each_other_in_a_circle() {
    let mut packages = vec!["src".to_owned()];
    for entry in std::fs::read_dir(checkout().join("crates")).unwrap() {
        packages.push(format!("crates/{}/src", entry.unwrap().file_name().display()));
    }
    let mut circles = Vec::new();
    for package in packages {
        let modules = Modules::read(&checkout().join(&package)).unwrap();
        for parent in modules.parents() {
            let directory = [std::slice::from_ref(&package), parent].concat().join("/");
            let uses = modules.uses(parent, Tests::DoNotCount);
            circles.extend(circles::described(&directory, &uses));
        }
    }
    assert!(circles.is_empty(), "{}", circles.join("\n"));
}
