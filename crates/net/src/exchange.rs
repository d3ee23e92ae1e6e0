//! Sends one request on its own connection, and reads responses within limits.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::{Request, response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// A response whose head has arrived.
pub struct ResponseStream {
    /// Status and headers.
    pub head: response::Parts,
    body: Incoming,
    connection: Connection,
}

impl ResponseStream {
    /// Returns the body, limited to `limit` bytes.
    #[must_use]
    pub fn body(self, limit: u64) -> Body {
        Body {
            _connection: Some(self.connection),
            ..Body::new(self.body, limit, None)
        }
    }
}

/// The task that drives a connection. It ends with the response.
struct Connection(JoinHandle<()>);

impl Drop for Connection {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Sends an HTTP/1.1 request over a stream that is used for nothing else.
///
/// # Errors
/// If the server does not speak HTTP, or closes the connection.
pub async fn send(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> Result<ResponseStream, hyper::Error> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = Connection(tokio::spawn(async move {
        // The request or the body ends with the same error, and reports it.
        let _ = connection.await;
    }));
    let (head, body) = sender.send_request(request).await?.into_parts();
    Ok(ResponseStream {
        head,
        body,
        connection,
    })
}

/// Why a body could not be read to its end.
#[derive(Debug, Error)]
pub enum BodyError {
    /// The body exceeds its limit.
    #[error("the response is longer than {0} bytes")]
    TooLong(u64),
    /// The pause between two parts of the body is too long.
    #[error("the response stalled for {0:?}")]
    Stopped(Duration),
    /// The connection failed.
    #[error(transparent)]
    Broken(#[from] hyper::Error),
}

/// The body of a response, read within limits.
pub struct Body {
    incoming: Incoming,
    limit: u64,
    received: u64,
    /// The longest pause between two parts; `None`: the caller has a deadline.
    idle: Option<Duration>,
    /// The connection of the body, unless the caller keeps it.
    _connection: Option<Connection>,
}

impl Body {
    /// Limits a body to `limit` bytes, and pauses between its parts to `idle`.
    #[must_use]
    pub fn new(incoming: Incoming, limit: u64, idle: Option<Duration>) -> Self {
        Self {
            incoming,
            limit,
            received: 0,
            idle,
            _connection: None,
        }
    }

    /// Reads the next bytes; `None` at the end. Trailers are skipped.
    ///
    /// # Errors
    /// [`BodyError`].
    pub async fn next(&mut self) -> Result<Option<Bytes>, BodyError> {
        loop {
            let frame = match self.idle {
                None => self.incoming.frame().await,
                Some(idle) => timeout(idle, self.incoming.frame())
                    .await
                    .map_err(|_| BodyError::Stopped(idle))?,
            };
            let Some(frame) = frame else {
                return Ok(None);
            };
            let Ok(bytes) = frame?.into_data() else { continue };
            self.received += bytes.len() as u64;
            if self.received > self.limit {
                return Err(BodyError::TooLong(self.limit));
            }
            return Ok(Some(bytes));
        }
    }

    /// Reads all bytes.
    ///
    /// # Errors
    /// [`BodyError`].
    pub async fn whole(mut self) -> Result<Bytes, BodyError> {
        let mut whole = BytesMut::new();
        while let Some(bytes) = self.next().await? {
            whole.extend_from_slice(&bytes);
        }
        Ok(whole.freeze())
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream};

    use super::*;

    /// A server that sends this response and keeps the connection open.
    fn server(text: &'static str) -> DuplexStream {
        let (client_end, mut server_end) = tokio::io::duplex(4096);
        tokio::spawn(async move {
            let mut request = [0; 1024];
            let _ = server_end.read(&mut request).await;
            server_end.write_all(text.as_bytes()).await.unwrap();
            std::future::pending::<()>().await;
        });
        client_end
    }

    async fn respond_with(text: &'static str) -> ResponseStream {
        let request = Request::get("/")
            .header("host", "h")
            .body(Full::default())
            .unwrap();
        send(server(text), request).await.unwrap()
    }

    const FIVE: &str = "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";

    #[tokio::test]
    async fn a_body_is_limited() {
        assert_eq!(respond_with(FIVE).await.body(5).whole().await.unwrap(), "hello");
        let error = respond_with(FIVE).await.body(4).whole().await.unwrap_err();
        assert!(matches!(error, BodyError::TooLong(4)), "{error}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_stalled_body_is_an_error() {
        let response = respond_with("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhel").await;
        let (idle, connection) = (Duration::from_secs(3), response.connection);
        let error = Body::new(response.body, 5, Some(idle)).whole().await.unwrap_err();
        assert_eq!(error.to_string(), "the response stalled for 3s");
        drop(connection);
    }
}
