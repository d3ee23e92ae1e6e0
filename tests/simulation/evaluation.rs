//! The input of the judge, and the checks of a run.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use starling_api::{INSTALLATION, OWNER_LABEL};
use starling_apiserver::faults::Effect;
use starling_core::ids::{InstallationId, SyncName};
use starling_core::journal::{Body, Flaw, FlawKind, Gap, RecordedPlan, verify};
use starling_core::plan::RemovalDecision;
use starling_core::target;

use crate::content::{APP, EXTRA};
use crate::judge::{ControllerClock, History, Owner, Plan, Violation, judge, writes};
use crate::script::{Event, MEMBERS, Script, member};
use crate::user::{GROUP, NAMESPACE, OTHER, URL};
use crate::world::{HUB, Run};

/// Time until a write to the management cluster is known to the controller, without faults.
const LAG: SignedDuration = SignedDuration::from_secs(2);
/// The same with faults of the management cluster, its network or the controller: a fault of 20 s, and the backoff that
/// grew meanwhile.
const LAG_WITH_FAULTS: SignedDuration = SignedDuration::from_secs(60);
/// Time from the read that confirms a deletion to the deletion, without faults.
const LIVE: SignedDuration = SignedDuration::from_secs(5);
/// The same with faults that delay requests to the management cluster, for 20 s each, or their responses.
const LIVE_WITH_FAULTS: SignedDuration = SignedDuration::from_secs(120);

/// The same with a watch that is frozen for up to 90 s: the controller notices it 142 s after it began at the latest,
/// and the next watch may have begun during the fault.
const LAG_WITH_FROZEN_WATCH: SignedDuration = SignedDuration::from_secs(250);

/// Returns the violations of invariants.
pub(crate) fn violations(run: &Run, script: &Script) -> anyhow::Result<Vec<Violation>> {
    Ok(judge(&history(run, script)?))
}

fn history(run: &Run, script: &Script) -> anyhow::Result<History> {
    let world = &run.world;
    let mut history = History {
        hub: writes(&world.cluster(HUB)?.journal()),
        git: [(URL.to_owned(), world.git.pushes())].into(),
        idle_since: run.converged_at,
        ended: run.ended,
        lag: lag(script),
        live: live(script),
        clock: clock(run),
        releases: run.world.releases(),
        set_backs: run.set_backs.clone(),
        plans: plans(run),
        owners: owners(run)?,
        ..History::default()
    };
    for name in (0..MEMBERS).map(member) {
        let journal = writes(&world.cluster(&name)?.journal());
        history.members.insert(name, journal);
    }
    Ok(history)
}

/// Returns the owners of the labels of all entries. Two groups render the same objects, and only the labels tell them
/// apart.
fn owners(run: &Run) -> anyhow::Result<BTreeMap<String, Owner>> {
    let maps = run.world.config_maps(HUB)?;
    let id = maps.iter().find(|map| map["metadata"]["name"] == INSTALLATION);
    let id = id.and_then(|map| map["data"]["id"].as_str()).unwrap_or_default();
    let id = InstallationId::new(id);
    let entries = [GROUP, OTHER]
        .into_iter()
        .flat_map(|group| [(group, APP), (group, EXTRA)]);
    let owned = entries.map(|(group, entry)| {
        let label = target::owner(&id, NAMESPACE, target::Owner::Entry { group, entry });
        let names = [NAMESPACE, group, entry].map(str::to_owned);
        let [namespace, group, entry] = names;
        (label.as_str().to_owned(), Owner::Entry(namespace, group, entry))
    });
    Ok(owned.collect())
}

/// Returns the times of the controller's clock.
fn clock(run: &Run) -> ControllerClock {
    let mut clock = ControllerClock::default();
    for (at, seconds) in &run.jumps {
        clock.jump(*at, SignedDuration::from_secs(*seconds));
    }
    clock
}

/// Returns how long a write to the management cluster may be unknown to the controller.
fn lag(script: &Script) -> SignedDuration {
    let mut lag = LAG;
    for (_, event) in &script.events {
        match event {
            Event::Fault { cluster, .. }
            | Event::Hold { cluster }
            | Event::Bounce { cluster }
            | Event::SetBack { cluster, .. }
                if cluster != HUB => {}
            Event::Fault { fault, .. } if fault.effect == Effect::FreezeWatch => {
                lag = lag.max(LAG_WITH_FROZEN_WATCH);
            }
            Event::Fault { .. }
            | Event::Hold { .. }
            | Event::Bounce { .. }
            | Event::SetBack { .. }
            | Event::Crash
            | Event::Compact => {
                lag = lag.max(LAG_WITH_FAULTS);
            }
            _ => {}
        }
    }
    lag
}

/// Returns how long before a deletion the state that confirms it may have been read.
fn live(script: &Script) -> SignedDuration {
    let delays = script.events.iter().any(|(_, event)| match event {
        Event::Fault { fault, .. } if fault.effect == Effect::FreezeWatch => false,
        // Requests other than watches are as fast as ever.
        Event::Fault { cluster, fault } => cluster == HUB && fault.requests.verbs != ["watch"],
        Event::Hold { cluster } | Event::Bounce { cluster } => cluster == HUB,
        _ => false,
    });
    if delays { LIVE_WITH_FAULTS } else { LIVE }
}

/// Returns the plans of all groups, also those on a disk that was lost or put back.
fn plans(run: &Run) -> Vec<Plan> {
    let mut known: BTreeMap<String, RecordedPlan> = BTreeMap::new();
    let mut plans = Vec::new();
    for written in run.world.ledger.written() {
        let before = known.get(&written.previous).cloned();
        let read = Body::read(&written.entry.body);
        let Ok(recorded) = read.and_then(|body| RecordedPlan::after(before, body)) else {
            continue;
        };
        let begun = |decisions: &BTreeMap<SyncName, RemovalDecision>| {
            let begun = { decisions.iter() }
                .filter(|(_, decision)| !matches!(decision, RemovalDecision::Hold { .. }));
            begun.map(|(sync, _)| sync.to_string()).collect()
        };
        plans.push(Plan {
            at: written.at,
            namespace: written.entry.namespace.clone(),
            group: written.entry.name.clone(),
            removes: begun(&recorded.plan.removals),
            prunes: begun(&recorded.plan.prunes),
        });
        known.insert(written.entry.hash, recorded);
    }
    plans
}

/// Returns repeated writes of one revision to an object of a member, and writes of an older revision after a newer one.
/// With stages an older one is allowed: a rollout may go back, and the judge checks its target. The judge finds both as
/// well, but needs the CRs; this check reads only the objects.
pub(crate) fn repetitions(run: &Run) -> anyhow::Result<Vec<String>> {
    let mut found = Vec::new();
    // A management cluster that was set back has old targets, and a person may release them.
    let may_go_back = run.world.staged.is_some() || was_hub_set_back(run);
    for name in (0..MEMBERS).map(member) {
        let mut last: BTreeMap<Box<str>, (u64, Timestamp)> = BTreeMap::new();
        let mut owners: BTreeMap<Box<str>, String> = BTreeMap::new();
        for entry in run.world.cluster(&name)?.journal() {
            let key = format!("{} {}", entry.kind, entry.key()).into_boxed_str();
            let is_own = &*entry.manager == "starling" && ["ConfigMap", "Deployment"].contains(&&*entry.kind);
            if !is_own && entry.subresource.is_empty() {
                // Drift is corrected.
                last.remove(&key);
            }
            let object = entry.object.read();
            let owner = object["metadata"]["labels"][OWNER_LABEL].to_string();
            if is_own
                && owners
                    .insert(key.clone(), owner.clone())
                    .is_some_and(|before| before != owner)
            {
                // It was handed over, or let go of and taken back.
                last.remove(&key);
            }
            let revision = object["data"]["revision"]
                .as_str()
                .or_else(|| object["metadata"]["annotations"]["revision"].as_str());
            let Some(revision) = revision.and_then(|text| text.parse().ok()).filter(|_| is_own) else {
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

fn was_hub_set_back(run: &Run) -> bool {
    run.set_backs.iter().any(|(_, name)| name == HUB)
}

/// Returns the objects that were deleted on a cluster that only moved between groups: they are handed over, and keep
/// their UIDs.
pub(crate) fn lost_in_moves(run: &Run, script: &Script) -> anyhow::Result<Vec<String>> {
    let moves = |name: &str| {
        let mut events = script.events.iter().map(|(_, event)| event);
        events.any(|event| matches!(event, Event::Transfer { cluster, .. } if cluster == name))
    };
    let only_moves = |name: &str| {
        !script.events.iter().any(|(_, event)| {
            matches!(event, Event::Label { cluster, .. } | Event::Cluster { cluster, .. }
                | Event::SetBack { cluster, .. } if cluster == name)
        })
    };
    let mut lost = Vec::new();
    for name in (0..MEMBERS).map(member) {
        if !moves(&name) || !only_moves(&name) {
            continue;
        }
        let journal = run.world.cluster(&name)?.journal();
        let deleted = journal.iter().filter(|entry| {
            entry.verb == starling_apiserver::journal::Verb::Delete
                && ["shop", "shop/settings", "shop/web"].contains(&&*entry.key())
        });
        lost.extend(deleted.map(|entry| {
            format!(
                "{name}: {} {} was deleted at {}",
                entry.kind,
                entry.key(),
                entry.time
            )
        }));
    }
    Ok(lost)
}

/// Returns the errors that `starling verify` would find in the journals of rollouts: chains, and every plan by the
/// independent checker. What a restore of the management cluster took away was removed without a decision.
pub(crate) fn journal_errors(run: &Run, script: &Script) -> Vec<String> {
    let journals = run.world.ledger.journals();
    let mut journal_errors = Vec::new();
    let (written, lag) = (run.world.ledger.written(), lag(script));
    let restores = || run.set_backs.iter().filter(|(_, name)| name == HUB);
    // By the real time: a jump of the clock of the controller is a reason for the same time to be shown twice.
    let follows_restore = |of: &str, flaw: &Flaw| {
        let is_removal = matches!(flaw.kind, FlawKind::Gap(Gap::RemovedUndecided { .. }));
        let mut same = written
            .iter()
            .filter(|written| written.entry.name.as_str() == of && written.entry.seq == flaw.seq);
        is_removal
            && same.any(|written| {
                let at = written.at;
                restores().any(|(back, _)| *back <= at && at.duration_since(*back) <= lag)
            })
    };
    for journal in &journals {
        let violations = verify(&journal.chain, &journal.entries, None);
        let of = journal.entries.first().map_or("", |entry| entry.name.as_str());
        let flaws = violations.flaws.iter().filter(|flaw| !follows_restore(of, flaw));
        journal_errors
            .extend(flaws.map(|error| format!("journal of {of}, entry {}: {}", error.seq, error.kind)));
    }
    if journals.iter().all(|journal| journal.entries.is_empty()) {
        journal_errors.push("there is no journal".to_owned());
    }
    journal_errors
}
