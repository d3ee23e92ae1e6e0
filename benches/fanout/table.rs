//! The table that the benchmark prints.

use std::time::Duration;

use crate::floor;
use crate::starling::{Requests, Sample};
use crate::usage::Reading;

/// A row of the table: both sides of a case.
pub(crate) struct Row {
    pub(crate) case: &'static str,
    pub(crate) objects: usize,
    pub(crate) floor: Vec<floor::Sample>,
    pub(crate) starling: Vec<Sample>,
}

/// Header of the table.
pub(crate) const HEAD: &str = "\
| case | objects | floor s | push to last s | poll to last s | ratio | floor CPU s | Starling CPU s | of it children | ratio | peak MiB | requests to all members |
|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|";

impl Row {
    /// Returns the row of the table: medians over the rounds, and the requests of the last round.
    pub(crate) fn line(&self) -> String {
        let floor_wall = median(self.floor.iter().map(|taken| taken.wall));
        let floor_cpu = median(self.floor.iter().map(|taken| taken.cpu));
        let wall = median(self.starling.iter().map(|taken| taken.wall));
        let polls: Vec<Duration> = self
            .starling
            .iter()
            .filter_map(|taken| taken.after_poll)
            .collect();
        let after_poll = (!polls.is_empty()).then(|| median(polls.into_iter()));
        let cpu = median(self.starling.iter().map(|taken| total(&taken.cpu)));
        let children = median(self.starling.iter().map(|taken| taken.cpu.children));
        let peak = self
            .starling
            .iter()
            .map(|taken| taken.peak_mib)
            .fold(0.0, f64::max);
        let requests = self.starling.last().map(|taken| requests(&taken.requests));
        format!(
            "| {} | {} | {:.2} | {:.2} | {} | {} | {:.2} | {:.2} | {:.2} | {} | {peak:.0} | {} |",
            self.case,
            self.objects,
            floor_wall.as_secs_f64(),
            wall.as_secs_f64(),
            after_poll.map_or_else(|| "–".into(), |wall| format!("{:.2}", wall.as_secs_f64())),
            ratio(after_poll.unwrap_or(wall), floor_wall),
            floor_cpu.as_secs_f64(),
            cpu.as_secs_f64(),
            children.as_secs_f64(),
            ratio(cpu, floor_cpu),
            requests.unwrap_or_default(),
        )
    }
}

fn total(reading: &Reading) -> Duration {
    reading.own + reading.children
}

/// Returns the ratio; a dash if the floor is below the kernel's step of 10 ms.
fn ratio(of: Duration, floor: Duration) -> String {
    if floor < Duration::from_millis(10) {
        return "–".into();
    }
    format!("{:.2}", of.as_secs_f64() / floor.as_secs_f64())
}

fn requests(requests: &Requests) -> String {
    let parts: Vec<String> = requests
        .iter()
        .map(|(verb, count)| format!("{verb} {count}"))
        .collect();
    parts.join(", ")
}

fn median(values: impl Iterator<Item = Duration>) -> Duration {
    let mut sorted: Vec<Duration> = values.collect();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}
