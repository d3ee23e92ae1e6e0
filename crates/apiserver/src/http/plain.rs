//! The paths `/version`, the health checks, and the list of paths.

use hyper::{Method, Response};
use serde_json::json;

use super::body::Body;
use super::health;
use super::request::Call;
use super::response::{json, text};
use super::route::Route;
use crate::discovery::KUBERNETES_VERSION;
use crate::status::Status;

/// Handles a request for one of these paths.
pub(super) fn answer(call: &Call) -> Result<Response<Body>, Status> {
    let Route::Plain(steps) = &call.route else {
        return Err(Status::no_such_resource());
    };
    let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
    // As in Kubernetes: the version is a route with a method. The others are handlers that look at no method.
    if call.method != Method::GET && steps == ["version"] {
        return Err(Status::method_not_allowed());
    }
    match steps.as_slice() {
        [] => Ok(json(
            200,
            json!({"paths": ["/api", "/api/v1", "/apis", "/healthz", "/livez", "/openapi/v2", "/openapi/v3", "/readyz", "/version"]})
                .to_string()
                .into_bytes(),
        )),
        ["version"] => Ok(json(
            200,
            json!({
                "major": "1", "minor": "35", "gitVersion": KUBERNETES_VERSION,
                "gitCommit": "", "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z",
                "goVersion": "none", "compiler": "rustc", "platform": format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
            })
            .to_string()
            .into_bytes(),
        )),
        [path, check @ ..] => health::answer(path, check, &call.params)
            .map(|answer| text(200, &answer))
            .ok_or_else(Status::no_such_path),
    }
}
