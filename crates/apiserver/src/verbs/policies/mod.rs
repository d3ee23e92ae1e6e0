//! Admission by policies: gathers what they look at, and does what their bindings want.
//!
//! The order and the texts are those of Kubernetes (`admission/plugin/policy/validating/dispatcher.go`). If several
//! policies deny a request, the first by name is reported; Kubernetes reports any of them.

mod params;
mod request;

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::admission::{
    Action, Authorizer, Binding, Denial, Facts, FailurePolicy, MatchResources, Policy, Resource, Values,
    evaluate, to_cel,
};
use crate::kinds::tables::NAMESPACES;
use crate::object::metadata;
use crate::rbac::Requested;
use crate::state::State;
use crate::status::{Cause, Status};
pub(crate) use request::Request;

/// Decides about a request. Returns the warnings for the client.
///
/// # Errors
/// The request is denied; the `Status` has the warnings, too.
pub(crate) fn admit(state: &State, request: &Request<'_>) -> Result<Vec<String>, Status> {
    let admission = state.admission();
    if admission.is_empty() || request.is_exempt() {
        return Ok(Vec::new());
    }
    let resources = request::sharing(state, request.target);
    let equivalents = request::equivalents(&resources, &request.target.subresource);
    let resource = request.resource();
    let dispatch = Dispatch {
        state,
        request,
        facts: request.facts(&resource, &equivalents),
    };
    let (mut denials, mut warnings) = (Vec::new(), Vec::new());
    for (policy, bindings) in admission.in_force() {
        dispatch.policy(policy, &bindings, &mut denials, &mut warnings)?;
    }
    match denials.into_iter().next() {
        None => Ok(warnings),
        Some(denied) => Err(refusal(request, denied).warning(warnings)),
    }
}

/// A decision against a request, and whose it is.
struct Denied {
    policy: String,
    /// The binding; empty for a policy that cannot be matched.
    binding: String,
    denial: Denial,
}

/// The decision about one request.
struct Dispatch<'a> {
    state: &'a State,
    request: &'a Request<'a>,
    facts: Facts<'a>,
}

impl<'a> Dispatch<'a> {
    fn policy(
        &self,
        policy: &Arc<Policy>,
        bindings: &[(&str, &Binding)],
        denials: &mut Vec<Denied>,
        warnings: &mut Vec<String>,
    ) -> Result<(), Status> {
        let matching = match self.matching(policy) {
            Ok(Some(matching)) => matching,
            Ok(None) => return Ok(()),
            Err(error) => {
                denials.extend(misconfigured(policy, "", &error));
                return Ok(());
            }
        };
        for (name, binding) in bindings {
            match self.binding(policy, matching, binding)? {
                Err(error) => denials.extend(misconfigured(policy, name, &error)),
                Ok(found) => {
                    for denial in found {
                        act(policy, name, binding, &denial, denials, warnings);
                    }
                }
            }
        }
        Ok(())
    }

    fn matching(&self, policy: &Policy) -> Result<Option<&'a Resource<'a>>, String> {
        if let Some(broken) = &policy.broken {
            return Err(broken.clone());
        }
        let constraints = { policy.constraints.as_ref() }
            .ok_or_else(|| "policy contained no match constraints, a required field".to_owned())?;
        self.matches(constraints)
    }

    fn matches(&self, constraints: &MatchResources) -> Result<Option<&'a Resource<'a>>, String> {
        let state = self.state;
        let namespace = || Some(state.store.get(NAMESPACES, self.facts.namespace)?.read());
        { constraints.matching(&self.facts, namespace) }.map_err(|error| error.to_string())
    }

    /// Evaluates a policy for a binding; the inner error is one of the configuration.
    fn binding(
        &self,
        policy: &Arc<Policy>,
        matching: &Resource<'_>,
        binding: &Binding,
    ) -> Result<Result<Vec<Denial>, String>, Status> {
        if let Some(resources) = &binding.match_resources {
            match self.matches(resources) {
                Ok(Some(_)) => {}
                Ok(None) => return Ok(Ok(Vec::new())),
                Err(error) => return Ok(Err(error)),
            }
        }
        let namespace = self.request.namespace();
        let (kind, reference) = (policy.param_kind.as_ref(), binding.param_ref.as_ref());
        let params = match params::collect(self.state, kind, reference, namespace) {
            Ok(params) => params,
            Err(error) => return Ok(Err(error)),
        };
        if params.is_empty() {
            return Ok(Ok(Vec::new()));
        }
        let values = self.values(matching)?;
        let of = |params: &Option<Value>| Values {
            params: params.as_ref().map_or(starling_cel::cel::Value::Null, to_cel),
            ..values.clone()
        };
        let found = { params.iter() }.flat_map(|params| evaluate(policy, of(params)));
        Ok(Ok(found.collect()))
    }

    /// Returns the values of the request, without parameters.
    fn values(&self, matching: &Resource<'_>) -> Result<Values, Status> {
        let request = self.request;
        let object = |object: Option<&Value>| {
            object.map_or(starling_cel::cel::Value::Null, |object| {
                to_cel(&request::converted(request, matching, object))
            })
        };
        let who = request.write.who();
        let authorizer = Authorizer::new(who, self.state.shared_policy());
        let requested = Requested::Resource {
            group: request.target.resource.group.to_string(),
            resource: request.target.resource.plural.to_string(),
            subresource: request.target.subresource.clone(),
            namespace: request.namespace().to_owned(),
            name: request.name.to_owned(),
        };
        Ok(Values {
            object: object(request.object),
            old_object: object(request.old),
            request: to_cel(&request.to_value(matching)),
            namespace_object: to_cel(&self.namespace_object()?),
            params: starling_cel::cel::Value::Null,
            request_resource: authorizer.of_resource(requested).into_value(),
            authorizer: authorizer.into_value(),
        })
    }

    /// Returns the namespace of the request as policies see it; `Null` for what is in none.
    fn namespace_object(&self) -> Result<Value, Status> {
        let name = self.request.namespace();
        if name.is_empty() || self.request.is_namespace() {
            return Ok(Value::Null);
        }
        let stored = self.state.store.get(NAMESPACES, name);
        let stored = stored.ok_or_else(|| Status::not_found("", NAMESPACES, name))?;
        let mut object = stored.read();
        for field in ["managedFields", "ownerReferences", "selfLink"] {
            metadata::set(&mut object, field, None);
        }
        Ok(object)
    }
}

/// Returns the decision about a request for which a policy or a binding is configured wrongly.
fn misconfigured(policy: &Policy, binding: &str, error: &str) -> Option<Denied> {
    let what = if binding.is_empty() { "policy" } else { "binding" };
    (policy.failure == FailurePolicy::Fail).then(|| Denied {
        policy: policy.name.clone(),
        binding: binding.to_owned(),
        denial: Denial {
            reason: String::new(),
            message: format!("failed to configure {what}: {error}"),
        },
    })
}

/// Does what a binding wants for a request that violates the policy.
fn act(
    policy: &Policy,
    name: &str,
    binding: &Binding,
    denial: &Denial,
    denials: &mut Vec<Denied>,
    warnings: &mut Vec<String>,
) {
    for action in &binding.validation_actions {
        match action {
            Action::Deny => denials.push(Denied {
                policy: policy.name.clone(),
                binding: name.to_owned(),
                denial: denial.clone(),
            }),
            Action::Warn => warnings.push(format!(
                "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{name}': {}",
                policy.name, denial.message
            )),
            Action::Audit => {}
        }
    }
}

/// Returns the response to a request that is denied.
fn refusal(request: &Request<'_>, denied: Denied) -> Status {
    let Denied {
        policy,
        binding,
        denial,
    } = denied;
    let with = if binding.is_empty() {
        String::new()
    } else {
        format!(" with binding '{binding}'")
    };
    let message = format!(
        "ValidatingAdmissionPolicy '{policy}'{with} denied request: {}",
        denial.message
    );
    let resource = &request.target.resource;
    let name = match (request.name, request.object) {
        ("", None) => "Unknown",
        ("", Some(object)) => metadata::text(object, "name"),
        (name, _) => name,
    };
    let mut status = Status::forbidden(&resource.group, &resource.plural, name, &message);
    (status.code, status.reason) = match &*denial.reason {
        "Forbidden" => (403, "Forbidden"),
        "RequestEntityTooLarge" => (413, "RequestEntityTooLarge"),
        _ => (422, "Invalid"),
    };
    status.details.causes.push(Cause {
        reason: "",
        field: String::new(),
        message,
    });
    status
}

/// Returns the options of a deletion as a value; empty ones are left out.
pub(super) fn options(fields: impl IntoIterator<Item = (&'static str, Option<Value>)>) -> Value {
    let fields = { fields.into_iter() }.filter_map(|(name, value)| Some((name.to_owned(), value?)));
    Value::Object(fields.collect::<Map<_, _>>())
}
