//! Prunes after the attempt that the group admitted.

use super::*;
use crate::plan::{PruneRequest, RemovalDecision};

const SYNC: &str = "web-app-a";

/// A rollout that is over, and then a prune on cluster `a`: requested, allowed if `decided` says so, in progress, and
/// over.
fn pruned(decided: bool) -> Journal {
    let sound = approved();
    let mut journal = forged(&sound, |_, _, _| {});
    journal.recorder = resume(&journal.entries).unwrap();
    journal.recorder.forget_read();
    journal.recorded = sound.recorded;
    let mut input = journal.recorded.last().unwrap().input.clone();
    let mut request = PruneRequest {
        cluster: "a".into(),
        allowed_at: None,
        begun: false,
    };
    let mut record = |input: &mut PlanInput| {
        input.now += jiff::SignedDuration::from_secs(10);
        journal.record(1, input);
    };
    if decided {
        input.prunes.insert(SYNC.into(), request.clone());
        record(&mut input);
    }
    request.allowed_at = Some(input.now);
    input.prunes.insert(SYNC.into(), request);
    record(&mut input);
    input.prunes.clear();
    record(&mut input);
    journal
}

/// Guards against prunes that the journal does not have: the end of a grace was in none.
#[test]
fn a_prune_is_recorded_and_verified() {
    let journal = pruned(true);
    assert_eq!(journal.flaws(&journal.chain()), [""; 0]);
    let decisions: Vec<_> = { journal.recorded.iter().rev().take(3).rev() }
        .map(|recorded| recorded.plan.prunes.get(SYNC).copied())
        .collect();
    assert_eq!(
        decisions,
        [
            Some(RemovalDecision::Remove),
            Some(RemovalDecision::Removing),
            None
        ]
    );
    let mut read = None;
    for (entry, recorded) in journal.entries.iter().zip(&journal.recorded) {
        let now = RecordedPlan::after(read, Body::read(&entry.body).unwrap()).unwrap();
        assert_eq!(now.plan.prunes, recorded.plan.prunes);
        read = Some(now);
    }
}

#[test]
fn a_prune_without_a_decision_is_a_flaw() {
    let journal = pruned(false);
    let expected = "Sync web-app-a of cluster a prunes without a decision in the rollout";
    let flaws = journal.flaws(&journal.chain());
    assert!(flaws.len() == 1 && flaws[0].contains(expected), "{flaws:#?}");
}

/// A process that ends takes its prunes with it. The next one continues the journal.
#[test]
fn a_prune_that_a_crash_ended_is_no_gap() {
    let sound = pruned(true);
    let before = &sound.entries[..sound.entries.len() - 1];
    let mut recorder = resume(before).unwrap();
    let mut input = sound.recorded.last().unwrap().input.clone();
    input.now += jiff::SignedDuration::from_secs(60);
    let planned = plan(&input);
    let draft = recorder.draft(RolloutNumber::new(1), &input, &planned);
    let draft = draft.unwrap().unwrap();
    assert!(!draft.is_whole, "the state follows from the entries before");
    recorder.wrote(draft);
}
