//! CEL with Kubernetes' functions, evaluated within a limit of cost.
//!
//! The interpreter of the `cel` package cannot be interrupted. A [`Metered`] program is the program of a user with
//! calls of two functions added ([`meter`]): they charge what the interpreter is about to do, or has just done, to the
//! [`Budget`] of the evaluation, and fail once the budget is used up. So an evaluation ends by itself, wherever it is:
//! no thread has to be killed. The costs follow the model of Kubernetes (`k8s.io/apiserver/pkg/cel/library/cost.go`):
//! one unit for each step, each element that is visited, and each ten bytes of text. Copies cost as well, because this
//! interpreter copies lists and maps where cel-go shares them.
//!
//! The limit of cost bounds the memory of an evaluation, too: what a call is going to allocate is charged before it
//! runs, and no value may be larger than [`MAX_VALUE`].

mod budget;
mod cost;
mod meter;
mod size;

use kube_cel::cel::common::ast::IdedExpr;
use kube_cel::cel::parser::Parser;
use kube_cel::cel::{Context, ExecutionError, Value};

pub use budget::{Budget, Limit};
pub use kube_cel::{KubeCelExt, cel};

/// The maximum size of one value in units of cost: elements of lists and maps at every depth, and each ten bytes of
/// text.
pub const MAX_VALUE: u64 = 250_000;

/// The maximum length of an expression in bytes. A longer expression is not parsed: the parser cannot be interrupted,
/// and its time grows faster than the length of the expression.
pub const MAX_LENGTH: usize = 4_096;

/// The stack of a thread that compiles and evaluates expressions, in bytes: the deepest expression that the parser
/// accepts needs a part of it, also in a build without optimisation.
pub const STACK_SIZE: usize = 16 * 1024 * 1024;

/// A program that is charged for what it does.
#[derive(Clone, Debug, PartialEq)]
pub struct Metered(IdedExpr);

/// An expression that is no program.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// The parser rejects the expression; its message, in one line.
    #[error("{0}")]
    Syntax(String),
    /// The expression is longer than [`MAX_LENGTH`].
    #[error("has {0} bytes; it must have at most {MAX_LENGTH}")]
    TooLong(usize),
}

/// Why an evaluation has no result.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The evaluation was ended at a limit.
    #[error("{0}")]
    Limit(Limit),
    /// The interpreter reports an error.
    #[error("{0}")]
    Execution(ExecutionError),
}

impl Metered {
    /// Compiles an expression.
    ///
    /// # Errors
    /// [`CompileError`]
    pub fn compile(source: &str) -> Result<Self, CompileError> {
        if source.len() > MAX_LENGTH {
            return Err(CompileError::TooLong(source.len()));
        }
        let parsed = Parser::default().parse(source).map_err(|errors| {
            let text = errors.to_string();
            CompileError::Syntax(text.split_whitespace().collect::<Vec<_>>().join(" "))
        })?;
        Ok(Self::new(&parsed))
    }

    /// Adds the meter to a parsed program, unless the program is small and makes nothing that is larger than its
    /// variables: most validation rules are, and the meter would take longer than they do.
    #[must_use]
    pub fn new(program: &IdedExpr) -> Self {
        Self(if meter::is_cheap(program) {
            program.clone()
        } else {
            meter::metered(program)
        })
    }

    /// Evaluates the program in a context that has the functions of [`register`].
    ///
    /// # Errors
    /// [`RunError::Limit`] whenever a limit was reached, even if the program ignores the error: `true || EXPENSIVE` is
    /// true for CEL, but only if the cost of the expression is within the budget.
    pub fn run(&self, context: &Context<'_>, budget: Budget) -> Result<Value, RunError> {
        self.measure(context, budget).0
    }

    /// Evaluates the program as [`Self::run`] does; returns what it has cost as well, in units. A program that is too
    /// small for a meter costs nothing.
    pub fn measure(&self, context: &Context<'_>, budget: Budget) -> (Result<Value, RunError>, u64) {
        let (result, exceeded, cost) = budget::within(budget, || Value::resolve(&self.0, context));
        let result = match exceeded {
            Some(limit) => Err(RunError::Limit(limit)),
            None => result.map_err(RunError::Execution),
        };
        (result, cost)
    }
}

/// Adds Kubernetes' functions and the functions of the meter to a context.
pub fn register(context: &mut Context<'_>) {
    context.register_all();
    meter::register(context);
}

#[cfg(test)]
mod tests;
