//! The types of values, as far as merging needs them.
//!
//! A type says which values a field allows and how their parts merge: a list is atomic, a set, or keyed; a map is
//! atomic or granular (KEP-555, KEP-2885 for undeclared fields). Formats, limits and required fields are a matter of
//! validation and are not part of a type.
//!
//! Types come from the definition of a custom resource ([`Type::of_custom_resource`]) or from the table of built-in
//! kinds ([`builtin`]). A type is a pointer and a number, so it is cheap to clone.

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

/// The scalar, list and map types that a field allows; any other value is an error.
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
    /// Any scalar type: int-or-string, quantities, times.
    Untyped,
}

#[derive(Debug, Clone)]
pub(crate) struct List {
    pub(crate) element: TypeId,
    pub(crate) relation: Relation,
}

/// How the items of a list merge.
#[derive(Debug, Clone)]
pub(crate) enum Relation {
    /// The list is replaced as a whole.
    Atomic,
    /// The items are scalars, each at most once.
    Set,
    /// The items are maps, identified by the values of these fields.
    Keyed(Vec<Arc<str>>),
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Map {
    /// The declared fields, sorted by name.
    fields: Vec<Field>,
    /// The type of undeclared fields; `None` if there are none.
    pub(crate) element: Option<TypeId>,
    /// Whether the map is replaced as a whole.
    pub(crate) atomic: bool,
    /// Whether the content of the map is unknown.
    pub(crate) deduced: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct Field {
    pub(crate) name: Arc<str>,
    pub(crate) ty: TypeId,
    /// The default of a key that a list's item omits.
    pub(crate) default: Option<Value>,
}

/// The type that applies to a value.
#[derive(Clone, Copy)]
pub(crate) enum Shape<'a> {
    Scalar(Scalar),
    List(&'a List),
    Map(&'a Map),
    /// No value is allowed.
    Nothing,
}

/// The types that remain possible for a known value. They can be compared, since two values of different types are
/// merged differently.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Possible {
    scalar: bool,
    list: bool,
    map: bool,
}

impl Atom {
    /// Narrows the types to that of the value. A null, an absent value and a value of a type that is not allowed
    /// leave all of them: the value then counts as a map, a scalar or a list, in this order.
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

    /// Selects one of the types that remain.
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

    /// Returns the type that applies to a value.
    pub(crate) fn shape_of(&self, value: &Value) -> Shape<'_> {
        self.shape(self.possible(Some(value)))
    }

    /// Returns the type that applies without a value.
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

    /// Returns the type of a field, declared or not.
    pub(crate) fn type_at(&self, name: &str) -> Option<TypeId> {
        self.field(name).map(|field| field.ty).or(self.element)
    }
}

impl Schema {
    /// The type of any value, replaced as a whole.
    pub(crate) const ATOMIC: TypeId = TypeId(0);
    /// The type of any value, whose maps are granular and whose lists are atomic.
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
        // `add` and `reserve` create the numbers, and the reader of the table checks them.
        &self.atoms[id.0 as usize]
    }

    pub(crate) fn add(&mut self, atom: Atom) -> TypeId {
        let id = self.reserve();
        self.define(id, atom);
        id
    }

    /// Reserves a number for a type that is not known yet, so that a type can refer to itself.
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

    /// Returns the type of an object with an unknown schema: atomic lists, granular maps.
    pub fn deduced() -> Self {
        Self::new(Arc::new(Schema::new()), Schema::DEDUCED)
    }
}

impl fmt::Debug for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Type({} of {})", self.id.0, self.schema.len())
    }
}
