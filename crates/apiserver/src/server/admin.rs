//! The path `/admin`: creates and removes clusters at run time.

use http::Method;
use serde_json::{Value, json};

use super::{Server, ServerError};
use crate::status::Status;

/// Handles a request below `/admin` with a status code and a body.
///
/// - `GET /admin/clusters`: lists the names.
/// - `GET /admin/clusters/NAME`: returns URL, token and kubeconfig.
/// - `POST /admin/clusters/NAME`: creates the cluster and returns URL, token and kubeconfig.
/// - `DELETE /admin/clusters/NAME`: removes the cluster.
pub(crate) fn answer(server: &Server, method: &Method, path: &[&str]) -> Result<(u16, Value), Status> {
    match (method.as_str(), path) {
        ("GET", ["clusters"]) => Ok((200, json!({"clusters": server.clusters()}))),
        ("GET", ["clusters", name]) => Ok((200, describe(server, name)?)),
        ("POST", ["clusters", name]) => {
            server.create_cluster(name).map_err(|error| match error {
                ServerError::Exists(_) => Status::new(409, "AlreadyExists", error.to_string()),
                ServerError::Name { .. } => Status::new(422, "Invalid", error.to_string()),
                _ => Status::internal(error),
            })?;
            Ok((201, describe(server, name)?))
        }
        ("DELETE", ["clusters", name]) if server.remove_cluster(name) => Ok((200, json!({}))),
        ("DELETE", ["clusters", name]) => Err(missing(name)),
        _ => Err(Status::no_such_resource()),
    }
}

fn missing(name: &str) -> Status {
    Status::new(404, "NotFound", format!("cluster {name:?} not found"))
}

fn describe(server: &Server, name: &str) -> Result<Value, Status> {
    let cluster = server.cluster(name).ok_or_else(|| missing(name))?;
    Ok(json!({
        "name": name,
        "url": cluster.url(),
        "token": cluster.token(),
        "kubeconfig": cluster.kubeconfig(),
    }))
}
