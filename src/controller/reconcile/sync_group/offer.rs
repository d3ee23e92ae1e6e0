//! Forms a release from the revisions of the Sources and the templates of the group.

use std::sync::Arc;

use jiff::Timestamp;
use starling_api::{SourceStatus, SyncEntry};
use starling_core::release::{EntryWanted, Release, ReleaseStep, next_release};
use starling_core::rollout::{Offer, ReleaseSnapshot};

use super::observe::Group;

/// Forms the release that the latest revisions make. While a new revision settles, the current release stays.
pub(super) fn offer(now: Timestamp, group: &Group) -> Offer {
    let status = group.object.status.as_ref();
    let current = status.and_then(|status| status.rollout.as_ref());
    match next_release(current, &wanted(group), now) {
        ReleaseStep::Start(release) | ReleaseStep::Keep(release) => of_today(group, release),
        ReleaseStep::Settle { until } => Offer {
            release: current
                .map(|current| (&current.release).into())
                .unwrap_or_default(),
            snapshot: None,
            settles_at: Some(until),
        },
    }
}

fn of_today(group: &Group, release: Release) -> Offer {
    let Release { digest, revisions } = release;
    let snapshot = ReleaseSnapshot {
        digest: digest.clone(),
        revisions,
        entries: group.object.spec.syncs.clone(),
    };
    Offer {
        release: digest,
        snapshot: Some(Arc::new(snapshot)),
        settles_at: None,
    }
}

fn wanted(group: &Group) -> Vec<EntryWanted<'_>> {
    group
        .object
        .spec
        .syncs
        .iter()
        .map(|sync| EntryWanted {
            name: &sync.name,
            revision: source_status(group, sync).map_or("", |status| status.revision.as_str()),
            revision_time: source_status(group, sync).and_then(|status| status.revision_time.parse().ok()),
            template: &sync.template,
        })
        .collect()
}

fn source_status<'g>(group: &'g Group, entry: &SyncEntry) -> Option<&'g SourceStatus> {
    group
        .sources
        .get(&entry.template.source_ref.name)?
        .status
        .as_ref()
}
