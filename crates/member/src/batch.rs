//! Runs requests concurrently, up to a limit.

use futures::StreamExt as _;
use futures::future::{BoxFuture, FutureExt as _};
use futures::stream::FuturesUnordered;

use super::error::MemberError;

/// Runs requests, at most `limit` at a time, and collects their results. `K` identifies a request.
///
/// After an error that ends the attempt, no further request starts, but running requests are awaited: a dropped result
/// would be a write without a record.
pub(super) struct Batch<'a, K, T> {
    limit: usize,
    running: FuturesUnordered<BoxFuture<'a, (K, Result<T, MemberError>)>>,
    finished: BatchResult<K, T>,
}

/// The results of a [`Batch`].
pub(super) struct BatchResult<K, T> {
    /// Unordered; without the request that ended the attempt, and without requests that did not start because of it.
    pub(super) results: Vec<(K, Result<T, MemberError>)>,
    /// The error that ended the attempt.
    pub(super) end: Option<MemberError>,
}

impl<'a, K: Send + 'a, T: 'a> Batch<'a, K, T> {
    pub(super) fn new(limit: usize) -> Self {
        let finished = BatchResult {
            results: Vec::new(),
            end: None,
        };
        Self {
            limit: limit.max(1),
            running: FuturesUnordered::new(),
            finished,
        }
    }

    /// Starts a request as soon as the limit allows, unless the attempt has ended.
    pub(super) async fn begin(&mut self, key: K, request: BoxFuture<'a, Result<T, MemberError>>) {
        while self.running.len() >= self.limit {
            self.join_next().await;
        }
        if self.finished.end.is_none() {
            self.running.push(request.map(|result| (key, result)).boxed());
        }
    }

    /// Waits for all running requests.
    pub(super) async fn finish(mut self) -> BatchResult<K, T> {
        while !self.running.is_empty() {
            self.join_next().await;
        }
        self.finished
    }

    async fn join_next(&mut self) {
        match self.running.next().await {
            None => {}
            Some((_, Err(error))) if error.ends_attempt() => {
                // The first error is reported; concurrent ones mostly have the same cause.
                self.finished.end.get_or_insert(error);
            }
            Some(result) => self.finished.results.push(result),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// Guards against dropping the result of a running request: its record would be lost.
    #[tokio::test]
    async fn no_request_starts_or_is_dropped_after_an_error_that_ends_the_attempt() {
        let begun = AtomicUsize::new(0);
        let mut batch = Batch::new(3);
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
                        // The other requests finish first.
                        for _ in 0..10 {
                            tokio::task::yield_now().await;
                        }
                        Ok(n)
                    }
                }
            };
            batch.begin(n, request.boxed()).await;
        }
        let finished = batch.finish().await;
        let begun = begun.load(Ordering::SeqCst);
        assert!(
            (3..=4).contains(&begun),
            "{begun}: the first failed and made room for one more at most"
        );
        assert!(matches!(finished.end, Some(MemberError::Unauthorized { .. })));
        let mut results: Vec<_> = finished
            .results
            .iter()
            .map(|(n, result)| (*n, result.is_ok()))
            .collect();
        results.sort_unstable();
        assert_eq!(
            results.len(),
            begun - 1,
            "all that started but the one that ended the attempt"
        );
        assert_eq!(results[..2], [(0, false), (2, true)]);
    }

    #[tokio::test]
    async fn no_more_concurrent_requests_than_the_limit() {
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let mut batch = Batch::new(2);
        for n in 0..8 {
            let (now, most) = (&now, &most);
            let request = async move {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                now.fetch_sub(1, Ordering::SeqCst);
                Ok(())
            };
            batch.begin(n, request.boxed()).await;
        }
        assert_eq!(batch.finish().await.results.len(), 8);
        assert_eq!(most.load(Ordering::SeqCst), 2);
    }
}
