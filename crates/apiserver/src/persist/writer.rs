//! The one writer: takes everything that is queued and commits it in one transaction.
//!
//! A commit waits for the disk; what comes meanwhile shares the next one. A transaction that fails is tried again until
//! it succeeds, as the memory is ahead of the disk and cannot go back; meanwhile nobody is answered with what is not on
//! the disk, and writes are refused.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::database::Database;
use super::folder::Folder;
use super::outbox::{Queue, Record};

/// How long a transaction that failed waits before it is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// Starts the task. It has the file and the folder until the queue is closed and empty.
pub(super) fn start(database: Database, folder: Folder, queue: Arc<Queue>) -> JoinHandle<()> {
    tokio::spawn(async move {
        run(database, &queue).await;
        drop(folder);
        // Whoever still waits, or writes from now on, is told.
        queue.trouble("the server is closed");
    })
}

async fn run(mut database: Database, queue: &Queue) {
    while let Some((records, last)) = queue.take().await {
        if !commit(&mut database, queue, &records).await {
            return;
        }
        queue.written(last);
    }
    database.close().await;
}

/// Commits; gives up only when the server ends.
async fn commit(database: &mut Database, queue: &Queue, records: &[Record]) -> bool {
    while let Err(error) = database.write(records).await {
        tracing::error!(%error, records = records.len(), "the embedded API server cannot write to its file");
        queue.trouble(&error.to_string());
        if queue.is_closed() {
            return false;
        }
        tokio::time::sleep(AGAIN).await;
    }
    true
}
