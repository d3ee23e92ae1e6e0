//! What an apply would do, found out without doing it: the member works each object out in a dry run.
//!
//! Nothing is written: every request is a GET, or says `dryRun=All`. A member does not take an object in a namespace, or of a
//! kind, that is not there yet, dry run or not; where the same render brings these, the object is told as one that would be
//! made, unchecked.

use std::collections::{BTreeMap, BTreeSet};

use futures::FutureExt as _;
use serde_json::Value;
use starling_core::apply::{Guard, Observed, Options, Plan, PruneHold, Recreation, Step, plan, recreation};
use starling_core::fields::remove;
use starling_core::inventory::Entry;
use starling_core::object::{ObjectKey, RenderedObject, RenderedSet};
use starling_core::preview::{Change, canonical, difference};
use tokio::time::Instant;

use super::attempt::Attempt;
use super::call::{Call, JSON, What};
use super::definitions::defined_kinds;
use super::error::MemberError;
use super::lane::Lane;
use super::metadata::Partial;
use super::paths;
use super::siblings::Siblings;
use super::transport::{Answer, Member};

/// What would be applied.
#[derive(Clone, Copy, Debug)]
pub struct PreviewJob<'a> {
    /// The value of the owner label, which the bodies of `desired` carry already.
    pub owner: &'a str,
    /// The complete render.
    pub desired: &'a RenderedSet,
    /// Whether objects that are no longer rendered would be deleted.
    pub prune: bool,
    /// Whether a render without objects is meant.
    pub allow_empty: bool,
    /// Whether fields are taken from other managers on objects that are not ours yet.
    pub conflicts_override: bool,
    /// Whether an object is deleted and made anew where a field of it cannot be changed.
    pub recreate: bool,
    /// Who may hold what left the render.
    pub siblings: &'a dyn Siblings,
    /// Other owners whose objects would be handed over.
    pub handed_over_by: &'a BTreeSet<String>,
    /// The digests of deletions that a person approved.
    pub approved: &'a str,
    /// No request starts or waits beyond this.
    pub deadline: Instant,
}

/// What would come of it.
#[derive(Debug, Default)]
pub struct Preview {
    /// Objects that would change: those that are applied, in their order, then those that are deleted.
    pub changes: Vec<(ObjectKey, Change)>,
    /// Objects that would fail, ordered by key.
    pub failures: Vec<(ObjectKey, MemberError)>,
    /// Why nothing would be deleted although there is something to delete.
    pub prune_hold: Option<PruneHold>,
    /// Why not all of it could be looked at.
    pub interrupted: Option<MemberError>,
}

/// What the render itself brings: objects that need it cannot be tried before it is there.
struct Brought {
    namespaces: BTreeSet<String>,
    kinds: BTreeSet<(String, String)>,
}

impl Member {
    /// Tells what an apply of this render would do. Nothing is written.
    pub async fn preview(&self, job: PreviewJob<'_>) -> Preview {
        let mut preview = Preview::default();
        if let Err(error) = self.look_ahead(job, &mut preview).await {
            preview.interrupted = Some(error);
        }
        preview.failures.sort_by(|a, b| a.0.cmp(&b.0));
        preview
    }

    async fn look_ahead(&self, job: PreviewJob<'_>, preview: &mut Preview) -> Result<(), MemberError> {
        let attempt = Attempt::until(job.deadline);
        let stored = self.load_inventory(job.owner, &attempt).await?;
        let elsewhere = job.siblings.hold().await;
        let (none, nothing, nobody) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        let observed = Observed {
            inventory: &stored.inventory,
            desired: job.desired,
            records: &none,
            drifted: &nothing,
            kept: &nobody,
            guard: Guard {
                elsewhere: &elsewhere,
                approved: job.approved,
            },
        };
        let options = Options {
            prune: job.prune,
            allow_empty: job.allow_empty,
            conflicts_override: job.conflicts_override,
        };
        let plan = plan(observed, options);
        preview.prune_hold.clone_from(&plan.prune_hold);
        let applied = self.try_all(job, &plan, &attempt, preview).await;
        // Deletions come after everything that is applied without a failure.
        applied?;
        let entries: Vec<&Entry> = plan.prune.iter().flat_map(|(_, entries)| entries).collect();
        self.look_at_deletions(job.owner, &entries, &attempt, preview)
            .await
    }

    async fn try_all(
        &self,
        job: PreviewJob<'_>,
        plan: &Plan<'_>,
        attempt: &Attempt,
        preview: &mut Preview,
    ) -> Result<(), MemberError> {
        let brought = Brought::by(job.desired);
        let steps: Vec<&Step<'_>> = plan.apply.iter().flat_map(|(_, steps)| steps).collect();
        let mut lane = Lane::new(self.limits().concurrency);
        for (place, step) in steps.iter().enumerate() {
            lane.begin(place, self.try_object(job, step, &brought, attempt).boxed())
                .await;
        }
        let tried = lane.finish().await;
        let mut changes = BTreeMap::new();
        for (place, result) in tried.results {
            let key = &steps[place].object.key;
            match result {
                Ok(Some(change)) => {
                    changes.insert(place, (key.clone(), change));
                }
                Ok(None) => {}
                Err(error) => preview.failures.push((key.clone(), error)),
            }
        }
        preview.changes.extend(changes.into_values());
        tried.end.map_or(Ok(()), Err)
    }

    async fn look_at_deletions(
        &self,
        owner: &str,
        entries: &[&Entry],
        attempt: &Attempt,
        preview: &mut Preview,
    ) -> Result<(), MemberError> {
        let mut lane = Lane::new(self.limits().concurrency);
        for (place, entry) in entries.iter().enumerate() {
            lane.begin(place, self.prunable(owner, entry, attempt).boxed())
                .await;
        }
        let tried = lane.finish().await;
        let mut deleted = BTreeSet::new();
        for (place, result) in tried.results {
            match result {
                Ok(Some(doomed)) if !doomed.terminating => {
                    deleted.insert(place);
                }
                Ok(_) => {}
                Err(error) => preview.failures.push((entries[place].key.clone(), error)),
            }
        }
        let keys = deleted.into_iter().map(|place| entries[place].key.clone());
        preview.changes.extend(keys.map(|key| (key, Change::Delete)));
        tried.end.map_or(Ok(()), Err)
    }

    /// What an apply would do to one object; `None`: nothing.
    async fn try_object(
        &self,
        job: PreviewJob<'_>,
        step: &Step<'_>,
        brought: &Brought,
        attempt: &Attempt,
    ) -> Result<Option<Change>, MemberError> {
        let object = step.object;
        let resource = match self.resource(&object.key, &object.api_version, attempt).await {
            Err(MemberError::UnknownKind { .. }) if brought.kind_of(&object.key) => {
                return Ok(Some(Change::Create));
            }
            other => other?,
        };
        let path = paths::object(&resource, &object.key)?;
        let get = What::object("get", &object.key);
        let live = match self.send(Call::get(get, path.clone(), JSON), attempt).await {
            Ok(answer) => Some(answer),
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
            match metadata.live().owner.filter(|label| *label != job.owner) {
                Some(other) if job.handed_over_by.contains(other) => force = true,
                Some(other) => {
                    return Err(MemberError::OwnedByOther {
                        object: object.key.clone(),
                        by: format!("the owner {other}"),
                    });
                }
                None => {}
            }
        }
        let try_apply = What::object("try", &object.key);
        let query = path.clone() + &paths::apply_query(force, true);
        let call = Call::apply(try_apply, query, JSON, body(object, live.is_some()));
        match self.send(call, attempt).await {
            Ok(trial) => change(object, live.as_ref(), &trial),
            // The object would be made after the namespace that it is in.
            Err(MemberError::NotFound { .. }) if live.is_none() && brought.namespace_of(&object.key) => {
                Ok(Some(Change::Create))
            }
            Err(MemberError::Immutable { request, message, .. }) => {
                let Some(live) = &live else {
                    return Ok(Some(Change::Create));
                };
                let asked = job.recreate || object.directives.recreate;
                let metadata = live.parse::<Partial<'_>>(get)?.metadata;
                match recreation(&object.key, asked, step.claim, job.owner, metadata.live()) {
                    Recreation::Do { .. } => Ok(Some(Change::Recreate)),
                    Recreation::Refuse(advice) => Err(MemberError::Immutable {
                        request,
                        message,
                        advice,
                    }),
                }
            }
            Err(error) => Err(error),
        }
    }
}

/// What is sent: fields that are left to others only while the object is made.
fn body(object: &RenderedObject, exists: bool) -> bytes::Bytes {
    match &object.directives.ignored {
        Some(ignored) if !exists => ignored.whole.clone(),
        _ => object.body.clone(),
    }
}

fn change(
    object: &RenderedObject,
    live: Option<&Answer>,
    trial: &Answer,
) -> Result<Option<Change>, MemberError> {
    let Some(live) = live else {
        return Ok(Some(Change::Create));
    };
    let mut before: Value = live.parse(What::object("get", &object.key))?;
    let mut after: Value = trial.parse(What::object("try", &object.key))?;
    for side in [&mut before, &mut after] {
        canonical(side);
        // The values of these stay as they are, whatever the dry run makes of their ownership.
        if let Some(ignored) = &object.directives.ignored {
            remove(side, &ignored.pointers);
        }
    }
    let is_secret = object.key.group.is_empty() && object.key.kind == "Secret";
    let fields = difference(&before, &after, is_secret);
    Ok((!fields.is_empty()).then_some(Change::Update { fields }))
}

impl Brought {
    fn by(desired: &RenderedSet) -> Self {
        let namespaces = desired.objects.iter().map(|object| &object.key);
        let namespaces = namespaces.filter(|key| key.group.is_empty() && key.kind == "Namespace");
        Self {
            namespaces: namespaces.map(|key| key.name.clone()).collect(),
            kinds: defined_kinds(desired),
        }
    }

    fn kind_of(&self, key: &ObjectKey) -> bool {
        self.kinds.contains(&(key.group.clone(), key.kind.clone()))
    }

    fn namespace_of(&self, key: &ObjectKey) -> bool {
        self.namespaces.contains(&key.namespace)
    }
}
