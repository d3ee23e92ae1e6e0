//! What one attempt on a member shares between its requests.

use std::collections::BTreeSet;

use tokio::sync::{Mutex, OnceCell};
use tokio::time::Instant;

use super::kinds::Groups;

/// One call from outside, such as an apply or a search for drift: its deadline, and what it has asked for already.
#[derive(Debug)]
pub(super) struct Attempt {
    /// Nothing of the attempt starts or waits beyond this.
    pub(super) deadline: Instant,
    /// The group-versions whose kinds were fetched in this attempt. Held while fetching, so that objects applied side
    /// by side ask once.
    pub(super) fetched: Mutex<BTreeSet<String>>,
    /// All groups of the member, once asked for.
    pub(super) groups: OnceCell<Groups>,
}

impl Attempt {
    pub(super) fn until(deadline: Instant) -> Self {
        Self {
            deadline,
            fetched: Mutex::default(),
            groups: OnceCell::new(),
        }
    }
}
