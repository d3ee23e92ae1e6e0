//! The last check before the end of a Sync deletes or gives up something. Renders, tokens and reads of the member lie
//! between the decision and the first request, and a person may have stopped it since.

use futures::FutureExt as _;
use futures::future::BoxFuture;
use starling_core::deletion_grant::Granted;
use starling_core::finalize::{Finalize, Waiting};
use starling_member::{BudgetRequest, Budgets, DeletionRefusal};

use super::super::budgets::BudgetsOf;
use super::{decide_now, observe};

/// The budgets of the end of a Sync, which first decides once more whether anything may be deleted.
#[derive(Debug)]
pub(super) struct FinalCheck<'a> {
    pub(super) budgets: BudgetsOf<'a>,
}

impl FinalCheck<'_> {
    async fn still_ends(&self) -> Result<(), DeletionRefusal> {
        let (context, observed) = (self.budgets.context, self.budgets.observed);
        let current = observe::current(context, observed).await;
        let current = current.map_err(|error| DeletionRefusal::NotCounted(crate::chain(&error)))?;
        let changed =
            || DeletionRefusal::Stopped("the Sync, its group or its Cluster has changed".to_owned());
        let current = current.filter(|sync| sync.metadata.deletion_timestamp.is_some());
        let observed = observed.clone().with_object(current.ok_or_else(changed)?);
        match Box::pin(decide_now(context, &observed)).await.decision {
            Finalize::Delete => Ok(()),
            Finalize::Wait(Waiting::Group(why)) => Err(DeletionRefusal::Stopped(why)),
            Finalize::Wait(Waiting::ParentUnknown(why) | Waiting::ClusterUnknown(why)) => {
                Err(DeletionRefusal::NotCounted(why))
            }
            // The next pass carries out what is decided by now.
            Finalize::Wait(_) | Finalize::Orphan(_) => Err(changed()),
        }
    }
}

impl Budgets for FinalCheck<'_> {
    fn granted(&self) -> Granted {
        self.budgets.granted()
    }

    fn count<'a>(&'a self, request: BudgetRequest<'a>) -> BoxFuture<'a, Result<(), DeletionRefusal>> {
        async move {
            self.still_ends().await?;
            self.budgets.count(request).await
        }
        .boxed()
    }

    fn may_give_up(&self) -> BoxFuture<'_, Result<(), DeletionRefusal>> {
        self.still_ends().boxed()
    }
}
