//! The modules of a crate, and which of them use which other ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

use crate::search::{self, child};
use crate::source::{Import, Mention, Segments, Source};

/// Which children of a module use which other ones, each with the modules that name them and by what paths.
pub(crate) type Uses = BTreeMap<(String, String), BTreeSet<(String, String)>>;

/// Whether code that only tests compile counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tests {
    Count,
    DoNotCount,
}

/// A crate as its sources define it.
#[derive(Debug, Default)]
pub(crate) struct Modules {
    pub(crate) modules: BTreeSet<Segments>,
    /// The items that are no modules, and whether they are public.
    pub(crate) items: BTreeMap<Segments, bool>,
    /// By the module that has them.
    pub(crate) imports: BTreeMap<Segments, Vec<Import>>,
    /// All paths, those of imports too, in order and each once.
    mentions: Vec<Mention>,
}

impl Modules {
    /// Reads the sources in the `src` of a package.
    pub(crate) fn read(folder: &Path) -> io::Result<Self> {
        Self::of(&sources(folder)?)
    }

    /// Reads sources that are given with their paths within `src`.
    pub(crate) fn of(sources: &[(String, String)]) -> io::Result<Self> {
        let mut modules = Self::default();
        let mut for_tests = BTreeSet::new();
        for (path, text) in sources {
            let place = place(path);
            let source = Source::read(&place, text);
            let source = source.map_err(|error| io::Error::other(format!("{path}: {error}")))?;
            if path.split('/').any(|part| part == "tests" || part == "tests.rs") {
                for_tests.insert(place.clone());
            }
            let of_tests = source.definitions.iter().filter(|item| item.module && item.test);
            for_tests.extend(of_tests.map(|module| module.path.clone()));
            modules.add(place, source);
        }
        for mention in &mut modules.mentions {
            let mut places = (0..=mention.place.len()).map(|depth| &mention.place[..depth]);
            mention.test |= places.any(|place| for_tests.contains(place));
        }
        // Most paths occur more than once in their module, and each is followed for every parent.
        modules.mentions.sort();
        modules.mentions.dedup();
        Ok(modules)
    }

    fn add(&mut self, place: Segments, source: Source) {
        self.modules.insert(place);
        for item in source.definitions {
            if item.module {
                self.modules.insert(item.path);
            } else {
                // Types and functions may have the same name.
                *self.items.entry(item.path).or_default() |= item.public;
            }
        }
        self.mentions.extend(source.mentions);
        for import in source.imports {
            let place = import.mention.place.clone();
            self.mentions.push(import.mention.clone());
            self.imports.entry(place).or_default().push(import);
        }
    }

    /// Returns the modules that have modules, the root first.
    pub(crate) fn parents(&self) -> BTreeSet<&[String]> {
        let below = self.modules.iter().filter_map(|module| module.split_last());
        below.map(|(_, parent)| parent).collect()
    }

    /// Returns which children of `parent` use which other ones. The code of `parent` itself does not count; a path
    /// through one of its re-exports uses the child that the item comes from.
    pub(crate) fn uses(&self, parent: &[String], tests: Tests) -> Uses {
        let mut uses = Uses::new();
        for mention in &self.mentions {
            let Some(from) = child(parent, &mention.place) else {
                continue;
            };
            if mention.test && tests == Tests::DoNotCount {
                continue;
            }
            for to in search::children_used(self, parent, from, mention) {
                let why = (mention.place.join("::"), mention.path.join("::"));
                uses.entry((from.to_owned(), to)).or_default().insert(why);
            }
        }
        uses
    }
}

/// Returns the module that a file within `src` is.
fn place(path: &str) -> Segments {
    let mut place: Segments = path
        .trim_end_matches(".rs")
        .split('/')
        .map(str::to_owned)
        .collect();
    let last = place.last().map(String::as_str);
    if last == Some("mod") || (place.len() == 1 && matches!(last, Some("lib" | "main"))) {
        place.pop();
    }
    place
}

fn sources(folder: &Path) -> io::Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(here) = folders.pop() {
        for entry in fs::read_dir(here)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let within = path
                    .strip_prefix(folder)
                    .unwrap_or(&path)
                    .to_string_lossy()
                    .into_owned();
                found.push((within, fs::read_to_string(&path)?));
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modulesof(sources: &[(&str, &str)]) -> Modules {
        let sources: Vec<(String, String)> = sources
            .iter()
            .map(|(path, text)| ((*path).to_owned(), (*text).to_owned()))
            .collect();
        Modules::of(&sources).unwrap()
    }

    fn found(modules: &Modules, parent: &[&str], tests: Tests) -> Vec<String> {
        let parent: Segments = parent.iter().map(|name| (*name).to_owned()).collect();
        let uses = modules.uses(&parent, tests).into_keys();
        uses.map(|(from, to)| format!("{from} > {to}")).collect()
    }

    /// Returns what a source of `cli::x` uses besides `cli`, among `controller` and `server`.
    fn used(text: &str, tests: Tests) -> Vec<String> {
        let modules = modulesof(&[
            ("lib.rs", "mod cli; mod controller; mod server;"),
            ("cli/mod.rs", "mod x;"),
            ("cli/x.rs", text),
            ("controller/mod.rs", ""),
            ("server.rs", ""),
        ]);
        let uses = modules.uses(&[], tests).into_keys();
        uses.map(|(from, to)| {
            assert_eq!(from, "cli");
            to
        })
        .collect()
    }

    #[test]
    fn each_notation_of_a_path_is_a_use() {
        for text in [
            "use crate::server::X;",
            "use crate::server;",
            "use crate::{server::{self, X}, cli::Y};",
            "use crate::server as other; fn f() { other::g() }",
            "fn f() { crate::server::g(crate::cli::h()) }",
            "use super::super::server::X;",
            "use self::super::super::server::*;",
            "fn f(x: &super::super::server::X) {}",
            "mod inner { use super::super::super::server::X; }",
            "use super::super as top; fn f() { top::server::g() }",
            "use crate::{self as top}; type T = Vec<top::server::X>;",
            "use crate as top; use top::server as other;",
            "use super::super::*; fn f() { server::g() }",
            "pub(in crate::server) fn f() {}",
            "const URL: &str = \"http://a\"; use crate::server::X;",
            "fn f() { println!(\"// {}\", crate::server::X) }",
            "fn f() { vec![super::super::server::g(); 2]; }",
            "macro_rules! m { () => { $crate::server::g() } }",
            "#[derive(crate::server::X)] struct A;",
            "struct A { #[serde(with = \"crate::server::x\")] a: u8 }",
            "impl crate::server::X for A {}",
            "fn f() -> impl Fn(<u8 as crate::server::X>::Y) {}",
        ] {
            assert_eq!(used(text, Tests::DoNotCount), ["server"], "{text}");
        }
        let group = "use crate::{\n    controller::{a, b::C},\n    server,\n};\n";
        assert_eq!(used(group, Tests::DoNotCount), ["controller", "server"]);
    }

    #[test]
    fn what_only_looks_like_a_path_is_no_use() {
        for text in [
            "//! [`crate::server`]\n\n/// [`crate::server`]\n// crate::server\n/* crate::server */\nfn f() {}",
            "#[doc = \"crate::server::X\"] fn f() {}",
            "const TEXT: &str = \"crate::server::X\";",
            "fn f() { println!(\"crate::server::X\") }",
            "use ::server::X; fn f() { ::server::g() }",
            "use http::server::X; fn f() { http::crate_::server::g() }",
            "use super::server::X;",
            "mod server {} use server::X;",
            "use anyhow::anyhow; fn f() { anyhow::g(anyhow!(server)) }",
            "use super::super::*; use http::*; fn f(server: u8) -> u8 { server }",
            "use super::super::server_of::X;",
            "pub(in crate::cli) fn f() {} pub(super) fn g() {}",
        ] {
            assert_eq!(used(text, Tests::Count), Vec::<String>::new(), "{text}");
        }
    }

    #[test]
    fn code_of_tests_counts_where_it_is_asked_for() {
        for text in [
            "#[cfg(test)] mod tests { use crate::server::X; }",
            "#[cfg(test)] mod tests { mod inner { fn f() { crate::server::g() } } }",
            "#[cfg(test)] use crate::server::X;",
            "#[cfg(all(test, unix))] fn f() { crate::server::g() }",
            "#[test] fn f() { crate::server::g() }",
            "#[tokio::test] async fn f() { crate::server::g() }",
            "impl A { #[cfg(test)] fn f() { crate::server::g() } }",
            "trait A { #[cfg(test)] fn f(x: crate::server::X); }",
            "struct A { #[cfg(test)] a: crate::server::X }",
            "enum A { #[cfg(test)] A(crate::server::X) }",
            "fn f() { #[cfg(test)] let a = crate::server::X; }",
            "fn f() { #[cfg(test)] println!(\"{}\", crate::server::X); }",
            "fn f() { match 1 { #[cfg(test)] 1 => crate::server::g(), _ => () } }",
            "fn f() -> A { A { #[cfg(test)] a: crate::server::X } }",
            "#![cfg(test)] use crate::server::X;",
        ] {
            assert_eq!(used(text, Tests::Count), ["server"], "{text}");
            assert_eq!(used(text, Tests::DoNotCount), Vec::<String>::new(), "{text}");
        }
        for condition in ["not(test)", "any(test, unix)", "unix"] {
            let text = format!("#[cfg({condition})] use crate::server::X;");
            assert_eq!(used(&text, Tests::DoNotCount), ["server"], "{text}");
        }
    }

    #[test]
    fn files_of_tests_are_code_of_tests() {
        let modules = modulesof(&[
            ("lib.rs", "mod a; mod b; mod c; mod d;"),
            ("a/mod.rs", "mod tests;"),
            ("a/tests.rs", "use crate::d::X;"),
            ("b/mod.rs", ""),
            ("b/tests/more.rs", "use crate::d::X;"),
            ("c.rs", "#[cfg(test)] mod fixture;"),
            ("c/fixture.rs", "use crate::d::X;"),
            ("d.rs", ""),
        ]);
        assert_eq!(found(&modules, &[], Tests::DoNotCount), Vec::<String>::new());
        assert_eq!(found(&modules, &[], Tests::Count), ["a > d", "b > d", "c > d"]);
    }

    #[test]
    fn a_re_export_of_the_parent_is_a_use_of_the_module_of_the_item() {
        let modules = modulesof(&[
            (
                "lib.rs",
                "mod a; mod b; mod c; mod d; pub use a::X; pub use self::b::*; pub use g::*; pub use a::Old as New;",
            ),
            ("a.rs", "pub struct X; pub struct Old;"),
            ("b.rs", "pub fn y() {} pub use http::Z; pub mod inner {}"),
            ("c.rs", "use crate::X; use super::{y, unknown};"),
            ("g.rs", "use crate::y; use http::{X, Z}; struct New;"),
            ("e.rs", "use crate::Z;"),
            ("f.rs", "use crate::inner::Y;"),
            ("d.rs", "use super::*; fn f(_: New) { let a = 1; g(a) }"),
            ("main.rs", "fn main() { a::f() }"),
        ]);
        assert_eq!(
            found(&modules, &[], Tests::Count),
            ["c > a", "c > b", "d > a", "e > b", "f > b", "g > b"]
        );
    }

    #[test]
    fn a_path_uses_the_first_module_that_it_names() {
        let modules = modulesof(&[
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "use crate::b::X;"),
            ("b.rs", "pub use crate::c::X;"),
            ("c.rs", "pub struct X;"),
        ]);
        assert_eq!(found(&modules, &[], Tests::Count), ["a > b", "b > c"]);
    }

    #[test]
    fn children_of_a_module_are_compared_as_those_of_a_crate_are() {
        let modules = modulesof(&[
            ("lib.rs", "mod cli; mod controller;"),
            ("cli.rs", "use crate::controller::hub::Hub;"),
            (
                "controller/mod.rs",
                "mod caches; mod hub; mod work; pub use caches::cache; use work::W;",
            ),
            ("controller/caches/mod.rs", "pub mod cache; use super::hub::Hub;"),
            (
                "controller/caches/cache.rs",
                "use crate::cli::X; use super::super::caches::Y;",
            ),
            ("controller/hub.rs", "use super::cache::Key;"),
            ("controller/work.rs", "use crate::controller::{cache, hub};"),
        ]);
        let inside = ["caches > hub", "hub > caches", "work > caches", "work > hub"];
        assert_eq!(found(&modules, &["controller"], Tests::Count), inside);
        assert_eq!(
            found(&modules, &[], Tests::Count),
            ["cli > controller", "controller > cli"]
        );
    }

    #[test]
    fn a_use_says_which_module_names_it_and_how() {
        let modules = modulesof(&[
            ("a/mod.rs", ""),
            ("a/b.rs", "use crate::c::X;"),
            ("c.rs", "pub struct X;"),
        ]);
        let why = BTreeSet::from([("a::b".to_owned(), "crate::c::X".to_owned())]);
        let expected = Uses::from([(("a".to_owned(), "c".to_owned()), why)]);
        assert_eq!(modules.uses(&[], Tests::Count), expected);
    }

    #[test]
    fn a_source_that_cannot_be_read_is_an_error() {
        let error = Modules::of(&[("a.rs".to_owned(), "fn".to_owned())]).unwrap_err();
        assert!(error.to_string().starts_with("a.rs: "), "{error}");
    }
}
