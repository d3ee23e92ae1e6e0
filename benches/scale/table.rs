//! The tables that the benchmark prints.

use std::time::Duration;

use crate::serving::{Counts, Traffic};

/// Measurements of one step.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) step: &'static str,
    pub(crate) members: usize,
    /// Number of clusters that changed or were checked.
    pub(crate) clusters: usize,
    pub(crate) wall: Duration,
    /// CPU time of the controller, without its children.
    pub(crate) controller: Duration,
    /// CPU time of the children of the controller.
    pub(crate) children: Duration,
    /// CPU time of the API server.
    pub(crate) server: Duration,
    /// Peak resident memory of the controller.
    pub(crate) controller_mib: f64,
    /// Peak resident memory of the API server.
    pub(crate) server_mib: f64,
    pub(crate) traffic: Counts,
}

/// Header of the table.
pub(crate) const HEAD: &str = "\
| members | step | wall s | controller CPU s | of it children | server CPU s | controller peak MiB | server peak MiB | writes on members | requests to members | requests to the management cluster |
|--:|---|--:|--:|--:|--:|--:|--:|--:|---|---|";

impl Sample {
    /// Returns the row of the table.
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
            self.traffic.members.written,
            requests(&self.traffic.members),
            requests(&self.traffic.management),
        )
    }

    /// Returns the milliseconds for each cluster: CPU time of the controller and its children, and wall-clock time.
    fn each(&self) -> (f64, f64) {
        let clusters = self.clusters as f64;
        let each = |time: Duration| time.as_secs_f64() * 1000.0 / clusters;
        (each(self.controller + self.children), each(self.wall))
    }
}

fn requests(traffic: &Traffic) -> String {
    let parts: Vec<String> = traffic
        .requests
        .iter()
        .map(|(verb, count)| format!("{verb} {count}"))
        .collect();
    parts.join(", ")
}

/// Returns the cost of a cluster in fleets of each size, and its ratio to the cost in the smallest fleet.
pub(crate) fn ratios(taken: &[Sample]) -> String {
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
        let of_step: Vec<&Sample> = taken.iter().filter(|one| one.step == step).collect();
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
