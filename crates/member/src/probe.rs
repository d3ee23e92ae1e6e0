//! Probes: whether the member is reachable, its version and its identity.

use serde::Deserialize;
use starling_core::ids::ClusterId;
use tokio::time::Instant;

use super::attempt::Attempt;
use super::call::{Call, JSON, METADATA, Operation};
use super::error::MemberError;
use super::metadata::Partial;
use super::transport::{Channel, Member};

/// The version and identity that a member reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// `gitVersion` of the API server, such as `v1.35.4`.
    pub version: String,
    /// UID of the namespace `kube-system`. The namespace is created once in the life of a cluster, so another UID means
    /// another cluster.
    pub cluster_id: ClusterId,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    git_version: String,
}

impl Member {
    /// Reads the version and identity of the member: two requests, outside of the request limits and as the user
    /// of the kubeconfig.
    ///
    /// # Errors
    /// [`MemberError`], including connectivity and credentials.
    pub async fn probe(&self, deadline: Instant) -> Result<Probe, MemberError> {
        let (as_user, attempt) = (self.as_kubeconfig_user(), Attempt::until(deadline));
        let operation = Operation::named("get", "the version");
        let response = as_user
            .send_on(
                Channel::Probe,
                Call::get(operation, "/version".into(), JSON),
                &attempt,
            )
            .await?;
        let version = response
            .parse::<Version>(operation)?
            .git_version
            .chars()
            .take(64)
            .collect();
        let operation = Operation::named("get", "Namespace kube-system");
        let path = "/api/v1/namespaces/kube-system".into();
        let response = as_user
            .send_on(Channel::Probe, Call::get(operation, path, METADATA), &attempt)
            .await?;
        let cluster_id = ClusterId::new(response.parse::<Partial<'_>>(operation)?.metadata.uid);
        if cluster_id.is_empty() {
            let problem = "a namespace without UID".into();
            return Err(MemberError::Garbage {
                request: operation.to_string(),
                problem,
            });
        }
        Ok(Probe { version, cluster_id })
    }
}
