//! Calls the controllers of all clusters: after each write, and when the time has come.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::mpsc;

use super::{Clock, Cluster};

/// How many clusters get a turn before the runtime gets one.
const AT_ONCE: usize = 32;

/// Runs until the server is gone.
pub(super) async fn run(mut queue: mpsc::UnboundedReceiver<Arc<Cluster>>, clock: Arc<dyn Clock>) {
    // By time and name, so that the order is always the same.
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
            // A millisecond more, as timers have no finer grain.
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
            cluster.taken();
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
