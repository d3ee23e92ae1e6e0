//! Requests side by side, a few at a time.

use futures::StreamExt as _;
use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::FuturesUnordered;

use super::error::MemberError;

/// Runs requests, at most `limit` at a time, and keeps what comes of each. `K` tells whose request it is.
///
/// After one that ends the attempt no further one begins, but those under way are awaited: a result that is
/// thrown away is a write that nobody knows of.
pub(super) struct Lane<'a, K, T> {
    limit: usize,
    under_way: FuturesUnordered<BoxFuture<'a, (K, Result<T, MemberError>)>>,
    tried: Tried<K, T>,
}

/// What came of the requests of a [`Lane`].
pub(super) struct Tried<K, T> {
    /// In no order; without the one that ended the attempt, and those that did not begin because of it.
    pub(super) results: Vec<(K, Result<T, MemberError>)>,
    /// What ended the attempt.
    pub(super) end: Option<MemberError>,
}

impl<'a, K: Send + 'a, T: 'a> Lane<'a, K, T> {
    pub(super) fn new(limit: usize) -> Self {
        let tried = Tried {
            results: Vec::new(),
            end: None,
        };
        Self {
            limit: limit.max(1),
            under_way: FuturesUnordered::new(),
            tried,
        }
    }

    /// Begins a request as soon as there is room for it, unless the attempt has ended.
    pub(super) async fn begin(&mut self, whose: K, request: BoxFuture<'a, Result<T, MemberError>>) {
        while self.under_way.len() >= self.limit {
            self.take_one().await;
        }
        if self.tried.end.is_none() {
            self.under_way.push(request.map(|result| (whose, result)).boxed());
        }
    }

    /// Waits for all that is under way.
    pub(super) async fn finish(mut self) -> Tried<K, T> {
        while !self.under_way.is_empty() {
            self.take_one().await;
        }
        self.tried
    }

    async fn take_one(&mut self) {
        match self.under_way.next().await {
            None => {}
            Some((_, Err(error))) if error.ends_attempt() => {
                // The first of them is the cause; the others, made at the same time, mostly say the same.
                self.tried.end.get_or_insert(error);
            }
            Some(result) => self.tried.results.push(result),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Guards against throwing away the result of a request that was under way: its record would be lost.
    #[tokio::test]
    async fn after_an_error_that_ends_the_attempt_nothing_begins_and_nothing_is_dropped() {
        let begun = AtomicUsize::new(0);
        let mut lane = Lane::new(3);
        for n in 0..6 {
            let begun = &begun;
            let request = async move {
                begun.fetch_add(1, Ordering::SeqCst);
                match n {
                    0 => Err(MemberError::Server {
                        request: String::new(),
                        code: 500,
                        message: String::new(),
                    }),
                    1 => Err(MemberError::Unauthorized {
                        request: String::new(),
                    }),
                    _ => {
                        // The others have answered before this one goes on.
                        for _ in 0..10 {
                            tokio::task::yield_now().await;
                        }
                        Ok(n)
                    }
                }
            };
            lane.begin(n, request.boxed()).await;
        }
        let tried = lane.finish().await;
        let begun = begun.load(Ordering::SeqCst);
        assert!(
            (3..=4).contains(&begun),
            "{begun}: the first failed and made room for one more at most"
        );
        assert!(matches!(tried.end, Some(MemberError::Unauthorized { .. })));
        let mut results: Vec<_> = tried
            .results
            .iter()
            .map(|(n, result)| (*n, result.is_ok()))
            .collect();
        results.sort_unstable();
        assert_eq!(
            results.len(),
            begun - 1,
            "all that began but the one that ended it"
        );
        assert_eq!(results[..2], [(0, false), (2, true)]);
    }

    #[tokio::test]
    async fn no_more_than_the_limit_at_a_time() {
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let mut lane = Lane::new(2);
        for n in 0..8 {
            let (now, most) = (&now, &most);
            let request = async move {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                now.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            };
            lane.begin(n, request.boxed()).await;
        }
        assert_eq!(lane.finish().await.results.len(), 8);
        assert_eq!(most.load(Ordering::SeqCst), 2);
    }
}
