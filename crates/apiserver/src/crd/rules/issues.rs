//! Why an expression cannot be compiled, in the texts of cel-go.

use starling_cel::cel::parser::ParseErrors;
use thiserror::Error;

use super::types::Type;

/// Why an expression cannot be compiled.
#[derive(Debug, Error)]
pub(crate) enum CompileError {
    #[error(transparent)]
    Issues(#[from] Issues),
    /// The result has the wrong type.
    #[error("the expression has a result of the wrong type")]
    Result,
}

/// What is wrong within an expression.
#[derive(Debug, Error)]
pub(crate) enum Issues {
    #[error("{}", shown(.0))]
    Syntax(ParseErrors),
    #[error("{}", lines(.0))]
    Types(Vec<Issue>),
}

/// Returns syntax errors in the form of cel-go, which indents the lines below a message.
fn shown(errors: &ParseErrors) -> String {
    errors.to_string().replace("\n| ", "\n | ")
}

fn lines(issues: &[Issue]) -> String {
    let issues: Vec<_> = issues.iter().map(Issue::to_string).collect();
    issues.join("\n")
}

/// A type error at a position of an expression.
#[derive(Debug, Error)]
#[error("ERROR: <input>:{line}:{column}: {error}\n | {text}\n | {}^", ".".repeat(column - 1))]
pub(crate) struct Issue {
    pub(super) error: TypeError,
    /// The line, counted from 1.
    pub(super) line: usize,
    /// The column, counted from 1.
    pub(super) column: usize,
    /// The text of the line.
    pub(super) text: String,
}

/// A type error.
#[derive(Debug, Error)]
pub(crate) enum TypeError {
    #[error("undeclared reference to '{name}' (in container '')")]
    Undeclared { name: String },
    #[error("undefined field '{field}'")]
    UndefinedField { field: String },
    /// A field is selected in a value that has none.
    #[error("type '{ty}' does not support field selection")]
    NoFields { ty: Type },
    /// A comprehension over a value that has no items.
    #[error("expression of type '{ty}' cannot be range of a comprehension (must be list, map, or dynamic)")]
    NoRange { ty: Type },
    /// No overload of a function or operator has these types.
    #[error("found no matching overload for '{name}' applied to '{}'", signature(types, *target))]
    NoOverload {
        name: String,
        types: Vec<Type>,
        /// Whether the first type is that of the receiver.
        target: bool,
    },
    /// The argument of `matches` is not a regular expression.
    #[error("invalid matches argument")]
    InvalidPattern,
}

fn signature(types: &[Type], target: bool) -> String {
    let types: Vec<_> = types.iter().map(Type::to_string).collect();
    match types.as_slice() {
        [first, rest @ ..] if target => format!("{first}.({})", rest.join(", ")),
        types => format!("({})", types.join(", ")),
    }
}
