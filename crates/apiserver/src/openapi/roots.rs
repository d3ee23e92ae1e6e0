//! The documents of the paths that clients read first: the version of the server, versions, groups, and the resources of
//! a version.

use serde_json::{Map, Value, json};

use super::META;
use super::paths::content;
use crate::kinds::Registry;

const TYPES: [&str; 3] = [
    "application/json",
    "application/vnd.kubernetes.protobuf",
    "application/yaml",
];

/// Returns the names of these documents, which the index lists.
pub(super) fn names() -> impl Iterator<Item = String> {
    let groups = Registry::builtin_groups().map(|group| format!("apis/{group}"));
    ["version", "api", "apis"]
        .into_iter()
        .map(str::to_owned)
        .chain(groups)
}

/// Returns the paths of a document; `None` if there is none of this name.
pub(super) fn paths(name: &str) -> Option<Map<String, Value>> {
    let definition = match name {
        "version" => "io.k8s.apimachinery.pkg.version.Info".to_owned(),
        "api" => format!("{META}.APIVersions"),
        "apis" => format!("{META}.APIGroupList"),
        name => {
            let group = name.strip_prefix("apis/")?;
            Registry::builtin_groups().find(|known| *known == group)?;
            format!("{META}.APIGroup")
        }
    };
    let types = if name == "version" { &TYPES[..1] } else { &TYPES };
    let mut paths = Map::new();
    add(&mut paths, name, types, &definition);
    Some(paths)
}

/// Adds the path of a version, which lists its resources.
pub(super) fn add_version(paths: &mut Map<String, Value>, prefix: &str) {
    add(paths, prefix, &TYPES, &format!("{META}.APIResourceList"));
}

fn add(paths: &mut Map<String, Value>, name: &str, types: &[&str], definition: &str) {
    let responses = json!({
        "200": {"description": "OK", "content": content(types, definition)},
        "401": {"description": "Unauthorized"},
    });
    paths.insert(format!("/{name}/"), json!({"get": {"responses": responses}}));
}
