//! The permits of calls, of which one tenant has at most half.
//!
//! A call holds its permit until it ends or its timeout passes. A server that drips makes each call last that long, and
//! so does a mirror of some gigabytes. A tenant with many of them would otherwise let all others wait.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// The permits of one kind of call.
#[derive(Debug)]
pub struct TenantPool {
    all: Arc<Semaphore>,
    /// Permits of one tenant.
    share: usize,
    /// The tenants with a call that has a permit or waits for one, and others that had one.
    tenants: Mutex<HashMap<String, Arc<Semaphore>>>,
}

/// The permit of one call.
#[derive(Debug)]
pub struct TenantPermit {
    _of_tenant: OwnedSemaphorePermit,
    _of_all: OwnedSemaphorePermit,
}

impl TenantPool {
    /// Creates `jobs` permits; at least one.
    #[must_use]
    pub fn new(jobs: usize) -> Self {
        let jobs = jobs.max(1);
        Self {
            all: Arc::new(Semaphore::new(jobs)),
            share: (jobs / 2).max(1),
            tenants: Mutex::default(),
        }
    }

    /// Waits for a permit of a reader: those in one namespace are one tenant. The calls of a tenant that wait for their
    /// share keep nothing from others.
    ///
    /// # Errors
    /// Never: the semaphores are not closed.
    pub async fn acquire(&self, reader: &str) -> Result<TenantPermit, AcquireError> {
        let tenant = reader.split_once('/').map_or(reader, |(namespace, _)| namespace);
        let of_tenant = self.of_tenant(tenant).acquire_owned().await?;
        Ok(TenantPermit {
            _of_tenant: of_tenant,
            _of_all: Arc::clone(&self.all).acquire_owned().await?,
        })
    }

    fn of_tenant(&self, tenant: &str) -> Arc<Semaphore> {
        let mut tenants = self.tenants.lock().unwrap_or_else(PoisonError::into_inner);
        // Nobody has a permit of these, or waits for one: a clone is held meanwhile.
        tenants.retain(|name, known| name == tenant || Arc::strong_count(known) > 1);
        let known = tenants
            .entry(tenant.to_owned())
            .or_insert_with(|| Arc::new(Semaphore::new(self.share)));
        Arc::clone(known)
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// Returns what a future returns at once.
    fn now<F: Future>(future: F) -> Option<F::Output> {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    #[tokio::test]
    async fn tenant_one_namespace_has_at_most_half_of_the_permits() {
        let pool = TenantPool::new(4);
        let take = |reader: &'static str| now(pool.acquire(reader)).map(Result::unwrap);
        let mut held: Vec<_> = ["a/1", "a/2"].map(take).into_iter().collect();
        assert!(held.iter().all(Option::is_some));
        assert!(take("a/3").is_none());
        held.extend(["b/1", "c/1"].map(take));
        assert!(held.iter().all(Option::is_some));
        assert!(take("d/1").is_none(), "all are in use");
        held.remove(0);
        assert!(take("d/1").is_some());
        drop(held);
        assert!(take("e/1").is_some());
        assert_eq!(pool.tenants.lock().unwrap().len(), 1, "the others are forgotten");
        assert!(TenantPool::new(1).acquire("").await.is_ok());
    }
}
