//! Objects as rows of a `Table`, the form that `kubectl get` requests.
//!
//! The server decides what `kubectl` prints: `columns.txt` defines the columns of built-in kinds, and a function for
//! each kind computes the cells; custom resources have the columns of their definition. Cells hold ages, so a table
//! depends on the time of the request. Columns have no descriptions.

mod cells;
mod columns;
mod custom;
mod duration;
mod scaling;
mod storage;
mod text;
mod view;
mod workloads;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::kinds::{self, Form};
use crate::store::Stored;
use crate::target::Target;

pub use duration::human;

use columns::Column;
use view::View;

/// What a row holds of its object (`includeObject`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Include {
    /// Nothing.
    None,
    /// The metadata.
    Metadata,
    /// The whole object.
    Object,
}

impl Include {
    /// Parses the parameter `includeObject`; `None` for an unsupported value.
    pub fn read(text: &str) -> Option<Self> {
        match text {
            "None" => Some(Self::None),
            "" | "Metadata" => Some(Self::Metadata),
            "Object" => Some(Self::Object),
            _ => None,
        }
    }
}

/// Writes the tables of a resource.
pub struct Printer<'a> {
    /// The endpoint of the objects.
    pub target: &'a Target,
    /// What the rows hold of the objects.
    pub include: Include,
    /// The time of the request.
    pub now: Timestamp,
}

impl Printer<'_> {
    /// Writes a table. In a watch, only the first table has column definitions.
    pub fn write<'s>(
        &self,
        out: &mut Vec<u8>,
        metadata: &Value,
        rows: impl IntoIterator<Item = &'s Stored>,
        with_columns: bool,
    ) {
        let columns = if with_columns {
            self.columns().iter().map(Column::to_value).collect()
        } else {
            Value::Null
        };
        begin(out, metadata, &columns);
        for (place, stored) in rows.into_iter().enumerate() {
            if place > 0 {
                out.push(b',');
            }
            self.row(out, stored);
        }
        out.extend_from_slice(b"]}");
    }

    /// Writes the table of an object that is not stored: the result of a dry run, or a bookmark.
    pub fn write_value(&self, out: &mut Vec<u8>, object: &Value, with_columns: bool) {
        let columns = if with_columns {
            self.columns().iter().map(Column::to_value).collect()
        } else {
            Value::Null
        };
        let metadata = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
        begin(out, &metadata, &columns);
        let shown = match self.include {
            Include::None => Value::Null,
            Include::Metadata => json!({
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": object["metadata"],
            }),
            Include::Object => object.clone(),
        };
        let row = self.with_conditions(json!({"cells": self.cells(object), "object": shown}), object);
        out.extend_from_slice(row.to_string().as_bytes());
        out.extend_from_slice(b"]}");
    }

    fn row(&self, out: &mut Vec<u8>, stored: &Stored) {
        let object = self.stored_form(stored);
        let head = self.with_conditions(json!({"cells": self.cells(&object)}), &object);
        let head = head.to_string();
        // The object comes at the end of the row.
        out.extend_from_slice(head.strip_suffix('}').unwrap_or(&head).as_bytes());
        out.extend_from_slice(b",\"object\":");
        match self.include {
            Include::None => out.extend_from_slice(b"null"),
            Include::Metadata => stored.write_metadata(out),
            Include::Object => {
                out.extend_from_slice(self.target.read(stored).to_string().as_bytes());
            }
        }
        out.push(b'}');
    }

    /// Returns the object in the version that the cells derive from: for built-in kinds the stored version, whatever
    /// version the client requests.
    fn stored_form(&self, stored: &Stored) -> Value {
        let (resource, version) = (&self.target.resource, &self.target.version);
        match &version.form {
            Form::Builtin(_) => kinds::read_stored_version(resource, version, stored),
            Form::Custom(_) => self.target.read(stored),
        }
    }

    fn columns(&self) -> Vec<Column> {
        let resource = &self.target.resource;
        match &self.target.version.form {
            _ if self.target.subresource == "scale" => columns::of_scale(),
            Form::Builtin(_) => columns::of_builtin(&resource.group, &resource.kind),
            Form::Custom(custom) => custom::columns(custom.get()),
        }
    }

    fn cells(&self, object: &Value) -> Vec<Value> {
        let view = View::new(object, self.now);
        let resource = &self.target.resource;
        match &self.target.version.form {
            _ if self.target.subresource == "scale" => scaling::scale(&view),
            Form::Builtin(_) => cells::of(&resource.group, &resource.kind, &view),
            Form::Custom(custom) => custom::cells(custom.get(), &view),
        }
    }

    /// Adds the conditions by which clients hide completed Pods.
    fn with_conditions(&self, mut row: Value, object: &Value) -> Value {
        if &*self.target.resource.kind != "Pod" || !self.target.resource.group.is_empty() {
            return row;
        }
        let message = match object["status"]["phase"].as_str() {
            Some("Succeeded") => "The pod has completed successfully.",
            Some("Failed") => "The pod failed.",
            _ => return row,
        };
        row["conditions"] = json!([{
            "type": "Completed", "status": "True", "reason": object["status"]["phase"], "message": message,
        }]);
        row
    }
}

fn begin(out: &mut Vec<u8>, metadata: &Value, columns: &Value) {
    out.extend_from_slice(
        format!(
            "{{\"kind\":\"Table\",\"apiVersion\":\"meta.k8s.io/v1\",\"metadata\":{metadata},\"columnDefinitions\":{columns},\"rows\":["
        )
        .as_bytes(),
    );
}
