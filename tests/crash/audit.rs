//! The independent checker: reads the audit logs of the members, and shares no code with Starling.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use starling_controlplane::AuditEvent;

/// The user agent of the program's requests to members.
const USER_AGENT: &str = "starling/";
/// Namespace of the objects of the tests.
const NAMESPACE: &str = "default";

/// The writes to one member so far.
#[derive(Debug, Default)]
pub(crate) struct Writes {
    /// Successful writes, including those without a change, but no dry runs.
    pub(crate) total: usize,
    /// Writes that created a new version of an object.
    pub(crate) changing: usize,
    /// Repeated applies without a change.
    pub(crate) repeated: usize,
    /// Names of the deleted objects of the tests.
    pub(crate) deleted: BTreeSet<String>,
    /// Names of objects with an unconfirmed deletion, with the log entry. A client that dies cancels its request (504,
    /// "context canceled"), although the server may already have written to etcd: of 114 deletions that were done while
    /// their connections were cut, a kube-apiserver logged 22 in this way. The object is gone, and the next process has
    /// nothing to delete.
    pub(crate) cut: BTreeMap<String, String>,
}

/// The status that an API server returns or logs for a request that ended before its response: 5xx, or no status at
/// all.
const FIRST_UNCONFIRMED_STATUS: u64 = 500;

/// One object at one value.
type Body = (String, String);

/// Reads the log of a member and checks the invariants:
///
/// - the same body applied twice to an object finds it at the version that the first apply made;
/// - an object with a generation has one generation for each body;
/// - rounds never go backwards in the order in which the member committed them;
/// - nothing is deleted twice.
pub(crate) fn check(member: &str, events: &[AuditEvent]) -> Result<Writes> {
    let mut writes = Writes::default();
    let mut versions: BTreeMap<Body, BTreeSet<u64>> = BTreeMap::new();
    let mut generations: BTreeMap<String, BTreeMap<i64, String>> = BTreeMap::new();
    let mut rounds: BTreeMap<u64, u32> = BTreeMap::new();
    writes.cut.extend(events.iter().filter_map(cut_deletion));
    for event in events.iter().filter(|event| is_ours(event)) {
        writes.total += 1;
        let object = format!("{} {}/{}", event.resource(), event.namespace(), event.name());
        if event.verb() == "delete" {
            ensure!(
                event.namespace() == NAMESPACE && writes.deleted.insert(event.name().to_owned()),
                "{member}: {object} was deleted again, or is not the tests' to delete"
            );
            writes.changing += 1;
            continue;
        }
        let body = body(event).with_context(|| format!("{member}: {object}"))?;
        let response = event.response_object().context("an apply without answer")?;
        let version: u64 = text(response, "/metadata/resourceVersion").parse()?;
        if let Some(generation) = response.pointer("/metadata/generation").and_then(Value::as_i64) {
            let known = generations.entry(object.clone()).or_default();
            let before = known.insert(generation, body.clone());
            ensure!(
                before.is_none_or(|before| before == body),
                "{member}: {object} has one generation for two bodies"
            );
        }
        if event.namespace() == NAMESPACE {
            rounds.insert(
                version,
                round(&body).with_context(|| format!("{member}: {object}"))?,
            );
        }
        let known = versions.entry((object.clone(), body)).or_default();
        if known.insert(version) {
            writes.changing += 1;
        } else {
            writes.repeated += 1;
        }
        ensure!(
            known.len() == 1,
            "{member}: {object} was changed {} times by the same body, versions {known:?}",
            known.len()
        );
    }
    for (object, generations) in generations {
        let bodies: BTreeSet<&String> = generations.values().collect();
        ensure!(
            bodies.len() == generations.len(),
            "{member}: {object} has {} generations for {} bodies",
            generations.len(),
            bodies.len()
        );
    }
    let rounds: Vec<u32> = rounds.into_values().filter(|round| *round > 0).collect();
    ensure!(rounds.is_sorted(), "{member}: rounds went backwards: {rounds:?}");
    Ok(writes)
}

fn is_ours(event: &AuditEvent) -> bool {
    event.is_write() && event.user_agent().starts_with(USER_AGENT)
}

fn cut_deletion(event: &AuditEvent) -> Option<(String, String)> {
    let of_tests = event.user_agent().starts_with(USER_AGENT) && event.namespace() == NAMESPACE;
    let is_unconfirmed = event
        .status()
        .is_none_or(|status| status >= FIRST_UNCONFIRMED_STATUS);
    (event.verb() == "delete" && of_tests && is_unconfirmed)
        .then(|| (event.name().to_owned(), event.raw()["responseStatus"].to_string()))
}

/// The body of an apply without the preconditions, which differ from attempt to attempt.
fn body(event: &AuditEvent) -> Result<String> {
    let mut body = event.request_object().context("an apply without body")?.clone();
    if let Some(metadata) = body.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("uid");
        metadata.remove("resourceVersion");
    }
    Ok(body.to_string())
}

/// Returns the round of a body, from the text `round-0007` in it; 0 for an object that no round changes.
fn round(body: &str) -> Result<u32> {
    body.split_once("round-").map_or(Ok(0), |(_, rest)| {
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        Ok(digits.parse()?)
    })
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The checker itself is tested with violations.
#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn apply(name: &str, value: &str, version: u64, generation: Option<i64>) -> AuditEvent {
        let mut metadata = json!({"name": name, "resourceVersion": version.to_string()});
        if let Some(generation) = generation {
            metadata["generation"] = generation.into();
        }
        AuditEvent::from_json(json!({
            "verb": "patch", "requestURI": "/api/v1/namespaces/default/configmaps", "userAgent": "starling/0",
            "objectRef": {"resource": "configmaps", "namespace": "default", "name": name},
            "requestObject": {"metadata": {"name": name}, "data": {"value": value}},
            "responseObject": {"metadata": metadata}, "responseStatus": {"code": 200},
        }))
    }

    fn delete(name: &str, namespace: &str) -> AuditEvent {
        AuditEvent::from_json(json!({
            "verb": "delete", "requestURI": "/", "userAgent": "starling/0", "responseStatus": {"code": 200},
            "objectRef": {"resource": "configmaps", "namespace": namespace, "name": name},
        }))
    }

    #[test]
    fn a_repeated_apply_without_a_change_and_one_delete_are_accepted() {
        let events = [
            apply("a", "round-0001", 5, None),
            apply("a", "round-0001", 5, None),
            apply("a", "round-0002", 7, None),
            delete("b", "default"),
        ];
        let writes = check("m", &events).unwrap();
        assert_eq!((writes.total, writes.changing, writes.repeated), (4, 3, 1));
    }

    #[test]
    fn an_unconfirmed_deletion_is_distinguished() {
        let with_status = |name: &str, code: u64| {
            let mut event = delete(name, "default").raw().clone();
            event["responseStatus"]["code"] = code.into();
            AuditEvent::from_json(event)
        };
        let events = [
            delete("a", "default"),
            with_status("b", 500),
            with_status("c", 404),
        ];
        let writes = check("m", &events).unwrap();
        assert_eq!(writes.deleted, BTreeSet::from(["a".to_owned()]));
        assert_eq!(writes.cut.into_keys().collect::<Vec<_>>(), ["b"]);
    }

    #[test]
    fn each_violation_is_found() {
        let violations: [(&str, Vec<AuditEvent>); 6] = [
            (
                "was changed 2 times",
                vec![
                    apply("a", "round-0001", 5, None),
                    apply("a", "round-0001", 6, None),
                ],
            ),
            (
                "rounds went backwards",
                vec![
                    apply("a", "round-0002", 5, None),
                    apply("b", "round-0001", 6, None),
                ],
            ),
            (
                "generations for",
                vec![
                    apply("a", "round-0001", 5, Some(1)),
                    apply("a", "round-0001", 5, Some(2)),
                ],
            ),
            (
                "one generation for two bodies",
                vec![
                    apply("a", "round-0001", 5, Some(1)),
                    apply("a", "round-0002", 6, Some(1)),
                ],
            ),
            (
                "deleted again",
                vec![delete("b", "default"), delete("b", "default")],
            ),
            ("not the tests' to delete", vec![delete("b", "starling-system")]),
        ];
        for (what, events) in violations {
            let error = check("m", &events).unwrap_err().to_string();
            assert!(error.contains(what), "{what}: {error}");
        }
    }
}
