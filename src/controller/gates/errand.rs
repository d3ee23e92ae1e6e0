//! One gate: asked until something is found, or nobody waits for it any more.

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use starling_api::conditions::{MESSAGE_LIMIT, cut};
use starling_core::gate::webhook::Question;
use starling_core::gate::{self, After, Effect, GateId, Task, Tried, Tries};
use starling_core::pause;
use starling_core::plan::Finding;
use tokio_util::sync::CancellationToken;

use super::{Gates, job, metric, webhook};
use crate::clock::Clock;
use crate::controller::cache::ObjectKey;
use crate::controller::hub::Hub;
use crate::controller::ports::Web;
use crate::controller::workqueue::Workqueue;
use crate::web::{Post, Reply};

/// What a gate takes along.
pub(super) struct Errand {
    pub(super) id: GateId,
    pub(super) group: ObjectKey,
    pub(super) owner: OwnerReference,
    pub(super) task: Arc<Task>,
    pub(super) question: Question,
    pub(super) hub: Hub,
    pub(super) web: Arc<dyn Web>,
    pub(super) clock: Clock,
    pub(super) gates: Arc<Gates>,
    pub(super) groups: Arc<Workqueue>,
}

impl Errand {
    /// Carries the gate out. `ended`: nobody waits for it any more.
    pub(super) async fn run(self, ended: CancellationToken) {
        let (mut tries, mut seen) = (Tries::default(), job::Seen::default());
        let found = loop {
            // A try is never cut short: it has a time of its own, and a request that was sent has its effect anyway.
            let tried = self.attempt(&mut seen).await;
            match gate::after(&self.task, &self.id, &mut tries, tried, self.clock.now()) {
                After::Found(found) => break Some(found),
                After::Wait { wait, why } => {
                    self.say(&why);
                    tokio::select! {
                        biased;
                        () = ended.cancelled() => break None,
                        () = tokio::time::sleep(wait) => {}
                    }
                }
            }
            if ended.is_cancelled() {
                break None;
            }
        };
        if found != Some(Finding::Passed) && matches!(self.task.effect, Effect::Job { .. }) {
            job::end(&self).await;
        }
        let Some(found) = found else {
            tracing::info!(group = %self.group, rollout = self.id.rollout, stage = self.id.stage, "nobody waits for a task of a stage any more");
            return;
        };
        let found = bounded(found);
        tracing::info!(group = %self.group, rollout = self.id.rollout, stage = self.id.stage, list = self.id.side.list(), task = self.id.index, ?found, "a task of a stage ended");
        self.gates.find(&self.group, &self.id, found);
        self.groups.add(self.group.clone());
    }

    async fn attempt(&self, seen: &mut job::Seen) -> Tried {
        // It is never closed.
        let _place = self.gates.requests.acquire().await;
        match &self.task.effect {
            Effect::Webhook { url, secret } => webhook::ask(self, url, secret).await,
            Effect::Metric {
                url,
                query,
                test,
                secret,
            } => metric::ask(self, (url, query), test, secret.as_deref()).await,
            Effect::Job { template } => job::look(self, template, seen).await,
        }
    }

    /// Sends a request.
    pub(super) async fn post(&self, post: &Post) -> Result<Reply, Tried> {
        self.web.post(post).await.map_err(|error| {
            let text = crate::chain(&error);
            if error.is_final() {
                Tried::Failed(text)
            } else {
                Tried::trouble(text)
            }
        })
    }

    /// What an answer says of the time to come back, added to what it means.
    pub(super) fn with_time(&self, tried: Tried, reply: &Reply) -> Tried {
        let now = self.clock.now();
        tried.asked_back(
            reply
                .retry_after
                .as_deref()
                .and_then(|text| pause::requested(text, now)),
        )
    }

    fn say(&self, why: &str) {
        if self.gates.say(&self.group, &self.id, &cut(why, MESSAGE_LIMIT)) {
            self.groups.add(self.group.clone());
        }
    }
}

fn bounded(found: Finding) -> Finding {
    match found {
        Finding::Passed => Finding::Passed,
        Finding::Failed { message } => Finding::Failed {
            message: cut(&message, MESSAGE_LIMIT),
        },
    }
}
