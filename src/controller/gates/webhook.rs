//! Calls a webhook.

use starling_core::gate::Evaluation;
use starling_core::gate::webhook::{IDEMPOTENCY_KEY, SIGNATURE, TIMESTAMP, read, signature};
use starling_net::web::Post;

use super::gate_task::GateTask;
use super::secret;

/// Sends the request once and evaluates the response.
pub(super) async fn evaluate(gate: &GateTask, url: &str, secret: &str) -> Evaluation {
    match try_to_evaluate(gate, url, secret).await {
        Ok(evaluation) | Err(evaluation) => evaluation,
    }
}

async fn try_to_evaluate(gate: &GateTask, url: &str, secret: &str) -> Result<Evaluation, Evaluation> {
    let values = secret::read(gate, "webhook.secretRef", secret).await?;
    let body = gate.request.body();
    let signed_at = gate.tools.clock.now().as_second();
    let signed = signature(values.signing_key()?, signed_at, &body)
        .ok_or_else(|| Evaluation::error("webhook.secretRef: cannot sign with the token"))?;
    let post = Post {
        url: url.to_owned(),
        content_type: "application/json",
        headers: vec![
            (TIMESTAMP, signed_at.to_string()),
            (SIGNATURE, signed),
            (IDEMPOTENCY_KEY, gate.id.key()),
        ],
        body,
        ca: values.authorities(),
    };
    let reply = gate.post(&post).await?;
    Ok(gate.with_time(read(reply.status, &reply.body), &reply))
}
