//! Entries that are written, read and tampered with.

use std::collections::BTreeMap;

use super::*;
use crate::plan::{Decision, StagePhase, Verdict as Outcome, plan};
use crate::simulate::{Happened, Member, World};

fn t(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

/// Four clusters of which two may be in flight, `a` a canary that somebody approves.
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
        let member = Member::new(name, labels, std::time::Duration::from_secs(60));
        (name.to_owned(), member)
    });
    World::new(t(0), strategy, members.into(), "r1")
}

/// A journal, as a ledger keeps it.
#[derive(Default)]
struct Journal {
    recorder: Recorder,
    entries: Vec<Entry>,
    looks: Vec<Look>,
}

impl Journal {
    fn look(&mut self, rollout: i64, input: &PlanInput) {
        let plan = plan(input);
        if let Some(draft) = self.recorder.draft(rollout, input, &plan).unwrap() {
            self.append(rollout, input.now, &draft.body);
            self.recorder.wrote(draft);
            self.looks.push(Look {
                input: input.clone(),
                plan,
            });
        }
    }

    fn append(&mut self, rollout: i64, at: Timestamp, body: &str) {
        let mut entry = Entry {
            group_uid: "u".into(),
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

    fn newest(&self) -> End {
        match self.entries.last() {
            Some(entry) => End {
                seq: entry.seq,
                hash: entry.hash.clone(),
            },
            None => End::beginning(),
        }
    }

    fn chain(&self) -> Chain {
        Chain {
            cut: End::beginning(),
            newest: self.newest(),
        }
    }

    fn flaws(&self, chain: &Chain) -> Vec<String> {
        let verdict = verify(chain, &self.entries, None);
        let flaws = verdict.flaws.iter();
        flaws.map(|flaw| format!("{}: {}", flaw.seq, flaw.what)).collect()
    }
}

/// A rollout that is looked at every ten seconds, whether anything happens or not, and again after everything that happens.
fn rolled(world: &mut World, journal: &mut Journal, rollout: i64, seconds: i64) {
    let until = world.now + jiff::SignedDuration::from_secs(seconds);
    while world.now < until {
        for member in world.members.values_mut() {
            member.live(world.now);
        }
        // What settles does so in several plans; the journal gets each as the controller makes it.
        loop {
            let before = world.clone();
            let input = world.input();
            if let Some(input) = &input {
                journal.look(rollout, input);
            }
            let happened = world.settle();
            let moved = happened.len() > 1 || matches!(happened.first(), Some(Happened::Began { .. }));
            if !moved || before.rollout.is_some() {
                break;
            }
        }
        world.now += jiff::SignedDuration::from_secs(10);
    }
}

fn approved() -> Journal {
    let (mut world, mut journal) = (world(), Journal::default());
    rolled(&mut world, &mut journal, 1, 120);
    let word = crate::plan::Word {
        by: "jane".into(),
        reason: "looks good".into(),
        at: world.now,
    };
    world.approve("canary", word);
    rolled(&mut world, &mut journal, 1, 300);
    journal
}

#[test]
fn a_rollout_is_told_from_its_first_plan_to_its_last_and_every_plan_keeps_the_rules() {
    let journal = approved();
    assert_eq!(journal.flaws(&journal.chain()), [""; 0]);
    let last = journal.looks.last().unwrap();
    assert_eq!(last.plan.verdict, Outcome::Through);
    let past = past::rollouts(&journal.entries);
    assert_eq!(past.len(), 1);
    assert_eq!((past[0].done, past[0].total), (4, 4));
    assert_eq!(past[0].outcome, "succeeded");
    assert_eq!(past[0].words.len(), 1, "{:?}", past[0].words);
    assert_eq!(past[0].words[0].what, "approve stage canary");
    assert_eq!(past[0].words[0].word.by, "jane");
}

#[test]
fn every_moment_can_be_read_again() {
    let journal = approved();
    for (place, look) in journal.looks.iter().enumerate() {
        let (entry, read) = past::at(&journal.entries, look.input.now).unwrap();
        let later = journal.looks[place..]
            .iter()
            .take_while(|later| later.input.now == look.input.now);
        let newest = later.last().unwrap();
        assert_eq!(&read, newest, "entry {}", entry.seq);
    }
    // Between two entries it is as the first of them says.
    let waits = past::at(&journal.entries, t(100)).unwrap().1;
    assert!(matches!(waits.plan.stages[0].phase, StagePhase::Waiting(_)));
    assert_eq!(waits.plan.decisions["a"], Decision::Done);
    assert!(past::at(&journal.entries, t(-1)).is_none());
}

#[test]
fn a_look_in_which_nothing_changed_writes_nothing() {
    let mut journal = approved();
    let written = journal.entries.len();
    let mut again = journal.looks.last().unwrap().input.clone();
    for _ in 0..5 {
        again.now += jiff::SignedDuration::from_secs(60);
        journal.look(1, &again);
    }
    assert_eq!(journal.entries.len(), written);
    // Whoever goes on from what is written knows as much.
    let whole = journal
        .entries
        .iter()
        .rposition(|entry| entry.body.starts_with("{\"whole\""));
    let recorder = resume(&journal.entries[whole.unwrap()..]).unwrap();
    assert!(recorder.draft(1, &again, &plan(&again)).unwrap().is_none());
    assert!(
        recorder
            .draft(2, &again, &plan(&again))
            .unwrap()
            .unwrap()
            .is_whole
    );
}

#[test]
fn a_journal_that_begins_in_the_middle_says_so() {
    let journal = approved();
    let begins = |look: &Look| {
        let mut journal = Journal::default();
        journal.look(1, &look.input);
        match Body::read(&journal.entries[0].body).unwrap() {
            Body::Whole(whole) => whole.beginning_lost,
            Body::Change(_) => panic!("the first is whole"),
        }
    };
    let mut first = journal.looks[0].clone();
    for view in first.input.clusters.values_mut() {
        view.entries.values_mut().for_each(|entry| entry.observed = None);
    }
    assert!(!begins(&first));
    assert!(begins(journal.looks.last().unwrap()));
}

#[test]
fn an_entry_is_whole_once_the_changes_weigh_as_much() {
    let look = approved().looks.last().unwrap().clone();
    let (mut input, mut wholes) = (look.input, Vec::new());
    let mut recorder = Recorder::default();
    for n in 0..12_000 {
        input.suspended = n % 2 == 0;
        let draft = recorder.draft(1, &input, &plan(&input)).unwrap().unwrap();
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

type Tamper = fn(&mut Vec<Entry>);

#[test]
fn whatever_is_done_to_the_entries_is_found_and_named() {
    let cases: [(&str, Tamper, &[&str]); 9] = [
        (
            "a body is changed",
            |entries| entries[2].body = entries[2].body.replacen("\"now\"", "\"now\" ", 1),
            &["3: entry 3 is not what was written there: its hash does not fit"],
        ),
        (
            "a rollout is renamed",
            |entries| entries[0].rollout = 1_000,
            &["1: entry 1 is not what was written there: its hash does not fit"],
        ),
        (
            "a time is changed",
            |entries| entries[3].at = t(-5),
            &["4: entry 4 is not what was written there: its hash does not fit"],
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
            &["3: entry 3 stands behind entry 3"],
        ),
        (
            "two change places",
            |entries| entries.swap(1, 2),
            &[
                "2: entries 2 to 2 are missing",
                "2: entry 2 stands behind entry 3",
            ],
        ),
        (
            "two change places and numbers",
            |entries| {
                entries.swap(1, 2);
                (entries[1].seq, entries[2].seq) = (2, 3);
            },
            &[
                "2: entry 2 is not what was written there: its hash does not fit",
                "3: entry 3 is not what was written there: its hash does not fit",
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

/// Whoever computes all hashes anew passes the chain. What was decided still has to follow from what was known.
#[test]
fn an_admission_above_the_bound_is_found_though_all_hashes_fit() {
    let sound = approved();
    let place = sound.looks.iter().position(|look| {
        let held = |decision: &Decision| {
            let Decision::Hold { reason, .. } = decision else {
                return false;
            };
            *reason == crate::plan::HoldReason::NoSlot
        };
        look.plan.decisions.values().any(held)
    });
    let place = place.expect("one has to wait for a slot");
    let mut look = sound.looks[place].clone();
    for decision in look.plan.decisions.values_mut() {
        if let Decision::Hold { .. } = decision {
            *decision = Decision::Start {
                entries: vec!["app".into()],
                to: crate::plan::To::Release,
            };
        }
    }
    let mut forged = Journal::default();
    for (n, entry) in sound.entries.iter().enumerate() {
        let body = if n == place {
            let whole = Whole {
                beginning_lost: false,
                look: look.clone(),
            };
            serde_json::to_string(&Body::Whole(whole)).unwrap()
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

/// The entries written anew with other looks, all hashes fitting.
fn forged(sound: &Journal, forge: impl Fn(usize, &mut i64, &mut Look)) -> Journal {
    let mut forged = Journal::default();
    for (n, (entry, look)) in sound.entries.iter().zip(&sound.looks).enumerate() {
        let (mut rollout, mut look) = (entry.rollout, look.clone());
        forge(n, &mut rollout, &mut look);
        look.plan = plan(&look.input);
        let whole = Whole {
            beginning_lost: false,
            look,
        };
        forged.append(
            rollout,
            entry.at,
            &serde_json::to_string(&Body::Whole(whole)).unwrap(),
        );
    }
    forged
}

/// Every plan by itself keeps the rules here, by the facts that it was given. The facts do not follow from what was decided.
#[test]
fn facts_that_do_not_follow_from_the_entries_before_are_found() {
    let sound = approved();
    let same = forged(&sound, |_, _, _| {});
    assert_eq!(same.flaws(&same.chain()), [""; 0]);
    let last = sound.looks.len() - 1;
    // A stage has let go and nothing tells of it any more.
    let taken_back = forged(&sound, |n, _, look| {
        if n == last {
            look.input.rollout.stages.get_mut("canary").unwrap().passed_at = None;
        }
    });
    let flaws = taken_back.flaws(&taken_back.chain());
    assert!(
        flaws[0].contains("stage canary: what was recorded of it in the entry before"),
        "{flaws:#?}"
    );
    // Unless the stages have been taken out of the strategy: of a group without stages nothing is remembered.
    let without_stages = |records: fn(usize, usize) -> bool, stages: bool| {
        forged(&sound, |n, _, look| {
            if n + 2 > last {
                if !stages {
                    look.input.strategy.stages.remove(0);
                    for view in look.input.clusters.values_mut() {
                        view.stage = 0;
                    }
                }
                if !records(n, last) {
                    look.input.rollout.stages.clear();
                }
            }
        })
    };
    for (records, stages, flaw) in [
        // The first look still finds what was remembered, the second does not.
        ((|n, last| n < last) as fn(usize, usize) -> bool, false, false),
        // After a crash in between not even the first does.
        (|_, _| false, false, false),
        (|n, last| n < last, true, true),
        (|_, _| false, true, true),
    ] {
        let journal = without_stages(records, stages);
        let flaws = journal.flaws(&journal.chain());
        let found = flaws.iter().any(|flaw| flaw.contains("what was recorded of it"));
        assert_eq!(found, flaw, "{flaws:#?}");
    }
    // `d` has got the release before anything started it, and everything behind tells so, too.
    let seen = |look: &Look| look.input.clusters["d"].entries["app"].observed.clone();
    let admitted = sound.looks.iter().find_map(seen).expect("it gets it in the end");
    let undecided = forged(&sound, |n, _, look| {
        let app = look
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
    let restarted = forged(&sound, |n, _, look| {
        if n == last {
            look.input.rollout.started_at = t(1);
        }
    });
    let flaws = restarted.flaws(&restarted.chain());
    assert!(
        flaws[0].contains("another release, direction or beginning"),
        "{flaws:#?}"
    );
    let backwards = forged(&sound, |n, rollout, _| *rollout -= i64::from(n == last));
    let flaws = backwards.flaws(&backwards.chain());
    assert!(
        flaws[0].contains("it is of rollout 0, after an entry of rollout 1"),
        "{flaws:#?}"
    );
}

#[test]
fn a_chain_that_was_cut_begins_behind_the_cut() {
    let journal = approved();
    let cut = &journal.entries[1];
    let chain = Chain {
        cut: End {
            seq: cut.seq,
            hash: cut.hash.clone(),
        },
        newest: journal.newest(),
    };
    assert_eq!(check_chain(&chain, &journal.entries[2..]), []);
    assert_ne!(check_chain(&chain, &journal.entries[3..]), []);
}

#[test]
fn what_a_person_takes_back_has_an_end() {
    let look = approved().looks[1].clone();
    let (mut journal, mut input) = (Journal::default(), look.input);
    let word = crate::plan::Word {
        by: "joe".into(),
        reason: "wait".into(),
        at: input.now,
    };
    for (seconds, paused) in [(1, Some(word)), (2, None)] {
        input.now = t(1_000 + seconds);
        input.steering.paused = paused;
        journal.look(1, &input);
    }
    let words: BTreeMap<String, Option<Timestamp>> = past::rollouts(&journal.entries)[0]
        .words
        .iter()
        .map(|said| (said.what.clone(), said.until))
        .collect();
    assert_eq!(words["pause"], Some(t(1_002)));
}

/// What a rollout over two hundred clusters writes, with names as long as real ones: the figures of ADR 33.
#[test]
fn a_rollout_over_many_clusters_writes_little_for_each() {
    const CLUSTERS: usize = 200;
    let strategy = serde_json::json!({"maxConcurrency": "5%", "minSuccessTime": "30s"});
    let strategy = crate::plan::ReadStrategy::new(&serde_json::from_value(strategy).unwrap()).unwrap();
    let member = |n: usize| {
        let takes = std::time::Duration::from_secs(20 + n as u64 % 40);
        let uid = format!("7d9f0c4e-3b1a-4f5e-9c2d-{n:012}");
        let mut member = Member::new(&uid, BTreeMap::new(), takes);
        member.admit(&crate::digest::of_bytes(b"before"), t(-500));
        member.heal(t(-400));
        (format!("prod-eu-{n:04}"), member)
    };
    let members = (0..CLUSTERS).map(member).collect();
    let release = crate::digest::of_bytes(b"now");
    let (mut world, mut journal) = (World::new(t(0), strategy, members, &release), Journal::default());
    while world
        .input()
        .is_none_or(|input| plan(&input).verdict != Outcome::Through)
    {
        world.settle();
        journal.look(1, &world.input().unwrap());
        world.now = world.next_time().unwrap_or(world.now);
        for member in world.members.values_mut() {
            member.live(world.now);
        }
        journal.look(1, &world.input().unwrap());
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
