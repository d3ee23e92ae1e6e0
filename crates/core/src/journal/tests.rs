//! Journals that are written, read and tampered with.

use std::collections::BTreeMap;

use super::*;
use crate::plan::{Decision, RolloutVerdict, StagePhase, plan};
use crate::simulate::{Happened, SimulatedMember, World};

fn t(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

/// Four clusters, two slots; `a` is a canary that requires an approval.
fn world() -> World {
    let strategy = serde_json::json!({
        "maxConcurrency": 2,
        "stages": [{
            "name": "canary",
            "clusterSelector": {"matchLabels": {"canary": "yes"}},
            "afterStageTasks": [{"type": "Approval"}],
        }],
    });
    let strategy = crate::plan::ReadStrategy::new(&serde_json::from_value(strategy).unwrap()).unwrap();
    let members = ["a", "b", "c", "d"].map(|name| {
        let canary = if name == "a" { "yes" } else { "no" };
        let labels = [("canary".to_owned(), canary.to_owned())].into();
        let member = SimulatedMember::new(name, labels, std::time::Duration::from_secs(60));
        (name.to_owned(), member)
    });
    World::new(t(0), strategy, members.into(), "r1")
}

mod prunes;

/// A journal as a ledger stores it.
#[derive(Default)]
struct Journal {
    recorder: Recorder,
    entries: Vec<JournalEntry>,
    recorded: Vec<RecordedPlan>,
}

impl Journal {
    fn record(&mut self, rollout: i64, input: &PlanInput) {
        let rollout = RolloutNumber::new(rollout);
        let plan = plan(input);
        if let Some(draft) = self.recorder.draft(rollout, input, &plan).unwrap() {
            self.append(rollout, input.now, &draft.body);
            self.recorder.wrote(draft);
            self.recorded.push(RecordedPlan {
                input: input.clone(),
                plan,
            });
        }
    }

    fn append(&mut self, rollout: RolloutNumber, at: Timestamp, body: &str) {
        let mut entry = JournalEntry {
            group_id: "u".into(),
            namespace: "shop".into(),
            name: "web".into(),
            rollout,
            seq: i64::try_from(self.entries.len()).unwrap() + 1,
            at,
            body: body.to_owned(),
            hash: String::new(),
        };
        entry.hash = hash(&self.newest().hash, &entry);
        self.entries.push(entry);
    }

    fn newest(&self) -> ChainEnd {
        match self.entries.last() {
            Some(entry) => ChainEnd {
                seq: entry.seq,
                hash: entry.hash.clone(),
            },
            None => ChainEnd::beginning(),
        }
    }

    fn chain(&self) -> Chain {
        Chain {
            cut: ChainEnd::beginning(),
            newest: self.newest(),
        }
    }

    fn flaws(&self, chain: &Chain) -> Vec<String> {
        let verdict = verify(chain, &self.entries, None);
        let flaws = verdict.flaws.iter();
        flaws.map(|flaw| format!("{}: {}", flaw.seq, flaw.kind)).collect()
    }
}

/// Plans a rollout every ten seconds, whether anything happens or not, and again after each event.
fn rolled(world: &mut World, journal: &mut Journal, rollout: i64, seconds: i64) {
    let until = world.now + jiff::SignedDuration::from_secs(seconds);
    while world.now < until {
        for member in world.members.values_mut() {
            member.live(world.now);
        }
        // Settling takes several plans; the journal gets each plan as in the controller.
        loop {
            let before = world.clone();
            let input = world.input();
            if let Some(input) = &input {
                journal.record(rollout, input);
            }
            let happened = world.settle();
            let moved = happened.len() > 1 || matches!(happened.first(), Some(Happened::Began { .. }));
            if !moved || before.status.rollout.is_some() {
                break;
            }
        }
        world.now += jiff::SignedDuration::from_secs(10);
    }
}

fn approved() -> Journal {
    let (mut world, mut journal) = (world(), Journal::default());
    rolled(&mut world, &mut journal, 1, 120);
    let attribution = crate::plan::Attribution {
        by: "jane".into(),
        reason: "recorded good".into(),
        at: world.now,
    };
    world.approve("canary", attribution);
    rolled(&mut world, &mut journal, 1, 300);
    journal
}

#[test]
fn a_rollout_is_recorded_from_its_first_plan_to_its_last_and_every_plan_keeps_the_rules() {
    let journal = approved();
    assert_eq!(journal.flaws(&journal.chain()), [""; 0]);
    let last = journal.recorded.last().unwrap();
    assert_eq!(last.plan.verdict, RolloutVerdict::Succeeded);
    let past = past::rollouts(&journal.entries);
    assert_eq!(past.len(), 1);
    assert_eq!((past[0].done, past[0].total), (4, 4));
    assert_eq!(past[0].outcome, Some(past::PastOutcome::Succeeded));
    assert_eq!(past[0].actions.len(), 1, "{:?}", past[0].actions);
    assert_eq!(past[0].actions[0].what, "approve stage canary");
    assert_eq!(past[0].actions[0].attribution.by, "jane");
}

#[test]
fn the_state_at_any_time_can_be_read() {
    let journal = approved();
    for (place, recorded) in journal.recorded.iter().enumerate() {
        let (entry, read) = past::at(&journal.entries, recorded.input.now).unwrap();
        let later = journal.recorded[place..]
            .iter()
            .take_while(|later| later.input.now == recorded.input.now);
        let newest = later.last().unwrap();
        assert_eq!(&read, newest, "entry {}", entry.seq);
    }
    // Between two entries the state is that of the first one.
    let waits = past::at(&journal.entries, t(100)).unwrap().1;
    assert!(matches!(waits.plan.stages[0].phase, StagePhase::Waiting(_)));
    assert_eq!(waits.plan.decisions["a"], Decision::Done);
    assert!(past::at(&journal.entries, t(-1)).is_none());
}

#[test]
fn a_plan_that_changes_nothing_writes_no_entry() {
    let mut journal = approved();
    let written = journal.entries.len();
    let mut again = journal.recorded.last().unwrap().input.clone();
    for _ in 0..5 {
        again.now += jiff::SignedDuration::from_secs(60);
        journal.record(1, &again);
    }
    assert_eq!(journal.entries.len(), written);
    // A recorder that resumes from the entries knows the same.
    let whole = journal
        .entries
        .iter()
        .rposition(|entry| matches!(Body::read(&entry.body), Ok(Body::Whole(_))));
    let recorder = resume(&journal.entries[whole.unwrap()..]).unwrap();
    assert!(
        recorder
            .draft(RolloutNumber::new(1), &again, &plan(&again))
            .unwrap()
            .is_none()
    );
    assert!(
        recorder
            .draft(RolloutNumber::new(2), &again, &plan(&again))
            .unwrap()
            .unwrap()
            .is_whole
    );
}

/// A group without stages has no stage records, so each plan made the record of its only stage anew: the journal grew
/// with every pass after the rollout had succeeded.
#[test]
fn a_group_without_stages_that_succeeded_writes_no_entry() {
    let mut journal = retried();
    let written = journal.entries.len();
    let mut again = journal.recorded.last().unwrap().input.clone();
    assert_eq!(again.strategy.stages.len(), 1);
    for _ in 0..5 {
        again.now += jiff::SignedDuration::from_secs(60);
        journal.record(1, &again);
    }
    assert_eq!(journal.entries.len(), written);
}

#[test]
fn a_journal_that_begins_within_a_rollout_records_that() {
    let journal = approved();
    let begins = |recorded: &RecordedPlan| {
        let mut journal = Journal::default();
        journal.record(1, &recorded.input);
        match Body::read(&journal.entries[0].body).unwrap() {
            Body::Whole(whole) => whole.beginning_lost,
            Body::Change(_) => panic!("the first is whole"),
        }
    };
    let mut first = journal.recorded[0].clone();
    for view in first.input.clusters.values_mut() {
        view.entries.values_mut().for_each(|entry| entry.observed = None);
    }
    assert!(!begins(&first));
    assert!(begins(journal.recorded.last().unwrap()));
}

/// Guards against flaws of a ledger that was put back to an earlier state: its journal lacks the decisions since.
#[test]
fn a_journal_that_lacks_its_newest_entries_continues_with_a_lost_beginning() {
    let mut inputs: Vec<PlanInput> = approved()
        .recorded
        .into_iter()
        .map(|recorded| recorded.input)
        .collect();
    let mut first = inputs[0].clone();
    for view in first.clusters.values_mut() {
        view.entries.values_mut().for_each(|entry| entry.observed = None);
    }
    inputs.insert(0, first);
    let mut sound = Journal::default();
    inputs.iter().for_each(|input| sound.record(1, input));
    assert_eq!(sound.flaws(&sound.chain()), [""; 0]);
    let mut with_lost_starts = 0;
    for kept in 1..sound.entries.len() {
        for lost in 0..sound.entries.len() - kept {
            let mut journal = Journal {
                recorder: resume(&sound.entries[..kept]).unwrap(),
                entries: sound.entries[..kept].to_vec(),
                recorded: Vec::new(),
            };
            for later in &sound.recorded[kept + lost..] {
                journal.record(1, &later.input);
            }
            assert_eq!(
                journal.flaws(&journal.chain()),
                [""; 0],
                "{kept} kept, {lost} lost"
            );
            let says_lost = journal.entries[kept..]
                .iter()
                .any(|entry| entry.body.contains("beginningLost"));
            assert!(lost > 0 || !says_lost, "nothing is missing after {kept}");
            with_lost_starts += usize::from(says_lost);
        }
    }
    assert!(with_lost_starts > 0);
}

/// Guards against a management cluster that was set back and released: its rollouts have numbers that the journal has
/// already, and `starling verify` called the journal damaged.
#[test]
fn a_journal_of_a_group_that_was_set_back_has_no_flaw() {
    let inputs: Vec<PlanInput> = { approved().recorded.into_iter() }
        .map(|recorded| recorded.input)
        .collect();
    let mut journal = Journal::default();
    for rollout in [1, 2, 3] {
        inputs.iter().for_each(|input| journal.record(rollout, input));
    }
    // Back within rollout 1, from which the next one begins.
    journal.record(1, &inputs[1]);
    let begins = |entry: &JournalEntry| matches!(Body::read(&entry.body), Ok(Body::Whole(whole)) if whole.beginning_lost);
    assert!(journal.entries.last().is_some_and(begins));
    inputs.iter().for_each(|input| journal.record(2, input));
    assert_eq!(journal.flaws(&journal.chain()), [""; 0]);
    // Also after a restart.
    let mut journal = Journal {
        recorder: resume(&journal.entries).unwrap(),
        ..journal
    };
    journal.record(1, &inputs[2]);
    assert_eq!(journal.flaws(&journal.chain()), [""; 0]);
}

/// A clock that was wrong by a year wrote when a stage opened, and the next process replaces the time.
#[test]
fn a_time_of_a_stage_may_be_replaced_if_it_lies_far_ahead() {
    let lost = |back: i64| {
        let (mut world, mut journal) = (world(), Journal::default());
        rolled(&mut world, &mut journal, 1, 30);
        let mut input = world.input().unwrap();
        let opened_at = |input: &PlanInput| input.rollout.stages["canary"].opened_at;
        assert_eq!(opened_at(&input), Some(t(0)));
        input.now = t(0) - jiff::SignedDuration::from_secs(back);
        let now = input.now;
        let times = input.rollout.stages.values_mut();
        times.for_each(|record| record.opened_at = record.opened_at.map(|_| now));
        journal.record(1, &input);
        let flaws = journal.flaws(&journal.chain());
        flaws
            .into_iter()
            .filter(|flaw| flaw.contains("canary"))
            .collect::<Vec<_>>()
    };
    assert!(lost(365 * 24 * 3600).is_empty(), "{:?}", lost(365 * 24 * 3600));
    assert_eq!(lost(60).len(), 1, "{:?}", lost(60));
}

/// The same clock wrote when the rollout started, and when clusters were admitted. Each process replaces the time of an
/// admission with the time at which it met that first.
#[test]
fn the_times_of_a_wrong_clock_are_no_flaw_of_a_rollout() {
    let flaws = |back: i64| {
        let (mut world, mut journal) = (world(), Journal::default());
        rolled(&mut world, &mut journal, 1, 3);
        let mut input = world.input().unwrap();
        let mut replace = |input: &mut PlanInput, seconds: i64| {
            input.now = t(0) - jiff::SignedDuration::from_secs(back - seconds);
            let now = input.now;
            let views = input.clusters.values_mut();
            let observed = views
                .flat_map(|view| view.entries.values_mut())
                .filter_map(|entry| entry.observed.as_mut());
            let mut replaced = 0;
            for sync in observed.filter(|sync| sync.admitted_at.is_some()) {
                let stored = sync.stored_admitted_at.or(sync.admitted_at);
                (sync.stored_admitted_at, sync.admitted_at) = (stored, Some(now));
                replaced += 1;
            }
            assert!(replaced > 0, "{input:#?}");
            journal.record(1, input);
        };
        let started_at = input.rollout.started_at;
        input.rollout.started_at = Timestamp::UNIX_EPOCH;
        for seconds in [0, 100] {
            replace(&mut input, seconds);
        }
        // The clock is right again.
        input.rollout.started_at = started_at;
        replace(&mut input, back + 60);
        let flaws = journal.flaws(&journal.chain());
        let named = |flaw: &String| flaw.contains("start than in") || flaw.contains("admitted again");
        flaws.into_iter().filter(named).collect::<Vec<_>>()
    };
    assert_eq!(flaws(365 * 24 * 3600), [""; 0]);
    assert_eq!(flaws(60).len(), 2, "{:?}", flaws(60));
}

#[test]
fn an_entry_is_whole_once_the_changes_are_as_large() {
    let recorded = approved().recorded.last().unwrap().clone();
    let (mut input, mut wholes) = (recorded.input, Vec::new());
    let mut recorder = Recorder::default();
    for n in 0..12_000 {
        input.suspended = n % 2 == 0;
        let draft = recorder
            .draft(RolloutNumber::new(1), &input, &plan(&input))
            .unwrap()
            .unwrap();
        if draft.is_whole {
            wholes.push(n);
        }
        recorder.wrote(draft);
    }
    let apart: Vec<i32> = wholes.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(
        wholes.len() > 2 && apart.iter().all(|apart| *apart > 200),
        "{wholes:?}"
    );
}

type Tamper = fn(&mut Vec<JournalEntry>);

#[test]
fn tampering_with_entries_is_found_and_named() {
    let cases: [(&str, Tamper, &[&str]); 9] = [
        (
            "a body is changed",
            |entries| entries[2].body = entries[2].body.replacen("\"now\"", "\"now\" ", 1),
            &["3: entry 3 was altered: its hash does not match"],
        ),
        (
            "a rollout is renamed",
            |entries| entries[0].rollout = RolloutNumber::new(1_000),
            &["1: entry 1 was altered: its hash does not match"],
        ),
        (
            "a time is changed",
            |entries| entries[3].at = t(-5),
            &["4: entry 4 was altered: its hash does not match"],
        ),
        (
            "one is taken out",
            |entries| drop(entries.remove(2)),
            &["3: entries 3 to 3 are missing"],
        ),
        (
            "the first is taken out",
            |entries| drop(entries.remove(0)),
            &["1: entries 1 to 1 are missing"],
        ),
        (
            "the last two are taken out",
            |entries| entries.truncate(entries.len() - 2),
            &["are missing"],
        ),
        (
            "one is put in",
            |entries| entries.insert(3, entries[2].clone()),
            &["3: entry 3 follows entry 3"],
        ),
        (
            "two change places",
            |entries| entries.swap(1, 2),
            &["2: entries 2 to 2 are missing", "2: entry 2 follows entry 3"],
        ),
        (
            "two change places and numbers",
            |entries| {
                entries.swap(1, 2);
                (entries[1].seq, entries[2].seq) = (2, 3);
            },
            &[
                "2: entry 2 was altered: its hash does not match",
                "3: entry 3 was altered: its hash does not match",
            ],
        ),
    ];
    let sound = approved();
    for (case, tamper, expected) in cases {
        let mut journal = Journal {
            entries: sound.entries.clone(),
            ..Journal::default()
        };
        tamper(&mut journal.entries);
        let flaws = journal.flaws(&sound.chain());
        for text in expected {
            assert!(
                flaws.iter().any(|flaw| flaw.contains(text)),
                "{case}: {flaws:#?} without {text:?}"
            );
        }
    }
}

/// Computing all hashes anew repairs the chain, but decisions still have to follow from their input.
#[test]
fn an_admission_above_the_limit_is_found_though_all_hashes_match() {
    let sound = approved();
    let place = sound.recorded.iter().position(|recorded| {
        let held = |decision: &Decision| {
            let Decision::Hold { reason, .. } = decision else {
                return false;
            };
            *reason == crate::plan::HoldReason::NoSlot
        };
        recorded.plan.decisions.values().any(held)
    });
    let place = place.expect("one has to wait for a slot");
    let mut recorded = sound.recorded[place].clone();
    for decision in recorded.plan.decisions.values_mut() {
        if let Decision::Hold { .. } = decision {
            *decision = Decision::Start {
                entries: vec!["app".into()],
                to: crate::plan::AdmittedRelease::Release,
            };
        }
    }
    let mut forged = Journal::default();
    for (n, entry) in sound.entries.iter().enumerate() {
        let body = if n == place {
            let whole = Whole {
                beginning_lost: false,
                recorded: recorded.clone(),
            };
            Body::Whole(whole).write().unwrap()
        } else {
            entry.body.clone()
        };
        forged.append(entry.rollout, entry.at, &body);
    }
    let flaws = forged.flaws(&forged.chain());
    let found = format!("{}: the plan breaks a rule", place + 1);
    assert!(flaws[0].starts_with(&found), "{flaws:#?}");
    assert!(!flaws.iter().any(|flaw| flaw.contains("hash")), "{flaws:#?}");
}

/// The entries with other plans than those of the planner, and matching hashes.
fn forged_plans(sound: &Journal, forge: impl Fn(usize, &mut RecordedPlan)) -> Journal {
    let mut forged = Journal::default();
    for (n, (entry, recorded)) in sound.entries.iter().zip(&sound.recorded).enumerate() {
        let mut recorded = recorded.clone();
        forge(n, &mut recorded);
        let whole = Whole {
            beginning_lost: false,
            recorded,
        };
        forged.append(entry.rollout, entry.at, &Body::Whole(whole).write().unwrap());
    }
    forged
}

/// The entries with forged inputs and matching hashes.
fn forged(sound: &Journal, forge: impl Fn(usize, &mut RolloutNumber, &mut RecordedPlan)) -> Journal {
    let mut forged = Journal::default();
    for (n, (entry, recorded)) in sound.entries.iter().zip(&sound.recorded).enumerate() {
        let (mut rollout, mut recorded) = (entry.rollout, recorded.clone());
        forge(n, &mut rollout, &mut recorded);
        recorded.plan = plan(&recorded.input);
        let whole = Whole {
            beginning_lost: false,
            recorded,
        };
        forged.append(rollout, entry.at, &Body::Whole(whole).write().unwrap());
    }
    forged
}

/// Each plan on its own keeps the rules for its input, but the inputs do not follow from earlier decisions.
#[test]
fn inputs_that_do_not_follow_from_earlier_entries_are_found() {
    let sound = approved();
    let same = forged(&sound, |_, _, _| {});
    assert_eq!(same.flaws(&same.chain()), [""; 0]);
    let last = sound.recorded.len() - 1;
    // A stage has passed, and its record is removed.
    let lost = forged(&sound, |n, _, recorded| {
        if n == last {
            recorded.input.rollout.stages.get_mut("canary").unwrap().passed_at = None;
        }
    });
    let flaws = lost.flaws(&lost.chain());
    assert!(
        flaws[0].contains("stage canary: its record in the previous entry is missing or changed"),
        "{flaws:#?}"
    );
    // Unless the stages were removed from the strategy: a group without stages has no stage records.
    let without_stages = |records: fn(usize, usize) -> bool, stages: bool| {
        forged(&sound, |n, _, recorded| {
            if n + 2 > last {
                if !stages {
                    recorded.input.strategy.stages.remove(0);
                    for view in recorded.input.clusters.values_mut() {
                        view.stage = 0;
                    }
                }
                if !records(n, last) {
                    recorded.input.rollout.stages.clear();
                }
            }
        })
    };
    for (records, stages, flaw) in [
        // The first plan still has the records, the second does not.
        ((|n, last| n < last) as fn(usize, usize) -> bool, false, false),
        // After a crash in between, the first does not have them either.
        (|_, _| false, false, false),
        (|n, last| n < last, true, true),
        (|_, _| false, true, true),
    ] {
        let journal = without_stages(records, stages);
        let flaws = journal.flaws(&journal.chain());
        let found = flaws
            .iter()
            .any(|flaw| flaw.contains("its record in the previous entry"));
        assert_eq!(found, flaw, "{flaws:#?}");
    }
    // `d` has the release before a plan started it, in all later entries.
    let observed = |recorded: &RecordedPlan| recorded.input.clusters["d"].entries["app"].observed.clone();
    let admitted = sound
        .recorded
        .iter()
        .find_map(observed)
        .expect("it is admitted in the end");
    let undecided = forged(&sound, |n, _, recorded| {
        let app = recorded
            .input
            .clusters
            .get_mut("d")
            .unwrap()
            .entries
            .get_mut("app")
            .unwrap();
        if n > 0 && app.observed.is_none() {
            app.observed = Some(admitted.clone());
        }
    });
    let flaws = undecided.flaws(&undecided.chain());
    assert!(
        flaws[0].starts_with("2: cluster d was admitted to the release"),
        "{flaws:#?}"
    );
    let restarted = forged(&sound, |n, _, recorded| {
        if n == last {
            recorded.input.rollout.started_at = t(1);
        }
    });
    let flaws = restarted.flaws(&restarted.chain());
    assert!(
        flaws[0].contains("another release, direction or start"),
        "{flaws:#?}"
    );
    let backwards = forged(&sound, |n, rollout, _| {
        *rollout = RolloutNumber::new(1 - i64::from(n == last));
    });
    let flaws = backwards.flaws(&backwards.chain());
    assert!(
        flaws[0].contains("it is of rollout 0, after an entry of rollout 1"),
        "{flaws:#?}"
    );
}

#[test]
fn a_truncated_chain_begins_after_the_cut() {
    let journal = approved();
    let cut = &journal.entries[1];
    let chain = Chain {
        cut: ChainEnd {
            seq: cut.seq,
            hash: cut.hash.clone(),
        },
        newest: journal.newest(),
    };
    assert_eq!(check_chain(&chain, &journal.entries[2..]), []);
    assert_ne!(check_chain(&chain, &journal.entries[3..]), []);
}

#[test]
fn an_undone_operator_action_has_an_end() {
    let recorded = approved().recorded[1].clone();
    let (mut journal, mut input) = (Journal::default(), recorded.input);
    let attribution = crate::plan::Attribution {
        by: "joe".into(),
        reason: "wait".into(),
        at: input.now,
    };
    for (seconds, paused) in [(1, Some(attribution)), (2, None)] {
        input.now = t(1_000 + seconds);
        input.operator.paused = paused;
        journal.record(1, &input);
    }
    let actions: BTreeMap<String, Option<Timestamp>> = past::rollouts(&journal.entries)[0]
        .actions
        .iter()
        .map(|action| (action.what.clone(), action.until))
        .collect();
    assert_eq!(actions["pause"], Some(t(1_002)));
}

/// The size of the journal of a rollout over two hundred clusters with long names: the figures of ADR 33.
#[test]
fn a_rollout_over_many_clusters_writes_little_per_cluster() {
    const CLUSTERS: usize = 200;
    let strategy = serde_json::json!({"maxConcurrency": "5%", "minSuccessTime": "30s"});
    let strategy = crate::plan::ReadStrategy::new(&serde_json::from_value(strategy).unwrap()).unwrap();
    let member = |n: usize| {
        let takes = std::time::Duration::from_secs(20 + n as u64 % 40);
        let uid = format!("7d9f0c4e-3b1a-4f5e-9c2d-{n:012}");
        let mut member = SimulatedMember::new(&uid, BTreeMap::new(), takes);
        member.admit(&crate::digest::of_bytes(b"before"), t(-500));
        member.heal(t(-400));
        (format!("prod-eu-{n:04}"), member)
    };
    let members = (0..CLUSTERS).map(member).collect();
    let release = crate::digest::of_bytes(b"now");
    let (mut world, mut journal) = (World::new(t(0), strategy, members, &release), Journal::default());
    while world
        .input()
        .is_none_or(|input| plan(&input).verdict != RolloutVerdict::Succeeded)
    {
        world.settle();
        journal.record(1, &world.input().unwrap());
        world.now = world.next_time().unwrap_or(world.now);
        for member in world.members.values_mut() {
            member.live(world.now);
        }
        journal.record(1, &world.input().unwrap());
    }
    let (mut whole, mut changes, mut changed) = (0, 0, 0);
    for entry in &journal.entries {
        match Body::read(&entry.body).unwrap() {
            Body::Whole(_) => whole += entry.body.len(),
            Body::Change(change) => {
                changes += entry.body.len();
                changed += change.clusters.len().max(change.decisions.len());
            }
        }
    }
    println!(
        "{} entries; {} bytes a cluster in the first; {} bytes a changed cluster; {} bytes a cluster in all, {} of them in whole entries",
        journal.entries.len(),
        journal.entries[0].body.len() / CLUSTERS,
        changes / changed,
        (whole + changes) / CLUSTERS,
        whole / CLUSTERS,
    );
    assert!(changes / changed < 700 && (whole + changes) / CLUSTERS < 8_000);
    assert_eq!(journal.flaws(&journal.chain()), [""; 0]);
}

/// A rollout in which `b` fails, is retried on request, and then succeeds.
fn retried() -> Journal {
    let strategy = serde_json::json!({"maxConcurrency": 2, "maxFailures": 1});
    let strategy = crate::plan::ReadStrategy::new(&serde_json::from_value(strategy).unwrap()).unwrap();
    let (mut world, mut journal) = (world(), Journal::default());
    world.strategy = strategy;
    let fates = |world: &mut World, fate| {
        let member = world.members.get_mut("b").unwrap();
        member.fates.insert("r1".into(), fate);
    };
    fates(&mut world, crate::simulate::Fate::Fails);
    rolled(&mut world, &mut journal, 1, 300);
    fates(&mut world, crate::simulate::Fate::Healthy);
    world.operator.retries.push(crate::plan::Retry {
        cluster: Some("b".into()),
        stage: None,
        attribution: crate::plan::Attribution {
            by: "jane".into(),
            reason: "the webhook is back".into(),
            at: world.now,
        },
    });
    rolled(&mut world, &mut journal, 1, 300);
    journal
}

#[test]
fn a_retry_that_a_plan_decided_is_no_flaw() {
    let journal = retried();
    let decided = |recorded: &&RecordedPlan| matches!(recorded.plan.decisions["b"], Decision::Retry { .. });
    assert_eq!(journal.recorded.iter().filter(decided).count(), 1);
    assert_eq!(
        journal.recorded.last().unwrap().plan.verdict,
        RolloutVerdict::Succeeded
    );
    assert_eq!(journal.flaws(&journal.chain()), [""; 0]);
    // The same without its beginning: earlier decisions are unknown.
    let whole = forged(&journal, |_, _, _| {});
    assert_eq!(whole.flaws(&whole.chain()), [""; 0]);
}

/// Each plan on its own keeps the rules: that a cluster is in flight again does not show who started it.
#[test]
fn an_undecided_admission_to_the_same_target_is_found() {
    let expected = "cluster b was admitted again to the same target without a decision in the rollout since";
    let sound = retried();
    // No retry was requested, so no plan decided it.
    let unrequested = forged(&sound, |_, _, recorded| recorded.input.operator.retries.clear());
    let flaws = unrequested.flaws(&unrequested.chain());
    assert!(flaws.len() == 1 && flaws[0].contains(expected), "{flaws:#?}");
    // One decision, and two admissions.
    let last = sound.recorded.len() - 1;
    let before = &sound.recorded[last - 1].plan.decisions["b"];
    assert!(
        matches!(before, Decision::InFlight { .. }),
        "its admission was observed"
    );
    let twice = forged(&sound, |n, _, recorded| {
        if n == last {
            let app = recorded
                .input
                .clusters
                .get_mut("b")
                .unwrap()
                .entries
                .get_mut("app");
            let observed = app.unwrap().observed.as_mut().unwrap();
            observed.admitted_at = Some(recorded.input.now);
        }
    });
    let flaws = twice.flaws(&twice.chain());
    assert!(flaws.len() == 1 && flaws[0].contains(expected), "{flaws:#?}");
}

fn leaving(settles_at: i64) -> crate::plan::LeavingSync {
    crate::plan::LeavingSync {
        cluster: "z".into(),
        entry: "app".into(),
        cause: crate::plan::LeavingCause::ClusterUnselected {
            settles_at: t(settles_at),
            stage: 0,
            windows: Vec::new(),
        },
        policy: starling_api::DeletionPolicy::Delete,
        depends_on: std::collections::BTreeSet::new(),
        removing_since: None,
        suspended: false,
        not_ready: false,
        budget_until: None,
        approval: None,
    }
}

#[test]
fn a_removed_sync_and_a_removed_entry_are_no_flaw() {
    let sound = approved();
    let removed = forged(&sound, |n, _, recorded| {
        if n < 2 {
            recorded.input.leaving.insert("web-z-app".into(), leaving(0));
            let entries = &mut recorded.input.clusters.get_mut("d").unwrap().entries;
            let mut old = entries["app"].clone();
            old.observed = None;
            entries.insert("old".into(), old);
        }
    });
    assert_eq!(removed.flaws(&removed.chain()), [""; 0]);
}

/// Each plan on its own keeps the rules: that a Sync is gone, or is being deleted, does not show who decided it.
#[test]
fn a_removal_that_a_plan_held_is_found() {
    let sound = approved();
    let expected = "Sync web-z-app of cluster z was removed without a decision in the rollout";
    let held = |after: fn(&mut crate::plan::LeavingSync) -> bool| {
        forged(&sound, move |n, _, recorded| {
            let mut sync = leaving(1_000_000);
            if n < 2 || after(&mut sync) {
                recorded.input.leaving.insert("web-z-app".into(), sync);
            }
        })
    };
    let gone = held(|_| false);
    let begun = held(|sync| {
        sync.removing_since = Some(t(30));
        true
    });
    for journal in [gone, begun] {
        let flaws = journal.flaws(&journal.chain());
        assert!(flaws.len() == 1 && flaws[0].contains(expected), "{flaws:#?}");
    }
    let stays = held(|_| true);
    assert_eq!(stays.flaws(&stays.chain()), [""; 0]);
    // Nothing goes with it.
    let left_behind = forged(&sound, |n, _, recorded| {
        if n < 2 {
            let mut sync = leaving(1_000_000);
            sync.policy = starling_api::DeletionPolicy::Orphan;
            recorded.input.leaving.insert("web-z-app".into(), sync);
        }
    });
    assert_eq!(left_behind.flaws(&left_behind.chain()), [""; 0]);
    // Its cluster is selected again.
    let returned = forged(&sound, |n, _, recorded| {
        if n < 2 {
            let mut sync = leaving(1_000_000);
            sync.cluster = "d".into();
            let view = recorded.input.clusters.remove("d");
            assert!(view.is_some());
            recorded.input.leaving.insert("web-d-app".into(), sync);
        }
    });
    assert_eq!(returned.flaws(&returned.chain()), [""; 0]);
}

/// An entry was taken out of the group and put back while the release without it rolled out: its Syncs stayed, and the
/// journal said that they were removed.
#[test]
fn a_sync_of_an_entry_that_is_back_is_not_removed() {
    let sound = approved();
    let back = |is_back: bool| {
        forged(&sound, move |n, _, recorded| {
            let mut sync = leaving(0);
            sync.cluster = "d".into();
            sync.entry = "old".into();
            sync.cause = crate::plan::LeavingCause::EntryRemoved;
            if n < 2 {
                recorded.input.leaving.insert("web-d-old".into(), sync);
            } else if is_back {
                recorded.input.returned.insert("web-d-old".into());
            }
        })
    };
    let removal = |journal: &Journal| {
        let flaws = journal.flaws(&journal.chain());
        flaws
            .into_iter()
            .filter(|flaw| flaw.contains("was removed without"))
            .count()
    };
    assert_eq!(removal(&back(false)), 1, "the Sync is gone");
    assert_eq!(removal(&back(true)), 0);
}

/// Deletes the group after its rollout: one cluster after the other loses its Sync, the canary `a` first. `order`: the
/// clusters in the order in which their Syncs are really deleted.
fn deleted(order: [&str; 4]) -> Journal {
    let sound = approved();
    let mut journal = forged(&sound, |_, _, _| {});
    journal.recorder = resume(&journal.entries).unwrap();
    journal.recorder.forget_read();
    journal.recorded = sound.recorded;
    let mut input = journal.recorded.last().unwrap().input.clone();
    let stage = |cluster: &str| usize::from(cluster != "a");
    let syncs = order.map(|cluster| {
        let mut sync = leaving(0);
        sync.cluster = cluster.into();
        sync.cause = crate::plan::LeavingCause::GroupDeleted {
            stage: stage(cluster),
            windows: Vec::new(),
        };
        (format!("web-app-{cluster}").into(), sync)
    });
    input.deleting = true;
    input.clusters.clear();
    input.leaving = syncs.into();
    for cluster in order {
        input.now += jiff::SignedDuration::from_secs(10);
        journal.record(1, &input);
        input.now += jiff::SignedDuration::from_secs(10);
        let sync = input.leaving.get_mut(&*format!("web-app-{cluster}")).unwrap();
        sync.removing_since = Some(input.now);
        journal.record(1, &input);
        input.leaving.remove(&*format!("web-app-{cluster}"));
    }
    input.now += jiff::SignedDuration::from_secs(10);
    journal.record(1, &input);
    journal
}

/// Guards against a group that is deleted past its stages: the journal had nothing of it.
#[test]
fn the_removals_of_a_deleted_group_are_recorded_and_verified() {
    let journal = deleted(["a", "b", "c", "d"]);
    assert_eq!(journal.flaws(&journal.chain()), [""; 0]);
    let past = past::rollouts(&journal.entries);
    let deletion = past[0].group_deletion.as_ref().unwrap();
    let removed: Vec<_> = deletion.removed.keys().map(|sync| sync.as_str()).collect();
    assert_eq!(removed, ["web-app-a", "web-app-b", "web-app-c", "web-app-d"]);
    assert!(deletion.began_at < deletion.removed["web-app-b"]);
    // The rollout keeps its outcome.
    assert_eq!(past[0].outcome, Some(past::PastOutcome::Succeeded));
    assert_eq!((past[0].done, past[0].total), (4, 4));
    let expected = "Sync web-app-c of cluster c was removed without a decision in the rollout";
    let journal = deleted(["c", "a", "b", "d"]);
    let flaws = journal.flaws(&journal.chain());
    assert!(flaws.len() == 1 && flaws[0].contains(expected), "{flaws:#?}");
}

/// A plan that lets the second stage go first breaks a rule on its own.
#[test]
fn a_plan_for_a_deleted_group_that_skips_a_stage_is_found() {
    let sound = deleted(["a", "b", "c", "d"]);
    let first = { sound.recorded.iter() }
        .position(|recorded| recorded.input.deleting)
        .unwrap();
    let skipped = forged_plans(&sound, move |n, recorded| {
        if n == first {
            let removals = &mut recorded.plan.removals;
            removals.insert("web-app-b".into(), crate::plan::RemovalDecision::Remove);
        }
    });
    let flaws = skipped.flaws(&skipped.chain());
    assert!(
        flaws.len() == 1 && flaws[0].contains("the plan breaks a rule") && flaws[0].contains("web-app-b"),
        "{flaws:#?}"
    );
}

#[test]
fn an_entry_of_another_version_is_rejected_whatever_its_body() {
    let mut journal = approved();
    let body = journal.entries[0].body.clone();
    assert!(body.starts_with("{\"version\":4,"), "{body}");
    for other in [
        body.replacen("\"version\":4", "\"version\":5", 1),
        r#"{"version": 5, "body": [{"of": "a form to come"}]}"#.to_owned(),
        r#"{"version": 5, "entry": "a form to come", "signature": []}"#.to_owned(),
    ] {
        assert_eq!(Body::read(&other), Err(NotReadable::Version(5)));
    }
    // The format without a version is rejected.
    let without = body.replacen("\"version\":4,", "", 1);
    assert!(matches!(Body::read(&without), Err(NotReadable::Form(_))));
    journal.entries[0].body = body.replacen("\"version\":4", "\"version\":5", 1);
    let entries = journal.entries.clone();
    assert_eq!(resume(&entries).err(), Some(NotReadable::Version(5)));
    let flaws = journal.flaws(&journal.chain());
    let named = "1: has format version 5; this program reads version 4";
    assert!(flaws.iter().any(|flaw| flaw == named), "{flaws:#?}");
}

/// Journals on disk have these names: to change one is to change the version.
#[test]
fn the_serialised_names_are_those_of_journals_on_disk() {
    let attribution = crate::plan::Attribution {
        by: "jane".into(),
        reason: "why".into(),
        at: t(0),
    };
    let retry = crate::plan::Retry {
        cluster: None,
        stage: None,
        attribution,
    };
    let applied = crate::plan::Progress::healthy_since(t(0));
    for (written, expected) in [
        (
            serde_json::to_value(retry).unwrap(),
            serde_json::json!({"attribution": {"by": "jane", "reason": "why", "at": t(0)}}),
        ),
        (
            serde_json::to_value(applied).unwrap(),
            serde_json::json!({"applied": {"since": t(0)}}),
        ),
        (
            serde_json::to_value([RolloutVerdict::InProgress, RolloutVerdict::Succeeded]).unwrap(),
            serde_json::json!(["inProgress", "succeeded"]),
        ),
    ] {
        assert_eq!(written, expected);
    }
    let body = &approved().entries[0].body;
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    let plan = &body["body"]["whole"]["recorded"]["plan"];
    assert_eq!(plan["verdict"], "inProgress", "{body}");
}
