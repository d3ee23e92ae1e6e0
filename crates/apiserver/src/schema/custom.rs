//! The types of custom resources, from their `openAPIV3Schema`.
//!
//! The rules are those of kube-openapi's `schemaconv`, applied to a definition as the API server does: `apiVersion`,
//! `kind` and `metadata` are added to the object and to each embedded resource.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map as Json, Value};
use thiserror::Error;

use super::builtin::object_meta;
use super::{Atom, Field, List, Map, Relation, Scalar, Schema, Type, TypeId};

/// Why a schema has no type.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum SchemaError {
    /// The `type` is not an OpenAPI type.
    #[error("{path}.type is {found:?}, not one of object, array, string, integer, number and boolean")]
    UnknownType {
        /// The path from `openAPIV3Schema` on.
        path: String,
        /// The value.
        found: String,
    },
    /// `x-kubernetes-list-type: map` without keys.
    #[error("{path}.x-kubernetes-list-map-keys is missing beside x-kubernetes-list-type: map")]
    NoKeys {
        /// The path from `openAPIV3Schema` on.
        path: String,
    },
    /// `x-kubernetes-list-type` or `x-kubernetes-map-type` has an unknown value.
    #[error("{path}.{field} is {found}, which is not one of {known}")]
    UnknownRelation {
        /// The path from `openAPIV3Schema` on.
        path: String,
        /// The field.
        field: &'static str,
        /// The value.
        found: String,
        /// The known values.
        known: &'static str,
    },
    /// An array without `items`.
    #[error("{path}.items is missing; an array says what its items are")]
    NoItems {
        /// The path from `openAPIV3Schema` on.
        path: String,
    },
}

impl Type {
    /// Returns the type of a custom resource; `schema` is `None` for a version without a schema.
    ///
    /// # Errors
    /// [`SchemaError`] for a schema that is not structural, which the API server rejects.
    pub fn of_custom_resource(schema: Option<&Value>) -> Result<Self, SchemaError> {
        let mut reader = Reader {
            schema: Schema::new(),
            scalars: HashMap::new(),
            object_meta: None,
        };
        let id = match schema.and_then(Value::as_object) {
            Some(schema) => {
                let place = Place {
                    path: "openAPIV3Schema".to_owned(),
                    preserve: false,
                    root: true,
                };
                reader.atom(schema, &place)?
            }
            None => {
                let map = Map::new(Vec::new(), Some(Schema::DEDUCED), false, true);
                Atom {
                    map: Some(map),
                    ..Atom::default()
                }
            }
        };
        let id = reader.schema.add(id);
        Ok(Self::new(Arc::new(reader.schema), id))
    }
}

struct Reader {
    schema: Schema,
    /// The scalar types, one of each.
    scalars: HashMap<u8, TypeId>,
    object_meta: Option<TypeId>,
}

/// The position in the schema.
struct Place {
    path: String,
    /// Whether this node or a parent has `x-kubernetes-preserve-unknown-fields`.
    preserve: bool,
    /// Whether this is the object itself.
    root: bool,
}

impl Place {
    fn below(&self, step: &str) -> Self {
        Self {
            path: format!("{}.{step}", self.path),
            preserve: self.preserve,
            root: false,
        }
    }
}

impl Reader {
    fn type_of(&mut self, schema: &Value, place: &Place) -> Result<(TypeId, Atom), SchemaError> {
        let none = Json::new();
        let atom = self.atom(schema.as_object().unwrap_or(&none), place)?;
        if let Atom {
            scalar: Some(scalar),
            list: None,
            map: None,
        } = &atom
        {
            let id = *self
                .scalars
                .entry(*scalar as u8)
                .or_insert_with(|| self.schema.add(atom.clone()));
            return Ok((id, atom));
        }
        Ok((self.schema.add(atom.clone()), atom))
    }

    fn atom(&mut self, schema: &Json<String, Value>, place: &Place) -> Result<Atom, SchemaError> {
        let place = &Place {
            path: place.path.clone(),
            preserve: place.preserve || flag(schema, "x-kubernetes-preserve-unknown-fields"),
            root: place.root,
        };
        let format = schema.get("format").and_then(Value::as_str).unwrap_or_default();
        let scalar = |scalar| Atom {
            scalar: Some(scalar),
            ..Atom::default()
        };
        Ok(
            match schema.get("type").and_then(Value::as_str).unwrap_or_default() {
                "" => Atom {
                    scalar: Some(Scalar::Untyped),
                    list: Some(self.list(schema, place, false)?),
                    map: Some(self.map(schema, place)?),
                },
                "object" => Atom {
                    map: Some(self.map(schema, place)?),
                    ..Atom::default()
                },
                "array" => Atom {
                    list: Some(self.list(schema, place, true)?),
                    ..Atom::default()
                },
                "integer" | "number" => scalar(Scalar::Numeric),
                "boolean" => scalar(Scalar::Boolean),
                "string" if matches!(format, "" | "byte") => scalar(Scalar::String),
                "string" => scalar(Scalar::Untyped),
                found => {
                    return Err(SchemaError::UnknownType {
                        path: place.path.clone(),
                        found: found.to_owned(),
                    });
                }
            },
        )
    }

    fn list(
        &mut self,
        schema: &Json<String, Value>,
        place: &Place,
        array: bool,
    ) -> Result<List, SchemaError> {
        let relation = match schema
            .get("x-kubernetes-list-type")
            .map(|kind| kind.as_str().unwrap_or(""))
        {
            None | Some("atomic") => Relation::Atomic,
            Some("set") => Relation::Set,
            Some("map") => Relation::Keyed(keys(schema, place)?),
            Some(found) => {
                return Err(SchemaError::UnknownRelation {
                    path: place.path.clone(),
                    field: "x-kubernetes-list-type",
                    found: found.to_owned(),
                    known: "atomic, set and map",
                });
            }
        };
        let element = match schema.get("items") {
            Some(items) => self.type_of(items, &place.below("items"))?.0,
            None if array => {
                return Err(SchemaError::NoItems {
                    path: place.path.clone(),
                });
            }
            None => Schema::ATOMIC,
        };
        Ok(List { element, relation })
    }

    fn map(&mut self, schema: &Json<String, Value>, place: &Place) -> Result<Map, SchemaError> {
        let atomic = match schema
            .get("x-kubernetes-map-type")
            .map(|kind| kind.as_str().unwrap_or(""))
        {
            None | Some("granular") => false,
            Some("atomic") => true,
            Some(found) => {
                return Err(SchemaError::UnknownRelation {
                    path: place.path.clone(),
                    field: "x-kubernetes-map-type",
                    found: found.to_owned(),
                    known: "atomic and granular",
                });
            }
        };
        let fields = self.fields(schema, place)?;
        let (element, deduced) = match schema.get("additionalProperties") {
            None if place.preserve || fields.is_empty() => (Some(Schema::DEDUCED), true),
            None | Some(Value::Bool(false)) => (None, false),
            Some(Value::Bool(true)) => (Some(Schema::DEDUCED), true),
            Some(element) => {
                let (id, atom) = self.type_of(element, &place.below("additionalProperties"))?;
                (Some(id), atom.scalar == Some(Scalar::Untyped))
            }
        };
        let deduced = deduced && fields.is_empty();
        Ok(Map::new(fields, element, atomic, deduced))
    }

    fn fields(&mut self, schema: &Json<String, Value>, place: &Place) -> Result<Vec<Field>, SchemaError> {
        let mut fields = Vec::new();
        let resource = place.root || flag(schema, "x-kubernetes-embedded-resource");
        let declared = schema.get("properties").and_then(Value::as_object);
        for (name, property) in declared.into_iter().flatten() {
            if resource && matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
                continue;
            }
            fields.push(Field {
                name: name.as_str().into(),
                ty: self.type_of(property, &place.below(name))?.0,
                default: property.get("default").cloned(),
            });
        }
        if resource {
            let string = self.type_of(&serde_json::json!({"type": "string"}), place)?.0;
            let metadata = *self
                .object_meta
                .get_or_insert_with(|| import(&mut self.schema, &object_meta()));
            for (name, ty) in [("apiVersion", string), ("kind", string), ("metadata", metadata)] {
                fields.push(Field {
                    name: name.into(),
                    ty,
                    default: None,
                });
            }
        }
        Ok(fields)
    }
}

fn flag(schema: &Json<String, Value>, name: &str) -> bool {
    schema.get(name) == Some(&Value::Bool(true))
}

fn keys(schema: &Json<String, Value>, place: &Place) -> Result<Vec<Arc<str>>, SchemaError> {
    let keys = schema.get("x-kubernetes-list-map-keys").and_then(Value::as_array);
    match keys {
        Some(keys) if !keys.is_empty() => Ok(keys.iter().filter_map(Value::as_str).map(Into::into).collect()),
        _ => Err(SchemaError::NoKeys {
            path: place.path.clone(),
        }),
    }
}

/// Copies a type and the types that it refers to into another schema.
fn import(into: &mut Schema, ty: &Type) -> TypeId {
    let mut known = HashMap::from([(0, Schema::ATOMIC), (1, Schema::DEDUCED)]);
    import_type(into, ty, ty.id, &mut known)
}

fn import_type(into: &mut Schema, from: &Type, id: TypeId, known: &mut HashMap<u32, TypeId>) -> TypeId {
    if let Some(id) = known.get(&id.0) {
        return *id;
    }
    let new = into.reserve();
    known.insert(id.0, new);
    let mut atom = from.schema.atom(id).clone();
    if let Some(list) = &mut atom.list {
        list.element = import_type(into, from, list.element, known);
    }
    if let Some(map) = &mut atom.map {
        for field in &mut map.fields {
            field.ty = import_type(into, from, field.ty, known);
        }
        map.element = map.element.map(|element| import_type(into, from, element, known));
    }
    into.define(new, atom);
    new
}
