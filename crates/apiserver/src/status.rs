//! Answers that are not what was asked for: the kind `Status`, worded as the API server words it.

use std::fmt;

use serde_json::{Map, Value, json};

pub use crate::cause::Cause;

/// Why a request got something else than what it asked for.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    /// The HTTP code.
    pub code: u16,
    /// One of Kubernetes' reasons; empty if there is none.
    pub reason: &'static str,
    /// For people.
    pub message: String,
    /// What it is about.
    pub details: Details,
    /// Where a list can go on that could not as it was asked for.
    pub continuation: Option<String>,
    /// Whether the answer is the message as plain text: of what knows nothing of the API.
    pub plain: bool,
    /// What the client is warned of all the same.
    pub warnings: Vec<String>,
}

/// What a [`Status`] is about.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Details {
    /// Name of the object.
    pub name: String,
    /// API group.
    pub group: String,
    /// Kind, or plural of the resource.
    pub kind: String,
    /// UID of the object.
    pub uid: String,
    /// One for each thing that is wrong.
    pub causes: Vec<Cause>,
    /// When to try again, 0 for nothing said.
    pub retry_after: u32,
    /// Whether to write details even if there are none, as the API server does before it knows the resource.
    pub empty: bool,
}

impl Cause {
    /// A text that is none of those known.
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

/// `deployments.apps`: a resource, or a kind, with its group.
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

    /// With what the client is warned of all the same.
    #[must_use]
    pub fn warning(mut self, warnings: Vec<String>) -> Self {
        self.warnings.extend(warnings);
        self
    }

    fn about(mut self, group: &str, kind: &str, name: &str) -> Self {
        self.details.group = group.to_owned();
        self.details.kind = kind.to_owned();
        self.details.name = name.to_owned();
        self
    }

    /// No such object.
    pub fn not_found(group: &str, plural: &str, name: &str) -> Self {
        let what = qualified(plural, group);
        Self::new(404, "NotFound", format!("{what} {name:?} not found")).about(group, plural, name)
    }

    /// A status that the API server writes before it knows what the request is about.
    fn early(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        let mut status = Self::new(code, reason, message);
        status.details.empty = true;
        status
    }

    /// No such resource.
    pub fn no_such_resource() -> Self {
        Self::early(
            404,
            "NotFound",
            "the server could not find the requested resource",
        )
    }

    /// No such path.
    pub fn no_such_path() -> Self {
        Self {
            plain: true,
            ..Self::new(404, "NotFound", "404 page not found\n")
        }
    }

    /// The name is taken.
    pub fn already_exists(group: &str, plural: &str, name: &str) -> Self {
        let what = qualified(plural, group);
        Self::new(409, "AlreadyExists", format!("{what} {name:?} already exists")).about(group, plural, name)
    }

    /// The object is not as the request supposes.
    pub fn conflict(group: &str, plural: &str, name: &str, why: impl fmt::Display) -> Self {
        let what = qualified(plural, group);
        Self::new(
            409,
            "Conflict",
            format!("Operation cannot be fulfilled on {what} {name:?}: {why}"),
        )
        .about(group, plural, name)
    }

    /// The object has been changed since the client read it.
    pub fn modified(group: &str, plural: &str, name: &str) -> Self {
        Self::conflict(
            group,
            plural,
            name,
            "the object has been modified; please apply your changes to the latest version and try again",
        )
    }

    /// The object is not valid.
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
            .about(group, kind, name);
        status.details.causes = causes;
        status
    }

    /// The request cannot be understood.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// The request is understood and refused.
    pub fn forbidden(group: &str, plural: &str, name: &str, why: impl fmt::Display) -> Self {
        let what = qualified(plural, group);
        Self::new(403, "Forbidden", format!("{what} {name:?} is forbidden: {why}")).about(group, plural, name)
    }

    /// Who are you?
    pub fn unauthorized() -> Self {
        Self::new(401, "Unauthorized", "Unauthorized")
    }

    /// The resource has no such verb.
    pub fn method_not_allowed() -> Self {
        Self::early(
            405,
            "MethodNotAllowed",
            "the server does not allow this method on the requested resource",
        )
    }

    /// Kubernetes does this and this server does not.
    pub fn not_implemented(what: impl fmt::Display) -> Self {
        Self::new(
            501,
            "NotImplemented",
            format!("{what} is not supported by the embedded API server"),
        )
    }

    /// The revision is not known any more.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// The client asks for a revision that is still to come.
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

    /// The server does not know why.
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

    /// No form of the answer that the client takes can be written.
    pub fn not_acceptable() -> Self {
        Self::early(
            406,
            "NotAcceptable",
            "406: Not Acceptable\n\nAvailable representations: application/json, application/json;stream=watch",
        )
    }

    /// The body is in a form that the server cannot read.
    pub fn unsupported_media_type() -> Self {
        Self::early(415, "UnsupportedMediaType", "415: Unsupported Media Type")
    }

    /// The patch is in a form that is not for custom resources.
    pub fn unsupported_patch() -> Self {
        Self::new(
            415,
            "UnsupportedMediaType",
            "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml",
        )
    }

    /// An error of the API server that has no reason.
    pub fn internal_plain(message: impl Into<String>) -> Self {
        Self::new(500, "", message)
    }

    /// As on the wire.
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

/// The answer to a deletion after which nothing is left.
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
