//! Converts an error response to a [`MemberError`].
//!
//! The message of a member is not trusted: it may be long, contain control characters, or quote the request.

use std::borrow::Cow;
use std::time::Duration;

use http::StatusCode;
use serde::Deserialize;
use starling_core::pause;
use starling_core::secret_values::SecretValues;

use super::call::Operation;
use super::error::{FieldConflict, MemberError};

/// Maximum bytes of the message of a member in an error.
const MESSAGE_LIMIT: usize = 512;
/// Maximum fields of a conflict, and field paths of a Secret, that are kept.
const FIELDS_LIMIT: usize = 50;
/// Maximum bytes of one field path or manager name.
const NAME_LIMIT: usize = 128;

/// The start of the message of an API server about an object that does not match its schema. The API server sends
/// status 500, although no later attempt with the same object can succeed.
const NOT_TYPED: &str = "failed to create typed patch object";

/// Parts of the messages of an API server about immutable fields: there is no reason code for them, and each kind has
/// its own message (kube-apiserver 1.35: Job, Service, PersistentVolumeClaim, StorageClass, RoleBinding, Pod).
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

/// The fields of a Secret.
const SECRET_FIELDS: [&str; 5] = ["metadata", "type", "data", "stringData", "immutable"];
/// The keys that a Secret may be refused for although it does not have them: fields of `metadata`, and those that the
/// built-in types require.
const KNOWN_KEYS: [&str; 13] = [
    "name",
    "namespace",
    "labels",
    "annotations",
    "ownerReferences",
    "tls.crt",
    "tls.key",
    ".dockerconfigjson",
    ".dockercfg",
    "username",
    "password",
    "ssh-privatekey",
    "token",
];
/// The reasons of Kubernetes. Any other text of a member in this place is not repeated for a Secret.
const REASONS: [&str; 20] = [
    "Unauthorized",
    "Forbidden",
    "NotFound",
    "AlreadyExists",
    "Conflict",
    "Gone",
    "Invalid",
    "ServerTimeout",
    "StoreReadError",
    "Timeout",
    "TooManyRequests",
    "BadRequest",
    "MethodNotAllowed",
    "NotAcceptable",
    "RequestEntityTooLarge",
    "UnsupportedMediaType",
    "InternalError",
    "Expired",
    "ServiceUnavailable",
    "FieldManagerConflict",
];

/// Removes from a message of a member what must not be repeated.
pub(super) struct Redactor<'a> {
    /// The bearer token that is sent to the member.
    pub(super) token: Option<&'a str>,
    /// The values that the member was sent.
    pub(super) secrets: &'a SecretValues,
}

impl Redactor<'_> {
    /// Returns at most `limit` bytes, without control characters and without the token.
    pub(super) fn clean(&self, text: &str, limit: usize) -> String {
        let text = match self.token {
            Some(token) if text.contains(token) => text.replace(token, "[token]"),
            _ => text.to_owned(),
        };
        let text = self.secrets.removed_from(&text);
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

/// Returns the error for a response with a status that is not 2xx.
///
/// `retry_after` is the value of the header of that name. A gateway in front of a dead API server responds with 502,
/// 503 or 504 in its own form: without a Status body, these count as no response.
pub(super) fn refusal(
    operation: Operation<'_>,
    code: StatusCode,
    retry_after: Option<Duration>,
    body: &[u8],
    redact: &Redactor<'_>,
) -> MemberError {
    let request = operation.to_string();
    let status: Option<Status> = serde_json::from_slice(body)
        .ok()
        .filter(|status: &Status| status.kind == "Status");
    let is_status = status.is_some();
    let status = status.unwrap_or_default();
    let message = message_of(operation, &status, redact);
    match code.as_u16() {
        401 => MemberError::Unauthorized { request },
        403 => MemberError::Forbidden { request, message },
        404 if is_status => MemberError::NotFound { request, message },
        404 => MemberError::NotServed { request },
        409 => MemberError::Conflict {
            request,
            fields: conflicts(&status, redact),
            message,
        },
        410 => MemberError::Expired { request },
        429 => MemberError::Throttled {
            request,
            retry_after: requested_pause(retry_after, &status),
        },
        422 if is_immutable(&status) => MemberError::Immutable {
            request,
            message,
            obstacle: None,
        },
        // Without the header, a 503 may last forever; with it, the server is available and names the time of the next
        // request.
        503 if retry_after.is_some() => MemberError::Throttled { request, retry_after },
        code @ 400..=499 => MemberError::Invalid {
            request,
            code,
            message,
        },
        502..=504 if !is_status => MemberError::Unreachable {
            request,
            source: format!("a gateway responded with {}", code.as_u16()).into(),
        },
        code @ 500 if status.message.starts_with(NOT_TYPED) => MemberError::Invalid {
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

/// Whether an error is about an immutable field. Errors of admission rules have no causes, only a message.
fn is_immutable(status: &Status) -> bool {
    let describes_immutable = |text: &str| {
        let text = text.to_lowercase();
        IMMUTABLE.iter().any(|words| text.contains(words))
    };
    let causes = &status.details.causes;
    causes.iter().any(|cause| describes_immutable(&cause.message))
        || (causes.is_empty() && describes_immutable(&status.message))
}

/// Returns the message of the member, or for a Secret the reason and the field paths, because messages may quote
/// values.
fn message_of(operation: Operation<'_>, status: &Status, redact: &Redactor<'_>) -> String {
    if !operation.is_secret() {
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
        .map(|field| redact.clean(&printable_path(field, redact.secrets), NAME_LIMIT))
        .collect();
    let reason = REASONS.iter().find(|reason| **reason == status.reason);
    let reason = reason.map_or_else(|| "refused".to_owned(), |reason| (*reason).to_owned());
    if fields.is_empty() {
        reason
    } else {
        redact.clean(&format!("{reason}: {}", fields.join(", ")), MESSAGE_LIMIT)
    }
}

/// Returns a field path of a Secret: a field that every Secret has, and the key if the applied Secret has it. A member
/// can make up a path of a value that it was sent, and a value may have been used as a key by mistake.
fn printable_path(field: &str, secrets: &SecretValues) -> Cow<'static, str> {
    let (start, key) = field.split_at(field.find(['.', '[']).unwrap_or(field.len()));
    let Some(start) = SECRET_FIELDS.iter().find(|known| **known == start) else {
        return Cow::Borrowed("…");
    };
    let key = key.trim_matches(['.', '[', ']']);
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if key.is_empty() {
        Cow::Borrowed(start)
    } else if key.chars().all(is_allowed) && (secrets.has_key(key) || KNOWN_KEYS.contains(&key)) {
        Cow::Owned(field.to_owned())
    } else {
        Cow::Owned(format!("{start}[…]"))
    }
}

/// Returns the conflicts that a server-side apply reports: one cause for each field, with the manager quoted in its
/// message.
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

/// Returns the pause of the header, or else that of the body.
fn requested_pause(header: Option<Duration>, status: &Status) -> Option<Duration> {
    let seconds = status.details.retry_after_seconds;
    header.or((seconds > 0).then(|| pause::bounded(Duration::from_secs(seconds))))
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use starling_core::object::ObjectId;

    use std::sync::LazyLock;

    use super::*;

    /// A member that was sent a Secret with one key.
    fn no_token() -> Redactor<'static> {
        static NONE: LazyLock<SecretValues> =
            LazyLock::new(|| SecretValues::default().with_keys(["key".to_owned()].into()));
        Redactor {
            token: None,
            secrets: &NONE,
        }
    }

    fn key(kind: &str) -> ObjectId {
        ObjectId {
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
            Operation::object("apply", &key),
            code,
            None,
            body.as_bytes(),
            &no_token(),
        )
    }

    #[test]
    fn each_status_has_its_error() {
        let is_status = r#"{"kind":"Status","message":"words","reason":"Why"}"#;
        let cases = [
            (
                401,
                is_status,
                "apply ConfigMap shop/web: the cluster does not accept the credentials",
            ),
            (403, is_status, "apply ConfigMap shop/web: forbidden: words"),
            (404, is_status, "apply ConfigMap shop/web: not found: words"),
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
            (409, is_status, "apply ConfigMap shop/web: conflict: words"),
            (410, is_status, "apply ConfigMap shop/web: the list expired"),
            (
                429,
                is_status,
                "apply ConfigMap shop/web: the cluster asks to slow down",
            ),
            (400, is_status, "apply ConfigMap shop/web: refused (400): words"),
            (422, is_status, "apply ConfigMap shop/web: refused (422): words"),
            (
                500,
                is_status,
                "apply ConfigMap shop/web: the cluster failed (500): words",
            ),
            (
                503,
                is_status,
                "apply ConfigMap shop/web: the cluster failed (503): words",
            ),
            (500, "", "apply ConfigMap shop/web: the cluster failed (500): "),
            (
                503,
                "<html>",
                "apply ConfigMap shop/web: no response from the cluster",
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
    fn a_value_instead_of_a_key_of_a_secret_is_not_repeated() {
        let secrets = SecretValues::default().with_keys(["own.key".to_owned()].into());
        for (field, expected) in [
            ("data[own.key]", "data[own.key]"),
            ("data[tls.key]", "data[tls.key]"),
            ("stringData.own.key", "stringData.own.key"),
            ("metadata.name", "metadata.name"),
            ("data", "data"),
            ("data[hunter2]", "data[…]"),
            ("metadata.labels[hunter2]", "metadata[…]"),
            ("hunter2", "…"),
            ("data[hunter 2!]", "data[…]"),
            ("data[", "data"),
            ("data[a]b c]", "data[…]"),
        ] {
            assert_eq!(printable_path(field, &secrets), expected);
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
    fn the_message_about_a_secret_has_reason_and_paths_only() {
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

    /// The messages are those of kube-apiserver 1.35.
    #[test]
    fn immutable_and_invalid_fields_are_distinguished() {
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
        // An error of an admission rule has a message and no causes.
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
    fn messages_are_short_printable_and_without_the_token() {
        let message = format!("Bearer abc.def \u{1b}[31m{}", "ä".repeat(600));
        let body = json!({"kind": "Status", "message": message}).to_string();
        let key = key("ConfigMap");
        let redact = Redactor {
            token: Some("abc.def"),
            secrets: &SecretValues::default(),
        };
        let error = refusal(
            Operation::object("get", &key),
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

    /// A member knows what it was sent, and may repeat it in a message about any object, or as the path of a field.
    #[test]
    fn tenant_values_of_secrets_are_in_no_message_of_a_member() {
        let secrets = SecretValues::new(["hunter2".into()]);
        let redact = Redactor {
            token: None,
            secrets: &secrets,
        };
        let cause = json!({"field": "data[hunter2]", "message": "hunter2"});
        let body = json!({"kind": "Status", "reason": "Invalid hunter2", "message": "spec.pin: Invalid value: \"hunter2\"",
            "details": {"causes": [cause]}})
        .to_string();
        for kind in ["ConfigMap", "Secret", "Widget"] {
            for code in [400, 403, 404, 409, 422, 500] {
                let key = key(kind);
                let error = refusal(
                    Operation::object("apply", &key),
                    StatusCode::from_u16(code).unwrap(),
                    None,
                    body.as_bytes(),
                    &redact,
                );
                let text = format!("{error} {error:?}");
                assert!(!text.contains("hunter2"), "{kind} {code}: {text}");
            }
        }
    }

    #[test]
    fn the_pause_comes_from_the_header_or_the_body_and_is_bounded() {
        let body = r#"{"kind":"Status","details":{"retryAfterSeconds":7}}"#.as_bytes();
        let key = key("ConfigMap");
        let pause = |code: u16, header: Option<u64>, body| match refusal(
            Operation::object("get", &key),
            StatusCode::from_u16(code).unwrap(),
            header.map(Duration::from_secs),
            body,
            &no_token(),
        ) {
            MemberError::Throttled { retry_after, .. } => Ok(retry_after.map(|pause| pause.as_secs())),
            other => Err(other),
        };
        assert_eq!(pause(429, Some(3), body).unwrap(), Some(3));
        assert_eq!(pause(429, None, body).unwrap(), Some(7));
        let long = r#"{"kind":"Status","details":{"retryAfterSeconds":86400}}"#.as_bytes();
        assert_eq!(pause(429, None, long).unwrap(), Some(60));
        assert_eq!(pause(429, None, b"").unwrap(), None);
        assert_eq!(pause(503, Some(3), b"").unwrap(), Some(3));
        assert!(matches!(pause(503, None, body), Err(MemberError::Server { .. })));
        assert!(matches!(
            pause(503, None, b""),
            Err(MemberError::Unreachable { .. })
        ));
    }
}
