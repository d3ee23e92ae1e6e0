//! How a rollout would go: one release through a whole fleet, in simulated time, with people and gates that answer as assumed.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;

use super::World;
use crate::plan::{Direction, Finding, Gate, Plan, StagePhase, StageRecord, StageWait, Stop, Verdict, Word};

/// What is assumed of whatever the engine waits for.
#[derive(Clone, Copy, Debug)]
pub struct Assumptions {
    /// A person approves so long after being asked; `None`: never.
    pub approvals_take: Option<Duration>,
    /// A webhook, a metric or a Job passes so long after it began.
    pub gates_take: Duration,
    /// What has not ended by then is given up.
    pub limit: Duration,
}

/// How it would go.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Forecast {
    /// When it starts.
    pub started: Timestamp,
    /// When nothing moves any more.
    pub ended: Timestamp,
    /// How it ends.
    pub end: End,
    /// The stages, in their order.
    pub stages: Vec<StageForecast>,
    /// Clusters in all.
    pub clusters: usize,
    /// Clusters that hold the release at the end.
    pub updated: usize,
    /// Clusters that failed with it.
    pub failed: usize,
    /// The most clusters at work at once.
    pub peak_concurrency: usize,
    /// The most reachable clusters that were not healthy at once.
    pub worst_unhealthy: usize,
}

/// How a rollout ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", content = "message")]
pub enum End {
    /// Every stage is passed.
    Succeeded,
    /// Nothing more starts, until a person does something.
    Stopped(String),
    /// It went back to what was before.
    RolledBack(String),
    /// It waits for something that is not assumed to happen.
    Waits(String),
    /// It was not done by the limit.
    TooLong,
}

/// How a stage goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StageForecast {
    /// Its name.
    pub name: String,
    /// Clusters in it.
    pub clusters: usize,
    /// Since when its clusters may start.
    pub opens: Option<Timestamp>,
    /// When the next stage is let go.
    pub passes: Option<Timestamp>,
}

/// What was seen of the release that was offered first.
#[derive(Default)]
struct Seen {
    records: BTreeMap<String, StageRecord>,
    stages: Vec<(String, usize)>,
    updated: usize,
    failed: usize,
}

impl World {
    /// Runs what is offered now through the fleet and tells how it went.
    #[must_use]
    pub fn forecast(mut self, assumptions: Assumptions) -> Forecast {
        let (started, offered) = (self.now, self.offered.clone());
        let limit = started.checked_add(assumptions.limit).unwrap_or(Timestamp::MAX);
        let mut seen = Seen::default();
        let end = loop {
            self.settle();
            let Some(plan) = self.plan() else {
                break End::Waits("there is no release".to_owned());
            };
            let forward = self.rolls_forward(&offered);
            if forward {
                seen.take(&self, &plan);
            }
            let answered = self.answer(&plan, assumptions);
            if answered == Some(self.now) {
                continue;
            }
            match (&plan.verdict, forward) {
                (Verdict::Through, true) => break End::Succeeded,
                (Verdict::Through, false) => {
                    let Some(stopped) = self.stopped.take() else {
                        break End::RolledBack(String::new());
                    };
                    (seen.updated, seen.failed) = (stopped.done, stopped.failed);
                    break End::RolledBack(self.told(&stopped.why));
                }
                (Verdict::Stopped(stop) | Verdict::RollBack(stop), _) => {
                    break End::Stopped(self.told(stop));
                }
                (Verdict::Rolls, _) => {}
            }
            let Some(next) = self.next_time().into_iter().chain(answered).min() else {
                break End::Waits(self.waits(&plan));
            };
            if next > limit {
                self.now = limit;
                break End::TooLong;
            }
            self.now = next;
        };
        Forecast {
            started,
            ended: self.now,
            end,
            stages: seen.stages(),
            clusters: self.members.len(),
            updated: seen.updated,
            failed: seen.failed,
            peak_concurrency: self.summary().peak_concurrency,
            worst_unhealthy: self.summary().worst_unhealthy,
        }
    }

    fn rolls_forward(&self, offered: &str) -> bool {
        let rollout = self.rollout.as_ref();
        rollout.is_some_and(|rollout| rollout.release == offered && rollout.direction == Direction::Forward)
    }

    /// Answers gates whose time has come. Returns when the next answer is due: now, if one was given.
    fn answer(&mut self, plan: &Plan, assumptions: Assumptions) -> Option<Timestamp> {
        let mut next = None;
        for stage in &plan.stages {
            let StagePhase::Waiting(StageWait::Gate { gate, .. }) = &stage.phase else {
                continue;
            };
            let takes = match gate {
                Gate::Approval => assumptions.approvals_take,
                Gate::Effect(_) => Some(assumptions.gates_take),
                Gate::TimedWait(_) => None,
            };
            let record = &stage.record;
            let records = if record.opened_at.is_none() {
                &record.before
            } else {
                &record.after
            };
            let due = records
                .last()
                .zip(takes)
                .and_then(|(last, takes)| last.begun_at.checked_add(takes).ok());
            let Some(due) = due else { continue };
            if due > self.now {
                next = Some(next.map_or(due, |next: Timestamp| next.min(due)));
                continue;
            }
            match gate {
                Gate::Approval => {
                    let word = Word {
                        by: "anybody".to_owned(),
                        reason: "assumed".to_owned(),
                        at: self.now,
                    };
                    self.approve(&stage.name, word);
                }
                Gate::Effect(_) | Gate::TimedWait(_) => self.find(&stage.name, Finding::Passed),
            }
            return Some(self.now);
        }
        next
    }

    fn told(&self, stop: &Stop) -> String {
        let named = |stage: usize| {
            let rules = self.strategy.strategy.stages.get(stage);
            rules.map_or_else(String::new, |rules| format!("stage {}: ", rules.name))
        };
        match stop {
            Stop::TooManyFailures {
                stage,
                failed,
                allowed,
            } => {
                format!(
                    "{}{failed} failed, {allowed} may",
                    stage.map(named).unwrap_or_default()
                )
            }
            Stop::GateFailed { stage, message } => format!("{}{message}", named(*stage)),
            Stop::Aborted(word) => format!("given up by {}: {}", word.by, word.reason),
        }
    }

    fn waits(&self, plan: &Plan) -> String {
        let said = self
            .input()
            .map(|input| plan.report(&input).blocked_by)
            .unwrap_or_default();
        let texts: Vec<String> = said
            .into_iter()
            .map(|(reason, message, _)| format!("{reason}: {message}"))
            .collect();
        if texts.is_empty() {
            "nothing happens by itself any more".to_owned()
        } else {
            texts.join("; ")
        }
    }
}

impl Seen {
    fn take(&mut self, world: &World, plan: &Plan) {
        if let Some(rollout) = &world.rollout {
            self.records.clone_from(&rollout.stages);
        }
        self.stages = plan
            .stages
            .iter()
            .map(|stage| (stage.name.clone(), stage.tally.total))
            .collect();
        (self.updated, self.failed) = (plan.tally.done, plan.tally.failed);
    }

    fn stages(&self) -> Vec<StageForecast> {
        let of = |name: &String| self.records.get(name).cloned().unwrap_or_default();
        self.stages
            .iter()
            .filter(|(_, clusters)| *clusters > 0)
            .map(|(name, clusters)| StageForecast {
                name: name.clone(),
                clusters: *clusters,
                opens: of(name).opened_at,
                passes: of(name).passed_at,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use starling_api::RolloutStrategy;

    use super::*;
    use crate::plan::{Reach, ReadStrategy};
    use crate::simulate::{Fate, Member};

    const MINUTE: Duration = Duration::from_secs(60);

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    /// Two in the stage canary, eight others; each takes a minute.
    fn world(strategy: &serde_json::Value) -> World {
        let strategy: RolloutStrategy = serde_json::from_value(strategy.clone()).unwrap();
        let members = (0..10).map(|n| {
            let labels = if n < 2 {
                [("tier".to_owned(), "canary".to_owned())].into()
            } else {
                BTreeMap::new()
            };
            (format!("c{n}"), Member::new(&format!("u{n}"), labels, MINUTE))
        });
        let mut world = World::new(
            at("2026-11-21T12:00:00Z"),
            ReadStrategy::new(&strategy).unwrap(),
            members.collect(),
            "v2",
        );
        world.known_good = Some("v1".into());
        world
    }

    fn staged(more: &serde_json::Value) -> serde_json::Value {
        let mut strategy = json!({"maxConcurrency": 4, "maxFailures": 0, "stages": [
            {"name": "canary", "clusterSelector": {"matchLabels": {"tier": "canary"}},
             "afterStageTasks": [{"type": "Approval"}]}]});
        strategy
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        strategy
    }

    fn assumptions() -> Assumptions {
        Assumptions {
            approvals_take: Some(MINUTE * 10),
            gates_take: Duration::ZERO,
            limit: MINUTE * 600,
        }
    }

    #[test]
    fn stages_waits_and_peaks_are_told() {
        let forecast = world(&staged(&json!({}))).forecast(assumptions());
        assert_eq!(forecast.end, End::Succeeded);
        // One minute for the canaries, ten for a person, two times a minute for eight by four.
        assert_eq!(forecast.ended, at("2026-11-21T12:13:00Z"));
        assert_eq!((forecast.peak_concurrency, forecast.worst_unhealthy), (4, 4));
        assert_eq!(
            (forecast.clusters, forecast.updated, forecast.failed),
            (10, 10, 0)
        );
        let times: Vec<_> = forecast
            .stages
            .iter()
            .map(|stage| (stage.name.as_str(), stage.clusters, stage.passes))
            .collect();
        assert_eq!(
            times,
            [
                ("canary", 2, Some(at("2026-11-21T12:11:00Z"))),
                ("*", 8, Some(at("2026-11-21T12:13:00Z")))
            ]
        );
    }

    #[test]
    fn what_nobody_does_is_waited_for() {
        let nobody = Assumptions {
            approvals_take: None,
            ..assumptions()
        };
        let forecast = world(&staged(&json!({}))).forecast(nobody);
        assert!(
            matches!(&forecast.end, End::Waits(why) if why.contains("AwaitingApproval")),
            "{forecast:?}"
        );
        assert_eq!(forecast.updated, 2);
    }

    #[test]
    fn failures_stop_or_go_back() {
        for (on_failure, expected) in [
            ("Pause", End::Stopped("1 failed, 0 may".into())),
            ("Rollback", End::RolledBack("1 failed, 0 may".into())),
        ] {
            let mut world = world(&staged(&json!({"onFailure": on_failure})));
            let member = world.members.get_mut("c5").unwrap();
            member.fates.insert("v2".into(), Fate::Fails);
            let forecast = world.forecast(assumptions());
            assert_eq!(forecast.end, expected);
            assert_eq!(forecast.failed, 1);
        }
    }

    #[test]
    fn the_limit_is_an_end() {
        let mut world = world(&staged(
            &json!({"onUnreachable": "Wait", "minSuccessTime": "24h"}),
        ));
        world.members.get_mut("c1").unwrap().reach = Reach::Ready;
        let forecast = world.forecast(assumptions());
        assert_eq!(
            (forecast.end, forecast.ended),
            (End::TooLong, at("2026-11-21T22:00:00Z"))
        );
    }
}
