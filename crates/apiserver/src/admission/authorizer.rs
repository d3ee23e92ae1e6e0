//! The variable `authorizer`: whether the user of the request may do something else.
//!
//! It is asked as in Kubernetes (`k8s.io/apiserver/pkg/cel/library/authz.go`). RBAC does not look at selectors, so
//! `fieldSelector` and `labelSelector` change nothing.

#![expect(
    clippy::needless_pass_by_value,
    reason = "the interpreter passes arguments by value"
)]

use std::sync::Arc;

use starling_cel::cel::extractors::This;
use starling_cel::cel::objects::Opaque;
use starling_cel::cel::{Context, ExecutionError, ResolveResult, Value};

use crate::object::names;
use crate::rbac::{Attributes, Decision, Policy, Requested, Who};

/// A value of the library: the authorizer, a question in the making, or a decision.
#[derive(Debug, Clone)]
pub(crate) struct Authorizer {
    user: Arc<User>,
    /// The roles and bindings; `None` if every user may do everything.
    policy: Option<Arc<Policy>>,
    form: Form,
}

#[derive(Debug, PartialEq, Eq)]
struct User {
    name: String,
    groups: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Form {
    Anything,
    Path(String),
    Group(String),
    Resource(Requested),
    Decision(Decision),
}

impl PartialEq for Authorizer {
    fn eq(&self, other: &Self) -> bool {
        self.user == other.user && self.form == other.form
    }
}

impl Eq for Authorizer {}

impl Opaque for Authorizer {
    fn runtime_type_name(&self) -> &str {
        "kubernetes.authorization.Authorizer"
    }
}

impl Authorizer {
    /// Returns the authorizer for a user.
    pub(crate) fn new(who: Who<'_>, policy: Option<Arc<Policy>>) -> Self {
        Self {
            user: Arc::new(User {
                name: who.name.to_owned(),
                groups: who.groups.to_vec(),
            }),
            policy,
            form: Form::Anything,
        }
    }

    /// Returns the question for a resource: `authorizer.requestResource` is that for the resource of the request.
    pub(crate) fn of_resource(&self, requested: Requested) -> Self {
        self.with(Form::Resource(requested))
    }

    /// Returns the value for the interpreter.
    pub(crate) fn into_value(self) -> Value {
        Value::Opaque(Arc::new(self))
    }

    fn with(&self, form: Form) -> Self {
        Self { form, ..self.clone() }
    }

    fn check(&self, verb: &str) -> Result<Decision, ExecutionError> {
        let requested = match &self.form {
            Form::Path(path) => Requested::Path(path.clone()),
            Form::Resource(requested) => requested.clone(),
            _ => return Err(ExecutionError::NoSuchOverload),
        };
        let attributes = Attributes {
            verb: verb.to_owned(),
            requested,
        };
        let who = Who {
            name: &self.user.name,
            groups: &self.user.groups,
        };
        Ok(match &self.policy {
            Some(policy) => policy.authorize(who, &attributes),
            None => Decision {
                allowed: true,
                reason: String::new(),
            },
        })
    }

    fn of_account(&self, namespace: &str, name: &str) -> Result<Self, ExecutionError> {
        let Form::Anything = self.form else {
            return Err(ExecutionError::NoSuchOverload);
        };
        let invalid = |what: &str| {
            let why = format!("Invalid service account {what}");
            Err(ExecutionError::function_error("serviceAccount", why))
        };
        if !names::dns_subdomain(name).is_empty() {
            return invalid("name");
        }
        if !names::dns_label(namespace).is_empty() {
            return invalid("namespace");
        }
        Ok(Self {
            user: Arc::new(User {
                name: format!("system:serviceaccount:{namespace}:{name}"),
                groups: vec![
                    "system:serviceaccounts".to_owned(),
                    format!("system:serviceaccounts:{namespace}"),
                ],
            }),
            policy: self.policy.clone(),
            form: Form::Anything,
        })
    }

    /// Returns the question with one of its texts replaced.
    fn with_text(&self, part: Part, wanted: &str) -> Result<Self, ExecutionError> {
        let Form::Resource(mut requested) = self.form.clone() else {
            return Err(ExecutionError::NoSuchOverload);
        };
        if let Requested::Resource {
            subresource,
            namespace,
            name,
            ..
        } = &mut requested
        {
            match part {
                Part::Subresource => wanted.clone_into(subresource),
                Part::Namespace => wanted.clone_into(namespace),
                Part::Name => wanted.clone_into(name),
                Part::Selector => {}
            }
        }
        Ok(self.with(Form::Resource(requested)))
    }
}

#[derive(Debug, Clone, Copy)]
enum Part {
    Subresource,
    Namespace,
    Name,
    Selector,
}

/// The functions that set a part of a question.
const PARTS: [(&str, Part); 5] = [
    ("subresource", Part::Subresource),
    ("namespace", Part::Namespace),
    ("name", Part::Name),
    ("fieldSelector", Part::Selector),
    ("labelSelector", Part::Selector),
];

fn authorizer(value: &Value) -> Result<&Authorizer, ExecutionError> {
    match value {
        Value::Opaque(opaque) => opaque.downcast_ref::<Authorizer>(),
        _ => None,
    }
    .ok_or(ExecutionError::NoSuchOverload)
}

fn decision(value: &Value) -> Result<&Decision, ExecutionError> {
    match &authorizer(value)?.form {
        Form::Decision(decision) => Ok(decision),
        _ => Err(ExecutionError::NoSuchOverload),
    }
}

/// Registers the functions of the library.
pub(super) fn register(context: &mut Context<'_>) {
    context.add_function("path", path);
    context.add_function("group", group);
    context.add_function("serviceAccount", service_account);
    context.add_function("resource", resource);
    for (name, part) in PARTS {
        context.add_function(
            name,
            move |This(this): This<Value>, text: Arc<String>| -> ResolveResult {
                Ok(authorizer(&this)?.with_text(part, &text)?.into_value())
            },
        );
    }
    context.add_function("check", check);
    context.add_function("allowed", |This(this): This<Value>| -> ResolveResult {
        Ok(Value::Bool(decision(&this)?.allowed))
    });
    context.add_function("reason", |This(this): This<Value>| -> ResolveResult {
        Ok(Value::String(Arc::new(decision(&this)?.reason.clone())))
    });
    // The authorizer of this server has no errors: what it cannot read is a reason.
    context.add_function("errored", |This(this): This<Value>| -> ResolveResult {
        decision(&this).map(|_| Value::Bool(false))
    });
    context.add_function("error", |This(this): This<Value>| -> ResolveResult {
        decision(&this).map(|_| Value::String(Arc::default()))
    });
}

fn path(This(this): This<Value>, path: Arc<String>) -> ResolveResult {
    let this = authorizer(&this)?;
    match this.form {
        Form::Anything if path.is_empty() => {
            Err(ExecutionError::function_error("path", "path must not be empty"))
        }
        Form::Anything => Ok(this.with(Form::Path(path.to_string())).into_value()),
        _ => Err(ExecutionError::NoSuchOverload),
    }
}

fn group(This(this): This<Value>, group: Arc<String>) -> ResolveResult {
    let this = authorizer(&this)?;
    match this.form {
        Form::Anything => Ok(this.with(Form::Group(group.to_string())).into_value()),
        _ => Err(ExecutionError::NoSuchOverload),
    }
}

fn service_account(This(this): This<Value>, namespace: Arc<String>, name: Arc<String>) -> ResolveResult {
    Ok(authorizer(&this)?.of_account(&namespace, &name)?.into_value())
}

fn resource(This(this): This<Value>, resource: Arc<String>) -> ResolveResult {
    let this = authorizer(&this)?;
    let Form::Group(group) = &this.form else {
        return Err(ExecutionError::NoSuchOverload);
    };
    let requested = Requested::Resource {
        group: group.clone(),
        resource: resource.to_string(),
        subresource: String::new(),
        namespace: String::new(),
        name: String::new(),
    };
    Ok(this.of_resource(requested).into_value())
}

fn check(This(this): This<Value>, verb: Arc<String>) -> ResolveResult {
    let this = authorizer(&this)?;
    Ok(this.with(Form::Decision(this.check(&verb)?)).into_value())
}
