//! Times in the formats of Kubernetes.

use jiff::Timestamp;

/// Formats a time without a fraction, like `metav1.Time`.
pub fn seconds(time: Timestamp) -> String {
    let time = Timestamp::from_second(time.as_second()).unwrap_or(time);
    time.to_string()
}

/// Formats a time with six fractional digits, like `metav1.MicroTime`.
pub fn micros(time: Timestamp) -> String {
    format!("{time:.6}")
}

/// Parses a time.
pub fn parse(text: &str) -> Option<Timestamp> {
    text.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_the_form_of_their_kind() {
        let time: Timestamp = "2026-03-01T10:00:00.5+02:00".parse().unwrap_or_default();
        assert_eq!(seconds(time), "2026-03-01T08:00:00Z");
        assert_eq!(micros(time), "2026-03-01T08:00:00.500000Z");
    }
}
