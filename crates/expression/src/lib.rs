//! CEL expressions that users write: compiled once, evaluated for each input.
//!
//! This package is separate from `starling-core`, so that the package of the decisions does not depend on an
//! interpreter. `core` defines the variables of an expression and the meaning of its result; a module here for each use
//! (`metric`) connects the two.
//!
//! An evaluation is synchronous and cannot be interrupted. CEL has no unbounded loops, so the size of the input limits
//! the work. A caller that needs a time limit evaluates on a thread of its own.

pub mod metric;

use std::fmt;
use std::sync::Arc;

use kube_cel::KubeCelExt as _;
use kube_cel::cel::{Context, ExecutionError, Program, Value, to_value};
use serde::Serialize;

/// A compiled expression, with the functions that Kubernetes adds to CEL.
#[derive(Clone)]
pub struct Expression {
    source: String,
    program: Arc<Program>,
}

/// An expression that does not compile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SyntaxError(String);

/// Why an evaluation has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvaluationError {
    /// The result is neither true nor false; this is its type, with an article.
    #[error("returns {0}; it must return true or false")]
    NotBool(String),
    /// The expression names a variable or function that does not exist.
    #[error("there is no {0:?}")]
    Undeclared(String),
    /// The evaluation failed on this input.
    #[error("{0}")]
    Failed(String),
}

/// The variables of one evaluation.
#[derive(Debug, Default)]
pub struct Variables(Vec<(&'static str, Value)>);

impl Variables {
    /// Adds a variable.
    ///
    /// # Errors
    /// [`EvaluationError::Failed`] if CEL has no type for the value.
    pub fn with(mut self, name: &'static str, value: &impl Serialize) -> Result<Self, EvaluationError> {
        let value = to_value(value).map_err(|error| EvaluationError::Failed(error.to_string()))?;
        self.0.push((name, value));
        Ok(self)
    }
}

impl Expression {
    /// Compiles an expression.
    ///
    /// # Errors
    /// [`SyntaxError`], in one line.
    pub fn new(source: &str) -> Result<Self, SyntaxError> {
        let program = Program::compile(source).map_err(|errors| {
            let text = errors.to_string();
            SyntaxError(text.split_whitespace().collect::<Vec<_>>().join(" "))
        })?;
        Ok(Self {
            source: source.to_owned(),
            program: Arc::new(program),
        })
    }

    /// Evaluates the expression to true or false.
    ///
    /// # Errors
    /// [`EvaluationError`]
    pub fn test(&self, variables: Variables) -> Result<bool, EvaluationError> {
        let mut context = Context::default().with_all();
        for (name, value) in variables.0 {
            context.add_variable_from_value(name, value);
        }
        match self.program.execute(&context) {
            Ok(Value::Bool(result)) => Ok(result),
            Ok(other) => Err(EvaluationError::NotBool(kind(&other))),
            Err(ExecutionError::UndeclaredReference(name)) => {
                Err(EvaluationError::Undeclared(name.to_string()))
            }
            Err(other) => Err(EvaluationError::Failed(other.to_string())),
        }
    }
}

impl PartialEq for Expression {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl fmt::Debug for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Expression").field(&self.source).finish()
    }
}

/// The type of a value by its CEL name.
fn kind(value: &Value) -> String {
    match value {
        Value::Float(_) => "a double".to_owned(),
        other => format!("a {}", other.type_of()),
    }
}
