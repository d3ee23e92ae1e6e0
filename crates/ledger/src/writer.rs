//! The writer: takes all queued operations, commits them in one transaction, then responds to all callers.
//!
//! A commit waits for the disk. Meanwhile, callers queue up, and the next transaction takes all of them: the busier the
//! ledger, the more operations share one wait. An operation is a closure over the connection, so that the SQL and types
//! of each table stay private to its module, and a result can have any type.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::future::BoxFuture;
use sqlx::Connection;
use sqlx::sqlite::SqliteConnection;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::task::JoinHandle;
use tracing::error;

use super::directory::{DirectoryLock, Files};
use super::error::{is_corrupt, is_storage_fault};
use super::{LedgerError, database};

/// Maximum operations in one transaction. Limits the memory, and the time that a caller waits for other operations.
const MAX_BATCH: usize = 512;

/// Maximum operations that are queued during a transaction; further callers wait for room in the queue.
const QUEUE: usize = 2 * MAX_BATCH;

/// Statistics of the writer since the ledger was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriterStats {
    /// Transactions that were committed.
    pub transactions: u64,
    /// Operations in them that succeeded.
    pub operations: u64,
}

#[derive(Debug, Default)]
struct Counters {
    transactions: AtomicU64,
    operations: AtomicU64,
}

/// The handle of the writer for callers.
#[derive(Debug)]
pub(super) struct Writer {
    sender: mpsc::Sender<Message>,
    task: Mutex<Option<JoinHandle<()>>>,
    counters: Arc<Counters>,
}

enum Message {
    Job(Box<dyn Job>),
    Close,
}

impl Writer {
    /// Starts the task, which owns the connection and the lock of the directory. It ends on `close` or when the
    /// `Writer` is dropped, after it has written everything queued.
    pub(super) fn start(connection: SqliteConnection, files: Files, lock: DirectoryLock) -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let counters = Arc::new(Counters::default());
        let worker = Worker {
            connection: Some(connection),
            files,
            counters: Arc::clone(&counters),
            _lock: lock,
        };
        let task = tokio::spawn(worker.run(receiver));
        Self {
            sender,
            task: Mutex::new(Some(task)),
            counters,
        }
    }

    /// Runs an operation in the next transaction and returns its result after the commit. A dropped call does not
    /// cancel its operation. `subject` completes "cannot …" in an error.
    pub(super) async fn submit<T, F>(&self, subject: String, work: F) -> Result<T, LedgerError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T, sqlx::Error>> + Send + 'static,
    {
        let (reply, respond) = oneshot::channel();
        let job = Queued {
            subject,
            work: Some(work),
            result: None,
            reply,
        };
        self.sender
            .send(Message::Job(Box::new(job)))
            .await
            .map_err(|_| LedgerError::Closed)?;
        respond.await.map_err(|_| LedgerError::Closed)?
    }

    /// Writes all queued operations, closes the connection and unlocks the directory. Later calls return immediately.
    pub(super) async fn close(&self) {
        let mut task = self.task.lock().await;
        if let Some(handle) = task.take() {
            // The send fails only if the task has already ended.
            self.sender.send(Message::Close).await.ok();
            if let Err(error) = handle.await {
                error!(%error, "the ledger's writer did not end by itself");
            }
        }
    }

    pub(super) fn stats(&self) -> WriterStats {
        WriterStats {
            transactions: self.counters.transactions.load(Ordering::Relaxed),
            operations: self.counters.operations.load(Ordering::Relaxed),
        }
    }
}

/// An operation with its caller, for any result type.
trait Job: Send {
    /// Runs the operation and keeps its result. Fails if the transaction must not continue.
    fn run<'c>(
        &'c mut self,
        connection: &'c mut SqliteConnection,
    ) -> BoxFuture<'c, Result<Outcome, sqlx::Error>>;

    /// Sends the result to the caller; `commit` is the result of the transaction.
    fn respond(self: Box<Self>, commit: Result<(), Arc<sqlx::Error>>);
}

/// The result of an operation before the commit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Done,
    Failed,
}

struct Queued<T, F> {
    subject: String,
    /// Empty once the operation has run.
    work: Option<F>,
    /// Set when it has run.
    result: Option<Result<T, sqlx::Error>>,
    reply: oneshot::Sender<Result<T, LedgerError>>,
}

impl<T, F> Job for Queued<T, F>
where
    T: Send + 'static,
    F: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T, sqlx::Error>> + Send + 'static,
{
    fn run<'c>(
        &'c mut self,
        connection: &'c mut SqliteConnection,
    ) -> BoxFuture<'c, Result<Outcome, sqlx::Error>> {
        Box::pin(async move {
            let Some(work) = self.work.take() else {
                return Ok(Outcome::Failed);
            };
            match work(connection).await {
                Ok(value) => {
                    self.result = Some(Ok(value));
                    Ok(Outcome::Done)
                }
                Err(error) if is_storage_fault(&error) => Err(error),
                Err(error) => {
                    self.result = Some(Err(error));
                    Ok(Outcome::Failed)
                }
            }
        })
    }

    fn respond(self: Box<Self>, commit: Result<(), Arc<sqlx::Error>>) {
        let Self {
            subject: operation,
            work: _,
            result,
            reply,
        } = *self;
        let respond = match (result, commit) {
            (Some(Err(source)), _) => Err(LedgerError::Write { operation, source }),
            (_, Err(source)) => Err(LedgerError::Commit { operation, source }),
            (Some(Ok(value)), Ok(())) => Ok(value),
            (None, Ok(())) => Err(LedgerError::Closed),
        };
        // The caller may have been dropped.
        reply.send(respond).ok();
    }
}

/// The task's own state.
struct Worker {
    /// None after a storage fault: the next batch connects again.
    connection: Option<SqliteConnection>,
    files: Files,
    counters: Arc<Counters>,
    _lock: DirectoryLock,
}

impl Worker {
    async fn run(mut self, mut receiver: mpsc::Receiver<Message>) {
        let mut messages = Vec::new();
        while receiver.recv_many(&mut messages, MAX_BATCH).await > 0 {
            let mut jobs = Vec::with_capacity(messages.len());
            for message in messages.drain(..) {
                match message {
                    Message::Job(job) => jobs.push(job),
                    // Already queued messages are still received; later ones are refused.
                    Message::Close => receiver.close(),
                }
            }
            if !jobs.is_empty() {
                self.write(jobs).await;
            }
        }
        if let Some(connection) = self.connection.take() {
            database::close(connection).await;
        }
    }

    /// Commits a batch and responds to its callers in any case.
    async fn write(&mut self, mut jobs: Vec<Box<dyn Job>>) {
        let commit = match self.connect().await {
            Ok(connection) => commit(connection, &mut jobs).await,
            Err(error) => Err(error),
        };
        let respond = match commit {
            Ok(operations) => {
                self.counters.transactions.fetch_add(1, Ordering::Relaxed);
                self.counters.operations.fetch_add(operations, Ordering::Relaxed);
                Ok(())
            }
            Err(error) => {
                error!(%error, operations = jobs.len(), "the ledger could not commit a transaction");
                if is_corrupt(&error) {
                    self.files.mark_damaged();
                }
                // The state of the transaction is not known. A new connection starts from the state on disk.
                if let Some(connection) = self.connection.take() {
                    database::close(connection).await;
                }
                Err(Arc::new(error))
            }
        };
        for job in jobs {
            job.respond(respond.clone());
        }
    }

    async fn connect(&mut self) -> Result<&mut SqliteConnection, sqlx::Error> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => database::connect_writer(&self.files).await?,
        };
        Ok(self.connection.insert(connection))
    }
}

/// Runs the jobs in one transaction, each behind a savepoint, and returns how many of them succeeded.
async fn commit(connection: &mut SqliteConnection, jobs: &mut [Box<dyn Job>]) -> Result<u64, sqlx::Error> {
    let mut transaction = connection.begin_with("BEGIN IMMEDIATE").await?;
    let mut done = 0;
    for job in jobs {
        let mut savepoint = transaction.begin().await?;
        match job.run(&mut savepoint).await? {
            Outcome::Done => {
                savepoint.commit().await?;
                done += 1;
            }
            Outcome::Failed => savepoint.rollback().await?,
        }
    }
    transaction.commit().await?;
    Ok(done)
}

#[cfg(test)]
mod tests {
    use crate::{Ledger, LedgerError};

    /// A page limit simulates a full disk: SQLite returns the same code.
    #[tokio::test]
    async fn a_full_disk_fails_the_transaction_and_the_next_one_tries_again() {
        let directory = tempfile::TempDir::new().unwrap();
        let (ledger, _) = Ledger::open(directory.path()).await.unwrap();
        ledger
            .write("limit the pages".to_owned(), |connection| {
                Box::pin(async move {
                    // Fewer than exist: SQLite uses the current number.
                    sqlx::query("PRAGMA max_page_count = 1")
                        .execute(connection)
                        .await?;
                    Ok(())
                })
            })
            .await
            .unwrap();
        let before = ledger.stats();

        let large = "x".repeat(100_000);
        let (small_one, large_one) = tokio::join!(ledger.set_meta("a", "1"), ledger.set_meta("b", &large));
        for result in [small_one, large_one] {
            let Err(error @ LedgerError::Commit { .. }) = result else {
                panic!("{result:?}")
            };
            assert!(error.is_storage_full(), "{error:?}");
            assert!(!error.is_corrupt());
        }
        assert_eq!(ledger.stats(), before, "nothing was committed");
        assert_eq!(ledger.meta("a").await.unwrap(), None);

        // The next connection has no limit.
        ledger.set_meta("b", &large).await.unwrap();
        assert_eq!(ledger.meta("b").await.unwrap(), Some(large));
    }

    /// If an operation ends the transaction, the other operations must not report a commit.
    #[tokio::test]
    async fn a_transaction_that_an_operation_rolls_back_fails_for_all_callers() {
        let directory = tempfile::TempDir::new().unwrap();
        let (ledger, _) = Ledger::open(directory.path()).await.unwrap();
        let rolled_back = ledger.write("roll back".to_owned(), |connection| {
            Box::pin(async move {
                sqlx::query("ROLLBACK").execute(connection).await?;
                Ok(())
            })
        });
        let (before, rolled_back, after) =
            tokio::join!(ledger.set_meta("a", "1"), rolled_back, ledger.set_meta("b", "1"));
        assert!(matches!(before, Err(LedgerError::Commit { .. })), "{before:?}");
        assert!(
            matches!(rolled_back, Err(LedgerError::Commit { .. })),
            "{rolled_back:?}"
        );
        assert!(matches!(after, Err(LedgerError::Commit { .. })), "{after:?}");
        assert_eq!(ledger.meta("a").await.unwrap(), None);
        assert_eq!(ledger.meta("b").await.unwrap(), None);

        ledger.set_meta("a", "2").await.unwrap();
        assert_eq!(ledger.meta("a").await.unwrap().as_deref(), Some("2"));
    }
}
