//! Durations on the command line.

use std::time::Duration;

use super::value::InvalidValue;

/// Parses a duration such as `90s`, `5m` or `1h30m`.
pub(super) fn duration(text: &str) -> Result<Duration, InvalidValue> {
    let duration: starling_api::Duration = text
        .parse()
        .map_err(|_| InvalidValue::new("expected a duration, such as 90s, 5m or 1h30m"))?;
    Ok(duration.as_std())
}

/// Parses a duration, or a number of seconds, which these options took at first.
pub(super) fn duration_or_seconds(text: &str) -> Result<Duration, InvalidValue> {
    text.parse().map(Duration::from_secs).or_else(|_| duration(text))
}
