//! Writes one object.

use bytes::Bytes;
use starling_core::apply::{ApplyStep, Claim, Record};
use starling_core::object::RenderedObject;

use super::adopt::Adoption;
use super::apply::ApplyJob;
use super::attempt::Attempt;
use super::body::with_uid;
use super::call::{Call, METADATA, Operation};
use super::error::MemberError;
use super::metadata::Partial;
use super::outcome::{Applied, InStep, applied, unchanged};
use super::paths;
use super::recreate::RecreationRefusal;
use super::transport::{ApiResponse, Member};

impl Member {
    /// Applies one object as rendered: one PATCH, unless the object needs more requests.
    pub(super) async fn apply_object(
        &self,
        job: ApplyJob<'_>,
        step: &ApplyStep<'_>,
        attempt: &Attempt,
    ) -> Result<Applied, MemberError> {
        let object = step.object;
        let resource = self.resource(&object.key, &object.api_version, attempt).await?;
        let path = paths::object(&resource, &object.key)?;
        let record = job.records.get(&object.key);
        let written = match self.write(job, step, record, &path, attempt).await {
            Err(error) if step.claim == Claim::Unconfirmed && !step.force && error.is_about_fields() => {
                self.reapply_by_force(job, step, &path, error, attempt).await
            }
            other => other,
        };
        let written = match written {
            Err(MemberError::Immutable { request, message, .. }) => {
                let refusal = RecreationRefusal { request, message };
                self.recreate(job, step, &path, refusal, attempt).await
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
        job: ApplyJob<'_>,
        step: &ApplyStep<'_>,
        record: Option<&Record>,
        path: &str,
        attempt: &Attempt,
    ) -> Result<Applied, MemberError> {
        let object = step.object;
        if let Some(ignored) = &object.directives.ignored {
            return self
                .write_ignoring(job, step, ignored, record, path, attempt)
                .await;
        }
        let before = match self.compare(job, step, record, path, attempt).await? {
            Some(Adoption::InStep(found)) => return Ok(unchanged(step, found)),
            Some(Adoption::Differs(version)) => Some(version),
            Some(Adoption::Absent) => None,
            None => record.map(|record| record.resource_version.clone()),
        };
        let response = self
            .patch(object, path, object.body.clone(), step.force, attempt)
            .await?;
        applied(step, before.as_deref(), &response)
    }

    /// Applies an object again, by force, if Starling owns it: the response to an earlier apply was lost. `conflict` is
    /// the error of the member about fields of other managers.
    async fn reapply_by_force(
        &self,
        job: ApplyJob<'_>,
        step: &ApplyStep<'_>,
        path: &str,
        conflict: MemberError,
        attempt: &Attempt,
    ) -> Result<Applied, MemberError> {
        let object = step.object;
        let response = match self.get_metadata(object, path, attempt).await {
            Ok(Some(response)) => response,
            Err(error) if error.ends_attempt() => return Err(error),
            // Without read access, the conflict is reported.
            Ok(None) | Err(_) => return Err(conflict),
        };
        let get = Operation::object("get", &object.key);
        let live = response.parse::<Partial<'_>>(get)?.metadata;
        live.check(&object.key, get)?;
        if step.claim.is_of(live.live(), job.owner) && live.is_left_alone() {
            return Ok(unchanged(step, InStep::read(&live, "")));
        }
        if !step.claim.takes_back(live.live(), job.owner) {
            return Err(conflict);
        }
        // The UID excludes an object that was created in its place since.
        let object = RenderedObject {
            body: with_uid(&object.body, &live.uid),
            ..object.clone()
        };
        let step = ApplyStep {
            object: &object,
            force: true,
            ..*step
        };
        self.write(job, &step, None, path, attempt).await
    }

    /// Sends one server-side apply.
    pub(super) async fn patch(
        &self,
        object: &RenderedObject,
        path: &str,
        body: Bytes,
        force: bool,
        attempt: &Attempt,
    ) -> Result<ApiResponse, MemberError> {
        let path = path.to_owned() + &paths::apply_query(force, false);
        self.send(
            Call::apply(Operation::object("apply", &object.key), path, METADATA, body),
            attempt,
        )
        .await
    }

    /// Reads the metadata of an object; `None` if the object does not exist.
    pub(super) async fn get_metadata(
        &self,
        object: &RenderedObject,
        path: &str,
        attempt: &Attempt,
    ) -> Result<Option<ApiResponse>, MemberError> {
        let get = Operation::object("get", &object.key);
        match self
            .send(Call::get(get, path.to_owned(), METADATA), attempt)
            .await
        {
            Ok(response) => Ok(Some(response)),
            Err(MemberError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}
