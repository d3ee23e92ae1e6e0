//! What the bench prints.

use std::time::Duration;

use crate::serving::{Counts, Seen};

/// What one step took.
#[derive(Clone, Debug)]
pub(crate) struct Taken {
    pub(crate) step: &'static str,
    pub(crate) members: usize,
    /// Clusters that changed, or that were looked at.
    pub(crate) clusters: usize,
    pub(crate) wall: Duration,
    /// CPU time of the controller, and of its children.
    pub(crate) controller: Duration,
    pub(crate) children: Duration,
    pub(crate) server: Duration,
    /// The highest resident memory meanwhile.
    pub(crate) controller_mib: f64,
    pub(crate) server_mib: f64,
    pub(crate) seen: Counts,
}

/// The heads of the columns.
pub(crate) const HEAD: &str = "\
| members | step | wall s | controller CPU s | of it children | server CPU s | controller peak MiB | server peak MiB | writes on members | requests to members | requests to the management cluster |
|--:|---|--:|--:|--:|--:|--:|--:|--:|---|---|";

impl Taken {
    /// The line.
    pub(crate) fn line(&self) -> String {
        format!(
            "| {} | {} | {:.2} | {:.2} | {:.2} | {:.2} | {:.0} | {:.0} | {} | {} | {} |",
            self.members,
            self.step,
            self.wall.as_secs_f64(),
            (self.controller + self.children).as_secs_f64(),
            self.children.as_secs_f64(),
            self.server.as_secs_f64(),
            self.controller_mib,
            self.server_mib,
            self.seen.members.written,
            requests(&self.seen.members),
            requests(&self.seen.management),
        )
    }

    /// Milliseconds for each cluster: of the controller's CPU, and of time.
    fn each(&self) -> (f64, f64) {
        let clusters = self.clusters as f64;
        let each = |time: Duration| time.as_secs_f64() * 1000.0 / clusters;
        (each(self.controller + self.children), each(self.wall))
    }
}

fn requests(seen: &Seen) -> String {
    let parts: Vec<String> = seen
        .requests
        .iter()
        .map(|(verb, count)| format!("{verb} {count}"))
        .collect();
    parts.join(", ")
}

/// What a cluster costs at each size, and how that compares with the smallest one.
pub(crate) fn ratios(taken: &[Taken]) -> String {
    let mut lines = vec![
        "| step | members | controller CPU ms for each cluster | ratio | wall ms for each cluster | ratio |"
            .to_owned(),
        "|---|--:|--:|--:|--:|--:|".to_owned(),
    ];
    let mut steps: Vec<&str> = Vec::new();
    for one in taken {
        if !steps.contains(&one.step) {
            steps.push(one.step);
        }
    }
    for step in steps {
        let of_step: Vec<&Taken> = taken.iter().filter(|one| one.step == step).collect();
        let Some((cpu_first, wall_first)) = of_step.first().map(|one| one.each()) else {
            continue;
        };
        for one in of_step {
            let (cpu, wall) = one.each();
            lines.push(format!(
                "| {step} | {} | {cpu:.2} | {:.2} | {wall:.2} | {:.2} |",
                one.members,
                cpu / cpu_first,
                wall / wall_first
            ));
        }
    }
    lines.join("\n")
}
