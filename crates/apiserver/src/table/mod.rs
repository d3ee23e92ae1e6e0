//! Objects as rows of a `Table`, the form in which `kubectl get` asks for them.
//!
//! The server decides what is printed: columns of built-in kinds stand in `columns.txt`, and a function for each kind
//! computes the cells; custom resources have the columns of their definition. Cells hold how long ago a time was, so a
//! table depends on the time of the request. Columns have no descriptions.

mod cells;
mod columns;
mod custom;
mod duration;
mod look;
mod scaling;
mod storage;
mod text;
mod workloads;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::kinds::{self, Form};
use crate::store::Stored;
use crate::verbs::Target;

pub use duration::human;

use columns::Column;
use look::Look;

/// What a row holds of its object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Include {
    /// Nothing.
    None,
    /// Its metadata.
    Metadata,
    /// All of it.
    Object,
}

impl Include {
    /// Reads the parameter `includeObject`; none for what it may not be.
    pub fn read(text: &str) -> Option<Self> {
        match text {
            "None" => Some(Self::None),
            "" | "Metadata" => Some(Self::Metadata),
            "Object" => Some(Self::Object),
            _ => None,
        }
    }
}

/// Writes tables of a resource.
pub struct Printer<'a> {
    /// What the objects are.
    pub target: &'a Target,
    /// What rows hold of them.
    pub include: Include,
    /// The time of the request.
    pub now: Timestamp,
}

impl Printer<'_> {
    /// Writes a table. In a watch only the first one has columns.
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

    /// Writes the table of an object that is not stored: of a dry run, or of a bookmark.
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
        let object = self.kept(stored);
        let head = self.with_conditions(json!({"cells": self.cells(&object)}), &object);
        let head = head.to_string();
        // The object goes where the row ends.
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

    /// The object in the form that cells are made of: of built-in kinds the one that is kept, whatever version is
    /// asked for.
    fn kept(&self, stored: &Stored) -> Value {
        let (resource, version) = (&self.target.resource, &self.target.version);
        match &version.form {
            Form::Builtin(_) => kinds::read_kept(resource, version, stored),
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
        let look = Look::new(object, self.now);
        let resource = &self.target.resource;
        match &self.target.version.form {
            _ if self.target.subresource == "scale" => scaling::scale(&look),
            Form::Builtin(_) => cells::of(&resource.group, &resource.kind, &look),
            Form::Custom(custom) => custom::cells(custom.get(), &look),
        }
    }

    /// Pods that are done say so, for clients that hide them.
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
