//! Decides when the entries of a SyncGroup form a new release.

use std::time::Duration;

use jiff::Timestamp;
use starling_api::{EntryRevision, RolloutStatus, SyncTemplate};

use crate::clock_jumps::is_far_ahead;
use crate::ids::ReleaseDigest;
use crate::target;

/// Sources that change within this time form one release: long enough for two repositories that one pipeline pushes to,
/// short enough not to be noticed.
pub const SETTLE: Duration = Duration::from_secs(5);

/// One entry of the group with its latest revision.
#[derive(Clone, Debug)]
pub struct EntryWanted<'a> {
    /// The name of the entry.
    pub name: &'a str,
    /// The revision of its Source.
    pub revision: &'a str,
    /// Time at which the Source was first observed at that revision; `None`: not recorded, so long ago.
    pub revision_time: Option<Timestamp>,
    /// The template, with unresolved `$(cluster.*)`.
    pub template: &'a SyncTemplate,
}

/// The release that rolls out next.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum ReleaseStep {
    /// The current release, as the Sources offer it: status may have lost its revisions.
    Keep(Release),
    /// A new release.
    Start(Release),
    /// The current release until this time: another Source may be about to change.
    Settle {
        /// Time at which the new release is formed.
        until: Timestamp,
    },
}

/// A release: the revisions of all entries, immutable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release {
    /// The digest.
    pub digest: ReleaseDigest,
    /// The revision of each entry, in the order of `syncs` in the spec of the group.
    pub revisions: Vec<EntryRevision>,
}

/// Decides whether the entries form a new release.
pub fn next_release(
    current: Option<&RolloutStatus>,
    wanted: &[EntryWanted<'_>],
    now: Timestamp,
) -> ReleaseStep {
    let release = of_entries(wanted.iter().map(|entry| (entry, entry.revision)));
    let Some(current) = current else {
        return ReleaseStep::Start(release);
    };
    if current.release == release.digest {
        return ReleaseStep::Keep(release);
    }
    match settles_at(current, wanted) {
        // A clock that was wrong wrote a time that lies far ahead.
        Some(until) if until > now && !is_far_ahead(until, now) => ReleaseStep::Settle { until },
        Some(_) | None => ReleaseStep::Start(release),
    }
}

/// Returns until when other Sources may join the release; `None`: there is only one Source, or a template changed,
/// which is an edit and not a part of a push.
fn settles_at(current: &RolloutStatus, wanted: &[EntryWanted<'_>]) -> Option<Timestamp> {
    let first_source = &wanted.first()?.template.source_ref;
    if wanted
        .iter()
        .all(|entry| entry.template.source_ref == *first_source)
    {
        return None;
    }
    let rolled: Vec<&str> = wanted
        .iter()
        .map(|entry| rolled_revision(current, entry.name))
        .collect::<Option<_>>()?;
    let before = of_entries(wanted.iter().zip(rolled.iter().copied()));
    if before.digest != current.release {
        return None;
    }
    let moved = wanted
        .iter()
        .zip(&rolled)
        .filter(|(entry, rolled)| entry.revision != **rolled);
    let first_move = moved.filter_map(|(entry, _)| entry.revision_time).min()?;
    first_move.checked_add(SETTLE).ok()
}

/// Returns the revision of an entry in the current release.
#[must_use]
pub fn rolled_revision<'a>(current: &'a RolloutStatus, entry: &str) -> Option<&'a str> {
    current
        .revisions
        .iter()
        .find(|rolled| rolled.sync == entry)
        .map(|rolled| rolled.revision.as_str())
}

fn of_entries<'a>(entries: impl Iterator<Item = (&'a EntryWanted<'a>, &'a str)>) -> Release {
    let entries: Vec<target::ReleaseEntry<'_>> = entries
        .map(|(entry, revision)| (entry.name, revision, entry.template))
        .collect();
    Release {
        digest: target::of_release(&entries),
        revisions: entries
            .iter()
            .map(|(name, revision, _)| EntryRevision {
                sync: (*name).to_owned(),
                revision: (*revision).to_owned(),
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn t(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_000 + seconds).unwrap()
    }

    fn template(source: &str) -> SyncTemplate {
        serde_json::from_value(serde_json::json!({"sourceRef": {"name": source}})).unwrap()
    }

    fn entry<'a>(name: &'a str, revision: &'a str, at: i64, template: &'a SyncTemplate) -> EntryWanted<'a> {
        EntryWanted {
            name,
            revision,
            revision_time: Some(t(at)),
            template,
        }
    }

    fn rolling(step: ReleaseStep) -> RolloutStatus {
        let ReleaseStep::Start(release) = step else {
            panic!("{step:?} is no new release")
        };
        RolloutStatus {
            release: release.digest.into_string(),
            revisions: release.revisions,
            ..RolloutStatus::default()
        }
    }

    #[test]
    fn the_first_release_and_a_change_of_the_only_source_start_at_once() {
        let a = template("a");
        let first = rolling(next_release(None, &[entry("app", "r1", 0, &a)], t(0)));
        let rolls = Release {
            digest: first.release.clone().into(),
            revisions: first.revisions.clone(),
        };
        // Revisions that status lost or that somebody edited there are not those of the release.
        let mut edited = first.clone();
        edited.revisions[0].revision = "r0".into();
        let mut lost = first.clone();
        lost.revisions.clear();
        for current in [&first, &edited, &lost] {
            assert_eq!(
                next_release(Some(current), &[entry("app", "r1", 0, &a)], t(9)),
                ReleaseStep::Keep(rolls.clone())
            );
        }
        let moved = [entry("app", "r2", 10, &a), entry("crds", "r2", 10, &a)];
        assert!(matches!(
            next_release(Some(&first), &moved, t(10)),
            ReleaseStep::Start(_)
        ));
    }

    #[test]
    fn sources_that_change_within_five_seconds_form_one_release() {
        let (a, b) = (template("a"), template("b"));
        let first = rolling(next_release(
            None,
            &[entry("x", "a1", 0, &a), entry("y", "b1", 0, &b)],
            t(0),
        ));
        let one_moved = [entry("x", "a2", 10, &a), entry("y", "b1", 0, &b)];
        assert_eq!(
            next_release(Some(&first), &one_moved, t(11)),
            ReleaseStep::Settle { until: t(15) }
        );
        let both_moved = [entry("x", "a2", 10, &a), entry("y", "b2", 13, &b)];
        assert_eq!(
            next_release(Some(&first), &both_moved, t(13)),
            ReleaseStep::Settle { until: t(15) }
        );
        let second = rolling(next_release(Some(&first), &both_moved, t(15)));
        assert_eq!(second.revisions[0].revision, "a2");
        assert_eq!(second.revisions[1].revision, "b2");
    }

    #[test]
    fn a_changed_template_is_a_release_at_once() {
        let (a, b) = (template("a"), template("b"));
        let first = rolling(next_release(
            None,
            &[entry("x", "a1", 0, &a), entry("y", "b1", 0, &b)],
            t(0),
        ));
        let changed = SyncTemplate {
            path: "./other".into(),
            ..a.clone()
        };
        let wanted = [entry("x", "a1", 0, &changed), entry("y", "b1", 0, &b)];
        assert!(matches!(
            next_release(Some(&first), &wanted, t(1)),
            ReleaseStep::Start(_)
        ));
        let removed = [entry("x", "a1", 0, &a)];
        assert!(matches!(
            next_release(Some(&first), &removed, t(1)),
            ReleaseStep::Start(_)
        ));
    }
}
