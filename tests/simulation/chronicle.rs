//! What the judge is told of a run.

use jiff::{SignedDuration, Timestamp};
use starling_core::journal::verify;

use crate::judge::{ControllerClock, History, Violation, judge, writes};
use crate::script::{Event, MEMBERS, Script, member};
use crate::user::URL;
use crate::world::{HUB, Run};

/// How long a write to the management cluster takes to be known where nothing is wrong.
const LAG: SignedDuration = SignedDuration::from_secs(2);
/// How long where that cluster, its network or the controller was at fault: a fault of 20 s, and the wait that grew in it.
const LAG_IN_TROUBLE: SignedDuration = SignedDuration::from_secs(60);

/// What breaks an invariant.
pub(crate) fn verdict(run: &Run, script: &Script) -> anyhow::Result<Vec<Violation>> {
    Ok(judge(&history(run, script)?))
}

fn history(run: &Run, script: &Script) -> anyhow::Result<History> {
    let world = &run.world;
    let mut history = History {
        hub: writes(&world.cluster(HUB)?.journal()),
        git: [(URL.to_owned(), world.git.pushes())].into(),
        quiet_since: run.settled,
        ended: run.ended,
        lag: lag(script),
        clock: clock(run),
        ..History::default()
    };
    for name in (0..MEMBERS).map(member) {
        let journal = writes(&world.cluster(&name)?.journal());
        history.members.insert(name, journal);
    }
    Ok(history)
}

/// What the controller's clock showed.
fn clock(run: &Run) -> ControllerClock {
    let mut clock = ControllerClock::default();
    for (at, seconds) in &run.jumps {
        clock.jump(*at, SignedDuration::from_secs(*seconds));
    }
    clock
}

/// How long what was written to the management cluster may be unknown to the controller.
fn lag(script: &Script) -> SignedDuration {
    let mut lag = LAG;
    for (_, event) in &script.events {
        match event {
            Event::Fault { cluster, .. } | Event::Hold { cluster } | Event::Bounce { cluster }
                if cluster != HUB => {}
            Event::Fault { .. }
            | Event::Hold { .. }
            | Event::Bounce { .. }
            | Event::Crash
            | Event::Compact => {
                lag = LAG_IN_TROUBLE;
            }
            _ => {}
        }
    }
    lag
}

/// Nothing was written to a member by two writes that one had sufficed for, and no revision was followed by an older one, unless
/// there are stages: a rollout may go back then, and the judge knows what to.
/// The judge says that too, by more roundabout ways; this holds for the objects of a run, whatever the CRs say.
pub(crate) fn repetitions(run: &Run) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    let may_go_back = run.world.staged.is_some();
    for name in (0..MEMBERS).map(member) {
        let mut last: std::collections::BTreeMap<Box<str>, (u64, Timestamp)> =
            std::collections::BTreeMap::new();
        for entry in run.world.cluster(&name)?.journal() {
            let key = format!("{} {}", entry.kind, entry.key()).into_boxed_str();
            let of_ours =
                &*entry.manager == "starling" && ["ConfigMap", "Deployment"].contains(&&*entry.kind);
            if !of_ours && entry.subresource.is_empty() {
                // What somebody else changed is put right.
                last.remove(&key);
            }
            let object = entry.object.read();
            let revision = object["data"]["revision"]
                .as_str()
                .or_else(|| object["metadata"]["annotations"]["revision"].as_str());
            let Some(revision) = revision.and_then(|text| text.parse().ok()).filter(|_| of_ours) else {
                continue;
            };
            if entry.verb == starling_apiserver::journal::Verb::Delete {
                last.remove(&key);
                continue;
            }
            if let Some((before, at)) = last.insert(key.clone(), (revision, entry.time))
                && (before == revision || (before > revision && !may_go_back))
            {
                found.push(format!(
                    "{name}: {key} got revision {revision} at {} and {before} at {at}",
                    entry.time
                ));
            }
        }
    }
    Ok(found)
}

/// What `starling verify` would find in the journals of rollouts: the chains, and every plan by the independent checker.
pub(crate) fn flaws(run: &Run) -> Vec<String> {
    let journals = run.world.ledger.journals();
    let mut flaws = Vec::new();
    for journal in &journals {
        let verdict = verify(&journal.chain, &journal.entries, None);
        let of = journal.entries.first().map_or("", |entry| entry.name.as_str());
        flaws.extend(
            verdict
                .flaws
                .iter()
                .map(|flaw| format!("journal of {of}, entry {}: {}", flaw.seq, flaw.what)),
        );
    }
    if journals.iter().all(|journal| journal.entries.is_empty()) {
        flaws.push("there is no journal".to_owned());
    }
    flaws
}
