//! Asks a Prometheus.

use std::time::Duration;

use starling_core::gate::Tried;
use starling_core::gate::metric::{PATH, Test, read};
use url::form_urlencoded;

use super::errand::Errand;
use super::secret::{self, Values};
use crate::web::Post;

/// How long the test of an answer may take: an expression may go through the series of an answer several times over.
const TEST: Duration = Duration::from_secs(5);

/// Asks once.
pub(super) async fn ask(
    errand: &Errand,
    (url, query): (&str, &str),
    test: &Test,
    secret: Option<&str>,
) -> Tried {
    match try_to_ask(errand, (url, query), test, secret).await {
        Ok(tried) | Err(tried) => tried,
    }
}

async fn try_to_ask(
    errand: &Errand,
    (url, query): (&str, &str),
    test: &Test,
    secret: Option<&str>,
) -> Result<Tried, Tried> {
    let values = match secret {
        Some(name) => Some(secret::read(errand, "metric.secretRef", name).await?),
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
    let reply = errand.post(&post).await?;
    let tried = judge(reply.status, reply.body.clone(), test.clone()).await;
    let tried = match &values {
        Some(values) => redacted(tried, values),
        None => tried,
    };
    Ok(errand.with_time(tried, &reply))
}

/// Holds an answer against the test, on a thread that may be kept busy with it.
async fn judge(status: u16, body: bytes::Bytes, test: Test) -> Tried {
    let reading = tokio::task::spawn_blocking(move || read(status, &body, &test));
    match tokio::time::timeout(TEST, reading).await {
        Ok(Ok(tried)) => tried,
        Ok(Err(_)) => Tried::Failed("metric.test could not be run on the answer".to_owned()),
        Err(_) => Tried::Failed(format!("metric.test takes longer than {TEST:?}")),
    }
}

/// What a server says of a request may repeat what it was signed in with.
fn redacted(tried: Tried, values: &Values) -> Tried {
    match tried {
        Tried::Passed => Tried::Passed,
        Tried::Failed(message) => Tried::Failed(values.redact(&message)),
        Tried::NotYet(message) => Tried::NotYet(values.redact(&message)),
        Tried::Trouble { message, retry_after } => Tried::Trouble {
            message: values.redact(&message),
            retry_after,
        },
    }
}
