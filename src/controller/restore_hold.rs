//! The hold after a restore of the management cluster: wakes what has to report it, and ends it (ADR 40).

use std::sync::Arc;

use super::context::Context;
use crate::controller::object_key::ObjectKey;
use crate::controller::waits;

/// Follows the finding that holds the installation.
pub(super) async fn follow(context: Arc<Context>) {
    let mut held = context.writes.subscribe();
    if context.writes.held().is_some() {
        wake(&context, true);
    }
    loop {
        let changed = match context.writes.held() {
            None => held.changed().await.is_ok(),
            Some(_) => {
                tokio::select! {
                    changed = held.changed() => changed.is_ok(),
                    () = tokio::time::sleep(waits::RELEASE_CHECK) => {
                        if let Err(error) = context.writes.recheck().await {
                            let error = crate::chain(&error);
                            tracing::warn!(%error, "cannot read whether the restore was released");
                        }
                        continue;
                    }
                }
            }
        };
        if !changed {
            return;
        }
        let is_held = context.writes.held().is_some();
        if !is_held {
            // The versions of the management cluster may not have gone back with its objects, so that no watch noticed.
            context.caches.forget_computed();
        }
        wake(&context, is_held);
    }
}

/// Enqueues what reports the hold; after its end everything, since nothing was done meanwhile.
fn wake(context: &Context, is_held: bool) {
    // What a gate says now is about a rollout of the past. The groups begin again with it when they are released.
    if is_held {
        context.caches.group.gate_tasks.stop();
    }
    for group in context.objects.groups.select(|_| true) {
        context.queues.groups.add(ObjectKey::of(&*group));
    }
    for sync in context.objects.syncs.select(|_| true) {
        if !is_held || sync.spec.group_ref.is_none() {
            context.queues.syncs.add(ObjectKey::of(&*sync));
        }
    }
}
