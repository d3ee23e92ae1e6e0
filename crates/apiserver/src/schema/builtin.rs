//! The types of built-in kinds.
//!
//! `builtin.json` holds what merging needs of the definitions of Kubernetes 1.35: fields, list and map types, keys
//! and their defaults. `tests/oracle/apply` generates it; do not edit it.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use serde::Deserialize;
use serde_json::Value;

use super::{Atom, Field, List, Map, Relation, Scalar, Schema, Type, TypeId};

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    // The file is part of the program and a test reads it; a table that cannot be read has no kinds.
    serde_json::from_str(include_str!("builtin.json"))
        .ok()
        .and_then(build)
        .unwrap_or_default()
});

/// A built-in kind.
#[derive(Debug, Clone)]
pub struct BuiltinKind {
    /// The type of the objects.
    pub ty: Type,
    /// The object that the API server starts from, with the fields that every object of the kind has.
    pub empty: Value,
}

#[derive(Default)]
struct Table {
    kinds: BTreeMap<(String, String), BuiltinKind>,
    object_meta: Option<Type>,
}

/// Returns a built-in kind; `None` if the table does not have it.
pub fn builtin(api_version: &str, kind: &str) -> Option<BuiltinKind> {
    TABLE
        .kinds
        .get(&(api_version.to_owned(), kind.to_owned()))
        .cloned()
}

/// Returns all built-in kinds as pairs of version and kind, sorted.
pub fn builtin_kinds() -> impl Iterator<Item = (&'static str, &'static str)> {
    TABLE
        .kinds
        .keys()
        .map(|(version, kind)| (version.as_str(), kind.as_str()))
}

/// Returns the type of `metadata`.
pub(super) fn object_meta() -> Type {
    TABLE.object_meta.clone().unwrap_or_else(Type::deduced)
}

/// The file: the types by number, from 2 on, and the numbers of kinds.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    kinds: BTreeMap<String, KindEntry>,
    metadata: u32,
    types: Vec<TypeEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct KindEntry {
    #[serde(rename = "t")]
    ty: u32,
    #[serde(rename = "z")]
    empty: Value,
}

/// A type: the scalar, list and map types that it allows.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TypeEntry {
    s: Option<ScalarEntry>,
    l: Option<ListEntry>,
    m: Option<MapEntry>,
}

#[derive(Deserialize)]
enum ScalarEntry {
    #[serde(rename = "n")]
    Numeric,
    #[serde(rename = "s")]
    String,
    #[serde(rename = "b")]
    Boolean,
    #[serde(rename = "u")]
    Untyped,
}

/// The type of the items, and the keys: null for an atomic list, empty for a set.
#[derive(Deserialize)]
struct ListEntry(u32, Option<Vec<Arc<str>>>);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MapEntry {
    /// The types of the fields.
    #[serde(default)]
    f: BTreeMap<Arc<str>, u32>,
    /// The defaults of fields that are keys.
    #[serde(default)]
    d: BTreeMap<Arc<str>, Value>,
    /// The type of undeclared fields.
    e: Option<u32>,
    /// Whether the map is atomic.
    #[serde(default)]
    a: bool,
    /// Whether the content of the map is unknown.
    #[serde(default)]
    u: bool,
}

/// Builds the types of the file; `None` if a number refers to no type.
fn build(file: File) -> Option<Table> {
    let mut schema = Schema::new();
    let count = file.types.len();
    let id = |number: u32| ((number as usize) < count + 2).then_some(TypeId(number));
    for entry in file.types {
        let list = match entry.l {
            None => None,
            Some(ListEntry(element, keys)) => Some(List {
                element: id(element)?,
                relation: match keys {
                    None => Relation::Atomic,
                    Some(keys) if keys.is_empty() => Relation::Set,
                    Some(keys) => Relation::Keyed(keys),
                },
            }),
        };
        let map = match entry.m {
            None => None,
            Some(map) => Some(build_map(map, id)?),
        };
        let scalar = entry.s.map(|scalar| match scalar {
            ScalarEntry::Numeric => Scalar::Numeric,
            ScalarEntry::String => Scalar::String,
            ScalarEntry::Boolean => Scalar::Boolean,
            ScalarEntry::Untyped => Scalar::Untyped,
        });
        schema.add(Atom { scalar, list, map });
    }
    let schema = Arc::new(schema);
    let ty = |number| id(number).map(|id| Type::new(Arc::clone(&schema), id));
    let mut kinds = BTreeMap::new();
    for (name, entry) in file.kinds {
        let (version, kind) = name.rsplit_once('/')?;
        let kind = (version.to_owned(), kind.to_owned());
        kinds.insert(
            kind,
            BuiltinKind {
                ty: ty(entry.ty)?,
                empty: entry.empty,
            },
        );
    }
    Some(Table {
        kinds,
        object_meta: Some(ty(file.metadata)?),
    })
}

fn build_map(entry: MapEntry, id: impl Fn(u32) -> Option<TypeId>) -> Option<Map> {
    let MapEntry { f, mut d, e, a, u } = entry;
    let mut fields = Vec::with_capacity(f.len());
    for (name, number) in f {
        fields.push(Field {
            ty: id(number)?,
            default: d.remove(&name),
            name,
        });
    }
    let element = match e {
        Some(number) => Some(id(number)?),
        None => None,
    };
    Some(Map::new(fields, element, a, u))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_table_can_be_read() {
        assert!(
            builtin_kinds().count() >= 60,
            "{:?}",
            builtin_kinds().collect::<Vec<_>>()
        );
        for kind in [
            ("v1", "ConfigMap"),
            ("v1", "Pod"),
            ("apps/v1", "Deployment"),
            ("autoscaling/v1", "HorizontalPodAutoscaler"),
            ("autoscaling/v2", "HorizontalPodAutoscaler"),
            ("events.k8s.io/v1", "Event"),
            ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
            ("apiregistration.k8s.io/v1", "APIService"),
        ] {
            assert!(builtin(kind.0, kind.1).is_some(), "{kind:?}");
        }
        assert!(TABLE.object_meta.is_some());
        assert!(builtin("apps/v1", "Nothing").is_none());
    }
}
