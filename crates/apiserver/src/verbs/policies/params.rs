//! The parameters of a policy: the objects that a binding names.

use serde_json::Value;

use crate::admission::{ParamKind, ParamRef};
use crate::kinds::{Resource, read_as};
use crate::object::head;
use crate::object::selector::selects;
use crate::state::State;
use crate::store::{Range, Stored};

/// Returns the parameters for which a policy is evaluated, `None` for none. The error is that of Kubernetes
/// (`CollectParams`).
pub(super) fn collect(
    state: &State,
    kind: Option<&ParamKind>,
    reference: Option<&ParamRef>,
    namespace: &str,
) -> Result<Vec<Option<Value>>, String> {
    let (Some(kind), Some(reference)) = (kind, reference) else {
        return Ok(vec![None]);
    };
    let (group, version) = kind
        .api_version
        .split_once('/')
        .unwrap_or(("", &kind.api_version));
    let resource = state.registry.of_kind(group, &kind.kind);
    let served = resource.and_then(|resource| Some((resource.version(version).cloned()?, resource)));
    let Some((version, resource)) = served else {
        return Err(format!(
            "paramKind kind `&ParamKind{{APIVersion:{},Kind:{},}}` not known",
            kind.api_version, kind.kind
        ));
    };
    let namespace = namespace_of(&resource, reference, namespace)?;
    let table = &resource.table;
    let found: Vec<&Stored> = match &reference.selector {
        None => { state.store.get(table, &head::key(namespace, &reference.name)) }
            .map(AsRef::as_ref)
            .into_iter()
            .collect(),
        Some(selector) => {
            let mut found = Vec::new();
            for stored in state.store.list(table, Range::default()) {
                let is_there = !resource.namespaced || *stored.head.namespace == *namespace;
                if is_there
                    && selects(selector, |name| stored.head.label(name)).map_err(|error| error.to_string())?
                {
                    found.push(stored.as_ref());
                }
            }
            found
        }
    };
    if found.is_empty() && reference.parameter_not_found_action == "Deny" {
        return Err("no params found for policy binding with `Deny` parameterNotFoundAction".to_owned());
    }
    let read = |stored: &Stored| Some(read_as(&resource, &version, stored));
    Ok(found.into_iter().map(read).collect())
}

/// Returns the namespace of the parameters: that of the reference, or that of the request.
fn namespace_of<'a>(
    resource: &Resource,
    reference: &'a ParamRef,
    namespace: &'a str,
) -> Result<&'a str, String> {
    match (resource.namespaced, &*reference.namespace, namespace) {
        (true, "", "") => Err(
            "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources"
                .to_owned(),
        ),
        (true, "", of_request) => Ok(of_request),
        (true, given, _) => Ok(given),
        (false, "", _) => Ok(""),
        (false, ..) => {
            Err("paramRef.namespace must not be provided for a cluster-scoped `paramKind`".to_owned())
        }
    }
}
