//! Targets and releases: what a Sync or a rollout is done with.

use std::borrow::Cow;

use starling_api::{SyncSpec, SyncTemplate};

use crate::digest;
use crate::ids::{GroupId, InstallationId, OwnerLabel, ReleaseDigest, TargetDigest, Uid};

/// Returns the digest of what one Sync has to apply: revision and template, parameters resolved. `suspend` is no part
/// of it, since it does not change what is applied.
#[must_use]
pub fn of_sync(revision: &str, template: &SyncTemplate) -> TargetDigest {
    TargetDigest::new(digest::of(&("target", revision, without_suspend(template))))
}

/// Returns the target in the spec of a Sync; `None`: the spec has no revision.
#[must_use]
pub fn of_spec(spec: &SyncSpec) -> Option<TargetDigest> {
    (!spec.revision.is_empty()).then(|| of_sync(&spec.revision, &spec.template))
}

/// One entry of a release: its name, its revision, its template without resolved parameters.
pub type ReleaseEntry<'a> = (&'a str, &'a str, &'a SyncTemplate);

/// Returns the digest of a release over all its entries. The strategy is no part of it: it applies to the rollout in
/// progress (ADR 5).
#[must_use]
pub fn of_release(entries: &[ReleaseEntry<'_>]) -> ReleaseDigest {
    let entries: Vec<_> = entries
        .iter()
        .map(|(name, revision, template)| (name, revision, without_suspend(template)))
        .collect();
    ReleaseDigest::new(digest::of(&("release", entries)))
}

/// Returns the owner label of an entry of a group, or of a Sync without a group: 32 hex digits, equal on all members.
#[must_use]
pub fn owner(installation: &InstallationId, namespace: &str, owner: Owner<'_>) -> OwnerLabel {
    let digest = match owner {
        Owner::Entry { group, entry } => {
            digest::of(&("owner", installation, namespace, "group", group, entry))
        }
        Owner::Alone { sync } => digest::of(&("owner", installation, namespace, "sync", sync)),
    };
    OwnerLabel::new(short(&digest))
}

/// Returns the identity of a group: 32 hex digits, as an owner label. `uid`: the UID of the object that first had it. A
/// group with the same name that is created later has another one.
#[must_use]
pub fn group_id(installation: &InstallationId, namespace: &str, group: &str, uid: &Uid) -> GroupId {
    let digest = digest::of(&("group", installation, namespace, group, uid));
    GroupId::new(short(&digest))
}

fn short(digest: &str) -> String {
    digest.trim_start_matches("sha256:").chars().take(32).collect()
}

/// The owner of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner<'a> {
    /// An entry of a SyncGroup, independent of the names of its Syncs.
    Entry {
        /// The name of the group.
        group: &'a str,
        /// The name of the entry.
        entry: &'a str,
    },
    /// A Sync without a group.
    Alone {
        /// The name of the Sync.
        sync: &'a str,
    },
}

fn without_suspend(template: &SyncTemplate) -> Cow<'_, SyncTemplate> {
    if !template.suspend {
        return Cow::Borrowed(template);
    }
    Cow::Owned(SyncTemplate {
        suspend: false,
        ..template.clone()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(path: &str) -> SyncTemplate {
        serde_json::from_value(serde_json::json!({"sourceRef": {"name": "s"}, "path": path})).unwrap()
    }

    #[test]
    fn a_target_changes_with_revision_and_template_but_not_with_suspend() {
        let base = of_sync("main@sha1:a", &template("./a"));
        assert_ne!(base, of_sync("main@sha1:b", &template("./a")));
        assert_ne!(base, of_sync("main@sha1:a", &template("./b")));
        assert_eq!(
            base,
            of_sync(
                "main@sha1:a",
                &SyncTemplate {
                    suspend: true,
                    ..template("./a")
                }
            )
        );
    }

    #[test]
    fn a_release_is_the_vector_of_its_entries() {
        let (a, b) = (template("./a"), template("./b"));
        let both = of_release(&[("a", "r1", &a), ("b", "r1", &b)]);
        assert_ne!(both, of_release(&[("a", "r1", &a)]));
        assert_ne!(both, of_release(&[("a", "r1", &a), ("b", "r2", &b)]));
        assert_eq!(both, of_release(&[("a", "r1", &a), ("b", "r1", &b)]));
    }

    #[test]
    fn an_owner_fits_a_label_and_keeps_namespaces_groups_and_syncs_apart() {
        let group = owner(
            &InstallationId::new("i"),
            "ns",
            Owner::Entry {
                group: "g",
                entry: "e",
            },
        );
        assert_eq!(group.as_str().len(), 32);
        assert_ne!(
            group,
            owner(
                &InstallationId::new("i"),
                "ns2",
                Owner::Entry {
                    group: "g",
                    entry: "e"
                }
            )
        );
        assert_ne!(
            group,
            owner(
                &InstallationId::new("j"),
                "ns",
                Owner::Entry {
                    group: "g",
                    entry: "e"
                }
            )
        );
        assert_ne!(
            group,
            owner(
                &InstallationId::new("i"),
                "ns",
                Owner::Entry {
                    group: "ge",
                    entry: ""
                }
            )
        );
        assert_ne!(
            group,
            owner(&InstallationId::new("i"), "ns", Owner::Alone { sync: "g-e" })
        );
    }
}
