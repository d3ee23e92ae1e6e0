//! What a request does: synchronous functions on the state of a cluster, with the time as a parameter.
//!
//! The order in each is the API server's: the object is read (its form, its defaults), fields get their manager, what
//! admission would do is done, the strategy prepares, what is not valid is refused, and the write is committed.

mod admission;
mod collection;
mod create;
mod decode;
mod delete;
mod patch;
mod read;
pub mod review;
mod scale;
mod update;
mod watch;

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

pub(crate) use admission::NAMESPACES;
pub use collection::delete_collection;
pub use create::create;
pub use decode::Validation;
pub(crate) use delete::{CLEANUP, FOREGROUND, ORPHAN};
pub use delete::{DeleteOptions, Preconditions, Propagation, delete, delete_warnings};
pub use patch::{PatchBody, patch};
pub(crate) use read::check_reached;
pub use read::{ListOptions, Listing, RevisionMatch, Selection, get, list};
pub use scale::show_stored as show_scale;
pub use update::update;
pub use watch::{Event, EventBody, WatchOptions, Watching, error as watch_error};

use crate::kinds::{Resource, Version};
use crate::managed::FieldManager;
use crate::object::head;
use crate::status::Status;
use crate::store::Stored;

/// What a request is about.
#[derive(Clone)]
pub struct Target {
    /// The resource.
    pub resource: Arc<Resource>,
    /// In which version.
    pub version: Arc<Version>,
    /// The namespace; empty for all, or for a resource without.
    pub namespace: String,
    /// The object; empty for the collection.
    pub name: String,
    /// What lies below the object; empty for itself.
    pub subresource: String,
}

/// What is common to all writes.
#[derive(Debug, Clone, Copy)]
pub struct Write<'a> {
    /// The field manager: as given, or made of the user agent.
    pub manager: &'a str,
    /// Who writes.
    pub user: &'a str,
    /// Whether nothing is to be committed.
    pub dry_run: bool,
    /// What happens to fields that the kind does not have.
    pub validation: Validation,
    /// Whether an apply takes fields that others own.
    pub force: bool,
    /// The time.
    pub now: Timestamp,
    /// The subresource that is written to, for the journal.
    pub subresource: &'a str,
}

/// What a request comes to.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The HTTP code.
    pub code: u16,
    /// What the answer holds.
    pub body: Body,
    /// What the client is warned of.
    pub warnings: Vec<String>,
}

/// What an answer holds.
#[derive(Debug, Clone)]
pub enum Body {
    /// An object as it is stored.
    Stored(Arc<Stored>),
    /// An object that is not stored: a dry run, a `Scale`, a review, a `Status`.
    Value(Value),
}

impl Outcome {
    fn stored(code: u16, stored: Arc<Stored>) -> Self {
        Self {
            code,
            body: Body::Stored(stored),
            warnings: Vec::new(),
        }
    }

    pub(crate) fn value(code: u16, value: Value) -> Self {
        Self {
            code,
            body: Body::Value(value),
            warnings: Vec::new(),
        }
    }

    fn warning(mut self, warnings: Vec<String>) -> Self {
        self.warnings.extend(warnings);
        self
    }
}

/// Warns a client, whatever it gets.
fn warned(outcome: Result<Outcome, Status>, warnings: Vec<String>) -> Result<Outcome, Status> {
    match outcome {
        Ok(outcome) => Ok(outcome.warning(warnings)),
        Err(status) => Err(status.warning(warnings)),
    }
}

impl Target {
    /// The key of the object.
    pub fn key(&self) -> Box<str> {
        head::key(&self.namespace, &self.name)
    }

    /// Who manages the fields that a write to this target touches.
    fn fields(&self) -> &FieldManager {
        if self.subresource == "status" {
            &self.version.status_fields
        } else {
            &self.version.fields
        }
    }

    /// An object of the target as its version shows it.
    pub fn read(&self, stored: &Stored) -> Value {
        crate::kinds::read_as(&self.resource, &self.version, stored)
    }

    fn not_found(&self) -> Status {
        Status::not_found(&self.resource.group, &self.resource.plural, &self.name)
    }

    fn invalid(&self, name: &str, causes: Vec<crate::status::Cause>) -> Status {
        Status::invalid(&self.resource.group, &self.resource.kind, name, causes)
    }

    fn modified(&self) -> Status {
        Status::modified(&self.resource.group, &self.resource.plural, &self.name)
    }
}
