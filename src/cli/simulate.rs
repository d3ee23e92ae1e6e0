//! `starling simulate`: forecasts the next rollout of a group in simulated time.

use std::time::Duration;

use anyhow::Context;
use clap::Args;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::core::Selector;
use starling_core::expand;
use starling_core::simulate::{Assumptions, RolloutEnd};

use super::caller::{Caller, CallerArguments};
use super::duration::duration as parse_duration;
use super::lists;
use super::output::{self, Form, Table, duration};
use super::removals;
use super::value::InvalidValue;
use crate::read_model::forecast::{self, GroupForecast, Scenario};

/// A rollout that takes longer than this ends the simulation.
const LIMIT: Duration = Duration::from_secs(90 * 86_400);

/// Options of `simulate`.
#[derive(Debug, Args)]
#[command(
    after_help = "Clusters that are suspended or unreachable now stay suspended or unreachable. The simulation ignores the rollout in progress, operator actions, and \
                  spec.suspend of the group and of Syncs."
)]
pub(super) struct SimulateArguments {
    /// Name of the SyncGroup
    #[arg(value_name = "GROUP")]
    group: String,
    /// Percentage of the clusters on which the release fails, such as 5%
    #[arg(long, value_name = "PERCENT", default_value = "0%", value_parser = percent)]
    fail: f64,
    /// Seed that selects the failing clusters
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Label selector of unreachable clusters, such as region=eu; repeatable
    #[arg(long, value_name = "SELECTOR")]
    down: Vec<String>,
    /// Duration of the update of each cluster, such as 90s. Default: its last recorded duration, then the median
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    takes: Option<Duration>,
    /// Time until an approval is given, such as 2h, or `never`
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = approvals)]
    approve_after: Approvals,
    /// Duration of Webhook, Metric and Job gates
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = parse_duration)]
    gates_take: Duration,
    /// Start time, such as 2026-11-21T08:00:00Z. Default: now
    #[arg(long, value_name = "TIME")]
    at: Option<Timestamp>,
    /// Output format
    #[arg(long, short, value_enum, default_value_t)]
    output: Form,
    #[command(flatten)]
    caller: CallerArguments,
}

/// Time at which approvals are given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Approvals {
    After(Duration),
    Never,
}

fn percent(text: &str) -> Result<f64, InvalidValue> {
    let number = text
        .strip_suffix('%')
        .and_then(|number| number.parse::<f64>().ok());
    let percent = number.ok_or_else(|| InvalidValue::new("expected a percentage, such as 5%"))?;
    if (0.0..=100.0).contains(&percent) {
        Ok(percent / 100.0)
    } else {
        Err(InvalidValue::new("expected a percentage from 0% to 100%"))
    }
}

fn approvals(text: &str) -> Result<Approvals, InvalidValue> {
    match text {
        "never" => Ok(Approvals::Never),
        text => parse_duration(text)
            .map(Approvals::After)
            .map_err(|problem| InvalidValue::new(format!("{problem}, or `never`"))),
    }
}

/// A label selector: `region=eu,tier!=lab,gpu`.
fn selector(text: &str) -> Result<Selector, InvalidValue> {
    let requirement = |key: &str, operator: &str, value: Option<&str>| LabelSelectorRequirement {
        key: key.trim().to_owned(),
        operator: operator.to_owned(),
        values: value.map(|value| vec![value.trim().to_owned()]),
    };
    let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
    let requirements: Vec<LabelSelectorRequirement> = parts
        .map(|part| match (part.split_once("!="), part.split_once('=')) {
            (Some((key, value)), _) => requirement(key, "NotIn", Some(value)),
            (None, Some((key, value))) => requirement(key, "In", Some(value.trim_start_matches('='))),
            (None, None) => requirement(part, "Exists", None),
        })
        .collect();
    if requirements.is_empty() {
        return Err(InvalidValue::new("expected labels, such as region=eu"));
    }
    expand::selector(&LabelSelector {
        match_expressions: Some(requirements),
        match_labels: None,
    })
    .map_err(|error| InvalidValue::new(error.to_string()))
}

pub(super) async fn run(arguments: SimulateArguments) -> anyhow::Result<()> {
    let SimulateArguments {
        group,
        fail,
        seed,
        down,
        takes,
        approve_after,
        gates_take,
        at,
        output,
        caller,
    } = arguments;
    let caller = Caller::sign_in(&caller).await?;
    let group = lists::group(&caller, &group).await?;
    let objects = lists::objects_of(&caller, group).await?;
    let scenario = Scenario {
        start: at.unwrap_or_else(Timestamp::now),
        fail,
        seed,
        down: down
            .iter()
            .map(|text| selector(text).with_context(|| format!("--down {text}")))
            .collect::<anyhow::Result<_>>()?,
        takes,
        assumptions: Assumptions {
            approvals_take: match approve_after {
                Approvals::Never => None,
                Approvals::After(duration) => Some(duration),
            },
            gates_take,
            limit: LIMIT,
        },
    };
    let forecast = forecast::of_group(&objects, &scenario)?;
    match output {
        Form::Json => output::print_value(&forecast, false),
        Form::Text => {
            output::print(&text(&forecast));
            Ok(())
        }
    }
}

fn text(of_group: &GroupForecast) -> String {
    let GroupForecast {
        group,
        recorded,
        removals,
        forecast,
    } = of_group;
    let end = match &forecast.end {
        RolloutEnd::Succeeded => "succeeds".to_owned(),
        RolloutEnd::Stopped(why) => format!("stops: {why}"),
        RolloutEnd::RolledBack(why) => format!("rolls back: {why}"),
        RolloutEnd::Waits(why) => format!("waits: {why}"),
        RolloutEnd::TooLong => "does not complete within 90 days".to_owned(),
    };
    let took = |until: Timestamp| duration(until.duration_since(forecast.started).as_secs());
    let mut text = format!(
        "SyncGroup {group}: {end}\n\
         {} clusters, {recorded} with a recorded duration\n\
         started {}, ended {} (after {})\n\
         {} updated, {} failed\n\
         at most {} in flight at once, at most {} not healthy at once\n",
        forecast.clusters,
        forecast.started,
        forecast.ended,
        took(forecast.ended),
        forecast.updated,
        forecast.failed,
        forecast.peak_concurrency,
        forecast.worst_unhealthy,
    );
    text.push_str(&removals::text(removals));
    let when =
        |time: Option<Timestamp>| time.map_or_else(|| "-".to_owned(), |time| format!("+{}", took(time)));
    let mut table = Table::new(&["STAGE", "CLUSTERS", "STARTS", "COMPLETES"]);
    for stage in &forecast.stages {
        table.push(vec![
            stage.name.clone(),
            stage.clusters.to_string(),
            when(stage.opens),
            when(stage.passes),
        ]);
    }
    text.push_str(&table.text());
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kube::core::SelectorExt as _;
    use starling_api::DeletionPolicy;
    use starling_core::simulate::{RolloutForecast, StageForecast};

    use super::*;
    use crate::read_model::removals::{PlannedRemoval, RemovalCause};

    #[test]
    fn percentages_and_durations_are_parsed() {
        assert_eq!(percent("5%"), Ok(0.05));
        for text in ["5", "101%", "-1%", "x%"] {
            assert!(percent(text).is_err(), "{text}");
        }
        assert_eq!(parse_duration("1h30m"), Ok(Duration::from_secs(5_400)));
        assert!(parse_duration("soon").is_err());
    }

    #[test]
    fn approvals_are_given_after_a_time_or_never() {
        assert_eq!(approvals("2h"), Ok(Approvals::After(Duration::from_secs(7_200))));
        assert_eq!(approvals("never"), Ok(Approvals::Never));
        assert!(approvals("soon").unwrap_err().to_string().ends_with("or `never`"));
    }

    #[test]
    fn selectors_match_labels() {
        let labels: BTreeMap<String, String> =
            [("region".into(), "eu".into()), ("gpu".into(), "1".into())].into();
        for (text, expected) in [
            ("region=eu", true),
            ("region==eu,gpu", true),
            ("region!=eu", false),
            ("region=us", false),
            ("tier", false),
            ("tier!=lab", true),
        ] {
            assert_eq!(selector(text).unwrap().matches(&labels), expected, "{text}");
        }
        assert!(selector(" ").is_err());
    }

    #[test]
    fn a_forecast_is_printed_with_its_stages() {
        let at = |text: &str| -> Timestamp { text.parse().unwrap() };
        let forecast = RolloutForecast {
            started: at("2026-11-21T08:00:00Z"),
            ended: at("2026-11-21T10:05:00Z"),
            end: RolloutEnd::Stopped("2 failed (limit 1)".into()),
            stages: vec![StageForecast {
                name: "canary".into(),
                clusters: 3,
                opens: Some(at("2026-11-21T08:00:00Z")),
                passes: None,
            }],
            clusters: 200,
            updated: 5,
            failed: 2,
            peak_concurrency: 4,
            worst_unhealthy: 6,
        };
        let expected = "SyncGroup shop: stops: 2 failed (limit 1)\n200 clusters, 12 with a recorded duration\n\
            started 2026-11-21T08:00:00Z, ended 2026-11-21T10:05:00Z (after 2h5m)\n5 updated, 2 failed\n\
            at most 4 in flight at once, at most 6 not healthy at once\n\
            removes 12 objects on 3 clusters (a, b, c): the group no longer has entry old\n\
            STAGE    CLUSTERS   STARTS   COMPLETES\ncanary   3          +0s      -\n";
        assert_eq!(
            text(&GroupForecast {
                group: "shop".into(),
                recorded: 12,
                removals: vec![PlannedRemoval {
                    cause: RemovalCause::EntryRemoved { entry: "old".into() },
                    policy: DeletionPolicy::Delete,
                    objects: 12,
                    clusters: vec!["a".into(), "b".into(), "c".into()],
                }],
                forecast,
            }),
            expected
        );
    }
}
