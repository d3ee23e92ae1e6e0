//! The evaluation of a policy for one request and one parameter.
//!
//! The order, the limits and the texts are those of Kubernetes: `admission/plugin/policy/validating/validator.go`,
//! `admission/plugin/webhook/matchconditions` and `admission/plugin/cel`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use starling_cel::cel::common::ast::{Expr, IdedExpr};
use starling_cel::cel::objects::{Key, Map, Opaque};
use starling_cel::cel::{Context, ExecutionError, FunctionContext, Value as Cel};
use starling_cel::{Budget, RunError};

use super::authorizer;
use super::expression::{Expression, REQUEST_RESOURCE, VARIABLE, VARIABLES};
use super::policy::{FailurePolicy, Policy, Validation};
use crate::crd::rules::{MAX_MESSAGE_LENGTH, describe, register_functions};
use crate::rbac::aggregate;

/// The maximum cost of one expression; Kubernetes: `PerCallLimit`.
const PER_CALL: u64 = 1_000_000;
/// The maximum cost of the validations of a policy; Kubernetes: `RuntimeCELCostBudget`.
const OF_VALIDATIONS: u64 = 10_000_000;
/// The maximum cost of the conditions of a policy; Kubernetes: `RuntimeCELCostBudgetMatchConditions`.
const OF_CONDITIONS: u64 = OF_VALIDATIONS / 4;
/// The maximum time of one expression. Its cost ends it earlier, unless the machine is busy.
const TIME: Duration = Duration::from_secs(5);

thread_local! {
    /// All functions; registering them takes longer than evaluating most expressions.
    static FUNCTIONS: Context<'static> = {
        let mut context = Context::default();
        starling_cel::register(&mut context);
        register_functions(&mut context);
        authorizer::register(&mut context);
        context.add_function(VARIABLE, variable);
        context
    };
}

/// What a policy decides about a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Denial {
    /// The reason of the response; empty for `Invalid`.
    pub(crate) reason: String,
    /// Why.
    pub(crate) message: String,
}

/// The values of the variables of a request; a copy shares them.
#[derive(Debug, Clone)]
pub(crate) struct Values {
    pub(crate) object: Cel,
    pub(crate) old_object: Cel,
    pub(crate) request: Cel,
    pub(crate) namespace_object: Cel,
    pub(crate) params: Cel,
    pub(crate) authorizer: Cel,
    pub(crate) request_resource: Cel,
}

/// The evaluation of a policy; holds the variables of the policy that were used so far.
#[derive(Debug)]
pub(super) struct Evaluation {
    policy: Arc<Policy>,
    values: Values,
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    variables: HashMap<String, Result<Cel, String>>,
    /// The cost of the variables since it was last counted.
    cost: u64,
}

/// The evaluation as a value, for the function that evaluates variables.
#[derive(Debug)]
struct Handle(Arc<Evaluation>);

impl PartialEq for Handle {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Handle {}

impl Opaque for Handle {
    fn runtime_type_name(&self) -> &str {
        "kubernetes.variables"
    }
}

/// Why an expression has no result.
#[derive(Debug)]
enum Failure {
    /// The policy has used up its budget.
    OutOfBudget,
    /// The expression fails.
    Error(String),
}

/// What an expression is part of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// The conditions, which do not see the namespace.
    Conditions,
    Validations,
}

/// Whether the conditions of a policy are met.
enum Matches {
    Yes,
    No,
    Error(String),
}

/// Converts JSON.
pub(crate) fn to_cel(value: &Value) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(bool) => Cel::Bool(*bool),
        Value::Number(number) => match number.as_i64() {
            Some(int) => Cel::Int(int),
            None => Cel::Float(number.as_f64().unwrap_or_default()),
        },
        Value::String(text) => Cel::String(Arc::new(text.clone())),
        Value::Array(items) => Cel::List(Arc::new(items.iter().map(to_cel).collect())),
        Value::Object(fields) => {
            let fields = { fields.iter() }
                .map(|(name, value)| (Key::String(Arc::new(name.clone())), to_cel(value)))
                .collect();
            Cel::Map(Map {
                map: Arc::new(fields),
            })
        }
    }
}

/// Evaluates a policy. Returns the decisions against the request, in the order of the validations.
pub(crate) fn evaluate(policy: &Arc<Policy>, values: Values) -> Vec<Denial> {
    let evaluation = Arc::new(Evaluation {
        policy: Arc::clone(policy),
        values,
        known: Mutex::default(),
    });
    match evaluation.matches() {
        Matches::Yes => evaluation.validate(),
        Matches::No => Vec::new(),
        Matches::Error(message) => evaluation.failed(message).into_iter().collect(),
    }
}

impl Evaluation {
    /// Returns the decision for what could not be evaluated.
    fn failed(&self, message: String) -> Option<Denial> {
        (self.policy.failure == FailurePolicy::Fail).then_some(Denial {
            reason: String::new(),
            message,
        })
    }

    /// Evaluates the conditions. One that is false wins against errors of others.
    fn matches(self: &Arc<Self>) -> Matches {
        let mut left = OF_CONDITIONS;
        let mut errors = Vec::new();
        let mut is_excluded = false;
        for condition in &self.policy.conditions {
            match self.run(condition, Part::Conditions, &mut left) {
                Ok(Cel::Bool(false)) => is_excluded = true,
                Ok(_) => {}
                Err(Failure::Error(error)) => errors.push(error),
                Err(Failure::OutOfBudget) => return Matches::Error(out_of_budget()),
            }
        }
        match errors.is_empty() {
            _ if is_excluded => Matches::No,
            true => Matches::Yes,
            false => Matches::Error(aggregate(errors)),
        }
    }

    fn validate(self: &Arc<Self>) -> Vec<Denial> {
        let mut left = OF_VALIDATIONS;
        let mut results = Vec::with_capacity(self.policy.validations.len());
        for validation in &self.policy.validations {
            match self.run(&validation.expression, Part::Validations, &mut left) {
                Err(Failure::OutOfBudget) => return self.failed(out_of_budget()).into_iter().collect(),
                Err(Failure::Error(error)) => results.push(Err(error)),
                Ok(value) => results.push(Ok(value)),
            }
        }
        let messages = self.messages(&mut left);
        let decided = { self.policy.validations.iter() }.zip(results).enumerate();
        decided
            .filter_map(|(index, (validation, result))| match (result, &messages) {
                (Err(error), _) => self.failed(error),
                (Ok(_), Err(error)) => self.failed(format!("failed messageExpression: {error}")),
                (Ok(Cel::Bool(true)), _) => None,
                (Ok(_), Ok(messages)) => {
                    let found = messages.get(index).and_then(Option::as_deref);
                    Some(Denial {
                        reason: validation.reason.clone(),
                        message: message(validation, found),
                    })
                }
            })
            .collect()
    }

    /// Evaluates all message expressions, as Kubernetes does, on what the validations have left of the budget. One that
    /// fails has no message; the error is that the budget is used up.
    fn messages(self: &Arc<Self>, left: &mut u64) -> Result<Vec<Option<String>>, String> {
        let mut messages = Vec::with_capacity(self.policy.validations.len());
        for validation in &self.policy.validations {
            let result = { validation.message_expression.as_ref() }
                .map(|text| self.run(text, Part::Validations, left));
            messages.push(match result {
                Some(Ok(Cel::String(text))) => Some(text.trim().to_owned()),
                Some(Err(Failure::OutOfBudget)) => return Err(out_of_budget()),
                _ => None,
            });
        }
        Ok(messages)
    }

    /// Evaluates an expression on what is left of the budget of the policy.
    fn run(self: &Arc<Self>, expression: &Expression, part: Part, left: &mut u64) -> Result<Cel, Failure> {
        let program = match &expression.program {
            Ok(program) => program,
            Err(why) => return Err(Failure::Error(format!("compilation error: {why}"))),
        };
        let (result, own) = self.measure(expression, program, part);
        let of_variables = std::mem::take(&mut self.known().cost);
        let cost = own.saturating_add(of_variables);
        *left = left.checked_sub(cost).ok_or(Failure::OutOfBudget)?;
        result.map_err(|error| {
            Failure::Error(format!(
                "expression '{}' resulted in error: {}",
                expression.source,
                text_of(&error)
            ))
        })
    }

    fn measure(
        self: &Arc<Self>,
        expression: &Expression,
        program: &starling_cel::Metered,
        part: Part,
    ) -> (Result<Cel, RunError>, u64) {
        let budget = Budget {
            cost: PER_CALL,
            time: TIME,
        };
        FUNCTIONS.with(|functions| {
            let mut context = functions.new_inner_scope();
            for name in &expression.uses {
                context.add_variable_from_value(*name, self.value(name, part));
            }
            program.measure(&context, budget)
        })
    }

    fn value(self: &Arc<Self>, name: &str, part: Part) -> Cel {
        let values = &self.values;
        match name {
            "object" => values.object.clone(),
            "oldObject" => values.old_object.clone(),
            "request" => values.request.clone(),
            "namespaceObject" if part == Part::Conditions => Cel::Null,
            "namespaceObject" => values.namespace_object.clone(),
            "params" => values.params.clone(),
            "authorizer" => values.authorizer.clone(),
            REQUEST_RESOURCE => values.request_resource.clone(),
            VARIABLES => Cel::Opaque(Arc::new(Handle(Arc::clone(self)))),
            _ => Cel::Null,
        }
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Evaluates a variable when it is first used. It can use the variables before it, so this ends.
    fn variable(self: &Arc<Self>, name: &str) -> Result<Cel, String> {
        if let Some(known) = self.known().variables.get(name) {
            return known.clone();
        }
        let result = match self.policy.variables.get(name) {
            None => Err(format!("no such key: {name}")),
            Some(expression) => match &expression.program {
                Err(why) => Err(format!("composited variable {name:?} fails to compile: {why}")),
                Ok(program) => {
                    let (result, cost) = self.measure(expression, program, Part::Validations);
                    let mut known = self.known();
                    known.cost = known.cost.saturating_add(cost);
                    result.map_err(|error| {
                        format!(
                            "composited variable {name:?} fails to evaluate: {}",
                            text_of(&error)
                        )
                    })
                }
            },
        };
        self.known().variables.insert(name.to_owned(), result.clone());
        result
    }
}

/// Evaluates a variable of the policy: `@variable('x')`.
fn variable(call: &FunctionContext<'_, '_>) -> Result<Cel, ExecutionError> {
    let of = |name: &str| IdedExpr {
        id: 0,
        expr: Expr::Ident(name.to_owned()),
    };
    let handle = call.ptx.resolve(&of(VARIABLES))?;
    let name = call.args.first().ok_or(ExecutionError::NoSuchOverload)?;
    match (&handle, call.ptx.resolve(name)?) {
        (Cel::Opaque(opaque), Cel::String(name)) => {
            let handle = opaque.downcast_ref::<Handle>();
            let handle = handle.ok_or(ExecutionError::NoSuchOverload)?;
            { handle.0.variable(&name) }.map_err(|why| ExecutionError::function_error(VARIABLE, why))
        }
        _ => Err(ExecutionError::NoSuchOverload),
    }
}

fn out_of_budget() -> String {
    "validation failed due to running out of cost budget, no further validation rules will be run".to_owned()
}

/// Returns the text of an error, as in cel-go.
fn text_of(error: &RunError) -> String {
    match error {
        // The time is a limit of this server alone.
        RunError::Limit(_) => "operation cancelled: actual cost limit exceeded".to_owned(),
        RunError::Execution(error) => describe(error),
    }
}

/// Returns the message for a request that violates a policy: the result of the message expression if it is one line,
/// the message of the policy, or the expression.
fn message(validation: &Validation, found: Option<&str>) -> String {
    let usable = |text: &&str| !text.is_empty() && text.len() <= MAX_MESSAGE_LENGTH && !text.contains('\n');
    match found.filter(usable) {
        Some(text) => text.to_owned(),
        None if validation.message.is_empty() => {
            format!("failed expression: {}", validation.expression.source.trim())
        }
        None => validation.message.clone(),
    }
}

#[cfg(test)]
mod tests;
