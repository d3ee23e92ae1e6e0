//! Why a strategic merge patch does not match the kind or the object.

use serde_json::Value;
use thiserror::Error;

use super::SET_ORDER;
use crate::value::{go_type, plain};

/// Why a strategic merge patch does not match the kind or the object, in the texts of apimachinery.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum UnmergeableError {
    /// The value of `$patch` is unknown.
    #[error("unknown patch type: {} in map: {}", plain(directive), plain(map))]
    UnknownDirective {
        /// The value.
        directive: Value,
        /// The map with the directive.
        map: Value,
    },
    /// The directive `merge` in an item of a list.
    #[error("merging lists cannot yet be specified in the patch")]
    MergeDirective,
    /// The type of a map does not have a field.
    #[error("unable to find api field in struct {type_name} for the json field {field:?}")]
    UnknownField {
        /// The Go type of the map.
        type_name: &'static str,
        /// The field.
        field: String,
    },
    /// The type of a map has no fields.
    #[error("merging an object in json but data type is not struct, instead is: {kind}")]
    NotAStruct {
        /// The Go kind of the type.
        kind: &'static str,
    },
    /// The type of a list is not one.
    #[error("expected slice or array type, but got: {kind}")]
    NotAList {
        /// The Go kind of the type that has the field.
        kind: &'static str,
    },
    /// The items of a list are lists by their type.
    #[error("unexpected slice of slice")]
    ListOfLists,
    /// A value is of another type than the patch needs.
    #[error("expected a {}, but received a {}", go_type(wanted), go_type(found))]
    WrongType {
        /// A value of the type that is needed.
        wanted: Value,
        /// The value.
        found: Value,
    },
    /// The items of a list are maps without a merge key by their type.
    #[error("cannot merge lists without merge key for {kind}")]
    NoMergeKey {
        /// The Go kind of the items.
        kind: &'static str,
    },
    /// An item does not have the merge key.
    #[error("map: {} does not contain declared merge key: {key}", plain(item))]
    ItemWithoutMergeKey {
        /// The item.
        item: Value,
        /// The merge key.
        key: String,
    },
    /// An item of a list of maps is not a map.
    #[error("value for key {index} is not a map")]
    NotAMap {
        /// The index of the item.
        index: usize,
    },
    /// Lists without items have no type.
    #[error("no elements in any of the given slices")]
    NoItems,
    /// The items of lists that are merged have different types.
    #[error("list element types are not identical: {}", plain(lists))]
    MixedItems {
        /// The lists.
        lists: Value,
    },
    /// The items of a patch are not in the order of its directive.
    #[error(
        "The order in patch list:\n{}\n doesn't match {SET_ORDER} list:\n{}\n",
        plain(patch),
        plain(order)
    )]
    Order {
        /// The items.
        patch: Value,
        /// The value of the directive.
        order: Value,
    },
}
