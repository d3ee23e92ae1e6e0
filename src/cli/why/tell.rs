//! What is told, and how it is printed.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::Serialize;
use starling_core::explain::{Estimate, Explanation};
use starling_core::journal::past::Said;

use crate::cli::output::{self, Form, Table};

/// An answer, for one group.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Told {
    /// What was asked about.
    pub(super) subject: String,
    /// The group that it is told of; `None`: it is of none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) group: Option<String>,
    /// Of which time it is told.
    pub(super) at: Timestamp,
    /// The rollout.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) rollout: Option<i64>,
    /// The entry of the journal that says so, and when it was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) entry: Option<(i64, Timestamp)>,
    /// Why.
    pub(super) explanation: Explanation,
    /// When it may be done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) estimate: Option<Estimate>,
    /// What ran where.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) clusters: Vec<Place>,
    /// What people had said.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) words: Vec<Said>,
}

/// What ran on a cluster.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Place {
    pub(super) cluster: String,
    pub(super) stage: String,
    pub(super) decision: String,
    pub(super) entries: BTreeMap<String, Held>,
}

/// How an entry stood on a cluster.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Held {
    /// What had been admitted there; empty: nothing.
    pub(super) revision: String,
    /// How far it was.
    pub(super) state: String,
}

pub(super) fn print(told: &[Told], form: Form) -> anyhow::Result<()> {
    match form {
        Form::Json => output::print_value(&told, false)?,
        Form::Text => {
            let texts: Vec<String> = told.iter().map(in_words).collect();
            output::print(&texts.join("\n"));
        }
    }
    Ok(())
}

fn in_words(told: &Told) -> String {
    let mut text = headline(told);
    let links = told.explanation.chain.iter().enumerate();
    for (place, link) in links {
        let then = if place == 0 { "" } else { "then " };
        let said = link.text.strip_prefix("then ").unwrap_or(&link.text);
        text.push_str(&format!("  {}. {then}{said} [{}]\n", place + 1, link.reason));
        text.push_str(&format!("     until {}\n", link.ends_with));
    }
    if told.explanation.chain.is_empty() && !told.explanation.next.is_empty() {
        text.push_str(&format!("next: {}\n", told.explanation.next));
    }
    if let Some(at) = told.explanation.next_at {
        text.push_str(&format!("the next event is at {at}\n"));
    }
    if let Some(estimate) = &told.estimate {
        text.push_str(&estimated(estimate, told.at));
    }
    if !told.clusters.is_empty() {
        text.push_str(&places(&told.clusters).text());
    }
    for said in &told.words {
        let word = &said.word;
        let why = if word.reason.is_empty() {
            String::new()
        } else {
            format!(": {}", word.reason)
        };
        text.push_str(&format!("{}  {} by {}{why}\n", word.at, said.what, word.by));
    }
    text
}

fn headline(told: &Told) -> String {
    let of = match (&told.group, told.rollout) {
        (Some(group), Some(rollout)) => format!(", rollout {rollout} of {group}"),
        (Some(group), None) => format!(", of {group}"),
        (None, _) => String::new(),
    };
    let when = match told.entry {
        Some((entry, written)) => format!(" at {} (entry {entry} of the journal, of {written})", told.at),
        None => String::new(),
    };
    format!("{}{of}{when}: {}\n", told.subject, told.explanation.state)
}

fn estimated(estimate: &Estimate, now: Timestamp) -> String {
    match estimate {
        Estimate::At { done_at, .. } if *done_at <= now => String::new(),
        Estimate::At {
            starts_at,
            done_at,
            recorded,
        } => {
            let starts = starts_at.map_or_else(String::new, |at| format!("is started about {at}, and "));
            format!(
                "if nothing else happens it {starts}is done about {done_at} (by {recorded} recorded durations)\n"
            )
        }
        Estimate::Unknown { why } => format!("there is no estimate: {why}\n"),
    }
}

fn places(clusters: &[Place]) -> Table {
    let mut table = Table::new(&["CLUSTER", "STAGE", "ENTRY", "REVISION", "STATE", "DECISION"]);
    for place in clusters {
        for (entry, held) in &place.entries {
            let row = [
                &place.cluster,
                &place.stage,
                entry,
                &held.revision,
                &held.state,
                &place.decision,
            ];
            table.push(row.map(Clone::clone).to_vec());
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use starling_core::explain::Link;
    use starling_core::plan::Word;

    use super::*;

    fn time(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn an_answer_is_a_sentence_a_chain_and_what_comes_next() {
        let link = |reason: &str, text: &str, ends_with: &str| Link {
            reason: reason.into(),
            text: text.into(),
            until: None,
            ends_with: ends_with.into(),
        };
        let mut told = Told {
            subject: "cluster/b".into(),
            group: Some("shop/web".into()),
            at: time("2026-11-20T10:00:00Z"),
            rollout: Some(3),
            entry: None,
            explanation: Explanation {
                state: "waits to be started".into(),
                chain: vec![
                    link("WindowClosed", "the window is closed", "the window opens"),
                    link("NoSlot", "then a slot: 1 of 1 are taken now", "one is free"),
                ],
                next: "the window opens".into(),
                next_at: Some(time("2026-11-20T15:00:00Z")),
            },
            estimate: Some(Estimate::At {
                starts_at: Some(time("2026-11-20T15:00:00Z")),
                done_at: time("2026-11-20T15:01:00Z"),
                recorded: 3,
            }),
            clusters: Vec::new(),
            words: Vec::new(),
        };
        assert_eq!(
            in_words(&told),
            "cluster/b, rollout 3 of shop/web: waits to be started\n  \
             1. the window is closed [WindowClosed]\n     \
             until the window opens\n  \
             2. then a slot: 1 of 1 are taken now [NoSlot]\n     \
             until one is free\n\
             the next event is at 2026-11-20T15:00:00Z\n\
             if nothing else happens it is started about 2026-11-20T15:00:00Z, and is done about 2026-11-20T15:01:00Z (by 3 recorded durations)\n"
        );
        told.entry = Some((7, time("2026-11-20T09:59:00Z")));
        (
            told.explanation.chain,
            told.explanation.next,
            told.explanation.next_at,
        ) = (Vec::new(), "its soak ends".into(), None);
        told.estimate = None;
        told.clusters.push(Place {
            cluster: "b".into(),
            stage: "*".into(),
            decision: "done".into(),
            entries: [(
                "app".to_owned(),
                Held {
                    revision: "v1".into(),
                    state: "held".into(),
                },
            )]
            .into(),
        });
        told.words.push(Said {
            what: "approve stage canary".into(),
            word: Word {
                by: "jane".into(),
                reason: String::new(),
                at: time("2026-11-20T09:00:00Z"),
            },
            until: None,
        });
        assert_eq!(
            in_words(&told),
            "cluster/b, rollout 3 of shop/web at 2026-11-20T10:00:00Z (entry 7 of the journal, of 2026-11-20T09:59:00Z): waits to be started\n\
             next: its soak ends\n\
             CLUSTER   STAGE   ENTRY   REVISION   STATE   DECISION\n\
             b         *       app     v1         held    done\n\
             2026-11-20T09:00:00Z  approve stage canary by jane\n"
        );
    }
}
