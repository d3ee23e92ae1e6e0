//! The token with which a list goes on: the revision that it began at and the key that comes next.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use crate::kinds::codec::illegal_base64;

const VERSION: &str = "meta.k8s.io/v1";

/// Where a list goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Continuation {
    /// The revision of the first part; none to go on with the newest, after the first one was forgotten.
    pub revision: Option<u64>,
    /// The first key that has not been given.
    pub start: String,
}

#[derive(Serialize, Deserialize)]
struct Token {
    v: String,
    rv: i64,
    start: String,
}

impl Continuation {
    /// As on the wire.
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

    /// Reads a token; what is not one is said in the words of the API server.
    ///
    /// # Errors
    /// The text of the answer.
    pub fn decode(text: &str) -> Result<Self, String> {
        let bytes = URL_SAFE_NO_PAD
            .decode(text)
            .map_err(|error| format!("continue key is not valid: {}", illegal_base64(text, &error)))?;
        let token: Token =
            serde_json::from_slice(&bytes).map_err(|_| "continue key is not valid".to_owned())?;
        if token.v != VERSION {
            return Err(format!(
                "continue key is not valid: server does not recognize this encoded version {:?}",
                token.v
            ));
        }
        if token.rv == 0 {
            return Err(
                "continue key is not valid: incorrect encoded start resourceVersion (version meta.k8s.io/v1)"
                    .to_owned(),
            );
        }
        if token.start.is_empty() {
            return Err(
                "continue key is not valid: encoded start key empty (version meta.k8s.io/v1)".to_owned(),
            );
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
    fn a_token_comes_back_as_it_went() {
        for revision in [Some(17), None] {
            let token = Continuation {
                revision,
                start: "default/web\0".to_owned(),
            };
            assert_eq!(Continuation::decode(&token.encode()), Ok(token));
        }
        assert!(Continuation::decode("?").is_err());
        assert!(Continuation::decode("e30").is_err());
    }
}
