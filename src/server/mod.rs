//! HTTP: health. Liveness does not depend on any cluster; readiness says that the caches hold complete lists.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Whether the controller works; shared with whoever starts and stops it.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<AtomicBool>);

impl Readiness {
    /// Says that the controller works, or no longer does.
    pub fn set(&self, ready: bool) {
        self.0.store(ready, Ordering::SeqCst);
    }
}

/// The routes.
pub fn router(readiness: Readiness) -> Router {
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .with_state(readiness)
}

async fn readyz(State(readiness): State<Readiness>) -> (StatusCode, &'static str) {
    if readiness.0.load(Ordering::SeqCst) {
        (StatusCode::OK, "ok\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "the caches are not filled yet\n")
    }
}

/// Serves until `stop`.
///
/// # Errors
/// Where the listener fails.
pub async fn serve(
    listener: TcpListener,
    readiness: Readiness,
    stop: CancellationToken,
) -> std::io::Result<()> {
    axum::serve(listener, router(readiness))
        .with_graceful_shutdown(stop.cancelled_owned())
        .await
}
