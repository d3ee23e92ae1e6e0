//! The registry of resources.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use serde::Deserialize;
use serde_json::{Value, json};

use super::codec;
use super::resource::{Form, Resource, Scale, Subresource, Version};
use super::strategy::Strategy;
use crate::fields::{FieldSet, Path};
use crate::managed::{FieldManager, ResetFields, ScaleMapping, Versions};
use crate::schema;

/// The subresources of Kubernetes that this server does not have: connections to nodes, and those that need a
/// scheduler.
const NOT_SERVED: [&str; 11] = [
    "attach",
    "binding",
    "ephemeralcontainers",
    "exec",
    "log",
    "portforward",
    "proxy",
    "resize",
    "approval",
    "eviction",
    "finalize",
];

static BUILTINS: LazyLock<Builtins> = LazyLock::new(Builtins::load);

struct Builtins {
    resources: BTreeMap<(Box<str>, Box<str>), Arc<Resource>>,
    /// The groups in the order of discovery.
    order: Vec<Box<str>>,
}

/// A row of `resources.json`.
#[derive(Deserialize, Clone)]
#[serde(deny_unknown_fields)]
struct Row {
    group: Box<str>,
    version: Box<str>,
    plural: Box<str>,
    singular: Box<str>,
    kind: Box<str>,
    namespaced: bool,
    verbs: Vec<Box<str>>,
    #[serde(default)]
    short: Vec<Box<str>>,
    #[serde(default)]
    categories: Vec<Box<str>>,
    #[serde(default)]
    hash: Box<str>,
    #[serde(default)]
    subresources: Vec<Subresource>,
}

/// The resources of one cluster.
#[derive(Debug, Default)]
pub struct Registry {
    custom: BTreeMap<(Box<str>, Box<str>), Arc<Resource>>,
}

impl Registry {
    /// Returns a resource by its group and plural name.
    pub fn get(&self, group: &str, plural: &str) -> Option<Arc<Resource>> {
        let key = (group.into(), plural.into());
        BUILTINS
            .resources
            .get(&key)
            .or_else(|| self.custom.get(&key))
            .cloned()
    }

    /// Returns the resource of a kind.
    pub fn of_kind(&self, group: &str, kind: &str) -> Option<Arc<Resource>> {
        self.all()
            .find(|resource| *resource.group == *group && *resource.kind == *kind)
            .cloned()
    }

    /// Returns the resource whose objects are in a table.
    pub fn of_table(&self, table: &str) -> Option<Arc<Resource>> {
        let (plural, group) = table.split_once('.').unwrap_or((table, ""));
        self.get(group, plural)
    }

    /// Returns all resources: built-in ones, then custom ones by group and plural name.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Resource>> {
        BUILTINS.resources.values().chain(self.custom.values())
    }

    /// Returns the built-in resources by group and plural name.
    pub fn builtins() -> impl Iterator<Item = &'static Arc<Resource>> {
        BUILTINS.resources.values()
    }

    /// Returns the custom resources of this cluster by group and plural name.
    pub fn custom(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.custom.values()
    }

    /// Returns the built-in groups except the core, in the order of discovery.
    pub fn builtin_groups() -> impl Iterator<Item = &'static str> {
        BUILTINS
            .order
            .iter()
            .filter(|group| !group.is_empty())
            .map(|group| &**group)
    }

    /// Returns whether any resource is served in a group version.
    pub fn has_version(&self, group: &str, version: &str) -> bool {
        self.all()
            .any(|resource| *resource.group == *group && resource.version(version).is_some())
    }

    /// Serves a custom resource, or replaces it.
    pub fn serve(&mut self, resource: Resource) -> Arc<Resource> {
        let key = (resource.group.clone(), resource.plural.clone());
        let resource = Arc::new(resource);
        self.custom.insert(key, Arc::clone(&resource));
        resource
    }

    /// Stops serving a custom resource.
    pub fn retire(&mut self, group: &str, plural: &str) -> Option<Arc<Resource>> {
        self.custom.remove(&(group.into(), plural.into()))
    }
}

impl Builtins {
    fn load() -> Self {
        // The file is part of the program and a test reads it; a table that cannot be read serves nothing.
        let rows: Vec<Row> = serde_json::from_str(include_str!("resources.json")).unwrap_or_default();
        let mut order: Vec<Box<str>> = Vec::new();
        let mut by_name: BTreeMap<(Box<str>, Box<str>), Vec<Row>> = BTreeMap::new();
        for row in rows {
            let api_version = api_version(&row.group, &row.version);
            let kept = codec::go_type(&api_version, &row.kind).is_some()
                && !matches!(&*row.plural, "bindings" | "componentstatuses");
            let stored = row.verbs.iter().any(|verb| **verb == *"list");
            if !kept || stored && schema::builtin(&api_version, &row.kind).is_none() {
                continue;
            }
            if !order.contains(&row.group) {
                order.push(row.group.clone());
            }
            by_name
                .entry((row.group.clone(), row.plural.clone()))
                .or_default()
                .push(row);
        }
        let resources = by_name
            .into_iter()
            .filter_map(|(key, rows)| Some((key, Arc::new(resource(&rows)?))))
            .collect();
        Self { resources, order }
    }
}

fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() {
        version.to_owned()
    } else {
        format!("{group}/{version}")
    }
}

fn resource(rows: &[Row]) -> Option<Resource> {
    let first = rows.first()?;
    // Both groups show the same events.
    let table = match (&*first.plural, &*first.group) {
        ("events", _) => "events".to_owned(),
        (plural, group) => crate::status::qualified(plural, group),
    };
    Some(Resource {
        group: first.group.clone(),
        plural: first.plural.clone(),
        singular: first.singular.clone(),
        kind: first.kind.clone(),
        list_kind: format!("{}List", first.kind).into(),
        short_names: first.short.clone(),
        categories: first.categories.clone(),
        namespaced: first.namespaced,
        table: table.into(),
        strategy: Strategy::of_builtin(&first.group, &first.kind),
        versions: rows
            .iter()
            .filter_map(|row| Some(Arc::new(version(rows, row)?)))
            .collect(),
        custom: None,
    })
}

/// Returns the fields that every review has: those that its Go type has by value.
fn empty_review(api_version: &str, kind: &str) -> Value {
    let status = match kind {
        "TokenReview" => json!({"user": {}}),
        _ => json!({"allowed": false}),
    };
    json!({"apiVersion": api_version, "kind": kind, "metadata": {}, "spec": {}, "status": status})
}

fn version(rows: &[Row], row: &Row) -> Option<Version> {
    let name = api_version(&row.group, &row.version);
    let types = rows.iter().filter_map(|row| {
        let name = api_version(&row.group, &row.version);
        let builtin = schema::builtin(&name, &row.kind)?;
        Some((name, builtin.ty))
    });
    let mut versions = Versions::new(types);
    if rows.len() > 1 {
        versions = versions.converting(Arc::new(super::convert::to_version));
    }
    let has_status = row.subresources.iter().any(|one| *one.name == *"status");
    let strategy = Strategy::of_builtin(&row.group, &row.kind);
    let manager = match schema::builtin(&name, &row.kind) {
        Some(builtin) => FieldManager::new(versions, &name, &row.kind)?.starting_from(builtin.empty),
        // Kinds that are handled without storing an object.
        None => FieldManager::new(
            Versions::new([(name.as_str(), schema::Type::deduced())]),
            &name,
            &row.kind,
        )?
        .starting_from(empty_review(&name, &row.kind)),
    };
    let reset = |paths: &[&[&str]]| {
        let set: FieldSet = paths.iter().map(|path| Path::of_fields(path)).collect();
        ResetFields::new(
            rows.iter()
                .map(|row| (api_version(&row.group, &row.version), set.clone())),
        )
    };
    // The requests of the object own no field of the status, even where they may set it.
    let fields = match (has_status, &*row.kind) {
        (true, "CertificateSigningRequest") => manager.clone().resetting(reset(&[&["spec"], &["status"]])),
        // Kubernetes names the fields of its beta version only.
        (true, "ServiceCIDR") => manager.clone(),
        (true, _) => manager.clone().resetting(reset(&[&["status"]])),
        (false, _) => manager.clone(),
    };
    let finalize_fields = (row.subresources.iter())
        .any(|one| *one.name == *"finalize")
        .then(|| {
            manager
                .clone()
                .subresource("finalize")
                .resetting(reset(&[&["status"]]))
        });
    let status_fields = manager
        .subresource("status")
        .resetting(reset(strategy.status_resets));
    let scale = row
        .subresources
        .iter()
        .any(|one| *one.name == *"scale")
        .then(|| Scale {
            spec_replicas: ".spec.replicas".into(),
            status_replicas: ".status.replicas".into(),
            selector: Some(".spec.selector".into()),
            mapping: ScaleMapping::new(
                &name,
                [(name.as_str(), Some(Path::of_fields(&["spec", "replicas"])))],
            ),
        });
    let mut subresources = row.subresources.clone();
    subresources.retain(|one| !NOT_SERVED.contains(&&*one.name) || served_here(&row.plural, &one.name));
    Some(Version {
        form: Form::Builtin(codec::go_type(&name, &row.kind)?),
        name: row.version.clone(),
        api_version: name.into(),
        verbs: row.verbs.clone(),
        subresources,
        storage_hash: row.hash.clone(),
        fields,
        status_fields,
        finalize_fields,
        scale,
    })
}

/// Returns whether a subresource is an exception from [`NOT_SERVED`].
fn served_here(plural: &str, subresource: &str) -> bool {
    matches!(
        (plural, subresource),
        ("namespaces", "finalize") | ("pods", "eviction") | ("certificatesigningrequests", "approval")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_resources_are_served() {
        let registry = Registry::default();
        assert!(registry.all().count() >= 55, "{}", registry.all().count());
        for (group, plural, version) in [
            ("", "configmaps", "v1"),
            ("apps", "deployments", "v1"),
            ("autoscaling", "horizontalpodautoscalers", "v1"),
            ("autoscaling", "horizontalpodautoscalers", "v2"),
            ("events.k8s.io", "events", "v1"),
            ("authorization.k8s.io", "selfsubjectaccessreviews", "v1"),
        ] {
            let resource = registry.get(group, plural).unwrap();
            assert!(resource.version(version).is_some(), "{resource:?} {version}");
        }
        assert!(registry.get("apps", "nothings").is_none());
        let deployments = registry.of_kind("apps", "Deployment").unwrap();
        let names: Vec<_> = deployments.versions[0]
            .subresources
            .iter()
            .map(|one| &*one.name)
            .collect();
        assert_eq!(names, ["scale", "status"]);
        assert!(deployments.versions[0].scale.is_some());
    }
}
