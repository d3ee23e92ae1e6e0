//! Queries a Prometheus server.

use starling_core::gate::Evaluation;
use starling_core::gate::metric::PATH;
use starling_expression::{Expression, metric};
use starling_net::web::Post;
use url::form_urlencoded;

use super::gate_task::GateTask;
use super::secret::{self, Values};
use crate::controller::waits;

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
    let test = Expression::new(test).map_err(|error| Evaluation::Failed(format!("metric.test: {error}")))?;
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
    let evaluation = test_response(reply.status, reply.body.clone(), test).await;
    let evaluation = match &values {
        Some(values) => redacted(evaluation, values),
        None => evaluation,
    };
    Ok(gate.with_time(evaluation, &reply))
}

/// Evaluates the test on a response, on a thread for blocking work.
async fn test_response(status: u16, body: bytes::Bytes, test: Expression) -> Evaluation {
    let reading = tokio::task::spawn_blocking(move || metric::judge(status, &body, &test));
    match tokio::time::timeout(waits::METRIC_TEST_TIMEOUT, reading).await {
        Ok(Ok(evaluation)) => evaluation,
        Ok(Err(_)) => Evaluation::Failed("cannot evaluate metric.test on the response".to_owned()),
        Err(_) => Evaluation::Failed(format!(
            "metric.test takes longer than {:?}",
            waits::METRIC_TEST_TIMEOUT
        )),
    }
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
