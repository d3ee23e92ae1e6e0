//! `starling release-restore`: shows what a management cluster that was set back would write, and lets it continue
//! (ADR 40).
//!
//! The plan compares the Syncs as they are now with the members, in dry runs, with the caller's permissions. The release
//! covers the lost writes that the plan has met, and no others: a member that is met later holds the installation again.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::Args;
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde::Serialize;
use starling_api::{Cluster, ConflictPolicy, Source, SyncGroup, SyncResource, SyncTemplate};
use starling_core::apply::SiblingObjects;
use starling_core::digest;
use starling_core::expand::{self, ClusterFacts};
use starling_core::object::ObjectId;
use starling_core::preview::{ClusterPreview, Failing, ObjectChange, Overview};
use starling_core::restore::{KnownWrites, WriteNumber};
use starling_core::revision::Revision;
use starling_core::target::{self, Owner};
use starling_member::{Member, PreviewJob, Siblings};
use tokio::time::Instant;

use super::workspace::Workspace;
use super::{CHANGES, CONCURRENCY, ToolOptions, dry_run, print};
use crate::cli::caller::{Caller, CallerArguments};
use crate::cli::lists::Namespaced;
use crate::cli::{kube_errors, output};
use crate::controller::artifacts::reference;
use crate::controller::builds::EntryAt;
use crate::controller::hub::Hub;
use crate::controller::manifests::Rendered;
use crate::controller::object_key::ObjectKey;

/// Number of times that the release is written again after another process wrote in between.
const TRIES: usize = 8;

/// Options of `release-restore`.
#[derive(Debug, Args)]
pub(in crate::cli) struct RestoreArguments {
    /// Digest of the plan to release. Default: show the plan
    #[arg(long, value_name = "DIGEST")]
    plan: Option<String>,
    #[command(flatten)]
    tools: ToolOptions,
    #[command(flatten)]
    caller: CallerArguments,
}

/// A write on a member that the management cluster does not know.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct LostWrite {
    cluster: String,
    /// The Sync; `None`: the removal of a Sync.
    sync: Option<String>,
    number: WriteNumber,
}

/// What the restored management cluster would do.
struct RestorePlan {
    lost: Vec<LostWrite>,
    overview: Overview,
}

impl RestorePlan {
    /// The digest over everything that the plan shows, without the texts of errors, which may differ each time.
    fn digest(&self) -> String {
        let names = |lists: &[Failing]| -> BTreeSet<String> {
            lists.iter().flat_map(|list| list.clusters.clone()).collect()
        };
        let Overview {
            changes,
            noted,
            failing,
            unknown,
            suspended,
            ..
        } = &self.overview;
        digest::of(&(
            &self.lost,
            changes,
            noted,
            names(failing),
            names(unknown),
            suspended,
        ))
    }

    fn text(&self) -> String {
        let mut page = String::new();
        if self.lost.is_empty() {
            page.push_str(
                "no cluster that was reached has writes that the management cluster does not know\n",
            );
        } else {
            page.push_str("writes that the management cluster does not know:\n");
        }
        for LostWrite {
            cluster,
            sync,
            number,
        } in &self.lost
        {
            let of = match sync {
                Some(sync) => format!("Sync {sync}"),
                None => "a Sync was removed".to_owned(),
            };
            let _ = writeln!(page, "  {cluster}: {of} ({number})");
        }
        page.push_str("\nafter the release, the Syncs as they are now would be applied: ");
        print::push_overview(&mut page, &self.overview);
        page
    }
}

/// The objects of the management cluster.
struct Restored {
    clusters: BTreeMap<ObjectKey, Cluster>,
    sources: BTreeMap<ObjectKey, Source>,
    groups: BTreeMap<ObjectKey, SyncGroup>,
    syncs: BTreeMap<ObjectKey, Vec<SyncResource>>,
}

/// Shows the plan, or releases it.
///
/// # Errors
/// If the plan cannot be computed, or is not the one with the digest.
pub(in crate::cli) async fn release_restore(arguments: RestoreArguments) -> anyhow::Result<ExitCode> {
    let caller = Caller::sign_in(&arguments.caller).await?;
    let hub = Hub::new(caller.client.clone());
    let record = hub.installation_record().await?;
    let Some(finding) = record.finding()? else {
        output::print("no restore of the management cluster was detected\n");
        return Ok(ExitCode::SUCCESS);
    };
    let restored = Restored::read(&caller).await?;
    let workspace = Workspace::prepare(&caller, &arguments.tools).await?;
    let plan = plan(&workspace, &restored, &record.known()?, &arguments.tools).await;
    let digest = plan.digest();
    match arguments.plan {
        None => {
            output::print(&format!("{finding}\n\n{}\nplan digest: {digest}\n", plan.text()));
            Ok(ExitCode::from(CHANGES))
        }
        Some(given) if given == digest => {
            release(&hub, &plan).await?;
            output::print("released; the controller continues within seconds\n");
            Ok(ExitCode::SUCCESS)
        }
        Some(given) => bail!("--plan {given}: the plan is now {digest}; show it without --plan"),
    }
}

/// Ends the hold. The numbers that the plan has met are known from now on.
async fn release(hub: &Hub, plan: &RestorePlan) -> anyhow::Result<()> {
    for _ in 0..TRIES {
        let record = hub.installation_record().await?;
        let mut known = record.known()?;
        known.release(plan.lost.iter().map(|lost| lost.number.clone()));
        if hub.write_installation(&record, &known, None).await?.is_some() {
            return Ok(());
        }
    }
    bail!("ConfigMap starling-system/starling-installation is written by other processes; try again")
}

impl Restored {
    async fn read(caller: &Caller) -> anyhow::Result<Self> {
        let mut syncs: BTreeMap<ObjectKey, Vec<SyncResource>> = BTreeMap::new();
        for sync in all::<SyncResource>(caller).await?.into_values() {
            let namespace = sync.namespace().unwrap_or_default();
            let cluster = ObjectKey::new(&namespace, &sync.spec.cluster_ref.name);
            syncs.entry(cluster).or_default().push(sync);
        }
        Ok(Self {
            clusters: all(caller).await?,
            sources: all(caller).await?,
            groups: all(caller).await?,
            syncs,
        })
    }
}

/// Lists the objects of all namespaces: a release is for the whole installation.
async fn all<K: Namespaced>(caller: &Caller) -> anyhow::Result<BTreeMap<ObjectKey, K>> {
    let api: Api<K> = Api::all(caller.client.clone());
    let found = api
        .list(&ListParams::default())
        .await
        .map_err(kube_errors::request);
    let found = found.with_context(|| format!("list {} of all namespaces", K::plural(&())))?;
    Ok(found
        .items
        .into_iter()
        .map(|object| (ObjectKey::of(&object), object))
        .collect())
}

async fn plan(
    workspace: &Workspace,
    restored: &Restored,
    known: &KnownWrites,
    tools: &ToolOptions,
) -> RestorePlan {
    let clusters = restored.syncs.iter().map(|(key, syncs)| {
        async move {
            let mut looked = Looked {
                workspace,
                restored,
                known,
                tools,
                preview: ClusterPreview::default(),
                lost: Vec::new(),
            };
            looked.look(key, syncs).await;
            (key.to_string(), looked.preview, looked.lost)
        }
        .boxed()
    });
    let clusters: Vec<BoxFuture<'_, _>> = clusters.collect();
    let mut looked = futures::stream::iter(clusters).buffer_unordered(CONCURRENCY);
    let (mut previews, mut lost) = (BTreeMap::new(), Vec::new());
    while let Some((cluster, preview, writes)) = looked.next().await {
        previews.insert(cluster, preview);
        lost.extend(writes);
    }
    lost.sort();
    RestorePlan {
        lost,
        overview: Overview::of(previews),
    }
}

/// What was seen on one cluster.
struct Looked<'a> {
    workspace: &'a Workspace,
    restored: &'a Restored,
    known: &'a KnownWrites,
    tools: &'a ToolOptions,
    preview: ClusterPreview,
    lost: Vec<LostWrite>,
}

/// A Sync that would be applied.
struct Part {
    name: String,
    namespace: String,
    owner: String,
    template: SyncTemplate,
    rendered: Arc<Rendered>,
}

impl Looked<'_> {
    async fn look(&mut self, key: &ObjectKey, syncs: &[SyncResource]) {
        let Some(cluster) = self.restored.clusters.get(key) else {
            self.preview.notes.push("the Cluster does not exist".to_owned());
            return;
        };
        if cluster.spec.suspend {
            self.preview.suspended = true;
            return;
        }
        let member = match dry_run::connect(self.workspace, cluster).await {
            Ok(member) => member,
            Err(error) => return self.preview.fail_unknown("", crate::chain(error.as_ref())),
        };
        self.look_at_removal(key, &member).await;
        let mut parts = Vec::new();
        for sync in syncs {
            self.look_at_number(key, sync, &member).await;
            parts.extend(self.part(cluster, sync).await);
        }
        for part in &parts {
            self.dry_run(&member, part, &parts).await;
        }
    }

    async fn look_at_removal(&mut self, key: &ObjectKey, member: &Member) {
        let deadline = Instant::now() + self.tools.timeout;
        match member.last_removal(&self.workspace.installation, deadline).await {
            Ok(Some(number)) if !self.known.knows(&number) => self.lost.push(LostWrite {
                cluster: key.to_string(),
                sync: None,
                number,
            }),
            Ok(_) => {}
            Err(error) => self.preview.fail_unknown("", crate::chain(&error)),
        }
    }

    async fn look_at_number(&mut self, key: &ObjectKey, sync: &SyncResource, member: &Member) {
        let deadline = Instant::now() + self.tools.timeout;
        match member.last_write(&self.owner(sync), deadline).await {
            Ok(Some(number)) if !self.known.knows(&number) => self.lost.push(LostWrite {
                cluster: key.to_string(),
                sync: Some(ObjectKey::of(sync).to_string()),
                number,
            }),
            Ok(_) => {}
            Err(error) => self.preview.fail_unknown(&name(sync), crate::chain(&error)),
        }
    }

    fn owner(&self, sync: &SyncResource) -> String {
        let (namespace, own) = (sync.namespace().unwrap_or_default(), sync.name_any());
        let owner = match &sync.spec.group_ref {
            Some(of) => Owner::Entry {
                group: &of.name,
                entry: &of.entry,
            },
            None => Owner::Alone { sync: &own },
        };
        target::owner(&self.workspace.installation, &namespace, owner)
    }

    /// Builds what a Sync would apply; `None` if it would apply nothing.
    async fn part(&mut self, cluster: &Cluster, sync: &SyncResource) -> Option<Part> {
        let name = name(sync);
        if let Some(note) = self.is_not_applied(sync) {
            self.preview.notes.push(format!("{name}: {note}"));
            return None;
        }
        match self.build(cluster, sync).await {
            Ok(built) => {
                let (template, rendered) = built?;
                Some(Part {
                    name,
                    namespace: sync.namespace().unwrap_or_default(),
                    owner: self.owner(sync),
                    template,
                    rendered,
                })
            }
            Err(error) => {
                self.preview.fail(&name, crate::chain(error.as_ref()));
                None
            }
        }
    }

    /// Why a Sync would not be applied.
    fn is_not_applied(&self, sync: &SyncResource) -> Option<&'static str> {
        let namespace = sync.namespace().unwrap_or_default();
        let group = sync.spec.group_ref.as_ref();
        let group = group.and_then(|of| self.restored.groups.get(&ObjectKey::new(&namespace, &of.name)));
        if sync.metadata.deletion_timestamp.is_some() {
            Some("the Sync is being deleted, with its objects if deletionPolicy says so")
        } else if group.is_some_and(|group| group.metadata.deletion_timestamp.is_some()) {
            Some("the SyncGroup is being deleted, with all objects if deletionPolicy says so")
        } else if sync.spec.template.suspend {
            Some("the Sync is suspended")
        } else {
            None
        }
    }

    /// Renders a Sync; `None` while it has no revision.
    async fn build(
        &self,
        cluster: &Cluster,
        sync: &SyncResource,
    ) -> anyhow::Result<Option<(SyncTemplate, Arc<Rendered>)>> {
        let namespace = sync.namespace().unwrap_or_default();
        let template = match &sync.spec.group_ref {
            Some(_) => sync.spec.template.clone(),
            None => expand::resolve(&sync.spec.template, &ClusterFacts::of(cluster))?,
        };
        let named = &template.source_ref.name;
        let source = self.restored.sources.get(&ObjectKey::new(&namespace, named));
        let source = source.with_context(|| format!("Source {namespace}/{named} not found"))?;
        let latest = source.status.as_ref().map(|status| status.revision.as_str());
        let revision = match (sync.spec.revision.as_str(), &sync.spec.group_ref) {
            ("", Some(_)) => return Ok(None),
            ("", None) => latest.unwrap_or_default(),
            (revision, _) => revision,
        };
        if revision.is_empty() {
            return Ok(None);
        }
        let parsed: Revision = revision.parse()?;
        let own = sync.name_any();
        let at = EntryAt {
            name: &own,
            source,
            revision,
            reference: reference(source, &parsed),
        };
        let owner = self.owner(sync);
        let rendered = self.workspace.builder().render(&at, &template, &owner).await?;
        Ok(Some((template, rendered)))
    }

    async fn dry_run(&mut self, member: &Member, part: &Part, parts: &[Part]) {
        let Part {
            name,
            namespace,
            owner,
            template,
            rendered,
        } = part;
        let account = template.service_account_name.as_str();
        let member = match account {
            "" => Ok(member.clone()),
            account => member.impersonating(namespace, account),
        };
        let member = match member {
            Ok(member) => member,
            Err(error) => return self.preview.fail(name, crate::chain(&error)),
        };
        let others = || parts.iter().filter(|other| other.owner != *owner);
        let objects = others().flat_map(|other| &other.rendered.set.objects);
        let siblings = OtherSyncs(objects.map(|object| object.key.clone()).collect());
        let owners = others().map(|other| other.owner.clone()).collect();
        let found = member
            .preview(PreviewJob {
                owner,
                desired: &rendered.set,
                prune: template.prune,
                allow_empty: template.allow_empty,
                conflicts_override: template.conflicts == ConflictPolicy::Override,
                recreate: template.force,
                siblings: &siblings,
                handed_over_by: &owners,
                approved: "",
                deadline: Instant::now() + self.tools.timeout,
            })
            .await;
        let changes = found.changes.into_iter().map(|(key, change)| ObjectChange {
            entry: name.clone(),
            key,
            change,
        });
        self.preview.changes.extend(changes);
        for (_, error) in &found.failures {
            self.preview.fail(name, crate::chain(error));
        }
        if let Some(error) = &found.interrupted {
            self.preview.fail_unknown(name, crate::chain(error));
        }
        if let Some(blocker) = &found.prune_blocker {
            dry_run::report_blocker(&mut self.preview, name, blocker);
        }
    }
}

/// The name that Syncs of an entry have in common, so that clusters with equal changes are shown together.
fn name(sync: &SyncResource) -> String {
    match &sync.spec.group_ref {
        Some(of) => format!("{}/{}", of.name, of.entry),
        None => format!("Sync {}", sync.name_any()),
    }
}

/// The objects of the other Syncs on the same cluster.
#[derive(Debug)]
struct OtherSyncs(BTreeSet<ObjectId>);

impl Siblings for OtherSyncs {
    fn objects(&self) -> BoxFuture<'_, SiblingObjects> {
        let keys = self.0.clone();
        async { SiblingObjects::Known(keys) }.boxed()
    }
}
