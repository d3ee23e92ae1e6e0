//! Which of two states of an object is the newer one.

use std::cmp::Ordering;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use starling_core::resource_version;

/// Where a state of an object comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VersionOrigin {
    /// A list or an event, in the order in which the states were written.
    Watch,
    /// The answer to a request of this process, which may have been overtaken by the watch.
    Response,
}

/// The version of a state; empty if it has none.
pub(super) fn version(metadata: &ObjectMeta) -> &str {
    metadata.resource_version.as_deref().unwrap_or_default()
}

/// Whether a state of an object takes the place of one that is known.
///
/// Where the order of two versions is not known, the watch is followed: it delivers states in their order, and what it
/// says last is so. An answer is not: what the watch brought before may be newer, and an older state would then stand
/// until the next event.
pub(super) fn is_newer(version: &str, known: &str, origin: VersionOrigin) -> bool {
    match resource_version::compare(version, known) {
        Some(order) => order == Ordering::Greater,
        None => origin == VersionOrigin::Watch,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_ordered_and_otherwise_the_watch_is_followed() {
        for (version, known, from_watch, from_response) in [
            ("10", "9", true, true),
            ("9", "10", false, false),
            ("10", "10", false, false),
            ("18446744073709551617", "18446744073709551616", true, true),
            ("18446744073709551616", "18446744073709551617", false, false),
            // The same state, whatever the order is.
            ("a1", "a1", false, false),
            ("", "", false, false),
            ("a9", "a1", true, false),
            ("a1", "a9", true, false),
            ("10", "a9", true, false),
            ("a9", "10", true, false),
            ("", "10", true, false),
            ("10", "", true, false),
        ] {
            assert_eq!(
                is_newer(version, known, VersionOrigin::Watch),
                from_watch,
                "{version} {known}"
            );
            assert_eq!(
                is_newer(version, known, VersionOrigin::Response),
                from_response,
                "{version} {known}"
            );
        }
    }
}
