//! The grace before a prune: when it ends, and what a user took back.

use jiff::Timestamp;
use kube::ResourceExt;
use starling_api::{PendingDeletions, SyncGroup, SyncResource, UNDELETE};
use starling_core::apply::{Grace, grace};
use starling_core::clock_jumps::ClockJumps;

use super::drift_status::listed;
use super::observe::SyncSnapshot;
use crate::controller::context::SyncContext;

/// Returns the grace of an attempt that begins now.
pub(super) fn of<'a>(context: SyncContext<'_>, observed: &SyncSnapshot, jumps: &'a ClockJumps) -> Grace<'a> {
    let now = context.clock.now();
    let first = pending(observed).map(|pending| pending.first_time.parse());
    Grace {
        length: observed.object.spec.template.prune_grace.as_std(),
        now,
        clock_jumps: jumps,
        undeleted: undeleted(&observed.object, observed.group.as_deref()).latest,
        not_before: Some(first.and_then(Result::ok).unwrap_or(now)),
    }
}

/// Returns when the first grace ends; `None`: nothing is pending.
pub(super) fn due(context: SyncContext<'_>, observed: &SyncSnapshot) -> Option<Timestamp> {
    due_of(context, observed, pending(observed))
}

/// Returns when the first grace of these objects ends, or later, if the group deletes nothing until then.
pub(super) fn due_of(
    context: SyncContext<'_>,
    observed: &SyncSnapshot,
    pending: Option<&PendingDeletions>,
) -> Option<Timestamp> {
    let length = observed.object.spec.template.prune_grace.as_std();
    let (jumps, now) = (context.clock.jumps(), context.clock.now());
    let due = grace::due(pending, length, &jumps, now)?;
    match &observed.stop {
        None => Some(due),
        Some(stop) => stop.until.map(|until| until.max(due)),
    }
}

/// Returns whether an attempt has something to delete or to give up now.
pub(super) fn is_due(context: SyncContext<'_>, observed: &SyncSnapshot) -> bool {
    is_undeleted(observed) || due(context, observed).is_some_and(|due| due <= context.clock.now())
}

/// Returns whether a user took back objects that are pending.
pub(super) fn is_undeleted(observed: &SyncSnapshot) -> bool {
    let undeleted = undeleted(&observed.object, observed.group.as_deref());
    grace::is_undeleted(pending(observed), undeleted.latest)
}

fn pending(observed: &SyncSnapshot) -> Option<&PendingDeletions> {
    observed.status.pending_deletions.as_ref()
}

/// Returns the part of the message of Ready about objects that are pending.
pub(super) fn remark(pending: &PendingDeletions, observed: &SyncSnapshot) -> String {
    let length = observed.object.spec.template.prune_grace;
    let count = usize::try_from(pending.count).unwrap_or(usize::MAX);
    let names = listed(&pending.objects, pending.objects.len(), count);
    let mut remark = match pending.waiting_for.as_str() {
        "" => format!(
            "{} objects are no longer in git and are deleted {length} after {}: {names}",
            pending.count, pending.first_time
        ),
        what if pending.count == 0 => format!("objects that are no longer in git wait for: {what}"),
        what => format!(
            "{} objects are no longer in git: {names}; they wait for: {what}",
            pending.count
        ),
    };
    if let Some(stop) = &observed.stop {
        remark = format!("{remark}; they stay as long as {}", stop.why);
    }
    let unreadable = undeleted(&observed.object, observed.group.as_deref()).unreadable;
    if let Some((kind, value)) = unreadable {
        remark = format!(
            "{remark}; the annotation {UNDELETE} of the {kind} is {value:?}, which is not a time; write one as {}",
            pending.last_time
        );
    }
    remark
}

/// The requests of users to keep objects that are pending.
#[derive(Debug, Default, PartialEq, Eq)]
struct Undeleted {
    /// Objects that left the render until then are kept.
    latest: Option<Timestamp>,
    /// The kind of the object with an annotation that is not a time, and the value.
    unreadable: Option<(&'static str, String)>,
}

fn undeleted(sync: &SyncResource, group: Option<&SyncGroup>) -> Undeleted {
    let own = sync.annotations().get(UNDELETE).map(|value| ("Sync", value));
    let of_group = group.and_then(|group| group.annotations().get(UNDELETE));
    let mut all = Undeleted::default();
    for (kind, value) in own.into_iter().chain(of_group.map(|value| ("SyncGroup", value))) {
        match value.parse() {
            Ok(until) => all.latest = all.latest.max(Some(until)),
            Err(_) => all.unreadable = Some((kind, value.chars().take(40).collect())),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::super::group_state::Stop;
    use super::super::validate::tests::mk_observed;
    use super::*;

    #[test]
    fn the_later_request_counts_and_what_is_no_time_is_named() {
        let mut observed = mk_observed(json!({"pruneGrace": "1h"}));
        let pending = PendingDeletions {
            count: 12,
            first_time: "2026-07-01T10:00:00Z".into(),
            last_time: "2026-07-01T10:30:00Z".into(),
            objects: vec!["ConfigMap shop/a".into()],
            waiting_for: String::new(),
        };
        observed.status.pending_deletions = Some(pending.clone());
        assert!(!is_undeleted(&observed));
        for (value, expected) in [
            ("2026-07-01T09:59:59Z", false),
            ("2026-07-01T10:00:00Z", true),
            ("2026-07-01T12:00:00+01:00", true),
            ("yesterday", false),
        ] {
            let mut object = (*observed.object).clone();
            object.annotations_mut().insert(UNDELETE.into(), value.into());
            observed.object = std::sync::Arc::new(object);
            assert_eq!(is_undeleted(&observed), expected, "{value}");
        }
        observed.stop = Some(Stop {
            why: "SyncGroup web is suspended".into(),
            until: None,
        });
        let remark = remark(&pending, &observed);
        for part in [
            "12 objects",
            "1h after 2026-07-01T10:00:00Z",
            "and 11 more",
            "\"yesterday\"",
            "as long as SyncGroup web is suspended",
            "10:30:00Z",
        ] {
            assert!(remark.contains(part), "{remark}");
        }
    }
}
