//! What would happen on each cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};
use indicatif::{ProgressBar, ProgressStyle};
use kube::ResourceExt;
use starling_api::{APPROVE_DELETIONS, Cluster, ConflictPolicy, SyncEntry, SyncTemplate};
use starling_core::apply::{Elsewhere, HeldDeletions, PruneHold};
use starling_core::expand::{self, ClusterFacts};
use starling_core::object::ObjectKey;
use starling_core::preview::{ClusterPreview, ObjectChange};
use starling_core::target::{self, Owner};
use tokio::time::Instant;

use super::SIDE_BY_SIDE;
use super::bench::Bench;
use super::fleet::Fleet;
use super::revision::Wanted;
use crate::controller::credentials::Credentials;
use crate::controller::renders::Rendered;
use crate::member::{Member, Network, PreviewJob, Siblings};

/// An entry that is rendered for a cluster.
struct Part<'a> {
    entry: &'a SyncEntry,
    template: SyncTemplate,
    owner: String,
    rendered: Arc<Rendered>,
}

/// Looks at all of these clusters, a few at a time.
pub(super) async fn at_all(
    bench: &Bench,
    fleet: &Fleet,
    revisions: &BTreeMap<String, Wanted>,
    clusters: &BTreeMap<String, Cluster>,
    limit: Duration,
) -> anyhow::Result<BTreeMap<String, ClusterPreview>> {
    // On standard error, and only where somebody looks at it.
    let style = ProgressStyle::with_template("{pos} of {len} clusters looked at")?;
    let progress = ProgressBar::new(u64::try_from(clusters.len())?).with_style(style);
    let looks = clusters.iter().map(|(name, cluster)| {
        let progress = progress.clone();
        async move {
            let preview = at_one(bench, fleet, revisions, cluster, limit).await;
            progress.inc(1);
            (name.clone(), preview)
        }
        .boxed()
    });
    let looks: Vec<BoxFuture<'_, _>> = looks.collect();
    let previews = futures::stream::iter(looks)
        .buffer_unordered(SIDE_BY_SIDE)
        .collect()
        .await;
    progress.finish_and_clear();
    Ok(previews)
}

async fn at_one(
    bench: &Bench,
    fleet: &Fleet,
    revisions: &BTreeMap<String, Wanted>,
    cluster: &Cluster,
    limit: Duration,
) -> ClusterPreview {
    let mut preview = ClusterPreview::default();
    // Nothing is done on it: that is no failure, and whoever suspended it may have had to.
    if cluster.spec.suspend {
        preview.suspended = true;
        return preview;
    }
    let member = match connect(bench, cluster).await {
        Ok(member) => member,
        Err(message) => {
            preview.fail_unknown("", message);
            return preview;
        }
    };
    let parts = parts(bench, fleet, revisions, cluster, &mut preview).await;
    let approved = fleet.group.annotations().get(APPROVE_DELETIONS);
    let approved = approved.map_or("", String::as_str);
    for part in &parts {
        let until = Instant::now() + limit;
        look(cluster, &member, part, &parts, (approved, until), &mut preview).await;
    }
    preview
}

async fn connect(bench: &Bench, cluster: &Cluster) -> Result<Member, String> {
    let credentials = Credentials::read(&bench.hub, cluster).await;
    let credentials = credentials.map_err(|error| crate::chain(&error))?;
    credentials
        .connect(&Network::system())
        .map_err(|error| crate::chain(&error))
}

/// The entries of the group as this cluster gets them; what cannot be rendered is a failure.
async fn parts<'a>(
    bench: &Bench,
    fleet: &'a Fleet,
    revisions: &BTreeMap<String, Wanted>,
    cluster: &Cluster,
    preview: &mut ClusterPreview,
) -> Vec<Part<'a>> {
    let (namespace, group) = (
        fleet.group.namespace().unwrap_or_default(),
        fleet.group.name_any(),
    );
    let mut parts = Vec::new();
    for entry in &fleet.group.spec.syncs {
        let template = match expand::resolve(&entry.template, &ClusterFacts::of(cluster)) {
            Ok(template) => template,
            Err(error) => {
                preview.fail(&entry.name, error.to_string());
                continue;
            }
        };
        let Some(at) = bench.at(fleet, revisions, &entry.name) else {
            continue;
        };
        let of = Owner::Entry {
            group: &group,
            entry: &entry.name,
        };
        let owner = target::owner(&bench.installation, &namespace, of);
        match bench.builder().render(&at, &template, &owner).await {
            Ok(rendered) => parts.push(Part {
                entry,
                template,
                owner,
                rendered,
            }),
            Err(message) => preview.fail(&entry.name, message),
        }
    }
    parts
}

async fn look(
    cluster: &Cluster,
    member: &Member,
    part: &Part<'_>,
    parts: &[Part<'_>],
    (approved, deadline): (&str, Instant),
    preview: &mut ClusterPreview,
) {
    let name = part.entry.name.as_str();
    let account = part.template.service_account_name.as_str();
    let namespace = cluster.namespace().unwrap_or_default();
    let member = if account.is_empty() {
        member.clone()
    } else {
        match member.impersonating(&namespace, account) {
            Ok(member) => member,
            Err(error) => return preview.fail(name, format!("serviceAccountName: {}", crate::chain(&error))),
        }
    };
    let others: Vec<&Part<'_>> = parts.iter().filter(|other| other.entry.name != name).collect();
    let objects = others.iter().flat_map(|other| &other.rendered.set.objects);
    let siblings = Others(objects.map(|object| object.key.clone()).collect());
    for object in &part.rendered.set.objects {
        if siblings.0.contains(&object.key) {
            preview.fail(
                name,
                format!("{}: another entry of the group renders it too", object.key),
            );
        }
    }
    let group_owners = others.iter().map(|other| other.owner.clone()).collect();
    let found = member
        .preview(PreviewJob {
            owner: &part.owner,
            desired: &part.rendered.set,
            prune: part.template.prune,
            allow_empty: part.template.allow_empty,
            conflicts_override: part.template.conflicts == ConflictPolicy::Override,
            recreate: part.template.force,
            siblings: &siblings,
            handed_over_by: &group_owners,
            // What was approved on single Syncs is not looked up: it is asked what would happen without.
            approved,
            deadline,
        })
        .await;
    preview
        .changes
        .extend(found.changes.into_iter().map(|(key, change)| ObjectChange {
            entry: name.to_owned(),
            key,
            change,
        }));
    for (_, error) in &found.failures {
        preview.fail(name, crate::chain(error));
    }
    if let Some(error) = &found.interrupted {
        preview.fail_unknown(name, crate::chain(error));
    }
    if let Some(hold) = &found.prune_hold {
        tell_hold(preview, name, hold);
    }
}

/// Says what keeps objects from being deleted. Where an apply would not make its Sync ready because of it, which fails the cluster in
/// the rollout, it is a failure here too.
fn tell_hold(preview: &mut ClusterPreview, entry: &str, hold: &PruneHold) {
    match hold {
        PruneHold::Off => preview.notes.push(format!(
            "{entry}: objects that left the repository stay, since prune is off"
        )),
        PruneHold::EmptyRender => preview.fail(
            entry,
            "EmptyRender: nothing is rendered, and nothing is deleted; set allowEmpty if that is meant"
                .to_owned(),
        ),
        PruneHold::Unsure(why) => preview.fail(
            entry,
            format!("HandOverUnknown: nothing is deleted, for it may have been handed over: {why}"),
        ),
        PruneHold::Budget(held) => preview.fail(entry, waiting(held)),
    }
}

/// Deletions that wait for a person, by name as far as they are known by name.
fn waiting(held: &HeldDeletions) -> String {
    let mut objects: Vec<String> = held.objects.iter().map(ToString::to_string).collect();
    if let Some(more) = held.deletions.checked_sub(objects.len()).filter(|more| *more > 0) {
        objects.push(format!("{more} more"));
    }
    format!(
        "DeletionHeld: {} of {} objects left the render; nothing is deleted until {APPROVE_DELETIONS} on the Sync or its SyncGroup \
         names {}: {}",
        held.deletions,
        held.of,
        held.digest,
        objects.join(", ")
    )
}

/// What the other entries of the group hold on the same cluster.
#[derive(Debug)]
struct Others(BTreeSet<ObjectKey>);

impl Siblings for Others {
    fn hold(&self) -> BoxFuture<'_, Elsewhere> {
        let keys = self.0.clone();
        async { Elsewhere::Known(keys) }.boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_that_fails_the_cluster_is_a_failure_and_others_are_a_word() {
        let told = |hold| {
            let mut preview = ClusterPreview::default();
            tell_hold(&mut preview, "app", &hold);
            let failures = preview.failures.iter().map(|failure| failure.message.clone());
            (failures.collect::<Vec<_>>(), preview.notes)
        };
        let (failures, notes) = told(PruneHold::Off);
        assert!(
            failures.is_empty() && notes[0].contains("prune is off"),
            "{notes:?}"
        );
        for (hold, reason) in [
            (PruneHold::EmptyRender, "EmptyRender: "),
            (PruneHold::Unsure("no answer".into()), "HandOverUnknown: "),
        ] {
            let (failures, notes) = told(hold);
            assert!(
                failures[0].starts_with(reason) && notes.is_empty(),
                "{failures:?}"
            );
        }
        let space = ObjectKey {
            group: String::new(),
            kind: "Namespace".into(),
            namespace: String::new(),
            name: "shop".into(),
        };
        let (failures, _) = told(PruneHold::Budget(HeldDeletions {
            digest: "sha256:1".into(),
            deletions: 3,
            of: 20,
            objects: vec![space],
        }));
        assert_eq!(
            failures,
            [
                "DeletionHeld: 3 of 20 objects left the render; nothing is deleted until starling.dev/approve-deletions on the Sync or \
                 its SyncGroup names sha256:1: Namespace shop, 2 more"
            ]
        );
    }
}
