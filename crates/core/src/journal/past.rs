//! What a journal tells of the past: how things stood at a time, and what became of each rollout.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;

use super::{Body, Entry, Look};
use crate::explain::Durations;
use crate::plan::{Decision, Direction, Steering, Stop, Verdict, Word};

/// How things stood at a time: the entry that says so, and what it says. `None`: nothing was written before that time, or it
/// cannot be read.
#[must_use]
pub fn at(entries: &[Entry], at: Timestamp) -> Option<(&Entry, Look)> {
    let mut found = None;
    walk(
        entries.iter().take_while(|entry| entry.at <= at),
        |entry, look| {
            found = Some((entry, look.clone()));
        },
    );
    found
}

/// How long each cluster took, the last time that this was seen.
#[must_use]
pub fn durations(entries: &[Entry]) -> Durations {
    let mut durations = Durations::default();
    walk(entries.iter(), |_, look| durations.learn(&look.input.clusters));
    durations
}

/// A rollout of the past.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Past {
    /// `status.rollout.id`.
    pub rollout: i64,
    /// Digest of its release.
    pub release: String,
    /// Which way it went.
    pub direction: Direction,
    /// When it began.
    pub started_at: Timestamp,
    /// When the first entry about it was written that is there.
    pub recorded_from: Timestamp,
    /// When the newest was.
    pub recorded_until: Timestamp,
    /// Since when it is as it is; `None`: it rolled to the last.
    pub ended_at: Option<Timestamp>,
    /// How it stood last.
    pub outcome: String,
    /// Clusters that hold its release, by the newest entry.
    pub done: usize,
    /// Clusters that were selected.
    pub total: usize,
    /// Clusters that failed at some time, with the first reason of each.
    pub failed: BTreeMap<String, String>,
    /// What people said to it, in the order of time.
    pub words: Vec<Said>,
}

/// What somebody said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Said {
    /// What: `approve stage canary`, `pause`.
    pub what: String,
    /// Who, why and when.
    #[serde(flatten)]
    pub word: Word,
    /// When it was taken back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Timestamp>,
}

/// The rollouts that a journal tells of, the newest first.
#[must_use]
pub fn rollouts(entries: &[Entry]) -> Vec<Past> {
    let mut found: BTreeMap<i64, Past> = BTreeMap::new();
    walk(entries.iter(), |entry, look| {
        let past = found
            .entry(entry.rollout)
            .or_insert_with(|| Past::begun(entry, look));
        past.take(entry.at, look);
    });
    found.into_values().rev().collect()
}

/// Tells of each entry that can be read.
fn walk<'e>(entries: impl Iterator<Item = &'e Entry>, mut tell: impl FnMut(&'e Entry, &Look)) {
    let mut before: Option<(&Entry, Look)> = None;
    for entry in entries {
        let known = before
            .take()
            .filter(|(known, _)| known.rollout == entry.rollout && known.seq + 1 == entry.seq)
            .map(|(_, look)| look);
        let look = Body::read(&entry.body).and_then(|body| Look::after(known, body));
        if let Ok(look) = &look {
            tell(entry, look);
        }
        before = look.ok().map(|look| (entry, look));
    }
}

impl Past {
    fn begun(entry: &Entry, look: &Look) -> Self {
        let rollout = &look.input.rollout;
        Self {
            rollout: entry.rollout,
            release: rollout.release.clone(),
            direction: rollout.direction,
            started_at: rollout.started_at,
            recorded_from: entry.at,
            recorded_until: entry.at,
            ended_at: None,
            outcome: String::new(),
            done: 0,
            total: 0,
            failed: BTreeMap::new(),
            words: Vec::new(),
        }
    }

    fn take(&mut self, at: Timestamp, look: &Look) {
        let decisions = &look.plan.decisions;
        self.recorded_until = at;
        let outcome = outcome(&look.plan.verdict);
        if self.outcome != outcome {
            self.ended_at = (look.plan.verdict != Verdict::Rolls).then_some(at);
            self.outcome = outcome;
        }
        self.total = decisions.len();
        let done = decisions.values().filter(|decision| **decision == Decision::Done);
        self.done = done.count();
        for (cluster, decision) in decisions {
            if let Decision::Failed { reason, .. } = decision
                && !self.failed.contains_key(cluster)
            {
                let text = format!("{}: {reason}", reason.as_str());
                self.failed.insert(cluster.clone(), text);
            }
        }
        let said = said(look);
        for known in self.words.iter_mut().filter(|known| known.until.is_none()) {
            let still = said
                .iter()
                .any(|(what, word)| *what == known.what && **word == known.word);
            if !still {
                known.until = Some(at);
            }
        }
        for (what, word) in said {
            let known = |known: &Said| known.until.is_none() && known.what == what && known.word == *word;
            if !self.words.iter().any(known) {
                self.words.push(Said {
                    what,
                    word: word.clone(),
                    until: None,
                });
            }
        }
    }
}

/// How a rollout stands, in words.
#[must_use]
pub fn outcome(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Rolls => "rolls".to_owned(),
        Verdict::Through => "succeeded".to_owned(),
        Verdict::Stopped(Stop::Aborted(word)) => format!("given up by {}", word.by),
        Verdict::Stopped(stop) => format!("stopped: {}", why(stop)),
        Verdict::RollBack(stop) => format!("goes back: {}", why(stop)),
    }
}

fn why(stop: &Stop) -> String {
    match stop {
        Stop::TooManyFailures { failed, allowed, .. } => {
            format!("{failed} clusters failed, {allowed} may")
        }
        Stop::GateFailed { message, .. } => format!("a task of a stage failed: {message}"),
        Stop::Aborted(word) => format!("given up by {}", word.by),
    }
}

/// What people say to a rollout now: what each word asks for.
#[must_use]
pub fn said(look: &Look) -> Vec<(String, &Word)> {
    let Steering {
        paused,
        aborted,
        skipped,
        skipped_stages,
        promoted,
    } = &look.input.steering;
    let mut said: Vec<(String, &Word)> = Vec::new();
    said.extend(paused.iter().map(|word| ("pause".to_owned(), word)));
    said.extend(aborted.iter().map(|word| ("abort".to_owned(), word)));
    let named = [
        ("skip cluster", skipped),
        ("skip stage", skipped_stages),
        ("promote stage", promoted),
        ("approve stage", &look.input.rollout.approvals),
    ];
    for (what, words) in named {
        said.extend(words.iter().map(|(name, word)| (format!("{what} {name}"), word)));
    }
    said.sort_by_key(|(_, word)| word.at);
    said
}
