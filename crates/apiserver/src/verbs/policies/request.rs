//! A request, as admission sees it.

use std::borrow::Cow;

use serde_json::{Value, json};

use crate::admission::{Facts, Operation, Resource};
use crate::kinds::tables::NAMESPACES;
use crate::kinds::{self, Version};
use crate::state::State;
use crate::target::Target;
use crate::write::Write;

/// A request to change an object.
pub(crate) struct Request<'a> {
    /// The endpoint.
    pub(crate) target: &'a Target,
    /// The name of the object; empty for an object of a collection that is deleted.
    pub(crate) name: &'a str,
    /// What the request does.
    pub(crate) operation: Operation,
    /// The object as it would be stored; `None` if it is deleted.
    pub(crate) object: Option<&'a Value>,
    /// The stored object; `None` if there is none.
    pub(crate) old: Option<&'a Value>,
    /// The options of a deletion; `Null` for other requests.
    pub(crate) options: &'a Value,
    /// Who sends the request, and its options.
    pub(crate) write: &'a Write<'a>,
}

fn of_version<'a>(resource: &'a kinds::Resource, version: &'a Version, subresource: &str) -> Resource<'a> {
    let (mut group, mut of_version, mut kind) = (&*resource.group, &*version.name, &*resource.kind);
    if let Some(found) = version.subresource(subresource) {
        group = found.group.as_deref().unwrap_or(group);
        of_version = found.version.as_deref().unwrap_or(of_version);
        kind = &found.kind;
    }
    Resource {
        group: &resource.group,
        version: &version.name,
        plural: &resource.plural,
        kind: (group, of_version, kind),
    }
}

/// Returns an object of a request in the version that a policy matches.
pub(super) fn converted<'a>(
    request: &Request<'_>,
    matching: &Resource<'_>,
    object: &'a Value,
) -> Cow<'a, Value> {
    if matching.kind == request.resource().kind {
        return Cow::Borrowed(object);
    }
    let (group, version, _) = matching.kind;
    let api_version = match group {
        "" => version.to_owned(),
        group => format!("{group}/{version}"),
    };
    Cow::Owned(kinds::to_version(object, &api_version))
}

impl Request<'_> {
    /// Returns whether the object is a namespace.
    pub(super) fn is_namespace(&self) -> bool {
        *self.target.resource.table == *NAMESPACES
    }

    /// Returns the namespace of the request; a namespace is in itself.
    pub(super) fn namespace(&self) -> &str {
        if self.is_namespace() {
            self.name
        } else {
            &self.target.namespace
        }
    }

    /// Returns the resource of the path.
    pub(super) fn resource(&self) -> Resource<'_> {
        let Target {
            resource,
            version,
            subresource,
            ..
        } = self.target;
        of_version(resource, version, subresource)
    }

    /// Returns what the rules of policies look at.
    pub(super) fn facts<'a>(
        &'a self,
        resource: &'a Resource<'a>,
        equivalents: &'a [Resource<'a>],
    ) -> Facts<'a> {
        Facts {
            operation: self.operation,
            resource,
            equivalents,
            subresource: &self.target.subresource,
            name: self.name,
            namespace: self.namespace(),
            is_namespace: self.is_namespace(),
            object: self.object,
            old: self.old,
        }
    }

    /// Returns whether policies are never evaluated for the resource: those that decide about admission themselves.
    pub(super) fn is_exempt(&self) -> bool {
        let resource = &self.target.resource;
        *resource.group == *"admissionregistration.k8s.io"
            && matches!(
                &*resource.plural,
                "validatingadmissionpolicies"
                    | "validatingadmissionpolicybindings"
                    | "validatingwebhookconfigurations"
                    | "mutatingwebhookconfigurations"
                    | "mutatingadmissionpolicies"
                    | "mutatingadmissionpolicybindings"
            )
    }

    /// Returns `request`, for a resource that matches.
    pub(super) fn to_value(&self, matching: &Resource<'_>) -> Value {
        let own = self.resource();
        let write = self.write;
        let mut user = json!({});
        let mut request = json!({
            "uid": "",
            "kind": matching.kind(),
            "resource": matching.shown(),
            "requestKind": own.kind(),
            "requestResource": own.shown(),
            "operation": self.operation.name(),
            "dryRun": write.dry_run,
            "options": self.options(),
            "object": null,
            "oldObject": null,
        });
        let set = |map: &mut Value, name: &str, text: &str| {
            if !text.is_empty() {
                map[name] = json!(text);
            }
        };
        set(&mut user, "username", write.user);
        set(&mut user, "uid", write.uid);
        if !write.groups.is_empty() {
            user["groups"] = json!(write.groups);
        }
        if !write.extra.is_empty() {
            user["extra"] = json!(write.extra);
        }
        request["userInfo"] = user;
        set(&mut request, "name", self.name);
        set(&mut request, "namespace", self.namespace());
        set(&mut request, "subResource", &self.target.subresource);
        set(&mut request, "requestSubResource", &self.target.subresource);
        request
    }

    /// Returns the options of the request. Of those of writes, only `dryRun` is known here.
    fn options(&self) -> Value {
        let kind = match self.operation {
            Operation::Create => "CreateOptions",
            Operation::Update => "UpdateOptions",
            Operation::Delete => "DeleteOptions",
        };
        let mut options = match self.options {
            Value::Object(_) => self.options.clone(),
            _ => json!({}),
        };
        options["kind"] = json!(kind);
        options["apiVersion"] = json!("meta.k8s.io/v1");
        if self.write.dry_run {
            options["dryRun"] = json!(["All"]);
        }
        options
    }
}

/// Returns the resources that share the objects of the request: the other versions of its resource, and events in their
/// other group.
pub(super) fn equivalents<'a>(
    resources: &'a [std::sync::Arc<kinds::Resource>],
    subresource: &str,
) -> Vec<Resource<'a>> {
    let versions = resources
        .iter()
        .flat_map(|resource| resource.versions.iter().map(move |version| (resource, version)));
    versions
        .filter(|(_, version)| subresource.is_empty() || version.subresource(subresource).is_some())
        .map(|(resource, version)| of_version(resource, version, subresource))
        .collect()
}

/// Returns the resources with the objects of a request.
pub(super) fn sharing(state: &State, target: &Target) -> Vec<std::sync::Arc<kinds::Resource>> {
    { state.registry.all() }
        .filter(|resource| resource.table == target.resource.table)
        .cloned()
        .collect()
}
