//! The strategy of a run with stages, and the operator actions: drawn from the seed before the run starts.
//!
//! The random stream is a separate one, so that the runs without stages stay the same.

use serde_json::{Value, json};
use starling_apiserver::random::Random;

use crate::script::MEMBERS;

/// The label of a cluster's stage.
pub(crate) const STAGE_LABEL: &str = "stage";
/// The names of stages. A cluster with another label is in the last one, which has no name.
const STAGES: [&str; 3] = ["canary", "early", "main"];
/// The label of clusters that no stage selects.
const UNMATCHED: &str = "rest";

/// A strategy with stages.
#[derive(Clone, Debug)]
pub(crate) struct Staged {
    /// `rolloutStrategy`, as a user writes it.
    pub(crate) strategy: Value,
    /// Whether the first revision rolls out without stages, so that a rollback is possible early.
    pub(crate) starts_without_stages: bool,
    /// The initial stage of each member.
    pub(crate) stages: Vec<&'static str>,
    /// The members that join later.
    pub(crate) late_members: Vec<usize>,
    /// Whether the second revision has an object that no member accepts.
    pub(crate) is_bad: bool,
    /// Delay of an approval, in seconds.
    pub(crate) approval_delay: u64,
}

/// An operator action for the rollout that is in progress at its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum UserAction {
    /// Approves the waiting stage with the digest of an earlier release, which approves nothing.
    ApproveOldDigest,
    /// Pauses the rollout.
    Pause,
    /// Resumes the rollout.
    Resume,
    /// Aborts the rollout.
    Abort,
    /// Retries failed clusters.
    Retry,
    /// Skips a cluster.
    SkipCluster(String),
    /// Skips the current stage.
    SkipStage,
    /// Promotes the current stage.
    Promote,
    /// Rolls back to the last known good release.
    Rollback,
    /// Releases the held release.
    Release,
}

impl Staged {
    /// Returns the strategy of a seed; half of the seeds have none.
    pub(crate) fn of(seed: u64) -> Option<Self> {
        let mut random = Random::named(seed, "stages");
        let is_staged = random.below(2) == 0;
        is_staged.then(|| Self::draw(&mut random))
    }

    /// Draws a strategy.
    pub(crate) fn draw(random: &mut Random) -> Self {
        let count = 2 + random.below(2) as usize;
        let stages = (0..MEMBERS).map(|_| any_stage(random, count)).collect();
        let late_members = (0..MEMBERS).filter(|_| random.below(6) == 0).collect();
        Self {
            strategy: strategy(random, count),
            starts_without_stages: random.below(4) > 0,
            stages,
            late_members,
            is_bad: random.below(2) == 0,
            approval_delay: random.below(20),
        }
    }
}

/// Draws a stage of a cluster.
pub(crate) fn any_stage(random: &mut Random, count: usize) -> &'static str {
    let place = random.below(count as u64 + 1) as usize;
    if place == count { UNMATCHED } else { STAGES[place] }
}

fn strategy(random: &mut Random, count: usize) -> Value {
    let stages: Vec<Value> = STAGES[..count].iter().map(|name| stage(random, name)).collect();
    let mut strategy = json!({
        "maxConcurrency": one_of(random, &[json!(1), json!(2), json!(3), json!("50%"), json!("100%")]),
        "maxFailures": one_of(random, &[json!("100%"), json!("25%"), json!(0), json!(0), json!(1)]),
        "minSuccessTime": format!("{}s", random.below(5) * 6),
        "progressDeadline": one_of(random, &[json!("2m"), json!("15m")]),
        "maxUnavailable": one_of(random, &[json!("100%"), json!("100%"), json!(1), json!(2), json!("50%")]),
        "onFailure": one_of(random, &[json!("Pause"), json!("Rollback"), json!("Rollback"), json!("Continue")]),
        "onUnreachable": one_of(random, &[json!("Skip"), json!("Wait")]),
        "onNewRevision": one_of(random, &[json!("Replace"), json!("Finish"), json!("Queue")]),
        "rollback": {"type": one_of(random, &[json!("Staged"), json!("Immediate")])},
        "stages": stages,
    });
    if random.below(4) == 0 {
        strategy["jitter"] = "20s".into();
    }
    if random.below(3) == 0 {
        strategy["windows"] = window(random);
    }
    strategy
}

/// Draws a window. Runs start at eight o'clock.
fn window(random: &mut Random) -> Value {
    let from = 1 + random.below(3);
    let to = from + 1 + random.below(3);
    if random.below(2) == 0 {
        json!([{"deny": format!("08:{from:02}-08:{to:02}")}])
    } else {
        json!([{"allow": format!("08:{to:02}-08:{from:02}")}])
    }
}

fn stage(random: &mut Random, name: &str) -> Value {
    let mut stage = json!({"name": name, "clusterSelector": {"matchLabels": {STAGE_LABEL: name}}});
    if random.below(3) == 0 {
        stage["maxConcurrency"] = one_of(random, &[json!(1), json!(2), json!("50%")]);
    }
    if random.below(3) == 0 {
        stage["maxFailures"] = one_of(random, &[json!(0), json!(1), json!("50%")]);
    }
    if random.below(6) == 0 {
        stage["maxUnavailable"] = one_of(random, &[json!(1), json!("50%")]);
    }
    let is_approval = |task: &Value| task["type"] == "Approval";
    let (before, mut after) = (tasks(random), tasks(random));
    // A stage has at most one approval.
    if before.iter().any(is_approval) {
        after.retain(|task| !is_approval(task));
    }
    for (field, tasks) in [("beforeStageTasks", before), ("afterStageTasks", after)] {
        if !tasks.is_empty() {
            stage[field] = tasks.into();
        }
    }
    stage
}

fn tasks(random: &mut Random) -> Vec<Value> {
    let wait = json!({"type": "TimedWait", "waitTime": format!("{}s", 5 + random.below(20))});
    let approval = json!({"type": "Approval"});
    match random.below(8) {
        0 => vec![wait],
        1 => vec![approval],
        2 => vec![wait, approval],
        3 => vec![approval, wait],
        _ => Vec::new(),
    }
}

fn one_of(random: &mut Random, values: &[Value]) -> Value {
    values[random.below(values.len() as u64) as usize].clone()
}

/// Draws an operator action.
pub(crate) fn any_action(random: &mut Random) -> UserAction {
    match random.below(16) {
        0 | 1 => UserAction::ApproveOldDigest,
        2..=4 => UserAction::Pause,
        5 | 6 => UserAction::Resume,
        7 => UserAction::Abort,
        8 | 9 => UserAction::Retry,
        10 => UserAction::SkipCluster(crate::script::member(random.below(MEMBERS as u64) as usize)),
        11 => UserAction::SkipStage,
        12 => UserAction::Promote,
        13 | 14 => UserAction::Rollback,
        _ => UserAction::Release,
    }
}
