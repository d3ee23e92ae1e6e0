//! `starling plan` and `starling diff`: what would change, from a dry run on the members themselves.
//!
//! Everything is done with the caller's own rights: the group and its Clusters are read, their Secrets too, the commit is fetched
//! and rendered here, and each member works out what an apply would do. Nothing is written anywhere.

mod bench;
mod fleet;
mod look;
mod print;
mod revision;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Args;
use serde_json::json;
use starling_core::preview::Overview;

use self::bench::Bench;
use self::fleet::Fleet;
use super::caller::{Caller, CallerArguments};
use super::output::{self, Form};
use super::span::span_or_seconds;

/// Clusters that are looked at side by side.
const SIDE_BY_SIDE: usize = 16;
/// The limits that may be given for one cluster.
const SHORTEST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(3_600);

/// What is previewed, and with what.
#[derive(Clone, Debug, Args)]
pub(super) struct WhatArguments {
    /// A branch, tag, or commit in place of what the Source offers; SOURCE=REVISION where the group has several
    #[arg(long, value_name = "REVISION", conflicts_with = "path")]
    revision: Vec<String>,
    /// A folder of this machine in place of the repository; SOURCE=DIR where the group has several
    #[arg(long, value_name = "DIR")]
    path: Vec<String>,
    /// Accept Sources with http:// and file://
    #[arg(long)]
    allow_insecure_sources: bool,
    /// The kustomize to use; without it the one on PATH, or `kubectl kustomize`
    #[arg(long, value_name = "FILE")]
    kustomize: Option<PathBuf>,
    /// The sops to use; without it the one on PATH
    #[arg(long, value_name = "FILE")]
    sops: Option<PathBuf>,
    /// Limit for each cluster, such as 90s or 2m; a plain number is of seconds
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = limit)]
    timeout: Duration,
    /// How it is printed
    #[arg(long, short, value_enum, default_value_t)]
    output: Form,
    #[command(flatten)]
    caller: CallerArguments,
}

/// `plan`.
#[derive(Debug, Args)]
pub(super) struct PlanArguments {
    /// The SyncGroup
    #[arg(value_name = "GROUP")]
    group: String,
    #[command(flatten)]
    what: WhatArguments,
}

/// `diff`.
#[derive(Debug, Args)]
pub(super) struct DiffArguments {
    /// The SyncGroup
    #[arg(value_name = "GROUP")]
    group: String,
    /// The cluster
    #[arg(value_name = "CLUSTER")]
    cluster: String,
    #[command(flatten)]
    what: WhatArguments,
}

/// Exit codes of `kubectl diff`: 0 nothing differs, 1 something does, above it something went wrong.
const DIFFERS: u8 = 1;
/// Something would fail, or could not be looked at.
const UNSOUND: u8 = 2;

/// A problem is no difference: scripts tell them apart by the code.
pub(super) fn exit_code(result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        super::complain(&error);
        ExitCode::from(UNSOUND)
    })
}

pub(super) async fn plan(arguments: PlanArguments) -> anyhow::Result<ExitCode> {
    let PlanArguments { group, what } = arguments;
    preview(&group, None, &what).await
}

pub(super) async fn diff(arguments: DiffArguments) -> anyhow::Result<ExitCode> {
    let DiffArguments { group, cluster, what } = arguments;
    preview(&group, Some(&cluster), &what).await
}

async fn preview(group: &str, only: Option<&str>, what: &WhatArguments) -> anyhow::Result<ExitCode> {
    let caller = Caller::sign_in(&what.caller).await?;
    let fleet = Fleet::read(&caller, group).await?;
    let clusters = match only {
        None => fleet.clusters.clone(),
        Some(name) => {
            let cluster = fleet.clusters.get(name).with_context(|| {
                format!(
                    "SyncGroup {group} does not select a Cluster {name:?}; it selects {} others",
                    fleet.clusters.len()
                )
            })?;
            BTreeMap::from([(name.to_owned(), cluster.clone())])
        }
    };
    let bench = Bench::open(&caller, &fleet, what).await?;
    let revisions = bench.revisions(&fleet, what).await?;
    let digest = bench.digest(&fleet, &revisions).await;
    let overview = Overview::of(look::at_all(&bench, &fleet, &revisions, &clusters, what.timeout).await?);
    match what.output {
        Form::Json => {
            let revisions: BTreeMap<&str, &str> = revisions
                .iter()
                .map(|(entry, revision)| (entry.as_str(), revision.text.as_str()))
                .collect();
            let told = json!({
                "group": group,
                "namespace": caller.namespace,
                "revisions": revisions,
                "releaseDigest": digest.as_ref().ok(),
                "releaseDigestError": digest.as_ref().err(),
                "overview": overview,
            });
            output::print_value(&told, false)?;
        }
        Form::Text => print::text(&caller.namespace, group, &revisions, &digest, &overview),
    }
    Ok(ExitCode::from(
        match (overview.is_sound() && digest.is_ok(), overview.changes_anything()) {
            (false, _) => UNSOUND,
            (true, true) => DIFFERS,
            (true, false) => 0,
        },
    ))
}

/// A time to wait: seconds, as it was always written, or a duration as everywhere else.
fn limit(text: &str) -> Result<Duration, String> {
    let limit = span_or_seconds(text)?;
    if (SHORTEST..=LONGEST).contains(&limit) {
        Ok(limit)
    } else {
        Err("give a limit from 1s to 1h".to_owned())
    }
}

/// `NAME=VALUE` for one of several Sources, or a value for the only one.
fn of_sources(given: &[String], sources: &[&str], flag: &str) -> anyhow::Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for text in given {
        let named = text.split_once('=').filter(|(name, _)| sources.contains(name));
        let (name, value) = match (named, sources) {
            (Some((name, value)), _) => (name, value),
            (None, [only]) => (*only, text.as_str()),
            (None, _) => bail!(
                "{flag} {text}: the group has several Sources; write SOURCE={} with one of {}",
                if flag == "--path" { "DIR" } else { "REVISION" },
                sources.join(", ")
            ),
        };
        if found.insert(name.to_owned(), value.to_owned()).is_some() {
            bail!("{flag} is given twice for the Source {name}");
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(given: &[&str], sources: &[&str]) -> Result<Vec<(String, String)>, String> {
        let given: Vec<String> = given.iter().map(|text| (*text).to_owned()).collect();
        of_sources(&given, sources, "--revision")
            .map(|found| found.into_iter().collect())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_limit_is_a_duration_or_a_number_of_seconds() {
        for (text, seconds) in [("90", 90), ("90s", 90), ("2m", 120), ("1h", 3_600)] {
            assert_eq!(limit(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["0", "0s", "61m", "soon", "-1", ""] {
            assert!(limit(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_value_is_for_the_only_source_or_for_the_one_that_is_named() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(of(&["v1"], &["shop"]), Ok(vec![pair("shop", "v1")]));
        // A branch may have the sign in its name.
        assert_eq!(of(&["a=b"], &["shop"]), Ok(vec![pair("shop", "a=b")]));
        assert_eq!(of(&["shop=v1"], &["shop"]), Ok(vec![pair("shop", "v1")]));
        assert_eq!(
            of(&["b=v2", "a=v1"], &["a", "b"]),
            Ok(vec![pair("a", "v1"), pair("b", "v2")])
        );
        let error = of(&["v1"], &["a", "b"]).unwrap_err();
        assert!(error.contains("SOURCE=REVISION with one of a, b"), "{error}");
        let error = of(&["a=v1", "a=v2"], &["a", "b"]).unwrap_err();
        assert!(error.contains("twice"), "{error}");
    }
}
