//! How many files and sockets this process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit to what the system allows. What is usual, 1024, is for programs that wait with `select`; a controller has a
/// socket or two for each of thousands of members, and an embedded server the other ends of them.
pub(super) fn allow_many() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if limit.current == limit.maximum {
        return;
    }
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        // It stays as it was, which is enough for most fleets.
        tracing::warn!(%error, limit = ?limit.current, "the limit of open files is not raised");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_what_the_system_allows() {
        allow_many();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }
}
