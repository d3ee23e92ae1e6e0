//! Recreates an object, if a changed field is immutable and a user has requested recreation.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::json;
use starling_api::{CONFIRM, DELETION, FIELD_MANAGER};
use starling_core::apply::{
    ApplyStep, Confirmation, Recreation, RecreationObstacle, may_recreate, recreation,
};
use starling_core::ids::Uid;
use starling_core::object::{ObjectId, RenderedObject};

use super::apply::ApplyJob;
use super::attempt::Attempt;
use super::call::{Call, Operation};
use super::error::MemberError;
use super::metadata::Partial;
use super::outcome::{Applied, applied};
use super::paths;
use super::transport::Member;
use super::wait::Pauses;

/// The message of an API server about a number that the live object has and the new one requests: the number becomes
/// free when the object is deleted.
const ALLOCATED_TO_ITSELF: &str = "already allocated";

/// The identity of a live object that is to be deleted.
struct RecreationTarget {
    uid: Uid,
    version: String,
    /// Whether the object is already being deleted.
    terminating: bool,
}

/// The refusal of a change that leads to a recreation.
pub(super) struct RecreationRefusal {
    /// The request.
    pub(super) request: String,
    /// The message of the member.
    pub(super) message: String,
}

impl Member {
    /// Recreates an object, or returns why not.
    ///
    /// Deletes only an object that can be created again: a dry run first checks that the member accepts the new object.
    /// After a crash between deletion and creation, the next attempt finds the object missing and creates it.
    pub(super) async fn recreate(
        &self,
        job: ApplyJob<'_>,
        step: &ApplyStep<'_>,
        path: &str,
        refusal: RecreationRefusal,
        attempt: &Attempt,
    ) -> Result<Applied, MemberError> {
        let object = step.object;
        let RecreationRefusal { request, message } = refusal;
        let refuse = |obstacle| MemberError::Immutable {
            request,
            message,
            obstacle: Some(obstacle),
        };
        let requested = job.recreate || object.directives.recreate;
        let asking = asking(&object.key, asks_in_git(object));
        if let Err(obstacle) = may_recreate(&object.key, requested, confirmation(job, &asking)) {
            return Err(refuse(obstacle));
        }
        match self.recreation_target(job, step, path, attempt).await? {
            None => {}
            Some(Err(obstacle)) => return Err(refuse(obstacle)),
            Some(Ok(target)) => {
                self.try_creation(object, path, attempt).await?;
                self.delete_and_wait(object, path, &target, attempt).await?;
            }
        }
        if let Some(ignored) = &object.directives.ignored {
            return self.create_complete(step, ignored, path, attempt).await;
        }
        let response = self
            .patch(object, path, object.body.clone(), step.force, attempt)
            .await?;
        applied(step, None, &response)
    }

    /// Reads the object. Returns `None` if it is gone, or the reason why it is not deleted.
    async fn recreation_target(
        &self,
        job: ApplyJob<'_>,
        step: &ApplyStep<'_>,
        path: &str,
        attempt: &Attempt,
    ) -> Result<Option<Result<RecreationTarget, RecreationObstacle>>, MemberError> {
        let object = step.object;
        let Some(response) = self.get_metadata(object, path, attempt).await? else {
            return Ok(None);
        };
        let live = response
            .parse::<Partial<'_>>(Operation::object("get", &object.key))?
            .metadata;
        let requested = job.recreate || object.directives.recreate;
        let asking = asking(&object.key, live.asks_to_confirm());
        let confirmation = confirmation(job, &asking);
        Ok(Some(
            match recreation(
                &object.key,
                requested,
                step.claim,
                job.owner,
                live.live(),
                confirmation,
            ) {
                Recreation::Refuse(obstacle) => Err(obstacle),
                Recreation::Do { uid } => Ok(RecreationTarget {
                    uid,
                    version: live.resource_version.clone(),
                    terminating: live.is_terminating(),
                }),
            },
        ))
    }

    /// Checks in a dry run whether the member would accept the object if the old one did not exist. The member
    /// validates an object before it checks whether the name is free, so "already exists" means that it would.
    async fn try_creation(
        &self,
        object: &RenderedObject,
        path: &str,
        attempt: &Attempt,
    ) -> Result<(), MemberError> {
        let body = object
            .directives
            .ignored
            .as_ref()
            .map_or(&object.body, |ignored| &ignored.whole);
        let collection = format!(
            "{}?fieldManager={FIELD_MANAGER}&dryRun=All",
            paths::collection_of(path)
        );
        let call = Call::create(
            Operation::object("dry-run the recreation of", &object.key),
            collection,
            body.clone(),
        );
        match self.send(call, attempt).await {
            Ok(_) | Err(MemberError::Conflict { .. }) => Ok(()),
            Err(MemberError::Invalid { message, .. }) if message.contains(ALLOCATED_TO_ITSELF) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Deletes the object at the version that was read, and waits until it is gone.
    async fn delete_and_wait(
        &self,
        object: &RenderedObject,
        path: &str,
        target: &RecreationTarget,
        attempt: &Attempt,
    ) -> Result<(), MemberError> {
        if !target.terminating {
            let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background",
                "preconditions": {"uid": target.uid, "resourceVersion": target.version}});
            let operation = Operation::object("delete for recreation", &object.key);
            match self
                .send(
                    Call::delete(operation, path.to_owned(), options.to_string().into()),
                    attempt,
                )
                .await
            {
                Ok(_) | Err(MemberError::NotFound { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        let mut pauses = Pauses::within(attempt);
        loop {
            let Some(response) = self.get_metadata(object, path, attempt).await? else {
                return Ok(());
            };
            let live = response
                .parse::<Partial<'_>>(Operation::object("get", &object.key))?
                .metadata;
            if live.uid != target.uid {
                return Ok(());
            }
            if !pauses.pause().await {
                return Err(MemberError::NotGone {
                    object: object.key.clone(),
                    finalizers: live.finalizers,
                });
            }
        }
    }
}

/// The object, if it asks for an approval of its deletion.
pub(super) fn asking(key: &ObjectId, asks: bool) -> BTreeSet<ObjectId> {
    asks.then(|| key.clone()).into_iter().collect()
}

fn confirmation<'a>(job: ApplyJob<'a>, objects: &'a BTreeSet<ObjectId>) -> Confirmation<'a> {
    Confirmation {
        kinds: job.confirm,
        objects,
    }
}

/// Whether the rendered object has the annotation that asks for an approval. The cluster lacks it if the commit that
/// adds it also changes the immutable field.
pub(super) fn asks_in_git(object: &RenderedObject) -> bool {
    #[derive(Deserialize)]
    struct Annotated {
        metadata: Annotations,
    }
    #[derive(Deserialize)]
    struct Annotations {
        #[serde(default)]
        annotations: BTreeMap<String, String>,
    }
    let read = serde_json::from_slice::<Annotated>(&object.body);
    read.is_ok_and(|object| object.metadata.annotations.get(DELETION).map(String::as_str) == Some(CONFIRM))
}
