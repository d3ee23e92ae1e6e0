//! State that the requests of one attempt share.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use starling_core::restore::WriteNumber;
use tokio::sync::{Mutex, OnceCell};
use tokio::time::Instant;

use super::resource::Groups;
use super::stored::Held;

/// One call of the public API, such as an apply or a drift check: its deadline, and what discovery has already fetched.
#[derive(Debug)]
pub(super) struct Attempt {
    /// No request of the attempt starts or waits beyond this.
    pub(super) deadline: Instant,
    /// The group-versions whose kinds were fetched in this attempt. Locked during a fetch, so that objects that are
    /// applied concurrently cause one request.
    pub(super) fetched: Mutex<BTreeSet<String>>,
    /// All API groups of the member; set by the first request for them.
    pub(super) groups: OnceCell<Groups>,
    /// The names of all CustomResourceDefinitions of the member; set by the first request for them.
    pub(super) definitions: OnceCell<Vec<String>>,
    /// The inventory of an attempt that writes objects; `None` for any other.
    pub(super) held: Mutex<Option<Held>>,
    /// The number of the writes; set by the first of them.
    pub(super) number: OnceCell<WriteNumber>,
    /// Whether a request that may change the member was sent.
    wrote: AtomicBool,
}

impl Attempt {
    pub(super) fn until(deadline: Instant) -> Self {
        Self {
            deadline,
            fetched: Mutex::default(),
            groups: OnceCell::new(),
            definitions: OnceCell::new(),
            held: Mutex::default(),
            number: OnceCell::new(),
            wrote: AtomicBool::new(false),
        }
    }

    /// Records that a request that may change the member is sent now. Whether it arrives is unknown from here on.
    pub(super) fn begin_write(&self) {
        self.wrote.store(true, Ordering::SeqCst);
    }

    /// Whether a request that may change the member was sent.
    pub(super) fn has_written(&self) -> bool {
        self.wrote.load(Ordering::SeqCst)
    }
}
