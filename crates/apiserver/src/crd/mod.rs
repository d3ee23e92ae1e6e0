//! CustomResourceDefinitions: their validation, and what they require of custom resources.
//!
//! [`Definition::from_object`] validates a definition as the API server does and compiles its versions. A [`Version`]
//! has the operations that a server needs, in the order of a request:
//!
//! 1. [`Version::decode`] removes unknown fields and nulls, normalises embedded resources and sets defaults; the paths
//!    of unknown fields are for `fieldValidation`;
//! 2. the object is merged, patched or applied, and defaulted again ([`Version::default`]);
//! 3. the strategy restores from the stored object what belongs to the other endpoint ([`Version::has_status`]);
//! 4. [`Version::validate`] or [`Version::validate_status`] validates it; the server validates the metadata.
//!
//! A compiled definition has no state; clusters with equal definitions can share it.
//!
//! ```
//! use serde_json::json;
//! use starling_apiserver::crd::{self, Definition};
//!
//! let mut object = json!({
//!     "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
//!     "metadata": {"name": "things.test.dev"},
//!     "spec": {
//!         "group": "test.dev", "scope": "Namespaced", "names": {"plural": "things", "kind": "Thing"},
//!         "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {
//!             "type": "object", "properties": {"spec": {"type": "object", "properties": {
//!                 "size": {"type": "integer", "default": 1, "maximum": 3}}}}}}}],
//!     },
//! });
//! crd::apply_defaults(&mut object);
//! crd::prepare(&mut object, None);
//! let definition = Definition::from_object(&object).unwrap();
//! let version = definition.version("v1").unwrap();
//!
//! let mut thing = json!({"apiVersion": "test.dev/v1", "kind": "Thing", "spec": {"colour": "red"}});
//! assert_eq!(version.decode(&mut thing).unwrap(), ["spec.colour"]);
//! assert_eq!(thing["spec"], json!({"size": 1}));
//!
//! thing["spec"]["size"] = json!(5);
//! let verdict = version.validate(&thing, None);
//! let cause = "spec.size: Invalid value: 5: spec.size in body should be less than or equal to 3";
//! assert_eq!(verdict.causes[0].to_string(), cause);
//! ```

mod check;
mod columns;
mod correlate;
mod defaults;
mod embedded;
mod lists;
mod names;
mod pattern;
mod prune;
pub(crate) mod rules;
mod scale;
mod schema;
mod time;
mod validate;

use std::sync::atomic::{AtomicU64, Ordering};

use serde_json::{Value, json};

pub use columns::{Cell, Column};
pub use scale::Scale;

use crate::cause::Cause;
use crate::schema::Type;
use correlate::Correlation;
use rules::{Change, Rules};
use schema::Schema;

/// A validated definition with its versions.
#[derive(Debug)]
pub struct Definition {
    group: String,
    names: Names,
    namespaced: bool,
    versions: Vec<Version>,
}

/// The names of a kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// The plural name, as in paths: `things`.
    pub plural: String,
    /// The singular name: `thing`.
    pub singular: String,
    /// The kind: `Thing`.
    pub kind: String,
    /// The kind of lists: `ThingList`.
    pub list_kind: String,
    /// The short names: `th`.
    pub short_names: Vec<String>,
    /// The categories, such as `all`.
    pub categories: Vec<String>,
}

/// The result of a validation.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// The causes; an object with any is rejected (422).
    pub causes: Vec<Cause>,
    /// The violations that existed before and whose values are unchanged, for `Warning` headers.
    pub warnings: Vec<String>,
}

/// A version of a definition.
#[derive(Debug)]
pub struct Version {
    /// The number of the compiled version. Another definition of the same version has another number.
    number: u64,
    name: String,
    api_version: String,
    kind: String,
    served: bool,
    storage: bool,
    /// The deprecation warning; `None` unless the version is deprecated.
    deprecation: Option<String>,
    status: bool,
    scale: Option<Scale>,
    columns: Vec<Column>,
    selectable: Vec<String>,
    /// The schema as the definition has it, for OpenAPI documents.
    source: Value,
    schema: Schema,
    rules: Option<Rules>,
    ty: Type,
}

impl Definition {
    /// Validates and compiles a new definition.
    ///
    /// The object must have been decoded, and prepared by [`apply_defaults`] and [`prepare`].
    ///
    /// # Errors
    /// Everything that is wrong with the definition.
    pub fn from_object(definition: &Value) -> Result<Self, Vec<Cause>> {
        let causes = check::check(definition, None);
        if !causes.is_empty() {
            return Err(causes);
        }
        Self::compile(definition).map_err(|cause| vec![cause])
    }

    /// Validates and compiles a definition that replaces another.
    ///
    /// # Errors
    /// Everything that is wrong with the definition, and changes of immutable fields.
    pub fn updated(definition: &Value, old: &Value) -> Result<Self, Vec<Cause>> {
        let causes = check::check(definition, Some(old));
        if !causes.is_empty() {
            return Err(causes);
        }
        Self::compile(definition).map_err(|cause| vec![cause])
    }

    /// Compiles a definition that has been validated before, such as a stored one.
    ///
    /// # Errors
    /// A schema that cannot be converted to a merge type; validation rejects those.
    pub fn compile(definition: &Value) -> Result<Self, Cause> {
        let spec = &definition["spec"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let group = text(&spec["group"]);
        let names = Names::read(&spec["names"]);
        let versions = spec["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
        Ok(Self {
            versions: versions
                .iter()
                .enumerate()
                .map(|(place, version)| Version::compile(version, &group, &names.kind, place))
                .collect::<Result<_, _>>()?,
            group,
            names,
            namespaced: spec["scope"] == "Namespaced",
        })
    }

    /// Returns the API group.
    pub fn group(&self) -> &str {
        &self.group
    }

    /// Returns the names of the kind.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Returns whether the objects are in namespaces.
    pub fn is_namespaced(&self) -> bool {
        self.namespaced
    }

    /// Returns all versions in the order of the definition, served or not.
    pub fn versions(&self) -> &[Version] {
        &self.versions
    }

    /// Returns a version; `None` if it does not exist or is not served.
    pub fn version(&self, name: &str) -> Option<&Version> {
        self.versions
            .iter()
            .find(|version| version.name == name && version.served)
    }

    /// Returns the version that objects are stored in.
    pub fn storage_version(&self) -> Option<&Version> {
        self.versions.iter().find(|version| version.storage)
    }
}

impl Names {
    fn read(names: &Value) -> Self {
        let text = |name: &str| names[name].as_str().unwrap_or_default().to_owned();
        let texts = |name: &str| {
            let list = names[name].as_array().map(Vec::as_slice).unwrap_or_default();
            list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        Self {
            plural: text("plural"),
            singular: text("singular"),
            kind: text("kind"),
            list_kind: text("listKind"),
            short_names: texts("shortNames"),
            categories: texts("categories"),
        }
    }
}

/// The number of the next compiled version; 0 is none.
static COMPILED: AtomicU64 = AtomicU64::new(1);

impl Version {
    fn compile(version: &Value, group: &str, kind: &str, place: usize) -> Result<Self, Cause> {
        let name = version["name"].as_str().unwrap_or_default().to_owned();
        let api_version = format!("{group}/{name}");
        let source = version["schema"]["openAPIV3Schema"].clone();
        let ty =
            Type::of_custom_resource(Some(&source).filter(|source| source.is_object())).map_err(|error| {
                let place = format!("spec.versions[{place}].schema.openAPIV3Schema");
                Cause::invalid(place, &json!(""), error.to_string())
            })?;
        let schema = Schema::read(&source);
        let list = |name: &str| version[name].as_array().map(Vec::as_slice).unwrap_or_default();
        let default_warning = || format!("{api_version} {kind} is deprecated");
        Ok(Self {
            number: COMPILED.fetch_add(1, Ordering::Relaxed),
            served: version["served"] == true,
            storage: version["storage"] == true,
            deprecation: (version["deprecated"] == true).then(|| {
                version["deprecationWarning"]
                    .as_str()
                    .map_or_else(default_warning, str::to_owned)
            }),
            status: version["subresources"]["status"].is_object(),
            scale: Scale::read(&version["subresources"]["scale"]),
            columns: list("additionalPrinterColumns")
                .iter()
                .map(Column::read)
                .collect(),
            selectable: list("selectableFields")
                .iter()
                .filter_map(|field| field["jsonPath"].as_str())
                .map(str::to_owned)
                .collect(),
            rules: Rules::compile(&schema),
            kind: kind.to_owned(),
            name,
            api_version,
            source,
            schema,
            ty,
        })
    }

    /// Returns the name, such as `v1`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the group version, as in `apiVersion`.
    pub fn api_version(&self) -> &str {
        &self.api_version
    }

    /// Returns whether the version is served.
    pub fn is_served(&self) -> bool {
        self.served
    }

    /// Returns the deprecation warning; `None` unless the version is deprecated.
    pub fn deprecation_warning(&self) -> Option<&str> {
        self.deprecation.as_deref()
    }

    /// Returns whether `status` is a subresource. Then writes to the object leave `status` unchanged, and writes to
    /// the subresource leave everything else unchanged, except for the `managedFields` of the status.
    pub fn has_status(&self) -> bool {
        self.status
    }

    /// Returns the paths of `scale`; `None` without that subresource.
    pub fn scale(&self) -> Option<&Scale> {
        self.scale.as_ref()
    }

    /// Returns the printer columns after the name; without any, tables show the age.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Returns the fields that field selectors support, such as `.spec.colour`.
    pub fn selectable_fields(&self) -> &[String] {
        &self.selectable
    }

    /// Returns the schema as the definition has it; null for none.
    pub fn openapi(&self) -> &Value {
        &self.source
    }

    /// Returns the type by which objects are merged.
    pub fn merge_type(&self) -> &Type {
        &self.ty
    }

    /// Decodes an object that a client sent; returns the paths of unknown fields, sorted.
    ///
    /// # Errors
    /// The embedded metadata cannot be decoded (400).
    pub fn decode(&self, object: &mut Value) -> Result<Vec<String>, Cause> {
        let mut unknown = self.prune(object);
        prune::drop_nulls(object, Some(&self.schema));
        unknown.extend(embedded::coerce_root(object)?);
        unknown.extend(embedded::coerce(object, &self.schema)?);
        self.default(object);
        Ok(unknown)
    }

    /// Returns the number of the compiled version: what a schema makes of a stored object changes with it.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Gives an object that was read from the store the form of this version: the definition may have changed since it
    /// was written. As in Kubernetes, what is stored stays as it is until the next write.
    pub(crate) fn read_stored(&self, object: &mut Value) {
        self.prune(object);
        prune::drop_nulls(object, Some(&self.schema));
        self.default(object);
    }

    /// Removes unknown fields and returns their paths, sorted. Metadata stays unchanged.
    pub fn prune(&self, object: &mut Value) -> Vec<String> {
        prune::prune(object, &self.schema)
    }

    /// Sets the defaults.
    pub fn default(&self, object: &mut Value) {
        defaults::apply(object, &self.schema);
    }

    /// Validates an object that is created or that replaces another one of this version.
    ///
    /// An update tolerates violations in unchanged values, except for duplicate list items (ratcheting).
    pub fn validate(&self, new: &Value, old: Option<&Value>) -> Verdict {
        let mut verdict = self.check_kind(new);
        if !verdict.causes.is_empty() {
            return verdict;
        }
        let correlation = self.correlate(new, old);
        verdict
            .causes
            .extend(validate::validate(new, &self.schema, correlation, ""));
        if let Some(scale) = &self.scale {
            verdict.causes.extend(scale.check_spec(new));
            verdict.causes.extend(scale.check_status(new));
        }
        self.check_structure(&mut verdict.causes, new, old);
        self.check_rules(&mut verdict, new, old, correlation);
        verdict
    }

    /// Validates an object whose status is replaced.
    pub fn validate_status(&self, new: &Value, old: &Value) -> Verdict {
        let mut verdict = self.check_kind(new);
        if !verdict.causes.is_empty() {
            return verdict;
        }
        let correlation = self.correlate(new, Some(old));
        if let (Some(status), Some(schema)) = (new.get("status"), self.schema.properties.get("status")) {
            let below = correlation.and_then(|correlation| correlation.field("status"));
            verdict
                .causes
                .extend(validate::validate(status, schema, below, "status"));
        }
        if let Some(scale) = &self.scale {
            verdict.causes.extend(scale.check_status(new));
        }
        self.check_structure(&mut verdict.causes, new, Some(old));
        self.check_rules(&mut verdict, new, Some(old), correlation);
        verdict
    }

    fn correlate<'a>(&'a self, new: &'a Value, old: Option<&'a Value>) -> Option<Correlation<'a>> {
        old.map(|old| Correlation {
            new,
            old,
            schema: &self.schema,
        })
    }

    fn check_kind(&self, object: &Value) -> Verdict {
        let causes = [("kind", &self.kind), ("apiVersion", &self.api_version)]
            .into_iter()
            .filter(|(name, wanted)| object[name] != **wanted)
            .map(|(name, wanted)| {
                let found = json!(object[name].as_str().unwrap_or_default());
                Cause::invalid(name, &found, format!("must be {wanted}"))
            })
            .collect();
        Verdict {
            causes,
            warnings: Vec::new(),
        }
    }

    /// Checks embedded resources and lists. Lists that had duplicate items may keep them.
    fn check_structure(&self, causes: &mut Vec<Cause>, new: &Value, old: Option<&Value>) {
        causes.extend(embedded::check(new, &self.schema));
        if old.is_none_or(|old| lists::check(old, &self.schema).is_empty()) {
            causes.extend(lists::check(new, &self.schema));
        }
    }

    /// Evaluates the rules, unless the object is structurally invalid.
    fn check_rules(
        &self,
        verdict: &mut Verdict,
        new: &Value,
        old: Option<&Value>,
        correlation: Option<Correlation<'_>>,
    ) {
        const BLOCKING: [&str; 5] = [
            "FieldValueNotSupported",
            "FieldValueRequired",
            "FieldValueTooLong",
            "FieldValueTooMany",
            "FieldValueTypeInvalid",
        ];
        let Some(rules) = &self.rules else {
            return;
        };
        if verdict
            .causes
            .iter()
            .any(|cause| BLOCKING.contains(&cause.reason))
        {
            let why = "some validation rules were not checked because the object was invalid; correct the existing \
                       errors to complete validation";
            verdict.causes.push(Cause::invalid("<nil>", &Value::Null, why));
            return;
        }
        let broken = rules.check(&self.schema, new, old, Change::of(correlation), "");
        verdict.causes.extend(broken.causes);
        verdict.warnings.extend(broken.warnings);
    }
}

/// Sets the defaults of a definition: the singular name, the kind of lists, the conversion strategy.
pub fn apply_defaults(definition: &mut Value) {
    let spec = &mut definition["spec"];
    if !spec.is_object() {
        return;
    }
    if let Some(names) = spec["names"].as_object_mut()
        && let Some(kind) = names.get("kind").and_then(Value::as_str).map(str::to_owned)
        && !kind.is_empty()
    {
        let is_empty = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().is_empty();
        if is_empty(names.get("singular")) {
            names.insert("singular".to_owned(), json!(kind.to_lowercase()));
        }
        if is_empty(names.get("listKind")) {
            names.insert("listKind".to_owned(), json!(format!("{kind}List")));
        }
    }
    if spec["conversion"].is_null() {
        spec["conversion"] = json!({"strategy": "None"});
    }
    for version in spec["versions"].as_array_mut().into_iter().flatten() {
        for name in ["served", "storage"] {
            if version[name].is_null() {
                version[name] = json!(false);
            }
        }
    }
}

/// Sets the status of a definition whatever the client sent: empty for a new definition, else the stored status. The
/// storage version is always among the stored versions.
pub fn prepare(definition: &mut Value, old: Option<&Value>) {
    let mut status = old.map_or_else(|| json!({}), |old| old["status"].clone());
    let versions = definition["spec"]["versions"].as_array();
    let storage = versions
        .into_iter()
        .flatten()
        .find(|version| version["storage"] == true);
    if let Some(name) = storage.map(|version| &version["name"]) {
        match status["storedVersions"].as_array_mut() {
            Some(stored) if stored.contains(name) => {}
            Some(stored) => stored.push(name.clone()),
            None => status["storedVersions"] = json!([name]),
        }
    }
    definition["status"] = status;
}
