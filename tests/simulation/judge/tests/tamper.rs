//! Ways to tamper with a history, each of which the judge has to reject.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use jiff::SignedDuration;
use serde_json::json;

use super::broken;
use super::fleet::MEMBERS;
use crate::judge::{History, Rule, Verb, Write};

/// Returns Starling's writes to the objects of one member without deletions, by their index in its journal.
fn applies(history: &History, member: &str) -> Vec<usize> {
    let writes = history.members[member].iter().enumerate();
    writes
        .filter(|(_, write)| write.manager == "starling" && write.verb == Verb::Write)
        .filter(|(_, write)| write.namespace == "shop" || write.name == "shop")
        .map(|(place, _)| place)
        .collect()
}

/// Returns the indices of the matching writes to the management cluster.
fn indices_of(history: &History, fits: impl Fn(&Write) -> bool) -> Vec<usize> {
    let writes = history.hub.iter().enumerate();
    writes
        .filter(|(_, write)| fits(write))
        .map(|(place, _)| place)
        .collect()
}

fn is_admission(write: &Write) -> bool {
    write.kind == "Sync" && write.manager == "starling-group"
}

fn is_status_of(write: &Write, kind: &str) -> bool {
    write.kind == kind && write.manager == "starling"
}

fn without(history: &History, change: impl FnOnce(&mut History)) -> History {
    let mut changed = history.clone();
    change(&mut changed);
    changed
}

/// A way to tamper with a history, and the rule that has to reject it.
type Tampering = (&'static str, Rule, fn(&mut History));

const TAMPERINGS: [Tampering; 15] = [
    ("the members' journals are swapped", Rule::Claim, |history| {
        let (one, two) = (history.members["m1"].clone(), history.members["m2"].clone());
        history.members.insert("m1".into(), two);
        history.members.insert("m2".into(), one);
    }),
    ("a member's writes come an hour late", Rule::Claim, |history| {
        for write in history.members.get_mut("m3").unwrap() {
            write.at = write.at.checked_add(SignedDuration::from_hours(1)).unwrap();
        }
    }),
    (
        "a member's writes come an hour early",
        Rule::NotAdmitted,
        |history| {
            for write in history.members.get_mut("m3").unwrap() {
                write.at = write.at.checked_sub(SignedDuration::from_hours(1)).unwrap();
            }
        },
    ),
    (
        "the first write to an object is repeated in the end",
        Rule::Backwards,
        |history| {
            let place = applies(history, "m1");
            let writes = history.members.get_mut("m1").unwrap();
            let first = place
                .iter()
                .find(|place| writes[**place].name == "settings")
                .copied()
                .unwrap();
            let again = Write {
                at: history.ended,
                ..writes[first].clone()
            };
            writes.push(again);
        },
    ),
    (
        "the last write to an object is repeated in the end",
        Rule::Idle,
        |history| {
            let last = *applies(history, "m1").last().unwrap();
            let writes = history.members.get_mut("m1").unwrap();
            let again = Write {
                at: history.ended,
                ..writes[last].clone()
            };
            writes.push(again);
        },
    ),
    ("an object has another value", Rule::NotAdmitted, |history| {
        let indices_of = applies(history, "m2");
        let writes = history.members.get_mut("m2").unwrap();
        let place = indices_of
            .iter()
            .rfind(|place| writes[**place].name == "settings")
            .copied()
            .unwrap();
        writes[place].object["data"]["cluster"] = "m1".into();
    }),
    ("an object has lost its label", Rule::NotAdmitted, |history| {
        let place = applies(history, "m2")[1];
        let write = &mut history.members.get_mut("m2").unwrap()[place];
        write.object["metadata"]["labels"] = json!({});
    }),
    ("the inventory lists other UIDs", Rule::Deletion, |history| {
        for write in history.members.get_mut("m4").unwrap() {
            if let Some(text) = write.object["data"]["inventory"].as_str() {
                let other = text.lines().map(|line| {
                    let mut fields: Vec<String> = line.split('\t').map(str::to_owned).collect();
                    if let Some(uid) = fields.get_mut(4) {
                        uid.push_str("-other");
                    }
                    fields.join("\t") + "\n"
                });
                write.object["data"]["inventory"] = other.collect::<String>().into();
            }
        }
    }),
    ("a member has no inventory", Rule::NotListed, |history| {
        let writes = history.members.get_mut("m2").unwrap();
        writes.retain(|write| !write.name.starts_with("starling-inventory-"));
    }),
    ("a Deployment is never available", Rule::Health, |history| {
        for write in history.members.get_mut("m1").unwrap() {
            if write.kind == "Deployment" {
                write.object["status"]["readyReplicas"] = 0.into();
            }
        }
    }),
    (
        "the second commit was never pushed",
        Rule::NotAdmitted,
        |history| {
            for pushes in history.git.values_mut() {
                pushes.truncate(1);
            }
        },
    ),
    (
        "another commit was pushed after all",
        Rule::Unfinished,
        |history| {
            for pushes in history.git.values_mut() {
                let mut last = pushes.last().unwrap().clone();
                last.commit = "f".repeat(40);
                pushes.push(last);
            }
        },
    ),
    (
        "all are admitted when the first one is",
        Rule::Concurrency,
        |history| {
            let admissions = indices_of(history, is_admission);
            let second = admissions[admissions.len() / 2..].to_vec();
            for (offset, place) in second.iter().enumerate() {
                let mut write = history.hub.remove(*place);
                write.at = history.hub[second[0]].at.min(write.at);
                history.hub.insert(second[0] + offset, write);
            }
        },
    ),
    (
        "the group succeeds when the first Sync is done",
        Rule::GroupClaim,
        |history| {
            let groups = indices_of(history, |write| is_status_of(write, "SyncGroup"));
            let last = history.hub.remove(*groups.last().unwrap());
            let second_half = *indices_of(history, is_admission).last().unwrap() - 1;
            let at = history.hub[second_half].at;
            history.hub.insert(second_half, Write { at, ..last });
        },
    ),
    (
        "the Source shows the second commit after it was admitted",
        Rule::NotAdmitted,
        |history| {
            let sources = indices_of(history, |write| is_status_of(write, "Source"));
            let write = history.hub.remove(*sources.last().unwrap());
            history.hub.push(Write {
                at: history.ended,
                ..write
            });
        },
    ),
];

/// Checks that each tampering is rejected by its rule; other rules may reject it as well.
pub(super) fn all_are_rejected(history: &History) -> Result<()> {
    for (name, rule, tamper) in TAMPERINGS {
        let (rules, message) = broken(&without(history, tamper));
        ensure!(
            rules.contains(&rule),
            "{name}: {rule:?} expected, found\n{message}"
        );
    }
    Ok(())
}

/// Checks that each apply, each admission, and the last status of each Sync is needed for the rest of the history.
pub(super) fn every_write_is_needed(history: &History) -> Result<()> {
    let mut count = 0;
    for member in MEMBERS {
        let applies = applies(history, member);
        ensure!(
            applies.len() == 8,
            "five objects, and three of the second commit: {applies:?}"
        );
        for place in applies {
            // The status that its controller writes contains the whole Deployment.
            if history.members[member][place].kind == "Deployment" {
                continue;
            }
            let copy = without(history, |history| {
                drop(history.members.get_mut(member).map(|w| w.remove(place)));
            });
            let what = history.members[member][place].key();
            ensure!(
                broken(&copy).0.contains(&Rule::Claim),
                "{what} of {member} is not needed"
            );
            count += 1;
        }
    }
    for place in indices_of(history, is_admission) {
        let copy = without(history, |history| drop(history.hub.remove(place)));
        ensure!(
            broken(&copy).0.contains(&Rule::NotAdmitted),
            "an admission is not needed: {place}"
        );
        count += 1;
    }
    let mut last_statuses: BTreeMap<&str, usize> = BTreeMap::new();
    for place in indices_of(history, |write| is_status_of(write, "Sync")) {
        last_statuses.insert(&history.hub[place].name, place);
    }
    ensure!(last_statuses.len() == MEMBERS.len(), "{last_statuses:?}");
    for (name, place) in last_statuses {
        let last = &history.hub[place];
        // Later versions answer requests of the test, and contain the same result.
        let copy = without(history, |history| {
            history.hub.retain(|write| {
                !(write.kind == "Sync"
                    && write.name == last.name
                    && write.resource_version > 0
                    && has_same_result(write, last))
            });
        });
        ensure!(
            !broken(&copy).0.is_empty(),
            "the last status of {name} is not needed"
        );
        count += 1;
    }
    ensure!(count == 4 * 6 + 8 + 4, "{count}");
    Ok(())
}

/// Whether a version of a Sync has the same result for its target as the last version.
fn has_same_result(write: &Write, last: &Write) -> bool {
    write.object["status"]["lastHealthyTarget"] == last.object["status"]["lastHealthyTarget"]
}
