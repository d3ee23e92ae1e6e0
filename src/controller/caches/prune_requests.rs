//! The deletions that Syncs request after what their group admitted, and what the group decided about them: prunes, and
//! the ends of Syncs whose removal gave its slot back.

use std::collections::BTreeMap;

use jiff::Timestamp;
use kube::ResourceExt as _;
use starling_api::SyncResource;
use starling_core::clock_jumps::not_far_ahead;
use starling_core::ids::{ClusterName, SyncName, Uid};
use starling_core::plan::{PruneRequest, RemovalDecision, RemovalHold};

use super::sync_index::GroupSyncs;
use crate::controller::keyed::{Keyed, per_object};
use crate::controller::object_key::ObjectKey;

/// The requests of the Syncs of each group, by the name of the Sync.
///
/// An attempt that has something to prune requests it. The plan of the group allows it in a later pass, and enqueues
/// the Sync. The end of the attempt withdraws the request. The end of a Sync takes many passes, and keeps its request
/// from the first that deletes something to the last, or until the cluster is lost. A crash loses the requests; their
/// attempts are lost as well.
#[derive(Debug, Default)]
pub struct PruneRequests(Keyed<BTreeMap<SyncName, Requested>>);

per_object!(PruneRequests, 0);

#[derive(Debug)]
struct Requested {
    uid: Uid,
    cluster: ClusterName,
    entry: String,
    /// Whether the Sync is being removed.
    ends: bool,
    /// Whether objects were deleted since it was allowed.
    begun: bool,
    allowed_at: Option<Timestamp>,
    /// Why the last plan held it; `None`: no plan has.
    hold: Option<RemovalHold>,
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PruneAnswer {
    /// The prune may begin.
    Allowed,
    /// A plan has to decide. The request is new, so the group has to be enqueued.
    New,
    /// The request is known and waits; for what, if a plan has decided.
    Waits(Option<RemovalHold>),
}

impl PruneRequests {
    /// Requests a prune, unless it is requested already.
    pub fn request(&self, group: &ObjectKey, sync: &SyncResource) -> PruneAnswer {
        let Some(of) = &sync.spec.group_ref else {
            return PruneAnswer::Allowed;
        };
        let (mut all, uid) = (self.0.lock(), Uid::of(sync));
        let requests = all.entry(group.clone()).or_default();
        let name = SyncName::from(sync.name_any());
        let ends = sync.metadata.deletion_timestamp.is_some();
        let is_known = |known: &&Requested| known.uid == uid && known.ends == ends;
        if let Some(known) = requests.get(&name).filter(is_known) {
            return match known.allowed_at {
                Some(_) => PruneAnswer::Allowed,
                None => PruneAnswer::Waits(known.hold),
            };
        }
        let request = Requested {
            uid,
            cluster: sync.spec.cluster_ref.name.as_str().into(),
            entry: of.entry.clone(),
            ends,
            begun: false,
            allowed_at: None,
            hold: None,
        };
        requests.insert(name, request);
        PruneAnswer::New
    }

    /// Withdraws a request. Returns whether there was one.
    pub fn end(&self, group: &ObjectKey, sync: &str) -> bool {
        let mut all = self.0.lock();
        let Some(requests) = all.get_mut(group) else {
            return false;
        };
        let was_known = requests.remove(sync).is_some();
        if requests.is_empty() {
            all.remove(group);
        }
        was_known
    }

    /// Keeps a request that was allowed: objects were deleted, and others have to follow.
    pub fn begun(&self, group: &ObjectKey, sync: &str) {
        let mut all = self.0.lock();
        let request = all.get_mut(group).and_then(|requests| requests.get_mut(sync));
        if let Some(request) = request.filter(|request| request.allowed_at.is_some()) {
            request.begun = true;
        }
    }

    /// Returns the requests of a group, without those of Syncs that are gone or suspended, and without the prunes of
    /// Syncs that are being deleted: nothing is pruned there. One that was allowed far ahead of `now`, because the
    /// clock was wrong, was allowed now.
    #[must_use]
    pub fn of_group(
        &self,
        group: &ObjectKey,
        syncs: &GroupSyncs,
        now: Timestamp,
    ) -> BTreeMap<SyncName, PruneRequest> {
        let mut all = self.0.lock();
        let Some(requests) = all.get_mut(group) else {
            return BTreeMap::new();
        };
        let current = |name: &SyncName, request: &Requested| {
            let sync = syncs.get(&request.cluster, &request.entry)?;
            (*name == *sync.name_any() && request.uid == Uid::of(&**sync)).then_some(sync)
        };
        requests.retain(|name, request| current(name, request).is_some());
        let allowed = requests
            .values_mut()
            .filter_map(|request| request.allowed_at.as_mut());
        allowed.for_each(|at| *at = not_far_ahead(*at, now));
        let can_delete = |sync: &SyncResource, request: &Requested| {
            !sync.spec.template.suspend && sync.metadata.deletion_timestamp.is_some() == request.ends
        };
        let able = requests
            .iter()
            .filter(|(name, request)| current(name, request).is_some_and(|sync| can_delete(sync, request)));
        let request = |request: &Requested| PruneRequest {
            cluster: request.cluster.clone(),
            allowed_at: request.allowed_at,
            begun: request.begun,
        };
        able.map(|(name, requested)| (name.clone(), request(requested)))
            .collect()
    }

    /// Allows prunes. A request that was withdrawn since the plan stays withdrawn.
    pub fn allow(&self, group: &ObjectKey, syncs: &[SyncName], now: Timestamp) {
        let mut all = self.0.lock();
        let Some(requests) = all.get_mut(group) else {
            return;
        };
        for sync in syncs {
            if let Some(request) = requests.get_mut(sync) {
                request.allowed_at = Some(now);
                request.hold = None;
            }
        }
    }

    /// Takes the decisions of a plan that was carried out. A prune that was allowed and is held now did not end in
    /// time, and is decided again.
    pub fn decided(&self, group: &ObjectKey, decisions: &BTreeMap<SyncName, RemovalDecision>) {
        let mut all = self.0.lock();
        let Some(requests) = all.get_mut(group) else {
            return;
        };
        for (sync, decision) in decisions {
            if let (Some(request), RemovalDecision::Hold { reason, .. }) = (requests.get_mut(sync), decision)
            {
                (request.allowed_at, request.begun) = (None, false);
                request.hold = Some(*reason);
            }
        }
    }

    /// Returns why the last plan held the prune of a Sync; `None`: it did not, or nothing is requested.
    #[must_use]
    pub fn hold(&self, group: &ObjectKey, sync: &SyncResource) -> Option<RemovalHold> {
        let all = self.0.lock();
        let request = all.get(group)?.get(sync.name_any().as_str())?;
        request.hold.filter(|_| request.uid == Uid::of(sync))
    }
}

/// Returns what a deletion on a cluster waits for in a group.
#[must_use]
pub fn why(group: &str, hold: Option<RemovalHold>) -> String {
    match hold {
        Some(RemovalHold::NoSlot) => {
            format!("all slots (maxConcurrency) of SyncGroup {group} are in use")
        }
        Some(RemovalHold::StageNotOpen) => {
            format!("the stage of the cluster in SyncGroup {group} has not opened")
        }
        Some(RemovalHold::WindowClosed) => format!("no window of SyncGroup {group} is open"),
        Some(RemovalHold::GroupSuspended) => format!("SyncGroup {group} is suspended"),
        Some(RemovalHold::Paused) => format!("the rollout of SyncGroup {group} is paused"),
        Some(RemovalHold::Aborted) => {
            format!("the rollout of SyncGroup {group} was aborted: a newer release or a rollback ends that")
        }
        Some(RemovalHold::MembershipHeld) => format!("too many clusters left SyncGroup {group} at once"),
        Some(RemovalHold::ClusterNotReady) => {
            format!("the cluster is not ready, or SyncGroup {group} does not select it")
        }
        Some(other) => format!("SyncGroup {group} holds it ({})", other.as_str()),
        None => format!("SyncGroup {group} has not decided yet"),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use serde_json::json;
    use starling_api::SyncResource;

    use super::*;
    use crate::controller::caches::ObjectCaches;

    fn t(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn group() -> ObjectKey {
        ObjectKey::new("fleet", "web")
    }

    fn sync(uid: &str, suspend: bool) -> SyncResource {
        serde_json::from_value(json!({
            "apiVersion": "starling.dev/v1alpha1", "kind": "Sync",
            "metadata": {"name": "web-app-m1", "namespace": "fleet", "uid": uid, "resourceVersion": "1"},
            "spec": {
                "clusterRef": {"name": "m1"}, "groupRef": {"name": "web", "entry": "app"},
                "sourceRef": {"name": "web"}, "suspend": suspend,
            },
        }))
        .unwrap()
    }

    fn requests(prunes: &PruneRequests, sync: SyncResource) -> BTreeMap<SyncName, PruneRequest> {
        let objects = ObjectCaches::default();
        objects.syncs.observe_write(sync);
        prunes.of_group(&group(), &objects.syncs.of_group(&group()), t(0))
    }

    #[test]
    fn a_request_is_allowed_once_and_ends_with_its_attempt() {
        let (prunes, one) = (PruneRequests::default(), sync("u1", false));
        let name = SyncName::from("web-app-m1");
        assert_eq!(prunes.request(&group(), &one), PruneAnswer::New);
        assert_eq!(prunes.request(&group(), &one), PruneAnswer::Waits(None));
        let hold = RemovalDecision::Hold {
            reason: RemovalHold::NoSlot,
            recheck_at: None,
        };
        prunes.decided(&group(), &BTreeMap::from([(name.clone(), hold)]));
        assert_eq!(
            prunes.request(&group(), &one),
            PruneAnswer::Waits(Some(RemovalHold::NoSlot))
        );
        assert_eq!(prunes.hold(&group(), &one), Some(RemovalHold::NoSlot));
        prunes.allow(&group(), std::slice::from_ref(&name), t(5));
        assert_eq!(prunes.request(&group(), &one), PruneAnswer::Allowed);
        assert_eq!(prunes.hold(&group(), &one), None);
        assert_eq!(requests(&prunes, one.clone())[&name].allowed_at, Some(t(5)));
        assert!(prunes.end(&group(), &name));
        assert!(!prunes.end(&group(), &name));
        prunes.allow(&group(), std::slice::from_ref(&name), t(6));
        assert_eq!(prunes.request(&group(), &one), PruneAnswer::New, "withdrawn");
    }

    /// Guards against a slot that is taken for a day: the clock was wrong when the prune was allowed, and was set back.
    #[test]
    fn a_prune_was_not_allowed_in_the_future() {
        let (prunes, one) = (PruneRequests::default(), sync("u1", false));
        let name = SyncName::from("web-app-m1");
        assert_eq!(prunes.request(&group(), &one), PruneAnswer::New);
        prunes.allow(&group(), std::slice::from_ref(&name), t(86_400));
        assert_eq!(requests(&prunes, one)[&name].allowed_at, Some(t(0)));
    }

    #[test]
    fn a_prune_that_did_not_end_in_time_is_decided_again() {
        let (prunes, one) = (PruneRequests::default(), sync("u1", false));
        let name = SyncName::from("web-app-m1");
        assert_eq!(prunes.request(&group(), &one), PruneAnswer::New);
        prunes.allow(&group(), std::slice::from_ref(&name), t(5));
        let decisions = |decision| BTreeMap::from([(name.clone(), decision)]);
        prunes.decided(&group(), &decisions(RemovalDecision::Removing));
        assert_eq!(prunes.request(&group(), &one), PruneAnswer::Allowed);
        let hold = RemovalDecision::Hold {
            reason: RemovalHold::WindowClosed,
            recheck_at: None,
        };
        prunes.decided(&group(), &decisions(hold));
        assert_eq!(
            prunes.request(&group(), &one),
            PruneAnswer::Waits(Some(RemovalHold::WindowClosed))
        );
    }

    #[test]
    fn a_sync_that_is_suspended_or_made_again_has_no_request() {
        let prunes = PruneRequests::default();
        assert_eq!(prunes.request(&group(), &sync("u1", false)), PruneAnswer::New);
        assert_eq!(requests(&prunes, sync("u1", false)).len(), 1);
        assert!(requests(&prunes, sync("u1", true)).is_empty());
        assert_eq!(requests(&prunes, sync("u1", false)).len(), 1, "kept meanwhile");
        assert!(requests(&prunes, sync("u2", false)).is_empty());
        assert_eq!(
            prunes.request(&group(), &sync("u2", false)),
            PruneAnswer::New,
            "of another Sync"
        );
    }

    fn ending(uid: &str) -> SyncResource {
        let mut sync = sync(uid, false);
        sync.metadata.deletion_timestamp =
            Some("2027-01-01T00:00:00Z".parse::<Timestamp>().map(Time).unwrap());
        sync
    }

    #[test]
    fn the_end_of_a_sync_has_a_request_of_its_own_that_lasts_while_it_deletes() {
        let (prunes, name) = (PruneRequests::default(), SyncName::from("web-app-m1"));
        assert_eq!(
            prunes.request(&group(), &sync("u1", false)),
            PruneAnswer::New,
            "a prune"
        );
        assert!(
            requests(&prunes, ending("u1")).is_empty(),
            "which nothing needs any more"
        );
        assert_eq!(prunes.request(&group(), &ending("u1")), PruneAnswer::New);
        prunes.begun(&group(), &name);
        assert!(
            !requests(&prunes, ending("u1"))[&name].begun,
            "it was not allowed"
        );
        prunes.allow(&group(), std::slice::from_ref(&name), t(5));
        assert_eq!(prunes.request(&group(), &ending("u1")), PruneAnswer::Allowed);
        prunes.begun(&group(), &name);
        let request = &requests(&prunes, ending("u1"))[&name];
        assert_eq!((request.allowed_at, request.begun), (Some(t(5)), true));
        assert!(prunes.end(&group(), &name));
        assert!(requests(&prunes, ending("u1")).is_empty());
    }
}
