//! The columns and cells of custom resources.

use serde_json::Value;

use super::columns::{self, Column};
use super::view::{UNKNOWN, View};
use crate::crd::{Cell, Version};
use crate::object::times;

/// The age, unless the definition has columns of its own.
const AGE: &str = "Name/name | Age:date";

/// Returns the columns up to the first that is invalid, as Kubernetes does; `None` if the definition has no columns.
fn listed(version: &Version) -> Option<impl Iterator<Item = &crate::crd::Column>> {
    let columns = version.columns();
    (!columns.is_empty()).then(|| columns.iter().take_while(|column| column.is_readable()))
}

/// Returns the columns of a version.
pub(super) fn columns(version: &Version) -> Vec<Column> {
    let Some(listed) = listed(version) else {
        return columns::read(AGE);
    };
    let mut all = columns::read("Name/name");
    all.extend(listed.map(|column| Column {
        name: column.name.clone(),
        ty: column.ty.clone(),
        format: column.format.clone(),
        description: match column.description.as_str() {
            "" => format!(
                "Custom resource definition column (in JSONPath format): {}",
                column.json_path
            ),
            text => text.to_owned(),
        },
        priority: column.priority,
    }));
    all
}

/// Returns the cells of an object.
pub(super) fn cells(version: &Version, view: &View<'_>) -> Vec<Value> {
    let mut cells = vec![view.name()];
    match listed(version) {
        None => cells.push(view.age()),
        Some(listed) => cells.extend(listed.map(|column| match column.cell(view.object()) {
            Cell::Empty => Value::Null,
            Cell::Value(value) => value,
            Cell::Date(text) if text.is_empty() => Value::from(UNKNOWN),
            Cell::Date(text) => match times::parse(&text) {
                Some(time) => Value::from(view.age_since(time)),
                None => Value::from("<invalid>"),
            },
        })),
    }
    cells
}
