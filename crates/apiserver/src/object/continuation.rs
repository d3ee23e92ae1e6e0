//! The `continue` token of a list: its resource version and the next key.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use crate::value::illegal_base64;

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
    /// The text of the API server's response to an invalid token.
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
    fn a_token_decodes_to_its_position() {
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
