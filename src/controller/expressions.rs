//! Evaluates expressions of users outside the threads that reconcile.

use std::sync::LazyLock;

use starling_net::tenant_pool::TenantPool;

/// Maximum number of evaluations of the process at one time, of which one namespace has at most half. Each of them ends
/// at a limit of cost and of memory (`starling-cel`), so this number bounds what all of them take.
const MAX_EVALUATIONS: usize = 2;

static TURNS: LazyLock<TenantPool> = LazyLock::new(|| TenantPool::new(MAX_EVALUATIONS));

/// The process is being shut down, so there is no evaluation.
#[derive(Debug, thiserror::Error)]
#[error("the expression was not evaluated, because the process ends")]
pub(super) struct NotEvaluated;

/// Evaluates an expression of an object of `namespace`, on a thread for blocking work. The evaluations of a namespace
/// take turns: the first that asks is the first that runs. They leave one turn to those of other namespaces, so that
/// hundreds of tests that each run up to the limit let nobody else wait for more than one of them.
///
/// # Errors
/// [`NotEvaluated`]
pub(super) async fn evaluate<T, F>(namespace: &str, evaluation: F) -> Result<T, NotEvaluated>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    let _turn = TURNS.acquire(namespace).await.map_err(|_| NotEvaluated)?;
    tokio::task::spawn_blocking(evaluation)
        .await
        .map_err(|_| NotEvaluated)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Guards against a namespace with many expensive tests, for which the tests of all others wait.
    #[tokio::test]
    async fn tenant_cel_evaluations_of_one_namespace_leave_a_turn_to_the_others() {
        let (end, ended) = mpsc::channel::<()>();
        let expensive = tokio::spawn(evaluate("greedy", move || ended.recv().is_err()));
        let waiting = tokio::spawn(evaluate("greedy", || ()));
        tokio::task::yield_now().await;
        assert!(evaluate("modest", || true).await.unwrap());
        assert!(!waiting.is_finished(), "its namespace has one turn");
        drop(end);
        assert!(expensive.await.unwrap().unwrap());
        waiting.await.unwrap().unwrap();
    }
}
