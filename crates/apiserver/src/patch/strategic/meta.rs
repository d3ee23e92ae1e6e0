//! The patch metadata of built-in kinds.
//!
//! `strategic.json` describes the types of Kubernetes 1.35: which fields are structs, lists and maps, and by which
//! key lists are merged. `tests/oracle/apply` generates it; do not edit it.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

use super::error::UnmergeableError;

static TABLE: LazyLock<File> = LazyLock::new(|| {
    // The file is part of the program and a test reads it; a table that cannot be read has no kinds.
    serde_json::from_str(include_str!("strategic.json")).unwrap_or_default()
});

/// The file: the types by number, and the numbers of kinds.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    kinds: BTreeMap<String, usize>,
    types: Vec<Entry>,
}

/// A Go type, as far as its JSON is an object or a list.
#[derive(Deserialize)]
enum Entry {
    /// A struct: its name and the fields that are not scalars.
    #[serde(rename = "s")]
    Struct(String, BTreeMap<String, Field>),
    /// A list of a type.
    #[serde(rename = "l")]
    List(usize),
    /// A map to a type.
    #[serde(rename = "m")]
    Map(#[expect(dead_code, reason = "maps are merged as structures without a name")] usize),
    /// Any other type, by the name of its Go kind.
    #[serde(rename = "x")]
    Other(String),
}

/// The type, patch strategies and merge key of a field.
#[derive(Deserialize)]
struct Field(
    usize,
    #[serde(default)] Vec<String>,
    #[serde(default)] Option<String>,
);

/// The patch metadata of a type, or of the items of its lists.
#[derive(Debug, Clone, Copy)]
pub struct StrategicType(usize);

/// The patch metadata of a field.
pub(super) struct Meta {
    /// The type of the value, or of a list's items.
    pub(super) ty: StrategicType,
    /// `merge`, `replace` or empty.
    pub(super) strategy: &'static str,
    /// The merge key of a list's items; empty for none.
    pub(super) key: &'static str,
}

impl StrategicType {
    /// Returns the type of a built-in kind; `None` for a kind without strategic merge patch.
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

    /// Returns a field whose value is a map.
    pub(super) fn of_map(self, name: &str) -> Result<Meta, UnmergeableError> {
        match self.entry() {
            Some(Entry::Struct(type_name, fields)) => {
                let Some(Field(ty, strategies, key)) = fields.get(name) else {
                    return Err(UnmergeableError::UnknownField {
                        type_name,
                        field: name.to_owned(),
                    });
                };
                let strategy = strategies.iter().find(|strategy| *strategy != "retainKeys");
                Ok(Meta {
                    ty: Self(*ty),
                    strategy: strategy.map(String::as_str).unwrap_or_default(),
                    key: key.as_deref().unwrap_or_default(),
                })
            }
            other => Err(UnmergeableError::NotAStruct { kind: kind_of(other) }),
        }
    }

    /// Returns a field whose value is a list; the type is that of the items.
    pub(super) fn of_list(self, name: &str) -> Result<Meta, UnmergeableError> {
        let meta = self.of_map(name)?;
        match meta.ty.entry() {
            Some(Entry::List(item)) => match Self(*item).entry() {
                Some(Entry::List(_)) => Err(UnmergeableError::ListOfLists),
                _ => Ok(Meta {
                    ty: Self(*item),
                    ..meta
                }),
            },
            _ => Err(UnmergeableError::NotAList {
                kind: kind_of(self.entry()),
            }),
        }
    }

    /// Returns the Go kind of the type.
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
    fn the_whole_table_can_be_read() {
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
