use super::*;

fn window(allow: &str, zone: &str) -> Window {
    Window::new(&starling_api::Window {
        allow: allow.into(),
        time_zone: zone.into(),
        ..starling_api::Window::default()
    })
    .unwrap()
}

fn deny(text: &str, zone: &str) -> Window {
    Window {
        allow: false,
        ..window(text, zone)
    }
}

fn t(text: &str) -> Timestamp {
    text.parse().unwrap()
}

/// Returns when a window opens and closes, from a time on.
fn changes(window: &Window, from: &str, count: usize) -> Vec<String> {
    let mut at = t(from);
    (0..count)
        .map_while(|_| {
            at = window.next_change(at)?;
            Some(format!(
                "{} {at}",
                if window.is_open(at) { "opens" } else { "closes" }
            ))
        })
        .collect()
}

#[test]
fn office_hours_follow_civil_time() {
    let office = window("Mon-Fri 09:00-16:00", "Europe/Berlin");
    // The clocks go forward on Sunday, 29 March 2026.
    assert_eq!(
        changes(&office, "2026-03-27T00:00:00Z", 4),
        [
            "opens 2026-03-27T08:00:00Z",
            "closes 2026-03-27T15:00:00Z",
            "opens 2026-03-30T07:00:00Z",
            "closes 2026-03-30T14:00:00Z"
        ]
    );
    assert!(
        office.is_open(t("2026-03-27T08:00:00Z")),
        "the first second counts"
    );
    assert!(!office.is_open(t("2026-03-27T07:59:59.999Z")));
    assert!(office.is_open(t("2026-03-27T14:59:59.999Z")));
    assert!(!office.is_open(t("2026-03-27T15:00:00Z")), "the last does not");
}

/// 02:00 to 03:00 does not exist on 29 March 2026 in Berlin, and occurs twice on 25 October.
#[test]
fn hours_that_a_clock_change_skips_or_repeats() {
    for (text, from, expected) in [
        (
            "02:15-02:45",
            "2026-03-29T00:00:00Z",
            ["opens 2026-03-30T00:15:00Z", "closes 2026-03-30T00:45:00Z"],
        ),
        (
            "02:30-04:00",
            "2026-03-29T00:00:00Z",
            ["opens 2026-03-29T01:00:00Z", "closes 2026-03-29T02:00:00Z"],
        ),
        (
            "01:00-02:30",
            "2026-03-28T23:30:00Z",
            ["opens 2026-03-29T00:00:00Z", "closes 2026-03-29T01:00:00Z"],
        ),
        (
            "02:30-03:30",
            "2026-10-24T12:00:00Z",
            ["opens 2026-10-25T00:30:00Z", "closes 2026-10-25T02:30:00Z"],
        ),
        (
            "01:00-02:30",
            "2026-10-24T12:00:00Z",
            ["opens 2026-10-24T23:00:00Z", "closes 2026-10-25T01:30:00Z"],
        ),
    ] {
        assert_eq!(
            changes(&window(text, "Europe/Berlin"), from, 2),
            expected,
            "{text}"
        );
    }
}

#[test]
fn days_wrap_around_the_week_and_times_around_midnight() {
    let nights = window("Fri-Mon 22:00-04:00", "");
    assert_eq!(
        changes(&nights, "2026-11-18T00:00:00Z", 4),
        [
            "opens 2026-11-20T22:00:00Z",
            "closes 2026-11-21T04:00:00Z",
            "opens 2026-11-21T22:00:00Z",
            "closes 2026-11-22T04:00:00Z"
        ]
    );
    assert!(
        nights.is_open(t("2026-11-24T03:00:00Z")),
        "Monday's night ends on Tuesday"
    );
    assert!(!nights.is_open(t("2026-11-25T03:00:00Z")));
}

#[test]
fn windows_that_touch_are_one_and_one_that_is_always_open_never_changes() {
    let weekend = window("Sat,Sun 00:00-24:00", "");
    assert_eq!(
        changes(&weekend, "2026-11-18T00:00:00Z", 2),
        ["opens 2026-11-21T00:00:00Z", "closes 2026-11-23T00:00:00Z"]
    );
    assert_eq!(
        window("00:00-24:00", "Europe/Berlin").next_change(t("2026-11-18T00:00:00Z")),
        None
    );
    assert_eq!(
        window("00:00-12:00,12:00-24:00", "").next_change(t("2026-11-18T00:00:00Z")),
        None
    );
}

/// Samoa skipped 30 December 2011, a Friday, when it moved across the date line.
#[test]
fn a_day_that_a_zone_skips_is_skipped() {
    let fridays = window("Fri 10:00-12:00", "Pacific/Apia");
    assert_eq!(
        changes(&fridays, "2011-12-28T00:00:00Z", 1),
        ["opens 2012-01-05T20:00:00Z"]
    );
}

#[test]
fn denied_times_are_closed_and_so_are_times_that_are_not_allowed() {
    let at = t("2026-11-20T10:00:00Z");
    let (office, freeze) = (window("Mon-Fri 09:00-16:00", ""), deny("Fri 12:00-24:00", ""));
    let both = |windows: &[Window], at| {
        let calendars: Vec<Calendar> = windows.iter().map(|window| Calendar::of(window, at)).collect();
        let opening = combined(&calendars.iter().collect::<Vec<_>>(), at);
        (opening.is_open, opening.changes_at)
    };
    assert_eq!(both(&[], at), (true, None), "without windows it is always open");
    assert_eq!(
        both(std::slice::from_ref(&office), at),
        (true, Some(t("2026-11-20T16:00:00Z")))
    );
    assert_eq!(
        both(&[office.clone(), freeze.clone()], at),
        (true, Some(t("2026-11-20T12:00:00Z")))
    );
    assert_eq!(
        both(&[office.clone(), freeze.clone()], t("2026-11-20T12:00:00Z")),
        (false, Some(t("2026-11-23T09:00:00Z"))),
        "the freeze ends outside office hours"
    );
    assert_eq!(
        both(std::slice::from_ref(&freeze), t("2026-11-20T12:00:00Z")),
        (false, Some(t("2026-11-21T00:00:00Z")))
    );
    let other = window("Sat 09:00-10:00", "");
    assert_eq!(
        both(&[office, other], t("2026-11-20T16:00:00Z")),
        (false, Some(t("2026-11-21T09:00:00Z")))
    );
    let never = deny("00:00-24:00", "");
    assert_eq!(both(std::slice::from_ref(&never), at), (false, None));
    let known = combined(&[&Calendar::of(&never, at)], at).known_until;
    assert_eq!(known, Some(t("2026-12-05T10:00:00Z")));
}

#[test]
fn every_minute_of_an_hour_can_be_named() {
    assert_eq!(window("08:59-09:59", "").to_string(), "allow 08:59-09:59 UTC");
}

/// Minute by minute through two clock changes: the window is open by civil time, and `next_change` is where that
/// changes.
#[test]
fn every_minute_of_the_days_around_a_clock_change() {
    for (zone, from) in [
        ("Europe/Berlin", "2026-03-28T12:00:00Z"),
        ("America/New_York", "2026-03-07T12:00:00Z"),
        ("Australia/Lord_Howe", "2026-04-04T00:00:00Z"),
    ] {
        for text in ["09:00-16:00", "Sat 22:00-05:00", "Sun 03:30-04:30,12:00-13:00"] {
            let window = window(text, zone);
            let mut at = t(from);
            let mut turns = window.next_change(at);
            let mut open = window.is_open(at);
            for _ in 0..3 * 24 * 60 {
                at = at.checked_add(1.minutes()).unwrap();
                let now = window.is_open(at);
                assert_eq!(now != open, turns == Some(at), "{text} {zone} {at}");
                if now != open {
                    (open, turns) = (now, window.next_change(at));
                }
                let civil = at.to_zoned(window.zone.clone());
                let minute = u16::try_from(i32::from(civil.hour()) * 60 + i32::from(civil.minute())).unwrap();
                // Outside the hour around the change, civil time decides.
                if !(1..=3).contains(&civil.hour()) {
                    assert_eq!(
                        now,
                        by_civil_time(&window, civil.date(), minute),
                        "{text} {zone} {civil}"
                    );
                }
            }
        }
    }
}

fn by_civil_time(window: &Window, day: Date, minute: u16) -> bool {
    let on = |day: Date| window.days[usize::from(day.weekday().to_monday_zero_offset().unsigned_abs())];
    window.ranges.iter().any(|(begin, end)| {
        if begin < end {
            on(day) && (*begin..*end).contains(&minute)
        } else {
            (on(day) && minute >= *begin) || (on(day.yesterday().unwrap()) && minute < *end)
        }
    })
}

#[test]
fn an_invalid_window_is_rejected_with_a_valid_example() {
    for (allow, deny, zone, expected) in [
        ("", "", "", "exactly one of allow and deny"),
        (
            "Mon 09:00-10:00",
            "Tue 09:00-10:00",
            "",
            "exactly one of allow and deny",
        ),
        (
            "Mon",
            "",
            "",
            "allow: \"Mon\" is not a list of days and a time range",
        ),
        ("Mo 09:00-10:00", "", "", "\"Mo\" is not a day"),
        ("Mon 9:00-10:00", "", "", "\"9:00\" is not a time of day"),
        ("Mon 09:60-10:00", "", "", "\"09:60\" is not a time of day"),
        ("Mon 09:00-24:01", "", "", "\"24:01\" is not a time of day"),
        ("Mon 24:00-10:00", "", "", "24:00 can only be the end"),
        ("Mon 09:00-09:00", "", "", "has no length"),
        ("Mon 09:00", "", "", "\"09:00\" is not a time range"),
        ("", "Mon 09:00", "", "deny:"),
        (
            "Mon 09:00-10:00 UTC",
            "",
            "",
            "is not a list of days and a time range",
        ),
        ("Mon 09:00-10:00", "", "Mars/Olympus", "no zone \"Mars/Olympus\""),
    ] {
        let error = Window::new(&starling_api::Window {
            allow: allow.into(),
            deny: deny.into(),
            time_zone: zone.into(),
            cluster_selector: None,
        })
        .unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn a_window_is_shown_as_it_is_written() {
    for (text, zone, shown) in [
        (
            "mon-wed 09:00-16:00",
            "Europe/Berlin",
            "allow Mon,Tue,Wed 09:00-16:00 Europe/Berlin",
        ),
        ("22:00-04:00,12:00-13:00", "", "allow 22:00-04:00,12:00-13:00 UTC"),
    ] {
        assert_eq!(window(text, zone).to_string(), shown);
    }
}
