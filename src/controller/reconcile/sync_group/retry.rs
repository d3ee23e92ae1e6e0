//! Tries again at once what failed, where a person asked for it: a failed cluster is admitted once more to what it was
//! admitted to, and so has its `progressDeadline` anew.

use jiff::Timestamp;
use kube::ResourceExt;
use starling_api::{ADMITTED_AT, REQUESTED_AT, SyncResource};
use starling_core::plan::{Decision, Plan};
use starling_core::steering::{Asked, Retry};

use super::observe::Group;
use super::release::Rolling;
use super::{admit, steer};
use crate::controller::context::Context;

/// Admits once more. Returns whether all were written.
pub(super) async fn retry(
    context: &Context,
    group: &Group,
    rolling: &Rolling,
    plan: &Plan,
    asked: &Asked,
) -> bool {
    if asked.retries.is_empty() {
        return true;
    }
    let mut written = true;
    for (cluster, decision) in &plan.decisions {
        let Decision::Failed { .. } = decision else {
            continue;
        };
        let stage = group.clusters.get(cluster).map(|of| {
            let place = group.strategy.place(of.labels()).stage;
            group.strategy.strategy.stages[place].name.as_str()
        });
        let retries = asked
            .retries
            .iter()
            .filter(|retry| is_about(retry, cluster, stage));
        let Some(last) = retries.map(|retry| retry.word.at).max() else {
            continue;
        };
        for entry in &rolling.vector.entries {
            let known = group.syncs.get(cluster, &entry.name);
            if !known.is_some_and(|sync| admitted_before(sync, last)) {
                continue;
            }
            let again = admit::mk_sync(
                group,
                rolling,
                &rolling.vector,
                (cluster, &entry.name),
                context.now(),
            );
            if let Some(mut sync) = again {
                sync.annotations_mut()
                    .insert(REQUESTED_AT.to_owned(), last.to_string());
                written &= admit::write(context, &group.key, sync).await;
            }
        }
    }
    written
}

fn is_about(retry: &Retry, cluster: &str, stage: Option<&str>) -> bool {
    retry.cluster.as_ref().is_none_or(|of| of == cluster)
        && retry.stage.as_ref().is_none_or(|of| Some(of.as_str()) == stage)
}

/// One that was admitted since is the new try already.
fn admitted_before(sync: &SyncResource, asked_at: Timestamp) -> bool {
    let admitted = sync.annotations().get(ADMITTED_AT);
    let came_before = admitted
        .and_then(|text| text.parse::<Timestamp>().ok())
        .is_none_or(|at| steer::came_before(at, asked_at));
    came_before && sync.annotations().get(REQUESTED_AT) != Some(&asked_at.to_string())
}
