//! Who else may hold an object: asked before anything is deleted.

use std::fmt::Debug;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use starling_core::apply::Elsewhere;

/// The other Syncs of the same owner on the same member. An object that moves from one to another is handed over: the
/// one that lost it must not delete what the other holds or is about to apply.
pub trait Siblings: Debug + Send + Sync {
    /// What they hold or are about to hold.
    fn hold(&self) -> BoxFuture<'_, Elsewhere>;
}

/// There are none.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSiblings;

impl Siblings for NoSiblings {
    fn hold(&self) -> BoxFuture<'_, Elsewhere> {
        async { Elsewhere::nothing() }.boxed()
    }
}
