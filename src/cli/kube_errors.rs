//! Errors of requests to a cluster, without the prefixes of kube.
//!
//! [`crate::chain`] does not quote text that may hold a credential.

use anyhow::anyhow;
use kube::config::KubeconfigError;
use kube::runtime::watcher;

/// The API server does not serve the path: the kind is missing, not the object.
#[derive(Debug, thiserror::Error)]
#[error("the cluster does not serve this kind")]
pub(super) struct NotServed;

/// The error of a kubeconfig.
pub(super) fn kubeconfig(error: &KubeconfigError) -> anyhow::Error {
    anyhow!("{}", crate::chain(error))
}

/// The error of a request.
pub(super) fn request(error: kube::Error) -> anyhow::Error {
    match error {
        // For a missing object, the Status names it.
        kube::Error::Api(status) if status.code == 404 && status.details.is_none() => {
            anyhow::Error::new(NotServed)
        }
        error => anyhow!("{}", crate::chain(&error)),
    }
}

/// The error of a watch.
pub(super) fn watch(error: watcher::Error) -> anyhow::Error {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => request(error),
        watcher::Error::WatchError(status) => request(kube::Error::Api(status)),
        error @ watcher::Error::NoResourceVersion => anyhow!("{}", crate::chain(&error)),
    }
}

/// Whether the API server refuses the watch: a failure may end by itself, a missing permission does not.
pub(super) fn is_refused(error: &watcher::Error) -> bool {
    let status = match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status)) => status.code,
        watcher::Error::WatchError(status) => status.code,
        _ => return false,
    };
    matches!(status, 401 | 403 | 404)
}

/// The failures of a watch that is retried: the first is reported, and the first after each recovery.
#[derive(Debug, Default)]
pub(super) struct WatchFailures {
    has_failed: bool,
}

impl WatchFailures {
    /// Records an event. The start of a list is not a recovery yet.
    pub(super) fn observe<K>(&mut self, event: &watcher::Event<K>) {
        if !matches!(event, watcher::Event::Init) {
            self.has_failed = false;
        }
    }

    /// Records a failure. Returns what to report; `None`: it is reported already.
    ///
    /// # Errors If the API server refuses the watch.
    pub(super) fn record(&mut self, error: watcher::Error) -> anyhow::Result<Option<String>> {
        if is_refused(&error) {
            return Err(watch(error).context("watch"));
        }
        let had_failed = std::mem::replace(&mut self.has_failed, true);
        Ok((!had_failed).then(|| format!("watch failed, retrying: {:#}", watch(error))))
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    fn status(code: u16) -> Box<Status> {
        Status::failure("it says why", "Because").with_code(code).boxed()
    }

    #[test]
    fn an_api_error_is_its_message_and_a_missing_kind_is_distinct() {
        for code in [403, 409] {
            let error = request(kube::Error::Api(status(code)));
            assert_eq!(error.to_string(), "it says why");
        }
        let error = request(kube::Error::Api(status(404)));
        assert!(error.downcast_ref::<NotServed>().is_some());
        let error = watch(watcher::Error::WatchError(status(410)));
        assert_eq!(error.to_string(), "it says why");
    }

    #[test]
    fn a_failure_is_reported_once_until_the_watch_recovers() {
        let mut failures = WatchFailures::default();
        let report =
            |failures: &mut WatchFailures| failures.record(watcher::Error::WatchError(status(500))).unwrap();
        assert_eq!(
            report(&mut failures).as_deref(),
            Some("watch failed, retrying: it says why")
        );
        failures.observe(&watcher::Event::<()>::Init);
        assert_eq!(report(&mut failures), None);
        failures.observe(&watcher::Event::<()>::InitDone);
        assert!(report(&mut failures).is_some());
    }

    #[test]
    fn a_missing_permission_ends_a_watch() {
        for (code, ends) in [(401, true), (403, true), (404, true), (410, false), (500, false)] {
            for error in [
                watcher::Error::WatchError(status(code)),
                watcher::Error::InitialListFailed(kube::Error::Api(status(code))),
                watcher::Error::WatchStartFailed(kube::Error::Api(status(code))),
                watcher::Error::WatchFailed(kube::Error::Api(status(code))),
            ] {
                assert_eq!(WatchFailures::default().record(error).is_err(), ends, "{code}");
            }
        }
    }
}
