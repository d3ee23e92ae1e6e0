//! The evaluation of rules, and the texts of its errors.

use std::sync::Arc;

use starling_cel::cel::objects::OptionalValue;
use starling_cel::cel::{Context, ExecutionError, Value};
use starling_cel::{Budget, Metered, RunError};

use super::functions;

thread_local! {
    /// All functions; registering them takes longer than evaluating most rules.
    static FUNCTIONS: Context<'static> = {
        let mut context = Context::default();
        starling_cel::register(&mut context);
        functions::register(&mut context);
        context
    };
}

/// Evaluates a program for a value and its old value, within a budget.
pub(super) fn run(
    program: &Metered,
    value: &Value,
    old: Option<&Value>,
    optional: bool,
) -> Result<Value, RunError> {
    FUNCTIONS.with(|functions| {
        let mut context = functions.new_inner_scope();
        context.add_variable_from_value("self", value.clone());
        match (optional, old) {
            (false, None) => {}
            (false, Some(old)) => context.add_variable_from_value("oldSelf", old.clone()),
            (true, old) => {
                let old = old.map_or_else(OptionalValue::none, |old| OptionalValue::of(old.clone()));
                context.add_variable_from_value("oldSelf", Value::Opaque(Arc::new(old)));
            }
        }
        program.run(&context, Budget::default())
    })
}

/// Returns the text of an error, as in cel-go.
pub(crate) fn describe(error: &ExecutionError) -> String {
    match error {
        ExecutionError::NoSuchKey(key) => format!("no such key: {key}"),
        ExecutionError::IndexOutOfBounds(Value::Int(index)) => format!("index out of bounds: {index}"),
        ExecutionError::DivisionByZero(_) => "division by zero".to_owned(),
        ExecutionError::RemainderByZero(_) => "modulus by zero".to_owned(),
        ExecutionError::Overflow(..) => "integer overflow".to_owned(),
        ExecutionError::NoSuchOverload
        | ExecutionError::UnsupportedBinaryOperator(..)
        | ExecutionError::UnsupportedUnaryOperator(..)
        | ExecutionError::ValuesNotComparable(..)
        | ExecutionError::UnexpectedType { .. }
        | ExecutionError::UnsupportedTargetType { .. }
        | ExecutionError::NotSupportedAsMethod { .. }
        | ExecutionError::UnsupportedIndex(..) => "no such overload".to_owned(),
        ExecutionError::FunctionError { function, message } => of_function(function, message),
        other => other.to_string(),
    }
}

/// Returns the text of an error of a kube-cel function, as in Kubernetes.
fn of_function(function: &str, message: &str) -> String {
    let index = message
        .strip_prefix("start index ")
        .or_else(|| message.strip_prefix("end index "))
        .and_then(|rest| rest.split_once(" out of range"));
    match (function, index) {
        (_, Some((index, _))) => format!("index out of range: {index}"),
        ("quantity", None) => {
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
                .to_owned()
        }
        _ => message.to_owned(),
    }
}
