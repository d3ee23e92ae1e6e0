//! Validates SyncGroups. Pure: only this module creates a [`ValidSpec`], and a group is observed with one.

use std::collections::BTreeSet;

use kube::core::Selector;
use starling_api::{SyncEntry, SyncGroupSpec};
use starling_core::depend::{self, EntryError};
use starling_core::expand::{self, SelectorError};
use starling_core::gate::CheckTest;
use starling_core::gate::job::JobAccounts;
use starling_core::ignore::{IgnoreError, IgnoreRules};
use starling_core::plan::{ReadStrategy, StrategyError};
use starling_core::unimplemented;

use super::super::not_implemented;

/// The parsed parts of a valid spec.
pub(super) struct ValidSpec {
    pub(super) selector: Selector,
    pub(super) strategy: ReadStrategy,
}

/// The rules that do not follow from the spec.
#[derive(Clone, Copy)]
pub(super) struct Rules<'a> {
    /// Checks the test of a Metric.
    pub(super) check_test: &'a CheckTest,
    /// The accounts of Jobs; `None`: not known, so Jobs are not checked.
    pub(super) job_accounts: Option<&'a JobAccounts>,
}

/// The reason why a group does not roll out until the group is edited.
#[derive(Debug, thiserror::Error)]
pub(super) enum SpecError {
    /// Fields of the contract that are not implemented (I10).
    #[error("{}", not_implemented(.0))]
    NotImplemented(Vec<String>),
    /// The selector cannot be evaluated.
    #[error("spec.clusterSelector: {0}")]
    Selector(#[from] SelectorError),
    /// Two entries have one name.
    #[error("spec.syncs: the name {0:?} occurs twice")]
    RepeatedEntry(String),
    /// The strategy cannot be parsed, or has a task that is not allowed.
    #[error("spec.{0}")]
    Strategy(#[from] StrategyError),
    /// The dependencies of the entries cannot be met.
    #[error("spec.{0}")]
    Dependency(#[from] EntryError),
    /// An element of `ignore` cannot be parsed.
    #[error("spec.syncs[{entry}].{error}")]
    Ignore {
        /// Name of the entry.
        entry: String,
        /// The error.
        error: IgnoreError,
    },
}

impl SpecError {
    /// Returns the reason of Ready.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::NotImplemented(_) => "NotImplemented",
            Self::Selector(_) => "InvalidSelector",
            Self::RepeatedEntry(_) | Self::Strategy(_) | Self::Ignore { .. } => "InvalidSpec",
            Self::Dependency(error) => error.reason(),
        }
    }
}

/// Validates the spec of a group.
///
/// # Errors
/// The first [`SpecError`].
pub(super) fn validate(spec: &SyncGroupSpec, rules: Rules<'_>) -> Result<ValidSpec, SpecError> {
    let missing = unimplemented::of_group(spec);
    if !missing.is_empty() {
        return Err(SpecError::NotImplemented(missing));
    }
    let selector = expand::selector(&spec.cluster_selector)?;
    if let Some(twice) = repeated_name(&spec.syncs) {
        return Err(SpecError::RepeatedEntry(twice.to_owned()));
    }
    let strategy = ReadStrategy::checked(&spec.rollout_strategy, rules.check_test)?;
    rules
        .job_accounts
        .map_or(Ok(()), |accounts| strategy.check_jobs(accounts))?;
    depend::check_entries(&spec.syncs)?;
    spec.syncs.iter().try_for_each(check_ignore)?;
    Ok(ValidSpec { selector, strategy })
}

fn check_ignore(entry: &SyncEntry) -> Result<(), SpecError> {
    let rules = IgnoreRules::new(&entry.template.ignore);
    rules.map(drop).map_err(|error| SpecError::Ignore {
        entry: entry.name.clone(),
        error,
    })
}

fn repeated_name(entries: &[SyncEntry]) -> Option<&str> {
    let mut names = BTreeSet::new();
    let mut all = entries.iter().map(|entry| entry.name.as_str());
    all.find(|name| !names.insert(*name))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn error_of(change: impl FnOnce(&mut Value)) -> (String, String) {
        let mut spec = json!({
            "clusterSelector": {"matchLabels": {"tier": "prod"}},
            "syncs": [
                {"name": "app", "sourceRef": {"name": "shop"}, "path": "./app"},
                {"name": "db", "sourceRef": {"name": "shop"}, "path": "./db"},
            ],
        });
        change(&mut spec);
        let spec: SyncGroupSpec = serde_json::from_value(spec).unwrap();
        let allows_all = |_: &str| Ok(());
        let rules = Rules {
            check_test: &allows_all,
            job_accounts: None,
        };
        match validate(&spec, rules) {
            Ok(_) => (String::new(), String::new()),
            Err(error) => (error.reason().to_owned(), error.to_string()),
        }
    }

    /// The reason and the message of each error, which name the field.
    #[test]
    fn an_error_names_its_reason_and_its_field() {
        type Change = fn(&mut Value);
        let cases: [(Change, &str, &str); 6] = [
            (|_| {}, "", ""),
            (
                |spec| {
                    spec["clusterSelector"] = json!({"matchExpressions": [{"key": "a", "operator": "Near"}]});
                },
                "InvalidSelector",
                "spec.clusterSelector: ",
            ),
            (
                |spec| spec["syncs"][1]["name"] = json!("app"),
                "InvalidSpec",
                "spec.syncs: the name \"app\" occurs twice",
            ),
            (
                |spec| spec["rolloutStrategy"] = json!({"windows": [{"allow": "soon"}]}),
                "InvalidSpec",
                "spec.rolloutStrategy.windows[0]",
            ),
            (
                |spec| spec["syncs"][0]["dependsOn"] = json!([{"name": "none"}]),
                "InvalidSpec",
                "spec.syncs",
            ),
            (
                |spec| spec["syncs"][1]["ignore"] = json!([{"paths": ["no"]}]),
                "InvalidSpec",
                "spec.syncs[db].",
            ),
        ];
        for (change, reason, message) in cases {
            let (found, text) = error_of(change);
            assert_eq!(found, reason, "{text}");
            assert!(
                text.starts_with(message) && text.is_empty() == message.is_empty(),
                "{text:?}, not {message:?}"
            );
        }
    }
}
