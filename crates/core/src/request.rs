//! Requests of a reconcile of a Sync: the annotation `starling.dev/requested-at` of the Sync, of its Cluster, or of its
//! group.

use kube_core::ResourceExt;
use starling_api::{Cluster, REQUESTED_AT, SyncGroup, SyncResource, SyncStatus};

/// The values of the annotation that concern one Sync.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requests<'a> {
    sync: Option<&'a str>,
    cluster: Option<&'a str>,
    group: Option<&'a str>,
}

impl<'a> Requests<'a> {
    /// Reads the annotations. `None`: the Cluster or the group does not exist.
    #[must_use]
    pub fn of(sync: &'a SyncResource, cluster: Option<&'a Cluster>, group: Option<&'a SyncGroup>) -> Self {
        Self {
            sync: requested_at(sync),
            cluster: cluster.and_then(requested_at),
            group: group.and_then(requested_at),
        }
    }

    /// Reports whether a request is not handled yet.
    #[must_use]
    pub fn are_open(&self, status: &SyncStatus) -> bool {
        let is_open = |requested: Option<&str>, handled: &str| requested.is_some_and(|at| at != handled);
        is_open(self.sync, &status.last_handled_reconcile_at)
            || is_open(self.cluster, &status.last_handled_cluster_reconcile_at)
            || is_open(self.group, &status.last_handled_group_reconcile_at)
    }

    /// Marks the requests as handled.
    pub fn handle(&self, status: &mut SyncStatus) {
        let handle = |requested: Option<&str>, handled: &mut String| {
            if let Some(requested) = requested {
                requested.clone_into(handled);
            }
        };
        handle(self.sync, &mut status.last_handled_reconcile_at);
        handle(self.cluster, &mut status.last_handled_cluster_reconcile_at);
        handle(self.group, &mut status.last_handled_group_reconcile_at);
    }
}

fn requested_at<K: ResourceExt>(object: &K) -> Option<&str> {
    object.annotations().get(REQUESTED_AT).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_is_open_until_it_is_handled() {
        let none = Requests {
            sync: None,
            cluster: None,
            group: None,
        };
        assert!(!none.are_open(&SyncStatus::default()));
        for requests in [
            Requests {
                sync: Some("1"),
                ..none
            },
            Requests {
                cluster: Some("1"),
                ..none
            },
            Requests {
                group: Some("1"),
                ..none
            },
        ] {
            let mut status = SyncStatus::default();
            assert!(requests.are_open(&status), "{requests:?}");
            requests.handle(&mut status);
            assert!(!requests.are_open(&status), "{requests:?}");
            // The request is removed, or the Cluster does not exist.
            let before = status.clone();
            none.handle(&mut status);
            assert_eq!(status, before);
        }
    }
}
