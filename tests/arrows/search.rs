//! Follows a path through modules, imports and re-exports to what it names.

use std::collections::BTreeSet;

use crate::modules::Modules;
use crate::source::{Import, Mention, Segments};

/// Returns the children of `parent` that a path in the child `from` leads to. More than one only if imports of the
/// same name exist, in two functions for example.
pub(crate) fn children_used(
    modules: &Modules,
    parent: &[String],
    from: &str,
    mention: &Mention,
) -> BTreeSet<String> {
    let mut search = Search {
        modules,
        parent,
        from,
        test: mention.test,
        seen: BTreeSet::new(),
        found: BTreeSet::new(),
    };
    let way = Way {
        to: None,
        by: &mention.place,
        brought: None,
        imports: Vec::new(),
    };
    search.follow(&mention.place, &mention.path, way);
    search.found
}

/// Returns the child of `parent` that a module is or is in.
pub(crate) fn child<'a>(parent: &[String], module: &'a [String]) -> Option<&'a str> {
    module.strip_prefix(parent)?.first().map(String::as_str)
}

/// What is known so far of where a path leads.
#[derive(Clone, Debug)]
struct Way<'a> {
    /// The first other child of the parent that the path goes into.
    to: Option<String>,
    /// The module that has the path. Only it, and those around it, show it what is not public.
    by: &'a [String],
    /// The length of the rest of the path that a `*` may have brought, and so may be found nowhere. `None`: the path
    /// is known to lead there.
    brought: Option<usize>,
    /// The imports that led here. None leads on twice, as in `use anyhow::anyhow`.
    imports: Vec<&'a Import>,
}

impl<'a> Way<'a> {
    /// Returns the same after the first name of a path of this length is found.
    fn with_found(&self, length: usize) -> Self {
        let brought = self.brought.filter(|brought| *brought != length);
        Self {
            brought,
            ..self.clone()
        }
    }

    fn sees(&self, module: &[String], public: bool) -> bool {
        public || self.by.starts_with(module)
    }

    fn through(mut self, import: &'a Import) -> Self {
        self.by = &import.mention.place;
        self.imports.push(import);
        self
    }
}

/// A module, the rest of a path, and what the [`Way`] says of it.
type Step<'a> = (Segments, Segments, Option<String>, &'a [String], Option<usize>);

struct Search<'a> {
    modules: &'a Modules,
    parent: &'a [String],
    from: &'a str,
    /// Whether imports of tests are visible.
    test: bool,
    seen: BTreeSet<Step<'a>>,
    found: BTreeSet<String>,
}

impl<'a> Search<'a> {
    fn follow(&mut self, module: &[String], path: &[String], mut way: Way<'a>) {
        if way.to.is_none() {
            let to = child(self.parent, module).filter(|to| *to != self.from);
            way.to = to.map(str::to_owned);
        }
        let step = (
            module.to_vec(),
            path.to_vec(),
            way.to.clone(),
            way.by,
            way.brought,
        );
        if !self.seen.insert(step) {
            return;
        }
        let Some((name, rest)) = path.split_first() else {
            self.found.extend(way.to);
            return;
        };
        match name.as_str() {
            "crate" => self.follow(&[], rest, way),
            "self" => self.follow(module, rest, way),
            "super" => self.follow(&module[..module.len().saturating_sub(1)], rest, way),
            _ => self.follow_name(module, path, &way),
        }
    }

    /// Follows a path that begins with a name.
    fn follow_name(&mut self, module: &[String], path: &[String], way: &Way<'a>) {
        let (name, rest) = (&path[0], &path[1..]);
        let here = [module, &path[..1]].concat();
        // An expression or a type is never a module alone: what a `*` may have brought is a variable then.
        let is_module =
            self.modules.modules.contains(&here) && !(rest.is_empty() && way.brought == Some(path.len()));
        let is_item = self
            .modules
            .items
            .get(&here)
            .is_some_and(|public| way.sees(module, *public));
        let (named, all): (Vec<&Import>, Vec<&Import>) = self
            .imports(module, way)
            .filter(|import| import.name.as_ref().is_none_or(|its| its == name))
            .partition(|import| import.name.is_some());
        if is_module {
            self.follow(&here, rest, way.with_found(path.len()));
        }
        if is_item || way.brought.is_none() {
            self.found.extend(way.to.clone());
        }
        for import in &named {
            let path = [&import.mention.path, rest].concat();
            self.follow(module, &path, way.with_found(1 + rest.len()).through(import));
        }
        if is_module || is_item || !named.is_empty() {
            return;
        }
        for import in all {
            let brought = way.brought.or(Some(path.len()));
            let path = [&import.mention.path, path].concat();
            let way = Way {
                brought,
                ..way.clone()
            };
            self.follow(module, &path, way.through(import));
        }
    }

    /// Returns the imports of a module that the path may use and has not been through.
    fn imports(&self, module: &[String], way: &Way<'a>) -> impl Iterator<Item = &'a Import> {
        let imports = self.modules.imports.get(module).into_iter().flatten();
        imports
            .filter(|import| self.test || !import.mention.test)
            .filter(|import| way.sees(module, import.public))
            .filter(|import| {
                !way.imports
                    .iter()
                    .any(|followed| std::ptr::eq(*followed, *import))
            })
    }
}
