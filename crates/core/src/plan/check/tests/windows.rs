//! Windows in civil time, and starts in closed windows.

use jiff::tz::TimeZone;

use super::*;
use crate::plan::check::windows::{are_open, next_opening};
use crate::window::Window;

/// Minutes of the day.
fn at(hour: u16, minute: u16) -> u16 {
    60 * hour + minute
}

/// From Monday to Friday.
fn window(allow: bool, from: u16, to: u16, zone: &str) -> Window {
    Window {
        allow,
        days: [true, true, true, true, true, false, false],
        ranges: vec![(from, to)],
        zone: TimeZone::get(zone).unwrap(),
    }
}

fn time(text: &str) -> Timestamp {
    text.parse().unwrap()
}

#[test]
fn a_window_is_open_in_the_civil_time_of_its_zone() {
    let berlin = window(true, at(9, 0), at(16, 0), "Europe/Berlin");
    let night = window(true, at(22, 0), at(6, 0), "UTC");
    for (window, now, open) in [
        (&berlin, "2023-11-14T07:59:59Z", Some(false)),
        (&berlin, "2023-11-14T08:00:00Z", Some(true)),
        (&berlin, "2023-11-14T14:59:59Z", Some(true)),
        (&berlin, "2023-11-14T15:00:00Z", Some(false)),
        (&berlin, "2023-11-18T10:00:00Z", Some(false)),
        (&night, "2023-11-13T05:00:00Z", Some(false)),
        (&night, "2023-11-14T05:59:59Z", Some(true)),
        (&night, "2023-11-14T06:00:00Z", Some(false)),
        (&night, "2023-11-18T05:00:00Z", Some(true)),
        (&night, "2023-11-18T22:00:00Z", Some(false)),
        // The clocks go back in that night: unknown.
        (&berlin, "2023-10-29T08:00:00Z", None),
    ] {
        assert_eq!(are_open(&[window], time(now)), open, "{now}");
    }
}

#[test]
fn the_next_opening_is_found() {
    let berlin = window(true, at(9, 0), at(16, 0), "Europe/Berlin");
    let denied = window(false, at(0, 0), at(10, 0), "UTC");
    for (windows, after, opening) in [
        (vec![&berlin], "2023-11-14T16:00:00Z", "2023-11-15T08:00:00Z"),
        (vec![&berlin], "2023-11-17T16:00:00Z", "2023-11-20T08:00:00Z"),
        (vec![&denied], "2023-11-14T05:00:00Z", "2023-11-14T10:00:00Z"),
        (
            vec![&berlin, &denied],
            "2023-11-14T16:00:00Z",
            "2023-11-15T10:00:00Z",
        ),
    ] {
        let expected = Some(Some(time(opening)));
        assert_eq!(next_opening(&windows, time(after)), expected, "{after}");
    }
    let never = Window {
        days: [true; 7],
        ..window(false, at(0, 0), at(0, 0), "UTC")
    };
    assert_eq!(next_opening(&[&never], time("2023-11-14T16:00:00Z")), Some(None));
}

/// Two clusters, one of them held by a window that opens at midnight, in an hour and three quarters.
fn good() -> (PlanInput, Plan) {
    let clusters = [("free", idle()), ("late", idle())];
    let clusters = clusters.map(|(name, view)| (name.into(), view)).into();
    let mut input = rollout(vec![stage(REST, &[], &[])], clusters);
    input.strategy.windows = vec![window(true, at(0, 0), at(6, 0), "UTC")];
    view(&mut input, "late").windows = vec![0];
    let tally = Tally {
        total: 2,
        slots: Some(4),
        failures_allowed: 2,
        unavailable_allowed: 2,
        ..Tally::default()
    };
    let midnight = 6400;
    let decisions = [
        ("free".into(), start(&["app"])),
        ("late".into(), hold_until(HoldReason::WindowClosed, midnight)),
    ];
    let plan = plan_of(decisions.into(), tally, midnight);
    (input, plan)
}

#[test]
fn a_plan_that_disregards_windows_is_refused() {
    accepted(
        good,
        &[
            ("as it is", |_, _| {}),
            ("an immediate rollback ignores windows", |i, p| {
                i.rollout.direction = Direction::BackAtOnce;
                decide(p, "late", start(&["app"]));
                p.recheck_at = None;
            }),
        ],
    );
    refused(
        good,
        &[
            (
                "started in a closed window",
                |_, p| decide(p, "late", start(&["app"])),
                "StartsInClosedWindow",
            ),
            (
                "a second late",
                |_, p| {
                    decide(p, "late", hold_until(HoldReason::WindowClosed, 6401));
                    p.recheck_at = Some(t(6401));
                },
                "WrongHoldRecheck",
            ),
            (
                "a second early",
                |_, p| decide(p, "late", hold_until(HoldReason::WindowClosed, 6399)),
                "WrongHoldRecheck",
            ),
            (
                "at no time",
                |_, p| decide(p, "late", hold(HoldReason::WindowClosed)),
                "WrongHoldRecheck",
            ),
            (
                "for want of a slot",
                |_, p| decide(p, "late", hold(HoldReason::NoSlot)),
                "NotTheFirstReason",
            ),
            ("closed though open", |i, _| i.now = t(6400), "WrongHold"),
            (
                "for another cluster's window",
                |_, p| {
                    decide(p, "free", hold_until(HoldReason::WindowClosed, 6400));
                },
                "WrongHold",
            ),
            (
                "a deny window is open",
                |i, _| {
                    i.strategy
                        .windows
                        .push(window(false, at(22, 0), at(23, 0), "UTC"));
                    view(i, "free").windows = vec![1];
                },
                "StartsInClosedWindow",
            ),
        ],
    );
}
