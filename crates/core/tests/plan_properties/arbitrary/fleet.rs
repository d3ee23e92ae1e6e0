//! Random clusters.

use proptest::collection::btree_map;
use proptest::option::weighted;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use starling_core::ids::TargetDigest;
use starling_core::plan::{
    Applied, ClusterView, EntryView, HealthProblem, ObservedSync, Progress, Reach, UnresolvedTarget,
};

use super::{GOOD, NEW, OLD, seconds, t, unreachable};

fn applied() -> impl Strategy<Value = Applied> {
    let problem = HealthProblem {
        reason: "HealthCheckFailed".into(),
        message: "not available".into(),
    };
    let now = prop_oneof![
        4 => (0i64..1200).prop_map(|since| (Some(t(since)), None)),
        1 => Just((None, None)),
        1 => Just((None, Some(problem))),
    ];
    (now, seconds(400)).prop_map(|((since, problem), longest)| Applied {
        since,
        longest,
        problem,
    })
}

fn progress() -> impl Strategy<Value = Progress> {
    prop_oneof![
        2 => Just(Progress::Working),
        5 => applied().prop_map(Progress::Applied),
        1 => weighted(0.5, 0i64..2000).prop_map(|retry| Progress::Failing {
            reason: "ApplyFailed".into(),
            message: "refused".into(),
            retry_at: retry.map(t),
        }),
    ]
}

fn observed_sync() -> impl Strategy<Value = ObservedSync> {
    // The older release may have admitted the new target: it leaves the entry as it is.
    let admission = prop_oneof![
        1 => Just((None, "")),
        4 => Just((Some("new"), NEW)),
        1 => Just((Some("new"), OLD)),
        3 => Just((Some("old"), OLD)),
        1 => Just((Some("good"), GOOD)),
        1 => Just((Some("other parameters"), NEW)),
    ];
    let admitted_at = prop_oneof![1 => Just(None), 9 => (0i64..1200).prop_map(Some)];
    let retried_for = weighted(0.2, (0i64..4).prop_map(|n| t(n * 300)));
    (
        admission,
        admitted_at,
        progress(),
        retried_for,
        prop::bool::weighted(0.05),
    )
        .prop_map(
            |((target, release), admitted_at, progress, retried_for, suspended)| ObservedSync {
                stored_admitted_at: None,
                target: target.map(TargetDigest::from),
                release: release.into(),
                admitted_at: admitted_at.map(t),
                progress,
                retried_for,
                suspended,
            },
        )
}

fn entry() -> impl Strategy<Value = EntryView> {
    let wanted = prop_oneof![
        19 => Just(Ok("new".into())),
        1 => Just(Err(UnresolvedTarget::UnreadableSync { sync: "s".into() })),
        1 => Just(Err(UnresolvedTarget::parameter("no such label"))),
    ];
    let known_good = weighted(0.7, select(vec!["good", "good", "old", "new"]));
    (wanted, known_good, weighted(0.8, observed_sync())).prop_map(|(wanted, known_good, observed)| {
        EntryView {
            wanted,
            known_good: known_good.map(TargetDigest::from),
            observed,
        }
    })
}

fn reach() -> impl Strategy<Value = Reach> {
    prop_oneof![
        12 => Just(Reach::Ready),
        1 => Just(Reach::Unprobed),
        1 => Just(Reach::Suspended),
        2 => (0i64..1500).prop_map(|since| unreachable(t(since))),
    ]
}

pub(super) fn cluster(stages: usize) -> impl Strategy<Value = ClusterView> {
    let entries = btree_map(select(&["app", "base", "crds"][..]), entry(), 1..4);
    // A cluster without any Sync.
    let is_new = prop::bool::weighted(0.1);
    (any::<u64>(), reach(), 0..stages, windows(), entries, is_new).prop_map(
        |(id, reach, stage, windows, entries, is_new)| ClusterView {
            id: id.to_string(),
            reach,
            stage,
            windows,
            entries: entries
                .into_iter()
                .map(|(name, mut entry)| {
                    if is_new {
                        entry.observed = None;
                    }
                    (name.into(), entry)
                })
                .collect(),
        },
    )
}

/// The windows that apply to a cluster, by their indexes.
pub(super) fn windows() -> impl Strategy<Value = Vec<usize>> {
    prop_oneof![1 => Just(vec![]), 1 => subsequence(vec![0, 1], 1..=2)]
}
