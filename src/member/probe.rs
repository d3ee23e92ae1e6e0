//! Is the member there, what is it, and is it still the same one?

use serde::Deserialize;
use tokio::time::Instant;

use super::attempt::Attempt;
use super::call::{Call, JSON, METADATA, What};
use super::error::MemberError;
use super::metadata::Partial;
use super::transport::{Line, Member};

/// What a member says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// `gitVersion` of the API server, such as `v1.35.4`.
    pub version: String,
    /// UID of the namespace `kube-system`: it is made once in the life of a cluster, so another one is another cluster.
    pub cluster_id: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Version {
    git_version: String,
}

impl Member {
    /// Asks the member for its version and identity: two requests, past the lane and as the user of the kubeconfig.
    ///
    /// # Errors
    /// [`MemberError`], connectivity and credentials among them.
    pub async fn probe(&self, deadline: Instant) -> Result<Probe, MemberError> {
        let (itself, attempt) = (self.as_itself(), Attempt::until(deadline));
        let what = What::named("get", "the version");
        let answer = itself
            .send_on(Line::Apart, Call::get(what, "/version".into(), JSON), &attempt)
            .await?;
        let version = answer
            .parse::<Version>(what)?
            .git_version
            .chars()
            .take(64)
            .collect();
        let what = What::named("get", "Namespace kube-system");
        let path = "/api/v1/namespaces/kube-system".into();
        let answer = itself
            .send_on(Line::Apart, Call::get(what, path, METADATA), &attempt)
            .await?;
        let cluster_id = answer.parse::<Partial<'_>>(what)?.metadata.uid;
        if cluster_id.is_empty() {
            let problem = "a namespace without UID".into();
            return Err(MemberError::Garbage {
                request: what.to_string(),
                problem,
            });
        }
        Ok(Probe { version, cluster_id })
    }
}
