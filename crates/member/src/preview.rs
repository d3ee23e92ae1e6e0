//! Determines what an apply would do: the member computes each object in a dry run.
//!
//! Nothing is written: every request is a GET, or has `dryRun=All`. A member rejects an object whose namespace or kind
//! does not exist, even in a dry run. If the same render contains the namespace or the definition, the object is
//! reported as created, without a check.

use std::collections::{BTreeMap, BTreeSet};

use futures::FutureExt as _;
use serde_json::Value;
use starling_api::PendingDeletions;
use starling_core::apply::ApprovedDeletions;
use starling_core::apply::{
    ApplyInput, ApplyPlan, ApplyStep, Confirmation, Grace, Guard, Options, PendingObjects, PruneBlocker,
    Recreation, plan, recreation,
};
use starling_core::deletion_budget::Earlier;
use starling_core::fields::remove;
use starling_core::ids::OwnerLabel;
use starling_core::inventory::InventoryEntry;
use starling_core::object::{GroupKind, ObjectId, RenderedObject, RenderedSet};
use starling_core::preview::{PreviewChange, canonical, difference};
use tokio::time::Instant;

use super::attempt::Attempt;
use super::batch::Batch;
use super::call::{Call, JSON, Operation};
use super::containers::LeftBehind;
use super::definitions::defined_kinds;
use super::error::MemberError;
use super::metadata::Partial;
use super::paths;
use super::prune::Prunable;
use super::recreate::{asking, asks_in_git};
use super::siblings::Siblings;
use super::transport::{ApiResponse, Member};

/// The objects that would be applied.
#[derive(Clone, Copy, Debug)]
pub struct PreviewJob<'a> {
    /// The value of the owner label, which the bodies of `desired` carry already.
    pub owner: &'a OwnerLabel,
    /// The complete render.
    pub desired: &'a RenderedSet,
    /// Whether objects that are no longer rendered would be deleted.
    pub prune: bool,
    /// Whether a render without objects is intended.
    pub allow_empty: bool,
    /// Whether an object that Starling does not own yet is applied by force, which takes fields from other managers.
    pub conflicts_override: bool,
    /// Whether an object is recreated if a changed field of it is immutable.
    pub recreate: bool,
    /// The Syncs that may take over objects that left the render.
    pub siblings: &'a dyn Siblings,
    /// Other owners whose objects would be handed over.
    pub handed_over_by: &'a BTreeSet<OwnerLabel>,
    /// The time between the first render that lacks an object and its deletion.
    pub grace: Grace<'a>,
    /// The approvals of deletions.
    pub approval: ApprovedDeletions<'a>,
    /// The kinds that an operator added to those whose deletion requires an approval.
    pub confirm: &'a BTreeSet<GroupKind>,
    /// The deletions of the Sync within the window.
    pub earlier: Earlier<'a>,
    /// No request starts or waits beyond this.
    pub deadline: Instant,
}

/// The result of a preview.
#[derive(Debug, Default)]
pub struct Preview {
    /// Objects that would change: first those that are applied, in their order, then those that are deleted.
    pub changes: Vec<(ObjectId, PreviewChange)>,
    /// Objects that would fail, ordered by key.
    pub failures: Vec<(ObjectId, MemberError)>,
    /// Why nothing would be deleted although there is something to delete.
    pub prune_blocker: Option<PruneBlocker>,
    /// Objects that would be deleted later, after their grace.
    pub pending: Option<PendingDeletions>,
    /// Why the preview is incomplete, if it is.
    pub interrupted: Option<MemberError>,
}

fn options_of(job: PreviewJob<'_>) -> Options {
    Options {
        prune: job.prune,
        allow_empty: job.allow_empty,
        conflicts_override: job.conflicts_override,
    }
}

/// Namespaces and kinds that the render itself creates: objects that need them cannot be checked in a dry run.
struct Provided {
    namespaces: BTreeSet<String>,
    kinds: BTreeSet<GroupKind>,
}

impl Member {
    /// Determines what an apply of this render would do. Sends no write.
    pub async fn preview(&self, job: PreviewJob<'_>) -> Preview {
        let mut preview = Preview::default();
        let member = self.keeping(&job.desired.secrets);
        if let Err(error) = member.run_preview(job, &mut preview).await {
            preview.interrupted = Some(error);
        }
        preview.failures.sort_by(|a, b| a.0.cmp(&b.0));
        preview
    }

    async fn run_preview(&self, job: PreviewJob<'_>, preview: &mut Preview) -> Result<(), MemberError> {
        let attempt = Attempt::until(job.deadline);
        let scoped = self.scoped_within(job.desired, &attempt).await?;
        let job = PreviewJob {
            desired: scoped.as_ref().unwrap_or(job.desired),
            ..job
        };
        let mut stored = self.read_stored(job.owner, &attempt).await?;
        stored.inventory = self
            .canonical(stored.inventory, Some(job.desired), &attempt)
            .await?;
        let siblings = job.siblings.objects().await;
        let pending = self
            .left_behind(
                job.owner,
                job.desired,
                options_of(job),
                &stored.inventory,
                &siblings,
                &attempt,
            )
            .await?;
        let begun = pending.begun();
        let confirmation = Confirmation {
            kinds: job.confirm,
            objects: &pending.asking,
        };
        let left = LeftBehind {
            owner: job.owner,
            desired: job.desired,
            siblings: &siblings,
            pending: &pending,
            confirmation,
            grace: job.grace,
        };
        self.keep_before_prune(left, job.siblings, &mut stored.inventory, &attempt)
            .await?;
        let (none, nothing, no_owners) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        let observed = ApplyInput {
            inventory: &stored.inventory,
            desired: job.desired,
            records: &none,
            drifted: &nothing,
            kept: &no_owners,
            compare: false,
            guard: Guard {
                siblings: &siblings,
                begun: &begun,
                gone: &pending.gone,
                earlier: job.earlier,
                confirmation,
                grace: job.grace,
                approval: job.approval,
            },
        };
        let plan = plan(observed, options_of(job));
        preview.prune_blocker.clone_from(&plan.prune_blocker);
        preview.pending = PendingObjects::of(&plan.claim).status(&[]);
        let applied = self.preview_applies(job, &plan, &attempt, preview).await;
        // Deletions come after everything that is applied without a failure.
        applied?;
        let entries: Vec<&InventoryEntry> = plan.prune.iter().flat_map(|(_, entries)| entries).collect();
        self.preview_deletions(job.owner, &entries, &attempt, preview)
            .await
    }

    async fn preview_applies(
        &self,
        job: PreviewJob<'_>,
        plan: &ApplyPlan<'_>,
        attempt: &Attempt,
        preview: &mut Preview,
    ) -> Result<(), MemberError> {
        let provided = Provided::by(job.desired);
        let steps: Vec<&ApplyStep<'_>> = plan.apply.iter().flat_map(|(_, steps)| steps).collect();
        let mut batch = Batch::new(self.limits().concurrency);
        for (index, step) in steps.iter().enumerate() {
            batch
                .begin(index, self.preview_object(job, step, &provided, attempt).boxed())
                .await;
        }
        let finished = batch.finish().await;
        let mut changes = BTreeMap::new();
        for (index, result) in finished.results {
            let key = &steps[index].object.key;
            match result {
                Ok(Some(change)) => {
                    changes.insert(index, (key.clone(), change));
                }
                Ok(None) => {}
                Err(error) => preview.failures.push((key.clone(), error)),
            }
        }
        preview.changes.extend(changes.into_values());
        finished.end.map_or(Ok(()), Err)
    }

    async fn preview_deletions(
        &self,
        owner: &OwnerLabel,
        entries: &[&InventoryEntry],
        attempt: &Attempt,
        preview: &mut Preview,
    ) -> Result<(), MemberError> {
        let mut batch = Batch::new(self.limits().concurrency);
        for (index, entry) in entries.iter().enumerate() {
            batch
                .begin(index, self.prunable(owner, entry, attempt).boxed())
                .await;
        }
        let finished = batch.finish().await;
        let mut deleted = BTreeSet::new();
        for (index, result) in finished.results {
            match result {
                Ok(Prunable::Target(target)) if !target.terminating => {
                    deleted.insert(index);
                }
                Ok(_) => {}
                Err(error) => preview.failures.push((entries[index].key.clone(), error)),
            }
        }
        let keys = deleted.into_iter().map(|index| entries[index].key.clone());
        preview
            .changes
            .extend(keys.map(|key| (key, PreviewChange::Delete)));
        finished.end.map_or(Ok(()), Err)
    }

    /// Determines the change of one object; `None` if it would not change.
    async fn preview_object(
        &self,
        job: PreviewJob<'_>,
        step: &ApplyStep<'_>,
        provided: &Provided,
        attempt: &Attempt,
    ) -> Result<Option<PreviewChange>, MemberError> {
        let object = step.object;
        let resource = match self.resource(&object.key, &object.api_version, attempt).await {
            Err(MemberError::UnknownKind { .. }) if provided.kind_of(&object.key) => {
                return Ok(Some(PreviewChange::Create));
            }
            other => other?,
        };
        let path = paths::object(&resource, &object.key)?;
        let get = Operation::object("get", &object.key);
        let live = match self.send(Call::get(get, path.clone(), JSON), attempt).await {
            Ok(response) => Some(response),
            Err(MemberError::NotFound { .. }) => None,
            Err(error) => return Err(error),
        };
        let mut force = step.force;
        if let Some(live) = &live {
            let metadata = live.parse::<Partial<'_>>(get)?.metadata;
            if metadata.is_left_alone() {
                return Ok(None);
            }
            force |= step.claim.takes_back(metadata.live(), job.owner);
            match metadata.live().owner.filter(|label| *label != job.owner.as_str()) {
                Some(other) if job.handed_over_by.contains(&OwnerLabel::new(other)) => force = true,
                Some(other) => {
                    return Err(MemberError::OwnedByOther {
                        object: object.key.clone(),
                        by: format!("the owner {other}"),
                    });
                }
                None => {}
            }
        }
        let dry_run_apply = Operation::object("dry-run", &object.key);
        let query = path.clone() + &paths::apply_query(force, true);
        let call = Call::apply(dry_run_apply, query, JSON, body(object, live.is_some()));
        match self.send(call, attempt).await {
            Ok(dry_run) => change(object, live.as_ref(), &dry_run),
            // The object would be created after its namespace.
            Err(MemberError::NotFound { .. }) if live.is_none() && provided.namespace_of(&object.key) => {
                Ok(Some(PreviewChange::Create))
            }
            Err(MemberError::Immutable { request, message, .. }) => {
                let Some(live) = &live else {
                    return Ok(Some(PreviewChange::Create));
                };
                let requested = job.recreate || object.directives.recreate;
                let metadata = live.parse::<Partial<'_>>(get)?.metadata;
                let asking = asking(&object.key, metadata.asks_to_confirm() || asks_in_git(object));
                let confirmation = Confirmation {
                    objects: &asking,
                    ..Confirmation::default()
                };
                let live = metadata.live();
                match recreation(&object.key, requested, step.claim, job.owner, live, confirmation) {
                    Recreation::Do { .. } => Ok(Some(PreviewChange::Recreate)),
                    Recreation::Refuse(obstacle) => Err(MemberError::Immutable {
                        request,
                        message,
                        obstacle: Some(obstacle),
                    }),
                }
            }
            Err(error) => Err(error),
        }
    }
}

/// Returns the body of the apply: ignored fields are sent only to create the object.
fn body(object: &RenderedObject, exists: bool) -> bytes::Bytes {
    match &object.directives.ignored {
        Some(ignored) if !exists => ignored.whole.clone(),
        _ => object.body.clone(),
    }
}

fn change(
    object: &RenderedObject,
    live: Option<&ApiResponse>,
    dry_run: &ApiResponse,
) -> Result<Option<PreviewChange>, MemberError> {
    let Some(live) = live else {
        return Ok(Some(PreviewChange::Create));
    };
    let mut before: Value = live.parse(Operation::object("get", &object.key))?;
    let mut after: Value = dry_run.parse(Operation::object("dry-run", &object.key))?;
    for side in [&mut before, &mut after] {
        canonical(side);
        // Values of ignored fields do not change, whatever the dry run does to their ownership.
        if let Some(ignored) = &object.directives.ignored {
            remove(side, &ignored.pointers);
        }
    }
    let fields = difference(&before, &after, object.is_secret());
    Ok((!fields.is_empty()).then_some(PreviewChange::Update { fields }))
}

impl Provided {
    fn by(desired: &RenderedSet) -> Self {
        let namespaces = desired.objects.iter().map(|object| &object.key);
        let namespaces = namespaces.filter(|key| key.group.is_empty() && key.kind == "Namespace");
        Self {
            namespaces: namespaces.map(|key| key.name.clone()).collect(),
            kinds: defined_kinds(desired),
        }
    }

    fn kind_of(&self, key: &ObjectId) -> bool {
        self.kinds.contains(&key.group_kind())
    }

    fn namespace_of(&self, key: &ObjectId) -> bool {
        self.namespaces.contains(&key.namespace)
    }
}
