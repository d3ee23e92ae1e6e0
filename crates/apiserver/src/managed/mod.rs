//! `metadata.managedFields`: who manages which field of an object.
//!
//! The rules are those of apimachinery's `managedfields` (KEP-555), the wrappers of its field manager in their order.
//! A [`FieldManager`] is one endpoint: a version of a kind, or a subresource of it. In a request it stands at one point:
//!
//! - **apply**: configuration → [`FieldManager::apply`] → defaulting → admission, strategy → [`settle_times`] → store.
//!   Fields are recorded before defaulting, so nobody owns a default.
//! - **other writes**: object as sent or patched → defaulting → [`FieldManager::update`] → admission, strategy →
//!   [`settle_times`] → store. Here the defaults are the writer's.
//!
//! In both cases what the strategy resets afterwards is told beforehand, as [`ResetFields`].

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

/// Who owns what an object had when it was first applied to, if nobody had been recorded.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// Fields that nobody owns: they name the object or are the server's.
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

/// One endpoint that objects of a kind are written at.
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

/// An object as it is stored.
#[derive(Debug, Clone, Copy)]
pub struct Live<'a> {
    /// The object in the version of the endpoint, without `metadata.managedFields`.
    pub object: &'a Value,
    /// Its `metadata.managedFields`.
    pub managed: &'a ManagedFields,
}

/// What a client says about an apply.
#[derive(Debug, Clone, Copy)]
pub struct ApplyRequest<'a> {
    /// The field manager; the API server requires one.
    pub manager: &'a str,
    /// Whether to take fields that others own.
    pub force: bool,
    /// The time of the request.
    pub now: Timestamp,
}

/// What a client says about another write.
#[derive(Debug, Clone, Copy)]
pub struct UpdateRequest<'a> {
    /// The field manager, else [`manager_of_user_agent`].
    pub manager: &'a str,
    /// The time of the request.
    pub now: Timestamp,
}

/// What an apply comes to.
#[derive(Debug, Clone)]
pub struct Applied {
    /// The object without `metadata.managedFields`, to be defaulted; none if the live one stays as it is. Its entries
    /// may have changed all the same: who applies what is there already owns it too.
    pub object: Option<Value>,
    /// The new entries.
    pub managed: ManagedFields,
}

/// What another write comes to.
#[derive(Debug, Clone)]
pub struct Updated {
    /// The object as it was given, without `metadata.managedFields`.
    pub object: Value,
    /// The new entries.
    pub managed: ManagedFields,
}

/// Why a configuration cannot be applied. The texts are those of the API server's answers.
#[derive(Debug, Error)]
pub enum ApplyError {
    /// The configuration is for another kind or version than the endpoint (400).
    #[error("invalid object type: {found}")]
    WrongKind {
        /// Version and kind of the configuration.
        found: String,
    },
    /// The configuration has entries, which only the server writes in an apply (400).
    #[error("metadata.managedFields must be nil")]
    ManagedFieldsGiven,
    /// The configuration does not fit the type (500).
    #[error("failed to create typed patch object ({object}): {source}")]
    Configuration {
        /// Which object.
        object: String,
        /// What does not fit.
        source: ValidationErrors,
    },
    /// The stored object does not fit the type, which has changed since (500).
    #[error("failed to create typed live object ({object}): {source}")]
    LiveObject {
        /// Which object.
        object: String,
        /// What does not fit.
        source: ValidationErrors,
    },
    /// It is not known what the stored object had before anybody was recorded (500).
    #[error("failed to create manager for existing fields: {0}")]
    ExistingFields(UpdateError),
    /// The stored object does not fit another version that an entry names (500).
    #[error("{0}")]
    OtherVersion(OtherVersionError),
    /// Other managers own fields that would change (409).
    #[error("{0}")]
    Conflict(Conflicts),
}

/// Why it is not known what a write changed. The API server lets such a write pass and clears the entries.
#[derive(Debug, Error)]
pub enum UpdateError {
    /// The object as sent does not fit the type.
    #[error("failed to convert new object ({object}) to smd typed: {source}")]
    NewObject {
        /// Which object.
        object: String,
        /// What does not fit.
        source: ValidationErrors,
    },
    /// The stored object does not.
    #[error("failed to convert live object ({object}) to smd typed: {source}")]
    LiveObject {
        /// Which object.
        object: String,
        /// What does not fit.
        source: ValidationErrors,
    },
    /// One of the two does not fit another version that an entry names.
    #[error("failed to update ManagedFields ({object}): {source}")]
    OtherVersion {
        /// Which object.
        object: String,
        /// What does not fit.
        source: OtherVersionError,
    },
}

impl ApplyError {
    /// The status code of the API server's answer.
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
    /// Returns the endpoint for objects of a built-in kind that is served in one version.
    pub fn for_builtin(api_version: &str, kind: &str) -> Option<Self> {
        let builtin = schema::builtin(api_version, kind)?;
        let versions = Versions::new([(api_version, builtin.ty)]);
        Some(Self::new(versions, api_version, kind)?.starting_from(builtin.empty))
    }

    /// Returns the endpoint for objects of a kind; none if the version is not among those given.
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

    /// Sets the object that creation starts from: what every object of the kind has is owned by nobody.
    #[must_use]
    pub fn starting_from(mut self, empty: Value) -> Self {
        self.empty = empty;
        self
    }

    /// Returns the endpoint of a subresource whose objects are those of the kind, such as `status`.
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

    /// Merges a configuration into an object, or makes one of it.
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
                match last_applied::excess(conflicts, object, &self.ty, &self.version) {
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

    /// Records what another write changes: a create, a replacement or a patch.
    ///
    /// `new` is the object as it is to be stored, but for what the strategy resets. Entries in it count for the object
    /// itself, so that a client can edit them; `[]` and `[{}]` clear them; unreadable ones are ignored.
    ///
    /// # Errors
    /// [`UpdateError`]; the API server then stores the object without entries.
    pub fn update(
        &self,
        live: Option<Live<'_>>,
        mut new: Value,
        request: &UpdateRequest<'_>,
    ) -> Result<Updated, UpdateError> {
        let given = take_entries(&mut new);
        let stored = || live.map(|live| live.managed.clone()).unwrap_or_default();
        let mut managed = match given {
            _ if !self.subresource.is_empty() => stored(),
            Given::Reset => ManagedFields::new(),
            Given::Nothing => stored(),
            Given::Entries(managed) => managed,
        };
        // Whoever clears the entries of an object turns the tracking off until the next apply.
        if managed.is_empty() && live.is_some() {
            return Ok(Updated { object: new, managed });
        }
        let object = live.map_or(&self.empty, |live| live.object);
        self.record_update(&mut managed, object, &new, request.manager, request.now)?;
        managed.sort();
        Ok(Updated { object: new, managed })
    }

    /// Gives an updater what differs between two objects.
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

    /// `namespace/name; group/version, Kind=kind`, as messages name an object.
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

/// Leaves out of an applier's entry what nobody owns, and notes the time if the object has changed.
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

/// Gives a write that changes nothing but times the old times back, so that it is no write.
///
/// `object_changed` says whether anything of the object but its entries differs from what is stored. Returns whether
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

/// Returns an object without the field of its entries.
fn without_entries(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    object
}

/// What an object that a client sent says about its entries.
enum Given {
    /// Nothing that counts.
    Nothing,
    /// That they are to be cleared.
    Reset,
    /// These, at least one.
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

/// `group/version, Kind=kind`; the core group is empty.
pub(crate) fn version_and_kind(object: &Value) -> String {
    let version = object["apiVersion"].as_str().unwrap_or_default();
    let slash = if version.contains('/') { "" } else { "/" };
    format!(
        "{slash}{version}, Kind={}",
        object["kind"].as_str().unwrap_or_default()
    )
}

/// Times on the wire have no fraction.
fn in_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}
