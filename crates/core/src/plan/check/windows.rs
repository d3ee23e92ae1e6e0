//! Windows in the civil time of their zone, evaluated minute by minute.
//!
//! Days on which a zone changes its offset are left to the tests of windows; the result is unknown here.

use jiff::civil::Date;
use jiff::{SignedDuration, Timestamp};

use crate::window::Window;

/// The number of days ahead in which the next opening is searched. No window is closed for longer and opens again.
const DAYS: i64 = 9;

/// Reports whether work may start at this time; `None`: unknown.
pub(super) fn are_open(windows: &[&Window], at: Timestamp) -> Option<bool> {
    let mut allowed = windows.iter().all(|window| !window.allow);
    let mut denied = false;
    for window in windows {
        let open = is_open(window, at)?;
        allowed |= open && window.allow;
        denied |= open && !window.allow;
    }
    Some(allowed && !denied)
}

/// Returns when closed windows open next; `None`: unknown. `Some(None)`: never.
pub(super) fn next_opening(windows: &[&Window], after: Timestamp) -> Option<Option<Timestamp>> {
    let mut changes: Vec<Timestamp> = Vec::new();
    for window in windows {
        let horizon = SignedDuration::from_hours(24 * (DAYS + 2));
        if !has_constant_offset(window, after)
            || offset(window, after) != offset(window, after.checked_add(horizon).ok()?)
        {
            return None;
        }
        let today = window.zone.to_datetime(after).date();
        for day in -1..=DAYS {
            let date = today.checked_add(SignedDuration::from_hours(24 * day)).ok()?;
            for minute in window.ranges.iter().flat_map(|&(from, to)| [from, to]) {
                let minutes = SignedDuration::from_mins(i64::from(minute));
                let civil = date.at(0, 0, 0, 0).checked_add(minutes).ok()?;
                changes.push(window.zone.to_timestamp(civil).ok()?);
            }
        }
    }
    changes.retain(|change| *change > after);
    changes.sort_unstable();
    for change in changes {
        if are_open(windows, change)? {
            return Some(Some(change));
        }
    }
    Some(None)
}

fn is_open(window: &Window, at: Timestamp) -> Option<bool> {
    if !has_constant_offset(window, at) {
        return None;
    }
    let civil = window.zone.to_datetime(at);
    let today = civil.date();
    let seconds = i64::from(civil.hour()) * 3600 + i64::from(civil.minute()) * 60 + i64::from(civil.second());
    let chosen = |date: Date| {
        let monday_first = usize::try_from(date.weekday().to_monday_zero_offset()).unwrap_or_default();
        window.days.get(monday_first).copied().unwrap_or_default()
    };
    let yesterday = today.yesterday().ok()?;
    Some(window.ranges.iter().any(|&(from, to)| {
        let (from, to) = (i64::from(from) * 60, i64::from(to) * 60);
        if from < to {
            chosen(today) && from <= seconds && seconds < to
        } else {
            (chosen(today) && from <= seconds) || (chosen(yesterday) && seconds < to)
        }
    }))
}

/// Reports whether the zone keeps its offset around this time.
fn has_constant_offset(window: &Window, at: Timestamp) -> bool {
    let two_days = SignedDuration::from_hours(48);
    let around = [at.checked_sub(two_days), at.checked_add(two_days)];
    let mut near = around.into_iter().flatten();
    near.all(|other| offset(window, other) == offset(window, at))
}

fn offset(window: &Window, at: Timestamp) -> i32 {
    window.zone.to_offset(at).seconds()
}
