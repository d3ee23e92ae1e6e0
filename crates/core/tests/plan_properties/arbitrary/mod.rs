//! Random strategies, records and fleets.

mod fleet;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use proptest::collection::vec;
use proptest::option::weighted;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use starling_api::{DeletionPolicy, IntOrPercent, OnFailure, OnUnreachable, StageTaskType};
use starling_core::clock_jumps::ClockJumps;
use starling_core::ids::{EntryName, SyncName};
use starling_core::plan::{
    Attribution, Direction, Gate, GateRecord, GateResult, LeavingCause, LeavingSync, OperatorInput,
    PlanInput, PruneRequest, REST, Reach, Retry, RolloutLimits, RolloutView, StageRecord, StageRules,
    Strategy as Rollout,
};
use starling_core::window::Window;

use fleet::cluster;

/// The current release of random inputs; `OLD` is a previous one, and `GOOD` the last known good one.
pub(crate) const NEW: &str = "r2";
const OLD: &str = "r1";
pub(crate) const GOOD: &str = "r0";

/// A Tuesday at 22:13:20 UTC, far from any change of offset.
pub(crate) fn t(seconds: i64) -> Timestamp {
    Timestamp::UNIX_EPOCH + SignedDuration::from_secs(1_700_000_000 + seconds)
}

pub(crate) fn attribution(at: i64) -> Attribution {
    Attribution {
        by: "jane@example.com".into(),
        reason: "so".into(),
        at: t(at),
    }
}

pub(crate) fn unreachable(since: Timestamp) -> Reach {
    Reach::Unreachable {
        reason: "Unreachable".into(),
        message: "no answer".into(),
        since,
    }
}

// ---------------------------------------------------------------------- the strategy

fn limit() -> impl Strategy<Value = IntOrPercent> {
    prop_oneof![
        4 => (0u32..6).prop_map(IntOrPercent::Int),
        1 => (6u32..60).prop_map(IntOrPercent::Int),
        3 => (0u32..=100).prop_map(IntOrPercent::Percent),
    ]
}

/// A limit that is mostly high, so that the other limits are reached as well.
fn wide_limit() -> impl Strategy<Value = IntOrPercent> {
    prop_oneof![2 => Just(IntOrPercent::Percent(100)), 1 => limit()]
}

fn seconds(longest: u64) -> impl Strategy<Value = Duration> {
    prop_oneof![Just(0), 1..longest].prop_map(Duration::from_secs)
}

pub(crate) fn limits() -> impl Strategy<Value = RolloutLimits> {
    let bounds = (limit(), wide_limit(), limit());
    (bounds, seconds(300), 1u64..900, seconds(600)).prop_map(
        |((max_concurrency, max_unavailable, max_failures), min_success_time, deadline, jitter)| {
            RolloutLimits {
                max_concurrency,
                max_unavailable,
                max_failures,
                min_success_time,
                progress_deadline: Duration::from_secs(deadline),
                jitter,
            }
        },
    )
}

fn gate() -> impl Strategy<Value = Gate> {
    prop_oneof![
        3 => seconds(600).prop_map(Gate::TimedWait),
        2 => Just(Gate::Approval),
        1 => Just(Gate::Effect(StageTaskType::Webhook)),
        1 => Just(Gate::Effect(StageTaskType::Metric)),
        1 => Just(Gate::Effect(StageTaskType::Job)),
    ]
}

fn gates() -> impl Strategy<Value = Vec<Gate>> {
    prop_oneof![2 => Just(Vec::new()), 1 => vec(gate(), 1..4)]
}

fn stage() -> impl Strategy<Value = StageRules> {
    let bound = || weighted(0.4, limit());
    let bounds = (bound(), weighted(0.2, limit()), bound());
    (bounds, gates(), gates()).prop_map(
        |((max_concurrency, max_unavailable, max_failures), before, after)| StageRules {
            name: String::new(),
            max_concurrency,
            max_unavailable,
            max_failures,
            before,
            after,
        },
    )
}

/// Some stages, the last of them the implicit one, which has no rules of its own.
pub(crate) fn stages() -> impl Strategy<Value = Vec<StageRules>> {
    vec(stage(), 0..4).prop_map(|mut stages| {
        for (place, stage) in stages.iter_mut().enumerate() {
            stage.name = ["canary", "eu", "us"][place].to_owned();
        }
        stages.push(StageRules {
            name: REST.to_owned(),
            max_concurrency: None,
            max_unavailable: None,
            max_failures: None,
            before: Vec::new(),
            after: Vec::new(),
        });
        stages
    })
}

pub(crate) fn window() -> impl Strategy<Value = Window> {
    let zone = select(&["UTC", "Europe/Berlin", "Asia/Kolkata", "America/New_York"][..]);
    let minute = prop_oneof![0u16..1440, 1320u16..1440];
    let range = (minute.clone(), prop_oneof![4 => minute, 1 => Just(1440)]);
    let days = prop_oneof![3 => Just([true; 7]), 1 => any::<[bool; 7]>()];
    (any::<bool>(), days, vec(range, 1..3), zone).prop_map(|(allow, days, ranges, zone)| Window {
        allow,
        days,
        ranges,
        zone: TimeZone::get(zone).unwrap(),
    })
}

pub(crate) fn strategy() -> impl Strategy<Value = Rollout> {
    let on_failure = select(vec![OnFailure::Pause, OnFailure::Rollback, OnFailure::Continue]);
    let on_unreachable = select(vec![
        OnUnreachable::Skip,
        OnUnreachable::Skip,
        OnUnreachable::Wait,
    ]);
    (limits(), on_failure, on_unreachable, vec(window(), 2), stages()).prop_map(
        |(limits, on_failure, on_unreachable, windows, stages)| Rollout {
            limits,
            on_failure,
            on_unreachable,
            windows,
            stages,
        },
    )
}

// ---------------------------------------------------------------------- records and requests

fn gate_record() -> impl Strategy<Value = GateRecord> {
    let result = prop_oneof![
        2 => Just(None),
        4 => Just(Some(GateResult::Passed)),
        1 => Just(Some(GateResult::Failed { message: "500".into() })),
    ];
    (gate(), 0i64..1200, result).prop_map(|(gate, at, result)| GateRecord {
        gate,
        begun_at: t(at),
        result,
    })
}

/// Records of some of the gates of a list; sometimes of another list, since strategies change.
fn gate_records(gates: Vec<Gate>) -> impl Strategy<Value = Vec<GateRecord>> {
    let own = weighted(0.9, Just(()));
    let records = vec((own, gate_record()), 0..=gates.len());
    records.prop_map(move |records| {
        let fits = records.into_iter().zip(&gates);
        fits.map(|((own, record), gate)| GateRecord {
            gate: own.map_or(record.gate, |()| *gate),
            ..record
        })
        .collect()
    })
}

fn stage_record(rules: StageRules) -> impl Strategy<Value = StageRecord> {
    let times = vec(0i64..1200, 3).prop_map(|mut times| {
        times.sort_unstable();
        times
    });
    let lists = (gate_records(rules.before), gate_records(rules.after));
    (0usize..=4, times, lists).prop_map(|(known, times, (before, after))| {
        let time = |of: usize| (known > of).then(|| t(times[of - 1]));
        StageRecord {
            opened_at: time(1),
            completed_at: time(2),
            passed_at: time(3),
            before: if known > 0 { before } else { Vec::new() },
            after: if known > 2 { after } else { Vec::new() },
        }
    })
}

/// Records of a prefix of the stages, mostly: the last of them is in progress.
fn records(stages: Vec<StageRules>) -> impl Strategy<Value = BTreeMap<String, StageRecord>> {
    let each: Vec<_> = stages
        .iter()
        .map(|stage| stage_record(stage.clone()).boxed())
        .collect();
    (each, 0..=stages.len(), any::<bool>()).prop_map(move |(records, under_way, regular)| {
        let named = stages
            .iter()
            .map(|stage| stage.name.clone())
            .zip(records)
            .enumerate();
        let mut kept = BTreeMap::new();
        for (place, (name, mut record)) in named {
            if regular && place > under_way {
                continue;
            }
            if regular && place < under_way {
                let opened_at = *record.opened_at.get_or_insert(t(0));
                let completed_at = *record.completed_at.get_or_insert(opened_at);
                record.passed_at.get_or_insert(completed_at);
            }
            kept.insert(name, record);
        }
        kept
    })
}

fn attributed<N: From<String> + Ord>(names: Vec<String>) -> BTreeMap<N, Attribution> {
    let named = names.into_iter().map(|name| (name.into(), attribution(0)));
    named.collect()
}

fn operator(stages: Vec<String>) -> impl Strategy<Value = OperatorInput> {
    let some = |names: Vec<String>| prop_oneof![6 => Just(Vec::new()), 1 => subsequence(names.clone(), 0..=names.len())];
    let clusters: Vec<String> = (0..40).map(|n| format!("c{n:02}")).collect();
    let skipped = prop_oneof![3 => Just(Vec::new()), 1 => subsequence(clusters, 0..6)];
    (
        weighted(0.05, Just(attribution(0))),
        weighted(0.05, Just(attribution(0))),
        skipped,
        some(stages.clone()),
        some(stages.clone()),
        retries(stages),
    )
        .prop_map(
            move |(paused, aborted, skipped, skipped_stages, promoted, retries)| OperatorInput {
                paused,
                aborted,
                skipped: attributed(skipped),
                skipped_stages: attributed(skipped_stages),
                promoted: attributed(promoted),
                retries,
            },
        )
}

/// Requests for retries: of everything, of one stage, of one cluster.
fn retries(stages: Vec<String>) -> impl Strategy<Value = Vec<Retry>> {
    let stage = weighted(0.3, select(stages));
    let cluster = weighted(0.4, (0..6_u8).prop_map(|n| format!("c{n:02}").into()));
    let retry = (cluster, stage, 0_i64..4).prop_map(|(cluster, stage, at)| Retry {
        cluster,
        stage,
        attribution: attribution(at * 300),
    });
    prop_oneof![2 => Just(Vec::new()), 1 => prop::collection::vec(retry, 1..4)]
}

/// Syncs that the group no longer wants: of clusters that are not selected, and of entries that no release has.
fn leaving(stages: usize) -> impl Strategy<Value = BTreeMap<SyncName, LeavingSync>> {
    let cluster = (0..4_u8).prop_map(|n| format!("gone-{n}"));
    let unselected =
        (cluster, 0_i64..1200, 0..stages, fleet::windows()).prop_map(|(cluster, at, stage, windows)| {
            let settles_at = t(at);
            let cause = LeavingCause::ClusterUnselected {
                settles_at,
                stage,
                windows,
            };
            (cluster, cause)
        });
    let removed = (0..6_u8).prop_map(|n| (format!("c{n:02}"), LeavingCause::EntryRemoved));
    let since = weighted(0.3, 0_i64..1200);
    let policy = prop_oneof![3 => Just(DeletionPolicy::Delete), 1 => Just(DeletionPolicy::Orphan)];
    let sync = (
        prop_oneof![unselected, removed],
        policy,
        since,
        (weighted(0.1, Just(())), weighted(0.2, Just(()))),
        weighted(0.2, 0_i64..1200),
        weighted(0.2, Just(())),
    );
    let sync = sync.prop_map(
        |((cluster, cause), policy, since, (suspended, not_ready), budget, held)| LeavingSync {
            approval: held.map(|()| "sha256:d".into()),
            cluster: cluster.into(),
            entry: EntryName::default(),
            cause,
            policy,
            depends_on: BTreeSet::new(),
            removing_since: since.map(t),
            suspended: suspended.is_some(),
            not_ready: not_ready.is_some(),
            budget_until: budget.map(t),
        },
    );
    prop_oneof![
        2 => Just(BTreeMap::new()),
        1 => prop::collection::vec(sync, 1..8).prop_map(|syncs| {
            let named = syncs.into_iter().enumerate();
            let of_its_own = |(n, sync): (usize, LeavingSync)| {
                let entry = format!("removed-{n}");
                (format!("shop-{entry}").into(), LeavingSync { entry: entry.into(), ..sync })
            };
            named.map(of_its_own).collect()
        }),
    ]
}

/// Prunes of clusters that the group selects, and of some that it does not.
fn prunes() -> impl Strategy<Value = BTreeMap<SyncName, PruneRequest>> {
    let prune = (0_usize..42, weighted(0.4, 0_i64..1500));
    vec(prune, 0..6).prop_map(|prunes| {
        let prunes = prunes.into_iter().enumerate();
        let request = |(n, (cluster, allowed_at)): (usize, (usize, Option<i64>))| {
            let request = PruneRequest {
                cluster: format!("c{cluster:02}").into(),
                allowed_at: allowed_at.map(t),
                begun: n % 3 == 0,
            };
            (format!("shop-prunes-{n}").into(), request)
        };
        prunes.map(request).collect()
    })
}

/// Every other Sync that is being removed deletes late.
fn late(leaving: &BTreeMap<SyncName, LeavingSync>) -> BTreeMap<SyncName, PruneRequest> {
    let removing = leaving.iter().filter(|(_, sync)| sync.removing_since.is_some());
    let request = |(n, (name, sync)): (usize, (&SyncName, &LeavingSync))| {
        let request = PruneRequest {
            cluster: sync.cluster.clone(),
            allowed_at: sync.removing_since.filter(|_| n % 4 == 0),
            begun: n % 8 == 0,
        };
        (name.clone(), request)
    };
    removing
        .enumerate()
        .filter(|(n, _)| n % 2 == 0)
        .map(request)
        .collect()
}

pub(crate) fn direction() -> impl Strategy<Value = Direction> {
    prop_oneof![
        6 => Just(Direction::Forward),
        1 => Just(Direction::Back),
        1 => Just(Direction::BackAtOnce),
    ]
}

pub(crate) fn input() -> impl Strategy<Value = PlanInput> {
    strategy().prop_flat_map(|strategy| {
        let names: Vec<String> = strategy.stages.iter().map(|stage| stage.name.clone()).collect();
        let approvals = subsequence(names.clone(), 0..=names.len());
        let rollout = (
            direction(),
            0i64..1500,
            records(strategy.stages.clone()),
            approvals,
        )
            .prop_map(|(direction, started_at, stages, approvals)| RolloutView {
                release: NEW.into(),
                direction,
                started_at: t(started_at),
                stages,
                approvals: approvals.into_iter().map(|name| (name, attribution(0))).collect(),
            });
        let held = (
            prop::bool::weighted(0.05),
            prop::bool::weighted(0.05),
            prop::bool::weighted(0.2),
            prop::bool::weighted(0.1),
        );
        let stages = strategy.stages.len();
        let clusters = vec(cluster(stages), 0..40);
        (
            Just(strategy),
            rollout,
            operator(names),
            held,
            (0i64..1500, clock_jumps()),
            clusters,
            (
                leaving(stages),
                prunes(),
                prop_oneof![3 => Just(None), 1 => (0..4_usize).prop_map(Some)],
            ),
        )
            .prop_map(
                |(
                    strategy,
                    rollout,
                    operator,
                    (suspended, membership_held, windows, deleting),
                    (now, clock_jumps),
                    mut clusters,
                    (mut leaving, mut prunes, installation_slots),
                )| {
                    if deleting {
                        clusters.clear();
                        delete_group(&mut leaving, strategy.stages.len());
                    }
                    prunes.extend(late(&leaving));
                    for sync in leaving.values_mut() {
                        if let LeavingCause::ClusterUnselected { windows: about, .. }
                        | LeavingCause::GroupDeleted { windows: about, .. } = &mut sync.cause
                            && !windows
                        {
                            about.clear();
                        }
                    }
                    for cluster in &mut clusters {
                        if !windows {
                            cluster.windows.clear();
                        }
                        if let Reach::Unreachable { since, .. } = &mut cluster.reach {
                            *since = t(now).min(*since);
                        }
                    }
                    PlanInput {
                        installation_slots,
                        now: t(now),
                        clock_jumps,
                        strategy,
                        rollout,
                        operator,
                        deleting,
                        suspended,
                        membership_held,
                        leaving,
                        returned: Default::default(),
                        prunes,
                        clusters: clusters
                            .into_iter()
                            .enumerate()
                            .map(|(n, cluster)| (format!("c{n:02}").into(), cluster))
                            .collect(),
                    }
                },
            )
    })
}

/// Lets all Syncs leave because their group is deleted. Those of one cluster have the same stage and windows.
fn delete_group(leaving: &mut BTreeMap<SyncName, LeavingSync>, stages: usize) {
    for sync in leaving.values_mut() {
        let number = sync.cluster.bytes().map(usize::from).sum::<usize>();
        sync.cause = LeavingCause::GroupDeleted {
            stage: number % stages,
            windows: (0..number % 3).collect(),
        };
    }
}

/// Jumps of the clock, in any order of its times.
fn clock_jumps() -> impl Strategy<Value = ClockJumps> {
    vec((0i64..1500, -900i64..900), 0..3).prop_map(|jumps| {
        let mut observed = ClockJumps::default();
        for (at, by) in jumps {
            observed.observe(t(at), t(at + by), Duration::ZERO);
        }
        observed
    })
}
