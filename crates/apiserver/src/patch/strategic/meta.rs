//! How the fields of built-in kinds take a strategic merge patch.
//!
//! `strategic.json` holds what the types of Kubernetes 1.35 say: which fields are structures, lists and maps, and which
//! lists are merged by which key. `tests/oracle/apply` makes it; it is not written by hand.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

static TABLE: LazyLock<File> = LazyLock::new(|| {
    // The table is part of the program, and a test reads it; one that cannot be read knows no kind.
    serde_json::from_str(include_str!("strategic.json")).unwrap_or_default()
});

/// The file: types by number, and the numbers of kinds.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    kinds: BTreeMap<String, usize>,
    types: Vec<Entry>,
}

/// A type of Go, as far as JSON objects and lists are made of it.
#[derive(Deserialize)]
enum Entry {
    /// A structure: its name and the fields that are not scalars.
    #[serde(rename = "s")]
    Struct(String, BTreeMap<String, Field>),
    /// A list of this type.
    #[serde(rename = "l")]
    List(usize),
    /// A map to this type.
    #[serde(rename = "m")]
    Map(#[expect(dead_code, reason = "maps are merged as structures without a name")] usize),
    /// Anything else, by the name of its kind.
    #[serde(rename = "x")]
    Other(String),
}

/// Type of the field, strategies and key.
#[derive(Deserialize)]
struct Field(
    usize,
    #[serde(default)] Vec<String>,
    #[serde(default)] Option<String>,
);

/// How the objects of a type, or the items of its lists, take a strategic merge patch.
#[derive(Debug, Clone, Copy)]
pub struct StrategicType(usize);

/// How one field takes a patch.
pub(super) struct Meta {
    /// Of the value, or of the items for a list.
    pub(super) ty: StrategicType,
    /// `merge`, `replace` or nothing.
    pub(super) strategy: &'static str,
    /// The key of a list's items; empty for none.
    pub(super) key: &'static str,
}

impl StrategicType {
    /// Returns the type of a built-in kind; none for what takes no strategic merge patch.
    pub fn of(api_version: &str, kind: &str) -> Option<Self> {
        TABLE
            .kinds
            .get(&format!("{api_version}/{kind}"))
            .copied()
            .map(Self)
    }

    fn entry(self) -> Option<&'static Entry> {
        TABLE.types.get(self.0)
    }

    /// Looks a field up whose value is a map.
    pub(super) fn of_map(self, name: &str) -> Result<Meta, String> {
        match self.entry() {
            Some(Entry::Struct(type_name, fields)) => {
                let Some(Field(ty, strategies, key)) = fields.get(name) else {
                    return Err(format!(
                        "unable to find api field in struct {type_name} for the json field {name:?}"
                    ));
                };
                let strategy = strategies.iter().find(|strategy| *strategy != "retainKeys");
                Ok(Meta {
                    ty: Self(*ty),
                    strategy: strategy.map(String::as_str).unwrap_or_default(),
                    key: key.as_deref().unwrap_or_default(),
                })
            }
            other => Err(format!(
                "merging an object in json but data type is not struct, instead is: {}",
                kind_of(other)
            )),
        }
    }

    /// Looks a field up whose value is a list; the type is that of the items.
    pub(super) fn of_list(self, name: &str) -> Result<Meta, String> {
        let meta = self.of_map(name)?;
        match meta.ty.entry() {
            Some(Entry::List(item)) => match Self(*item).entry() {
                Some(Entry::List(_)) => Err("unexpected slice of slice".to_owned()),
                _ => Ok(Meta {
                    ty: Self(*item),
                    ..meta
                }),
            },
            _ => Err(format!(
                "expected slice or array type, but got: {}",
                kind_of(self.entry())
            )),
        }
    }

    /// The kind of the type in Go.
    pub(super) fn name(self) -> &'static str {
        kind_of(self.entry())
    }
}

fn kind_of(entry: Option<&'static Entry>) -> &'static str {
    match entry {
        Some(Entry::Struct(..)) => "struct",
        Some(Entry::List(_)) => "slice",
        Some(Entry::Map(_)) => "map",
        Some(Entry::Other(kind)) => kind,
        None => "invalid",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read_whole() {
        assert!(TABLE.kinds.len() >= 60, "{:?}", TABLE.kinds.keys());
        let pod = StrategicType::of("v1", "Pod").unwrap();
        let spec = pod.of_map("spec").unwrap().ty;
        let containers = spec.of_list("containers").unwrap();
        assert_eq!((containers.strategy, containers.key), ("merge", "name"));
        let volumes = spec.of_list("volumes").unwrap();
        assert_eq!((volumes.strategy, volumes.key), ("merge", "name"));
        assert_eq!(spec.of_list("tolerations").unwrap().strategy, "");
        assert!(StrategicType::of("v1", "Nothing").is_none());
    }
}
