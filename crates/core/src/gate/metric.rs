//! The query of a Metric gate, and the meaning of its response.
//!
//! An expression of the user tests the response. This module defines the variables of the expression and the meaning of
//! its result; `starling-expression` evaluates it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::Evaluation;
use super::webhook::is_retryable;

/// The path of instant queries, below the URL of a Prometheus.
pub const PATH: &str = "/api/v1/query";
/// The number of series that a test can use. An expression may iterate over them several times; a query with more
/// series should aggregate them in Prometheus.
const SERIES: usize = 1000;
/// The number of characters of a foreign message that are quoted.
const QUOTED: usize = 300;

/// One series of a response, with its current value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sample {
    /// The labels of the series; empty for a scalar.
    pub metric: BTreeMap<String, String>,
    /// The value.
    pub value: f64,
}

impl Sample {
    /// Returns a series without labels with the value 1. An expression is evaluated on it once before there is a
    /// response, which shows unknown names and the type of its result, as far as they can be known.
    #[must_use]
    pub fn example() -> Self {
        Self {
            metric: BTreeMap::new(),
            value: 1.0,
        }
    }
}

/// The reason why a test has no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TestProblem {
    /// The result has another type: this one, with an article.
    NotBool(String),
    /// The test uses a name that does not exist.
    Undeclared(String),
    /// The evaluation was ended, because it needs too much time or memory.
    Limit(String),
    /// The evaluation failed for this response.
    Failed(String),
}

/// A test that no response could pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct TestError(String);

impl TestError {
    /// Creates the error from what is wrong with the test.
    #[must_use]
    pub fn new(problem: String) -> Self {
        Self(problem)
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Response {
    #[serde(default)]
    status: String,
    #[serde(default)]
    error: String,
    #[serde(default)]
    data: Option<Data>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Data {
    result_type: String,
    result: Json,
}

#[derive(Deserialize)]
struct Series {
    #[serde(default)]
    metric: BTreeMap<String, String>,
    /// The time, and the number as text.
    value: (Json, String),
}

/// Parses the series of a response.
///
/// # Errors
/// The meaning of a response without series.
pub fn read(status: u16, body: &[u8]) -> Result<Vec<Sample>, Evaluation> {
    let response: Option<Response> = serde_json::from_slice(body).ok();
    if !(200..300).contains(&status)
        || response
            .as_ref()
            .is_some_and(|response| response.status == "error")
    {
        return Err(refusal(
            status,
            response.as_ref().map_or("", |response| response.error.as_str()),
        ));
    }
    let Some(Response {
        data: Some(data),
        status: outcome,
        ..
    }) = response
    else {
        return Err(Evaluation::error(
            "the response is not that of a Prometheus: it has no query result",
        ));
    };
    if outcome != "success" {
        return Err(Evaluation::error(
            "the response is not that of a Prometheus: its status is unknown",
        ));
    }
    samples(data).map_err(|problem| Evaluation::Failed(problem.to_string()))
}

/// Returns the meaning of an error response. 422 means that the query cannot be executed, which may depend on the data.
fn refusal(status: u16, error: &str) -> Evaluation {
    let code = format!("the Prometheus responded with {status}");
    let message = match error {
        "" => code,
        text => format!("{code}: {}", cut(text)),
    };
    if is_retryable(status) || status == 422 || (200..300).contains(&status) {
        Evaluation::error(message)
    } else {
        Evaluation::Failed(message)
    }
}

/// The reason why the result of a query cannot be tested.
#[derive(Debug, thiserror::Error)]
enum ResultError {
    #[error("{:?} is not a number", cut(.0))]
    NotNumber(String),
    #[error("a series of the response has no number; a query of histograms has to convert them to numbers")]
    WithoutNumber(#[source] serde_json::Error),
    #[error("metric.query returned {count} series (limit {SERIES}); aggregate them")]
    TooManySeries { count: usize },
    #[error("metric.query returned a {}; it must return an instant vector or a scalar", cut(.0))]
    UnsupportedType(String),
}

fn samples(data: Data) -> Result<Vec<Sample>, ResultError> {
    let number = |text: &str| text.parse().map_err(|_| ResultError::NotNumber(text.to_owned()));
    match data.result_type.as_str() {
        "vector" => {
            let series: Vec<Series> =
                serde_json::from_value(data.result).map_err(ResultError::WithoutNumber)?;
            if series.len() > SERIES {
                return Err(ResultError::TooManySeries { count: series.len() });
            }
            let read = series.into_iter().map(|Series { metric, value }| {
                let value = number(&value.1)?;
                Ok(Sample { metric, value })
            });
            read.collect()
        }
        "scalar" => {
            let (_, text): (Json, String) =
                serde_json::from_value(data.result).map_err(ResultError::WithoutNumber)?;
            Ok(vec![Sample {
                metric: BTreeMap::new(),
                value: number(&text)?,
            }])
        }
        other => Err(ResultError::UnsupportedType(other.to_owned())),
    }
}

/// Returns the meaning of the result of a test on these series.
#[must_use]
pub fn judge(samples: &[Sample], result: Result<bool, TestProblem>) -> Evaluation {
    let seen = match samples {
        [] => "the query returned no series".to_owned(),
        [only] => format!("value is {}", only.value),
        more => format!("the query returned {} series", more.len()),
    };
    match result {
        Ok(true) => Evaluation::Passed,
        Ok(false) => Evaluation::Pending(format!("{seen}, and metric.test is false")),
        // Without a series, or with several, `value` does not exist; that may change.
        Err(TestProblem::Undeclared(name)) if name == "value" && samples.len() != 1 => {
            Evaluation::Pending(format!("{seen}, and metric.test needs the value of exactly one"))
        }
        Err(TestProblem::Undeclared(name)) => {
            Evaluation::Failed(format!("metric.test: {}", undeclared(&name)))
        }
        Err(TestProblem::NotBool(kind)) => Evaluation::Failed(format!("metric.test {}", not_bool(&kind))),
        Err(TestProblem::Limit(limit)) => Evaluation::Failed(format!("{seen}, and metric.test: {limit}")),
        Err(TestProblem::Failed(problem)) => {
            Evaluation::Pending(format!("{seen}, and metric.test: {}", cut(&problem)))
        }
    }
}

/// Checks a test by its result on [`Sample::example`]. A failed evaluation shows nothing about the test, since another
/// response may have what it needs.
///
/// # Errors
/// The problem with the test.
pub fn check(result: &Result<bool, TestProblem>) -> Result<(), TestError> {
    match result {
        Ok(_) | Err(TestProblem::Failed(_)) => Ok(()),
        Err(TestProblem::NotBool(kind)) => Err(TestError(not_bool(kind))),
        Err(TestProblem::Limit(limit)) => Err(TestError(limit.clone())),
        Err(TestProblem::Undeclared(name)) => Err(TestError(undeclared(name))),
    }
}

fn not_bool(kind: &str) -> String {
    format!("returns {kind}; it must return true or false")
}

fn undeclared(name: &str) -> String {
    format!("there is no {name:?} here; there are `value` and `result`")
}

fn cut(text: &str) -> String {
    starling_api::conditions::cut(text, QUOTED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The format of a response in the documentation of Prometheus, page "HTTP API".
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
    fn an_invalid_response_is_retried_and_an_invalid_query_fails() {
        let bad = r#"{"status":"error","errorType":"bad_data","error":"invalid parameter \"query\": 1:3: parse error"}"#;
        let matrix = r#"{"status":"success","data":{"resultType":"matrix","result":[]}}"#;
        let histogram = r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"histogram":[1435781451.781,{"count":"1","sum":"1"}]}]}}"#;
        for (status, body, fails, expected) in [
            (400, bad, true, "responded with 400: invalid parameter"),
            (404, "not found", true, "responded with 404"),
            (401, "", true, "responded with 401"),
            (
                422,
                r#"{"status":"error","errorType":"execution","error":"many-to-many"}"#,
                false,
                "many-to-many",
            ),
            (
                503,
                r#"{"status":"error","errorType":"timeout","error":"query timed out"}"#,
                false,
                "query timed out",
            ),
            (200, r#"{"status":"error","error":"odd"}"#, false, "odd"),
            (500, "<html>", false, "responded with 500"),
            (200, "<html>", false, "not that of a Prometheus"),
            (200, "{}", false, "not that of a Prometheus"),
            (200, r#"{"status":"success"}"#, false, "not that of a Prometheus"),
            (200, matrix, true, "returned a matrix"),
            (200, histogram, true, "has no number"),
        ] {
            let evaluation = read(status, body.as_bytes()).unwrap_err();
            let (failed, message) = match &evaluation {
                Evaluation::Failed(message) => (true, message),
                Evaluation::Error { message, .. } => (false, message),
                other => panic!("{body}: {other:?}"),
            };
            assert_eq!(failed, fails, "{status} {body}");
            assert!(message.contains(expected), "{status} {body}: {message}");
        }
        let many: Vec<(&str, &str)> = vec![("api", "1"); SERIES + 1];
        assert!(
            matches!(read(200, &vector(&many)), Err(Evaluation::Failed(text)) if text.contains("aggregate"))
        );
    }
}
