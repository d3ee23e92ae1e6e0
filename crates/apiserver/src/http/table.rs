//! Responses as a `Table`.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::encode::list_metadata;
use super::params::Params;
use super::request::Call;
use crate::status::Status;
use crate::store::Stored;
use crate::table::{Include, Printer};
use crate::verbs::{Listing, Target};

/// Returns what a row holds of its object (`includeObject`).
pub(super) fn include(params: &Params) -> Result<Include, Status> {
    let text = params.text("includeObject");
    Include::read(text).ok_or_else(|| {
        Status::bad_request(format!(
            "Unable to convert to Table as requested: includeObject: Invalid value: {text:?}: must be 'Metadata', 'Object', 'None', or empty"
        ))
    })
}

fn printer<'a>(call: &Call, target: &'a Target) -> Result<Printer<'a>, Status> {
    Ok(Printer {
        target,
        include: include(&call.params)?,
        now: call.now,
    })
}

pub(super) fn of_object(call: &Call, target: &Target, stored: &Stored) -> Result<Vec<u8>, Status> {
    let mut out = Vec::new();
    printer(call, target)?.write(&mut out, &revision(stored), [stored], true);
    Ok(out)
}

/// Returns the table of an object that is not stored.
pub(super) fn of_value(call: &Call, target: &Target, object: &Value) -> Result<Vec<u8>, Status> {
    let mut out = Vec::new();
    printer(call, target)?.write_value(&mut out, object, true);
    Ok(out)
}

pub(super) fn of_list(call: &Call, target: &Target, listing: &Listing) -> Result<Vec<u8>, Status> {
    let mut out = Vec::new();
    let rows = listing.items.iter().map(|stored| &**stored);
    printer(call, target)?.write(&mut out, &list_metadata(listing), rows, true);
    Ok(out)
}

fn revision(stored: &Stored) -> Value {
    json!({"resourceVersion": stored.revision.to_string()})
}

/// The tables of a watch; only the first one has column definitions.
pub(super) struct Events {
    include: Include,
    begun: bool,
}

impl Events {
    pub(super) fn new(include: Include) -> Self {
        Self {
            include,
            begun: false,
        }
    }

    fn printer<'a>(&mut self, target: &'a Target, now: Timestamp) -> (Printer<'a>, bool) {
        let first = !std::mem::replace(&mut self.begun, true);
        let printer = Printer {
            target,
            include: self.include,
            now,
        };
        (printer, first)
    }

    pub(super) fn object(&mut self, out: &mut Vec<u8>, target: &Target, stored: &Stored, now: Timestamp) {
        let (printer, first) = self.printer(target, now);
        printer.write(out, &revision(stored), [stored], first);
    }

    /// Writes a bookmark: as in Kubernetes, the row of an object without any fields.
    pub(super) fn bookmark(&mut self, out: &mut Vec<u8>, target: &Target, object: &Value, now: Timestamp) {
        let (printer, first) = self.printer(target, now);
        printer.write_value(out, object, first);
    }
}
