use starling_api::{DeletionBudget, IntOrPercent};

use super::left::with_left;
use super::*;

const HOUR: i64 = 3600;

fn t(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

fn limits(objects: Option<&str>, clusters: Option<&str>) -> BudgetLimits {
    let parse = |text: &str| text.parse().unwrap();
    BudgetLimits::of_group(Some(DeletionBudget {
        objects: objects.map(parse),
        clusters: clusters.map(parse),
        ..DeletionBudget::default()
    }))
}

fn request(objects: usize, of_objects: usize) -> DeletionRequest<'static> {
    DeletionRequest {
        cluster: "",
        objects,
        is_new_cluster: true,
        of_objects,
        remaining: Some(0),
        of_clusters: 8,
    }
}

fn granted(verdict: BudgetVerdict) -> Vec<DeletionCount> {
    match verdict {
        BudgetVerdict::Granted(counts) => counts,
        BudgetVerdict::Held(excess) => panic!("held: {excess:?}"),
    }
}

fn held(verdict: BudgetVerdict) -> Excess {
    match verdict {
        BudgetVerdict::Granted(counts) => panic!("granted: {counts:?}"),
        BudgetVerdict::Held(excess) => excess,
    }
}

/// What people do every day goes through, and what empties a fleet does not.
#[test]
fn the_default_of_a_group_is_half_of_its_objects_and_at_least_a_hundred() {
    let limits = BudgetLimits::of_group(None);
    for (of, wanted, allowed) in [
        (3, 3, true),
        (100, 100, true),
        (150, 101, false),
        (200, 100, true),
        (1600, 800, true),
        (1600, 801, false),
        (15_000, 500, true),
    ] {
        let verdict = decide(&limits, &[], request(wanted, of), t(0));
        assert_eq!(
            matches!(verdict, BudgetVerdict::Granted(_)),
            allowed,
            "{wanted} of {of}"
        );
    }
    assert_eq!(
        decide(&BudgetLimits::of_sync(None), &[], request(9999, 9999), t(0)),
        BudgetVerdict::Granted(vec![DeletionCount {
            time: t(0).to_string(),
            objects: 9999,
            clusters: 1,
            cluster_names: Vec::new(),
            left: 0,
            of_objects: 9999,
            of_clusters: 8
        }])
    );
}

#[test]
fn deletions_add_up_within_the_window_and_are_freed_after_it() {
    let limits = limits(Some("10"), None);
    let mut counts = granted(decide(&limits, &[], request(4, 100), t(0)));
    counts = granted(decide(&limits, &counts, request(4, 96), t(1800)));
    let excess = held(decide(&limits, &counts, request(3, 92), t(1900)));
    assert_eq!(
        excess.budget,
        "the SyncGroup allows 10 objects within 1h: 8 were deleted, 3 more would be"
    );
    // The first count is as wide as five minutes.
    assert_eq!(excess.until, Some(t(HOUR + 300)));
    let later = granted(decide(&limits, &counts, request(3, 92), t(HOUR + 300)));
    assert_eq!(later.len(), 2, "{later:?}");
    assert!(matches!(
        decide(&limits, &counts, request(3, 92), t(HOUR + 299)),
        BudgetVerdict::Held(_)
    ));
    granted(decide(&limits, &counts, request(2, 92), t(1900)));
}

/// Of an installation, only the net loss of each request is known.
#[test]
fn net_losses_add_up() {
    let limits: BudgetLimits = "objects=500".parse().unwrap();
    let net = DeletionRequest {
        remaining: None,
        ..request(30, 30)
    };
    let mut counts = Vec::new();
    for second in 0..16 {
        counts = granted(decide(&limits, &counts, net, t(second)));
    }
    let excess = held(decide(&limits, &counts, net, t(16)));
    assert!(
        excess.budget.contains("480 were deleted, 30 more"),
        "{}",
        excess.budget
    );
}

#[test]
fn what_exceeds_the_budget_alone_waits_for_a_person() {
    let limits = limits(Some("10"), None);
    assert_eq!(held(decide(&limits, &[], request(11, 100), t(0))).until, None);
    let none = self::limits(None, Some("0%"));
    assert_eq!(held(decide(&none, &[], request(1, 100), t(0))).until, None);
}

/// A window without length would add nothing up.
#[test]
fn a_window_without_length_is_an_hour() {
    let limits = BudgetLimits::of_group(Some(DeletionBudget {
        objects: Some("10".parse().unwrap()),
        clusters: None,
        window: starling_api::Duration::from_secs(0),
    }));
    let counts = granted(decide(&limits, &[], request(8, 100), t(0)));
    held(decide(&limits, &counts, request(8, 92), t(60)));
}

/// The loss was compared with what the scope had at the first count: after it had grown, each deletion on its own
/// was within the budget, and all of it could go within the window.
#[test]
fn a_scope_that_grows_within_the_window_loses_no_more_than_its_budget() {
    let limits = limits(Some("100"), None);
    let removing = |objects: usize, of: usize| DeletionRequest {
        remaining: Some(of - objects),
        ..request(objects, of)
    };
    for grown_at in [10, 600] {
        let counts = granted(decide(&limits, &[], removing(1, 10), t(0)));
        let counts = granted(decide(&limits, &counts, removing(90, 1000), t(grown_at)));
        held(decide(&limits, &counts, removing(90, 910), t(grown_at + 600)));
        granted(decide(&limits, &counts, removing(9, 910), t(grown_at + 600)));
    }
}

#[test]
fn a_share_is_that_of_the_most_objects_within_the_window() {
    let limits = limits(Some("50%"), None);
    let counts = granted(decide(&limits, &[], request(100, 200), t(0)));
    // Half of the remaining hundred.
    assert!(matches!(
        decide(&limits, &counts, request(50, 100), t(10)),
        BudgetVerdict::Held(_)
    ));
}

/// Guards against a hold of what people do every day: names with a hash, which each release replaces.
#[test]
fn objects_that_are_replaced_are_no_loss() {
    let limits = limits(Some("50%"), None);
    let mut counts = Vec::new();
    for round in 0..50 {
        // An attempt that was interrupted has the new objects in its inventory already.
        let replacing = DeletionRequest {
            remaining: Some(200),
            ..request(20, if round % 2 == 0 { 200 } else { 220 })
        };
        counts = granted(decide(&limits, &counts, replacing, t(round * 60)));
    }
    let removing = |objects: usize| DeletionRequest {
        remaining: Some(200 - objects),
        ..request(objects, 200)
    };
    granted(decide(&limits, &counts, removing(90), t(3000)));
    held(decide(&limits, &counts, removing(120), t(3000)));
}

#[test]
fn a_cluster_counts_once_and_an_empty_request_is_never_held() {
    let limits = limits(Some("100%"), Some("1"));
    let counts = granted(decide(&limits, &[], request(1, 100), t(0)));
    let again = DeletionRequest {
        is_new_cluster: false,
        ..request(1, 100)
    };
    let counts = granted(decide(&limits, &counts, again, t(10)));
    assert_eq!((counts.len(), counts[0].objects, counts[0].clusters), (1, 2, 1));
    let excess = held(decide(&limits, &counts, request(1, 100), t(20)));
    assert!(
        excess.budget.contains("1 clusters within 1h"),
        "{}",
        excess.budget
    );
    granted(decide(&limits, &counts, request(0, 100), t(20)));
}

/// A Sync that is gone has taken along what it deleted, and the cluster has others.
#[test]
fn a_cluster_counts_once_although_its_first_sync_is_gone() {
    let limits = limits(Some("100%"), Some("1"));
    let on = |cluster: &'static str| DeletionRequest {
        cluster,
        ..request(1, 100)
    };
    let counts = granted(decide(&limits, &[], on("eu-1"), t(0)));
    let counts = granted(decide(&limits, &counts, on("eu-1"), t(10)));
    assert_eq!(
        (counts[0].clusters, &*counts[0].cluster_names),
        (1, &["eu-1".to_owned()][..])
    );
    held(decide(&limits, &counts, on("eu-2"), t(20)));
    // Without a limit, no names are needed.
    let counts = granted(decide(&BudgetLimits::of_group(None), &[], on("eu-1"), t(0)));
    assert_eq!(counts[0].cluster_names, [""; 0]);
    let many = BudgetLimits::of_group(Some(DeletionBudget {
        clusters: Some("100%".parse().unwrap()),
        ..DeletionBudget::default()
    }));
    let mut counts = Vec::new();
    for number in 0..NAMES + 5 {
        let name = format!("c{number}");
        let request = DeletionRequest {
            cluster: &name,
            of_clusters: 5000,
            ..request(0, 100_000)
        };
        let request = DeletionRequest {
            objects: 1,
            remaining: Some(100_000),
            ..request
        };
        counts = granted(decide(&many, &counts, request, t(i64::try_from(number).unwrap())));
    }
    let names: usize = counts.iter().map(|count| count.cluster_names.len()).sum();
    assert_eq!(names, NAMES);
}

/// Guards against a cluster that counted at the time of its first deletion only: when that one left the window, the
/// later ones counted nowhere, and four clusters lost objects within seconds where three may.
#[test]
fn a_cluster_that_deletes_again_counts_from_then_on() {
    let limits = limits(Some("100%"), Some("2"));
    let on = |cluster: &'static str| DeletionRequest {
        cluster,
        ..request(1, 100)
    };
    let counts = granted(decide(&limits, &[], on("eu-1"), t(0)));
    let counts = granted(decide(&limits, &counts, on("eu-1"), t(HOUR - 10)));
    let counts = granted(decide(&limits, &counts, on("eu-2"), t(HOUR - 5)));
    // The first deletion has left the window.
    held(decide(&limits, &counts, on("eu-3"), t(HOUR + HOUR / 4)));
    granted(decide(&limits, &counts, on("eu-1"), t(HOUR + HOUR / 4)));
}

/// Guards against a cluster that counts nowhere: its last deletion left the window of the group, whose count had begun
/// earlier, and not yet that of its Sync, so that its next deletion was taken for one that was counted (seed 5216).
#[test]
fn a_cluster_without_a_name_in_the_counts_counts_whatever_its_syncs_say() {
    let limits = limits(Some("100%"), Some("1"));
    let known_to_its_syncs = |cluster: &'static str| DeletionRequest {
        cluster,
        is_new_cluster: false,
        ..request(1, 100)
    };
    let counts = granted(decide(&limits, &[], known_to_its_syncs("eu-1"), t(0)));
    assert_eq!(counts[0].clusters, 1);
    held(decide(&limits, &counts, known_to_its_syncs("eu-2"), t(10)));
    granted(decide(&limits, &counts, known_to_its_syncs("eu-1"), t(10)));
}

/// A clock that is set forward by a window must not refill the budget.
#[test]
fn a_jump_of_the_clock_frees_nothing() {
    let limits = limits(Some("10"), None);
    let counts = granted(decide(&limits, &[], request(10, 100), t(0)));
    let mut jumps = ClockJumps::default();
    assert!(jumps.observe(t(60), t(60 + 2 * HOUR), Duration::ZERO));
    let after = BudgetClock {
        now: t(61 + 2 * HOUR),
        jumps: &jumps,
    };
    let excess = held(decide(&limits, &counts, request(1, 90), after));
    assert_eq!(excess.until, Some(t(3 * HOUR + 300)));
    assert_eq!(repaired(limits.window, &counts, after), None);
    let over = BudgetClock {
        now: t(3 * HOUR + 300),
        ..after
    };
    granted(decide(&limits, &counts, request(1, 90), over));
}

/// However many deletions there are, status has about as many counts as a window has parts, and none is lost.
#[test]
fn the_counts_are_few_and_none_is_freed_early() {
    let limits = limits(Some("100%"), None);
    let mut counts = Vec::new();
    for second in (0..HOUR).step_by(7) {
        let verdict = decide(
            &limits,
            &counts,
            DeletionRequest {
                of_objects: 100_000,
                objects: 1,
                ..DeletionRequest::default()
            },
            t(second),
        );
        counts = granted(verdict);
    }
    assert!(counts.len() <= 13, "{}", counts.len());
    let total: u32 = counts.iter().map(|count| count.objects).sum();
    assert_eq!(i64::from(total), (HOUR + 6) / 7);
}

/// A clock that was set far ahead for a moment must neither free nor hold for a year.
#[test]
fn a_count_of_the_future_counts_from_now() {
    let limits = limits(Some("10"), None);
    let counts = granted(decide(&limits, &[], request(10, 100), t(365 * 24 * HOUR)));
    assert_eq!(repaired(limits.window, &counts, t(365 * 24 * HOUR)), None);
    let counts = repaired(limits.window, &counts, t(0)).unwrap();
    let excess = held(decide(&limits, &counts, request(1, 100), t(10)));
    assert_eq!(excess.until, Some(t(HOUR + 300)));
    let unreadable = [DeletionCount {
        time: "yesterday".into(),
        ..counts[0].clone()
    }];
    held(decide(&limits, &unreadable, request(1, 100), t(0)));
}

#[test]
fn clusters_that_left_are_counted_on_their_own() {
    let window = Duration::from_secs(3600);
    let counts = with_left(window, &[], 8, t(0).into());
    let counts = with_left(window, &counts, 7, t(900).into());
    let both = Left {
        clusters: 2,
        until: Some(t(HOUR + 300)),
    };
    assert_eq!(left(window, &counts, t(1000)), both);
    assert_eq!(left(window, &counts, t(HOUR + 400)).clusters, 1);
    assert_eq!(left(window, &counts, t(3 * HOUR)), Left::default());
    let counts = granted(decide(
        &BudgetLimits::of_group(None),
        &counts,
        request(5, 40),
        t(900),
    ));
    assert_eq!(
        (
            counts.len(),
            counts[1].left,
            counts[1].objects,
            counts[1].of_objects
        ),
        (2, 1, 5, 40)
    );
}

#[test]
fn the_flag_of_the_controller_is_checked() {
    let limits: BudgetLimits = "objects=500,clusters=20,window=30m".parse().unwrap();
    assert_eq!(
        (limits.scope, limits.objects, limits.clusters, limits.window),
        (
            BudgetScope::Installation,
            Limit::At(IntOrPercent::Int(500)),
            Limit::At(IntOrPercent::Int(20)),
            Duration::from_secs(1800)
        )
    );
    for (text, problem) in [
        ("", "has no value"),
        ("objects", "has no value"),
        ("objects=50%", "is no number"),
        ("objects=1,objects=2", "given twice"),
        ("window=1h", "no limit"),
        ("objects=1,window=0s", "no length"),
        ("objects=1,window=soon", "no duration"),
        ("object=1", "unknown"),
    ] {
        let error = text.parse::<BudgetLimits>().unwrap_err().to_string();
        assert!(error.contains(problem), "{text}: {error}");
    }
}

/// Status must not grow without bounds, and a name that is dropped counts again: it frees nothing.
#[test]
fn the_names_of_clusters_that_leave_are_limited() {
    let name = |n: usize| format!("{n:05}-{}", "x".repeat(200));
    let names = leaving((0..5000).map(name));
    let bytes: usize = names.iter().map(String::len).sum();
    assert!((190_000..=200_000).contains(&bytes), "{bytes}");
    assert!(names.is_sorted() && names[0] == name(0));
    let mut deletions = Deletions {
        leaving: names.clone(),
        ..Deletions::default()
    };
    let now: Timestamp = "2026-07-01T08:00:00Z".parse().unwrap();
    let hour = Duration::from_secs(3600);
    count_left(&mut deletions, &name(9999), hour, 5000, now.into());
    assert!(deletions.leaving == names, "another name fits");
    assert_eq!(left(hour, &deletions.counts, now).clusters, 1);
    let few = ["b", "a"].map(str::to_owned);
    assert_eq!(leaving(few), ["a", "b"]);
}
