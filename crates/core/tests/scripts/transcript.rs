//! The transcript of a script: what changed at each time, grouped by the change.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use jiff::Timestamp;
use starling_core::ids::ClusterName;
use starling_core::plan::{
    AdmittedRelease, Decision, HoldReason, Plan, RolloutVerdict, StagePhase, StageWait,
};
use starling_core::simulate::{Happened, World};

pub(crate) struct Transcript {
    start: Timestamp,
    out: String,
    last_time: Option<Timestamp>,
    clusters: BTreeMap<ClusterName, String>,
    stages: BTreeMap<String, String>,
    verdict: String,
}

impl Transcript {
    pub(crate) fn new(start: Timestamp) -> Self {
        Self {
            start,
            out: String::new(),
            last_time: None,
            clusters: BTreeMap::new(),
            stages: BTreeMap::new(),
            verdict: String::new(),
        }
    }

    fn since_start(&self, at: Timestamp) -> String {
        let seconds = at.duration_since(self.start).as_secs();
        let (hours, minutes, rest) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
        let mut text = String::from("+");
        if hours > 0 {
            write!(text, "{hours}h").unwrap();
        }
        if minutes > 0 {
            write!(text, "{minutes}m").unwrap();
        }
        if rest > 0 || seconds == 0 {
            write!(text, "{rest}s").unwrap();
        }
        text
    }

    fn line(&mut self, at: Timestamp, text: &str) {
        let time = if self.last_time == Some(at) {
            String::new()
        } else {
            self.since_start(at)
        };
        self.last_time = Some(at);
        writeln!(self.out, "{time:<12}{text}").unwrap();
    }

    /// Adds an event of the script.
    pub(crate) fn note(&mut self, at: Timestamp, text: &str) {
        self.line(at, &format!("> {text}"));
    }

    /// Adds what the rollout machine did at one time.
    pub(crate) fn take(&mut self, world: &World, happened: &[Happened]) {
        for happened in happened {
            match happened {
                Happened::Began {
                    release,
                    direction,
                    cause,
                } => {
                    self.stages.clear();
                    self.verdict.clear();
                    self.line(world.now, &format!("{release} starts: {direction:?}, {cause:?}"));
                }
                Happened::NothingToRollBackTo => self.line(world.now, "there is no release to roll back to"),
                Happened::Queued(release) => self.line(world.now, &format!("{release} is queued")),
                Happened::Planned(plan) => self.planned(world, plan),
            }
        }
    }

    fn planned(&mut self, world: &World, plan: &Plan) {
        if plan.stages.len() > 1 {
            for stage in &plan.stages {
                // The implicit stage is left out if it has no clusters.
                if stage.tally.total == 0 && stage.name == "*" {
                    continue;
                }
                let phase = self.phase(&stage.phase);
                if self.stages.get(&stage.name) != Some(&phase) {
                    self.line(world.now, &format!("stage {}: {phase}", stage.name));
                    self.stages.insert(stage.name.clone(), phase);
                }
            }
        }
        let mut groups: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for (name, decision) in &plan.decisions {
            let state = self.state(plan, decision);
            let before = self.clusters.get(name);
            let begun = state == "in flight"
                && before.is_some_and(|before| before.starts_with("starts") || before == "is retried");
            if before != Some(&state) && !begun {
                groups.entry(state.clone()).or_default().push(name);
            }
            self.clusters.insert(name.clone(), state);
        }
        self.clusters.retain(|name, _| plan.decisions.contains_key(name));
        for (state, names) in groups {
            self.line(world.now, &format!("{state}: {}", names.join(" ")));
        }
        let verdict = match &plan.verdict {
            RolloutVerdict::InProgress => String::new(),
            RolloutVerdict::Succeeded => "the rollout succeeded".to_owned(),
            RolloutVerdict::Stopped(_) => "the rollout stopped".to_owned(),
            RolloutVerdict::RollBack(_) => "the rollout has to be rolled back".to_owned(),
        };
        if verdict != self.verdict {
            let text = if verdict.is_empty() {
                "the rollout continues"
            } else {
                &verdict
            };
            let text = text.to_owned();
            self.line(world.now, &text);
            self.verdict = verdict;
        }
    }

    fn state(&self, plan: &Plan, decision: &Decision) -> String {
        let stage = |index: usize| plan.stages.get(index).map_or("?", |stage| stage.name.as_str());
        match decision {
            Decision::Done => "done".into(),
            Decision::Start {
                to: AdmittedRelease::Release,
                ..
            } => "starts".into(),
            Decision::Retry { .. } => "is retried".into(),
            Decision::Remove { entries } => format!("loses {}", entries.join(", ")),
            Decision::Start {
                to: AdmittedRelease::LastKnownGood,
                ..
            } => "starts with the last known good release".into(),
            Decision::InFlight { lost: false, .. } | Decision::InFlight { deadline: None, .. } => {
                "in flight".into()
            }
            Decision::InFlight {
                lost: true,
                deadline: Some(deadline),
            } => {
                format!(
                    "lost after its admission, fails at {}",
                    self.since_start(*deadline)
                )
            }
            Decision::Soaking { until } => format!("soaks until {}", self.since_start(*until)),
            Decision::Failed { reason, .. } => format!("failed ({})", reason.as_str()),
            Decision::Hold { reason, recheck_at } => {
                let mut text = format!("waits ({})", reason.as_str());
                match reason {
                    HoldReason::StageWaits { stage: place, .. } => {
                        text = format!("waits for stage {} ({})", stage(*place), reason.as_str());
                    }
                    HoldReason::TooManyFailures { stage: Some(place) } => {
                        text = format!("waits (TooManyFailures in stage {})", stage(*place));
                    }
                    HoldReason::Skipped(attribution) => text = format!("skipped by {}", attribution.by),
                    HoldReason::Paused(attribution) | HoldReason::Aborted(attribution) => {
                        text = format!("waits ({} by {})", reason.as_str(), attribution.by);
                    }
                    _ => {}
                }
                match (reason, recheck_at) {
                    (HoldReason::WindowClosed, Some(at)) => format!("{text} until {}", self.since_start(*at)),
                    _ => text,
                }
            }
        }
    }

    fn phase(&self, phase: &StagePhase) -> String {
        match phase {
            StagePhase::Pending => "pending".into(),
            StagePhase::Open => "open".into(),
            StagePhase::Passed => "passed".into(),
            StagePhase::Skipped(attribution) => format!("skipped by {}", attribution.by),
            StagePhase::Waiting(StageWait::Gate {
                until: Some(until), ..
            }) => {
                format!("waits until {}", self.since_start(*until))
            }
            StagePhase::Waiting(StageWait::GateFailed { gate, message }) => {
                format!("{gate:?} failed: {message}")
            }
            StagePhase::Waiting(wait) => format!("waits ({})", wait.as_str()),
        }
    }

    /// Returns the transcript with the final state of the fleet.
    pub(crate) fn end(mut self, world: &World) -> String {
        let mut holds: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (name, member) in &world.members {
            let target = member.observed.as_ref().and_then(|sync| sync.target.as_deref());
            holds.entry(target.unwrap_or("nothing")).or_default().push(name);
        }
        let holds: Vec<String> = holds
            .iter()
            .map(|(target, names)| format!("{target}: {}", names.join(" ")))
            .collect();
        let summary = world.summary();
        writeln!(
            self.out,
            "At the end {}. At most {} in flight at once, {} not healthy.",
            holds.join("; "),
            summary.peak_concurrency,
            summary.worst_unhealthy
        )
        .unwrap();
        self.out
    }
}
