//! Streams that are blocked while a gate is shut.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Opens and shuts any number of connections together.
#[derive(Debug, Default)]
pub(super) struct Gate {
    shut: AtomicBool,
    /// Tasks that wait for the gate.
    waiting: Mutex<Vec<Waker>>,
}

impl Gate {
    pub(super) fn set_shut(&self, shut: bool) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        self.shut.store(shut, Ordering::SeqCst);
        if !shut {
            waiting.drain(..).for_each(Waker::wake);
        }
    }

    /// Ready while the gate is open.
    fn poll_open(&self, cx: &Context<'_>) -> Poll<()> {
        if !self.shut.load(Ordering::SeqCst) {
            return Poll::Ready(());
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        // If the gate was opened between the check and the lock, a waker that is added now would never be woken.
        if !self.shut.load(Ordering::SeqCst) {
            return Poll::Ready(());
        }
        if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
            waiting.push(cx.waker().clone());
        }
        Poll::Pending
    }
}

/// A stream behind a gate.
#[derive(Debug)]
pub(super) struct Gated<S> {
    stream: S,
    gate: Arc<Gate>,
}

impl<S> Gated<S> {
    pub(super) fn new(stream: S, gate: Arc<Gate>) -> Self {
        Self { stream, gate }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Gated<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.gate.poll_open(cx));
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Gated<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.gate.poll_open(cx));
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.gate.poll_open(cx));
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.gate.poll_open(cx));
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;

    #[tokio::test]
    async fn bytes_wait_for_the_gate() {
        let gate = Arc::new(Gate::default());
        let (near, far) = duplex(64);
        let (mut near, mut far) = (near, Gated::new(far, Arc::clone(&gate)));
        let mut byte = [0; 1];
        near.write_all(b"a").await.unwrap();
        far.read_exact(&mut byte).await.unwrap();

        gate.set_shut(true);
        near.write_all(b"b").await.unwrap();
        let reader = tokio::spawn(async move {
            far.read_exact(&mut byte).await.unwrap();
            far.write_all(&byte).await.unwrap();
            far
        });
        let silent = tokio::time::timeout(Duration::from_millis(50), near.read_exact(&mut byte)).await;
        assert!(silent.is_err());
        gate.set_shut(false);
        near.read_exact(&mut byte).await.unwrap();
        assert_eq!(&byte, b"b");
        reader.await.unwrap();
    }
}
