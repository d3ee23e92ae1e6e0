//! The `continue` token of a list: its resource version and the next key.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::value::IllegalBase64;

const VERSION: &str = "meta.k8s.io/v1";

/// The position at which a list continues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Continuation {
    /// The resource version of the first page; `None` to continue with the newest after the first one was compacted.
    pub revision: Option<u64>,
    /// The first key of the next page.
    pub start: String,
}

#[derive(Serialize, Deserialize)]
struct Token {
    v: String,
    rv: i64,
    start: String,
}

/// Why a token is invalid, in the texts of the API server.
#[derive(Debug, Error)]
pub enum ContinuationError {
    /// The token is not Base64.
    #[error("continue key is not valid: {0}")]
    Base64(IllegalBase64),
    /// The token is not an encoded position.
    #[error("continue key is not valid")]
    Json(#[source] serde_json::Error),
    /// The token is of an unknown version.
    #[error("continue key is not valid: server does not recognize this encoded version {version:?}")]
    Version {
        /// The version.
        version: String,
    },
    /// The token has no resource version.
    #[error("continue key is not valid: incorrect encoded start resourceVersion (version {VERSION})")]
    Revision,
    /// The token has no key.
    #[error("continue key is not valid: encoded start key empty (version {VERSION})")]
    Start,
}

impl Continuation {
    /// Encodes the token.
    pub fn encode(&self) -> String {
        let token = Token {
            v: VERSION.to_owned(),
            rv: self
                .revision
                .and_then(|revision| i64::try_from(revision).ok())
                .unwrap_or(-1),
            start: self.start.clone(),
        };
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(&token).unwrap_or_default())
    }

    /// Decodes a token.
    ///
    /// # Errors
    /// [`ContinuationError`].
    pub fn decode(text: &str) -> Result<Self, ContinuationError> {
        let bytes = URL_SAFE_NO_PAD
            .decode(text)
            .map_err(|error| ContinuationError::Base64(IllegalBase64::new(text, &error)))?;
        let token: Token = serde_json::from_slice(&bytes).map_err(ContinuationError::Json)?;
        if token.v != VERSION {
            return Err(ContinuationError::Version { version: token.v });
        }
        if token.rv == 0 {
            return Err(ContinuationError::Revision);
        }
        if token.start.is_empty() {
            return Err(ContinuationError::Start);
        }
        Ok(Self {
            revision: u64::try_from(token.rv).ok(),
            start: token.start,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_decodes_to_its_position() {
        for revision in [Some(17), None] {
            let token = Continuation {
                revision,
                start: "default/web\0".to_owned(),
            };
            assert_eq!(Continuation::decode(&token.encode()).unwrap(), token);
        }
        let token = |token: &str| URL_SAFE_NO_PAD.encode(token);
        for (token, wanted) in [
            ("?".to_owned(), ": illegal base64 data at input byte 0"),
            ("e30".to_owned(), ""),
            (
                token(r#"{"v":"v1","rv":1,"start":"a"}"#),
                ": server does not recognize this encoded version \"v1\"",
            ),
            (
                token(r#"{"v":"meta.k8s.io/v1","rv":0,"start":"a"}"#),
                ": incorrect encoded start resourceVersion (version meta.k8s.io/v1)",
            ),
            (
                token(r#"{"v":"meta.k8s.io/v1","rv":1,"start":""}"#),
                ": encoded start key empty (version meta.k8s.io/v1)",
            ),
        ] {
            let error = Continuation::decode(&token).unwrap_err();
            assert_eq!(error.to_string(), format!("continue key is not valid{wanted}"));
        }
    }
}
