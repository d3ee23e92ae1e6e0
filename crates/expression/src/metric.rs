//! The test of a Metric: an expression over the series in the response of a Prometheus.

use starling_core::gate::Evaluation;
use starling_core::gate::metric::{self as response, Problem, Sample, TestError};

use crate::{EvaluationError, Expression, Variables};

/// Checks a test before there is a response: compiles it, and runs it once on [`Sample::example`].
///
/// # Errors
/// The problem with the test.
pub fn check(test: &str) -> Result<(), TestError> {
    let expression = Expression::new(test).map_err(|error| TestError::syntax(error.to_string()))?;
    response::check(&run(&expression, &[Sample::example()]))
}

/// Evaluates a test on a response.
#[must_use]
pub fn judge(status: u16, body: &[u8], test: &Expression) -> Evaluation {
    match response::read(status, body) {
        Ok(samples) => response::judge(&samples, run(test, &samples)),
        Err(evaluation) => evaluation,
    }
}

/// `result` is all series; `value` exists where there is one.
fn run(test: &Expression, samples: &[Sample]) -> Result<bool, Problem> {
    let mut variables = Variables::default().with("result", &samples);
    if let [only] = samples {
        variables = variables.and_then(|variables| variables.with("value", &only.value));
    }
    let result = variables.and_then(|variables| test.test(variables));
    result.map_err(|error| match error {
        EvaluationError::NotBool(kind) => Problem::NotBool(kind),
        EvaluationError::Undeclared(name) => Problem::Undeclared(name),
        EvaluationError::Failed(text) => Problem::Failed(text),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value as Json, json};

    fn test(source: &str) -> Expression {
        Expression::new(source).unwrap()
    }

    /// As the page "HTTP API" of Prometheus' documentation shows a response.
    fn vector(values: &[(&str, &str)]) -> Vec<u8> {
        let series: Vec<Json> = values
            .iter()
            .map(|(job, value)| {
                json!({"metric": {"__name__": "up", "job": job, "instance": "localhost:9090"}, "value": [1_435_781_451.781, value]})
            })
            .collect();
        json!({"status": "success", "data": {"resultType": "vector", "result": series}})
            .to_string()
            .into_bytes()
    }

    #[test]
    fn the_test_decides_over_value_and_result() {
        let not_yet = |text: &str| Evaluation::Pending(text.to_owned());
        let one = vector(&[("api", "0.25")]);
        let two = vector(&[("api", "1"), ("db", "0")]);
        let none = vector(&[]);
        for (body, source, expected) in [
            (&one, "value < 0.5", Evaluation::Passed),
            (&one, "value < 1", Evaluation::Passed),
            (
                &one,
                "value > 1",
                not_yet("value is 0.25, and metric.test is false"),
            ),
            (
                &one,
                "result[0].value == value && result[0].metric.job == 'api'",
                Evaluation::Passed,
            ),
            (&two, "result.all(s, s.value >= 0.0)", Evaluation::Passed),
            (
                &two,
                "result.all(s, s.value == 1.0)",
                not_yet("the query returned 2 series, and metric.test is false"),
            ),
            (
                &two,
                "result.filter(s, s.metric.job == 'db').size() == 1",
                Evaluation::Passed,
            ),
            (
                &two,
                "value == 1.0",
                not_yet("the query returned 2 series, and metric.test needs the value of exactly one"),
            ),
            (
                &none,
                "value == 1.0",
                not_yet("the query returned no series, and metric.test needs the value of exactly one"),
            ),
            (&none, "size(result) == 0", Evaluation::Passed),
            (&none, "size(result) == 0 || value < 1.0", Evaluation::Passed),
            // What compares to nothing passes no test, also none that says "not".
            (
                &vector(&[("api", "NaN")]),
                "!(value > 1.0)",
                not_yet("value is NaN, and metric.test: No such overload"),
            ),
            (&vector(&[("api", "+Inf")]), "value > 1e300", Evaluation::Passed),
            (&vector(&[("api", "-Inf")]), "value < -1e300", Evaluation::Passed),
        ] {
            let shown = String::from_utf8_lossy(body);
            assert_eq!(judge(200, body, &test(source)), expected, "{source} of {shown}");
        }
        let missing = judge(200, &one, &test("result[0].metric.zone == 'a'"));
        assert!(matches!(missing, Evaluation::Pending(text) if text.contains("zone")));
        let scalar = json!({"status": "success", "data": {"resultType": "scalar", "result": [1_435_781_460.781, "1"]}});
        assert_eq!(
            judge(
                200,
                scalar.to_string().as_bytes(),
                &test("value == 1.0 && size(result) == 1")
            ),
            Evaluation::Passed
        );
    }

    #[test]
    fn a_broken_expression_is_found_before_there_is_an_answer() {
        for (source, words) in [
            ("value <", "yntax"),
            ("value", "returns a double; it must return true or false"),
            ("size(result)", "returns a int"),
            ("valu < 1.0", "there is no \"valu\" here"),
            ("frobnicate(value)", "frobnicate"),
            ("result.size() + 1", "returns a int"),
        ] {
            let problem = check(source).unwrap_err().to_string();
            assert!(problem.contains(words), "{source}: {problem}");
        }
    }
}
