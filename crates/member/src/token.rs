//! Requests a new token for the account of Starling on a member.

use std::time::Duration;

use http::Method;
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::json;
use tokio::time::Instant;

use super::attempt::Attempt;
use super::call::{Call, JSON, Operation};
use super::error::MemberError;
use super::paths;
use super::secret::IssuedToken;
use super::transport::Member;

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
    /// Requests a token of a ServiceAccount. The member decides its lifetime; `lifetime` is only requested.
    ///
    /// # Errors
    /// [`MemberError`]; the error never quotes the response.
    pub async fn request_token(
        &self,
        namespace: &str,
        name: &str,
        lifetime: Duration,
        deadline: Instant,
    ) -> Result<IssuedToken, MemberError> {
        let account = format!("token of ServiceAccount {namespace}/{name}");
        let operation = Operation::named("request a", &account);
        let body = json!({
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": lifetime.as_secs()},
        });
        let call = Call {
            operation,
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
        let response = self.send(call, &Attempt::until(deadline)).await?;
        let TokenRequestStatus {
            token,
            expiration_timestamp,
        } = response.parse::<TokenRequest>(operation)?.status;
        Ok(IssuedToken::new(token, expiration_timestamp))
    }
}
