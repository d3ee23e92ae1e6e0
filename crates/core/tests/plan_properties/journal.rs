//! The journal: whatever it is told, it tells again; whatever is done to it is found.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use starling_core::journal::{Body, Chain, End, Entry, Look, Recorder, What, check_chain, hash, verify};
use starling_core::plan::plan;

use super::arbitrary::input;
use super::config;

/// Entries for some looks, with what each of them is to tell.
fn written(looks: &[Look]) -> (Vec<Entry>, Vec<Look>, Chain) {
    let (mut entries, mut told, mut newest) = (Vec::new(), Vec::new(), End::beginning());
    let mut recorder = Recorder::default();
    for look in looks {
        let Some(draft) = recorder.draft(1, &look.input, &look.plan).unwrap() else {
            continue;
        };
        let mut entry = Entry {
            group_uid: "u".into(),
            namespace: "ns".into(),
            name: "g".into(),
            rollout: 1,
            seq: newest.seq + 1,
            at: look.input.now,
            body: draft.body.clone(),
            hash: String::new(),
        };
        entry.hash = hash(&newest.hash, &entry);
        newest = End {
            seq: entry.seq,
            hash: entry.hash.clone(),
        };
        recorder.wrote(draft);
        entries.push(entry);
        told.push(look.clone());
    }
    let cut = End::beginning();
    (entries, told, Chain { cut, newest })
}

fn looks() -> impl Strategy<Value = Vec<Look>> {
    vec(input(), 1..6).prop_map(|inputs| {
        let looks = inputs.into_iter().map(|input| Look {
            plan: plan(&input),
            input,
        });
        looks.collect()
    })
}

/// The same fleet, of which only some clusters change: what most entries are about.
fn small_steps() -> impl Strategy<Value = Vec<Look>> {
    (input(), vec((input(), vec(any::<Index>(), 0..3)), 0..6)).prop_map(|(first, steps)| {
        let mut inputs = vec![first];
        for (other, clusters) in steps {
            let mut next = inputs[inputs.len() - 1].clone();
            // Nothing is known of the future: what was seen was seen by then.
            next.now = next.now.max(other.now);
            next.steering = other.steering;
            let stages = next.strategy.stages.len();
            for index in clusters {
                if let Some((name, view)) = other.clusters.iter().nth(index.index(40)) {
                    let mut view = view.clone();
                    view.stage = view.stage.min(stages - 1);
                    next.clusters.insert(name.clone(), view);
                }
            }
            inputs.push(next);
        }
        let looks = inputs.into_iter().map(|input| Look {
            plan: plan(&input),
            input,
        });
        looks.collect()
    })
}

fn read(entries: &[Entry]) -> Vec<Look> {
    let mut before = None;
    let mut read = Vec::new();
    for entry in entries {
        let look = Look::after(before, Body::read(&entry.body).unwrap()).unwrap();
        read.push(look.clone());
        before = Some(look);
    }
    read
}

/// What somebody may do to the rows of a table.
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

fn tamper(entries: &mut Vec<Entry>, with: &Tampering) {
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
    fn what_is_told_is_told_again(looks in prop_oneof![looks(), small_steps()]) {
        let (entries, told, chain) = written(&looks);
        prop_assert_eq!(read(&entries), told);
        // These looks do not follow from each other, and nobody says so but for that.
        let flaws = verify(&chain, &entries, None).flaws.into_iter();
        let flaws: Vec<_> = flaws.filter(|flaw| !matches!(flaw.what, What::Gap(_))).collect();
        prop_assert_eq!(flaws, vec![]);
    }

    /// What is left out is what has been said: the decisions, the stages and the verdict of a look without an entry are those of
    /// the entry before it.
    #[test]
    fn nothing_that_changed_is_left_out(looks in small_steps()) {
        let mut recorder = Recorder::default();
        let mut said: Option<Look> = None;
        for look in looks {
            if let Some(draft) = recorder.draft(1, &look.input, &look.plan).unwrap() {
                recorder.wrote(draft);
                said = Some(look);
                continue;
            }
            let said = said.as_ref().unwrap();
            prop_assert_eq!(&said.plan.decisions, &look.plan.decisions);
            prop_assert_eq!(&said.plan.stages, &look.plan.stages);
            prop_assert_eq!(&said.plan.verdict, &look.plan.verdict);
            prop_assert_eq!(&said.input.steering, &look.input.steering);
        }
    }

    #[test]
    fn a_changed_journal_is_found(looks in small_steps(), with in tampering()) {
        let (entries, _, chain) = written(&looks);
        let mut changed = entries.clone();
        tamper(&mut changed, &with);
        prop_assume!(changed != entries);
        prop_assert_ne!(check_chain(&chain, &changed), vec![]);
    }
}
