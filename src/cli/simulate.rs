//! `starling simulate`: how a rollout would go, in simulated time, with the same engine that rolls.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::bail;
use clap::Args;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube::ResourceExt;
use kube::core::{Selector, SelectorExt as _};
use serde::Serialize;
use starling_api::{ADMITTED_AT, Cluster, SyncGroup, SyncResource, SyncStatus};
use starling_core::digest::hash64;
use starling_core::plan::{Reach, ReadStrategy};
use starling_core::simulate::{Assumptions, End, Fate, Forecast, Member, World};
use starling_core::{expand, explain, progress, target};

use super::caller::{Caller, CallerArguments};
use super::lists;
use super::output::{self, Form, Table, duration};
use super::span::span;
use crate::controller::reconcile::cluster::reach;

/// From admission to healthy, where nothing is recorded and nothing is given.
const ASSUMED: Duration = Duration::from_secs(60);
/// What has not ended by then is given up.
const LIMIT: Duration = Duration::from_secs(90 * 86_400);

/// What is assumed.
#[derive(Debug, Args)]
#[command(
    after_help = "Clusters that are suspended or cannot be reached now stay so. Left out are the rollout that is under way, pauses and other words of people, and spec.suspend of the group and of Syncs."
)]
pub(super) struct SimulateArguments {
    /// The SyncGroup
    #[arg(value_name = "GROUP")]
    group: String,
    /// Share of the clusters on which the release fails, such as 5%
    #[arg(long, value_name = "PERCENT", default_value = "0%", value_parser = percent)]
    fail: f64,
    /// Which of them fail is drawn from this number
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Clusters that cannot be reached, by their labels
    #[arg(long, value_name = "SELECTOR")]
    down: Vec<String>,
    /// How long each cluster takes, such as 90s; without it as long as it took the last time
    #[arg(long, value_name = "DURATION", value_parser = span)]
    takes: Option<Duration>,
    /// How long people take to approve, such as 2h; `never`
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = approvals)]
    approve_after: Approvals,
    /// How long webhooks, metrics and Jobs take
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = span)]
    gates_take: Duration,
    /// When it starts, such as 2026-11-21T08:00:00Z; without it now
    #[arg(long, value_name = "TIME")]
    at: Option<Timestamp>,
    /// How it is printed
    #[arg(long, short, value_enum, default_value_t)]
    output: Form,
    #[command(flatten)]
    caller: CallerArguments,
}

/// How long people take to approve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Approvals {
    After(Duration),
    Never,
}

/// What is told.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Told<'a> {
    group: &'a str,
    /// Clusters whose time was recorded, and not assumed.
    recorded: usize,
    #[serde(flatten)]
    forecast: &'a Forecast,
}

fn percent(text: &str) -> Result<f64, String> {
    let share: f64 = text
        .strip_suffix('%')
        .and_then(|number| number.parse().ok())
        .ok_or("give a percentage, such as 5%")?;
    if (0.0..=100.0).contains(&share) {
        Ok(share / 100.0)
    } else {
        Err("give a percentage from 0% to 100%".to_owned())
    }
}

fn approvals(text: &str) -> Result<Approvals, String> {
    match text {
        "never" => Ok(Approvals::Never),
        text => Ok(Approvals::After(
            span(text).map_err(|problem| format!("{problem}, or `never`"))?,
        )),
    }
}

pub(super) async fn run(arguments: SimulateArguments) -> anyhow::Result<()> {
    let caller = Caller::sign_in(&arguments.caller).await?;
    let group = lists::group(&caller, &arguments.group).await?;
    let clusters = lists::selected(&caller, &group).await?;
    let syncs = lists::syncs(&caller, &group).await?;
    let assumptions = Assumptions {
        approvals_take: match arguments.approve_after {
            Approvals::Never => None,
            Approvals::After(span) => Some(span),
        },
        gates_take: arguments.gates_take,
        limit: LIMIT,
    };
    let (world, recorded) = world(&group, &clusters, &syncs, &arguments)?;
    let forecast = world.forecast(assumptions);
    match arguments.output {
        Form::Json => output::print_value(
            &Told {
                group: &arguments.group,
                recorded,
                forecast: &forecast,
            },
            false,
        ),
        Form::Text => {
            output::print(&page(&arguments.group, recorded, &forecast));
            Ok(())
        }
    }
}

/// The group as it is, and how many of its clusters have a time that was recorded.
fn world(
    group: &SyncGroup,
    clusters: &BTreeMap<String, Cluster>,
    syncs: &BTreeMap<(String, String), SyncResource>,
    arguments: &SimulateArguments,
) -> anyhow::Result<(World, usize)> {
    let spec = &group.spec.rollout_strategy;
    let strategy = ReadStrategy::new(spec).map_err(|error| anyhow::anyhow!("spec.{error}"))?;
    let selectors = arguments
        .down
        .iter()
        .map(|text| selector(text).map_err(|problem| anyhow::anyhow!("--down {text}: {problem}")));
    let selectors: Vec<Selector> = selectors.collect::<anyhow::Result<_>>()?;
    let now = arguments.at.unwrap_or_else(Timestamp::now);
    let recorded: BTreeMap<&str, Duration> = clusters
        .iter()
        .filter_map(|(name, cluster)| Some((name.as_str(), took(group, (name, cluster), syncs)?)))
        .collect();
    let median = median(recorded.values().copied().collect());
    const RELEASE: &str = "the next release";
    let good = group
        .status
        .as_ref()
        .and_then(|status| status.last_known_good.as_ref())
        .map(|good| good.release.clone());
    let mut members = BTreeMap::new();
    for (name, cluster) in clusters {
        let known = recorded.get(name.as_str()).copied().or(median);
        let takes = arguments.takes.or(known).unwrap_or(ASSUMED);
        let uid = cluster.uid().unwrap_or_else(|| name.clone());
        let mut member = Member::new(&uid, cluster.labels().clone(), takes);
        // A cluster that has something is only taken on; a new one is given what was good first, if its stage waits.
        if let Some(good) = good.as_ref().filter(|_| has_syncs(group, name, syncs)) {
            member = member.holding(good, now);
        }
        if fails(&uid, arguments.seed, arguments.fail) {
            member.fates.insert(RELEASE.to_owned(), Fate::Fails);
        }
        if selectors
            .iter()
            .any(|selector| selector.matches(cluster.labels()))
        {
            member.reach = Reach::Unreachable {
                reason: "Unreachable".to_owned(),
                message: "assumed".to_owned(),
                since: now,
            };
        } else {
            member.reach = lasting_reach(cluster);
        }
        members.insert(name.clone(), member);
    }
    if members.is_empty() {
        bail!("SyncGroup {} selects no cluster", group.name_any());
    }
    let mut world = World::new(now, strategy, members, RELEASE);
    world.on_new_revision = spec.on_new_revision;
    world.rollback = spec.rollback.type_;
    world.known_good = good;
    let counted = if arguments.takes.is_some() {
        0
    } else {
        recorded.len()
    };
    Ok((world, counted))
}

/// `region=eu,tier!=lab,gpu`: labels that a cluster has, has otherwise, or has at all.
fn selector(text: &str) -> Result<Selector, String> {
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
        return Err("give labels, such as region=eu".to_owned());
    }
    expand::selector(&LabelSelector {
        match_expressions: Some(requirements),
        match_labels: None,
    })
}

fn has_syncs(group: &SyncGroup, cluster: &str, syncs: &BTreeMap<(String, String), SyncResource>) -> bool {
    let mut entries = group.spec.syncs.iter();
    entries.any(|entry| syncs.contains_key(&(cluster.to_owned(), entry.name.clone())))
}

/// Whether a cluster can be worked on, as the controller takes it. One that was not probed yet will have been in a moment, which is no
/// state to count on.
fn lasting_reach(cluster: &Cluster) -> Reach {
    match reach(cluster) {
        Reach::Unprobed => Reach::Ready,
        known => known,
    }
}

/// From admission to healthy, the last time, where nothing broke since: the slowest entry of a cluster tells.
fn took(
    group: &SyncGroup,
    (name, cluster): (&str, &Cluster),
    syncs: &BTreeMap<(String, String), SyncResource>,
) -> Option<Duration> {
    let id = cluster
        .status
        .as_ref()
        .map_or("", |status| status.cluster_id.as_str());
    let entries = group.spec.syncs.iter();
    let times = entries.filter_map(|entry| {
        let sync = syncs.get(&(name.to_owned(), entry.name.clone()))?;
        let admitted = sync.annotations().get(ADMITTED_AT)?.parse().ok();
        let (none, generation) = (SyncStatus::default(), sync.metadata.generation.unwrap_or(0));
        let status = sync.status.as_ref().unwrap_or(&none);
        let target = target::of_spec(&sync.spec)?;
        let progress = progress::progress(status, sync.spec.template.wait, &target, id, generation);
        explain::took(admitted, &progress)
    });
    times.max()
}

fn median(mut times: Vec<Duration>) -> Option<Duration> {
    times.sort_unstable();
    times.get(times.len() / 2).copied()
}

/// Whether a cluster is among the share that fails. The same seed draws the same clusters, whatever else there is.
fn fails(uid: &str, seed: u64, share: f64) -> bool {
    let drawn = hash64(&["fails", &seed.to_string(), uid]);
    #[expect(clippy::cast_precision_loss, reason = "a share needs no more digits")]
    let place = drawn as f64 / u64::MAX as f64;
    place < share
}

fn page(group: &str, recorded: usize, forecast: &Forecast) -> String {
    let end = match &forecast.end {
        End::Succeeded => "succeeds".to_owned(),
        End::Stopped(why) => format!("stops: {why}"),
        End::RolledBack(why) => format!("goes back: {why}"),
        End::Waits(why) => format!("waits: {why}"),
        End::TooLong => "is not done after 90 days".to_owned(),
    };
    let took = |until: Timestamp| duration(until.duration_since(forecast.started).as_secs());
    let mut page = format!(
        "SyncGroup {group}: {end}\n\
         {} clusters, {recorded} with a recorded time\n\
         started {}, ended {} (after {})\n\
         {} updated, {} failed\n\
         at most {} at work at once, at most {} not healthy at once\n",
        forecast.clusters,
        forecast.started,
        forecast.ended,
        took(forecast.ended),
        forecast.updated,
        forecast.failed,
        forecast.peak_concurrency,
        forecast.worst_unhealthy,
    );
    let when =
        |time: Option<Timestamp>| time.map_or_else(|| "-".to_owned(), |time| format!("+{}", took(time)));
    let mut table = Table::new(&["STAGE", "CLUSTERS", "OPENS", "PASSES"]);
    for stage in &forecast.stages {
        table.push(vec![
            stage.name.clone(),
            stage.clusters.to_string(),
            when(stage.opens),
            when(stage.passes),
        ]);
    }
    page.push_str(&table.text());
    page
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn shares_and_spans_are_read() {
        assert_eq!(percent("5%"), Ok(0.05));
        for text in ["5", "101%", "-1%", "x%"] {
            assert!(percent(text).is_err(), "{text}");
        }
        assert_eq!(span("1h30m"), Ok(Duration::from_secs(5_400)));
        assert!(span("soon").is_err());
    }

    #[test]
    fn approvals_come_after_a_time_or_never() {
        assert_eq!(approvals("2h"), Ok(Approvals::After(Duration::from_secs(7_200))));
        assert_eq!(approvals("never"), Ok(Approvals::Never));
        assert!(approvals("soon").unwrap_err().ends_with("or `never`"));
    }

    fn group() -> SyncGroup {
        serde_json::from_value(json!({
            "apiVersion": "starling.dev/v1alpha1", "kind": "SyncGroup", "metadata": {"name": "shop"},
            "spec": {"clusterSelector": {}, "syncs": [{"name": "app", "sourceRef": {"name": "shop"}, "path": "app"}]},
        }))
        .unwrap()
    }

    fn cluster(suspend: bool, ready: Option<&str>) -> Cluster {
        let ready = ready.into_iter().map(|status| {
            json!({"type": "Ready", "status": status, "reason": "R", "message": "m", "observedGeneration": 1,
                "lastTransitionTime": "2026-01-01T00:00:00Z"})
        });
        serde_json::from_value(json!({
            "apiVersion": "starling.dev/v1alpha1", "kind": "Cluster", "metadata": {"name": "eu", "generation": 1},
            "spec": {"kubeConfig": {"secretRef": {"name": "s"}}, "suspend": suspend},
            "status": {"conditions": ready.collect::<Vec<_>>(), "clusterID": "id"},
        }))
        .unwrap()
    }

    #[test]
    fn clusters_are_simulated_as_they_are() {
        assert_eq!(lasting_reach(&cluster(true, Some("True"))), Reach::Suspended);
        assert_eq!(lasting_reach(&cluster(false, Some("True"))), Reach::Ready);
        assert_eq!(lasting_reach(&cluster(false, None)), Reach::Ready);
        let lost = lasting_reach(&cluster(false, Some("False")));
        assert!(matches!(lost, Reach::Unreachable { .. }), "{lost:?}");
    }

    /// A month ago it took half a minute; that something was mended yesterday says nothing of how long a release takes.
    #[test]
    fn what_broke_since_tells_no_time() {
        let of = |more: serde_json::Value| {
            let mut sync: SyncResource = serde_json::from_value(json!({
                "apiVersion": "starling.dev/v1alpha1", "kind": "Sync",
                "metadata": {"name": "shop-app-eu", "annotations": {ADMITTED_AT: "2026-10-01T00:00:00Z"}},
                "spec": {"clusterRef": {"name": "eu"}, "revision": "main@sha1:0", "sourceRef": {"name": "shop"}, "path": "app",
                    "wait": true},
            }))
            .unwrap();
            let target = target::of_spec(&sync.spec).unwrap();
            let mut status = json!({"lastAppliedTarget": target, "lastAttemptedTarget": target, "lastHealthyTarget": target,
                "lastAppliedClusterID": "id"});
            for (field, value) in more.as_object().unwrap() {
                status[field] = value.clone();
            }
            sync.status = Some(serde_json::from_value(status).unwrap());
            let syncs = [(("eu".to_owned(), "app".to_owned()), sync)].into();
            took(&group(), ("eu", &cluster(false, Some("True"))), &syncs)
        };
        let first = of(json!({"healthySince": "2026-10-01T00:00:30Z"}));
        assert_eq!(first, Some(Duration::from_secs(30)));
        let mended = of(json!({"healthySince": "2026-10-30T00:00:00Z", "longestHealthy": "700h"}));
        assert_eq!(mended, None);
    }

    #[test]
    fn clusters_are_down_by_their_labels() {
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
    fn about_the_share_fails_and_a_larger_share_has_the_same_clusters_in_it() {
        let drawn =
            |share| -> Vec<u32> { (0..2_000).filter(|n| fails(&format!("u{n}"), 7, share)).collect() };
        let (few, many) = (drawn(0.05), drawn(0.2));
        assert!(
            (60..140).contains(&few.len()) && (320..480).contains(&many.len()),
            "{} {}",
            few.len(),
            many.len()
        );
        assert!(few.iter().all(|n| many.contains(n)));
        assert!(drawn(0.0).is_empty());
        assert_eq!(drawn(1.0).len(), 2_000);
    }

    #[test]
    fn a_forecast_is_told_from_the_whole_to_the_stage() {
        let at = |text: &str| -> Timestamp { text.parse().unwrap() };
        let forecast = Forecast {
            started: at("2026-11-21T08:00:00Z"),
            ended: at("2026-11-21T10:05:00Z"),
            end: End::Stopped("2 failed, 1 may".into()),
            stages: vec![starling_core::simulate::StageForecast {
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
        let expected = "SyncGroup shop: stops: 2 failed, 1 may\n200 clusters, 12 with a recorded time\n\
            started 2026-11-21T08:00:00Z, ended 2026-11-21T10:05:00Z (after 2h5m)\n5 updated, 2 failed\n\
            at most 4 at work at once, at most 6 not healthy at once\n\
            STAGE    CLUSTERS   OPENS   PASSES\ncanary   3          +0s     -\n";
        assert_eq!(page("shop", 12, &forecast), expected);
    }
}
