//! The test of a Metric: an expression over the series in the response of a Prometheus.

use starling_core::gate::Evaluation;
use starling_core::gate::metric::{self as response, Sample, TestError, TestProblem};

use crate::thread::{ThreadError, on_own_thread};
use crate::{EvaluationError, Expression, Variables};

/// Checks a test before there is a response: compiles it, and runs it once on [`Sample::example`], on a thread of its
/// own.
///
/// # Errors
/// The problem with the test.
pub fn check(test: &str) -> Result<(), TestError> {
    let checked = on_own_thread(|| {
        let expression = Expression::new(test).map_err(|error| TestError::new(error.to_string()))?;
        response::check(&run(&expression, &[Sample::example()]))
    });
    match checked {
        Ok(checked) => checked,
        // It is not known to be wrong, and the evaluation of a response reports it again.
        Err(ThreadError::Start(_)) => Ok(()),
        Err(error @ ThreadError::Panicked) => Err(TestError::new(error.to_string())),
    }
}

/// Evaluates a test on a response, on a thread of its own.
#[must_use]
pub fn judge(status: u16, body: &[u8], test: &str) -> Evaluation {
    let samples = match response::read(status, body) {
        Ok(samples) => samples,
        Err(evaluation) => return evaluation,
    };
    let judged = on_own_thread(|| match Expression::new(test) {
        Ok(test) => response::judge(&samples, run(&test, &samples)),
        Err(error) => Evaluation::Failed(format!("metric.test: {error}")),
    });
    judged.unwrap_or_else(|error| Evaluation::Failed(format!("metric.test: {error}")))
}

/// `result` is all series; `value` exists where there is one.
fn run(test: &Expression, samples: &[Sample]) -> Result<bool, TestProblem> {
    let mut variables = Variables::default().with("result", &samples);
    if let [only] = samples {
        variables = variables.and_then(|variables| variables.with("value", &only.value));
    }
    let result = variables.and_then(|variables| test.test(variables));
    result.map_err(|error| match error {
        EvaluationError::NotBool(kind) => TestProblem::NotBool(kind),
        EvaluationError::Undeclared(name) => TestProblem::Undeclared(name),
        EvaluationError::Limit(text) => TestProblem::Limit(text),
        EvaluationError::Failed(text) => TestProblem::Failed(text),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value as Json, json};

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
            // A value that compares to nothing passes no test, also none that says "not".
            (
                &vector(&[("api", "NaN")]),
                "!(value > 1.0)",
                not_yet("value is NaN, and metric.test: No such overload"),
            ),
            (&vector(&[("api", "+Inf")]), "value > 1e300", Evaluation::Passed),
            (&vector(&[("api", "-Inf")]), "value < -1e300", Evaluation::Passed),
        ] {
            let shown = String::from_utf8_lossy(body);
            assert_eq!(judge(200, body, source), expected, "{source} of {shown}");
        }
        let missing = judge(200, &one, "result[0].metric.zone == 'a'");
        assert!(matches!(missing, Evaluation::Pending(text) if text.contains("zone")));
        let scalar = json!({"status": "success", "data": {"resultType": "scalar", "result": [1_435_781_460.781, "1"]}});
        assert_eq!(
            judge(
                200,
                scalar.to_string().as_bytes(),
                "value == 1.0 && size(result) == 1"
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
            (
                "lists.range(1000000000).size() > 0",
                "costs more than 5000000 units",
            ),
            (
                "lists.range(300000).size() > 0",
                "larger than 250000 units of cost",
            ),
            (
                "lists.range(9000).all(a, lists.range(9000).all(b, a >= 0))",
                "costs more than 5000000 units",
            ),
            ("Message{a: 1} == 1", "does not support this expression"),
        ] {
            let problem = check(source).unwrap_err().to_string();
            assert!(problem.contains(words), "{source}: {problem}");
        }
    }

    #[test]
    fn tenant_cel_a_test_that_costs_too_much_on_a_response_fails_its_gate() {
        let series: Vec<(String, &str)> = (0..1000).map(|number| (format!("job-{number}"), "1")).collect();
        let series: Vec<(&str, &str)> = series.iter().map(|(job, value)| (job.as_str(), *value)).collect();
        let body = vector(&series);
        let all = "result.all(s, s.value == 1.0)";
        assert_eq!(judge(200, &body, all), Evaluation::Passed);
        let filtered = "result.filter(s, s.value < 1.0 || s.metric.job.matches('^job-1')).size() == 111";
        assert_eq!(judge(200, &body, filtered), Evaluation::Passed);
        let pairs = "result.all(a, result.all(b, a.value == b.value))";
        assert!(check(pairs).is_ok(), "one series is cheap");
        let Evaluation::Failed(message) = judge(200, &body, pairs) else {
            panic!("a million pairs are within the limit");
        };
        // On a busy machine, the limit of time may come first.
        let limit = message.strip_prefix("the query returned 1000 series, and metric.test: the expression ");
        assert!(
            limit.is_some_and(
                |limit| ["costs more than 5000000 units", "takes longer than 5s"].contains(&limit)
            ),
            "{message}"
        );
    }
}
