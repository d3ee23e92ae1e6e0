//! Writes down what is about to be done and why, before it is done.

use kube::ResourceExt;
use starling_core::journal::{Draft, Recorder, resume};

use super::observe::Group;
use super::release::Rolling;
use crate::controller::context::Context;
use crate::ledger::{LedgerError, NewEntry};

/// What the journal of a group says last. It is to be kept by [`keep`].
pub(super) async fn recorder(context: &Context, group: &Group) -> Result<Recorder, LedgerError> {
    let uid = group.object.uid().unwrap_or_default();
    if let Some(recorder) = context.journals.take(&group.key, &uid) {
        return Ok(recorder);
    }
    let entries = context.ledger.journal_tail(&uid).await?;
    // What cannot be read is not gone on with: the next entry is whole.
    Ok(resume(&entries).unwrap_or_else(|error| {
        tracing::warn!(group = %group.key, %error, "the journal cannot be read; it goes on with a whole entry");
        Recorder::default()
    }))
}

/// Appends what a look found, if that is news. Nothing that it decided may be done before.
pub(super) async fn write(
    context: &Context,
    group: &Group,
    rolling: &Rolling,
    recorder: &mut Recorder,
    draft: Option<Draft>,
) -> Result<(), LedgerError> {
    let Some(draft) = draft else {
        return Ok(());
    };
    let entry = NewEntry {
        group_uid: group.object.uid().unwrap_or_default(),
        namespace: group.key.namespace.clone(),
        name: group.key.name.clone(),
        rollout: rolling.rollout.id,
        at: draft.at,
        body: draft.body.clone(),
        is_whole: draft.is_whole,
    };
    context.ledger.append_journal(&entry).await?;
    recorder.wrote(draft);
    Ok(())
}

/// Keeps what was written last for the next look. Where a look does not come so far, the ledger is asked.
pub(super) fn keep(context: &Context, group: &Group, recorder: Recorder) {
    let uid = group.object.uid().unwrap_or_default();
    context.journals.put(&group.key, &uid, recorder);
}
