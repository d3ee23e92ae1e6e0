//! Change windows: when a cluster may be started, in the wall-clock time of a zone.
//!
//! Written as `Mon-Fri 09:00-16:00`: days, which may be left out, and times of the day. Several of each are separated by
//! commas, days wrap around the week (`Fri-Mon`), and times around midnight (`22:00-04:00` belongs to the day it begins
//! on). Where a clock change repeats an hour, a window that begins in it begins with the first pass and one that ends in
//! it ends with the second; where a change leaves an hour out, what would begin or end in it does so when the hour is
//! over.

use std::fmt;
use std::time::Duration;

use jiff::civil::{Date, DateTime};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Span, Timestamp, ToSpan};
use serde::{Deserialize, Serialize};

const MINUTES_OF_A_DAY: u16 = 24 * 60;
const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
/// How far ahead a change is looked for. A window that is there on some day of the week changes within a week and a
/// day, and within two where a zone leaves out that very day (Samoa did).
const AHEAD: i64 = 15;

/// A window of the strategy, read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Window {
    /// Whether clusters may start while it is open; otherwise they may not.
    pub allow: bool,
    /// On which days it begins, Monday first.
    pub days: [bool; 7],
    /// Minutes of the day, begin and end. One that does not end after it begins ends on the next day.
    pub ranges: Vec<(u16, u16)>,
    /// In which zone.
    #[serde(with = "jiff::fmt::serde::tz::required")]
    pub zone: TimeZone,
}

/// Why a window makes no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    /// Neither or both of `allow` and `deny`.
    #[error("exactly one of allow and deny is needed")]
    AllowOrDeny,
    /// Its text cannot be read.
    #[error("{field}: {problem}; write it as \"Mon-Fri 09:00-16:00\" or \"Sat,Sun 00:00-24:00\"")]
    Text {
        /// `allow` or `deny`.
        field: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// There is no such zone.
    #[error("timeZone: there is no zone {name:?} in the IANA database; write one such as Europe/Berlin")]
    Zone {
        /// The name.
        name: String,
    },
}

impl Window {
    /// Reads a window.
    ///
    /// # Errors
    /// [`WindowError`].
    pub fn new(window: &starling_api::Window) -> Result<Self, WindowError> {
        let (allow, field, text) = match (window.allow.as_str(), window.deny.as_str()) {
            (text, "") if !text.is_empty() => (true, "allow", text),
            ("", text) if !text.is_empty() => (false, "deny", text),
            _ => return Err(WindowError::AllowOrDeny),
        };
        let (days, ranges) = parse(text).map_err(|problem| WindowError::Text { field, problem })?;
        let zone = match window.time_zone.as_str() {
            "" => TimeZone::UTC,
            name => TimeZone::get(name).map_err(|_| WindowError::Zone {
                name: name.to_owned(),
            })?,
        };
        Ok(Self {
            allow,
            days,
            ranges,
            zone,
        })
    }

    /// Whether it is open.
    #[must_use]
    pub fn is_open(&self, at: Timestamp) -> bool {
        Calendar::of(self, at).is_open(at)
    }

    /// When it next opens or closes; `None`: never.
    #[must_use]
    pub fn next_change(&self, after: Timestamp) -> Option<Timestamp> {
        // Of one window alone: it changes when its opposite does, so it is all one whether it allows or denies.
        combined(&[&Calendar::of(self, after)], after).changes_at
    }

    /// The intervals that begin on the days around `today`.
    fn intervals(
        &self,
        today: Date,
        days: std::ops::RangeInclusive<i64>,
    ) -> impl Iterator<Item = (Timestamp, Timestamp)> + '_ {
        days.filter_map(move |offset| today.checked_add(Span::new().try_days(offset).ok()?).ok())
            .filter(|day| self.days[usize::from(day.weekday().to_monday_zero_offset().unsigned_abs())])
            .flat_map(move |day| {
                self.ranges
                    .iter()
                    .filter_map(move |range| self.interval(day, *range))
            })
    }

    fn interval(&self, day: Date, (begin, end): (u16, u16)) -> Option<(Timestamp, Timestamp)> {
        let end_day = if end > begin { day } else { day.tomorrow().ok()? };
        let begin = self.instant(at_minute(day, begin)?, Pass::First)?;
        let end = self.instant(at_minute(end_day, end)?, Pass::Second)?;
        // In an hour that the clock left out both are one instant, at which nothing is open.
        Some((begin, end))
    }

    /// The instant of a time on the clock on the wall.
    fn instant(&self, time: DateTime, pass: Pass) -> Option<Timestamp> {
        let ambiguous = self.zone.to_ambiguous_timestamp(time);
        match (ambiguous.offset(), pass) {
            (AmbiguousOffset::Gap { after, .. }, _) => {
                // Read with the offset after it, a time in the gap is an instant before it, by less than its length.
                let before = after.to_timestamp(time).ok()?;
                let transition = self.zone.following(before).next()?;
                Some(transition.timestamp())
            }
            (_, Pass::First) => ambiguous.earlier().ok(),
            (_, Pass::Second) => ambiguous.later().ok(),
        }
    }
}

/// Which of two passes of an hour that a clock change repeats.
#[derive(Clone, Copy)]
enum Pass {
    First,
    Second,
}

fn at_minute(day: Date, minute: u16) -> Option<DateTime> {
    day.to_datetime(jiff::civil::Time::midnight())
        .checked_add(i64::from(minute).minutes())
        .ok()
}

/// A window around a time: when it is open, from the day before yesterday to as far as is looked ahead. To find these
/// intervals costs more than everything else about windows, so it is done once where many clusters ask.
#[derive(Clone, Debug)]
pub struct Calendar {
    allow: bool,
    intervals: Vec<(Timestamp, Timestamp)>,
    /// Nothing is known from here on.
    ends: Timestamp,
}

impl Calendar {
    /// A window around a time.
    #[must_use]
    pub fn of(window: &Window, at: Timestamp) -> Self {
        let today = at.to_zoned(window.zone.clone()).date();
        // What began the day before may last until now, whatever the zone left out in between.
        let intervals = window.intervals(today, -2..=AHEAD).collect();
        let ends = at.checked_add(Duration::from_secs(AHEAD.unsigned_abs() * 24 * 60 * 60));
        Self {
            allow: window.allow,
            intervals,
            ends: ends.unwrap_or(Timestamp::MAX),
        }
    }

    fn is_open(&self, at: Timestamp) -> bool {
        self.intervals
            .iter()
            .any(|(begin, end)| *begin <= at && at < *end)
    }

    /// Where it may open or close.
    fn edges(&self) -> impl Iterator<Item = Timestamp> + '_ {
        self.intervals.iter().flat_map(|(begin, end)| [*begin, *end])
    }
}

/// Some windows taken together, at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// Whether clusters may start: no `deny` is open, and one `allow`, if there are any.
    pub is_open: bool,
    /// When that changes; `None`: not before the calendars end.
    pub changes_at: Option<Timestamp>,
    /// When the first of the calendars ends; `None`: there are no windows.
    pub known_until: Option<Timestamp>,
}

impl Opening {
    /// Without windows clusters may always start.
    pub const ALWAYS: Self = Self {
        is_open: true,
        changes_at: None,
        known_until: None,
    };
}

/// Takes windows together.
#[must_use]
pub fn combined(calendars: &[&Calendar], at: Timestamp) -> Opening {
    let is_open = open_at(calendars, at);
    let known_until = calendars.iter().map(|calendar| calendar.ends).min();
    let looked_at = at..known_until.unwrap_or(Timestamp::MAX);
    let mut edges: Vec<Timestamp> = calendars
        .iter()
        .flat_map(|calendar| calendar.edges())
        .filter(|edge| looked_at.contains(edge))
        .collect();
    edges.sort_unstable();
    Opening {
        is_open,
        // Where one interval ends and another begins, nothing changes.
        changes_at: edges
            .into_iter()
            .find(|edge| open_at(calendars, *edge) != is_open),
        known_until,
    }
}

fn open_at(calendars: &[&Calendar], at: Timestamp) -> bool {
    let (mut allows, mut allowed) = (false, false);
    for calendar in calendars {
        let open = calendar.is_open(at);
        if !calendar.allow && open {
            return false;
        }
        allows |= calendar.allow;
        allowed |= calendar.allow && open;
    }
    allowed || !allows
}

type Times = ([bool; 7], Vec<(u16, u16)>);

fn parse(text: &str) -> Result<Times, String> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let (days, times) = match words.as_slice() {
        [times] if times.contains(':') => (None, *times),
        [days, times] => (Some(*days), *times),
        _ => return Err(format!("{text:?} is not days and times")),
    };
    let days = days.map_or(Ok([true; 7]), parse_days)?;
    let ranges = times.split(',').map(parse_range).collect::<Result<_, _>>()?;
    Ok((days, ranges))
}

fn parse_days(text: &str) -> Result<[bool; 7], String> {
    let mut days = [false; 7];
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (mut day, last) = (parse_day(first)?, parse_day(last)?);
        days[day] = true;
        while day != last {
            day = (day + 1) % 7;
            days[day] = true;
        }
    }
    Ok(days)
}

fn parse_day(text: &str) -> Result<usize, String> {
    DAYS.iter()
        .position(|day| text.eq_ignore_ascii_case(day))
        .ok_or_else(|| format!("{text:?} is no day (Mon, Tue, Wed, Thu, Fri, Sat, Sun)"))
}

fn parse_range(text: &str) -> Result<(u16, u16), String> {
    let (begin, end) = text
        .split_once('-')
        .ok_or_else(|| format!("{text:?} is no time to a time"))?;
    let (begin, end) = (parse_time(begin)?, parse_time(end)?);
    if begin == MINUTES_OF_A_DAY {
        return Err("24:00 can only be the end".to_owned());
    }
    if begin == end {
        return Err(format!("{text:?} has no length; a whole day is 00:00-24:00"));
    }
    Ok((begin, end))
}

fn parse_time(text: &str) -> Result<u16, String> {
    let bad = || format!("{text:?} is no time of the day such as 09:00");
    let (hours, minutes) = text.split_once(':').ok_or_else(bad)?;
    let two = |digits: &str| {
        (digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_digit()))
            .then(|| digits.parse::<u16>().ok())
            .flatten()
    };
    let (hours, minutes) = (two(hours).ok_or_else(bad)?, two(minutes).ok_or_else(bad)?);
    let minute = hours * 60 + minutes;
    if minutes > 59 || minute > MINUTES_OF_A_DAY {
        return Err(bad());
    }
    Ok(minute)
}

impl fmt::Display for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.allow { "allow" } else { "deny" })?;
        if self.days != [true; 7] {
            let names = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
            let days: Vec<&str> = names
                .into_iter()
                .zip(self.days)
                .filter(|(_, on)| *on)
                .map(|(name, _)| name)
                .collect();
            write!(f, " {}", days.join(","))?;
        }
        for (n, (begin, end)) in self.ranges.iter().enumerate() {
            let separator = if n == 0 { ' ' } else { ',' };
            write!(
                f,
                "{separator}{:02}:{:02}-{:02}:{:02}",
                begin / 60,
                begin % 60,
                end / 60,
                end % 60
            )?;
        }
        write!(f, " {}", self.zone.iana_name().unwrap_or("UTC"))
    }
}

#[cfg(test)]
mod tests;
