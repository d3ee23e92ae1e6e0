//! Validation rules, `x-kubernetes-validations`, in CEL.
//!
//! kube-cel provides the language and the functions of Kubernetes. This module decides what a rule sees, when it is
//! evaluated and what its failure reports, as the API server's `schema/cel` does (KEP-2876). A rule that uses a
//! feature the runtime lacks (`cel.bind`, `sortBy`, comprehensions with two variables) fails: an object never passes
//! because a rule could not be evaluated.

mod checker;
mod functions;
mod issues;
mod library;
mod names;
mod path;
mod runtime;
mod types;
mod values;

use std::collections::BTreeMap;

use serde_json::Value;
use starling_cel::cel::Value as Cel;
use starling_cel::{Metered, RunError};
use thiserror::Error;

use super::Verdict;
use super::correlate::{Correlation, same_key};
use super::lists::{child, key};
use super::schema::{Rule, Schema};
use crate::cause::Cause;
pub(crate) use checker::compile_in;
pub(crate) use functions::register as register_functions;
use issues::CompileError;
pub(crate) use issues::Issues;
pub(super) use path::{FieldPathError, field_path};
pub(crate) use runtime::describe;
pub(crate) use types::Type;

/// The maximum length of the result of a `messageExpression`, in bytes.
pub(crate) const MAX_MESSAGE_LENGTH: usize = 5 * 1024;

/// The rules of a schema node and of its children.
#[derive(Debug, Default)]
pub(super) struct Rules {
    here: Vec<CompiledRule>,
    items: Option<Box<Rules>>,
    properties: BTreeMap<String, Rules>,
    additional: Option<Box<Rules>>,
    all_of: Vec<Rules>,
    /// Whether the node is a resource with metadata.
    of_resource: bool,
}

/// A compiled rule.
#[derive(Debug)]
pub(super) struct CompiledRule {
    rule: Rule,
    pub(super) program: Result<Metered, RuleError>,
    /// The message expression, if there is one; it is not compiled for a rule that is invalid.
    pub(super) message: Result<Option<Metered>, MessageError>,
    pub(super) uses_old: bool,
    field_path: String,
}

/// Why a rule is invalid.
#[derive(Debug, Error)]
pub(super) enum RuleError {
    #[error("compilation failed: {0}")]
    Issues(Issues),
    #[error("cel expression must evaluate to a bool")]
    NotABool,
}

/// Why a message expression is invalid.
#[derive(Debug, Error)]
pub(super) enum MessageError {
    #[error("messageExpression compilation failed: {0}")]
    Issues(Issues),
    #[error("messageExpression must evaluate to a string")]
    NotAString,
}

impl From<CompileError> for RuleError {
    fn from(error: CompileError) -> Self {
        match error {
            CompileError::Issues(issues) => Self::Issues(issues),
            CompileError::Result => Self::NotABool,
        }
    }
}

impl From<CompileError> for MessageError {
    fn from(error: CompileError) -> Self {
        match error {
            CompileError::Issues(issues) => Self::Issues(issues),
            CompileError::Result => Self::NotAString,
        }
    }
}

/// The change of a value, or of its nearest parent that has an old value.
#[derive(Clone, Copy, Default)]
pub(super) struct Change<'a> {
    pub(super) here: Option<Correlation<'a>>,
    above: Option<Correlation<'a>>,
}

impl<'a> Change<'a> {
    pub(super) fn of(correlation: Option<Correlation<'a>>) -> Self {
        Self {
            here: correlation,
            above: None,
        }
    }

    /// Returns whether nothing changed, so that violations are tolerated.
    fn is_none(self) -> bool {
        self.here.or(self.above).is_some_and(Correlation::is_unchanged)
    }

    fn field(self, name: &str) -> Self {
        match self.here {
            None => self,
            // The old values of these fields in the stored version are not visible.
            Some(_) if self.above.is_none() && matches!(name, "apiVersion" | "kind") => Self::default(),
            Some(here) => Self {
                here: here.field(name),
                above: Some(here),
            },
        }
    }

    fn item(self, index: usize) -> Self {
        match self.here {
            None => self,
            Some(here) => Self {
                here: here.item(index),
                above: Some(here),
            },
        }
    }
}

/// Compiles the rules of one schema node.
pub(super) fn compile_here(rules: &[Rule], schema: &Schema, of_resource: bool) -> Vec<CompiledRule> {
    let ty = types::of_schema(schema, of_resource);
    rules
        .iter()
        .map(|rule| compile_rule(rule, schema, ty.as_ref()))
        .collect()
}

fn compile_rule(rule: &Rule, schema: &Schema, ty: Option<&types::Type>) -> CompiledRule {
    let optional = rule.optional_old_self == Some(true);
    let program = checker::compile(&rule.rule, ty, optional, &types::Type::Bool).map_err(RuleError::from);
    let message = if rule.message_expression.is_empty() || program.is_err() {
        Ok(None)
    } else {
        checker::compile(&rule.message_expression, ty, optional, &types::Type::String)
            .map(|program| Some(Metered::new(&program)))
            .map_err(MessageError::from)
    };
    CompiledRule {
        uses_old: program
            .as_ref()
            .is_ok_and(|program| program.references().has_variable("oldSelf")),
        field_path: field_path(&rule.field_path, schema)
            .map(|(path, _)| path)
            .unwrap_or_default(),
        rule: rule.clone(),
        program: program.map(|program| Metered::new(&program)),
        message,
    }
}

impl Rules {
    /// Compiles the rules of a schema; `None` if it has none.
    pub(super) fn compile(schema: &Schema) -> Option<Self> {
        schema
            .has_rules()
            .then(|| Self::compile_node(schema, schema, true))?
    }

    /// Compiles a node: `values` constrains the value and `schema` defines its structure; they differ within `allOf`.
    fn compile_node(values: &Schema, schema: &Schema, of_resource: bool) -> Option<Self> {
        let below = |values: &Schema, schema: &Schema| Self::compile_node(values, schema, schema.embedded);
        let pair = |values: Option<&Schema>, schema: Option<&Schema>| {
            values
                .zip(schema)
                .and_then(|(values, schema)| below(values, schema))
                .map(Box::new)
        };
        let rules = Self {
            here: compile_here(&values.rules, schema, of_resource),
            items: pair(values.items.as_deref(), schema.items.as_deref()),
            properties: values
                .properties
                .iter()
                .filter_map(|(name, values)| {
                    Some((name.clone(), below(values, schema.properties.get(name)?)?))
                })
                .collect(),
            additional: pair(values.additional_schema(), schema.additional_schema()),
            all_of: values
                .all_of
                .iter()
                .filter_map(|part| Self::compile_node(part, schema, of_resource))
                .collect(),
            of_resource,
        };
        let empty = rules.here.is_empty()
            && rules.items.is_none()
            && rules.properties.is_empty()
            && rules.additional.is_none()
            && rules.all_of.is_empty();
        (!empty).then_some(rules)
    }

    /// Returns the rules that a value violates.
    pub(super) fn check(
        &self,
        schema: &Schema,
        value: &Value,
        old: Option<&Value>,
        change: Change<'_>,
        path: &str,
    ) -> Verdict {
        let mut verdict = Verdict::default();
        self.walk(schema, value, old, change, path, &mut verdict);
        verdict
    }

    fn walk(
        &self,
        schema: &Schema,
        value: &Value,
        old: Option<&Value>,
        change: Change<'_>,
        path: &str,
        verdict: &mut Verdict,
    ) {
        if value.is_null() {
            return;
        }
        let old = old.filter(|old| !old.is_null());
        if !self.here.is_empty() {
            self.check_here(schema, value, old, change, path, verdict);
        }
        for part in &self.all_of {
            // Constraints within `allOf` do not tolerate violations of the value itself.
            let change = Change { here: None, ..change };
            part.walk(schema, value, old, change, path, verdict);
        }
        match value {
            Value::Array(items) => self.walk_items(schema, items, old, change, path, verdict),
            Value::Object(fields) => {
                let old = old.and_then(Value::as_object);
                for (name, value) in fields {
                    let old = old.and_then(|old| old.get(name));
                    if let (Some(rules), Some(schema)) = (&self.additional, schema.additional_schema()) {
                        rules.walk(schema, value, old, change.field(name), &key(path, name), verdict);
                    }
                    if let (Some(rules), Some(schema)) =
                        (self.properties.get(name), schema.properties.get(name))
                    {
                        rules.walk(
                            schema,
                            value,
                            old,
                            change.field(name),
                            &child(path, name),
                            verdict,
                        );
                    }
                }
            }
            _ => {}
        }
    }

    fn walk_items(
        &self,
        schema: &Schema,
        items: &[Value],
        old: Option<&Value>,
        change: Change<'_>,
        path: &str,
        verdict: &mut Verdict,
    ) {
        let (Some(rules), Some(below)) = (&self.items, schema.items.as_deref()) else {
            return;
        };
        let old = old.and_then(Value::as_array);
        for (index, item) in items.iter().enumerate() {
            let old = old.and_then(|old| same_key(schema, old, item));
            let path = format!("{path}[{index}]");
            rules.walk(below, item, old, change.item(index), &path, verdict);
        }
    }

    fn check_here(
        &self,
        schema: &Schema,
        value: &Value,
        old: Option<&Value>,
        change: Change<'_>,
        path: &str,
        verdict: &mut Verdict,
    ) {
        let place = if path.is_empty() { "<nil>" } else { path };
        let activation = Activation {
            value: values::to_cel(value, schema, self.of_resource),
            old: old
                .filter(|_| self.here.iter().any(|rule| rule.uses_old))
                .map(|old| values::to_cel(old, schema, self.of_resource)),
        };
        for rule in &self.here {
            let optional = rule.rule.optional_old_self == Some(true);
            if rule.rule.rule.trim().is_empty() || rule.uses_old && old.is_none() && !optional {
                continue;
            }
            let program = match &rule.program {
                Ok(program) => program,
                Err(error) => {
                    let why = format!("rule compile error: {error}");
                    let cause = Cause::invalid(place, &Value::from(schema.ty.as_str()), &why);
                    verdict.causes.push(cause);
                    continue;
                }
            };
            match activation.at(program, optional && rule.uses_old) {
                Ok(Cel::Bool(true)) => {}
                Ok(_) => {
                    let cause = rule.broken(&activation, schema, value, path);
                    if !rule.uses_old && change.is_none() {
                        verdict.warnings.push(cause.to_string());
                    } else {
                        verdict.causes.push(cause);
                    }
                }
                Err(error) => {
                    let why = failure(&error, &rule.rule);
                    let cause = Cause::invalid(place, &Value::from(schema.ty.as_str()), &why);
                    verdict.causes.push(cause);
                }
            }
        }
    }
}

/// The variables of an evaluation.
struct Activation {
    value: Cel,
    old: Option<Cel>,
}

impl Activation {
    fn at(&self, program: &Metered, optional: bool) -> Result<Cel, RunError> {
        runtime::run(program, &self.value, self.old.as_ref(), optional)
    }
}

/// Returns the message for a rule that cannot be evaluated.
fn failure(error: &RunError, rule: &Rule) -> String {
    let name = if rule.message.is_empty() {
        rule.rule.trim()
    } else {
        rule.message.trim()
    };
    let error = match error {
        // The API server's text; its limit is a cost as well.
        RunError::Limit(_) => {
            return format!(
                "'operation cancelled: actual cost limit exceeded': no further validation rules will be run due to \
                 call cost exceeds limit for rule: {name}"
            );
        }
        RunError::Execution(error) => error,
    };
    match runtime::describe(error) {
        text if text.starts_with("no such overload") => format!(
            "'{text}': call arguments did not match a supported operator, function or macro signature for rule: {name}"
        ),
        text => format!("{text} evaluating rule: {name}"),
    }
}

impl CompiledRule {
    fn broken(&self, activation: &Activation, schema: &Schema, value: &Value, path: &str) -> Cause {
        let detail = self.message_of(activation).unwrap_or_else(|| {
            if self.rule.message.is_empty() {
                format!("failed rule: {}", self.rule.rule.trim())
            } else {
                self.rule.message.trim().to_owned()
            }
        });
        let place = match (path, self.field_path.as_str()) {
            ("", "") => "<nil>".to_owned(),
            (path, "") => path.to_owned(),
            (path, below) => child(path, below),
        };
        let unshown = matches!(schema.ty.as_str(), "object" | "array");
        match (self.rule.reason.as_deref(), unshown) {
            (Some("FieldValueForbidden"), _) => Cause::forbidden(place, &detail),
            (Some("FieldValueRequired"), _) => Cause::required(place, &detail),
            (Some("FieldValueDuplicate"), true) => Cause::duplicate_unshown(place),
            (Some("FieldValueDuplicate"), false) => Cause::duplicate(place, value),
            (_, true) => Cause::invalid_unshown(place, &detail),
            (_, false) => Cause::invalid(place, value, &detail),
        }
    }

    /// Evaluates the message expression; `None` unless the result is one line of text.
    fn message_of(&self, activation: &Activation) -> Option<String> {
        match activation.at(self.message.as_ref().ok()?.as_ref()?, false) {
            Ok(Cel::String(text)) => {
                let text = text.trim();
                let usable = !text.is_empty() && text.len() <= MAX_MESSAGE_LENGTH && !text.contains('\n');
                usable.then(|| text.to_owned())
            }
            _ => None,
        }
    }
}
