//! What one source file names: the paths in its code, what it imports and which modules and items it has.

use proc_macro2::TokenStream;
use syn::ext::IdentExt;
use syn::visit::{self, Visit};
use syn::{Attribute, ImplItem, Item, Meta, Stmt, TraitItem, UseTree};

use crate::tokens;

/// The names of a path. The path of a module begins at the root of its crate; the root's is empty.
pub(crate) type Segments = Vec<String>;

/// A path in the code of a module.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Mention {
    /// The module that names it.
    pub(crate) place: Segments,
    /// As it is written, with `crate`, `self` or `super` in front.
    pub(crate) path: Segments,
    /// Whether only tests compile it.
    pub(crate) test: bool,
}

/// What a `use` brings into a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Import {
    /// The name that it has there. `None` for `*`.
    pub(crate) name: Option<String>,
    /// Whether more than the module itself, and those within, may see it.
    pub(crate) public: bool,
    pub(crate) mention: Mention,
}

/// A module or another item of a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Definition {
    /// The path of the item itself.
    pub(crate) path: Segments,
    pub(crate) module: bool,
    /// Whether more than its module, and those within, may see it.
    pub(crate) public: bool,
    /// Whether only tests compile it.
    pub(crate) test: bool,
}

/// All of one source file.
#[derive(Debug, Default)]
pub(crate) struct Source {
    pub(crate) mentions: Vec<Mention>,
    pub(crate) imports: Vec<Import>,
    pub(crate) definitions: Vec<Definition>,
}

impl Source {
    /// Reads the source of the module `place`.
    pub(crate) fn read(place: &[String], text: &str) -> syn::Result<Self> {
        let file = syn::parse_file(text)?;
        let mut reader = Reader {
            place: place.to_vec(),
            test: false,
            source: Self::default(),
        };
        reader.within(&file.attrs, |reader| reader.visit_file(&file));
        Ok(reader.source)
    }
}

struct Reader {
    /// The module that is read, which may be one within the file.
    place: Segments,
    /// Whether only tests compile what is read.
    test: bool,
    source: Source,
}

/// Returns the attributes of one of these variants of an enum of syn.
macro_rules! attributes {
    ($value:expr, $kind:ident: $($variant:ident)*) => {
        match $value {
            $($kind::$variant(value) => value.attrs.as_slice(),)*
            _ => &[],
        }
    };
}

impl Reader {
    fn within(&mut self, attributes: &[Attribute], read: impl FnOnce(&mut Self)) {
        let outside = self.test;
        self.test = outside || attributes.iter().any(is_for_tests);
        read(self);
        self.test = outside;
    }

    fn mention(&self, path: Segments) -> Mention {
        Mention {
            place: self.place.clone(),
            path,
            test: self.test,
        }
    }

    fn name(&mut self, path: Segments) {
        let mention = self.mention(path);
        self.source.mentions.push(mention);
    }

    /// Reads the tree of a `use` below the path `so_far`.
    fn import(&mut self, public: bool, tree: &UseTree, mut so_far: Segments) {
        let name = match tree {
            UseTree::Path(path) => {
                so_far.push(path.ident.unraw().to_string());
                return self.import(public, &path.tree, so_far);
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.import(public, tree, so_far.clone());
                }
                return;
            }
            UseTree::Glob(_) => None,
            UseTree::Name(name) => {
                push_unless_self(&mut so_far, &name.ident);
                so_far.last().cloned()
            }
            UseTree::Rename(rename) => {
                push_unless_self(&mut so_far, &rename.ident);
                Some(rename.rename.unraw().to_string())
            }
        };
        let mention = self.mention(so_far);
        self.source.imports.push(Import {
            name,
            public,
            mention,
        });
    }

    fn define(&mut self, item: &Item) {
        let Some((name, public)) = name_of(item) else {
            return;
        };
        let mut path = self.place.clone();
        path.push(name.unraw().to_string());
        let (module, test) = (matches!(item, Item::Mod(_)), self.test);
        self.source.definitions.push(Definition {
            path,
            module,
            public,
            test,
        });
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = attributes!(item, Item: Const Enum ExternCrate Fn ForeignMod Impl Macro Mod Static Struct
            Trait TraitAlias Type Union Use);
        self.within(attributes, |reader| {
            reader.define(item);
            visit::visit_item(reader, item);
        });
    }

    fn visit_item_mod(&mut self, module: &'ast syn::ItemMod) {
        self.place.push(module.ident.unraw().to_string());
        visit::visit_item_mod(self, module);
        self.place.pop();
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if item.leading_colon.is_none() {
            self.import(is_public(&item.vis), &item.tree, Segments::new());
        }
        visit::visit_item_use(self, item);
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        let attributes = attributes!(item, ImplItem: Const Fn Type Macro);
        self.within(attributes, |reader| visit::visit_impl_item(reader, item));
    }

    fn visit_trait_item(&mut self, item: &'ast TraitItem) {
        let attributes = attributes!(item, TraitItem: Const Fn Type Macro);
        self.within(attributes, |reader| visit::visit_trait_item(reader, item));
    }

    // A `#[cfg]` of an expression is not read: what is in it counts.
    fn visit_stmt(&mut self, statement: &'ast Stmt) {
        let attributes = attributes!(statement, Stmt: Local Macro);
        self.within(attributes, |reader| visit::visit_stmt(reader, statement));
    }

    fn visit_field(&mut self, field: &'ast syn::Field) {
        self.within(&field.attrs, |reader| visit::visit_field(reader, field));
    }

    fn visit_field_value(&mut self, field: &'ast syn::FieldValue) {
        self.within(&field.attrs, |reader| visit::visit_field_value(reader, field));
    }

    fn visit_variant(&mut self, variant: &'ast syn::Variant) {
        self.within(&variant.attrs, |reader| visit::visit_variant(reader, variant));
    }

    fn visit_arm(&mut self, arm: &'ast syn::Arm) {
        self.within(&arm.attrs, |reader| visit::visit_arm(reader, arm));
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            self.name(
                path.segments
                    .iter()
                    .map(|part| part.ident.unraw().to_string())
                    .collect(),
            );
        }
        visit::visit_path(self, path);
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if attribute.path().is_ident("doc") {
            return;
        }
        if let Meta::List(list) = &attribute.meta {
            for path in tokens::paths_in_strings(list.tokens.clone()) {
                self.name(path);
            }
        }
        visit::visit_attribute(self, attribute);
    }

    fn visit_token_stream(&mut self, tokens: &'ast TokenStream) {
        for path in tokens::paths(tokens.clone()) {
            self.name(path);
        }
    }
}

fn push_unless_self(path: &mut Segments, name: &syn::Ident) {
    if name != "self" {
        path.push(name.unraw().to_string());
    }
}

/// Returns the name of an item and whether it is public. A macro is public, for it has no visibility.
fn name_of(item: &Item) -> Option<(&syn::Ident, bool)> {
    let (name, visibility) = match item {
        Item::Macro(item) => return item.ident.as_ref().map(|name| (name, true)),
        Item::Const(item) => (&item.ident, &item.vis),
        Item::Enum(item) => (&item.ident, &item.vis),
        Item::Fn(item) => (&item.sig.ident, &item.vis),
        Item::Mod(item) => (&item.ident, &item.vis),
        Item::Static(item) => (&item.ident, &item.vis),
        Item::Struct(item) => (&item.ident, &item.vis),
        Item::Trait(item) => (&item.ident, &item.vis),
        Item::TraitAlias(item) => (&item.ident, &item.vis),
        Item::Type(item) => (&item.ident, &item.vis),
        Item::Union(item) => (&item.ident, &item.vis),
        _ => return None,
    };
    Some((name, is_public(visibility)))
}

fn is_public(visibility: &syn::Visibility) -> bool {
    !matches!(visibility, syn::Visibility::Inherited)
}

/// Whether the attribute is `#[test]`, that of a runtime (`#[tokio::test]`), or a `#[cfg]` that only holds in tests.
fn is_for_tests(attribute: &Attribute) -> bool {
    let path = attribute.path();
    if path.is_ident("cfg") {
        return attribute
            .parse_args()
            .is_ok_and(|condition| needs_test(&condition));
    }
    path.segments.last().is_some_and(|last| last.ident == "test")
}

fn needs_test(condition: &Meta) -> bool {
    match condition {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("all") => {
            let parts =
                list.parse_args_with(syn::punctuated::Punctuated::<Meta, syn::Token![,]>::parse_terminated);
            parts.is_ok_and(|parts| parts.iter().any(needs_test))
        }
        Meta::List(_) | Meta::NameValue(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_belongs_to_the_module_that_has_it() {
        let text = "pub use super::{a::B as C, d::*};
            mod inner { fn f(_: crate::e::F) {} }
            #[cfg(test)] mod tests;
            // crate::g
            const URL: &str = \"http://a\"; struct H(super::i::J);";
        let source = Source::read(&["x".to_owned(), "y".to_owned()], text).unwrap();

        let imports = source
            .imports
            .iter()
            .map(|import| (import.name.as_deref(), import.mention.path.join("::")));
        let expected = [
            (Some("C"), "super::a::B".to_owned()),
            (None, "super::d".to_owned()),
        ];
        assert_eq!(imports.collect::<Vec<_>>(), expected);
        assert!(
            source
                .imports
                .iter()
                .all(|import| import.public && !import.mention.test)
        );

        let mentions = source.mentions.iter().filter(|mention| mention.path.len() > 1);
        let mentions = mentions.map(|mention| (mention.place.join("::"), mention.path.join("::")));
        let expected = [("x::y::inner", "crate::e::F"), ("x::y", "super::i::J")];
        let expected = expected.map(|(place, path)| (place.to_owned(), path.to_owned()));
        assert_eq!(mentions.collect::<Vec<_>>(), expected);

        let definitions = source
            .definitions
            .iter()
            .map(|item| (item.path.join("::"), item.module, item.test));
        let expected = [
            ("x::y::inner", true, false),
            ("x::y::inner::f", false, false),
            ("x::y::tests", true, true),
            ("x::y::URL", false, false),
            ("x::y::H", false, false),
        ];
        let expected = expected.map(|(path, module, test)| (path.to_owned(), module, test));
        assert_eq!(definitions.collect::<Vec<_>>(), expected);
    }
}
