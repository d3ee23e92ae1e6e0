//! From an answer that is not a success to a [`MemberError`].
//!
//! The words of a member are somebody else's: they may be long, hold control characters, or quote what was sent.

use std::borrow::Cow;
use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;

use super::call::What;
use super::error::{FieldConflict, MemberError};

/// Bytes of the member's words in an error.
const MESSAGE_LIMIT: usize = 512;
/// Fields of a conflict, and field paths of a Secret, that are kept.
const FIELDS_LIMIT: usize = 50;
/// Bytes of one field path or manager name.
const NAME_LIMIT: usize = 128;
/// A member that asks for a longer pause gets this one: the scheduler has its own, and an error must not park a cluster.
const RETRY_AFTER_LIMIT: Duration = Duration::from_secs(300);

/// How an API server begins its words about an object that does not fit its schema. It sends them as a failure of
/// its own (500), though no later attempt with the same object can succeed.
const UNTYPED: &str = "failed to create typed patch object";

/// What an API server writes where a field cannot be changed: there is no reason of its own for it, and each kind has
/// its own words (kube-apiserver 1.35: Job, Service, PersistentVolumeClaim, StorageClass, RoleBinding, Pod).
const IMMUTABLE: [&str; 6] = [
    "immutable",
    "may not change",
    "cannot change",
    "cannot be changed",
    "updates to ",
    "can not be less than",
];

/// The parts of `meta/v1` Status that are used.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    kind: String,
    message: String,
    reason: String,
    details: Details,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Details {
    causes: Vec<Cause>,
    retry_after_seconds: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Cause {
    reason: String,
    message: String,
    field: String,
}

/// Takes what must not be repeated out of a member's words.
pub(super) struct Redactor<'a> {
    /// The bearer token that the member has seen.
    pub(super) token: Option<&'a str>,
}

impl Redactor<'_> {
    /// At most `limit` bytes, without control characters and without our token.
    pub(super) fn clean(&self, text: &str, limit: usize) -> String {
        let text = match self.token {
            Some(token) if text.contains(token) => text.replace(token, "[token]"),
            _ => text.to_owned(),
        };
        let mut clean = String::with_capacity(text.len().min(limit));
        for character in text.chars().map(|c| if c.is_control() { ' ' } else { c }) {
            if clean.len() + character.len_utf8() > limit {
                break;
            }
            clean.push(character);
        }
        clean
    }
}

/// The error for an answer with a status that is not 2xx.
///
/// `retry_after` is the header of that name. A gateway in front of a dead API server answers 502, 503 or 504 in
/// its own form: without a Status body these count as no answer.
pub(super) fn refusal(
    what: What<'_>,
    code: StatusCode,
    retry_after: Option<&str>,
    body: &[u8],
    redact: &Redactor<'_>,
) -> MemberError {
    let request = what.to_string();
    let status: Option<Status> = serde_json::from_slice(body)
        .ok()
        .filter(|status: &Status| status.kind == "Status");
    let spoken = status.is_some();
    let status = status.unwrap_or_default();
    let message = words(what, &status, redact);
    match code.as_u16() {
        401 => MemberError::Unauthorized { request },
        403 => MemberError::Forbidden { request, message },
        404 if spoken => MemberError::NotFound { request, message },
        404 => MemberError::NotServed { request },
        409 => MemberError::Conflict {
            request,
            fields: conflicts(&status, redact),
            message,
        },
        410 => MemberError::Expired { request },
        429 => MemberError::Throttled {
            request,
            retry_after: pause(retry_after, &status),
        },
        422 if is_immutable(&status) => MemberError::Immutable {
            request,
            message,
            advice: "take the change back, or delete the object",
        },
        code @ 400..=499 => MemberError::Invalid {
            request,
            code,
            message,
        },
        502..=504 if !spoken => MemberError::Unreachable {
            request,
            source: format!("a gateway answered {}", code.as_u16()).into(),
        },
        code @ 500 if status.message.starts_with(UNTYPED) => MemberError::Invalid {
            request,
            code,
            message,
        },
        code @ 500..=599 => MemberError::Server {
            request,
            code,
            message,
        },
        code @ 300..=399 => MemberError::Garbage {
            request,
            problem: format!("a redirect ({code}), which is not followed"),
        },
        code => MemberError::Garbage {
            request,
            problem: format!("status {code}"),
        },
    }
}

/// Whether a refusal is about a field that cannot be changed. Admission rules have no causes, only words.
fn is_immutable(status: &Status) -> bool {
    let says = |text: &str| {
        let text = text.to_lowercase();
        IMMUTABLE.iter().any(|words| text.contains(words))
    };
    let causes = &status.details.causes;
    causes.iter().any(|cause| says(&cause.message)) || (causes.is_empty() && says(&status.message))
}

/// The member's words, or for a Secret the reason and the paths of the fields: messages may quote values.
fn words(what: What<'_>, status: &Status, redact: &Redactor<'_>) -> String {
    if !what.is_secret() {
        let text = if status.message.is_empty() {
            &status.reason
        } else {
            &status.message
        };
        return redact.clean(text, MESSAGE_LIMIT);
    }
    let fields = status
        .details
        .causes
        .iter()
        .take(FIELDS_LIMIT)
        .map(|cause| cause.field.as_str());
    let fields: Vec<_> = fields
        .filter(|field| !field.is_empty())
        .map(|field| redact.clean(&lawful(field), NAME_LIMIT))
        .collect();
    let reason = redact.clean(&status.reason, NAME_LIMIT);
    if fields.is_empty() {
        reason
    } else {
        redact.clean(&format!("{reason}: {}", fields.join(", ")), MESSAGE_LIMIT)
    }
}

/// A field path of a Secret. A key in brackets that no Secret can have is left out: it is likely a value that was put in
/// the wrong place.
fn lawful(field: &str) -> Cow<'_, str> {
    let Some((before, key)) = field.split_once('[') else {
        return Cow::Borrowed(field);
    };
    let key = key.strip_suffix(']').unwrap_or(key);
    let is_lawful = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if key.chars().all(is_lawful) {
        Cow::Borrowed(field)
    } else {
        Cow::Owned(format!("{before}[…]"))
    }
}

/// The conflicts that a server-side apply reports: one cause for each field, the manager in quotes in its text.
fn conflicts(status: &Status, redact: &Redactor<'_>) -> Vec<FieldConflict> {
    let causes = status
        .details
        .causes
        .iter()
        .filter(|cause| cause.reason == "FieldManagerConflict");
    causes
        .take(FIELDS_LIMIT)
        .map(|cause| FieldConflict {
            field: redact.clean(&cause.field, NAME_LIMIT),
            manager: redact.clean(cause.message.split('"').nth(1).unwrap_or_default(), NAME_LIMIT),
        })
        .collect()
}

fn pause(header: Option<&str>, status: &Status) -> Option<Duration> {
    let seconds = header
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(status.details.retry_after_seconds);
    (seconds > 0).then(|| Duration::from_secs(seconds).min(RETRY_AFTER_LIMIT))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use starling_core::object::ObjectKey;

    use super::*;

    const NO_TOKEN: Redactor<'static> = Redactor { token: None };

    fn key(kind: &str) -> ObjectKey {
        ObjectKey {
            group: String::new(),
            kind: kind.into(),
            namespace: "shop".into(),
            name: "web".into(),
        }
    }

    fn error(kind: &str, code: u16, body: &str) -> MemberError {
        let key = key(kind);
        let code = StatusCode::from_u16(code).unwrap();
        refusal(
            What::object("apply", &key),
            code,
            None,
            body.as_bytes(),
            &NO_TOKEN,
        )
    }

    #[test]
    fn each_status_has_its_error() {
        let spoken = r#"{"kind":"Status","message":"words","reason":"Why"}"#;
        let cases = [
            (
                401,
                spoken,
                "apply ConfigMap shop/web: the cluster does not accept the credentials",
            ),
            (403, spoken, "apply ConfigMap shop/web: forbidden: words"),
            (404, spoken, "apply ConfigMap shop/web: not found: words"),
            (
                404,
                "404 page not found",
                "apply ConfigMap shop/web: the cluster does not serve this path",
            ),
            (
                404,
                r#"{"kind":"List"}"#,
                "apply ConfigMap shop/web: the cluster does not serve this path",
            ),
            (409, spoken, "apply ConfigMap shop/web: conflict: words"),
            (410, spoken, "apply ConfigMap shop/web: the list expired"),
            (
                429,
                spoken,
                "apply ConfigMap shop/web: the cluster asks to slow down",
            ),
            (400, spoken, "apply ConfigMap shop/web: refused (400): words"),
            (422, spoken, "apply ConfigMap shop/web: refused (422): words"),
            (
                500,
                spoken,
                "apply ConfigMap shop/web: the cluster failed (500): words",
            ),
            (
                503,
                spoken,
                "apply ConfigMap shop/web: the cluster failed (503): words",
            ),
            (500, "", "apply ConfigMap shop/web: the cluster failed (500): "),
            (
                503,
                "<html>",
                "apply ConfigMap shop/web: no answer from the cluster",
            ),
        ];
        for (code, body, expected) in cases {
            assert_eq!(error("ConfigMap", code, body).to_string(), expected, "{code}");
        }
        let untyped = r#"{"kind":"Status","message":"failed to create typed patch object (x): y"}"#;
        for kind in ["ConfigMap", "Secret"] {
            assert!(matches!(
                error(kind, 500, untyped),
                MemberError::Invalid { code: 500, .. }
            ));
        }
        for code in [301, 302, 307, 308, 100, 999] {
            assert!(
                matches!(error("ConfigMap", code, ""), MemberError::Garbage { .. }),
                "{code}"
            );
        }
    }

    #[test]
    fn a_value_in_the_place_of_a_secrets_key_is_not_repeated() {
        for (field, expected) in [
            ("data[tls.key]", "data[tls.key]"),
            ("data", "data"),
            ("data[hunter 2!]", "data[…]"),
            ("data[", "data["),
            ("data[a]b c]", "data[…]"),
        ] {
            assert_eq!(lawful(field), expected);
        }
    }

    #[test]
    fn a_conflict_names_fields_and_managers() {
        let body = json!({"kind": "Status", "reason": "Conflict", "message": "Apply failed", "details": {"causes": [
            {"reason": "FieldManagerConflict", "message": "conflict with \"kubectl-edit\" using apps/v1", "field": ".spec.replicas"},
            {"reason": "FieldManagerConflict", "message": "conflict", "field": ".data.a"},
            {"reason": "Other", "message": "x", "field": ".y"},
        ]}});
        let MemberError::Conflict { fields, .. } = error("ConfigMap", 409, &body.to_string()) else {
            panic!()
        };
        let expected =
            [(".spec.replicas", "kubectl-edit"), (".data.a", "")].map(|(field, manager)| FieldConflict {
                field: field.into(),
                manager: manager.into(),
            });
        assert_eq!(fields, expected);
    }

    #[test]
    fn words_about_a_secret_are_reason_and_paths() {
        let body = json!({"kind": "Status", "reason": "Invalid", "message": "data.key: Invalid value: \"hunter2\"",
            "details": {"causes": [{"reason": "FieldValueInvalid", "message": "Invalid value: \"hunter2\"", "field": "data.key"}]}});
        for code in [403, 404, 409, 422, 500] {
            let error = error("Secret", code, &body.to_string());
            let text = format!("{error} {error:?}");
            assert!(
                !text.contains("hunter2") && text.contains("Invalid: data.key"),
                "{text}"
            );
        }
        let other = error("ConfigMap", 422, &body.to_string()).to_string();
        assert!(other.contains("hunter2"));
    }

    /// The words are those of kube-apiserver 1.35.
    #[test]
    fn a_field_that_cannot_be_changed_is_told_from_one_that_is_wrong() {
        let with = |kind: &str, causes: serde_json::Value| {
            let body = json!({"kind": "Status", "reason": "Invalid", "message": "words", "details": {"causes": causes}});
            matches!(error(kind, 422, &body.to_string()), MemberError::Immutable { .. })
        };
        for words in [
            "Invalid value: [\"10.0.0.9\"]: may not change once set",
            "Invalid value: {\"a\":1}: field is immutable",
            "Forbidden: spec is immutable after creation except resources.requests",
            "Forbidden: updates to statefulset spec for fields other than 'replicas' are forbidden",
            "Forbidden: field can not be less than status.capacity",
            "Invalid value: {\"kind\":\"ClusterRole\"}: cannot change roleRef",
        ] {
            assert!(
                with("ConfigMap", json!([{"message": words, "field": "spec"}])),
                "{words}"
            );
        }
        for words in [
            "Unsupported value: \"Sometimes\"",
            "Required value",
            "Invalid value: \"\": must be a DNS label",
        ] {
            assert!(
                !with("ConfigMap", json!([{"message": words, "field": "spec"}])),
                "{words}"
            );
        }
        // An admission rule has words and no causes.
        let body = json!({"kind": "Status", "reason": "Invalid", "message": "size is immutable"}).to_string();
        assert!(matches!(
            error("ConfigMap", 422, &body),
            MemberError::Immutable { .. }
        ));
        assert!(matches!(
            error("ConfigMap", 400, &body),
            MemberError::Invalid { .. }
        ));
        let secret = json!({"kind": "Status", "reason": "Invalid", "message": "x", "details": {"causes":
            [{"message": "Invalid value: \"hunter2\": field is immutable", "field": "type"}]}});
        let text = format!("{:?}", error("Secret", 422, &secret.to_string()));
        assert!(text.contains("Immutable") && !text.contains("hunter2"), "{text}");
    }

    #[test]
    fn words_are_short_clean_and_without_our_token() {
        let message = format!("Bearer abc.def \u{1b}[31m{}", "ä".repeat(600));
        let body = json!({"kind": "Status", "message": message}).to_string();
        let key = key("ConfigMap");
        let redact = Redactor {
            token: Some("abc.def"),
        };
        let error = refusal(
            What::object("get", &key),
            StatusCode::BAD_REQUEST,
            None,
            body.as_bytes(),
            &redact,
        );
        let MemberError::Invalid { message, .. } = error else {
            panic!()
        };
        assert!(message.starts_with("Bearer [token]  [31m"), "{message}");
        assert!(message.len() <= MESSAGE_LIMIT && message.len() > MESSAGE_LIMIT - 2);
    }

    #[test]
    fn the_pause_comes_from_the_header_or_the_body_and_is_bounded() {
        let body = r#"{"kind":"Status","details":{"retryAfterSeconds":7}}"#.as_bytes();
        let key = key("ConfigMap");
        let pause = |header, body| match refusal(
            What::object("get", &key),
            StatusCode::TOO_MANY_REQUESTS,
            header,
            body,
            &NO_TOKEN,
        ) {
            MemberError::Throttled { retry_after, .. } => retry_after.map(|pause| pause.as_secs()),
            other => panic!("{other}"),
        };
        assert_eq!(pause(Some("3"), body), Some(3));
        assert_eq!(pause(None, body), Some(7));
        assert_eq!(pause(Some("Wed, 21 Oct"), body), Some(7));
        assert_eq!(pause(Some("86400"), body), Some(300));
        assert_eq!(pause(None, b""), None);
    }
}
