//! The limits of numbers.

use serde_json::{Number, Value};

use super::{Outcome, Problem, problem};
use crate::crd::schema::Schema;
use crate::value;

/// Returns a limit as an integer is compared with it: without its fraction.
#[expect(clippy::cast_possible_truncation, reason = "the API server truncates too")]
fn truncated(limit: f64) -> i64 {
    limit as i64
}

/// Returns whether a float is an integer that JSON can represent, within a relative error.
pub(super) fn is_whole(float: f64) -> bool {
    const LARGEST: f64 = 9_007_199_254_740_991.0;
    const TOLERANCE: f64 = 1e-9;
    let whole = float.trunc();
    float.abs() <= LARGEST
        && (float == whole || whole != 0.0 && (float - whole).abs() / (float.abs() + whole.abs()) < TOLERANCE)
}

/// A number as the limit checks represent it.
enum Amount {
    Int(i64),
    Float(f64),
}

impl Amount {
    /// Compares the number with a limit; also returns the limit as messages show it.
    fn compare(&self, limit: f64) -> (std::cmp::Ordering, String) {
        let equal = std::cmp::Ordering::Equal;
        match self {
            Self::Int(int) => {
                let limit = truncated(limit);
                (int.cmp(&limit), limit.to_string())
            }
            Self::Float(float) => (
                float.partial_cmp(&limit).unwrap_or(equal),
                value::plain(&Value::from(limit)),
            ),
        }
    }

    /// Returns what is wrong with the number as a multiple of a factor.
    fn multiple(&self, factor: f64, bad: &Value, path: &str) -> Option<Problem> {
        let (positive, multiple, factor) = match self {
            Self::Int(int) => {
                let factor = truncated(factor);
                (factor > 0, factor > 0 && int % factor == 0, Value::from(factor))
            }
            Self::Float(float) => {
                let count = if factor < 1.0 {
                    1.0 / factor * float
                } else {
                    float / factor
                };
                (factor > 0.0, is_whole(count), Value::from(factor))
            }
        };
        let shown = value::plain(&factor);
        if !positive {
            let text = format!("factor MultipleOf declared for {path} must be positive: {shown}");
            return Some(problem(path, &factor, text));
        }
        (!multiple).then(|| {
            problem(
                path,
                bad,
                format!("{path} in body should be a multiple of {shown}"),
            )
        })
    }
}

pub(super) fn check(number: &Number, schema: &Schema, path: &str) -> Outcome {
    let mut outcome = Outcome::passed();
    let bad = Value::Number(number.clone());
    let amount = number
        .as_i64()
        .map_or_else(|| Amount::Float(number.as_f64().unwrap_or_default()), Amount::Int);
    if let Some(factor) = schema.multiple_of
        && let Some(problem) = amount.multiple(factor, &bad, path)
    {
        outcome.add(problem);
    }
    if let Some(least) = schema.minimum {
        let (order, shown) = amount.compare(least);
        let than = if schema.exclusive_minimum {
            "greater than"
        } else {
            "greater than or equal to"
        };
        if order.is_lt() || order.is_eq() && schema.exclusive_minimum {
            outcome.add(limit(path, &bad, than, &shown));
        }
    }
    if let Some(most) = schema.maximum {
        let (order, shown) = amount.compare(most);
        let than = if schema.exclusive_maximum {
            "less than"
        } else {
            "less than or equal to"
        };
        if order.is_gt() || order.is_eq() && schema.exclusive_maximum {
            outcome.add(limit(path, &bad, than, &shown));
        }
    }
    outcome
}

fn limit(path: &str, bad: &Value, than: &str, shown: &str) -> Problem {
    problem(path, bad, format!("{path} in body should be {than} {shown}"))
}
