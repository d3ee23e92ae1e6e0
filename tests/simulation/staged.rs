//! How a group is rolled in a run with stages, and what people say meanwhile: drawn from the seed before the run begins.
//!
//! It has a stream of its own, so that the runs without stages are what they are.

use serde_json::{Value, json};
use starling_apiserver::random::Random;

use crate::script::MEMBERS;

/// The label that says in which stage a cluster is.
pub(crate) const STAGE_LABEL: &str = "stage";
/// Stages at most. A cluster with another label is in the last one, which nobody names.
const STAGES: [&str; 3] = ["canary", "early", "main"];
/// The label of clusters that no stage selects.
const REST: &str = "rest";

/// A strategy with stages.
#[derive(Clone, Debug)]
pub(crate) struct Staged {
    /// `rolloutStrategy`, as a user writes it.
    pub(crate) strategy: Value,
    /// Whether the first revision is rolled without it, so that there soon is something to go back to.
    pub(crate) comes_later: bool,
    /// The stage of each member in the beginning.
    pub(crate) stages: Vec<&'static str>,
    /// Which members join later.
    pub(crate) late: Vec<usize>,
    /// Whether the second revision has an object that no member takes.
    pub(crate) is_bad: bool,
    /// How long a person takes to approve, in seconds.
    pub(crate) approves_after: u64,
}

/// What a person says to the rollout that is under way when it is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// The stage that waits may go on; with what the release before rendered to, which approves nothing.
    ApproveOld,
    /// Start nothing more.
    Pause,
    /// Go on.
    Resume,
    /// Give it up.
    Abort,
    /// Try again what failed.
    Retry,
    /// Pass over a cluster.
    SkipCluster(String),
    /// Pass over the stage that the rollout is in.
    SkipStage,
    /// Let the next stage go.
    Promote,
    /// Go back to what was good.
    Rollback,
    /// Let go what is held.
    Release,
}

impl Staged {
    /// The strategy of a seed; half of the seeds have none.
    pub(crate) fn of(seed: u64) -> Option<Self> {
        let mut random = Random::named(seed, "stages");
        let is_staged = random.below(2) == 0;
        is_staged.then(|| Self::draw(&mut random))
    }

    /// A strategy of a seed.
    pub(crate) fn draw(random: &mut Random) -> Self {
        let count = 2 + random.below(2) as usize;
        let stages = (0..MEMBERS).map(|_| any_stage(random, count)).collect();
        let late = (0..MEMBERS).filter(|_| random.below(6) == 0).collect();
        Self {
            strategy: strategy(random, count),
            comes_later: random.below(4) > 0,
            stages,
            late,
            is_bad: random.below(2) == 0,
            approves_after: random.below(20),
        }
    }
}

/// A stage that a cluster may be in.
pub(crate) fn any_stage(random: &mut Random, count: usize) -> &'static str {
    let place = random.below(count as u64 + 1) as usize;
    if place == count { REST } else { STAGES[place] }
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

/// Runs begin at eight o'clock.
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
    // A stage has one.
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

/// Something that a person says.
pub(crate) fn any_word(random: &mut Random) -> Word {
    match random.below(16) {
        0 | 1 => Word::ApproveOld,
        2..=4 => Word::Pause,
        5 | 6 => Word::Resume,
        7 => Word::Abort,
        8 | 9 => Word::Retry,
        10 => Word::SkipCluster(crate::script::member(random.below(MEMBERS as u64) as usize)),
        11 => Word::SkipStage,
        12 => Word::Promote,
        13 | 14 => Word::Rollback,
        _ => Word::Release,
    }
}
