//! Lengths of time, as they are given on the command line.

use std::time::Duration;

/// Such as `90s`, `5m` or `1h30m`.
pub(super) fn span(text: &str) -> Result<Duration, String> {
    let duration: starling_api::Duration =
        serde_json::from_value(text.into()).map_err(|_| "give a duration, such as 90s, 5m or 1h30m")?;
    Ok(duration.as_std())
}

/// The same, or a plain number of seconds, as limits were always written.
pub(super) fn span_or_seconds(text: &str) -> Result<Duration, String> {
    text.parse().map(Duration::from_secs).or_else(|_| span(text))
}
