//! One request to a member, before it is sent.

use std::fmt;

use bytes::Bytes;
use http::Method;
use starling_core::object::ObjectId;

/// Respond with `apiVersion`, `kind` and `metadata` only.
pub(super) const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
/// The same for a list.
pub(super) const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
/// Respond with the whole object.
pub(super) const JSON: &str = "application/json";
/// The content type of a server-side apply. JSON is YAML, and every version with server-side apply accepts this type.
pub(super) const APPLY: &str = "application/apply-patch+yaml";

/// The content type of a merge patch.
const MERGE: &str = "application/merge-patch+json";

/// A request and its operation.
pub(super) struct Call<'a> {
    pub(super) operation: Operation<'a>,
    pub(super) method: Method,
    /// Path and query, below the address of the member.
    pub(super) path: String,
    pub(super) accept: &'static str,
    /// Empty without a body.
    pub(super) content_type: &'static str,
    pub(super) body: Bytes,
}

impl<'a> Call<'a> {
    pub(super) fn get(operation: Operation<'a>, path: String, accept: &'static str) -> Self {
        Self {
            operation,
            method: Method::GET,
            path,
            accept,
            content_type: "",
            body: Bytes::new(),
        }
    }

    /// A server-side apply; `path` names the field manager.
    pub(super) fn apply(operation: Operation<'a>, path: String, accept: &'static str, body: Bytes) -> Self {
        Self {
            operation,
            method: Method::PATCH,
            path,
            accept,
            content_type: APPLY,
            body,
        }
    }

    /// A merge patch; `path` names the field manager.
    pub(super) fn merge(operation: Operation<'a>, path: String, body: Bytes) -> Self {
        Self {
            operation,
            method: Method::PATCH,
            path,
            accept: METADATA,
            content_type: MERGE,
            body,
        }
    }

    /// The creation of an object in the collection at `path`.
    pub(super) fn create(operation: Operation<'a>, path: String, body: Bytes) -> Self {
        Self {
            operation,
            method: Method::POST,
            path,
            accept: METADATA,
            content_type: JSON,
            body,
        }
    }

    /// Whether the request may change the member: it is no read and no dry run.
    pub(super) fn is_write(&self) -> bool {
        let query = self.path.split_once('?').map_or("", |(_, query)| query);
        self.method != Method::GET && !query.split('&').any(|pair| pair == "dryRun=All")
    }

    pub(super) fn delete(operation: Operation<'a>, path: String, body: Bytes) -> Self {
        Self {
            operation,
            method: Method::DELETE,
            path,
            accept: METADATA,
            content_type: JSON,
            body,
        }
    }
}

/// The operation of a request, as error texts name it. Formatted only for an error.
#[derive(Clone, Copy, Debug)]
pub(super) struct Operation<'a> {
    pub(super) verb: &'static str,
    pub(super) target: Target<'a>,
}

/// The subject of a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target<'a> {
    /// One object.
    Object(&'a ObjectId),
    /// All objects of a kind that Starling owns, in all namespaces.
    Kind(&'a str),
    /// A resource of the cluster itself.
    Named(&'a str),
}

impl<'a> Operation<'a> {
    pub(super) fn object(verb: &'static str, key: &'a ObjectId) -> Self {
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

    /// Whether the response is a list of objects, which may be larger than one object.
    pub(super) fn is_list(&self) -> bool {
        matches!(self.target, Target::Kind(_))
    }

    /// Whether a response may quote the content of a Secret.
    pub(super) fn is_secret(&self) -> bool {
        match self.target {
            Target::Object(key) => key.group.is_empty() && key.kind == "Secret",
            Target::Kind(kind) => kind == "Secret",
            Target::Named(_) => false,
        }
    }
}

impl fmt::Display for Operation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.target {
            Target::Object(key) => write!(f, "{} {key}", self.verb),
            Target::Kind(name) | Target::Named(name) => write!(f, "{} {name}", self.verb),
        }
    }
}
