//! Running a rule: the functions it may call, and what went wrong.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use kube_cel::KubeCelExt;
use kube_cel::cel::common::ast::IdedExpr as Program;
use kube_cel::cel::extractors::This;
use kube_cel::cel::objects::{OptionalValue, ValueType};
use kube_cel::cel::{Context, ExecutionError, ResolveResult, Value};
use regex::Regex;

use crate::crd::pattern;

/// Expressions that a thread remembers; rules have few of them.
const REMEMBERED: usize = 1024;

thread_local! {
    /// All functions; registering them takes longer than most rules.
    static FUNCTIONS: Context<'static> = functions();
    static EXPRESSIONS: RefCell<HashMap<String, Option<Regex>>> = RefCell::default();
}

/// Names of types, as what `type(x)` gives.
pub(super) const TYPES: [&str; 11] = [
    "bool",
    "bytes",
    "double",
    "duration",
    "int",
    "list",
    "map",
    "null_type",
    "string",
    "timestamp",
    "uint",
];

fn functions() -> Context<'static> {
    let mut context = Context::default();
    context.register_all();
    context.add_function("matches", matches);
    context.add_function("type", type_of);
    context.add_function("dyn", same);
    for name in TYPES {
        context.add_variable_from_value(name, type_value(name));
    }
    context
}

/// A type is a text that no object has.
fn type_value(name: &str) -> Value {
    Value::String(Arc::new(format!("\u{0}{name}")))
}

fn same(This(value): This<Value>) -> ResolveResult {
    Ok(value)
}

fn type_of(This(value): This<Value>) -> ResolveResult {
    let name = match value.type_of() {
        ValueType::Bool => "bool",
        ValueType::Bytes => "bytes",
        ValueType::Float => "double",
        ValueType::Duration => "duration",
        ValueType::Int => "int",
        ValueType::List => "list",
        ValueType::Map => "map",
        ValueType::Null => "null_type",
        ValueType::String => "string",
        ValueType::Timestamp => "timestamp",
        ValueType::UInt => "uint",
        ValueType::Function | ValueType::Opaque => "opaque",
    };
    Ok(type_value(name))
}

/// `matches`, with expressions of Go.
#[expect(
    clippy::needless_pass_by_value,
    reason = "so are functions given their arguments"
)]
fn matches(This(text): This<Arc<String>>, expression: Arc<String>) -> Result<bool, ExecutionError> {
    EXPRESSIONS.with_borrow_mut(|known| {
        if known.len() >= REMEMBERED {
            known.clear();
        }
        if !known.contains_key(expression.as_str()) {
            known.insert(expression.to_string(), pattern::compile(&expression).ok());
        }
        match known.get(expression.as_str()) {
            Some(Some(regex)) => Ok(regex.is_match(&text)),
            _ => Err(ExecutionError::function_error(
                "matches",
                format!("error parsing regexp: `{expression}`"),
            )),
        }
    })
}

/// Runs a program on a value and what it was before.
pub(super) fn run(
    program: &Program,
    value: &Value,
    old: Option<&Value>,
    optional: bool,
) -> Result<Value, ExecutionError> {
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
        Value::resolve(program, &context)
    })
}

/// What went wrong, as cel-go words it.
pub(super) fn describe(error: &ExecutionError) -> String {
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
        ExecutionError::FunctionError { message, .. } => message.clone(),
        other => other.to_string(),
    }
}
