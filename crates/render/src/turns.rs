//! The turns of builds, shared by tenants.
//!
//! A build takes a turn and holds it for up to a minute. First come, first served would give a tenant with many builds
//! all turns for many minutes. A build that has had its turn for a while gives it up for another tenant that waits, and
//! begins anew in a later turn, which is longer. It is not suspended instead, since it would keep its memory.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

/// For how long after its last build a tenant counts: while several count, one tenant holds at most half of the turns,
/// so that the next build of another one starts at once. A fleet that is at rest builds every `interval` at most.
const RECENT: Duration = Duration::from_mins(10);

/// The turns.
#[derive(Debug)]
pub(super) struct Turns {
    state: Mutex<State>,
    /// Notified when a tenant begins to wait, or ends a turn.
    changed: Notify,
}

#[derive(Debug)]
struct State {
    free: usize,
    all: usize,
    tenants: BTreeMap<Arc<str>, Tenant>,
    /// The number of turns that were given, which orders tenants by their last turn.
    given: u64,
}

#[derive(Debug)]
struct Tenant {
    held: usize,
    /// The number of its last turn.
    last: u64,
    /// When it last asked for a turn, or ended one.
    active_at: Instant,
    waiting: VecDeque<oneshot::Sender<Turn>>,
}

/// The right to build, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    turns: Arc<Turns>,
    tenant: Arc<str>,
    given_at: Instant,
}

impl Turn {
    /// Waits until the turn is over: `length` has passed, and another tenant waits for it.
    pub(super) async fn is_over(&self, length: Duration) {
        tokio::time::sleep_until(self.given_at + length).await;
        loop {
            let changed = self.turns.changed.notified();
            tokio::pin!(changed);
            // From here on, no change is missed.
            changed.as_mut().enable();
            if self.turns.lock().others_wait(&self.tenant) {
                return;
            }
            changed.await;
        }
    }
}

impl Turns {
    /// Creates `all` turns; at least one.
    pub(super) fn new(all: usize) -> Arc<Self> {
        let all = all.max(1);
        let state = State {
            free: all,
            all,
            tenants: BTreeMap::new(),
            given: 0,
        };
        Arc::new(Self {
            state: Mutex::new(state),
            changed: Notify::new(),
        })
    }

    /// Waits for a turn. `None`: the turns are gone.
    pub(super) async fn take(self: &Arc<Self>, tenant: &str) -> Option<Turn> {
        let (sender, receiver) = oneshot::channel();
        {
            let mut state = self.lock();
            let now = Instant::now();
            state.forget(now);
            let waits = state.tenants.entry(tenant.into()).or_insert_with(|| Tenant {
                held: 0,
                last: 0,
                active_at: now,
                waiting: VecDeque::new(),
            });
            waits.active_at = now;
            waits.waiting.push_back(sender);
        }
        self.give();
        self.changed.notify_waiters();
        receiver.await.ok()
    }

    /// Gives free turns to waiting tenants.
    fn give(self: &Arc<Self>) {
        loop {
            let Some((tenant, sender)) = self.lock().next() else {
                return;
            };
            let turn = Turn {
                turns: self.clone(),
                tenant,
                given_at: Instant::now(),
            };
            // If its build was dropped in this moment, the drop of the turn gives it to another one.
            drop(sender.send(turn));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes a turn for the tenant that holds the fewest, and of these for the one whose last turn is the longest ago.
    fn next(&mut self) -> Option<(Arc<str>, oneshot::Sender<Turn>)> {
        if self.free == 0 {
            return None;
        }
        for tenant in self.tenants.values_mut() {
            tenant.waiting.retain(|sender| !sender.is_closed());
        }
        let limit = self.limit();
        let mut waiting: Vec<_> = self.tenants.iter_mut().collect();
        waiting.retain(|(_, tenant)| !tenant.waiting.is_empty() && tenant.held < limit);
        let (name, tenant) = waiting
            .into_iter()
            .min_by_key(|(_, tenant)| (tenant.held, tenant.last))?;
        let sender = tenant.waiting.pop_front()?;
        self.given += 1;
        self.free -= 1;
        tenant.held += 1;
        tenant.last = self.given;
        Some((name.clone(), sender))
    }

    /// Reports whether another tenant waits that would get the turn of this one.
    fn others_wait(&self, tenant: &str) -> bool {
        let limit = self.limit();
        let mut others = self.tenants.iter().filter(|(name, _)| &***name != tenant);
        others.any(|(_, other)| {
            let waits = other.waiting.iter().any(|sender| !sender.is_closed());
            waits && other.held < limit
        })
    }

    /// Returns how many turns a tenant may hold.
    fn limit(&self) -> usize {
        if self.tenants.len() > 1 {
            (self.all / 2).max(1)
        } else {
            self.all
        }
    }

    /// Forgets the tenants that have built nothing for long.
    fn forget(&mut self, now: Instant) {
        self.tenants.retain(|_, tenant| {
            tenant.held > 0 || !tenant.waiting.is_empty() || now.duration_since(tenant.active_at) < RECENT
        });
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        {
            let mut state = self.turns.lock();
            state.free += 1;
            if let Some(tenant) = state.tenants.get_mut(&self.tenant) {
                tenant.held = tenant.held.saturating_sub(1);
                tenant.active_at = Instant::now();
            }
        }
        self.turns.give();
        self.turns.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    const BUILD: Duration = Duration::from_secs(55);

    /// Builds for a time, and returns how long it waited.
    async fn build(turns: &Arc<Turns>, tenant: &str) -> Duration {
        let asked = Instant::now();
        let turn = turns.take(tenant).await;
        let waited = asked.elapsed();
        tokio::time::sleep(BUILD).await;
        drop(turn);
        waited
    }

    /// Guards against eight long builds of one namespace that let a neighbour wait for 216 s.
    #[tokio::test(start_paused = true)]
    async fn tenant_builds_of_one_namespace_leave_turns_to_the_others() {
        let turns = Turns::new(2);
        let many = || futures::future::join_all((0..8).map(|_| build(&turns, "team-a")));
        let other = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            build(&turns, "team-b").await
        };
        let (_, waited) = tokio::join!(many(), other);
        assert!(
            waited < BUILD,
            "the next turn is for the other tenant: {waited:?}"
        );
        // From now on, it does not even wait for one build to end.
        let (_, waited) = tokio::join!(many(), async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            build(&turns, "team-b").await
        });
        assert_eq!(waited, Duration::ZERO);
    }

    /// Builds in turns of at least `length`, which doubles. Returns how long it waited for the first one, and how often
    /// it began.
    async fn build_in_turns(
        turns: &Arc<Turns>,
        tenant: &str,
        takes: Duration,
        mut length: Duration,
    ) -> (Duration, u32) {
        let (asked, mut waited, mut begun) = (Instant::now(), None, 0);
        loop {
            let turn = turns.take(tenant).await.unwrap();
            waited.get_or_insert(asked.elapsed());
            begun += 1;
            tokio::select! {
                biased;
                () = tokio::time::sleep(takes) => return (waited.unwrap_or_default(), begun),
                () = turn.is_over(length) => {}
            }
            drop(turn);
            length *= 2;
        }
    }

    /// Guards against a short build that waits for the end of a long one of another tenant.
    #[tokio::test(start_paused = true)]
    async fn tenant_a_long_build_gives_its_turn_up_for_another_tenant() {
        const LENGTH: Duration = Duration::from_secs(10);
        let turns = Turns::new(1);
        let long = || build_in_turns(&turns, "team-a", BUILD, LENGTH);
        let short = async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            build_in_turns(&turns, "team-b", Duration::from_secs(2), LENGTH).await
        };
        let ((_, begun), (waited, _)) = tokio::join!(long(), short);
        assert_eq!(waited, LENGTH - Duration::from_secs(1));
        assert_eq!(begun, 2);
        // Nobody waits, or only the same tenant: a build has all the time that it needs.
        let (first, second) = tokio::join!(long(), long());
        assert_eq!((first.1, second.1), (1, 1));
        // Others build all the time: the turns of a long build become longer, so that it ends.
        let others = async {
            loop {
                build_in_turns(&turns, "team-b", Duration::from_secs(3), LENGTH).await;
            }
        };
        let began = Instant::now();
        tokio::select! {
            (_, begun) = long() => assert!(begun <= 4, "{begun}"),
            () = others => {}
        }
        assert!(began.elapsed() < 3 * BUILD, "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_single_tenant_has_all_turns_and_one_turn_goes_around() {
        let turns = Turns::new(2);
        let waits = futures::future::join_all((0..4).map(|_| build(&turns, "a"))).await;
        assert_eq!(waits, [Duration::ZERO, Duration::ZERO, BUILD, BUILD]);
        // Long after the other one has built something.
        drop(turns.take("b").await);
        tokio::time::sleep(RECENT).await;
        let waits = futures::future::join_all((0..2).map(|_| build(&turns, "a"))).await;
        assert_eq!(waits, [Duration::ZERO; 2]);

        let one = Turns::new(1);
        let order = ["a", "a", "a", "b", "b"];
        let waits = futures::future::join_all(order.map(|tenant| build(&one, tenant))).await;
        let turns: Vec<u64> = waits
            .iter()
            .map(|wait| wait.as_secs() / BUILD.as_secs())
            .collect();
        assert_eq!(turns, [0, 2, 4, 1, 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_that_nobody_waits_for_any_more_is_free() {
        let turns = Turns::new(1);
        let held = turns.take("a").await;
        let mut given_up = Box::pin(turns.take("b"));
        assert!(given_up.as_mut().now_or_never().is_none());
        drop(given_up);
        // Given, and dropped before it was looked at.
        let mut unseen = Box::pin(turns.take("b"));
        assert!(unseen.as_mut().now_or_never().is_none());
        drop(held);
        drop(unseen);
        assert!(turns.take("c").now_or_never().flatten().is_some());
        assert_eq!(turns.lock().free, 1);
    }
}
