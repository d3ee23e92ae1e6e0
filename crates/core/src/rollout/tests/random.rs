//! Properties of every transition, for arbitrary observations.

use proptest::collection::{btree_map, btree_set, vec};
use proptest::option::{of, weighted};
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::plan::Retry;

const RELEASES: [&str; 4] = ["r0", "r1", "r2", "r3"];

fn release() -> impl Strategy<Value = String> {
    select(&RELEASES[..]).prop_map(str::to_owned)
}

fn observed() -> impl Strategy<Value = ObservedSync> {
    let kinds = select(&["healthy", "working", "failing", "overdue"][..]);
    (release(), kinds).prop_map(|(release, kind)| match kind {
        "healthy" => healthy(&release),
        "working" => working(&release),
        "failing" => failing(&release),
        _ => sync(&release, -100_000, Progress::Working),
    })
}

fn rules() -> impl Strategy<Value = ReadStrategy> {
    let on_failure = select(&["Pause", "Rollback", "Continue"][..]);
    let tasks = select(vec![
        serde_json::json!([]),
        serde_json::json!([{"type": "Approval"}]),
        serde_json::json!([{"type": "TimedWait", "waitTime": "1m"}]),
    ]);
    (1..3u32, 0..2u32, on_failure, tasks, any::<bool>()).prop_map(
        |(slots, failures, on_failure, tasks, staged)| {
            let stage = serde_json::json!({
                "name": "canary",
                "clusterSelector": {"matchLabels": {"tier": "canary"}},
                "afterStageTasks": tasks,
            });
            let stages = if staged { vec![stage] } else { Vec::new() };
            strategy(serde_json::json!({
                "maxConcurrency": slots,
                "maxFailures": failures,
                "onFailure": on_failure,
                "stages": stages,
            }))
        },
    )
}

fn status() -> impl Strategy<Value = SyncGroupStatus> {
    let directions = vec![
        starling_api::RolloutDirection::Forward,
        starling_api::RolloutDirection::Back,
        starling_api::RolloutDirection::BackAtOnce,
    ];
    let rollout = (release(), select(directions)).prop_map(|(release, direction)| RolloutStatus {
        id: 1,
        revisions: revisions(&release),
        release,
        direction,
        start_time: t(-100).to_string(),
        ..RolloutStatus::default()
    });
    let held = release().prop_map(|release| HeldRelease {
        release,
        ..HeldRelease::default()
    });
    let good = release().prop_map(|release| named(&release));
    let queue = vec(release().prop_map(|release| named(&release)), 0..3);
    (weighted(0.9, rollout), of(good), of(held), queue).prop_map(
        |(rollout, last_known_good, held_release, queue)| SyncGroupStatus {
            rollout,
            last_known_good,
            held_release,
            queue,
            ..SyncGroupStatus::default()
        },
    )
}

fn actions() -> impl Strategy<Value = OperatorActions> {
    let rollback = weighted(0.3, (of(release()), -9..0i64));
    let retry = weighted(0.3, -9..0i64);
    let flags = (
        weighted(0.2, -9..0i64),
        weighted(0.1, -9..0i64),
        weighted(0.1, -9..0i64),
    );
    (rollback, retry, flags).prop_map(|(rollback, retry, (release, paused, aborted))| {
        let mut actions = OperatorActions {
            rollback: rollback.map(|(revision, at)| RollbackRequest {
                revision,
                attribution: attribution(at),
            }),
            release: release.map(attribution),
            ..OperatorActions::default()
        };
        actions.input.paused = paused.map(attribution);
        actions.input.aborted = aborted.map(attribution);
        actions.input.retries.extend(retry.map(|at| Retry {
            cluster: None,
            stage: None,
            attribution: attribution(at),
        }));
        actions
    })
}

fn fake() -> impl Strategy<Value = Fake> {
    let clusters = btree_map(select(&["c1", "c2", "c3"][..]), (0..2usize, of(observed())), 0..4);
    let unreachable = btree_set(select(&["c1", "c2"][..]), 0..2);
    let leaving = weighted(0.2, select(&[-5i64, 5][..]));
    (clusters, unreachable, leaving, actions()).prop_map(|(clusters, unreachable, leaving, actions)| {
        let named = clusters.into_iter();
        let leaving = leaving.map(|settles_at| LeavingSync {
            cluster: "gone".into(),
            entry: ENTRY.into(),
            cause: LeavingCause::ClusterUnselected {
                settles_at: t(settles_at),
                stage: 0,
                windows: Vec::new(),
            },
            policy: DeletionPolicy::Delete,
            depends_on: BTreeSet::new(),
            removing_since: None,
            suspended: false,
            not_ready: false,
            budget_until: None,
            approval: None,
        });
        Fake {
            clusters: named.map(|(name, cluster)| (name.into(), cluster)).collect(),
            unreachable: unreachable.into_iter().map(ClusterName::from).collect(),
            leaving: leaving
                .map(|sync| ("web-gone".into(), sync))
                .into_iter()
                .collect(),
            actions: (1, actions),
            ..Fake::default()
        }
    })
}

fn case() -> impl Strategy<Value = Case> {
    let policies = vec![
        OnNewRevision::Replace,
        OnNewRevision::Finish,
        OnNewRevision::Queue,
    ];
    let rollbacks = vec![RollbackType::Staged, RollbackType::Immediate];
    let group = (
        status(),
        rules(),
        select(policies),
        select(rollbacks),
        prop::bool::weighted(0.1),
        prop::bool::weighted(0.1),
    );
    let lost = btree_set(release(), 0..2);
    let reported_at = of(select(&[0i64, 249, 250, 1_000][..]));
    (group, release(), lost, fake(), reported_at, any::<bool>()).prop_map(
        |(group, offered, lost, mut observed, reported_at, journal)| {
            let (status, strategy, on_new_revision, rollback, suspended, membership_held) = group;
            let stages = strategy.strategy.stages.len();
            for cluster in observed.clusters.values_mut() {
                cluster.0 = cluster.0.min(stages - 1);
            }
            Case {
                status,
                strategy,
                on_new_revision,
                rollback,
                suspended,
                membership_held,
                offer: offer(&offered),
                lost,
                observed,
                reported_at: reported_at.map(|ago| t(0) - SignedDuration::from_millis(ago)),
                recorder: journal.then(Recorder::default),
                ..fresh(&[])
            }
        },
    )
}

/// The places of the effects of a kind.
fn places(effects: &[String], kind: &str) -> Vec<usize> {
    let found = effects
        .iter()
        .enumerate()
        .filter(|(_, effect)| effect.starts_with(kind));
    found.map(|(place, _)| place).collect()
}

/// Whether every effect of the first kind comes before every effect of the second.
fn comes_before(effects: &[String], first: &str, second: &str) -> bool {
    let last = places(effects, first).into_iter().max();
    let next = places(effects, second).into_iter().min();
    last.zip(next).is_none_or(|(last, next)| last < next)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn effects_come_in_an_order_that_survives_being_cut_anywhere(mut case in case()) {
        let before = case.status.clone();
        let transition = case.step();
        let effects = writes(&transition);
        for once in ["write status", "record rollout", "admit", "remove", "forget", "store"] {
            prop_assert!(places(&effects, once).len() <= 1, "{} in {:?}", once, effects);
        }
        let rolls = transition.status.rollout.as_ref().map_or(0, |rollout| rollout.id);
        for (first, second) in [
            ("store", "write status"),
            ("record rollout", "write status"),
            ("settle", "write status"),
            ("write status, durable", "record admissions"),
            ("write status, durable", "evaluate gates"),
            ("write status, durable", &*format!("append journal {rolls}")),
            ("append journal", "evaluate gates"),
            ("append journal", "record admissions"),
            ("append journal", "remove"),
            ("record admissions", "admit"),
            ("admit", "remove"),
            ("write status", "end rollout"),
            ("write status", "forget"),
        ] {
            prop_assert!(comes_before(&effects, first, second), "{} {} in {:?}", first, second, effects);
        }
        let only_counts = effects.iter().position(|effect| effect == "write status");
        if let Some(place) = only_counts {
            prop_assert!(comes_before(&effects, "admit", "write status"));
            prop_assert!(comes_before(&effects, "remove", "write status"));
            prop_assert!(places(&effects, "evaluate gates").iter().all(|gates| *gates < place));
        }
        let written = transition.effects.iter().find_map(|effect| match &effect.action {
            Action::WriteStatus(write) => Some(&write.status),
            _ => None,
        });
        prop_assert_eq!(&transition.status, written.unwrap_or(&before));
        // A rollout begins with the next number, and is recorded and stored.
        let began = transition.began.as_ref().map(|began| began.rollout.get());
        let number = before.rollout.as_ref().map_or(0, |rollout| rollout.id) + 1;
        prop_assert_eq!(began.is_some(), !places(&effects, "record rollout").is_empty());
        prop_assert!(began.is_none_or(|began| began == number && rolls == number));
        // A rollout that is replaced in the pass in which it begins admits nothing.
        if transition.decided.is_none() {
            prop_assert!(places(&effects, "admit").is_empty() && places(&effects, "remove").is_empty());
        }
        // Admissions are of the rollout in status, and of releases that status names.
        for effect in &transition.effects {
            let Action::Admit(admissions) = &effect.action else { continue };
            let named = super::super::garbage::named(&transition.status);
            for admission in admissions {
                prop_assert_eq!(admission.rollout.get(), rolls);
                prop_assert!(named.contains(&admission.release), "{:?}", admission);
            }
        }
    }

    #[test]
    fn the_same_input_gives_the_same_effects(case in case()) {
        let effects = |mut case: Case| format!("{:?}", case.step().effects);
        prop_assert_eq!(effects(case.clone()), effects(case));
    }

    /// Without events, rollouts, admissions and writes end.
    #[test]
    fn passes_come_to_rest(mut case in case()) {
        let mut last = Vec::new();
        for _ in 0..12 {
            case.now += SignedDuration::from_secs(1);
            last = writes(&case.pass());
        }
        last.retain(|effect| !["evaluate gates", "digest release"].contains(&effect.as_str()));
        prop_assert_eq!(last, vec![""; 0]);
    }
}
