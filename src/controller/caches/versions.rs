//! Compares two states of an object.

use std::cmp::Ordering;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use starling_core::resource_version;

/// The origin of a state of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VersionOrigin {
    /// A list or an event. States arrive in the order of their writes.
    Watch,
    /// The response to a request of this process. The watch may already have delivered a newer state.
    Response,
}

/// Returns the version of a state; empty if it has none.
pub(super) fn version(metadata: &ObjectMeta) -> &str {
    metadata.resource_version.as_deref().unwrap_or_default()
}

/// Returns whether a state of an object replaces the known state.
///
/// If the order of two versions is unknown, a state from the watch wins: the watch delivers states in order, and its
/// last state is current. A response does not win: the known state may be newer, and an older state would stay until
/// the next event.
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
            // Equal states, whatever the order is.
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
