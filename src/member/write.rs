//! Writes one object.

use bytes::Bytes;
use http::StatusCode;
use starling_core::apply::{Claim, Record, Step, Why};
use starling_core::object::RenderedObject;

use super::adopt::Adoption;
use super::apply::{Applied, ApplyJob, Change};
use super::attempt::Attempt;
use super::call::{Call, METADATA, What};
use super::error::MemberError;
use super::ignored::with_uid;
use super::metadata::Partial;
use super::paths;
use super::transport::{Answer, Member};

impl Member {
    /// Makes the member hold one object as rendered: one PATCH, unless something about the object calls for more.
    pub(super) async fn apply_object(
        &self,
        job: ApplyJob<'_>,
        step: &Step<'_>,
        attempt: &Attempt,
    ) -> Result<Applied, MemberError> {
        let object = step.object;
        let resource = self.resource(&object.key, &object.api_version, attempt).await?;
        let path = paths::object(&resource, &object.key)?;
        let record = job.records.get(&object.key);
        let written = match self.write(job.owner, step, record, &path, attempt).await {
            Err(error) if step.claim == Claim::Unconfirmed && !step.force && error.is_about_fields() => {
                self.take_back(job.owner, step, &path, error, attempt).await
            }
            other => other,
        };
        let written = match written {
            Err(MemberError::Immutable { request, message, .. }) => {
                self.recreate(job, step, &path, (request, message), attempt).await
            }
            other => other,
        };
        written.inspect_err(|error| {
            if matches!(error, MemberError::NotServed { .. }) {
                self.kinds().forget(&resource.group_version);
            }
        })
    }

    async fn write(
        &self,
        owner: &str,
        step: &Step<'_>,
        record: Option<&Record>,
        path: &str,
        attempt: &Attempt,
    ) -> Result<Applied, MemberError> {
        let object = step.object;
        if let Some(ignored) = &object.directives.ignored {
            return self
                .write_without(owner, step, ignored, record, path, attempt)
                .await;
        }
        let before = match step.why {
            Why::Unknown => match self.adopt(owner, object, path, attempt).await? {
                Adoption::InStep(record) => return Ok(unchanged(object, record)),
                Adoption::Differs(version) => Some(version),
                Adoption::Absent => None,
            },
            Why::New | Why::Changed | Why::Drifted => record.map(|record| record.resource_version.clone()),
        };
        let answer = self
            .patch(object, path, object.body.clone(), step.force, attempt)
            .await?;
        applied(step, before.as_deref(), &answer)
    }

    /// Writes once more, by force, an object that turns out to be ours: an earlier apply of it was taken, and its answer lost.
    /// `conflict` is what the member said of others' fields.
    async fn take_back(
        &self,
        owner: &str,
        step: &Step<'_>,
        path: &str,
        conflict: MemberError,
        attempt: &Attempt,
    ) -> Result<Applied, MemberError> {
        let object = step.object;
        let answer = match self.look(object, path, attempt).await {
            Ok(Some(answer)) => answer,
            Err(error) if error.ends_attempt() => return Err(error),
            // Who may not look is told of the conflict.
            Ok(None) | Err(_) => return Err(conflict),
        };
        let get = What::object("get", &object.key);
        let live = answer.parse::<Partial<'_>>(get)?.metadata;
        live.check(&object.key, get)?;
        if step.claim.is_of(live.live(), owner) && live.is_left_alone() {
            return Ok(unchanged(object, live.record("")));
        }
        if !step.claim.takes_back(live.live(), owner) {
            return Err(conflict);
        }
        // This one, and none that was made in its place since.
        let object = RenderedObject {
            body: with_uid(&object.body, &live.uid),
            ..object.clone()
        };
        let step = Step {
            object: &object,
            force: true,
            ..*step
        };
        self.write(owner, &step, None, path, attempt).await
    }

    /// Sends one server-side apply.
    pub(super) async fn patch(
        &self,
        object: &RenderedObject,
        path: &str,
        body: Bytes,
        force: bool,
        attempt: &Attempt,
    ) -> Result<Answer, MemberError> {
        let path = path.to_owned() + &paths::apply_query(force, false);
        self.send(
            Call::apply(What::object("apply", &object.key), path, METADATA, body),
            attempt,
        )
        .await
    }

    /// The metadata of an object; `None` if there is none.
    pub(super) async fn look(
        &self,
        object: &RenderedObject,
        path: &str,
        attempt: &Attempt,
    ) -> Result<Option<Answer>, MemberError> {
        let get = What::object("get", &object.key);
        match self
            .send(Call::get(get, path.to_owned(), METADATA), attempt)
            .await
        {
            Ok(answer) => Ok(Some(answer)),
            Err(MemberError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// An object that needed no write.
pub(super) fn unchanged(object: &RenderedObject, record: Record) -> Applied {
    Applied {
        key: object.key.clone(),
        record,
        change: Change::Unchanged,
        fields: None,
    }
}

/// What an answer to an apply says. `before` is the `resourceVersion` that was known before it.
pub(super) fn applied(
    step: &Step<'_>,
    before: Option<&str>,
    answer: &Answer,
) -> Result<Applied, MemberError> {
    let what = What::object("apply", &step.object.key);
    let metadata = answer.parse::<Partial<'_>>(what)?.metadata;
    metadata.check(&step.object.key, what)?;
    let change = match before {
        _ if answer.status == StatusCode::CREATED => Change::Created,
        Some(version) if version == metadata.resource_version => Change::Unchanged,
        _ => Change::Configured,
    };
    Ok(Applied {
        key: step.object.key.clone(),
        record: metadata.record(&step.object.digest),
        change,
        fields: (step.why == Why::Drifted).then(|| metadata.our_fields()),
    })
}
