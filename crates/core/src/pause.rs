//! The time for which a busy cluster gets no requests: `Retry-After`, parsed and limited.

use std::time::Duration;

use jiff::Timestamp;

use crate::digest::{hash64, spread};

/// The longest pause: a server must not keep its cluster from being reconciled.
pub const LONGEST: Duration = Duration::from_secs(60);
/// The pause without `Retry-After`.
pub const USUAL: Duration = Duration::from_secs(5);

/// Returns the pause of a `Retry-After` header, at most [`LONGEST`]: seconds, or a date (RFC 9110). `None`: it is
/// neither, or it names no time in the future, such as a date by a clock that is slow. Such a server has said that it
/// is busy and not for how long: to believe that it asks for no pause would repeat the request every second.
#[must_use]
pub fn requested(header: &str, now: Timestamp) -> Option<Duration> {
    let header = header.trim();
    if !header.is_empty() && header.bytes().all(|byte| byte.is_ascii_digit()) {
        // A number that is too large is limited anyway.
        let seconds = header.parse().unwrap_or(u64::MAX);
        return named(Duration::from_secs(seconds));
    }
    let at = jiff::fmt::rfc2822::parse(header).ok()?.timestamp();
    named(at.duration_since(now).try_into().ok()?)
}

fn named(pause: Duration) -> Option<Duration> {
    (!pause.is_zero()).then(|| bounded(pause))
}

/// Returns a pause of at most [`LONGEST`].
#[must_use]
pub fn bounded(pause: Duration) -> Duration {
    pause.min(LONGEST)
}

/// Returns the wait: the requested pause or [`USUAL`], and up to a fifth more by a hash of `seed`, so that requests
/// that were rejected together are not repeated together.
#[must_use]
pub fn wait(requested: Option<Duration>, seed: &str) -> Duration {
    let pause = bounded(requested.unwrap_or(USUAL)).max(Duration::from_secs(1));
    pause + spread(pause / 5, hash64(&[seed]))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-01-01T12:00:00Z";

    #[test]
    fn seconds_and_dates_are_read_and_bounded() {
        let now = NOW.parse().unwrap();
        let cases = [
            ("0", None),
            ("7", Some(7)),
            (" 7 ", Some(7)),
            ("60", Some(60)),
            ("120", Some(60)),
            ("86400", Some(60)),
            ("99999999999999999999999999", Some(60)),
            ("Thu, 01 Jan 2026 12:00:09 GMT", Some(9)),
            ("Thu, 01 Jan 2026 13:00:00 GMT", Some(60)),
            ("Thu, 01 Jan 2026 11:00:00 GMT", None),
            ("", None),
            ("-5", None),
            ("1.5", None),
            ("soon", None),
        ];
        for (header, seconds) in cases {
            assert_eq!(
                requested(header, now),
                seconds.map(Duration::from_secs),
                "{header:?}"
            );
        }
    }

    #[test]
    fn a_wait_is_at_least_the_requested_pause_and_little_more() {
        for n in 0..50 {
            let seed = n.to_string();
            let wait = |requested| wait(requested, &seed).as_secs_f64();
            assert!((10.0..=12.0).contains(&wait(Some(Duration::from_secs(10)))));
            assert!((60.0..=72.0).contains(&wait(Some(Duration::from_secs(3600)))));
            assert!((5.0..=6.0).contains(&wait(None)));
            assert!((1.0..=1.2).contains(&wait(Some(Duration::ZERO))));
        }
    }
}
