//! The writer task: takes all queued records and commits them in one transaction.
//!
//! A commit waits for the disk; records that arrive meanwhile share the next commit. The writer retries a failed
//! transaction until it succeeds, since the state in memory is ahead of the disk and cannot be rolled back. Meanwhile
//! the server shows nothing that is not on the disk, and rejects writes.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::WriteError;
use super::database::Database;
use super::directory::Directory;
use super::outbox::{Queue, Record};

/// The pause before a failed transaction is retried.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Starts the task, which owns the file and the directory until the queue is closed and empty.
pub(super) fn start(database: Database, directory: Directory, queue: Arc<Queue>) -> JoinHandle<()> {
    tokio::spawn(async move {
        run(database, &queue).await;
        drop(directory);
        // Requests that still wait, and later writes, get an error.
        queue.failure(WriteError::Closed);
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

/// Commits records; gives up only when the server ends.
async fn commit(database: &mut Database, queue: &Queue, records: &[Record]) -> bool {
    while let Err(error) = database.write(records).await {
        tracing::error!(%error, records = records.len(), "the embedded API server cannot write to its file");
        queue.failure(error.into());
        if queue.is_closed() {
            return false;
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
    true
}
