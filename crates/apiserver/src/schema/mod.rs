//! The types of values, as far as merging has to know them.
//!
//! A type says which kinds of value may stand at a place and how what is in them relates: a list is one thing (atomic),
//! a set, or items known by keys; a map is one thing or one thing per field (KEP-555, KEP-2885 for what is undeclared).
//! Nothing else of a schema matters here: formats, limits and requirements are for validation.
//!
//! Types come from the definition of a custom resource ([`Type::of_custom_resource`]) or from the table of built-in
//! kinds ([`builtin`]). A type is a pointer and a number; cloning it is cheap.

mod builtin;
mod custom;

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

pub use builtin::{BuiltinKind, builtin, builtin_kinds};
pub use custom::SchemaError;

/// The type of a value.
#[derive(Clone)]
pub struct Type {
    pub(crate) schema: Arc<Schema>,
    pub(crate) id: TypeId,
}

/// Types that refer to each other by number, so that a type can contain itself.
#[derive(Debug, Default)]
pub(crate) struct Schema {
    atoms: Vec<Atom>,
}

/// The number of a type in its schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TypeId(u32);

/// What may stand at a place; a value of another kind than those is an error.
#[derive(Debug, Clone, Default)]
pub(crate) struct Atom {
    pub(crate) scalar: Option<Scalar>,
    pub(crate) list: Option<List>,
    pub(crate) map: Option<Map>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scalar {
    Numeric,
    String,
    Boolean,
    /// Any of the others: int-or-string, quantities, times.
    Untyped,
}

#[derive(Debug, Clone)]
pub(crate) struct List {
    pub(crate) element: TypeId,
    pub(crate) relation: Relation,
}

/// How the items of a list relate.
#[derive(Debug, Clone)]
pub(crate) enum Relation {
    /// The list changes as a whole.
    Atomic,
    /// Items are scalars, each at most once.
    Set,
    /// Items are maps, known by the values of these fields.
    Keyed(Vec<Arc<str>>),
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Map {
    /// The declared fields, sorted by name.
    fields: Vec<Field>,
    /// The type of what is not declared; none if nothing else may stand there.
    pub(crate) element: Option<TypeId>,
    /// Whether the map changes as a whole.
    pub(crate) atomic: bool,
    /// Whether nothing is known of the map's content.
    pub(crate) deduced: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Field {
    pub(crate) name: Arc<str>,
    pub(crate) ty: TypeId,
    /// What an item of a list has as a key if it does not say.
    pub(crate) default: Option<Value>,
}

/// What a value turned out to be, given its type.
#[derive(Clone, Copy)]
pub(crate) enum Shape<'a> {
    Scalar(Scalar),
    List(&'a List),
    Map(&'a Map),
    /// Nothing may stand here.
    Nothing,
}

/// The shapes that remain possible once a value is known. Comparable, since two values of different shape are merged
/// differently.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Possible {
    scalar: bool,
    list: bool,
    map: bool,
}

impl Atom {
    /// Narrows the shapes to that of the value. A null, an absent value and one of a shape that is not allowed leave
    /// them as they are: the value is then looked at as if it were a map, a scalar or a list, in this order.
    pub(crate) fn possible(&self, value: Option<&Value>) -> Possible {
        let all = Possible {
            scalar: self.scalar.is_some(),
            list: self.list.is_some(),
            map: self.map.is_some(),
        };
        let none = Possible {
            scalar: false,
            list: false,
            map: false,
        };
        match value {
            Some(Value::Object(_)) if all.map => Possible { map: true, ..none },
            Some(Value::Array(_)) if all.list => Possible { list: true, ..none },
            Some(Value::String(_) | Value::Number(_) | Value::Bool(_)) if all.scalar => {
                Possible { scalar: true, ..none }
            }
            _ => all,
        }
    }

    /// Chooses among the shapes that remain.
    pub(crate) fn shape(&self, possible: Possible) -> Shape<'_> {
        match self {
            Self { map: Some(map), .. } if possible.map => Shape::Map(map),
            Self {
                scalar: Some(scalar), ..
            } if possible.scalar => Shape::Scalar(*scalar),
            Self { list: Some(list), .. } if possible.list => Shape::List(list),
            _ => Shape::Nothing,
        }
    }

    /// The shape of a value.
    pub(crate) fn shape_of(&self, value: &Value) -> Shape<'_> {
        self.shape(self.possible(Some(value)))
    }

    /// The shape without a value in hand.
    pub(crate) fn declared_shape(&self) -> Shape<'_> {
        self.shape(self.possible(None))
    }
}

impl Map {
    pub(crate) fn new(mut fields: Vec<Field>, element: Option<TypeId>, atomic: bool, deduced: bool) -> Self {
        fields.sort_by(|left, right| left.name.cmp(&right.name));
        Self {
            fields,
            element,
            atomic,
            deduced,
        }
    }

    /// Returns a declared field.
    pub(crate) fn field(&self, name: &str) -> Option<&Field> {
        let place = self
            .fields
            .binary_search_by(|field| (*field.name).cmp(name))
            .ok()?;
        self.fields.get(place)
    }

    /// Returns the type of what stands at a name, declared or not.
    pub(crate) fn type_at(&self, name: &str) -> Option<TypeId> {
        self.field(name).map(|field| field.ty).or(self.element)
    }
}

impl Schema {
    /// The type of anything, to be changed as a whole.
    pub(crate) const ATOMIC: TypeId = TypeId(0);
    /// The type of anything, of which maps are one thing per field and lists change as a whole.
    pub(crate) const DEDUCED: TypeId = TypeId(1);

    /// Returns a schema with the two types that every schema has.
    pub(crate) fn new() -> Self {
        let untyped = |element, atomic| Atom {
            scalar: Some(Scalar::Untyped),
            list: Some(List {
                element: Self::ATOMIC,
                relation: Relation::Atomic,
            }),
            map: Some(Map::new(Vec::new(), Some(element), atomic, !atomic)),
        };
        Self {
            atoms: vec![untyped(Self::ATOMIC, true), untyped(Self::DEDUCED, false)],
        }
    }

    pub(crate) fn atom(&self, id: TypeId) -> &Atom {
        // Numbers are made by `add` and `reserve` and checked by the table's reader.
        &self.atoms[id.0 as usize]
    }

    pub(crate) fn add(&mut self, atom: Atom) -> TypeId {
        let id = self.reserve();
        self.define(id, atom);
        id
    }

    /// Takes a number before its type is known, so that a type can refer to itself.
    fn reserve(&mut self) -> TypeId {
        let id = TypeId(u32::try_from(self.atoms.len()).unwrap_or(u32::MAX));
        self.atoms.push(Atom::default());
        id
    }

    fn define(&mut self, id: TypeId, atom: Atom) {
        self.atoms[id.0 as usize] = atom;
    }

    fn len(&self) -> usize {
        self.atoms.len()
    }
}

impl Type {
    pub(crate) fn new(schema: Arc<Schema>, id: TypeId) -> Self {
        Self { schema, id }
    }

    /// Returns the type of an object of which nothing is known: lists change as a whole, maps per field.
    pub fn deduced() -> Self {
        Self::new(Arc::new(Schema::new()), Schema::DEDUCED)
    }
}

impl fmt::Debug for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Type({} of {})", self.id.0, self.schema.len())
    }
}
