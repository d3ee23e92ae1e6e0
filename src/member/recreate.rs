//! Deletes an object and makes it anew, where a field of it cannot be changed and somebody asked for it.

use serde_json::json;
use starling_api::FIELD_MANAGER;
use starling_core::apply::{Recreation, Step, may_recreate, recreation};
use starling_core::object::RenderedObject;

use super::apply::{Applied, ApplyJob};
use super::attempt::Attempt;
use super::call::{Call, What};
use super::error::MemberError;
use super::metadata::Partial;
use super::paths;
use super::transport::Member;
use super::wait::Pauses;
use super::write::applied;

/// What an API server says of a number that the live object has and its successor is to have: once the object is deleted,
/// the number is free.
const TAKEN_BY_ITSELF: &str = "already allocated";

/// The live object, as far as its deletion needs to know it.
struct Doomed {
    uid: String,
    version: String,
    /// Somebody deleted it already.
    dying: bool,
}

impl Member {
    /// Recreates an object, or says why not. `refusal` is what was tried, and the member's words about it.
    ///
    /// Nothing is deleted that would not come back: the member is first asked, in a dry run, whether it would take the new
    /// object. A process that dies between the two finds the object missing, and makes it.
    pub(super) async fn recreate(
        &self,
        job: ApplyJob<'_>,
        step: &Step<'_>,
        path: &str,
        refusal: (String, String),
        attempt: &Attempt,
    ) -> Result<Applied, MemberError> {
        let object = step.object;
        let (request, message) = refusal;
        let refuse = |advice| MemberError::Immutable {
            request,
            message,
            advice,
        };
        let asked = job.recreate || object.directives.recreate;
        if let Err(advice) = may_recreate(&object.key, asked) {
            return Err(refuse(advice));
        }
        match self.doomed(job, step, path, attempt).await? {
            None => {}
            Some(Err(advice)) => return Err(refuse(advice)),
            Some(Ok(doomed)) => {
                self.try_creation(object, path, attempt).await?;
                self.delete_and_wait(object, path, &doomed, attempt).await?;
            }
        }
        if let Some(ignored) = &object.directives.ignored {
            return self.make_whole(step, ignored, path, attempt).await;
        }
        let answer = self
            .patch(object, path, object.body.clone(), step.force, attempt)
            .await?;
        applied(step, None, &answer)
    }

    /// Looks at the object: `None` if it is gone, or the reason why it is not deleted.
    async fn doomed(
        &self,
        job: ApplyJob<'_>,
        step: &Step<'_>,
        path: &str,
        attempt: &Attempt,
    ) -> Result<Option<Result<Doomed, &'static str>>, MemberError> {
        let object = step.object;
        let Some(answer) = self.look(object, path, attempt).await? else {
            return Ok(None);
        };
        let live = answer
            .parse::<Partial<'_>>(What::object("get", &object.key))?
            .metadata;
        let asked = job.recreate || object.directives.recreate;
        Ok(Some(
            match recreation(&object.key, asked, step.claim, job.owner, live.live()) {
                Recreation::Refuse(advice) => Err(advice),
                Recreation::Do { uid } => Ok(Doomed {
                    uid,
                    version: live.resource_version.clone(),
                    dying: live.is_terminating(),
                }),
            },
        ))
    }

    /// Asks the member whether it would take the object if the old one was not there. It checks an object before it
    /// looks whether the name is free, so "it exists already" means yes.
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
            paths::siblings(path)
        );
        let call = Call::create(
            What::object("try to make anew", &object.key),
            collection,
            body.clone(),
        );
        match self.send(call, attempt).await {
            Ok(_) | Err(MemberError::Conflict { .. }) => Ok(()),
            Err(MemberError::Invalid { message, .. }) if message.contains(TAKEN_BY_ITSELF) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Deletes the object as it was looked at, and waits until it is gone.
    async fn delete_and_wait(
        &self,
        object: &RenderedObject,
        path: &str,
        doomed: &Doomed,
        attempt: &Attempt,
    ) -> Result<(), MemberError> {
        if !doomed.dying {
            let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background",
                "preconditions": {"uid": doomed.uid, "resourceVersion": doomed.version}});
            let what = What::object("delete, to make anew,", &object.key);
            match self
                .send(
                    Call::delete(what, path.to_owned(), options.to_string().into()),
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
            let Some(answer) = self.look(object, path, attempt).await? else {
                return Ok(());
            };
            let live = answer
                .parse::<Partial<'_>>(What::object("get", &object.key))?
                .metadata;
            if live.uid != doomed.uid {
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
