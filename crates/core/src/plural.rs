//! Counts in messages.

use std::fmt::Display;

/// Returns a count with the words that follow it: `one` after 1, `many` after any other number.
#[must_use]
pub fn counted<N: Copy + Display + PartialEq + From<u8>>(count: N, one: &str, many: &str) -> String {
    let words = if count == N::from(1) { one } else { many };
    format!("{count} {words}")
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn one_is_singular() {
        for (count, expected) in [
            (0, "0 clusters wait"),
            (1, "1 cluster waits"),
            (21, "21 clusters wait"),
        ] {
            assert_eq!(counted::<u32>(count, "cluster waits", "clusters wait"), expected);
        }
    }
}
