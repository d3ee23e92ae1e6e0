//! Field management: `metadata.managedFields`.
//!
//! The rules are those of apimachinery's `managedfields` (KEP-555), with the wrappers of its field manager in their
//! order. A [`FieldManager`] belongs to one endpoint: a version of a kind, or a subresource of it. Its position in a
//! request:
//!
//! - **apply**: configuration → [`FieldManager::apply`] → defaulting → admission, strategy → [`settle_times`] →
//!   store. Fields are recorded before defaulting, so no manager owns a default.
//! - **other writes**: object as sent or patched → defaulting → [`FieldManager::update`] → admission, strategy →
//!   [`settle_times`] → store. Here the writer owns the defaults.
//!
//! In both cases [`ResetFields`] names the fields that the strategy resets afterwards.

mod agent;
mod cap;
mod conflict;
mod entries;
mod last_applied;
mod scale;
mod updater;
mod versions;

use std::borrow::Cow;
use std::sync::{Arc, LazyLock};

use jiff::Timestamp;
use serde_json::{Value, json};
use thiserror::Error;

pub use agent::manager_of_user_agent;
pub use conflict::{Conflict, Conflicts};
pub use entries::{Entry, ManagedFields, ManagedFieldsError, Manager, Operation};
pub use scale::ScaleMapping;
pub use updater::OtherVersionError;
pub use versions::{Convert, ResetFields, Versions};

use crate::fields::{FieldSet, Path};
use crate::schema::{self, Type};
use crate::typed::{Duplicates, ValidationErrors};
use updater::{ApplyFailure, Updater};

/// The manager that owns the fields of an object without any recorded manager, when the first apply happens.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// The fields that no manager owns: they identify the object or belong to the server.
static NEVER_OWNED: LazyLock<FieldSet> = LazyLock::new(|| {
    let of_metadata = [
        "name",
        "namespace",
        "creationTimestamp",
        "selfLink",
        "uid",
        "clusterName",
        "generation",
        "managedFields",
        "resourceVersion",
    ];
    let top = ["apiVersion", "kind", "metadata"];
    top.iter()
        .map(|name| Path::of_fields(&[name]))
        .chain(
            of_metadata
                .iter()
                .map(|name| Path::of_fields(&["metadata", name])),
        )
        .collect()
});

/// The field manager of one endpoint.
#[derive(Clone)]
pub struct FieldManager {
    versions: Versions,
    version: Arc<str>,
    ty: Type,
    kind: String,
    empty: Value,
    subresource: Arc<str>,
    reset: ResetFields,
}

/// A stored object.
#[derive(Debug, Clone, Copy)]
pub struct Live<'a> {
    /// The object in the version of the endpoint, without `metadata.managedFields`.
    pub object: &'a Value,
    /// The `metadata.managedFields` of the object.
    pub managed: &'a ManagedFields,
}

/// The options of an apply.
#[derive(Debug, Clone, Copy)]
pub struct ApplyRequest<'a> {
    /// The name of the manager, which the API server requires.
    pub manager: &'a str,
    /// Whether to take fields that other managers own.
    pub force: bool,
    /// The time of the request.
    pub now: Timestamp,
}

/// The options of any other write.
#[derive(Debug, Clone, Copy)]
pub struct UpdateRequest<'a> {
    /// The name of the manager, by default [`manager_of_user_agent`].
    pub manager: &'a str,
    /// The time of the request.
    pub now: Timestamp,
}

/// The result of an apply.
#[derive(Debug, Clone)]
pub struct Applied {
    /// The object without `metadata.managedFields`, to be defaulted; `None` if the object is unchanged. The entries
    /// may have changed all the same: applying an existing value makes the manager an owner.
    pub object: Option<Value>,
    /// The new entries.
    pub managed: ManagedFields,
}

/// The result of any other write.
#[derive(Debug, Clone)]
pub struct Updated {
    /// The object as given, without `metadata.managedFields`.
    pub object: Value,
    /// The new entries.
    pub managed: ManagedFields,
}

/// Why a configuration cannot be applied. The texts are those of the API server.
#[derive(Debug, Error)]
pub enum ApplyError {
    /// The configuration is for another kind or version than the endpoint (400).
    #[error("invalid object type: {found}")]
    WrongKind {
        /// The version and kind of the configuration.
        found: String,
    },
    /// The configuration has entries, which an apply must not set (400).
    #[error("metadata.managedFields must be nil")]
    ManagedFieldsGiven,
    /// The configuration does not match the type (500).
    #[error("failed to create typed patch object ({object}): {source}")]
    Configuration {
        /// The object.
        object: String,
        /// The cause.
        source: ValidationErrors,
    },
    /// The stored object does not match the type, which has changed since (500).
    #[error("failed to create typed live object ({object}): {source}")]
    LiveObject {
        /// The object.
        object: String,
        /// The cause.
        source: ValidationErrors,
    },
    /// The fields that the object had before the first apply are unknown (500).
    #[error("failed to create manager for existing fields: {0}")]
    ExistingFields(UpdateError),
    /// The stored object does not match another version that an entry refers to (500).
    #[error("{0}")]
    OtherVersion(OtherVersionError),
    /// Other managers own fields that would change (409).
    #[error("{0}")]
    Conflict(Conflicts),
}

/// Why the changes of a write are unknown. The API server then accepts the write and clears the entries.
#[derive(Debug, Error)]
pub enum UpdateError {
    /// The new object does not match the type.
    #[error("failed to convert new object ({object}) to smd typed: {source}")]
    NewObject {
        /// The object.
        object: String,
        /// The cause.
        source: ValidationErrors,
    },
    /// The stored object does not match the type.
    #[error("failed to convert live object ({object}) to smd typed: {source}")]
    LiveObject {
        /// The object.
        object: String,
        /// The cause.
        source: ValidationErrors,
    },
    /// One of the objects does not match another version that an entry refers to.
    #[error("failed to update ManagedFields ({object}): {source}")]
    OtherVersion {
        /// The object.
        object: String,
        /// The cause.
        source: OtherVersionError,
    },
}

impl ApplyError {
    /// Returns the status code of the API server's response.
    pub fn code(&self) -> u16 {
        match self {
            Self::WrongKind { .. } | Self::ManagedFieldsGiven => 400,
            Self::Conflict(_) => 409,
            Self::Configuration { .. }
            | Self::LiveObject { .. }
            | Self::ExistingFields(_)
            | Self::OtherVersion(_) => 500,
        }
    }
}

impl FieldManager {
    /// Returns the field manager of a built-in kind that is served in one version.
    pub fn for_builtin(api_version: &str, kind: &str) -> Option<Self> {
        let builtin = schema::builtin(api_version, kind)?;
        let versions = Versions::new([(api_version, builtin.ty)]);
        Some(Self::new(versions, api_version, kind)?.starting_from(builtin.empty))
    }

    /// Returns the field manager of a kind in a version; `None` if the version is not among `versions`.
    pub fn new(versions: Versions, api_version: &str, kind: &str) -> Option<Self> {
        let ty = versions.get(api_version)?.clone();
        Some(Self {
            ty,
            versions,
            version: api_version.into(),
            kind: kind.to_owned(),
            empty: json!({"apiVersion": api_version, "kind": kind}),
            subresource: Arc::from(""),
            reset: ResetFields::default(),
        })
    }

    /// Sets the object that creation starts from: no manager owns the fields that every object of the kind has.
    #[must_use]
    pub fn starting_from(mut self, empty: Value) -> Self {
        self.empty = empty;
        self
    }

    /// Returns the field manager of a subresource with the same kind, such as `status`.
    #[must_use]
    pub fn subresource(mut self, name: &str) -> Self {
        self.subresource = name.into();
        self
    }

    /// Sets the fields that requests cannot change.
    #[must_use]
    pub fn resetting(mut self, fields: ResetFields) -> Self {
        self.reset = fields;
        self
    }

    /// Merges a configuration into an object, or creates the object from it.
    ///
    /// # Errors
    /// [`ApplyError`].
    pub fn apply(
        &self,
        live: Option<Live<'_>>,
        config: &Value,
        request: &ApplyRequest<'_>,
    ) -> Result<Applied, ApplyError> {
        self.check_kind(config)?;
        let mut managed = live.map(|live| live.managed.clone()).unwrap_or_default();
        let object = live.map_or(&self.empty, |live| live.object);
        if let (true, Some(live)) = (managed.is_empty(), live) {
            self.record_update(
                &mut managed,
                &self.empty,
                live.object,
                BEFORE_FIRST_APPLY,
                request.now,
            )
            .map_err(ApplyError::ExistingFields)?;
        }
        let without_entries = match config.pointer("/metadata/managedFields") {
            None => Cow::Borrowed(config),
            Some(Value::Null) => Cow::Owned(without_entries(config)),
            Some(_) => return Err(ApplyError::ManagedFieldsGiven),
        };
        let config = without_entries.as_ref();
        let config_typed =
            self.ty
                .check(config, Duplicates::Refused)
                .map_err(|source| ApplyError::Configuration {
                    object: self.describe(config),
                    source,
                })?;
        self.ty
            .check(object, Duplicates::Allowed)
            .map_err(|source| ApplyError::LiveObject {
                object: self.describe(object),
                source,
            })?;

        let manager = Manager::new(
            request.manager,
            Operation::Apply,
            &self.version,
            &self.subresource,
        );
        let attempt = |force| {
            let mut managed = managed.clone();
            let new = self
                .updater()
                .apply(object, config_typed, &mut managed, &manager, force)?;
            Ok((new, managed))
        };
        let outcome = match attempt(request.force) {
            Err(ApplyFailure::Conflicts(conflicts)) if request.manager == last_applied::MANAGER => {
                match last_applied::unresolved(conflicts, object, &self.ty, &self.version) {
                    Some(conflicts) => Err(ApplyFailure::Conflicts(conflicts)),
                    None => attempt(true),
                }
            }
            outcome => outcome,
        };
        let (mut new, mut managed) = outcome.map_err(|failure| match failure {
            ApplyFailure::Conflicts(conflicts) => ApplyError::Conflict(conflicts),
            ApplyFailure::OtherVersion(error) => ApplyError::OtherVersion(error),
        })?;
        finish_entry(&mut managed, &manager, new.as_ref().map(|_| request.now));
        managed.sort();
        if request.manager == last_applied::MANAGER {
            last_applied::refresh(&mut new, object, config);
        }
        Ok(Applied { object: new, managed })
    }

    /// Records the changes of any other write: a create, an update or a patch.
    ///
    /// `new` is the object to be stored, except for what the strategy resets. Its entries replace those of the stored
    /// object, so that a client can edit them; `[]` and `[{}]` clear them; unreadable entries are ignored.
    ///
    /// # Errors
    /// [`UpdateError`]; the API server then stores the object without entries.
    pub fn update(
        &self,
        live: Option<Live<'_>>,
        mut new: Value,
        request: &UpdateRequest<'_>,
    ) -> Result<Updated, UpdateError> {
        let managed = self.update_entries(live, &mut new, request)?;
        Ok(Updated { object: new, managed })
    }

    /// As [`Self::update`], for requests: an object that cannot be compared loses its entries, as in Kubernetes.
    pub fn update_or_forget(
        &self,
        live: Option<Live<'_>>,
        mut new: Value,
        request: &UpdateRequest<'_>,
    ) -> Updated {
        let managed = self.update_entries(live, &mut new, request).unwrap_or_default();
        Updated { object: new, managed }
    }

    fn update_entries(
        &self,
        live: Option<Live<'_>>,
        new: &mut Value,
        request: &UpdateRequest<'_>,
    ) -> Result<ManagedFields, UpdateError> {
        let given = take_entries(new);
        let stored = || live.map(|live| live.managed.clone()).unwrap_or_default();
        let mut managed = match given {
            _ if !self.subresource.is_empty() => stored(),
            Given::Reset => ManagedFields::new(),
            Given::Nothing => stored(),
            Given::Entries(managed) => managed,
        };
        // Clearing the entries of an object disables tracking until the next apply.
        if managed.is_empty() && live.is_some() {
            return Ok(managed);
        }
        let object = live.map_or(&self.empty, |live| live.object);
        self.record_update(&mut managed, object, new, request.manager, request.now)?;
        managed.sort();
        Ok(managed)
    }

    /// Records the differences between two objects as the changes of an updater.
    fn record_update(
        &self,
        managed: &mut ManagedFields,
        live: &Value,
        new: &Value,
        name: &str,
        now: Timestamp,
    ) -> Result<(), UpdateError> {
        self.ty
            .check(new, Duplicates::Allowed)
            .map_err(|source| UpdateError::NewObject {
                object: self.describe(new),
                source,
            })?;
        self.ty
            .check(live, Duplicates::Allowed)
            .map_err(|source| UpdateError::LiveObject {
                object: self.describe(live),
                source,
            })?;
        let manager = Manager::new(name, Operation::Update, &self.version, &self.subresource);
        let changed =
            self.updater()
                .update(live, new, managed)
                .map_err(|source| UpdateError::OtherVersion {
                    object: self.describe(new),
                    source,
                })?;
        let changed = changed.difference(&NEVER_OWNED);
        if !changed.is_empty() {
            updater::record(managed, manager, &self.version, changed, in_seconds(now));
        }
        cap::cap_updaters(managed);
        Ok(())
    }

    fn updater(&self) -> Updater<'_> {
        Updater {
            versions: &self.versions,
            reset: &self.reset,
            version: &self.version,
            ty: &self.ty,
        }
    }

    fn check_kind(&self, config: &Value) -> Result<(), ApplyError> {
        if config["apiVersion"] == *self.version && config["kind"] == *self.kind {
            return Ok(());
        }
        Err(ApplyError::WrongKind {
            found: version_and_kind(config),
        })
    }

    /// Formats an object as in messages: `namespace/name; group/version, Kind=kind`.
    fn describe(&self, object: &Value) -> String {
        let metadata = &object["metadata"];
        let text = |name: &str| metadata[name].as_str().unwrap_or_default();
        format!(
            "{}/{}; {}",
            text("namespace"),
            text("name"),
            version_and_kind(object)
        )
    }
}

/// Removes the fields that no manager owns from an applier's entry, and updates its time if the object has changed.
fn finish_entry(managed: &mut ManagedFields, manager: &Manager, changed: Option<Timestamp>) {
    let Some(mut entry) = managed.take(manager) else {
        return;
    };
    entry.fields = entry.fields.difference(&NEVER_OWNED);
    if let Some(now) = changed {
        entry.time = Some(in_seconds(now));
    }
    if !entry.fields.is_empty() {
        managed.put(entry);
    }
}

/// Restores the previous times of a write that changes only times, so that nothing is stored.
///
/// `object_changed` says whether the object differs from the stored one, apart from its entries. Returns whether
/// there is something to store.
pub fn settle_times(stored: &ManagedFields, new: &mut ManagedFields, object_changed: bool) -> bool {
    if object_changed {
        return true;
    }
    let same = stored.entries().len() == new.entries().len()
        && stored.entries().iter().zip(new.entries()).all(|(old, new)| {
            old.manager == new.manager && old.api_version == new.api_version && old.fields == new.fields
        });
    if same {
        new.clone_from(stored);
    }
    !same
}

/// Returns an object without its `managedFields`.
fn without_entries(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    object
}

/// The `managedFields` of an object that a client sent.
enum Given {
    /// The client sent no usable entries.
    Nothing,
    /// The client clears the entries.
    Reset,
    /// The client sent entries, at least one.
    Entries(ManagedFields),
}

fn take_entries(object: &mut Value) -> Given {
    let metadata = object.get_mut("metadata").and_then(Value::as_object_mut);
    let Some(given) = metadata.and_then(|metadata| metadata.remove("managedFields")) else {
        return Given::Nothing;
    };
    let is_reset = match &given {
        Value::Array(list) => match list.as_slice() {
            [] => true,
            [Value::Object(only)] => only.is_empty(),
            _ => false,
        },
        _ => false,
    };
    if is_reset {
        return Given::Reset;
    }
    match ManagedFields::from_value(&given) {
        Ok(managed) if !managed.is_empty() => Given::Entries(managed),
        _ => Given::Nothing,
    }
}

/// Returns `group/version, Kind=kind`; the core group is empty.
pub(crate) fn version_and_kind(object: &Value) -> String {
    let version = object["apiVersion"].as_str().unwrap_or_default();
    let slash = if version.contains('/') { "" } else { "/" };
    format!(
        "{slash}{version}, Kind={}",
        object["kind"].as_str().unwrap_or_default()
    )
}

/// Removes the fraction of a second, which the wire format lacks.
fn in_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}
