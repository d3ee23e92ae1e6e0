//! The text of a preview.

use std::fmt::Write as _;

use serde_json::Value;
use starling_core::preview::{Failing, FieldChange, ObjectChange, Overview, PreviewChange};

use crate::cli::output::names;
use crate::cli::removals;
use crate::read_model::preview::PreviewReport;

/// The longest value that is printed in full.
const LONGEST: usize = 160;

/// The text of a preview: the group, the clusters by equal difference, and their failures.
pub(super) fn text(report: &PreviewReport) -> String {
    let PreviewReport {
        group,
        namespace,
        revisions,
        release_digest,
        release_digest_error,
        removals,
        overview,
    } = report;
    let mut page = format!("SyncGroup {namespace}/{group}\n");
    for (entry, revision) in revisions {
        let _ = writeln!(page, "  {entry}: {revision}");
    }
    if let Some(digest) = release_digest {
        let _ = writeln!(page, "release digest: {digest}");
    }
    if let Some(error) = release_digest_error {
        let _ = writeln!(page, "no release digest: {error}");
    }
    page.push_str(&removals::text(removals));
    push_overview(&mut page, overview);
    page
}

/// Adds the clusters by equal difference, and their failures.
pub(super) fn push_overview(page: &mut String, overview: &Overview) {
    let _ = writeln!(page, "{}", overview.summary());
    for distinct in &overview.changes {
        let _ = writeln!(page, "\non {}:", names(&distinct.clusters));
        for object in &distinct.objects {
            push_object(page, object);
        }
        for note in &distinct.notes {
            let _ = writeln!(page, "  ! {note}");
        }
    }
    for noted in &overview.noted {
        let _ = writeln!(page, "\nno object changes on {}:", names(&noted.clusters));
        for note in &noted.notes {
            let _ = writeln!(page, "  ! {note}");
        }
    }
    push_failing(page, "would fail", &overview.failing);
    push_failing(page, "not previewed", &overview.unknown);
    if !overview.suspended.is_empty() {
        let _ = writeln!(page, "\nsuspended, not updated: {}", names(&overview.suspended));
    }
}

fn push_failing(page: &mut String, what: &str, lists: &[Failing]) {
    for list in lists {
        let _ = writeln!(page, "\n{what} on {}:", names(&list.clusters));
        for failure in &list.failures {
            let entry = if failure.entry.is_empty() {
                String::new()
            } else {
                format!("{}: ", failure.entry)
            };
            let _ = writeln!(page, "  {entry}{}", failure.message);
        }
    }
}

fn push_object(page: &mut String, object: &ObjectChange) {
    let (sign, fields): (_, &[FieldChange]) = match &object.change {
        PreviewChange::Create => ('+', &[]),
        PreviewChange::Update { fields } => ('~', fields),
        PreviewChange::Recreate => ('R', &[]),
        PreviewChange::Delete => ('-', &[]),
    };
    let _ = writeln!(page, "  {sign} {} ({})", object.key, object.entry);
    for field in fields {
        let _ = writeln!(
            page,
            "      {}: {} -> {}",
            field.path,
            side(field.from.as_ref()),
            side(field.to.as_ref())
        );
    }
}

fn side(value: Option<&Value>) -> String {
    let Some(value) = value else {
        return "<none>".to_owned();
    };
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        None => text,
        Some((end, _)) => format!("{}… ({} characters)", &text[..end], text.chars().count()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::json;
    use starling_api::DeletionPolicy;
    use starling_core::object::ObjectId;
    use starling_core::preview::{ClusterPreview, Overview};

    use super::*;
    use crate::read_model::removals::{PlannedRemoval, RemovalCause};

    #[test]
    fn a_preview_has_its_group_its_clusters_and_their_fields() {
        let key = ObjectId {
            group: "apps".into(),
            kind: "Deployment".into(),
            namespace: "shop".into(),
            name: "web".into(),
        };
        let changed = |from: u32| ClusterPreview {
            changes: vec![ObjectChange {
                entry: "app".into(),
                key: key.clone(),
                change: PreviewChange::Update {
                    fields: vec![FieldChange {
                        path: ".spec.replicas".into(),
                        from: Some(from.into()),
                        to: Some(json!(3)),
                    }],
                },
            }],
            ..ClusterPreview::default()
        };
        let mut down = ClusterPreview::default();
        down.fail_unknown("", "no answer".into());
        let previews = (0..10).map(|n| (format!("eu-{n}"), changed(2)));
        let previews = previews.chain([("us".to_owned(), down)]).collect();
        let report = PreviewReport {
            group: "shop".into(),
            namespace: "fleet".into(),
            revisions: [("app".to_owned(), "main@sha1:0".to_owned())].into(),
            release_digest: Some("sha256:1".into()),
            release_digest_error: None,
            removals: vec![PlannedRemoval {
                cause: RemovalCause::EntryRemoved { entry: "old".into() },
                policy: DeletionPolicy::Delete,
                objects: 12,
                clusters: vec!["eu-1".into(), "us".into()],
            }],
            overview: Overview::of(previews),
        };
        let expected = "SyncGroup fleet/shop\n  app: main@sha1:0\nrelease digest: sha256:1\n\
            removes 12 objects on 2 clusters (eu-1, us): the group no longer has entry old\n\
            11 clusters: 1 distinct change on 10, 1 not previewed\n\n\
            on 10 clusters (eu-0, eu-1, eu-2, eu-3, eu-4, eu-5, eu-6, eu-7 and 2 more):\n  \
            ~ Deployment shop/web (app)\n      .spec.replicas: 2 -> 3\n\n\
            not previewed on 1 cluster (us):\n  no answer\n";
        assert_eq!(text(&report), expected);
    }

    #[test]
    fn notes_and_suspended_clusters_are_printed() {
        let noted = ClusterPreview {
            notes: vec!["app: objects stay".into()],
            ..ClusterPreview::default()
        };
        let asleep = ClusterPreview {
            suspended: true,
            ..ClusterPreview::default()
        };
        let previews = [("eu".to_owned(), noted), ("us".to_owned(), asleep)];
        let report = PreviewReport {
            group: "shop".into(),
            namespace: "fleet".into(),
            revisions: BTreeMap::new(),
            release_digest: None,
            release_digest_error: Some("entry app: refused".into()),
            removals: Vec::new(),
            overview: Overview::of(previews.into()),
        };
        let expected = "SyncGroup fleet/shop\nno release digest: entry app: refused\n\
            2 clusters: no changes, 1 with notes only, 1 suspended\n\n\
            no object changes on 1 cluster (eu):\n  ! app: objects stay\n\n\
            suspended, not updated: 1 cluster (us)\n";
        assert_eq!(text(&report), expected);
    }

    #[test]
    fn long_values_are_cut() {
        let text = side(Some(&json!("x".repeat(500))));
        assert!(text.ends_with("… (502 characters)") && text.len() < 200, "{text}");
    }
}
