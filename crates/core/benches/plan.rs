//! `cargo bench -p starling-core --bench plan`: the duration of one plan of a large fleet.
//!
//! The strategy has four stages (a canary with gates, two regions, the rest), windows in three time zones, and limits
//! of each kind. The fleet is planned at five moments of a rollout. The *floor* is measured in the same rounds: one
//! pass over the same input that compares the target of each entry with the wanted one, and neither copies nor decides
//! anything. Durations are not asserted; the state of each moment is.
//!
//! Options, after `--`: `--clusters N`, `--rounds N`, `--only START-OF-A-NAME`.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::panic,
    reason = "printing is what a benchmark is for, and it stops where its input is wrong"
)]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};
use starling_core::clock_jumps::ClockJumps;
use starling_core::plan::{
    ClusterView, Direction, EntryView, Gate, GateRecord, ObservedSync, OperatorInput, Plan, PlanInput,
    Progress, Reach, ReadStrategy, RolloutVerdict, RolloutView, StageRecord, plan,
};

const STAGES: [&str; 4] = ["canary", "eu", "us", "*"];
const ENTRIES: [&str; 2] = ["app", "crds"];

fn main() {
    let (mut clusters, mut rounds, mut only) = (10_000, 50, String::new());
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || arguments.next().unwrap().parse().unwrap();
        match argument.as_str() {
            "--clusters" => clusters = number(),
            "--rounds" => rounds = number(),
            "--only" => only = arguments.next().unwrap(),
            // Cargo passes this to every benchmark.
            "--bench" => {}
            other => panic!("no such option: {other}"),
        }
    }
    println!("{clusters} clusters, {rounds} rounds\n");
    println!(
        "| moment | floor min ms | p50 | plan min ms | p50 | max | ratio of min | ratio of p50 | starts | next plan |"
    );
    println!("|---|--:|--:|--:|--:|--:|--:|--:|--:|---|");
    for moment in MOMENTS.iter().filter(|moment| moment.name.starts_with(&only)) {
        let input = (moment.input)(clusters);
        let planned = plan(&input);
        assert!(
            (moment.expected)(&planned),
            "{}: {:?}",
            moment.name,
            planned.verdict
        );
        let (floor, taken) = measure(&input, rounds);
        let figures = [
            floor[0],
            floor[rounds / 2],
            taken[0],
            taken[rounds / 2],
            taken[rounds - 1],
        ];
        let figures = figures.map(|figure| format!("{:.2}", figure.as_secs_f64() * 1000.0));
        let ratio = |place: usize| taken[place].as_secs_f64() / floor[place].as_secs_f64();
        println!(
            "| {} | {} | {:.1} | {:.1} | {} | {} |",
            moment.name,
            figures.join(" | "),
            ratio(0),
            ratio(rounds / 2),
            starts(&planned),
            planned.recheck_at.map_or("never".to_owned(), |at| at.to_string()),
        );
    }
}

fn starts(plan: &Plan) -> usize {
    let starts = |decision: &&starling_core::plan::Decision| {
        matches!(decision, starling_core::plan::Decision::Start { .. })
    };
    plan.decisions.values().filter(starts).count()
}

/// Returns the durations of the floor and of the plan, sorted. Both are measured in each round, so that other load
/// affects both.
fn measure(input: &PlanInput, rounds: usize) -> (Vec<Duration>, Vec<Duration>) {
    let (mut floor, mut taken) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let begun = Instant::now();
        black_box(pass(black_box(input)));
        floor.push(begun.elapsed());
        let begun = Instant::now();
        let planned = black_box(plan(black_box(input)));
        taken.push(begun.elapsed());
        // Dropped outside of the measurement.
        drop(planned);
    }
    floor.sort_unstable();
    taken.sort_unstable();
    (floor, taken)
}

/// Reads everything by which clusters differ.
fn pass(input: &PlanInput) -> usize {
    let mut at_target = 0;
    for (name, cluster) in &input.clusters {
        at_target += name.len() + cluster.windows.len();
        at_target += usize::from(cluster.reach == Reach::Ready);
        for view in cluster.entries.values() {
            let target = view.observed.as_ref().and_then(|sync| sync.target.as_ref());
            at_target += usize::from(view.wanted.as_ref().ok() == target);
        }
    }
    at_target
}

// ---------------------------------------------------------------------- the moments

struct Moment {
    name: &'static str,
    input: fn(usize) -> PlanInput,
    expected: fn(&Plan) -> bool,
}

const MOMENTS: [Moment; 5] = [
    Moment {
        name: "start",
        input: |clusters| input(clusters, &BTreeMap::new(), |_, _| State::Before),
        expected: |plan| starts(plan) > 0 && plan.tally.done == 0,
    },
    Moment {
        name: "soaking: the canary, its gate",
        input: |clusters| {
            let records = [("canary", opened(1))].into();
            input(clusters, &records, |stage, place| match stage {
                0 if place % 3 == 0 => State::Healthy(60),
                0 => State::Healthy(600),
                _ => State::Before,
            })
        },
        expected: |plan| starts(plan) == 0 && plan.tally.in_flight > 0,
    },
    Moment {
        name: "middle: two regions in turn",
        input: |clusters| {
            let records = [("canary", passed(120)), ("eu", passed(60)), ("us", opened(30))].into();
            input(clusters, &records, |stage, place| match (stage, place % 20) {
                (0 | 1, _) | (2, 0..10) => State::Healthy(600),
                (2, 10) if place % 40 == 10 => State::Healthy(30),
                (2, 11) if place % 40 == 11 => State::Working,
                _ => State::Before,
            })
        },
        expected: |plan| starts(plan) > 0 && plan.tally.done > plan.tally.total / 3,
    },
    Moment {
        name: "stopped by failures",
        input: |clusters| {
            let records = [("canary", passed(120)), ("eu", opened(60))].into();
            input(clusters, &records, |stage, place| match (stage, place % 10) {
                (0, _) | (1, 0..5) => State::Healthy(600),
                (1, 5..8) => State::Failing,
                _ => State::Before,
            })
        },
        expected: |plan| matches!(plan.verdict, RolloutVerdict::Stopped(_)),
    },
    Moment {
        name: "done",
        input: |clusters| {
            let records = STAGES.into_iter().map(|stage| (stage, passed(60))).collect();
            input(clusters, &records, |_, _| State::Healthy(3600))
        },
        expected: |plan| plan.verdict == RolloutVerdict::Succeeded,
    },
];

fn now() -> Timestamp {
    // A Wednesday.
    "2026-11-18T13:00:00Z".parse().unwrap()
}

fn ago(seconds: i64) -> Timestamp {
    now() - SignedDuration::from_secs(seconds)
}

fn opened(minutes: i64) -> StageRecord {
    StageRecord {
        opened_at: Some(ago(60 * minutes)),
        ..StageRecord::default()
    }
}

fn passed(minutes: i64) -> StageRecord {
    let at = ago(60 * minutes);
    let gate = |gate| GateRecord {
        gate,
        begun_at: at - SignedDuration::from_hours(1),
        result: None,
    };
    StageRecord {
        opened_at: Some(at - SignedDuration::from_hours(2)),
        completed_at: Some(at - SignedDuration::from_hours(1)),
        passed_at: Some(at),
        before: Vec::new(),
        after: vec![
            gate(Gate::TimedWait(Duration::from_secs(3600))),
            gate(Gate::Approval),
        ],
    }
}

/// The state of a cluster.
#[derive(Clone, Copy)]
enum State {
    /// At the previous release.
    Before,
    /// In progress with the release.
    Working,
    /// Failed to apply the release.
    Failing,
    /// Healthy with the release for this number of seconds.
    Healthy(i64),
}

fn strategy() -> ReadStrategy {
    let region = |region| serde_json::json!({"matchLabels": {"region": region}});
    let spec = serde_json::json!({
        "maxConcurrency": "5%",
        "maxUnavailable": "10%",
        "maxFailures": "2%",
        "minSuccessTime": "2m",
        "progressDeadline": "15m",
        "jitter": "30s",
        "windows": [
            {"allow": "Mon-Fri 09:00-16:00", "timeZone": "Europe/Berlin", "clusterSelector": region("eu")},
            {"allow": "Mon-Fri 08:00-17:00", "timeZone": "America/New_York", "clusterSelector": region("us")},
            {"deny": "Fri 12:00-24:00", "timeZone": "Asia/Tokyo"},
        ],
        "stages": [
            {"name": "canary", "clusterSelector": {"matchLabels": {"tier": "canary"}}, "maxConcurrency": 20, "maxFailures": 0,
             "afterStageTasks": [{"type": "TimedWait", "waitTime": "1h"}, {"type": "Approval"}]},
            {"name": "eu", "clusterSelector": region("eu")},
            {"name": "us", "clusterSelector": region("us"), "maxConcurrency": "8%"},
        ],
    });
    ReadStrategy::new(&serde_json::from_value(spec).unwrap()).unwrap()
}

/// One in a hundred clusters is a canary; the others are spread over the regions and the rest.
fn labels(cluster: usize) -> BTreeMap<String, String> {
    let region = ["eu", "us", "ap"][cluster % 3];
    let tier = if cluster % 100 == 7 { "canary" } else { "prod" };
    [("region", region), ("tier", tier)]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

fn input(
    clusters: usize,
    records: &BTreeMap<&str, StageRecord>,
    state: impl Fn(usize, usize) -> State,
) -> PlanInput {
    let read = strategy();
    let cluster = |number: usize| {
        let place = read.place(&labels(number));
        let state = state(place.stage, number / 3);
        let entries = ENTRIES.map(|entry| (entry.into(), entry_view(entry, state)));
        let view = ClusterView {
            id: format!("5a1ee3c4-9d3f-4b52-8f5e-{number:012}"),
            reach: Reach::Ready,
            stage: place.stage,
            windows: place.windows,
            entries: entries.into(),
        };
        (format!("cluster-{number:05}").into(), view)
    };
    PlanInput {
        installation_slots: None,
        leaving: BTreeMap::new(),
        returned: Default::default(),
        prunes: Default::default(),
        now: now(),
        clock_jumps: ClockJumps::default(),
        rollout: RolloutView {
            release: digest("release", 2).into(),
            direction: Direction::Forward,
            started_at: ago(3 * 3600),
            stages: records
                .iter()
                .map(|(stage, record)| ((*stage).to_owned(), record.clone()))
                .collect(),
            approvals: BTreeMap::new(),
        },
        operator: OperatorInput::default(),
        deleting: false,
        suspended: false,
        membership_held: false,
        clusters: (0..clusters).map(cluster).collect(),
        strategy: read.strategy,
    }
}

/// Returns a text with the length of a digest that is unique in its last characters.
fn digest(what: &str, version: u32) -> String {
    format!("sha256:{what:0>60}{version:04}")
}

fn entry_view(entry: &str, state: State) -> EntryView {
    let (version, admitted_at, progress) = match state {
        State::Before => (1, ago(86_400), Progress::healthy_since(ago(86_000))),
        State::Working => (2, ago(20), Progress::Working),
        State::Failing => (
            2,
            ago(600),
            Progress::Failing {
                reason: "ApplyFailed".to_owned(),
                message: "Deployment shop/web: admission webhook denied the request".to_owned(),
                retry_at: Some(ago(-60)),
            },
        ),
        State::Healthy(seconds) => (2, ago(seconds + 60), Progress::healthy_since(ago(seconds))),
    };
    EntryView {
        wanted: Ok(digest(entry, 2).into()),
        known_good: Some(digest(entry, 1).into()),
        observed: Some(ObservedSync {
            stored_admitted_at: None,
            retried_for: None,
            target: Some(digest(entry, version).into()),
            release: digest("release", version).into(),
            admitted_at: Some(admitted_at),
            progress,
            suspended: false,
        }),
    }
}
