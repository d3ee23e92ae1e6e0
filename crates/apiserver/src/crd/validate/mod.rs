//! The validation of values by a schema, with the texts of the API server.
//!
//! The checks, the texts and the choice of alternatives that `anyOf` and `oneOf` report are those of kube-openapi's
//! `validate` (it reports the alternative with the most matches). An update tolerates violations in unchanged values
//! (KEP-4008).

mod format;
mod number;

use serde_json::{Map, Value};

use super::correlate::Correlation;
use super::schema::{Additional, Schema};
use crate::cause::Cause;
use crate::value;

/// The result of validating a value.
#[derive(Default)]
struct Outcome {
    problems: Vec<Problem>,
    /// The number of passed checks, counted as the library does.
    matches: usize,
}

/// An error.
struct Problem {
    cause: Cause,
    /// The text of the library; errors with the same text are reported once.
    text: String,
}

/// Returns what is wrong with a value; `at` is the prefix of the paths.
pub(super) fn validate(
    value: &Value,
    schema: &Schema,
    correlation: Option<Correlation<'_>>,
    at: &str,
) -> Vec<Cause> {
    let outcome = check(value, schema, "", correlation);
    outcome
        .problems
        .into_iter()
        .map(|problem| prefixed(problem.cause, at))
        .collect()
}

/// Prefixes the path of a cause.
fn prefixed(mut cause: Cause, at: &str) -> Cause {
    let below = cause.field.trim_start_matches('.');
    cause.field = match (at, below) {
        ("", "") => "<nil>".to_owned(),
        ("", below) => below.to_owned(),
        (at, "") => at.to_owned(),
        (at, below) => format!("{at}.{below}"),
    };
    cause
}

impl Outcome {
    fn passed() -> Self {
        Self {
            problems: Vec::new(),
            matches: 1,
        }
    }

    fn failed(problem: Problem) -> Self {
        Self {
            problems: vec![problem],
            matches: 0,
        }
    }

    fn is_valid(&self) -> bool {
        self.problems.is_empty()
    }

    fn add(&mut self, problem: Problem) {
        if !self.problems.iter().any(|known| known.text == problem.text) {
            self.problems.push(problem);
        }
    }

    fn merge(&mut self, other: Self) {
        other.problems.into_iter().for_each(|problem| self.add(problem));
        self.matches += other.matches;
    }

    /// Merges the result of one of the library's validators.
    fn checked(&mut self, other: Self) {
        self.merge(other);
        self.matches += 1;
    }
}

/// Joins a path as the library's texts do: `spec.ports[0].port`.
fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

/// Validates a value; tolerates violations that an update leaves unchanged.
fn check(value: &Value, schema: &Schema, path: &str, correlation: Option<Correlation<'_>>) -> Outcome {
    let mut outcome = check_new(value, schema, path, correlation);
    if !outcome.is_valid() && correlation.is_some_and(Correlation::is_unchanged) {
        outcome.problems.clear();
    }
    outcome
}

fn check_new(value: &Value, schema: &Schema, path: &str, correlation: Option<Correlation<'_>>) -> Outcome {
    let mut outcome = Outcome::default();
    if value.is_null() {
        outcome.merge(check_type(value, schema, path));
        outcome.merge(check_enumeration(value, schema, path));
        return outcome;
    }
    if schema.int_or_string || !schema.ty.is_empty() || !schema.format.is_empty() {
        outcome.checked(check_type(value, schema, path));
    }
    outcome.checked(check_junctors(value, schema, path, correlation));
    match value {
        Value::String(text) => {
            outcome.checked(check_text(text, schema, path));
            if !schema.format.is_empty() && format::is_checked(&schema.format) {
                outcome.checked(check_format(text, schema, path));
            }
        }
        Value::Number(number) => outcome.checked(number::check(number, schema, path)),
        Value::Array(items) => outcome.checked(check_items(items, schema, path, correlation)),
        _ => {}
    }
    outcome.checked(check_enumeration(value, schema, path));
    if let Value::Object(fields) = value {
        outcome.checked(check_fields(fields, schema, path, correlation));
    }
    outcome.matches += 1;
    outcome
}

/// Returns an error whose cause repeats the library's text.
fn problem(path: &str, bad: &Value, text: String) -> Problem {
    Problem {
        cause: Cause::invalid(path, bad, &text),
        text,
    }
}

/// Returns an error without a path.
fn problem_without_place(text: String) -> Problem {
    Problem {
        cause: Cause::invalid("", &Value::from(""), &text),
        text,
    }
}

fn wrong_type(path: &str, wanted: &str, found: &str) -> Problem {
    let text = format!(
        "{path} in body must be of type {wanted}: {}",
        value::quoted(found)
    );
    Problem {
        cause: Cause::type_invalid(path, &Value::from(found), &text),
        text,
    }
}

fn check_type(value: &Value, schema: &Schema, path: &str) -> Outcome {
    let allowed: &[&str] = match (schema.int_or_string, schema.ty.as_str()) {
        (true, _) => &["integer", "string"],
        (false, "") => &[],
        (false, ty) => &[ty],
    };
    let allows = |ty: &str| allowed.contains(&ty);
    if value.is_null() {
        if allowed.is_empty() || schema.nullable {
            return Outcome::passed();
        }
        return Outcome::failed(wrong_type(path, &allowed.join(","), "null"));
    }
    let (found, format) = match value {
        Value::Null => ("null", ""),
        Value::Bool(_) => ("boolean", ""),
        Value::String(_) => ("string", ""),
        Value::Array(_) => ("array", ""),
        Value::Object(_) => ("object", ""),
        Value::Number(number) if number.as_i64().is_some() => ("integer", "int64"),
        Value::Number(_) => ("number", "float64"),
    };
    let is_whole = found == "number" && allows("integer") && value.as_f64().is_some_and(number::is_whole);
    let is_widened = found == "integer" && allows("number");
    let text_or_list = matches!(value, Value::String(_) | Value::Array(_));
    if !schema.format.is_empty() {
        if !(text_or_list || allows(found) || is_whole || is_widened) {
            return Outcome::failed(wrong_type(path, &schema.format, format));
        }
        if text_or_list && !allows("number") && !allows("integer") {
            return Outcome::passed();
        }
    }
    if !(allows(found) || is_whole || is_widened) {
        return Outcome::failed(wrong_type(path, &allowed.join(","), found));
    }
    Outcome::passed()
}

fn check_junctors(
    value: &Value,
    schema: &Schema,
    path: &str,
    correlation: Option<Correlation<'_>>,
) -> Outcome {
    let mut outcome = Outcome::default();
    let quoted = || value::quoted(path);
    if !schema.any_of.is_empty() {
        let mut best: Option<Outcome> = None;
        let mut valid = false;
        for option in &schema.any_of {
            let result = check_new(value, option, path, correlation);
            if result.is_valid() {
                (valid, best) = (true, Some(result));
                break;
            }
            if best.as_ref().is_none_or(|best| result.matches > best.matches) {
                best = Some(result);
            }
        }
        if !valid {
            let text = format!("{} must validate at least one schema (anyOf)", quoted());
            outcome.add(problem_without_place(text));
        }
        best.into_iter().for_each(|best| outcome.merge(best));
    }
    if !schema.one_of.is_empty() {
        check_one_of(&mut outcome, value, schema, path, correlation);
    }
    if !schema.all_of.is_empty() {
        let mut valid = 0;
        for part in &schema.all_of {
            let result = check_new(value, part, path, correlation);
            valid += usize::from(result.is_valid());
            outcome.merge(result);
        }
        if valid < schema.all_of.len() {
            let none = if valid == 0 { ". None validated" } else { "" };
            let text = format!("{} must validate all the schemas (allOf){none}", quoted());
            outcome.add(problem_without_place(text));
        }
    }
    if let Some(not) = &schema.not
        && check_new(value, not, path, correlation).is_valid()
    {
        let text = format!("{} must not validate the schema (not)", quoted());
        outcome.add(problem_without_place(text));
    }
    outcome.matches += 1;
    outcome
}

fn check_one_of(
    outcome: &mut Outcome,
    value: &Value,
    schema: &Schema,
    path: &str,
    correlation: Option<Correlation<'_>>,
) {
    let mut best: Option<Outcome> = None;
    let mut first: Option<Outcome> = None;
    let mut valid = 0;
    for option in &schema.one_of {
        let result = check_new(value, option, path, correlation);
        if result.is_valid() {
            valid += 1;
            best = None;
            first.get_or_insert(result);
        } else if valid == 0 && best.as_ref().is_none_or(|best| result.matches > best.matches) {
            best = Some(result);
        }
    }
    if valid == 1 {
        first.into_iter().for_each(|first| outcome.merge(first));
        return;
    }
    let found = if valid == 0 {
        "Found none valid".to_owned()
    } else {
        format!("Found {valid} valid alternatives")
    };
    let path = value::quoted(path);
    outcome.add(problem_without_place(format!(
        "{path} must validate one and only one schema (oneOf). {found}"
    )));
    best.into_iter().for_each(|best| outcome.merge(best));
}

fn check_text(text: &str, schema: &Schema, path: &str) -> Outcome {
    let length = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    if let Some(most) = schema.max_length.filter(|most| length > *most) {
        return Outcome::failed(Problem {
            cause: Cause::too_long(path, most),
            text: format!("{path} in body should be at most {most} chars long"),
        });
    }
    if let Some(least) = schema.min_length.filter(|least| length < *least) {
        let message = format!("{path} in body should be at least {least} chars long");
        return Outcome::failed(problem(path, &Value::from(text), message));
    }
    let Some(pattern) = &schema.pattern else {
        return Outcome::default();
    };
    let wanted = match pattern.matches(text) {
        Ok(true) => return Outcome::default(),
        Ok(false) => pattern.text.clone(),
        Err(problem) => format!("{}, but pattern is invalid: {problem}", pattern.text),
    };
    let message = format!("{path} in body should match '{wanted}'");
    Outcome::failed(problem(path, &Value::from(text), message))
}

fn check_format(text: &str, schema: &Schema, path: &str) -> Outcome {
    if format::is_valid(&schema.format, text) {
        return Outcome::default();
    }
    Outcome::failed(wrong_type(path, &schema.format, text))
}

fn check_enumeration(value: &Value, schema: &Schema, path: &str) -> Outcome {
    let allowed = &schema.enumeration;
    // Null never matches an enum, even if the enum lists it.
    let found = allowed
        .iter()
        .any(|other| !other.is_null() && value::equal(value, other));
    if allowed.is_empty() || found {
        return Outcome::default();
    }
    let shown = allowed.iter().map(|value| match value {
        Value::String(text) => text.clone(),
        other => value::go_json(other),
    });
    let list = value::plain(&Value::Array(allowed.clone()));
    Outcome::failed(Problem {
        cause: Cause::not_supported(path, value, shown),
        text: format!("{path} in body should be one of {list}"),
    })
}

fn check_items(
    items: &[Value],
    schema: &Schema,
    path: &str,
    correlation: Option<Correlation<'_>>,
) -> Outcome {
    let mut outcome = Outcome::default();
    if let Some(schema) = schema.items.as_deref() {
        for (index, item) in items.iter().enumerate() {
            let below = correlation.and_then(|correlation| correlation.item(index));
            outcome.merge(check(item, schema, &format!("{path}[{index}]"), below));
        }
    }
    let count = i64::try_from(items.len()).unwrap_or(i64::MAX);
    if let Some(least) = schema.min_items.filter(|least| count < *least) {
        let text = format!("{path} in body should have at least {least} items");
        outcome.add(problem(path, &Value::from(count), text));
    }
    if let Some(most) = schema.max_items.filter(|most| count > *most) {
        outcome.add(Problem {
            cause: Cause::too_many(path, items.len(), most),
            text: format!("{path} in body should have at most {most} items"),
        });
    }
    outcome.matches += 1;
    outcome
}

fn check_fields(
    fields: &Map<String, Value>,
    schema: &Schema,
    path: &str,
    correlation: Option<Correlation<'_>>,
) -> Outcome {
    let mut outcome = Outcome::default();
    let count = i64::try_from(fields.len()).unwrap_or(i64::MAX);
    if let Some(least) = schema.min_properties.filter(|least| count < *least) {
        let text = format!("{path} in body should have at least {least} properties");
        outcome.add(problem(path, &Value::from(count), text));
    }
    if let Some(most) = schema.max_properties.filter(|most| count > *most) {
        outcome.add(Problem {
            cause: Cause::too_many(path, fields.len(), most),
            text: format!("{path} in body should have at most {most} properties"),
        });
    }
    let below = |name: &str| {
        // The old values of these two fields are not visible.
        let hidden = path.is_empty() && matches!(name, "apiVersion" | "kind");
        correlation
            .filter(|_| !hidden)
            .and_then(|correlation| correlation.field(name))
    };
    for (name, value) in fields {
        if schema.properties.contains_key(name) {
            continue;
        }
        match &schema.additional {
            Some(Additional::Schema(schema)) => {
                outcome.merge(check(value, schema, &format!("{path}.{name}"), below(name)));
            }
            Some(Additional::None) => {
                let text = format!("{path}.{name} in body is a forbidden property");
                outcome.add(problem(path, &Value::from(name.as_str()), text));
            }
            Some(Additional::Any) | None => {}
        }
    }
    for (name, schema) in &schema.properties {
        if let Some(value) = fields.get(name) {
            outcome.merge(check(value, schema, &join(path, name), below(name)));
        }
    }
    for name in &schema.required {
        if !fields.contains_key(name) {
            let place = format!("{path}.{name}");
            outcome.add(Problem {
                text: format!("{place} in body is required"),
                cause: Cause::required(place, ""),
            });
        }
    }
    outcome
}
