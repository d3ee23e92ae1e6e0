//! The query parameters of requests.

use serde_json::{Map, Value, json};

use crate::object::{FieldSelector, LabelSelector};
use crate::status::{Cause, Status};
use crate::verbs::{DeleteOptions, ListOptions, RevisionMatch, Selection, Validation, WatchOptions};

/// The parameters of a query.
#[derive(Debug, Clone, Default)]
pub(super) struct Params(Vec<(String, String)>);

/// Returns whether the text of a boolean parameter is true: as in Kubernetes, everything is but `false` and `0`.
fn is_true(text: &str) -> bool {
    text != "0" && !text.eq_ignore_ascii_case("false")
}

impl Params {
    pub(super) fn read(query: Option<&str>) -> Self {
        Self(
            url::form_urlencoded::parse(query.unwrap_or_default().as_bytes())
                .into_owned()
                .collect(),
        )
    }

    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(other, _)| other == name)
            .map(|(_, value)| value.as_str())
    }

    pub(super) fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    /// Returns the values of a parameter that may stand several times.
    pub(super) fn all(&self, name: &str) -> Vec<&str> {
        self.0
            .iter()
            .filter(|(other, _)| other == name)
            .map(|(_, value)| value.as_str())
            .collect()
    }

    /// Returns whether a boolean parameter is true; a parameter without a value is.
    pub(super) fn flag(&self, name: &str) -> bool {
        self.get(name).is_some_and(is_true)
    }

    /// Returns whether the numbers and switches of a list can be read. If not, Kubernetes ignores the selectors when it
    /// authorizes the request.
    pub(super) fn is_readable(&self) -> bool {
        let is_number = |name: &str| {
            let text = self.text(name);
            text.is_empty() || text.parse::<i64>().is_ok()
        };
        is_number("limit") && is_number("timeoutSeconds")
    }

    fn revision(&self) -> Result<Option<u64>, Status> {
        match self.text("resourceVersion") {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|_| {
                Status::bad_request(format!(
                    "invalid resource version: resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax"
                ))
            }),
        }
    }

    fn selection(&self) -> Result<Selection, Status> {
        Ok(Selection {
            labels: LabelSelector::parse(self.text("labelSelector")).map_err(Status::bad_request)?,
            fields: FieldSelector::parse(self.text("fieldSelector")).map_err(Status::bad_request)?,
        })
    }

    /// Returns the resource version of a `get`.
    pub(super) fn get_revision(&self) -> Result<Option<u64>, Status> {
        self.revision()
    }

    pub(super) fn list(&self) -> Result<ListOptions, Status> {
        let limit = self.text("limit");
        if !limit.is_empty() && limit.parse::<i64>().is_err() {
            return Err(Status::bad_request(format!(
                "strconv.ParseInt: parsing {limit:?}: invalid syntax"
            )));
        }
        let mut causes = Vec::new();
        let continuation = self.get("continue").filter(|text| !text.is_empty());
        let text = self.text("resourceVersionMatch");
        let revision_match = match text {
            "" => None,
            "Exact" => Some(RevisionMatch::Exact),
            "NotOlderThan" => Some(RevisionMatch::NotOlderThan),
            other => {
                causes.push(Cause::not_supported_text(
                    "resourceVersionMatch",
                    other,
                    &["Exact", "NotOlderThan", ""],
                ));
                None
            }
        };
        let revision = self.text("resourceVersion");
        if !text.is_empty() && revision.is_empty() {
            causes.push(Cause::forbidden(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden unless resourceVersion is provided",
            ));
        }
        if !text.is_empty() && continuation.is_some() {
            causes.push(Cause::forbidden(
                "resourceVersionMatch",
                "resourceVersionMatch is forbidden when continue is provided",
            ));
        }
        if revision_match == Some(RevisionMatch::Exact) && revision == "0" {
            causes.push(Cause::forbidden(
                "resourceVersionMatch",
                "resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
            ));
        }
        if self.get("sendInitialEvents").is_some() {
            causes.push(Cause::forbidden(
                "sendInitialEvents",
                "sendInitialEvents is forbidden for list",
            ));
        }
        if !causes.is_empty() {
            return Err(Status::invalid("meta.k8s.io", "ListOptions", "", causes));
        }
        if continuation.is_some() && !matches!(revision, "" | "0") {
            return Err(Status::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        let limit = self.text("limit").parse().unwrap_or(0);
        let revision = self.revision()?;
        // A paged list from a resource version on shows exactly that version unless the request says otherwise.
        let paged = limit > 0 && revision.is_some_and(|revision| revision > 0);
        Ok(ListOptions {
            selection: self.selection()?,
            // As in Kubernetes, a list from the watch cache is not paged.
            limit: if revision == Some(0) { 0 } else { limit },
            continuation: continuation.map(str::to_owned),
            revision,
            revision_match: revision_match.or(paged.then_some(RevisionMatch::Exact)),
        })
    }

    pub(super) fn watch(&self) -> Result<WatchOptions, Status> {
        let text = self.text("resourceVersion");
        let revision = self.revision().map_err(|_| {
            Status::internal_plain(format!(
                "resourceVersion: Invalid value: {text:?}: strconv.ParseUint: parsing {text:?}: invalid syntax"
            ))
        })?;
        Ok(WatchOptions {
            selection: self.selection()?,
            revision,
            initial_events: self.get("sendInitialEvents").map(is_true),
            not_older_than: self.text("resourceVersionMatch") == "NotOlderThan",
            bookmarks: self.flag("allowWatchBookmarks"),
        })
    }

    /// Returns after how many seconds a watch ends.
    pub(super) fn timeout_seconds(&self) -> Option<u64> {
        self.text("timeoutSeconds")
            .parse()
            .ok()
            .filter(|seconds| *seconds > 0)
    }

    /// Returns whether the write is a dry run, and how it handles unknown fields. `causes` are the errors found
    /// before.
    pub(super) fn write(
        &self,
        options: &'static str,
        mut causes: Vec<Cause>,
    ) -> Result<(bool, Validation), Status> {
        let dry_run = self.all("dryRun");
        if dry_run.iter().any(|one| *one != "All") {
            causes.push(Cause {
                reason: "FieldValueNotSupported",
                field: "dryRun".to_owned(),
                message: format!("Unsupported value: {}: supported values: \"All\"", json!(dry_run)),
            });
        }
        let manager = self.text("fieldManager");
        if manager.len() > 128 {
            causes.push(Cause {
                reason: "FieldValueTooLong",
                field: "fieldManager".to_owned(),
                message: "Too long: may not be more than 128 bytes".to_owned(),
            });
        }
        let validation = match self.text("fieldValidation") {
            "" | "Warn" => Validation::Warn,
            "Strict" => Validation::Strict,
            "Ignore" => Validation::Ignore,
            other => {
                causes.push(Cause::not_supported_text(
                    "fieldValidation",
                    other,
                    &["", "Ignore", "Strict", "Warn"],
                ));
                Validation::Warn
            }
        };
        if !causes.is_empty() {
            return Err(Status::invalid("meta.k8s.io", options, "", causes));
        }
        Ok((!dry_run.is_empty(), validation))
    }

    /// Returns the query parameters in the form of `DeleteOptions`.
    pub(super) fn delete(&self) -> Result<DeleteOptions, Status> {
        let mut options = Map::new();
        if let Some(policy) = self.get("propagationPolicy") {
            options.insert("propagationPolicy".to_owned(), json!(policy));
        }
        if let Some(orphan) = self.get("orphanDependents") {
            options.insert("orphanDependents".to_owned(), json!(is_true(orphan)));
        }
        if let Some(text) = self.get("gracePeriodSeconds") {
            let seconds: i64 = text.parse().map_err(|_| {
                Status::bad_request(format!("strconv.ParseInt: parsing {text:?}: invalid syntax"))
            })?;
            options.insert("gracePeriodSeconds".to_owned(), json!(seconds));
        }
        let dry_run = self.all("dryRun");
        if !dry_run.is_empty() {
            options.insert("dryRun".to_owned(), json!(dry_run));
        }
        DeleteOptions::read(&Value::Object(options))
    }
}
