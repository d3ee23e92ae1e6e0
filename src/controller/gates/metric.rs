//! Queries a Prometheus server.

use starling_core::gate::Evaluation;
use starling_core::gate::metric::PATH;
use starling_expression::metric;
use starling_net::web::{Post, Reply};
use url::form_urlencoded;

use super::gate_task::GateTask;
use super::secret::{self, Values};
use crate::controller::expressions;

/// A query of a Prometheus server.
pub(super) struct MetricQuery<'a> {
    /// The URL of the server.
    pub(super) url: &'a str,
    /// The PromQL.
    pub(super) query: &'a str,
    /// The test of the response.
    pub(super) test: &'a str,
    /// The Secret with credentials; `None` for requests without authentication.
    pub(super) secret: Option<&'a str>,
}

/// Sends the query once and evaluates the response.
pub(super) async fn evaluate(gate: &GateTask, query: MetricQuery<'_>) -> Evaluation {
    match try_to_evaluate(gate, query).await {
        Ok(evaluation) | Err(evaluation) => evaluation,
    }
}

async fn try_to_evaluate(
    gate: &GateTask,
    MetricQuery {
        url,
        query,
        test,
        secret,
    }: MetricQuery<'_>,
) -> Result<Evaluation, Evaluation> {
    let values = match secret {
        Some(name) => Some(secret::read(gate, "metric.secretRef", name).await?),
        None => None,
    };
    let authorization = values.as_ref().map(Values::authorization).transpose()?.flatten();
    let body = form_urlencoded::Serializer::new(String::new())
        .append_pair("query", query)
        .finish();
    let post = Post {
        url: format!("{}{PATH}", url.trim_end_matches('/')),
        content_type: "application/x-www-form-urlencoded",
        headers: authorization
            .map(|value| ("authorization", value))
            .into_iter()
            .collect(),
        body: body.into_bytes(),
        ca: values.as_ref().and_then(Values::authorities),
    };
    let reply = gate.post(&post).await?;
    let evaluation = test_response(gate, &reply, test).await;
    let evaluation = match &values {
        Some(values) => redacted(evaluation, values),
        None => evaluation,
    };
    Ok(gate.with_time(evaluation, &reply))
}

/// Evaluates the test on a response.
async fn test_response(gate: &GateTask, reply: &Reply, test: &str) -> Evaluation {
    let (status, body, test) = (reply.status, reply.body.clone(), test.to_owned());
    let judged =
        expressions::evaluate(&gate.group.namespace, move || metric::judge(status, &body, &test)).await;
    judged.unwrap_or_else(|error| Evaluation::error(error.to_string()))
}

/// Removes secret values from the evaluation: the response of a server may repeat the credentials of the request.
fn redacted(evaluation: Evaluation, values: &Values) -> Evaluation {
    match evaluation {
        Evaluation::Passed => Evaluation::Passed,
        Evaluation::Failed(message) => Evaluation::Failed(values.redact(&message)),
        Evaluation::Pending(message) => Evaluation::Pending(values.redact(&message)),
        Evaluation::Error { message, retry_after } => Evaluation::Error {
            message: values.redact(&message),
            retry_after,
        },
    }
}
