//! Definitions of custom resources: from a `CustomResourceDefinition` to what its objects have to be.
//!
//! [`Definition::from_object`] checks a definition as the API server does and compiles its versions. A [`Version`] then
//! says of objects what a server has to ask, in the order of a request:
//!
//! 1. [`Version::decode`]: unknown fields and nulls go, embedded objects get their form, defaults come in; the paths of
//!    unknown fields are for `fieldValidation`;
//! 2. the object is merged, patched or applied, and defaulted again ([`Version::default`]);
//! 3. the strategy: what [`Version::has_status`] says belongs to the other endpoint is taken from the stored object;
//! 4. [`Version::validate`], or [`Version::validate_status`] at the status; metadata is the server's to check.
//!
//! A compiled definition has no state and may be shared by any number of clusters that have the same definition.
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
//! assert_eq!(verdict.causes[0].to_string(), "spec.size: Invalid value: 5: spec.size in body should be less than or equal to 3");
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
mod rules;
mod scale;
mod schema;
mod time;
mod validate;

use serde_json::{Value, json};

pub use columns::{Cell, Column};
pub use scale::Scale;

use crate::cause::Cause;
use crate::schema::Type;
use correlate::Correlation;
use rules::{Change, Rules};
use schema::Schema;

/// A definition that has been checked, with its versions.
#[derive(Debug)]
pub struct Definition {
    group: String,
    names: Names,
    namespaced: bool,
    versions: Vec<Version>,
}

/// What a kind is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// As in paths, `things`.
    pub plural: String,
    /// `thing`.
    pub singular: String,
    /// `Thing`.
    pub kind: String,
    /// `ThingList`.
    pub list_kind: String,
    /// `th`.
    pub short_names: Vec<String>,
    /// Groups of kinds that it belongs to, such as `all`.
    pub categories: Vec<String>,
}

/// What came of looking at an object.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// What is wrong; with anything here the object is refused (422).
    pub causes: Vec<Cause>,
    /// Rules that the object breaks and broke before at places that have not changed: for `Warning` headers.
    pub warnings: Vec<String>,
}

/// A version of a definition.
#[derive(Debug)]
pub struct Version {
    name: String,
    api_version: String,
    kind: String,
    served: bool,
    storage: bool,
    /// Why clients should go to another version; none if they need not.
    deprecation: Option<String>,
    status: bool,
    scale: Option<Scale>,
    columns: Vec<Column>,
    selectable: Vec<String>,
    /// As it is in the definition, for documents.
    source: Value,
    schema: Schema,
    rules: Option<Rules>,
    ty: Type,
}

impl Definition {
    /// Checks and compiles a definition that is to be created.
    ///
    /// The object has been decoded: its fields are of the types of the kind, and [`apply_defaults`] and [`prepare`] have
    /// been called.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn from_object(definition: &Value) -> Result<Self, Vec<Cause>> {
        let causes = check::check(definition, None);
        if !causes.is_empty() {
            return Err(causes);
        }
        Self::compile(definition).map_err(|cause| vec![cause])
    }

    /// Checks and compiles a definition that replaces another.
    ///
    /// # Errors
    /// Everything that is wrong with it, and what may not change.
    pub fn updated(definition: &Value, old: &Value) -> Result<Self, Vec<Cause>> {
        let causes = check::check(definition, Some(old));
        if !causes.is_empty() {
            return Err(causes);
        }
        Self::compile(definition).map_err(|cause| vec![cause])
    }

    /// Compiles a definition that has been checked before, such as one that was stored.
    ///
    /// # Errors
    /// A schema that merging cannot use, which the checks refuse.
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

    /// Returns what the kind is called.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Says whether objects are in namespaces.
    pub fn is_namespaced(&self) -> bool {
        self.namespaced
    }

    /// Returns all versions in the order of the definition, served or not.
    pub fn versions(&self) -> &[Version] {
        &self.versions
    }

    /// Returns a version, none if it is not there or not served.
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

    /// Returns its name, such as `v1`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns group and version, as objects have it.
    pub fn api_version(&self) -> &str {
        &self.api_version
    }

    /// Says whether clients may use it.
    pub fn is_served(&self) -> bool {
        self.served
    }

    /// Returns the warning that each request gets; none unless the version is deprecated.
    pub fn deprecation_warning(&self) -> Option<&str> {
        self.deprecation.as_deref()
    }

    /// Says whether the status is an endpoint of its own. Then requests to the object leave `status` alone, and requests
    /// to the status all but it and the entries of its fields.
    pub fn has_status(&self) -> bool {
        self.status
    }

    /// Returns the paths of the scale, none if there is no such endpoint.
    pub fn scale(&self) -> Option<&Scale> {
        self.scale.as_ref()
    }

    /// Returns the columns of tables, after the name. Without any, tables show the age.
    pub fn columns(&self) -> &[Column] {
        &self.columns
    }

    /// Returns the paths that field selectors may name, such as `.spec.colour`.
    pub fn selectable_fields(&self) -> &[String] {
        &self.selectable
    }

    /// Returns the schema as it stands in the definition, null for none.
    pub fn openapi(&self) -> &Value {
        &self.source
    }

    /// Returns the type that objects merge by.
    pub fn merge_type(&self) -> &Type {
        &self.ty
    }

    /// Does all that has to be done with an object that a client sent, and returns the paths of unknown fields, sorted.
    ///
    /// # Errors
    /// Embedded metadata that is none (a failure to decode, 400).
    pub fn decode(&self, object: &mut Value) -> Result<Vec<String>, Cause> {
        let mut unknown = self.prune(object);
        prune::drop_nulls(object, Some(&self.schema));
        unknown.extend(embedded::coerce_root(object)?);
        unknown.extend(embedded::coerce(object, &self.schema)?);
        self.default(object);
        Ok(unknown)
    }

    /// Takes unknown fields away and returns their paths, sorted. Metadata is left alone.
    pub fn prune(&self, object: &mut Value) -> Vec<String> {
        prune::prune(object, &self.schema)
    }

    /// Puts defaults in.
    pub fn default(&self, object: &mut Value) {
        defaults::apply(object, &self.schema);
    }

    /// Says what is wrong with an object that is created, or replaces another of this version.
    ///
    /// What an update leaves as it was is forgiven, but for the rules of lists.
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

    /// Says what is wrong with an object whose status is replaced.
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

    /// Embedded objects and lists. Lists that had an item twice may have it still.
    fn check_structure(&self, causes: &mut Vec<Cause>, new: &Value, old: Option<&Value>) {
        causes.extend(embedded::check(new, &self.schema));
        if old.is_none_or(|old| lists::check(old, &self.schema).is_empty()) {
            causes.extend(lists::check(new, &self.schema));
        }
    }

    /// Rules are not looked at on objects that they may not understand.
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

/// Puts in what a definition has without saying so: the singular, the kind of lists, the conversion.
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

/// Gives a definition the status that it has whatever the client sent: at first none, later that of the stored one. The
/// version that objects are stored in is among those that objects have been stored in.
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
