//! The limit of open files and sockets.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit to the maximum of the system. The usual 1024 is for programs that use `select`; a controller has a
/// socket or two for each of thousands of members, and an embedded server has their other ends.
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
        // The previous limit is enough for most fleets.
        tracing::warn!(%error, limit = ?limit.current, "cannot raise the limit of open files");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_the_maximum_of_the_system() {
        allow_many();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }
}
