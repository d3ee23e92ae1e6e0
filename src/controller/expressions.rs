//! Evaluates expressions of users outside the threads that reconcile.

use tokio::sync::Semaphore;

/// Maximum number of evaluations of the process at one time. Each of them ends at a limit of cost and of memory
/// (`starling-cel`), so this number bounds what all of them take.
const MAX_EVALUATIONS: usize = 2;

static TURNS: Semaphore = Semaphore::const_new(MAX_EVALUATIONS);

/// The process is being shut down, so there is no evaluation.
#[derive(Debug, thiserror::Error)]
#[error("the expression was not evaluated, because the process ends")]
pub(super) struct NotEvaluated;

/// Evaluates an expression on a thread for blocking work. Evaluations take turns: the first that asks is the first that
/// runs.
///
/// # Errors
/// [`NotEvaluated`]
pub(super) async fn evaluate<T, F>(evaluation: F) -> Result<T, NotEvaluated>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    let _turn = TURNS.acquire().await.map_err(|_| NotEvaluated)?;
    tokio::task::spawn_blocking(evaluation)
        .await
        .map_err(|_| NotEvaluated)
}
