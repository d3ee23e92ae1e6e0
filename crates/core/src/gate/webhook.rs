//! The request to a webhook, and the meaning of its response.

use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::Sha256;
use starling_api::{EntryRevision, RolloutDirection};

use super::Evaluation;
use crate::ids::RolloutNumber;

/// The header with the time of the signature, in seconds since 1970.
pub const TIMESTAMP: &str = "starling-timestamp";
/// The header with the signature.
pub const SIGNATURE: &str = "starling-signature";
/// The header with a key that is the same for each evaluation of a gate.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// The body of the request. Only the counts may differ between two requests of the same gate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct GateRequest {
    /// The namespace of the group.
    pub namespace: String,
    /// The name of the group.
    pub group: String,
    /// The number of the rollout.
    pub rollout: RolloutNumber,
    /// The digest of the release.
    pub release: String,
    /// The revision of each entry.
    pub revisions: Vec<EntryRevision>,
    /// The direction of the rollout.
    pub direction: RolloutDirection,
    /// The stage.
    pub stage: String,
    /// The list of the task: `beforeStageTasks` or `afterStageTasks`.
    pub list: &'static str,
    /// The index in the list.
    pub task: usize,
    /// Time at which the turn of the gate came, in RFC 3339 format.
    pub start_time: String,
    /// The clusters of the stage.
    pub clusters: Clusters,
}

/// The counts of the clusters of a stage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Clusters {
    /// All clusters.
    pub total: usize,
    /// Clusters that are done.
    pub updated: usize,
    /// Failed clusters.
    pub failed: usize,
}

impl GateRequest {
    /// Returns the bytes that are sent and signed.
    #[must_use]
    pub fn body(&self) -> Vec<u8> {
        // Strings and numbers cannot fail to serialise.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// Returns the signature of a request: `v1=` and the HMAC-SHA256, in hex, of the timestamp, a dot, and the body.
/// `None`: the key is not usable.
#[must_use]
pub fn signature(key: &[u8], timestamp: i64, body: &[u8]) -> Option<String> {
    if key.is_empty() {
        return None;
    }
    let mut mac = Hmac::<Sha256>::new_from_slice(key).ok()?;
    mac.update(timestamp.to_string().as_bytes());
    mac.update(b".");
    mac.update(body);
    Some(format!("v1={}", hex::encode(mac.finalize().into_bytes())))
}

#[derive(Default, Deserialize)]
struct Response {
    #[serde(default)]
    result: Option<Value>,
    #[serde(default)]
    message: Option<Value>,
}

/// Returns the meaning of a response.
#[must_use]
pub fn read(status: u16, body: &[u8]) -> Evaluation {
    let Ok(Response { result, message }) = parse(body) else {
        return Evaluation::error(format!("the webhook responded with {status} and invalid JSON"));
    };
    let message = message
        .as_ref()
        .and_then(Value::as_str)
        .filter(|text| !text.is_empty());
    let text = |otherwise: &str| message.unwrap_or(otherwise).to_owned();
    match status {
        200..=299 => match result.as_ref().map(Value::as_str) {
            None | Some(Some("Passed")) => Evaluation::Passed,
            Some(Some("Failed")) => Evaluation::Failed(text("the webhook responded with Failed")),
            Some(Some("Pending")) => Evaluation::Pending(text("the webhook responded with Pending")),
            Some(_) => Evaluation::Failed(
                "the webhook's response has a result other than Passed, Failed and Pending".to_owned(),
            ),
        },
        300..=399 => Evaluation::Failed(format!(
            "the webhook responded with {status}; redirects are not followed"
        )),
        _ => {
            let code = format!("the webhook responded with {status}");
            let whole = message.map_or_else(|| code.clone(), |text| format!("{code}: {text}"));
            if is_retryable(status) {
                Evaluation::error(whole)
            } else {
                Evaluation::Failed(whole)
            }
        }
    }
}

/// Parses the body of a response. A body that does not look like an object has no result. One that does and is
/// truncated may have had one.
fn parse(body: &[u8]) -> Result<Response, serde_json::Error> {
    if body.trim_ascii_start().starts_with(b"{") {
        serde_json::from_slice(body)
    } else {
        Ok(Response::default())
    }
}

/// Reports whether the same request may get another response: the server has a failure, or is busy.
pub(super) fn is_retryable(status: u16) -> bool {
    matches!(status, 408 | 425 | 429) || status >= 500
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(message: &str) -> Evaluation {
        Evaluation::error(message)
    }

    #[test]
    fn the_response_decides() {
        let failed = |text: &str| Evaluation::Failed(text.to_owned());
        let not_yet = |text: &str| Evaluation::Pending(text.to_owned());
        for (status, body, expected) in [
            (200, "", Evaluation::Passed),
            (204, "", Evaluation::Passed),
            (200, "ok", Evaluation::Passed),
            (200, r#"{"message": "fine"}"#, Evaluation::Passed),
            (200, r#"{"result": null}"#, Evaluation::Passed),
            (202, r#"{"result": "Passed"}"#, Evaluation::Passed),
            (
                200,
                r#"{"result": "Failed"}"#,
                failed("the webhook responded with Failed"),
            ),
            (
                200,
                r#"{"result": "Failed", "message": "3 of 9 tests"}"#,
                failed("3 of 9 tests"),
            ),
            (
                200,
                r#"{"result": "Pending"}"#,
                not_yet("the webhook responded with Pending"),
            ),
            (
                200,
                r#"{"result": "Pending", "message": "half"}"#,
                not_yet("half"),
            ),
            (
                200,
                r#"{"result": "passed"}"#,
                failed("the webhook's response has a result other than Passed, Failed and Pending"),
            ),
            (
                200,
                r#"{"result": true}"#,
                failed("the webhook's response has a result other than Passed, Failed and Pending"),
            ),
            (
                200,
                r#"{"result": "Failed", "message": {"tests": 3}}"#,
                failed("the webhook responded with Failed"),
            ),
            (
                200,
                r#"{"result": "Fail"#,
                error("the webhook responded with 200 and invalid JSON"),
            ),
            (
                302,
                "",
                failed("the webhook responded with 302; redirects are not followed"),
            ),
            (400, "", failed("the webhook responded with 400")),
            (
                403,
                r#"{"message": "who are you"}"#,
                failed("the webhook responded with 403: who are you"),
            ),
            // A result counts only in a successful response.
            (
                404,
                r#"{"result": "Passed"}"#,
                failed("the webhook responded with 404"),
            ),
            (408, "", error("the webhook responded with 408")),
            (425, "", error("the webhook responded with 425")),
            (429, "", error("the webhook responded with 429")),
            (
                500,
                r#"{"result": "Failed"}"#,
                error("the webhook responded with 500"),
            ),
            (
                503,
                r#"{"message": "restarting"}"#,
                error("the webhook responded with 503: restarting"),
            ),
        ] {
            assert_eq!(read(status, body.as_bytes()), expected, "{status} {body}");
        }
    }

    /// From `printf '1800000000.{}' | openssl dgst -sha256 -hmac key`.
    #[test]
    fn the_signature_equals_that_of_openssl() {
        assert_eq!(
            signature(b"key", 1_800_000_000, b"{}").as_deref(),
            Some("v1=7321475872b03ff21bdc2dfd86ea2d99ec29c479fbe4a77aa6acf4509505493f")
        );
        assert_eq!(signature(b"", 1_800_000_000, b"{}"), None);
        assert_ne!(
            signature(b"key", 1_800_000_001, b"{}"),
            signature(b"key", 1_800_000_000, b"{}")
        );
    }
}
