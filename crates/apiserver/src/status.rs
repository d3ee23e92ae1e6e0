//! The kind `Status`: responses to requests that failed, with the texts of Kubernetes.

use std::fmt;

use serde_json::{Map, Value, json};

pub use crate::cause::Cause;

/// Why a request failed.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// The HTTP status code.
    pub code: u16,
    /// The Kubernetes reason; empty if there is none.
    pub reason: &'static str,
    /// The message.
    pub message: String,
    /// The details of the failure.
    pub details: Details,
    /// The token with which a client can continue a list whose resource version has been compacted.
    pub continuation: Option<String>,
    /// Whether the response is the message as plain text, as for paths outside of the API.
    pub plain: bool,
    /// The warnings for the client.
    pub warnings: Vec<String>,
}

/// The details of a [`Status`].
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Details {
    /// The name of the object.
    pub name: String,
    /// The API group.
    pub group: String,
    /// The kind, or the plural name of the resource.
    pub kind: String,
    /// The UID of the object.
    pub uid: String,
    /// The causes, one for each error.
    pub causes: Vec<Cause>,
    /// The seconds after which to retry; 0 if unknown.
    pub retry_after: u32,
    /// Whether to write empty details, as Kubernetes does before it knows the resource.
    pub empty: bool,
}

impl Cause {
    /// Returns the cause of a string that is not one of the supported values.
    pub(crate) fn not_supported_text(field: impl Into<String>, bad: &str, supported: &[&str]) -> Self {
        Self::not_supported(field, &Value::String(bad.to_owned()), supported)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Status {}

/// Returns a resource or a kind with its group, such as `deployments.apps`.
pub(crate) fn qualified(what: &str, group: &str) -> String {
    if group.is_empty() {
        what.to_owned()
    } else {
        format!("{what}.{group}")
    }
}

impl Status {
    /// Returns a status without details.
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self {
            code,
            reason,
            message: message.into(),
            details: Details::default(),
            continuation: None,
            plain: false,
            warnings: Vec::new(),
        }
    }

    /// Adds warnings for the client.
    #[must_use]
    pub fn warning(mut self, warnings: Vec<String>) -> Self {
        self.warnings.extend(warnings);
        self
    }

    fn concerning(mut self, group: &str, kind: &str, name: &str) -> Self {
        self.details.group = group.to_owned();
        self.details.kind = kind.to_owned();
        self.details.name = name.to_owned();
        self
    }

    /// Returns the status for an object that does not exist.
    pub fn not_found(group: &str, plural: &str, name: &str) -> Self {
        let what = qualified(plural, group);
        Self::new(404, "NotFound", format!("{what} {name:?} not found")).concerning(group, plural, name)
    }

    /// Returns a status that Kubernetes returns before it knows the resource.
    fn with_empty_details(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        let mut status = Self::new(code, reason, message);
        status.details.empty = true;
        status
    }

    /// Returns the status for a resource that is not served.
    pub fn no_such_resource() -> Self {
        Self::with_empty_details(
            404,
            "NotFound",
            "the server could not find the requested resource",
        )
    }

    /// Returns the status for a path that is not served.
    pub fn no_such_path() -> Self {
        Self {
            plain: true,
            ..Self::new(404, "NotFound", "404 page not found\n")
        }
    }

    /// Returns the status for a document that does not exist: a response without a body.
    pub fn nothing() -> Self {
        Self {
            plain: true,
            ..Self::new(404, "NotFound", "")
        }
    }

    /// Returns the status for a verb that a custom resource does not support.
    pub fn verb_not_supported(group: &str, plural: &str, verb: &str) -> Self {
        let what = qualified(plural, group);
        let message = format!("{verb} is not supported on resources of kind {what:?}");
        Self::new(405, "MethodNotAllowed", message).concerning(group, plural, "")
    }

    /// Returns the status for a name that is taken.
    pub fn already_exists(group: &str, plural: &str, name: &str) -> Self {
        let what = qualified(plural, group);
        Self::new(409, "AlreadyExists", format!("{what} {name:?} already exists"))
            .concerning(group, plural, name)
    }

    /// Returns the status for a precondition that failed.
    pub fn conflict(group: &str, plural: &str, name: &str, why: impl fmt::Display) -> Self {
        let what = qualified(plural, group);
        Self::new(
            409,
            "Conflict",
            format!("Operation cannot be fulfilled on {what} {name:?}: {why}"),
        )
        .concerning(group, plural, name)
    }

    /// Returns the status for an object that changed since the client read it.
    pub fn modified(group: &str, plural: &str, name: &str) -> Self {
        Self::conflict(
            group,
            plural,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// Returns the status for an invalid object.
    pub fn invalid(group: &str, kind: &str, name: &str, causes: Vec<Cause>) -> Self {
        let what = qualified(kind, group);
        let mut texts: Vec<String> = Vec::new();
        for cause in &causes {
            let text = cause.to_string();
            if !texts.contains(&text) {
                texts.push(text);
            }
        }
        let texts = match texts.as_slice() {
            [only] => only.clone(),
            all => format!("[{}]", all.join(", ")),
        };
        let mut status = Self::new(422, "Invalid", format!("{what} {name:?} is invalid: {texts}"))
            .concerning(group, kind, name);
        status.details.causes = causes;
        status
    }

    /// Returns the status for a request that cannot be read.
    pub fn bad_request(message: impl fmt::Display) -> Self {
        Self::new(400, "BadRequest", message.to_string())
    }

    /// Returns the status for a request that is forbidden.
    pub fn forbidden(group: &str, plural: &str, name: &str, why: impl fmt::Display) -> Self {
        let what = qualified(plural, group);
        Self::new(403, "Forbidden", format!("{what} {name:?} is forbidden: {why}"))
            .concerning(group, plural, name)
    }

    /// Returns the status for a request without valid credentials.
    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    /// Returns the status for a verb that the resource does not support.
    pub fn method_not_allowed() -> Self {
        Self::with_empty_details(
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        )
    }

    /// Returns the status for a feature of Kubernetes that this server does not have.
    pub fn not_implemented(what: impl fmt::Display) -> Self {
        Self::new(
            501,
            "NotImplemented",
            format!("{what} is not supported by the embedded API server"),
        )
    }

    /// Returns the status for a resource version that has been compacted.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// Returns the status for a resource version that the cluster has not reached.
    pub fn too_large_revision(asked: u64, current: u64) -> Self {
        let mut status = Self::new(
            504,
            "Timeout",
            format!("Timeout: Too large resource version: {asked}, current: {current}"),
        );
        status.details.retry_after = 1;
        status.details.causes.push(Cause {
            reason: "ResourceVersionTooLarge",
            field: String::new(),
            message: "Too large resource version".to_owned(),
        });
        status
    }

    /// Returns the status for a server error.
    pub fn internal(message: impl fmt::Display) -> Self {
        let mut status = Self::new(
            500,
            "InternalError",
            format!("Internal error occurred: {message}"),
        );
        status.details.causes.push(Cause {
            reason: "",
            field: String::new(),
            message: message.to_string(),
        });
        status
    }

    /// Returns the status for an `Accept` header without a supported media type.
    pub fn not_acceptable() -> Self {
        Self::with_empty_details(
            406,
            "NotAcceptable",
            "406: Not Acceptable\n\nAvailable representations: application/json, application/json;stream=watch",
        )
    }

    /// Returns the status for a body of an unsupported media type.
    pub fn unsupported_media_type() -> Self {
        Self::with_empty_details(415, "UnsupportedMediaType", "415: Unsupported Media Type")
    }

    /// Returns the status for a body of options in an unknown content type.
    pub fn unknown_format() -> Self {
        Self::new(
            415,
            "UnsupportedMediaType",
            "the body of the request was in an unknown format - accepted media types include: application/json, application/yaml, application/vnd.kubernetes.protobuf",
        )
    }

    /// Returns the status for a patch type that custom resources do not support.
    pub fn unsupported_patch() -> Self {
        Self::new(
            415,
            "UnsupportedMediaType",
            "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
        )
    }

    /// Returns the status for a server error without a reason.
    pub fn internal_plain(message: impl Into<String>) -> Self {
        Self::new(500, "", message)
    }

    /// Returns the status as JSON.
    pub fn to_value(&self) -> Value {
        let mut status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = json!(self.reason);
        }
        if let Some(token) = &self.continuation {
            status["metadata"]["continue"] = json!(token);
        }
        if self.details != Details::default() {
            status["details"] = self.details.to_value();
        }
        status
    }
}

impl Details {
    fn to_value(&self) -> Value {
        let mut map = Map::new();
        for (field, text) in [
            ("name", &self.name),
            ("group", &self.group),
            ("kind", &self.kind),
            ("uid", &self.uid),
        ] {
            if !text.is_empty() {
                map.insert(field.to_owned(), Value::String(text.clone()));
            }
        }
        if !self.causes.is_empty() {
            map.insert(
                "causes".to_owned(),
                self.causes.iter().map(Cause::to_value).collect(),
            );
        }
        if self.retry_after > 0 {
            map.insert("retryAfterSeconds".to_owned(), json!(self.retry_after));
        }
        Value::Object(map)
    }
}

impl Cause {
    fn to_value(&self) -> Value {
        let mut map = Map::new();
        for (field, text) in [
            ("reason", self.reason),
            ("message", &*self.message),
            ("field", &*self.field),
        ] {
            if !text.is_empty() {
                map.insert(field.to_owned(), Value::String(text.to_owned()));
            }
        }
        Value::Object(map)
    }
}

/// Returns the response to a deletion that removed the object.
pub(crate) fn deleted(group: &str, plural: &str, name: &str, uid: &str) -> Value {
    let details = Details {
        name: name.to_owned(),
        group: group.to_owned(),
        kind: plural.to_owned(),
        uid: uid.to_owned(),
        ..Details::default()
    };
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": details.to_value(),
    })
}
