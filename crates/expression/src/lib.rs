//! CEL expressions that users write: compiled once, evaluated for each input.
//!
//! This package is separate from `starling-core`, so that the package of the decisions does not depend on an
//! interpreter. `core` defines the variables of an expression and the meaning of its result; a module here for each use
//! (`metric`) connects the two.
//!
//! An evaluation is synchronous. It ends by itself at the limits of `starling-cel`: cost, size of a value, time. Each
//! use evaluates on a thread of its own.

pub mod metric;
mod thread;

use serde::Serialize;
use starling_cel::cel::{Context, ExecutionError, Value, to_value};
use starling_cel::{Budget, Limit, Metered, RunError};

/// A compiled expression, with the functions that Kubernetes adds to CEL.
#[derive(Debug)]
pub struct Expression(Metered);

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
    /// The evaluation was ended at a limit of cost or size, as each evaluation would be.
    #[error("{0}")]
    Limit(String),
    /// The evaluation failed on this input, or took too long this time.
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
        let program = Metered::compile(source).map_err(|error| SyntaxError(error.to_string()))?;
        Ok(Self(program))
    }

    /// Evaluates the expression to true or false.
    ///
    /// # Errors
    /// [`EvaluationError`]
    pub fn test(&self, variables: Variables) -> Result<bool, EvaluationError> {
        let mut context = Context::default();
        starling_cel::register(&mut context);
        for (name, value) in variables.0 {
            context.add_variable_from_value(name, value);
        }
        match self.0.run(&context, Budget::default()) {
            Ok(Value::Bool(result)) => Ok(result),
            Ok(other) => Err(EvaluationError::NotBool(kind(&other))),
            Err(RunError::Execution(ExecutionError::UndeclaredReference(name))) => {
                Err(EvaluationError::Undeclared(name.to_string()))
            }
            // Not the time, which ends an evaluation on a busy machine and says nothing about the expression.
            Err(RunError::Limit(limit @ (Limit::Cost(_) | Limit::Size))) => {
                Err(EvaluationError::Limit(limit.to_string()))
            }
            Err(other) => Err(EvaluationError::Failed(other.to_string())),
        }
    }
}

/// The type of a value by its CEL name.
fn kind(value: &Value) -> String {
    match value {
        Value::Float(_) => "a double".to_owned(),
        other => format!("a {}", other.type_of()),
    }
}
