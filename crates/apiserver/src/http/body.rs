//! The bodies of responses.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::Stream;
use futures::stream::BoxStream;
use hyper::body::{Body as HttpBody, Frame, SizeHint};

/// Why a connection is closed without a complete response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Broken(pub(crate) &'static str);

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Broken {}

/// The body of a response. A stream produces data only when the connection has room, so a slow client uses no memory.
pub struct Body(Inner);

enum Inner {
    Full(Option<Bytes>),
    Stream(BoxStream<'static, Result<Bytes, Broken>>),
    /// Closes the connection after these bytes.
    Cut(Option<Bytes>),
}

impl Body {
    pub(crate) fn full(bytes: impl Into<Bytes>) -> Self {
        Self(Inner::Full(Some(bytes.into())))
    }

    /// Returns a body without data and without a frame.
    pub(crate) fn empty() -> Self {
        Self(Inner::Full(None))
    }

    pub(crate) fn stream(stream: impl Stream<Item = Result<Bytes, Broken>> + Send + 'static) -> Self {
        Self(Inner::Stream(Box::pin(stream)))
    }

    /// Returns the body with its bytes, or the chunks of its stream, in another form.
    pub(crate) fn mapped(self, form: impl Fn(&Bytes) -> Bytes + Send + 'static) -> Self {
        use futures::StreamExt as _;
        match self.0 {
            Inner::Full(bytes) => Self(Inner::Full(bytes.as_ref().map(form))),
            Inner::Stream(stream) => Self::stream(stream.map(move |chunk| chunk.map(|bytes| form(&bytes)))),
            cut @ Inner::Cut(_) => Self(cut),
        }
    }

    /// Returns the bytes of a body that is not a stream.
    pub(crate) fn bytes(&self) -> Option<&Bytes> {
        match &self.0 {
            Inner::Full(bytes) => bytes.as_ref(),
            _ => None,
        }
    }

    /// Returns the first half of the body; the connection is closed after it.
    pub(crate) fn cut(self) -> Self {
        match self.0 {
            Inner::Full(Some(bytes)) => {
                let half = bytes.len() / 2;
                Self(Inner::Cut(Some(bytes.slice(..half))))
            }
            _ => Self(Inner::Cut(None)),
        }
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        match &mut self.get_mut().0 {
            Inner::Full(bytes) => Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            Inner::Stream(stream) => stream
                .as_mut()
                .poll_next(cx)
                .map(|next| next.map(|bytes| bytes.map(Frame::data))),
            Inner::Cut(bytes) => Poll::Ready(Some(match bytes.take() {
                Some(bytes) => Ok(Frame::data(bytes)),
                None => Err(Broken("the answer is cut")),
            })),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.0, Inner::Full(None))
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Inner::Full(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            _ => SizeHint::default(),
        }
    }
}
