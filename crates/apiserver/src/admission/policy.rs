//! Policies and bindings as they are stored, and the expressions of a policy.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::expression::{Environment, Expression, Wanted};
use super::matching::MatchResources;
use crate::cause::Cause;

/// The reasons that a validation may have.
const REASONS: [&str; 3] = ["Forbidden", "Invalid", "RequestEntityTooLarge"];

/// What happens to a request if a policy cannot be evaluated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub(crate) enum FailurePolicy {
    /// The policy is skipped.
    Ignore,
    /// The request is denied.
    #[default]
    #[serde(other)]
    Fail,
}

/// What happens to a request that violates a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(crate) enum Action {
    /// The client is warned.
    Warn,
    /// It is recorded; this server has no audit log.
    Audit,
    /// It is denied.
    #[serde(other)]
    Deny,
}

/// The kind of the parameters of a policy.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ParamKind {
    pub(crate) api_version: String,
    pub(crate) kind: String,
}

/// The objects that a binding names: one, or those that a selector matches.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ParamRef {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) selector: Option<Value>,
    pub(crate) parameter_not_found_action: String,
}

/// A binding: for which requests a policy is evaluated, and with which parameters.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Binding {
    /// The name of the policy.
    pub(crate) policy_name: String,
    /// The parameters; `None` evaluates the policy once without them.
    pub(crate) param_ref: Option<ParamRef>,
    /// Which requests; `None` for all that the policy matches.
    pub(crate) match_resources: Option<MatchResources>,
    /// What happens to a request that violates the policy.
    pub(crate) validation_actions: Vec<Action>,
}

/// A policy with compiled expressions.
#[derive(Debug)]
pub(crate) struct Policy {
    pub(crate) name: String,
    /// Why the policy cannot be read. It was checked when it was written, so there is no such policy.
    pub(crate) broken: Option<String>,
    pub(crate) failure: FailurePolicy,
    pub(crate) param_kind: Option<ParamKind>,
    /// Which requests it is evaluated for; `None` is a configuration error.
    pub(crate) constraints: Option<MatchResources>,
    /// The variables by name.
    pub(super) variables: BTreeMap<String, Expression>,
    pub(super) conditions: Vec<Expression>,
    pub(super) validations: Vec<Validation>,
}

/// One expression that must be true.
#[derive(Debug)]
pub(super) struct Validation {
    pub(super) expression: Expression,
    /// The text for a request that violates the expression; may be empty.
    pub(super) message: String,
    pub(super) message_expression: Option<Expression>,
    /// The reason of the response; empty for the default, `Invalid`.
    pub(super) reason: String,
}

/// The `spec` of a policy, as far as it is evaluated.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    failure_policy: Option<FailurePolicy>,
    param_kind: Option<ParamKind>,
    match_constraints: Option<MatchResources>,
    variables: Vec<Named>,
    match_conditions: Vec<Named>,
    validations: Vec<Rule>,
    audit_annotations: Vec<Annotation>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Named {
    name: String,
    expression: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Rule {
    expression: String,
    message: String,
    message_expression: String,
    reason: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Annotation {
    value_expression: String,
}

impl Spec {
    fn environment(&self) -> Environment {
        Environment::new(self.param_kind.is_some())
    }
}

impl Binding {
    /// Reads a binding.
    pub(super) fn of(object: &Value) -> Self {
        Self::deserialize(&object["spec"]).unwrap_or_default()
    }
}

impl Policy {
    /// Reads a policy and compiles its expressions. One that does not compile fails whenever it is evaluated.
    pub(super) fn of(name: &str, object: &Value) -> Self {
        let (spec, broken) = match Spec::deserialize(&object["spec"]) {
            Ok(spec) => (spec, None),
            Err(error) => (Spec::default(), Some(error.to_string())),
        };
        let of_conditions = spec.environment();
        let mut environment = of_conditions.clone();
        let mut variables = BTreeMap::new();
        for variable in &spec.variables {
            let expression = Expression::of(&variable.expression, &environment, Wanted::Anything);
            environment.declare(&variable.name, expression.ty.clone());
            variables.insert(variable.name.clone(), expression);
        }
        let of_bool = |text: &str| Expression::of(text, &environment, Wanted::Bool);
        let for_messages = environment.without_authorizer();
        let of_text = |text: &str| Expression::of(text, &for_messages, Wanted::String);
        Self {
            name: name.to_owned(),
            broken,
            failure: spec.failure_policy.unwrap_or_default(),
            conditions: { spec.match_conditions.iter() }
                .map(|condition| Expression::of(&condition.expression, &of_conditions, Wanted::Bool))
                .collect(),
            validations: { spec.validations.iter() }
                .map(|rule| Validation {
                    expression: of_bool(&rule.expression),
                    message: rule.message.trim().to_owned(),
                    message_expression: (!rule.message_expression.trim().is_empty())
                        .then(|| of_text(&rule.message_expression)),
                    reason: rule.reason.clone().unwrap_or_default(),
                })
                .collect(),
            variables,
            param_kind: spec.param_kind,
            constraints: spec.match_constraints,
        }
    }
}

/// Returns which expressions of a policy do not compile. Empty ones are not looked at.
pub(crate) fn check(object: &Value) -> Vec<Cause> {
    let spec = match Spec::deserialize(&object["spec"]) {
        Ok(spec) => spec,
        Err(error) => return vec![Cause::internal("spec", &error.to_string())],
    };
    // Conditions are evaluated before the variables.
    let of_conditions = spec.environment();
    let mut environment = of_conditions.clone();
    let mut causes = Vec::new();
    for (index, variable) in spec.variables.iter().enumerate() {
        let path = format!("spec.variables[{index}].expression");
        let compiled = checked(
            &path,
            &variable.expression,
            &environment,
            Wanted::Anything,
            &mut causes,
        );
        environment.declare(&variable.name, compiled.and_then(|compiled| compiled.ty));
    }
    for (index, condition) in spec.match_conditions.iter().enumerate() {
        let path = format!("spec.matchConditions[{index}].expression");
        checked(
            &path,
            &condition.expression,
            &of_conditions,
            Wanted::Bool,
            &mut causes,
        );
    }
    let for_messages = environment.without_authorizer();
    for (index, rule) in spec.validations.iter().enumerate() {
        let path = format!("spec.validations[{index}]");
        let expression = format!("{path}.expression");
        checked(
            &expression,
            &rule.expression,
            &environment,
            Wanted::Bool,
            &mut causes,
        );
        let message = format!("{path}.messageExpression");
        checked(
            &message,
            &rule.message_expression,
            &for_messages,
            Wanted::String,
            &mut causes,
        );
        let reason = rule.reason.as_deref().unwrap_or(REASONS[0]);
        if !REASONS.contains(&reason) {
            causes.push(Cause::not_supported_text(
                format!("{path}.reason"),
                reason,
                &REASONS,
            ));
        }
    }
    for (index, annotation) in spec.audit_annotations.iter().enumerate() {
        let path = format!("spec.auditAnnotations[{index}].valueExpression");
        checked(
            &path,
            &annotation.value_expression,
            &environment,
            Wanted::TextOrNull,
            &mut causes,
        );
    }
    causes
}

fn checked(
    path: &str,
    source: &str,
    environment: &Environment,
    wanted: Wanted,
    causes: &mut Vec<Cause>,
) -> Option<Expression> {
    if source.trim().is_empty() {
        return None;
    }
    let expression = Expression::of(source, environment, wanted);
    if let Err(why) = &expression.program {
        causes.push(Cause::invalid(path, &Value::from(source), why));
    }
    Some(expression)
}
