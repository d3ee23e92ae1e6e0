//! One request to a member, before it is sent.

use std::fmt;

use bytes::Bytes;
use http::Method;
use starling_core::object::ObjectKey;

/// Answer with `apiVersion`, `kind` and `metadata` only.
pub(super) const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
/// The same for a list.
pub(super) const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
/// Answer with everything.
pub(super) const JSON: &str = "application/json";
/// The body of a server-side apply. JSON is YAML, and every version that knows server-side apply takes this name.
pub(super) const APPLY: &str = "application/apply-patch+yaml";

/// The body of a merge patch.
const MERGE: &str = "application/merge-patch+json";

/// A request: what it is for, and what is sent.
pub(super) struct Call<'a> {
    pub(super) what: What<'a>,
    pub(super) method: Method,
    /// Path and query, below the address of the member.
    pub(super) path: String,
    pub(super) accept: &'static str,
    /// Empty without a body.
    pub(super) content_type: &'static str,
    pub(super) body: Bytes,
}

impl<'a> Call<'a> {
    pub(super) fn get(what: What<'a>, path: String, accept: &'static str) -> Self {
        Self {
            what,
            method: Method::GET,
            path,
            accept,
            content_type: "",
            body: Bytes::new(),
        }
    }

    /// A server-side apply; `path` names the field manager.
    pub(super) fn apply(what: What<'a>, path: String, accept: &'static str, body: Bytes) -> Self {
        Self {
            what,
            method: Method::PATCH,
            path,
            accept,
            content_type: APPLY,
            body,
        }
    }

    /// A merge patch; `path` names the field manager.
    pub(super) fn merge(what: What<'a>, path: String, body: Bytes) -> Self {
        Self {
            what,
            method: Method::PATCH,
            path,
            accept: METADATA,
            content_type: MERGE,
            body,
        }
    }

    /// The creation of an object in the collection at `path`.
    pub(super) fn create(what: What<'a>, path: String, body: Bytes) -> Self {
        Self {
            what,
            method: Method::POST,
            path,
            accept: METADATA,
            content_type: JSON,
            body,
        }
    }

    pub(super) fn delete(what: What<'a>, path: String, body: Bytes) -> Self {
        Self {
            what,
            method: Method::DELETE,
            path,
            accept: METADATA,
            content_type: JSON,
            body,
        }
    }
}

/// What a request is for, in the words of an error. Written out only when there is one.
#[derive(Clone, Copy, Debug)]
pub(super) struct What<'a> {
    pub(super) verb: &'static str,
    pub(super) target: Target<'a>,
}

/// What a request is about.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target<'a> {
    /// One object.
    Object(&'a ObjectKey),
    /// All objects of a kind (of Starling, cluster-wide).
    Kind(&'a str),
    /// Something of the cluster itself.
    Named(&'a str),
}

impl<'a> What<'a> {
    pub(super) fn object(verb: &'static str, key: &'a ObjectKey) -> Self {
        Self {
            verb,
            target: Target::Object(key),
        }
    }

    pub(super) fn kind(verb: &'static str, kind: &'a str) -> Self {
        Self {
            verb,
            target: Target::Kind(kind),
        }
    }

    pub(super) fn named(verb: &'static str, name: &'a str) -> Self {
        Self {
            verb,
            target: Target::Named(name),
        }
    }

    /// Whether an answer may quote the content of a Secret.
    pub(super) fn is_secret(&self) -> bool {
        match self.target {
            Target::Object(key) => key.group.is_empty() && key.kind == "Secret",
            Target::Kind(kind) => kind == "Secret",
            Target::Named(_) => false,
        }
    }
}

impl fmt::Display for What<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.target {
            Target::Object(key) => write!(f, "{} {key}", self.verb),
            Target::Kind(name) | Target::Named(name) => write!(f, "{} {name}", self.verb),
        }
    }
}
