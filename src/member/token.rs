//! Asks a member for another token of the account that Starling has there.

use std::fmt;
use std::time::Duration;

use http::Method;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use super::attempt::Attempt;
use super::call::{Call, JSON, What};
use super::error::MemberError;
use super::kubeconfig::Hidden;
use super::paths;
use super::transport::Member;

/// A token and its end. Debug shows the end only.
#[derive(Clone)]
pub struct IssuedToken {
    token: Hidden,
    expires_at: Timestamp,
}

impl IssuedToken {
    /// A token that ends at `expires_at`.
    #[must_use]
    pub fn new(token: String, expires_at: Timestamp) -> Self {
        Self {
            token: Hidden(token),
            expires_at,
        }
    }

    /// When it ends, by the member's clock.
    #[must_use]
    pub fn expires_at(&self) -> Timestamp {
        self.expires_at
    }

    pub(super) fn reveal(&self) -> &str {
        &self.token.0
    }
}

impl fmt::Debug for IssuedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IssuedToken")
            .field("expires_at", &self.expires_at)
            .finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
struct TokenRequest {
    status: TokenRequestStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct TokenRequestStatus {
    token: String,
    expiration_timestamp: Timestamp,
}

impl Member {
    /// Asks for a token of a ServiceAccount. The member decides how long it lasts; `lifetime` is a wish.
    ///
    /// # Errors
    /// [`MemberError`]; none of them quotes the answer.
    pub async fn request_token(
        &self,
        namespace: &str,
        name: &str,
        lifetime: Duration,
        deadline: Instant,
    ) -> Result<IssuedToken, MemberError> {
        let account = format!("token of ServiceAccount {namespace}/{name}");
        let what = What::named("request a", &account);
        let body = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": lifetime.as_secs()},
        });
        let call = Call {
            what,
            method: Method::POST,
            path: format!(
                "/api/v1/namespaces/{}/serviceaccounts/{}/token",
                paths::escaped(namespace),
                paths::escaped(name)
            ),
            accept: JSON,
            content_type: JSON,
            body: body.to_string().into(),
        };
        let answer = self.send(call, &Attempt::until(deadline)).await?;
        let TokenRequestStatus {
            token,
            expiration_timestamp,
        } = answer.parse::<TokenRequest>(what)?.status;
        Ok(IssuedToken::new(token, expiration_timestamp))
    }
}
