//! What is told of a script: what changed at each moment, grouped by what it is.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use jiff::Timestamp;
use starling_core::plan::{Decision, HoldReason, Plan, StagePhase, StageWait, To, Verdict};
use starling_core::simulate::{Happened, World};

pub(crate) struct Teller {
    start: Timestamp,
    out: String,
    last_time: Option<Timestamp>,
    clusters: BTreeMap<String, String>,
    stages: BTreeMap<String, String>,
    verdict: String,
}

impl Teller {
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

    /// Something that was done from outside.
    pub(crate) fn note(&mut self, at: Timestamp, text: &str) {
        self.line(at, &format!("> {text}"));
    }

    /// What the engine did at one moment.
    pub(crate) fn take(&mut self, world: &World, happened: &[Happened]) {
        for happened in happened {
            match happened {
                Happened::Began {
                    release,
                    direction,
                    reason,
                } => {
                    self.stages.clear();
                    self.verdict.clear();
                    self.line(world.now, &format!("{release} begins: {direction:?}, {reason:?}"));
                }
                Happened::NothingToGoBackTo => self.line(world.now, "there is nothing to go back to"),
                Happened::Queued(release) => self.line(world.now, &format!("{release} waits for its turn")),
                Happened::Planned(plan) => self.planned(world, plan),
            }
        }
    }

    fn planned(&mut self, world: &World, plan: &Plan) {
        if plan.stages.len() > 1 {
            for stage in &plan.stages {
                // The implicit stage is told of only where it has clusters.
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
            let word = self.word(plan, decision);
            let before = self.clusters.get(name);
            let begun = word == "at work" && before.is_some_and(|before| before.starts_with("starts"));
            if before != Some(&word) && !begun {
                groups.entry(word.clone()).or_default().push(name);
            }
            self.clusters.insert(name.clone(), word);
        }
        self.clusters.retain(|name, _| plan.decisions.contains_key(name));
        for (word, names) in groups {
            self.line(world.now, &format!("{word}: {}", names.join(" ")));
        }
        let verdict = match &plan.verdict {
            Verdict::Rolls => String::new(),
            Verdict::Through => "the rollout is through".to_owned(),
            Verdict::Stopped(_) => "the rollout is stopped".to_owned(),
            Verdict::RollBack(_) => "the rollout is to go back".to_owned(),
        };
        if verdict != self.verdict {
            let text = if verdict.is_empty() {
                "the rollout goes on"
            } else {
                &verdict
            };
            let text = text.to_owned();
            self.line(world.now, &text);
            self.verdict = verdict;
        }
    }

    fn word(&self, plan: &Plan, decision: &Decision) -> String {
        let stage = |place: usize| plan.stages.get(place).map_or("?", |stage| stage.name.as_str());
        match decision {
            Decision::Done => "done".into(),
            Decision::Start { to: To::Release, .. } => "starts".into(),
            Decision::Start {
                to: To::LastKnownGood,
                ..
            } => "starts with the last known good release".into(),
            Decision::InFlight { lost: false, .. } | Decision::InFlight { deadline: None, .. } => {
                "at work".into()
            }
            Decision::InFlight {
                lost: true,
                deadline: Some(deadline),
            } => {
                format!("lost on the way, failed by {}", self.since_start(*deadline))
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
                    HoldReason::Skipped(word) => text = format!("passed over by {}", word.by),
                    HoldReason::Paused(word) | HoldReason::Aborted(word) => {
                        text = format!("waits ({} by {})", reason.as_str(), word.by);
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
            StagePhase::Skipped(word) => format!("passed over by {}", word.by),
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

    /// Everything, with how the fleet is in the end.
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
            "In the end {}. At most {} at work at once, {} not healthy.",
            holds.join("; "),
            summary.peak_concurrency,
            summary.worst_unhealthy
        )
        .unwrap();
        self.out
    }
}
