//! Ages in the short form that Kubernetes prints.

use jiff::SignedDuration;

/// Formats a duration with two or three significant digits, such as `3m20s`, `47h` or `8d`.
pub fn human(duration: SignedDuration) -> String {
    const MINUTE: i64 = 60;
    const HOUR: i64 = 60 * MINUTE;
    const DAY: i64 = 24;
    const YEAR: i64 = 365;
    let seconds = duration.as_secs();
    let (minutes, hours) = (seconds / MINUTE, seconds / HOUR);
    let both = |large: i64, unit: char, small: i64, part: char| match small {
        0 => format!("{large}{unit}"),
        small => format!("{large}{unit}{small}{part}"),
    };
    match () {
        // The clocks of two machines may differ a little.
        () if seconds < -1 => "<invalid>".to_owned(),
        () if seconds < 0 => "0s".to_owned(),
        () if seconds < 2 * MINUTE => format!("{seconds}s"),
        () if minutes < 10 => both(minutes, 'm', seconds % MINUTE, 's'),
        () if minutes < 3 * 60 => format!("{minutes}m"),
        () if hours < 8 => both(hours, 'h', minutes % 60, 'm'),
        () if hours < 2 * DAY => format!("{hours}h"),
        () if hours < 8 * DAY => both(hours / DAY, 'd', hours % DAY, 'h'),
        () if hours < 2 * YEAR * DAY => format!("{}d", hours / DAY),
        () if hours < 8 * YEAR * DAY => both(hours / DAY / YEAR, 'y', hours / DAY % YEAR, 'd'),
        () => format!("{}y", hours / DAY / YEAR),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_formatted_as_in_kubernetes() {
        const HOUR: i64 = 3600;
        const DAY: i64 = 24 * HOUR;
        for (seconds, text) in [
            (-2, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (600, "10m"),
            (3 * HOUR - 1, "179m"),
            (3 * HOUR, "3h"),
            (3 * HOUR + 61, "3h1m"),
            (8 * HOUR + 61, "8h"),
            (47 * HOUR, "47h"),
            (2 * DAY, "2d"),
            (2 * DAY + HOUR, "2d1h"),
            (8 * DAY + HOUR, "8d"),
            (700 * DAY, "700d"),
            (730 * DAY, "2y"),
            (735 * DAY, "2y5d"),
            (365 * 9 * DAY, "9y"),
        ] {
            assert_eq!(human(SignedDuration::from_secs(seconds)), text, "{seconds}");
        }
    }
}
