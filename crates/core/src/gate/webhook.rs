//! What is sent to a webhook, and what its answer means.

use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::Sha256;
use starling_api::{EntryRevision, RolloutDirection};

use super::Tried;

/// Header: when the request was signed, in seconds since 1970.
pub const TIMESTAMP: &str = "starling-timestamp";
/// Header: the signature.
pub const SIGNATURE: &str = "starling-signature";
/// Header: the same for each try of a gate, whoever makes it.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// What a webhook is told. Between two tries of the same gate only the counts may differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Question {
    /// The group's namespace.
    pub namespace: String,
    /// The group.
    pub group: String,
    /// The number of the rollout.
    pub rollout: i64,
    /// Digest of the release.
    pub release: String,
    /// Revision of each entry.
    pub revisions: Vec<EntryRevision>,
    /// Which way it goes.
    pub direction: RolloutDirection,
    /// The stage.
    pub stage: String,
    /// The list of the task: `beforeStageTasks` or `afterStageTasks`.
    pub list: &'static str,
    /// Its place there.
    pub task: usize,
    /// When it became its turn, RFC 3339.
    pub start_time: String,
    /// The clusters of the stage.
    pub clusters: Clusters,
}

/// How many clusters of a stage stand how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Clusters {
    /// All.
    pub total: usize,
    /// Done.
    pub updated: usize,
    /// Failed.
    pub failed: usize,
}

impl Question {
    /// The bytes that are sent and signed.
    #[must_use]
    pub fn body(&self) -> Vec<u8> {
        // Strings and numbers: this cannot fail.
        serde_json::to_vec(self).unwrap_or_default()
    }
}

/// The signature of a request: `v1=` and the HMAC-SHA256, in hex, of the timestamp, a dot, and the body. `None`: nothing can be signed
/// with such a key.
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
struct Answer {
    #[serde(default)]
    result: Option<Value>,
    #[serde(default)]
    message: Option<Value>,
}

/// What an answer means.
#[must_use]
pub fn read(status: u16, body: &[u8]) -> Tried {
    let Ok(Answer { result, message }) = parse(body) else {
        return Tried::trouble(format!(
            "the webhook answered {status} with JSON that cannot be read"
        ));
    };
    let message = message
        .as_ref()
        .and_then(Value::as_str)
        .filter(|text| !text.is_empty());
    let said = |otherwise: &str| message.unwrap_or(otherwise).to_owned();
    match status {
        200..=299 => match result.as_ref().map(Value::as_str) {
            None | Some(Some("Passed")) => Tried::Passed,
            Some(Some("Failed")) => Tried::Failed(said("the webhook answered Failed")),
            Some(Some("Pending")) => Tried::NotYet(said("the webhook answered Pending")),
            Some(_) => Tried::Failed(
                "the webhook's answer has a result that is none of Passed, Failed and Pending".to_owned(),
            ),
        },
        300..=399 => Tried::Failed(format!(
            "the webhook answered {status}; it is not followed to another place"
        )),
        _ => {
            let code = format!("the webhook answered {status}");
            let whole = message.map_or_else(|| code.clone(), |text| format!("{code}: {text}"));
            if is_worth_another_try(status) {
                Tried::trouble(whole)
            } else {
                Tried::Failed(whole)
            }
        }
    }
}

/// A body that does not even look like an object has no result. One that does and is cut off may have had one.
fn parse(body: &[u8]) -> Result<Answer, serde_json::Error> {
    if body.trim_ascii_start().starts_with(b"{") {
        serde_json::from_slice(body)
    } else {
        Ok(Answer::default())
    }
}

/// Whether the same request may get another answer: the server is in trouble, or busy.
pub(super) fn is_worth_another_try(status: u16) -> bool {
    matches!(status, 408 | 425 | 429) || status >= 500
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trouble(message: &str) -> Tried {
        Tried::trouble(message)
    }

    #[test]
    fn the_answer_decides() {
        let failed = |text: &str| Tried::Failed(text.to_owned());
        let not_yet = |text: &str| Tried::NotYet(text.to_owned());
        for (status, body, expected) in [
            (200, "", Tried::Passed),
            (204, "", Tried::Passed),
            (200, "ok", Tried::Passed),
            (200, r#"{"message": "fine"}"#, Tried::Passed),
            (200, r#"{"result": null}"#, Tried::Passed),
            (202, r#"{"result": "Passed"}"#, Tried::Passed),
            (
                200,
                r#"{"result": "Failed"}"#,
                failed("the webhook answered Failed"),
            ),
            (
                200,
                r#"{"result": "Failed", "message": "3 of 9 tests"}"#,
                failed("3 of 9 tests"),
            ),
            (
                200,
                r#"{"result": "Pending"}"#,
                not_yet("the webhook answered Pending"),
            ),
            (
                200,
                r#"{"result": "Pending", "message": "half"}"#,
                not_yet("half"),
            ),
            (
                200,
                r#"{"result": "passed"}"#,
                failed("the webhook's answer has a result that is none of Passed, Failed and Pending"),
            ),
            (
                200,
                r#"{"result": true}"#,
                failed("the webhook's answer has a result that is none of Passed, Failed and Pending"),
            ),
            (
                200,
                r#"{"result": "Failed", "message": {"tests": 3}}"#,
                failed("the webhook answered Failed"),
            ),
            (
                200,
                r#"{"result": "Fail"#,
                trouble("the webhook answered 200 with JSON that cannot be read"),
            ),
            (
                302,
                "",
                failed("the webhook answered 302; it is not followed to another place"),
            ),
            (400, "", failed("the webhook answered 400")),
            (
                403,
                r#"{"message": "who are you"}"#,
                failed("the webhook answered 403: who are you"),
            ),
            // A result counts only in a success.
            (404, r#"{"result": "Passed"}"#, failed("the webhook answered 404")),
            (408, "", trouble("the webhook answered 408")),
            (425, "", trouble("the webhook answered 425")),
            (429, "", trouble("the webhook answered 429")),
            (
                500,
                r#"{"result": "Failed"}"#,
                trouble("the webhook answered 500"),
            ),
            (
                503,
                r#"{"message": "restarting"}"#,
                trouble("the webhook answered 503: restarting"),
            ),
        ] {
            assert_eq!(read(status, body.as_bytes()), expected, "{status} {body}");
        }
    }

    /// From `printf '1800000000.{}' | openssl dgst -sha256 -hmac key`.
    #[test]
    fn the_signature_is_what_openssl_computes() {
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
