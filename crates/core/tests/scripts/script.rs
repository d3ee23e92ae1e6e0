//! The format of a script.
//!
//! A script is a YAML head (`about`, `strategy`, `fleet`, `takes`, and others), whose field `script` has one line per
//! event: the time since the start, and the event.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use starling_api::RolloutStrategy;
use starling_core::ids::ClusterName;
use starling_core::plan::{Attribution, GateResult, ReadStrategy, Retry};
use starling_core::simulate::{Fate, SimulatedMember, World};

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Head {
    /// What the script shows.
    #[allow(dead_code, reason = "for the reader")]
    about: String,
    #[serde(default)]
    strategy: Option<RolloutStrategy>,
    /// Cluster names, separated by spaces, and their labels; `a1..a9` are nine clusters.
    fleet: BTreeMap<String, BTreeMap<String, String>>,
    /// The time from admission to healthy.
    takes: starling_api::Duration,
    #[serde(default)]
    start: Option<String>,
    /// How long the script is played; by default until nothing happens by itself.
    #[serde(default)]
    ends: Option<starling_api::Duration>,
    script: String,
}

/// A script.
pub(crate) struct Script {
    pub(crate) name: String,
    pub(crate) start: Timestamp,
    ends: Option<SignedDuration>,
    strategy: RolloutStrategy,
    takes: std::time::Duration,
    members: Vec<(String, BTreeMap<String, String>)>,
    /// The events, in the order of time.
    pub(crate) events: Vec<(Timestamp, Event)>,
}

/// An event.
pub(crate) struct Event(String);

impl Script {
    pub(crate) fn read(name: &str, head: &str) -> Self {
        let head: Head = serde_saphyr::from_str(head).unwrap_or_else(|error| panic!("{name}: {error}"));
        let start = head.start.as_deref().unwrap_or("2026-11-16T08:00:00Z");
        let start: Timestamp = start.parse().unwrap();
        let mut events = Vec::new();
        for line in head.script.lines().filter(|line| !line.trim().is_empty()) {
            let (at, event) = line
                .trim()
                .split_once(' ')
                .unwrap_or_else(|| panic!("{name}: {line}"));
            let at: starling_api::Duration = at.parse().unwrap_or_else(|_| panic!("{name}: {line}"));
            let at = start.checked_add(at.as_std()).unwrap();
            assert!(
                events.last().is_none_or(|(last, _)| *last <= at),
                "{name}: {line} is too late"
            );
            events.push((at, Event(event.trim().to_owned())));
        }
        Self {
            name: name.to_owned(),
            start,
            ends: head
                .ends
                .map(|ends| SignedDuration::try_from(ends.as_std()).unwrap()),
            strategy: head.strategy.unwrap_or_default(),
            takes: head.takes.as_std(),
            members: head
                .fleet
                .iter()
                .flat_map(|(names, labels)| expand(names).into_iter().map(|name| (name, labels.clone())))
                .collect(),
            events,
        }
    }

    /// Returns the world before the first event, without a release.
    pub(crate) fn world(&self) -> World {
        let members = self
            .members
            .iter()
            .map(|(name, labels)| (name.clone(), member(name, labels, self.takes)));
        let strategy =
            ReadStrategy::new(&self.strategy).unwrap_or_else(|error| panic!("{}: {error}", self.name));
        let mut world = World::new(self.start, strategy, members.collect(), "");
        world.on_new_revision = self.strategy.on_new_revision;
        world.rollback = self.strategy.rollback.type_;
        world
    }

    /// Returns when the script ends.
    pub(crate) fn end(&self) -> Timestamp {
        let ends = self.ends.unwrap_or(SignedDuration::from_hours(24 * 30));
        self.start.checked_add(ends).unwrap()
    }
}

fn member(name: &str, labels: &BTreeMap<String, String>, takes: std::time::Duration) -> SimulatedMember {
    SimulatedMember::new(&format!("uid-of-{name}"), labels.clone(), takes)
}

/// Expands names: `a b1..b3` is a, b1, b2, b3.
fn expand(names: &str) -> Vec<String> {
    let mut expanded = Vec::new();
    for name in names.split_whitespace() {
        let Some((first, last)) = name.split_once("..") else {
            expanded.push(name.to_owned());
            continue;
        };
        let digits = first.find(|c: char| c.is_ascii_digit()).unwrap();
        let (stem, from) = first.split_at(digits);
        let to: u32 = last.trim_start_matches(stem).parse().unwrap();
        expanded.extend((from.parse::<u32>().unwrap()..=to).map(|n| format!("{stem}{n}")));
    }
    expanded
}

impl Event {
    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    /// Applies the event to the world.
    pub(crate) fn happen(&self, world: &mut World) {
        let words: Vec<&str> = self.0.split_whitespace().collect();
        let now = world.now;
        let attribution = |by: &str| Attribution {
            by: by.to_owned(),
            reason: "as planned".to_owned(),
            at: now,
        };
        match words.as_slice() {
            ["offer", release] => world.offered = (*release).to_owned(),
            ["fate", release, fate, names @ ..] => {
                let fate = match *fate {
                    "fails" => Fate::Fails,
                    "hangs" => Fate::Hangs,
                    "cuts-off" => Fate::CutsOff,
                    "healthy" => Fate::Healthy,
                    other => panic!("no such fate: {other}"),
                };
                each(world, names, |member| {
                    member.fates.insert((*release).to_owned(), fate);
                });
            }
            ["fails", names @ ..] => each(world, names, |member| member.fail("ApplyFailed", "refused")),
            ["heals", names @ ..] => each(world, names, |member| member.heal(now)),
            ["breaks", names @ ..] => each(world, names, |member| member.break_down(now)),
            ["lost", names @ ..] => each(world, names, |member| member.lose(now)),
            ["back", names @ ..] => each(world, names, SimulatedMember::find_again),
            ["leaves", names @ ..] => {
                for name in expand(&names.join(" ")) {
                    world.members.remove(&name).unwrap();
                }
            }
            ["joins", name, labels @ ..] => {
                let takes = world
                    .members
                    .values()
                    .next()
                    .map_or(std::time::Duration::ZERO, |member| member.takes);
                world
                    .members
                    .insert((*name).to_owned(), member(name, &pairs(labels), takes));
            }
            ["relabelled", name, labels @ ..] => {
                world.members.get_mut(*name).unwrap().labels = pairs(labels);
            }
            ["approve", stage, "by", who] => world.approve(stage, attribution(who)),
            ["found", stage, "passed"] => world.set_gate_result(stage, GateResult::Passed),
            ["found", stage, "failed", ..] => world.set_gate_result(
                stage,
                GateResult::Failed {
                    message: words[3..].join(" "),
                },
            ),
            ["pause", "by", who] => world.operator.paused = Some(attribution(who)),
            ["resume"] => world.operator.paused = None,
            ["abort", "by", who] => world.operator.aborted = Some(attribution(who)),
            ["skip", "stage", stage, "by", who] => {
                world
                    .operator
                    .skipped_stages
                    .insert((*stage).to_owned(), attribution(who));
            }
            ["skip", cluster, "by", who] => {
                world.operator.skipped.insert((*cluster).into(), attribution(who));
            }
            ["promote", stage, "by", who] => {
                world
                    .operator
                    .promoted
                    .insert((*stage).to_owned(), attribution(who));
            }
            ["rollback"] => world.request_rollback(None),
            ["rollback", "to", release] => world.request_rollback(Some(release)),
            ["release", "what", "is", "held"] => world.request_release(),
            ["retry", "by", who] => retry(world, None, None, attribution(who)),
            ["retry", "stage", stage, "by", who] => retry(world, None, Some(stage), attribution(who)),
            ["retry", cluster, "by", who] => retry(world, Some(cluster), None, attribution(who)),
            ["suspend"] => world.suspended = true,
            ["unsuspend"] => world.suspended = false,
            ["members", "held"] => world.membership_held = true,
            ["members", "free"] => world.membership_held = false,
            ["strategy", ..] => {
                let strategy = self.0.trim_start_matches("strategy ");
                let strategy: RolloutStrategy = serde_saphyr::from_str(strategy).unwrap();
                world.strategy = ReadStrategy::new(&strategy).unwrap();
            }
            _ => panic!("no such event: {}", self.0),
        }
    }
}

fn retry(world: &mut World, cluster: Option<&str>, stage: Option<&str>, attribution: Attribution) {
    world.operator.retries.push(Retry {
        cluster: cluster.map(ClusterName::from),
        stage: stage.map(str::to_owned),
        attribution,
    });
}

fn each(world: &mut World, names: &[&str], change: impl Fn(&mut SimulatedMember)) {
    for name in expand(&names.join(" ")) {
        change(
            world
                .members
                .get_mut(&name)
                .unwrap_or_else(|| panic!("no cluster {name}")),
        );
    }
}

fn pairs(labels: &[&str]) -> BTreeMap<String, String> {
    let pair = |label: &&str| {
        let (key, value) = label.split_once('=').unwrap();
        (key.to_owned(), value.to_owned())
    };
    labels.iter().map(pair).collect()
}
