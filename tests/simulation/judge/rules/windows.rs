//! The windows of a strategy. The judge knows those of the simulation: times of the day, in UTC.

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use starling_api::{Cluster, Window};

use crate::judge::hub::{after, selects};
use kube::ResourceExt;

/// Whether no cluster may start during a whole span: a `deny` that applies to the cluster has it, or an `allow` that
/// applies has nothing of it. A window that the judge cannot read closes nothing.
pub(super) fn is_closed(windows: &[Window], cluster: &Cluster, from: Timestamp, to: Timestamp) -> bool {
    let mut moments = vec![from];
    while let Some(last) = moments.last().filter(|last| **last < to) {
        moments.push(after(*last, SignedDuration::from_secs(1)).min(to));
    }
    moments.iter().all(|at| is_closed_at(windows, cluster, *at))
}

fn is_closed_at(windows: &[Window], cluster: &Cluster, at: Timestamp) -> bool {
    let applies = |window: &&Window| {
        let selector = window.cluster_selector.as_ref();
        selector.is_none_or(|selector| selects(selector, cluster.labels()))
    };
    let windows: Vec<&Window> = windows.iter().filter(applies).collect();
    if windows.iter().any(|window| !window.time_zone.is_empty()) {
        return false;
    }
    let allows: Vec<&&Window> = windows.iter().filter(|window| !window.allow.is_empty()).collect();
    let allowed = allows.iter().any(|window| has(&window.allow, at).unwrap_or(true));
    let denied = windows
        .iter()
        .any(|window| has(&window.deny, at).unwrap_or(false));
    denied || (!allows.is_empty() && !allowed)
}

/// Whether a span such as `08:01-08:03` has a moment; it may go on after midnight. `None`: it has another form.
fn has(times: &str, at: Timestamp) -> Option<bool> {
    let (from, to) = times.split_once('-')?;
    let time = |text: &str| -> Option<u32> {
        let (hours, minutes) = text.split_once(':')?;
        let (hours, minutes): (u32, u32) = (hours.parse().ok()?, minutes.parse().ok()?);
        Some(hours * 3600 + minutes * 60)
    };
    let (from, to) = (time(from)?, time(to)?);
    let now = at.to_zoned(TimeZone::UTC);
    let part = |part: i8| u32::from(part.unsigned_abs());
    let now = part(now.hour()) * 3600 + part(now.minute()) * 60 + part(now.second());
    Some(match from < to {
        true => (from..to).contains(&now),
        false => now >= from || now < to,
    })
}
