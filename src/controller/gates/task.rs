//! One gate task: tries until it has a result, or until its gate is no longer open.

use starling_api::conditions::{MESSAGE_LIMIT, cut};
use starling_core::gate::{Effect, Evaluation, Evaluations, NextStep};
use starling_core::plan::GateResult;
use tokio_util::sync::CancellationToken;

use super::gate_task::GateTask;
use super::{job, metric, webhook};

/// Runs the task until `ended`, which is cancelled when the gate is no longer open.
pub(super) async fn run(gate: GateTask, ended: CancellationToken) {
    let (mut tries, mut created) = (Evaluations::default(), job::JobCreated::default());
    let result = loop {
        // A try is never aborted: it has its own timeout, and a request that was sent takes effect anyway.
        let evaluation = attempt(&gate, &mut created).await;
        let clock = &gate.tools.clock;
        let begun_at = clock.believed(gate.id.begun_at);
        let elapsed = clock.jumps().elapsed(begun_at, clock.now());
        match starling_core::gate::after(&gate.task, &gate.id, &mut tries, evaluation, elapsed) {
            NextStep::Finished(result) => break Some(result),
            NextStep::Wait { wait, why } => {
                report(&gate, &why);
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
    if result != Some(GateResult::Passed) && matches!(gate.task.effect, Effect::Job { .. }) {
        job::end(&gate).await;
    }
    let Some(result) = result else {
        tracing::info!(group = %gate.group, rollout = gate.id.rollout.get(), stage = gate.id.stage, "gate task cancelled");
        return;
    };
    let result = bounded(result);
    tracing::info!(group = %gate.group, rollout = gate.id.rollout.get(), stage = gate.id.stage, list = gate.id.side.list(), task = gate.id.index, ?result, "gate task finished");
    gate.tools.gates.keep_result(&gate.group, &gate.id, result);
    gate.tools.groups.add(gate.group.clone());
}

async fn attempt(gate: &GateTask, created: &mut job::JobCreated) -> Evaluation {
    // The permits are never closed.
    let _permit = gate.tools.gates.requests.acquire(&gate.group.to_string()).await;
    match &gate.task.effect {
        Effect::Webhook { url, secret } => webhook::evaluate(gate, url, secret).await,
        Effect::Metric {
            url,
            query: promql,
            test,
            secret,
        } => {
            let query = metric::MetricQuery {
                url,
                query: promql,
                test,
                secret: secret.as_deref(),
            };
            metric::evaluate(gate, query).await
        }
        Effect::Job { template } => job::check(gate, template, created).await,
    }
}

fn report(gate: &GateTask, why: &str) {
    if gate
        .tools
        .gates
        .keep_message(&gate.group, &gate.id, &cut(why, MESSAGE_LIMIT))
    {
        gate.tools.groups.add(gate.group.clone());
    }
}

fn bounded(result: GateResult) -> GateResult {
    match result {
        GateResult::Passed => GateResult::Passed,
        GateResult::Failed { message } => GateResult::Failed {
            message: cut(&message, MESSAGE_LIMIT),
        },
    }
}
