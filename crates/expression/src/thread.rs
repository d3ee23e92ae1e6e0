//! A thread of its own for each evaluation.
//!
//! The parser and the interpreter recurse, so they need a stack that a thread of a runtime does not have. They also
//! panic on what they do not support; a panic ends their thread and nothing else.

use std::thread::Builder;

use starling_cel::STACK_SIZE;

/// Why an evaluation has no result at all.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ThreadError {
    /// The operating system starts no thread.
    #[error("cannot start a thread for the expression")]
    Start(#[source] std::io::Error),
    /// The interpreter panicked.
    #[error("the interpreter of expressions does not support this expression")]
    Panicked,
}

/// Runs an evaluation on a thread of its own, and waits for it.
///
/// # Errors
/// [`ThreadError`]
pub(crate) fn on_own_thread<T: Send>(evaluate: impl FnOnce() -> T + Send) -> Result<T, ThreadError> {
    std::thread::scope(|scope| {
        let builder = Builder::new()
            .name("expression".to_owned())
            .stack_size(STACK_SIZE);
        let thread = builder
            .spawn_scoped(scope, evaluate)
            .map_err(ThreadError::Start)?;
        thread.join().map_err(|_| ThreadError::Panicked)
    })
}
