//! Forecasts a rollout: one release through a whole fleet in simulated time, with assumed responses of operators and
//! gates.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use serde::Serialize;
use starling_api::RolloutDirection;

use super::World;
use crate::plan::{
    Attribution, Gate, GateResult, Plan, RolloutVerdict, StagePhase, StageRecord, StageWait, Stop,
};

/// The assumptions about the events that a rollout waits for.
#[derive(Clone, Copy, Debug)]
pub struct Assumptions {
    /// The time that an approval takes; `None`: there is no approval.
    pub approvals_take: Option<Duration>,
    /// The time that a Webhook, Metric or Job takes to pass.
    pub gates_take: Duration,
    /// The time after which the forecast stops.
    pub limit: Duration,
}

/// The forecast of a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RolloutForecast {
    /// Time at which the rollout starts.
    pub started: Timestamp,
    /// Time at which nothing changes any more.
    pub ended: Timestamp,
    /// The outcome.
    pub end: RolloutEnd,
    /// The stages, in order.
    pub stages: Vec<StageForecast>,
    /// All clusters.
    pub clusters: usize,
    /// Clusters on the release at the end.
    pub updated: usize,
    /// Clusters that failed with the release.
    pub failed: usize,
    /// The most clusters in progress at once.
    pub peak_concurrency: usize,
    /// The most reachable clusters that were not healthy at once.
    pub worst_unhealthy: usize,
}

/// The outcome of a rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "outcome", content = "message")]
pub enum RolloutEnd {
    /// Every stage has passed.
    Succeeded,
    /// Nothing more starts until an operator acts.
    Stopped(String),
    /// The rollout was rolled back.
    RolledBack(String),
    /// The rollout waits for an event that the assumptions exclude.
    Waits(String),
    /// The rollout was not done by the limit.
    TooLong,
}

/// The forecast of a stage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct StageForecast {
    /// The name.
    pub name: String,
    /// The number of its clusters.
    pub clusters: usize,
    /// Time at which its clusters may start.
    pub opens: Option<Timestamp>,
    /// Time at which the stage passes.
    pub passes: Option<Timestamp>,
}

/// The progress of the release that was offered first.
#[derive(Default)]
struct ReleaseProgress {
    records: BTreeMap<String, StageRecord>,
    stages: Vec<(String, usize)>,
    updated: usize,
    failed: usize,
}

impl World {
    /// Runs the offered release through the fleet and returns what happens.
    #[must_use]
    pub fn forecast(mut self, assumptions: Assumptions) -> RolloutForecast {
        let (started, offered) = (self.now, self.offered.clone());
        let limit = started.checked_add(assumptions.limit).unwrap_or(Timestamp::MAX);
        let mut progress = ReleaseProgress::default();
        let end = loop {
            self.settle();
            let Some(plan) = self.plan() else {
                break RolloutEnd::Waits("there is no release".to_owned());
            };
            let forward = self.rolls_forward(&offered);
            if forward {
                progress.take(&plan);
            }
            let responded = self.respond(&plan, assumptions);
            if responded == Some(self.now) {
                continue;
            }
            match (&plan.verdict, forward) {
                (RolloutVerdict::Succeeded, true) => break RolloutEnd::Succeeded,
                (RolloutVerdict::Succeeded, false) => {
                    let Some(stopped) = self.stopped.take() else {
                        break RolloutEnd::RolledBack(String::new());
                    };
                    (progress.updated, progress.failed) = (stopped.done, stopped.failed);
                    break RolloutEnd::RolledBack(self.stop_text(&stopped.why));
                }
                (RolloutVerdict::Stopped(stop) | RolloutVerdict::RollBack(stop), _) => {
                    break RolloutEnd::Stopped(self.stop_text(stop));
                }
                (RolloutVerdict::InProgress, _) => {}
            }
            let Some(next) = self.next_time().into_iter().chain(responded).min() else {
                break RolloutEnd::Waits(self.blockers(&plan));
            };
            if next > limit {
                self.now = limit;
                break RolloutEnd::TooLong;
            }
            self.now = next;
        };
        RolloutForecast {
            started,
            ended: self.now,
            end,
            stages: progress.stages(),
            clusters: self.members.len(),
            updated: progress.updated,
            failed: progress.failed,
            peak_concurrency: self.summary().peak_concurrency,
            worst_unhealthy: self.summary().worst_unhealthy,
        }
    }

    fn rolls_forward(&self, offered: &str) -> bool {
        let rollout = self.status.rollout.as_ref();
        rollout.is_some_and(|rollout| {
            rollout.release == offered && rollout.direction == RolloutDirection::Forward
        })
    }

    /// Responds for gates that are due. Returns when the next response is due: now, if one was given.
    fn respond(&mut self, plan: &Plan, assumptions: Assumptions) -> Option<Timestamp> {
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
                    let attribution = Attribution {
                        by: "anybody".to_owned(),
                        reason: "assumed".to_owned(),
                        at: self.now,
                    };
                    self.approve(&stage.name, attribution);
                }
                Gate::Effect(_) | Gate::TimedWait(_) => self.set_gate_result(&stage.name, GateResult::Passed),
            }
            return Some(self.now);
        }
        next
    }

    fn stop_text(&self, stop: &Stop) -> String {
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
                    "{}{failed} failed (limit {allowed})",
                    stage.map(named).unwrap_or_default()
                )
            }
            Stop::GateFailed { stage, message } => format!("{}{message}", named(*stage)),
            Stop::Aborted(attribution) => format!("aborted by {}: {}", attribution.by, attribution.reason),
        }
    }

    fn blockers(&self, plan: &Plan) -> String {
        let blockers = self
            .input()
            .map(|input| plan.report(&input).blocked_by)
            .unwrap_or_default();
        let texts: Vec<String> = blockers
            .into_iter()
            .map(|blocker| format!("{}: {}", blocker.reason, blocker.message))
            .collect();
        if texts.is_empty() {
            "no further progress without a person or a cluster".to_owned()
        } else {
            texts.join("; ")
        }
    }
}

impl ReleaseProgress {
    fn take(&mut self, plan: &Plan) {
        // The only stage of a strategy without stages is the group, and has no status.
        let records = plan
            .stages
            .iter()
            .map(|stage| (stage.name.clone(), stage.record.clone()));
        self.records = records.collect();
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
    use crate::simulate::{Fate, SimulatedMember};

    const MINUTE: Duration = Duration::from_secs(60);

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    /// Two clusters in the stage canary, eight others; each takes a minute.
    fn world(strategy: &serde_json::Value) -> World {
        let strategy: RolloutStrategy = serde_json::from_value(strategy.clone()).unwrap();
        let members = (0..10).map(|n| {
            let labels = if n < 2 {
                [("tier".to_owned(), "canary".to_owned())].into()
            } else {
                BTreeMap::new()
            };
            (
                format!("c{n}"),
                SimulatedMember::new(&format!("u{n}"), labels, MINUTE),
            )
        });
        let mut world = World::new(
            at("2026-11-21T12:00:00Z"),
            ReadStrategy::new(&strategy).unwrap(),
            members.collect(),
            "v2",
        );
        world.set_known_good(Some("v1"));
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
    fn stages_times_and_peaks_are_forecast() {
        let forecast = world(&staged(&json!({}))).forecast(assumptions());
        assert_eq!(forecast.end, RolloutEnd::Succeeded);
        // One minute for the canaries, ten for the approval, two times a minute for eight clusters in four slots.
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
    fn a_forecast_waits_for_an_approval_that_nobody_gives() {
        let nobody = Assumptions {
            approvals_take: None,
            ..assumptions()
        };
        let forecast = world(&staged(&json!({}))).forecast(nobody);
        assert!(
            matches!(&forecast.end, RolloutEnd::Waits(why) if why.contains("AwaitingApproval")),
            "{forecast:?}"
        );
        assert_eq!(forecast.updated, 2);
    }

    #[test]
    fn failures_stop_or_roll_back() {
        for (on_failure, expected) in [
            ("Pause", RolloutEnd::Stopped("1 failed (limit 0)".into())),
            ("Rollback", RolloutEnd::RolledBack("1 failed (limit 0)".into())),
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
    fn a_forecast_ends_at_its_limit() {
        let mut world = world(&staged(
            &json!({"onUnreachable": "Wait", "minSuccessTime": "24h"}),
        ));
        world.members.get_mut("c1").unwrap().reach = Reach::Ready;
        let forecast = world.forecast(assumptions());
        assert_eq!(
            (forecast.end, forecast.ended),
            (RolloutEnd::TooLong, at("2026-11-21T22:00:00Z"))
        );
    }
}
