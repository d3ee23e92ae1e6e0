//! The open watches of a cluster, of which each user has a bounded number. A watch holds a place in the log and a task
//! for up to an hour, and a connection carries a thousand of them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The open watches of a cluster.
#[derive(Debug)]
pub(crate) struct Watches {
    limit: usize,
    by_user: Mutex<HashMap<String, usize>>,
}

/// An open watch.
#[derive(Debug)]
pub(crate) struct WatchPermit {
    of: Arc<Watches>,
    user: String,
}

impl Watches {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            by_user: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.by_user.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a watch of a user; `None` if the user has as many as are allowed.
    pub(crate) fn open(self: &Arc<Self>, user: &str) -> Option<WatchPermit> {
        let mut by_user = self.lock();
        let open = by_user.get(user).copied().unwrap_or_default();
        if open >= self.limit {
            return None;
        }
        by_user.insert(user.to_owned(), open + 1);
        Some(WatchPermit {
            of: Arc::clone(self),
            user: user.to_owned(),
        })
    }
}

impl Drop for WatchPermit {
    fn drop(&mut self) {
        let mut by_user = self.of.lock();
        match by_user.get_mut(&self.user) {
            Some(open) if *open > 1 => *open -= 1,
            _ => drop(by_user.remove(&self.user)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_user_has_a_bounded_number_of_watches() {
        let watches = Arc::new(Watches::new(2));
        let mut held = vec![watches.open("ann"), watches.open("ann")];
        assert!(held.iter().all(Option::is_some));
        assert!(watches.open("ann").is_none());
        held.push(watches.open("bob"));
        assert!(held.iter().all(Option::is_some));
        held.remove(0);
        assert!(watches.open("ann").is_some());
        drop(held);
        assert!(watches.lock().is_empty());
    }
}
