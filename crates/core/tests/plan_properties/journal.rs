//! Properties of the journal: everything is read as it was recorded, and every change of the journal is found.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use starling_core::ids::RolloutNumber;
use starling_core::journal::{
    Body, Chain, ChainEnd, FlawKind, JournalEntry, RecordedPlan, Recorder, check_chain, hash, verify,
};
use starling_core::plan::plan;

use super::arbitrary::input;
use super::config;

/// Returns the entries for some plans, and the plans that have an entry.
fn written(recorded: &[RecordedPlan]) -> (Vec<JournalEntry>, Vec<RecordedPlan>, Chain) {
    let (mut entries, mut written, mut newest) = (Vec::new(), Vec::new(), ChainEnd::beginning());
    let mut recorder = Recorder::default();
    for recorded in recorded {
        let Some(draft) = recorder
            .draft(RolloutNumber::new(1), &recorded.input, &recorded.plan)
            .unwrap()
        else {
            continue;
        };
        let mut entry = JournalEntry {
            group_id: "u".into(),
            namespace: "ns".into(),
            name: "g".into(),
            rollout: RolloutNumber::new(1),
            seq: newest.seq + 1,
            at: recorded.input.now,
            body: draft.body.clone(),
            hash: String::new(),
        };
        entry.hash = hash(&newest.hash, &entry);
        newest = ChainEnd {
            seq: entry.seq,
            hash: entry.hash.clone(),
        };
        recorder.wrote(draft);
        entries.push(entry);
        written.push(recorded.clone());
    }
    let cut = ChainEnd::beginning();
    (entries, written, Chain { cut, newest })
}

fn recorded() -> impl Strategy<Value = Vec<RecordedPlan>> {
    vec(input(), 1..6).prop_map(|inputs| {
        let recorded = inputs.into_iter().map(|input| RecordedPlan {
            plan: plan(&input),
            input,
        });
        recorded.collect()
    })
}

/// Plans of the same fleet in which only some clusters change, as most entries do.
fn small_steps() -> impl Strategy<Value = Vec<RecordedPlan>> {
    (input(), vec((input(), vec(any::<Index>(), 0..3)), 0..6)).prop_map(|(first, steps)| {
        let mut inputs = vec![first];
        for (other, clusters) in steps {
            let mut next = inputs[inputs.len() - 1].clone();
            // Observations are never later than the time of the plan.
            next.now = next.now.max(other.now);
            next.operator = other.operator;
            if next.deleting == other.deleting {
                next.leaving = other.leaving;
            }
            next.prunes = other.prunes;
            let stages = next.strategy.stages.len();
            // A group that is being deleted selects no cluster.
            for index in clusters.iter().filter(|_| !other.deleting && !next.deleting) {
                if let Some((name, view)) = other.clusters.iter().nth(index.index(40)) {
                    let mut view = view.clone();
                    view.stage = view.stage.min(stages - 1);
                    next.clusters.insert(name.clone(), view);
                }
            }
            let selected = &next.clusters;
            next.leaving
                .retain(|_, sync| !selected.contains_key(&sync.cluster));
            inputs.push(next);
        }
        let recorded = inputs.into_iter().map(|input| RecordedPlan {
            plan: plan(&input),
            input,
        });
        recorded.collect()
    })
}

fn read(entries: &[JournalEntry]) -> Vec<RecordedPlan> {
    let mut before = None;
    let mut read = Vec::new();
    for entry in entries {
        let recorded = RecordedPlan::after(before, Body::read(&entry.body).unwrap()).unwrap();
        read.push(recorded.clone());
        before = Some(recorded);
    }
    read
}

/// A change of the rows of the journal.
#[derive(Clone, Debug)]
enum Tampering {
    Flip(Index, Index),
    Remove(Index),
    Insert(Index, Index),
    Swap(Index, Index),
    Truncate(Index),
}

fn tampering() -> impl Strategy<Value = Tampering> {
    prop_oneof![
        (any::<Index>(), any::<Index>()).prop_map(|(entry, byte)| Tampering::Flip(entry, byte)),
        any::<Index>().prop_map(Tampering::Remove),
        (any::<Index>(), any::<Index>()).prop_map(|(from, to)| Tampering::Insert(from, to)),
        (any::<Index>(), any::<Index>()).prop_map(|(one, other)| Tampering::Swap(one, other)),
        any::<Index>().prop_map(Tampering::Truncate),
    ]
}

fn tamper(entries: &mut Vec<JournalEntry>, with: &Tampering) {
    let count = entries.len();
    match with {
        Tampering::Flip(entry, byte) => {
            let body = &mut entries[entry.index(count)].body;
            let at = byte.index(body.len());
            let mut bytes = std::mem::take(body).into_bytes();
            bytes[at] = if bytes[at] == b'7' { b'8' } else { b'7' };
            *body = String::from_utf8_lossy(&bytes).into_owned();
        }
        Tampering::Remove(entry) => drop(entries.remove(entry.index(count))),
        Tampering::Insert(from, to) => {
            let copy = entries[from.index(count)].clone();
            entries.insert(to.index(count + 1), copy);
        }
        Tampering::Swap(one, other) => {
            let (one, other) = (one.index(count), other.index(count));
            entries.swap(one, other);
            let (first, second) = (entries[one].seq, entries[other].seq);
            (entries[one].seq, entries[other].seq) = (second, first);
        }
        Tampering::Truncate(at) => entries.truncate(at.index(count)),
    }
}

proptest! {
    #![proptest_config(config(128))]

    #[test]
    fn plans_are_read_as_they_were_recorded(recorded in prop_oneof![recorded(), small_steps()]) {
        let (entries, plans, chain) = written(&recorded);
        prop_assert_eq!(read(&entries), plans);
        // These plans do not follow from each other, which is reported, and nothing else is.
        let flaws = verify(&chain, &entries, None).flaws.into_iter();
        let flaws: Vec<_> = flaws.filter(|flaw| !matches!(flaw.kind, FlawKind::Gap(_))).collect();
        prop_assert_eq!(flaws, vec![]);
    }

    /// A plan without an entry has the decisions, the stages and the verdict of the previous entry.
    #[test]
    fn no_change_is_left_out(recorded in small_steps()) {
        let mut recorder = Recorder::default();
        let mut last: Option<RecordedPlan> = None;
        for recorded in recorded {
            if let Some(draft) = recorder.draft(RolloutNumber::new(1), &recorded.input, &recorded.plan).unwrap() {
                recorder.wrote(draft);
                last = Some(recorded);
                continue;
            }
            let last = last.as_ref().unwrap();
            prop_assert_eq!(&last.plan.decisions, &recorded.plan.decisions);
            prop_assert_eq!(&last.plan.removals, &recorded.plan.removals);
            prop_assert_eq!(&last.input.leaving, &recorded.input.leaving);
            prop_assert_eq!(&last.plan.prunes, &recorded.plan.prunes);
            prop_assert_eq!(&last.input.prunes, &recorded.input.prunes);
            // A group without stages has no stage records: the times of its only stage are those of the plan.
            let mut stages = recorded.plan.stages.clone();
            if let ([before], [now]) = (&last.plan.stages[..], &mut stages[..]) {
                now.record = before.record.clone();
            }
            prop_assert_eq!(&last.plan.stages, &stages);
            prop_assert_eq!(&last.plan.verdict, &recorded.plan.verdict);
            prop_assert_eq!(&last.input.operator, &recorded.input.operator);
        }
    }

    #[test]
    fn a_changed_journal_is_found(recorded in small_steps(), with in tampering()) {
        let (entries, _, chain) = written(&recorded);
        let mut changed = entries.clone();
        tamper(&mut changed, &with);
        prop_assume!(changed != entries);
        prop_assert_ne!(check_chain(&chain, &changed), vec![]);
    }
}
