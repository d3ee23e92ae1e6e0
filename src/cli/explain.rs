//! Says what went wrong between this machine and a cluster, for people: what kube adds in front is left out.
//!
//! What may hold a credential is not quoted; [`crate::chain`] sees to that.

use anyhow::anyhow;
use kube::config::KubeconfigError;
use kube::runtime::watcher;

/// The path of the request is not served: not a missing object, a missing kind.
#[derive(Debug, thiserror::Error)]
#[error("the cluster does not have this kind")]
pub(super) struct NotServed;

/// Why a kubeconfig cannot be read.
pub(super) fn kubeconfig(error: &KubeconfigError) -> anyhow::Error {
    anyhow!("{}", crate::chain(error))
}

/// Why a request was not answered as it should be.
pub(super) fn request(error: kube::Error) -> anyhow::Error {
    match error {
        // A missing object is answered by a Status that names it.
        kube::Error::Api(status) if status.code == 404 && status.details.is_none() => {
            anyhow::Error::new(NotServed)
        }
        error => anyhow!("{}", crate::chain(&error)),
    }
}

/// Why a watch broke.
pub(super) fn watch(error: watcher::Error) -> anyhow::Error {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => request(error),
        watcher::Error::WatchError(status) => request(kube::Error::Api(status)),
        error @ watcher::Error::NoResourceVersion => anyhow!("{}", crate::chain(&error)),
    }
}

/// Whether the cluster answered that it is not going to give this watch: a break heals by itself, a right that is missing does not.
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

/// The breaks of a watch that is tried again: the first of them is told, and the first after it went on.
#[derive(Debug, Default)]
pub(super) struct Breaks {
    is_broken: bool,
}

impl Breaks {
    /// What an event means for them. A list that begins has not been answered yet.
    pub(super) fn observe<K>(&mut self, event: &watcher::Event<K>) {
        if !matches!(event, watcher::Event::Init) {
            self.is_broken = false;
        }
    }

    /// One more. What is to be said of it; nothing, if it was said.
    ///
    /// # Errors
    /// If it is for good.
    pub(super) fn one_more(&mut self, error: watcher::Error) -> anyhow::Result<Option<String>> {
        if is_refused(&error) {
            return Err(watch(error).context("watch"));
        }
        let was_broken = std::mem::replace(&mut self.is_broken, true);
        Ok((!was_broken).then(|| format!("the watch broke and is tried again: {:#}", watch(error))))
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
    fn an_answer_is_its_message_and_a_missing_kind_is_told_apart() {
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
    fn a_break_is_told_once_until_the_watch_goes_on() {
        let mut breaks = Breaks::default();
        let tell = |breaks: &mut Breaks| breaks.one_more(watcher::Error::WatchError(status(500))).unwrap();
        assert_eq!(
            tell(&mut breaks).as_deref(),
            Some("the watch broke and is tried again: it says why")
        );
        breaks.observe(&watcher::Event::<()>::Init);
        assert_eq!(tell(&mut breaks), None);
        breaks.observe(&watcher::Event::<()>::InitDone);
        assert!(tell(&mut breaks).is_some());
    }

    #[test]
    fn a_right_that_is_missing_ends_a_watch() {
        for (code, ends) in [(401, true), (403, true), (404, true), (410, false), (500, false)] {
            for error in [
                watcher::Error::WatchError(status(code)),
                watcher::Error::InitialListFailed(kube::Error::Api(status(code))),
                watcher::Error::WatchStartFailed(kube::Error::Api(status(code))),
                watcher::Error::WatchFailed(kube::Error::Api(status(code))),
            ] {
                assert_eq!(Breaks::default().one_more(error).is_err(), ends, "{code}");
            }
        }
    }
}
