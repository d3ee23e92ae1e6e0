//! Asks a webhook.

use starling_core::gate::Tried;
use starling_core::gate::webhook::{IDEMPOTENCY_KEY, SIGNATURE, TIMESTAMP, read, signature};

use super::errand::Errand;
use super::secret;
use crate::web::Post;

/// Asks once.
pub(super) async fn ask(errand: &Errand, url: &str, secret: &str) -> Tried {
    match try_to_ask(errand, url, secret).await {
        Ok(tried) | Err(tried) => tried,
    }
}

async fn try_to_ask(errand: &Errand, url: &str, secret: &str) -> Result<Tried, Tried> {
    let values = secret::read(errand, "webhook.secretRef", secret).await?;
    let body = errand.question.body();
    let signed_at = errand.clock.now().as_second();
    let signed = signature(values.signing_key()?, signed_at, &body)
        .ok_or_else(|| Tried::trouble("webhook.secretRef: the token can sign nothing"))?;
    let post = Post {
        url: url.to_owned(),
        content_type: "application/json",
        headers: vec![
            (TIMESTAMP, signed_at.to_string()),
            (SIGNATURE, signed),
            (IDEMPOTENCY_KEY, errand.id.key()),
        ],
        body,
        ca: values.authorities(),
    };
    let reply = errand.post(&post).await?;
    Ok(errand.with_time(read(reply.status, &reply.body), &reply))
}
