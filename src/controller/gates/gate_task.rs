//! A gate that is evaluated, with everything that its evaluation needs.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use starling_core::gate::webhook::GateRequest;
use starling_core::gate::{Evaluation, GateId, Task};
use starling_core::pause;
use starling_net::web::{Post, Reply};

use super::GateTools;
use crate::controller::object_key::ObjectKey;

/// A gate, and the inputs of its task.
pub(super) struct GateTask {
    pub(super) id: GateId,
    pub(super) group: ObjectKey,
    pub(super) owner: OwnerReference,
    pub(super) task: Arc<Task>,
    pub(super) request: GateRequest,
    pub(super) tools: GateTools,
}

impl GateTask {
    /// Sends a request.
    pub(super) async fn post(&self, post: &Post) -> Result<Reply, Evaluation> {
        self.tools.web.post(post).await.map_err(|error| {
            let text = crate::chain(&error);
            if error.is_final() {
                Evaluation::Failed(text)
            } else {
                Evaluation::error(text)
            }
        })
    }

    /// Adds the time after which the server asks for the next request.
    pub(super) fn with_time(&self, evaluation: Evaluation, reply: &Reply) -> Evaluation {
        let now = self.tools.clock.now();
        evaluation.with_retry_after(
            reply
                .retry_after
                .as_deref()
                .and_then(|text| pause::requested(text, now)),
        )
    }
}
