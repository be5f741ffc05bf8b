//! What a handler leaves of a request's body. A connection whose request was not read to its end
//! is closed behind the answer, and a client that sends its next request there finds it broken. So
//! a short rest is read before the answer goes out; a long one is not worth it.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tokio::time::timeout;

/// Most bytes that are read for nothing.
const REST_BYTES_MAX: u64 = 64 << 10;

/// Longest time that they are waited for.
const REST_TIMEOUT: Duration = Duration::from_secs(1);

/// A body of which the server keeps hold while its handler reads.
#[derive(Clone)]
pub struct SharedBody(Arc<Mutex<Body>>);

impl SharedBody {
    /// Keeps hold of a body.
    pub fn new(body: Body) -> SharedBody {
        SharedBody(Arc::new(Mutex::new(body)))
    }

    /// Reads what the handler left, if that is short and comes soon.
    pub async fn read_rest(&self) {
        if !self.is_end_stream() {
            let _ = timeout(REST_TIMEOUT, self.drop_frames()).await;
        }
    }

    async fn drop_frames(&self) {
        let mut left = REST_BYTES_MAX;
        while self.size_hint().lower() <= left {
            let frame = poll_fn(|context| Pin::new(&mut *self.lock()).poll_frame(context)).await;
            let Some(Ok(frame)) = frame else { return };
            let bytes = frame.data_ref().map_or(0, Bytes::len) as u64;
            left = left.saturating_sub(bytes);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Body> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HttpBody for SharedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut *self.lock()).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.lock().is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.lock().size_hint()
    }
}
