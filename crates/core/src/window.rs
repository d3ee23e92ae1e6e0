//! Windows: when clusters may start, in the civil time of a zone.
//!
//! The format is `Mon-Fri 09:00-16:00`: days, which are optional, and times. Several of each are separated by commas.
//! Days wrap around the week (`Fri-Mon`), and times around midnight (`22:00-04:00` belongs to the day on which it
//! begins). If a clock change repeats an hour, a window that begins in this hour begins with its first occurrence, and
//! one that ends in it ends with the second. If a clock change skips an hour, a window that would begin or end in it
//! does so at the end of the hour.

use std::fmt;
use std::time::Duration;

use jiff::civil::{Date, DateTime};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Span, Timestamp, ToSpan};
use serde::{Deserialize, Serialize};

const MINUTES_OF_A_DAY: u16 = 24 * 60;
const DAYS: [&str; 7] = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
/// The number of days ahead in which the next change is searched. A window changes within a week and a day, and within
/// two weeks if a zone skips the day (as Samoa did).
const AHEAD: i64 = 15;

/// A parsed window of the strategy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Window {
    /// Whether clusters may start while the window is open; otherwise they may not.
    pub allow: bool,
    /// The days on which it begins, Monday first.
    pub days: [bool; 7],
    /// Begin and end, in minutes of the day. A range that does not end after its begin ends on the next day.
    pub ranges: Vec<(u16, u16)>,
    /// The time zone.
    #[serde(with = "jiff::fmt::serde::tz::required")]
    pub zone: TimeZone,
}

/// The reason why a window is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WindowError {
    /// Neither or both of `allow` and `deny`.
    #[error("exactly one of allow and deny is needed")]
    AllowOrDeny,
    /// The text cannot be parsed.
    #[error("{field}: {source}; write it as \"Mon-Fri 09:00-16:00\" or \"Sat,Sun 00:00-24:00\"")]
    Text {
        /// `allow` or `deny`.
        field: &'static str,
        /// The error in the text.
        #[source]
        source: TextError,
    },
    /// The zone does not exist.
    #[error("timeZone: there is no zone {name:?} in the IANA database; write one such as Europe/Berlin")]
    Zone {
        /// The name.
        name: String,
    },
}

/// The reason why the text of a window cannot be parsed. Each error quotes the part that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// Neither times, nor days and times.
    #[error("{0:?} is not a list of days and a time range")]
    NotDaysAndTimes(String),
    /// An unknown day.
    #[error("{0:?} is not a day (Mon, Tue, Wed, Thu, Fri, Sat, Sun)")]
    NotDay(String),
    /// No range of times.
    #[error("{0:?} is not a time range such as 09:00-16:00")]
    NotRange(String),
    /// No time of the day.
    #[error("{0:?} is not a time of day such as 09:00")]
    NotTime(String),
    /// A range that begins at the end of the day.
    #[error("24:00 can only be the end")]
    BeginsAtEndOfDay,
    /// A range that ends when it begins.
    #[error("{0:?} has no length; a whole day is 00:00-24:00")]
    EmptyRange(String),
}

impl Window {
    /// Parses a window.
    ///
    /// # Errors
    /// [`WindowError`].
    pub fn new(window: &starling_api::Window) -> Result<Self, WindowError> {
        let (allow, field, text) = match (window.allow.as_str(), window.deny.as_str()) {
            (text, "") if !text.is_empty() => (true, "allow", text),
            ("", text) if !text.is_empty() => (false, "deny", text),
            _ => return Err(WindowError::AllowOrDeny),
        };
        let (days, ranges) = parse(text).map_err(|source| WindowError::Text { field, source })?;
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

    /// Reports whether the window is open.
    #[must_use]
    pub fn is_open(&self, at: Timestamp) -> bool {
        Calendar::of(self, at).is_open(at)
    }

    /// Returns when the window next opens or closes; `None`: never.
    #[must_use]
    pub fn next_change(&self, after: Timestamp) -> Option<Timestamp> {
        // A single window changes when its opposite does, so it does not matter whether it allows or denies.
        combined(&[&Calendar::of(self, after)], after).changes_at
    }

    /// Returns the intervals that begin on these days, relative to `today`.
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
                    .filter_map(move |&(begin, end)| self.interval(day, begin, end))
            })
    }

    fn interval(&self, day: Date, begin: u16, end: u16) -> Option<(Timestamp, Timestamp)> {
        let end_day = if end > begin { day } else { day.tomorrow().ok()? };
        let begin = self.instant(at_minute(day, begin)?, Occurrence::First)?;
        let end = self.instant(at_minute(end_day, end)?, Occurrence::Second)?;
        // In a skipped hour both are the same instant, at which nothing is open.
        Some((begin, end))
    }

    /// Returns the instant of a civil time.
    fn instant(&self, time: DateTime, pass: Occurrence) -> Option<Timestamp> {
        let ambiguous = self.zone.to_ambiguous_timestamp(time);
        match (ambiguous.offset(), pass) {
            (AmbiguousOffset::Gap { after, .. }, _) => {
                // Read with the offset after it, a time in the gap is an instant before it, by less than its length.
                let before = after.to_timestamp(time).ok()?;
                let transition = self.zone.following(before).next()?;
                Some(transition.timestamp())
            }
            (_, Occurrence::First) => ambiguous.earlier().ok(),
            (_, Occurrence::Second) => ambiguous.later().ok(),
        }
    }
}

/// The first or second occurrence of an hour that a clock change repeats.
#[derive(Clone, Copy)]
enum Occurrence {
    First,
    Second,
}

fn at_minute(day: Date, minute: u16) -> Option<DateTime> {
    day.to_datetime(jiff::civil::Time::midnight())
        .checked_add(i64::from(minute).minutes())
        .ok()
}

/// The intervals of a window around a time, from the day before yesterday to the last day that is searched. Computing
/// these intervals costs more than everything else about windows, so it is done once for many clusters.
#[derive(Clone, Debug)]
pub struct Calendar {
    allow: bool,
    intervals: Vec<(Timestamp, Timestamp)>,
    /// Time at which the intervals end.
    ends: Timestamp,
}

impl Calendar {
    /// Returns the intervals of a window around a time.
    #[must_use]
    pub fn of(window: &Window, at: Timestamp) -> Self {
        let today = at.to_zoned(window.zone.clone()).date();
        // An interval that began on the day before may last until now, even if the zone skips a day in between.
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

    /// Returns the times at which the window may open or close.
    fn edges(&self) -> impl Iterator<Item = Timestamp> + '_ {
        self.intervals.iter().flat_map(|(begin, end)| [*begin, *end])
    }
}

/// The combined state of windows at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    /// Whether clusters may start: no `deny` window is open, and one `allow` window is, if there are any.
    pub is_open: bool,
    /// Time at which `is_open` changes; `None`: not before the calendars end.
    pub changes_at: Option<Timestamp>,
    /// Time at which the first of the calendars ends; `None`: there are no windows.
    pub known_until: Option<Timestamp>,
}

impl Opening {
    /// Without windows, clusters may always start.
    pub const ALWAYS: Self = Self {
        is_open: true,
        changes_at: None,
        known_until: None,
    };
}

/// Combines windows.
#[must_use]
pub fn combined(calendars: &[&Calendar], at: Timestamp) -> Opening {
    let is_open = open_at(calendars, at);
    let known_until = calendars.iter().map(|calendar| calendar.ends).min();
    let horizon = at..known_until.unwrap_or(Timestamp::MAX);
    let mut edges: Vec<Timestamp> = calendars
        .iter()
        .flat_map(|calendar| calendar.edges())
        .filter(|edge| horizon.contains(edge))
        .collect();
    edges.sort_unstable();
    Opening {
        is_open,
        // Nothing changes where one interval ends and another begins.
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

fn parse(text: &str) -> Result<Times, TextError> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let (days, times) = match words.as_slice() {
        [times] if times.contains(':') => (None, *times),
        [days, times] => (Some(*days), *times),
        _ => return Err(TextError::NotDaysAndTimes(text.to_owned())),
    };
    let days = days.map_or(Ok([true; 7]), parse_days)?;
    let ranges = times.split(',').map(parse_range).collect::<Result<_, _>>()?;
    Ok((days, ranges))
}

fn parse_days(text: &str) -> Result<[bool; 7], TextError> {
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

fn parse_day(text: &str) -> Result<usize, TextError> {
    DAYS.iter()
        .position(|day| text.eq_ignore_ascii_case(day))
        .ok_or_else(|| TextError::NotDay(text.to_owned()))
}

fn parse_range(text: &str) -> Result<(u16, u16), TextError> {
    let (begin, end) = text
        .split_once('-')
        .ok_or_else(|| TextError::NotRange(text.to_owned()))?;
    let (begin, end) = (parse_time(begin)?, parse_time(end)?);
    if begin == MINUTES_OF_A_DAY {
        return Err(TextError::BeginsAtEndOfDay);
    }
    if begin == end {
        return Err(TextError::EmptyRange(text.to_owned()));
    }
    Ok((begin, end))
}

fn parse_time(text: &str) -> Result<u16, TextError> {
    let bad = || TextError::NotTime(text.to_owned());
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
