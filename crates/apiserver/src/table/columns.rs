//! The column definitions of built-in kinds.

use std::collections::HashMap;
use std::sync::LazyLock;

use serde_json::{Value, json};

/// A column of a table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) name: String,
    /// The type: `string`, `integer`, `number`, `boolean` or `date`.
    pub(super) ty: String,
    /// The format: `name` for the object's name.
    pub(super) format: String,
    pub(super) description: String,
    /// The priority: `kubectl` shows columns above 0 in wide output only.
    pub(super) priority: i64,
}

static BUILTIN: LazyLock<HashMap<&'static str, Vec<Column>>> = LazyLock::new(|| {
    include_str!("columns.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(": "))
        .map(|(kind, columns)| (kind, columns.split(" | ").map(Column::read).collect()))
        .collect()
});

impl Column {
    fn read(text: &str) -> Self {
        let (text, priority) = match text.strip_suffix('*') {
            Some(text) => (text, 1),
            None => (text, 0),
        };
        let (text, format) = text.split_once('/').unwrap_or((text, ""));
        let (name, ty) = text.split_once(':').unwrap_or((text, "string"));
        Self {
            name: name.to_owned(),
            ty: ty.to_owned(),
            format: format.to_owned(),
            description: String::new(),
            priority,
        }
    }

    pub(super) fn to_value(&self) -> Value {
        json!({
            "name": self.name,
            "type": self.ty,
            "format": self.format,
            "description": self.description,
            "priority": self.priority,
        })
    }
}

/// Returns the columns of a built-in kind.
pub(super) fn of_builtin(group: &str, kind: &str) -> Vec<Column> {
    let name = if group.is_empty() {
        kind.to_owned()
    } else {
        format!("{group}/{kind}")
    };
    match BUILTIN.get(name.as_str()) {
        Some(columns) => columns.clone(),
        None => read("Name/name | Created At:date"),
    }
}

/// Returns the columns of a `Scale`.
pub(super) fn of_scale() -> Vec<Column> {
    read("Name | Desired:integer | Available:integer | Age")
}

/// Parses columns in the syntax of `columns.txt`.
pub(super) fn read(text: &str) -> Vec<Column> {
    text.split(" | ").map(Column::read).collect()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::kinds::Registry;
    use crate::table::view::View;

    #[test]
    fn columns_are_parsed() {
        let columns = of_builtin("batch", "CronJob");
        assert_eq!(columns[0].format, "name");
        assert_eq!(columns[3].ty, "boolean");
        assert_eq!(columns.last().unwrap().priority, 1);
        assert_eq!(of_builtin("", "LimitRange")[1].name, "Created At");
    }

    #[test]
    fn each_kind_has_a_cell_for_each_column() {
        let object = json!({"metadata": {"name": "a"}});
        for resource in Registry::builtins().filter(|resource| resource.versions[0].can("list")) {
            let cells = crate::table::cells::of(
                &resource.group,
                &resource.kind,
                &View::new(&object, Timestamp::UNIX_EPOCH),
            );
            // As in Kubernetes, an IPAddress has one cell more than columns.
            let more = usize::from(&*resource.kind == "IPAddress");
            let columns = of_builtin(&resource.group, &resource.kind);
            assert_eq!(cells.len(), columns.len() + more, "{resource:?}");
        }
    }

    #[test]
    fn all_columns_belong_to_served_kinds() {
        let registry = Registry::default();
        for name in BUILTIN.keys() {
            let (group, kind) = name.split_once('/').unwrap_or(("", name));
            assert!(registry.of_kind(group, kind).is_some(), "{name}");
        }
    }
}
