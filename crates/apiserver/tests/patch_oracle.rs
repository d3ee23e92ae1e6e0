//! Compares patches with recorded results of Kubernetes' libraries, which `tests/oracle/apply` writes.

#![expect(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its own functions too"
)]

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use starling_apiserver::patch::{
    PatchError, StrategicType, json_patch, merge_patch, strategic_merge, unknown_in_json_patch,
};

/// A patch, its object and the result.
#[derive(Deserialize)]
struct Case {
    how: String,
    of: Option<(String, String)>,
    #[serde(rename = "obj")]
    object: Value,
    patch: Value,
    #[serde(rename = "is")]
    result: Option<Value>,
    #[serde(default)]
    code: u16,
    /// The error; empty if clients do not see it, or if it varies.
    #[serde(default)]
    error: String,
}

impl Case {
    fn answer(&self) -> Result<Value, PatchError> {
        let (object, patch) = (self.object.clone(), self.patch.clone());
        match self.how.as_str() {
            "json" => json_patch(object, &patch),
            "merge" => merge_patch(object, patch),
            _ => {
                let (version, kind) = self.of.as_ref().unwrap();
                let ty = StrategicType::of(version, kind).unwrap();
                strategic_merge(ty, object, patch)
            }
        }
    }

    fn difference(&self) -> Option<String> {
        let got = self.answer();
        let same = match &got {
            Ok(got) => self.code == 0 && self.result.as_ref().is_none_or(|wanted| got == wanted),
            Err(error) => {
                self.code == error.code() && (self.error.is_empty() || self.error == error.to_string())
            }
        };
        (!same).then(|| {
            format!(
                "{} {}\n  to {}\n  wanted {} {} {:?}\n  got    {}",
                self.how,
                self.patch,
                self.object,
                self.code,
                self.error,
                self.result.as_ref().map(Value::to_string),
                got.map_or_else(
                    |error| format!("{} {error}", error.code()),
                    |value| value.to_string()
                )
            )
        })
    }
}

#[test]
fn patches_match_kubernetes() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("data/patches.json")).unwrap();
    let mut seen: BTreeMap<(&str, u16), usize> = BTreeMap::new();
    for case in &cases {
        *seen.entry((&case.how, case.code)).or_default() += 1;
    }
    let found: Vec<_> = cases.iter().filter_map(Case::difference).collect();
    assert!(
        found.is_empty(),
        "{} of {} differ:\n{}",
        found.len(),
        cases.len(),
        found.iter().take(8).cloned().collect::<Vec<_>>().join("\n")
    );
    for (kind, least) in [
        (("json", 0), 20),
        (("json", 422), 20),
        (("merge", 0), 250),
        (("strategic", 0), 500),
        (("strategic", 400), 15),
        (("strategic", 500), 30),
    ] {
        assert!(
            seen.get(&kind).copied().unwrap_or(0) >= least,
            "{kind:?}: {seen:?}"
        );
    }
}

#[test]
fn unknown_members_of_operations_are_reported() {
    let patch = serde_json::json!([{"op": "add", "path": "/x", "value": 1}, {"op": "test", "where": 1}]);
    assert_eq!(
        unknown_in_json_patch(&patch),
        [r#"json patch unknown field "[1].where""#]
    );
}
