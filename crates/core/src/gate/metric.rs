//! What a Prometheus is asked, and what its answer means.

use std::fmt;
use std::sync::Arc;

use kube_cel::KubeCelExt as _;
use kube_cel::cel::{Context, ExecutionError, Program, Value, to_value};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::Tried;
use super::webhook::is_worth_another_try;

/// Below the URL of a Prometheus: the endpoint of instant queries.
pub const PATH: &str = "/api/v1/query";
/// Series of an answer that a test looks at. An expression may go through them several times over; a query that gives more is to
/// be aggregated by the Prometheus.
const SERIES: usize = 1000;
/// Characters of what another program said that are repeated.
const QUOTED: usize = 300;

/// The expression that an answer is held against.
#[derive(Clone)]
pub struct Test {
    source: String,
    program: Arc<Program>,
}

impl PartialEq for Test {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl fmt::Debug for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Test").field(&self.source).finish()
    }
}

/// A series with its number now.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Sample {
    metric: std::collections::BTreeMap<String, String>,
    value: f64,
}

impl Test {
    /// Compiles an expression, and runs it once on one series with the number 1: what it names and what it gives show then, as far
    /// as that can be known before there is an answer.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn new(source: &str) -> Result<Self, String> {
        let program = Program::compile(source).map_err(|errors| {
            let text = errors.to_string();
            text.split_whitespace().collect::<Vec<_>>().join(" ")
        })?;
        let test = Self {
            source: source.to_owned(),
            program: Arc::new(program),
        };
        let example = Sample {
            metric: std::collections::BTreeMap::new(),
            value: 1.0,
        };
        match test.run(&[example]) {
            Ok(_) | Err(Problem::Other(_)) => Ok(test),
            Err(Problem::NoBool(kind)) => Err(format!("gives {kind}; it has to be true or false")),
            Err(Problem::Unknown(name)) => Err(format!(
                "there is no {name:?} here; there are `value` and `result`"
            )),
        }
    }

    fn run(&self, samples: &[Sample]) -> Result<bool, Problem> {
        let mut context = Context::default().with_all();
        let result = to_value(samples).map_err(|error| Problem::Other(error.to_string()))?;
        context.add_variable_from_value("result", result);
        if let [only] = samples {
            context.add_variable_from_value("value", only.value);
        }
        match self.program.execute(&context) {
            Ok(Value::Bool(passed)) => Ok(passed),
            Ok(other) => Err(Problem::NoBool(kind(&other))),
            Err(ExecutionError::UndeclaredReference(name)) => Err(Problem::Unknown(name.to_string())),
            Err(other) => Err(Problem::Other(other.to_string())),
        }
    }
}

/// The kind of a value, as CEL calls it.
fn kind(value: &Value) -> String {
    match value {
        Value::Float(_) => "a double".to_owned(),
        other => format!("a {}", other.type_of()),
    }
}

/// Why a test gave neither true nor false.
#[derive(Debug)]
enum Problem {
    /// It gave something else.
    NoBool(String),
    /// It names something that is not there.
    Unknown(String),
    /// It went wrong with this answer.
    Other(String),
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
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
    metric: std::collections::BTreeMap<String, String>,
    /// Time, and the number as text.
    value: (Json, String),
}

/// What an answer means.
#[must_use]
pub fn read(status: u16, body: &[u8], test: &Test) -> Tried {
    let answer: Option<Answer> = serde_json::from_slice(body).ok();
    if !(200..300).contains(&status) || answer.as_ref().is_some_and(|answer| answer.status == "error") {
        return refusal(status, answer.as_ref().map_or("", |answer| answer.error.as_str()));
    }
    let Some(Answer {
        data: Some(data),
        status: word,
        ..
    }) = answer
    else {
        return Tried::trouble("what answered is no Prometheus: it is no answer to a query");
    };
    if word != "success" {
        return Tried::trouble("what answered is no Prometheus: its status is none that is known");
    }
    match samples(data) {
        Ok(samples) => judge(&samples, test),
        Err(message) => Tried::Failed(message),
    }
}

/// 422 says that the query cannot be executed, which may be the data's fault and pass.
fn refusal(status: u16, error: &str) -> Tried {
    let code = format!("the Prometheus answered {status}");
    let message = match error {
        "" => code,
        text => format!("{code}: {}", cut(text)),
    };
    if is_worth_another_try(status) || status == 422 || (200..300).contains(&status) {
        Tried::trouble(message)
    } else {
        Tried::Failed(message)
    }
}

fn samples(data: Data) -> Result<Vec<Sample>, String> {
    let number = |text: &str| text.parse().map_err(|_| format!("{:?} is no number", cut(text)));
    let unreadable = |_| {
        "a series of the answer has no number; a query of histograms has to make numbers of them".to_owned()
    };
    match data.result_type.as_str() {
        "vector" => {
            let series: Vec<Series> = serde_json::from_value(data.result).map_err(unreadable)?;
            if series.len() > SERIES {
                return Err(format!(
                    "metric.query gives {} series, and {SERIES} are looked at; aggregate them",
                    series.len()
                ));
            }
            let read = series.into_iter().map(|Series { metric, value }| {
                let value = number(&value.1)?;
                Ok(Sample { metric, value })
            });
            read.collect()
        }
        "scalar" => {
            let (_, text): (Json, String) = serde_json::from_value(data.result).map_err(unreadable)?;
            Ok(vec![Sample {
                metric: std::collections::BTreeMap::new(),
                value: number(&text)?,
            }])
        }
        other => Err(format!(
            "metric.query gives a {}; it has to give an instant vector or a scalar",
            cut(other)
        )),
    }
}

fn judge(samples: &[Sample], test: &Test) -> Tried {
    let seen = match samples {
        [] => "the query gives no series".to_owned(),
        [only] => format!("value is {}", only.value),
        more => format!("the query gives {} series", more.len()),
    };
    match test.run(samples) {
        Ok(true) => Tried::Passed,
        Ok(false) => Tried::NotYet(format!("{seen}, and metric.test is false")),
        // Without a series, or with several, there is no `value`; that may change.
        Err(Problem::Unknown(name)) if name == "value" && samples.len() != 1 => {
            Tried::NotYet(format!("{seen}, and metric.test asks for the value of one"))
        }
        Err(Problem::Unknown(name)) => Tried::Failed(format!(
            "metric.test: there is no {name:?} here; there are `value` and `result`"
        )),
        Err(Problem::NoBool(kind)) => {
            Tried::Failed(format!("metric.test gives {kind}; it has to be true or false"))
        }
        Err(Problem::Other(problem)) => Tried::NotYet(format!("{seen}, and metric.test: {}", cut(&problem))),
    }
}

fn cut(text: &str) -> String {
    starling_api::conditions::cut(text, QUOTED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn test(source: &str) -> Test {
        Test::new(source).unwrap()
    }

    /// As the page "HTTP API" of Prometheus' documentation shows an answer.
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
        let not_yet = |text: &str| Tried::NotYet(text.to_owned());
        let one = vector(&[("api", "0.25")]);
        let two = vector(&[("api", "1"), ("db", "0")]);
        let none = vector(&[]);
        for (body, source, expected) in [
            (&one, "value < 0.5", Tried::Passed),
            (&one, "value < 1", Tried::Passed),
            (
                &one,
                "value > 1",
                not_yet("value is 0.25, and metric.test is false"),
            ),
            (
                &one,
                "result[0].value == value && result[0].metric.job == 'api'",
                Tried::Passed,
            ),
            (&two, "result.all(s, s.value >= 0.0)", Tried::Passed),
            (
                &two,
                "result.all(s, s.value == 1.0)",
                not_yet("the query gives 2 series, and metric.test is false"),
            ),
            (
                &two,
                "result.filter(s, s.metric.job == 'db').size() == 1",
                Tried::Passed,
            ),
            (
                &two,
                "value == 1.0",
                not_yet("the query gives 2 series, and metric.test asks for the value of one"),
            ),
            (
                &none,
                "value == 1.0",
                not_yet("the query gives no series, and metric.test asks for the value of one"),
            ),
            (&none, "size(result) == 0", Tried::Passed),
            (&none, "size(result) == 0 || value < 1.0", Tried::Passed),
            // What compares to nothing passes no test, also none that says "not".
            (
                &vector(&[("api", "NaN")]),
                "!(value > 1.0)",
                not_yet("value is NaN, and metric.test: No such overload"),
            ),
            (&vector(&[("api", "+Inf")]), "value > 1e300", Tried::Passed),
            (&vector(&[("api", "-Inf")]), "value < -1e300", Tried::Passed),
        ] {
            let shown = String::from_utf8_lossy(body);
            assert_eq!(read(200, body, &test(source)), expected, "{source} of {shown}");
        }
        let missing = read(200, &one, &test("result[0].metric.zone == 'a'"));
        assert!(matches!(missing, Tried::NotYet(text) if text.contains("zone")));
        let scalar = json!({"status": "success", "data": {"resultType": "scalar", "result": [1_435_781_460.781, "1"]}});
        assert_eq!(
            read(
                200,
                scalar.to_string().as_bytes(),
                &test("value == 1.0 && size(result) == 1")
            ),
            Tried::Passed
        );
    }

    #[test]
    fn what_is_no_answer_is_tried_again_and_what_cannot_become_one_fails() {
        let any = test("value > 0.0");
        let bad = r#"{"status":"error","errorType":"bad_data","error":"invalid parameter \"query\": 1:3: parse error"}"#;
        let matrix = r#"{"status":"success","data":{"resultType":"matrix","result":[]}}"#;
        let histogram = r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"histogram":[1435781451.781,{"count":"1","sum":"1"}]}]}}"#;
        for (status, body, fails, words) in [
            (400, bad, true, "answered 400: invalid parameter"),
            (404, "not found", true, "answered 404"),
            (401, "", true, "answered 401"),
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
            (500, "<html>", false, "answered 500"),
            (200, "<html>", false, "no Prometheus"),
            (200, "{}", false, "no Prometheus"),
            (200, r#"{"status":"success"}"#, false, "no Prometheus"),
            (200, matrix, true, "gives a matrix"),
            (200, histogram, true, "has no number"),
        ] {
            let tried = read(status, body.as_bytes(), &any);
            let (failed, message) = match &tried {
                Tried::Failed(message) => (true, message),
                Tried::Trouble { message, .. } => (false, message),
                other => panic!("{body}: {other:?}"),
            };
            assert_eq!(failed, fails, "{status} {body}");
            assert!(message.contains(words), "{status} {body}: {message}");
        }
        let many: Vec<(&str, &str)> = vec![("api", "1"); SERIES + 1];
        assert!(matches!(read(200, &vector(&many), &any), Tried::Failed(text) if text.contains("aggregate")));
    }

    #[test]
    fn a_broken_expression_is_found_before_there_is_an_answer() {
        for (source, words) in [
            ("value <", "yntax"),
            ("value", "gives a double; it has to be true or false"),
            ("size(result)", "gives a int"),
            ("valu < 1.0", "there is no \"valu\" here"),
            ("frobnicate(value)", "frobnicate"),
            ("result.size() + 1", "gives a int"),
        ] {
            let problem = Test::new(source).unwrap_err();
            assert!(problem.contains(words), "{source}: {problem}");
        }
    }
}
