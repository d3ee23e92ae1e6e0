//! HTTP: health. Liveness does not depend on any cluster; readiness says that the controller knows the state of the
//! management cluster and can record its own.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Returns the reasons why the program is not ready, each in a line; none if it is ready.
type Reasons = Arc<dyn Fn() -> Vec<String> + Send + Sync>;

/// The routes.
pub fn router(reasons: impl Fn() -> Vec<String> + Send + Sync + 'static) -> Router {
    let reasons: Reasons = Arc::new(reasons);
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(readyz))
        .with_state(reasons)
}

async fn readyz(State(reasons): State<Reasons>) -> (StatusCode, String) {
    let reasons = reasons();
    if reasons.is_empty() {
        return (StatusCode::OK, "ok\n".to_owned());
    }
    let lines = reasons.iter().map(|reason| format!("{reason}\n"));
    (StatusCode::SERVICE_UNAVAILABLE, lines.collect())
}

/// Serves until `stop`. `reasons` returns why the program is not ready; nothing if it is.
///
/// # Errors
/// If the listener fails.
pub async fn serve(
    listener: TcpListener,
    reasons: impl Fn() -> Vec<String> + Send + Sync + 'static,
    stop: CancellationToken,
) -> std::io::Result<()> {
    axum::serve(listener, router(reasons))
        .with_graceful_shutdown(stop.cancelled_owned())
        .await
}
