//! The driver: runs the controllers of all clusters, after each write and at planned times.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::mpsc;

use super::{Clock, Cluster};

/// How many clusters run before the task yields to the runtime.
const AT_ONCE: usize = 32;

/// Runs until the server is dropped.
pub(super) async fn run(mut queue: mpsc::UnboundedReceiver<Arc<Cluster>>, clock: Arc<dyn Clock>) {
    // Sorted by time and name, so that the order is deterministic.
    let mut planned: BTreeMap<(Timestamp, Box<str>), Weak<Cluster>> = BTreeMap::new();
    let mut turns = 0;
    loop {
        let now = clock.now();
        if let Some(entry) = planned.first_entry()
            && entry.key().0 <= now
        {
            if let Some(cluster) = entry.remove().upgrade() {
                step(&cluster, now, &mut planned);
            }
        } else {
            let wait = planned
                .first_key_value()
                .map(|((at, _), _)| Duration::try_from(*at - now).unwrap_or_default());
            // One millisecond more, since timers have a resolution of one millisecond.
            let timer = wait.map(|wait| tokio::time::sleep(wait + Duration::from_millis(1)));
            let received = match timer {
                None => queue.recv().await,
                Some(timer) => tokio::select! {
                    biased;
                    received = queue.recv() => received,
                    () = timer => continue,
                },
            };
            let Some(cluster) = received else { return };
            cluster.unschedule();
            step(&cluster, clock.now(), &mut planned);
        }
        turns += 1;
        if turns % AT_ONCE == 0 {
            tokio::task::yield_now().await;
        }
    }
}

fn step(
    cluster: &Arc<Cluster>,
    now: Timestamp,
    planned: &mut BTreeMap<(Timestamp, Box<str>), Weak<Cluster>>,
) {
    if let Some(at) = cluster.step(now) {
        planned.insert((at, cluster.name().into()), Arc::downgrade(cluster));
    }
}
