//! The original functions of kube-cel.

use starling_cel::KubeCelExt;
use starling_cel::cel::parser::Parser;
use starling_cel::cel::{Context, ExecutionError, ResolveResult, Value};

thread_local! {
    /// The functions of kube-cel without replacements.
    static LIBRARY: Context<'static> = Context::default().with_all();
}

/// Evaluates `string` for a value of kube-cel's own types, such as an IP address.
pub(super) fn text_of_opaque(value: Value) -> ResolveResult {
    let call = Parser::new()
        .parse("string(x)")
        .map_err(|errors| ExecutionError::function_error("string", errors))?;
    LIBRARY.with(|library| {
        let mut context = library.new_inner_scope();
        context.add_variable_from_value("x", value);
        Value::resolve(&call, &context)
    })
}
