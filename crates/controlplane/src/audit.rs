//! The audit log of a kube-apiserver: users, requests and written objects.

use std::path::Path;

use serde_json::Value;

use crate::error::ControlPlaneError;

/// File name of the log in the directory of a control plane.
pub(crate) const LOG: &str = "audit.log";

/// The audit policy: writes with both bodies, reads without, and no requests of the server itself.
///
/// `managedFields` are omitted: they are longer than the objects, which the tests check.
pub(crate) const POLICY: &str = r#"apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
omitManagedFields: true
rules:
- level: None
  users: ["system:apiserver"]
- level: None
  nonResourceURLs: ["/readyz*", "/livez*", "/healthz*", "/metrics"]
- level: RequestResponse
  verbs: [create, update, patch, delete, deletecollection]
- level: Metadata
"#;

/// One completed request.
#[derive(Debug, Clone, PartialEq)]
pub struct AuditEvent {
    raw: Value,
}

impl AuditEvent {
    /// Creates an event from a JSON line of the log, for tests of code that reads logs.
    pub fn from_json(raw: Value) -> Self {
        Self { raw }
    }

    /// Returns the verb: `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub fn verb(&self) -> &str {
        self.text("/verb")
    }

    /// Returns the path and query as requested.
    pub fn uri(&self) -> &str {
        self.text("/requestURI")
    }

    /// Returns the user of the request.
    pub fn user(&self) -> &str {
        self.text("/user/username")
    }

    /// Returns the impersonated user, empty without impersonation.
    pub fn impersonated_user(&self) -> &str {
        self.text("/impersonatedUser/username")
    }

    /// Returns the groups of the impersonated user.
    pub fn impersonated_groups(&self) -> Vec<&str> {
        let groups = self
            .raw
            .pointer("/impersonatedUser/groups")
            .and_then(Value::as_array);
        groups.into_iter().flatten().filter_map(Value::as_str).collect()
    }

    /// Returns the `User-Agent` header, empty if there was none.
    pub fn user_agent(&self) -> &str {
        self.text("/userAgent")
    }

    /// Returns the plural name of the resource, empty for a path that is not a resource.
    pub fn resource(&self) -> &str {
        self.text("/objectRef/resource")
    }

    /// Returns the subresource, empty for the object itself.
    pub fn subresource(&self) -> &str {
        self.text("/objectRef/subresource")
    }

    /// Returns the namespace, empty for a cluster-wide object.
    pub fn namespace(&self) -> &str {
        self.text("/objectRef/namespace")
    }

    /// Returns the name of the object, empty for a list.
    pub fn name(&self) -> &str {
        self.text("/objectRef/name")
    }

    /// Returns the HTTP status of the response.
    pub fn status(&self) -> Option<u64> {
        self.raw.pointer("/responseStatus/code").and_then(Value::as_u64)
    }

    /// Whether the request was a write that may have changed an object: successful and not a dry run.
    pub fn is_write(&self) -> bool {
        matches!(
            self.verb(),
            "create" | "update" | "patch" | "delete" | "deletecollection"
        ) && self.status().is_some_and(|status| status < 300)
            && !self.uri().contains("dryRun=All")
    }

    /// Returns the body of a write.
    pub fn request_object(&self) -> Option<&Value> {
        self.raw.get("requestObject")
    }

    /// Returns the response to a write, without `managedFields`.
    pub fn response_object(&self) -> Option<&Value> {
        self.raw.get("responseObject")
    }

    /// Returns when the request arrived, as RFC 3339 text with microseconds.
    pub fn received_at(&self) -> &str {
        self.text("/requestReceivedTimestamp")
    }

    /// Returns when the response was complete, as RFC 3339 text with microseconds.
    pub fn completed_at(&self) -> &str {
        self.text("/stageTimestamp")
    }

    /// Returns the whole event (`audit.k8s.io/v1`).
    pub fn raw(&self) -> &Value {
        &self.raw
    }

    fn text(&self, pointer: &str) -> &str {
        self.raw
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
    }
}

/// Reads the complete lines of a log. A log that does not exist yet is empty.
pub(crate) fn read(name: &str, path: &Path) -> Result<Vec<AuditEvent>, ControlPlaneError> {
    match std::fs::read(path) {
        Ok(bytes) => parse(name, &bytes),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(ControlPlaneError::file(name, path)(error)),
    }
}

fn parse(name: &str, bytes: &[u8]) -> Result<Vec<AuditEvent>, ControlPlaneError> {
    // The last line may be incomplete.
    let complete = bytes
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |end| end + 1);
    bytes[..complete]
        .split(|byte| *byte == b'\n')
        .enumerate()
        .filter(|(_, line)| !line.is_empty())
        .map(|(index, line)| {
            serde_json::from_slice(line)
                .map(|raw| AuditEvent { raw })
                .map_err(|source| ControlPlaneError::AuditLine {
                    name: name.to_owned(),
                    line: index + 1,
                    source,
                })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incomplete_line_is_skipped_and_an_invalid_one_is_named() {
        let events = parse("a", b"{\"verb\":\"get\"}\n{\"verb\":\"li").unwrap();
        assert_eq!(events.len(), 1);
        assert_eq!(events[0].verb(), "get");
        assert_eq!(events[0].name(), "");
        let error = parse("a", b"{}\nnonsense\n").unwrap_err();
        assert!(
            matches!(error, ControlPlaneError::AuditLine { line: 2, .. }),
            "{error}"
        );
    }

    #[test]
    fn dry_runs_and_refusals_are_not_writes() {
        let event = |verb: &str, uri: &str, code: u64| AuditEvent {
            raw: serde_json::json!({"verb": verb, "requestURI": uri, "responseStatus": {"code": code}}),
        };
        assert!(event("patch", "/api/v1/namespaces/a", 200).is_write());
        assert!(!event("patch", "/api/v1/namespaces/a?dryRun=All", 200).is_write());
        assert!(!event("patch", "/api/v1/namespaces/a", 409).is_write());
        assert!(!event("get", "/api/v1/namespaces/a", 200).is_write());
    }
}
