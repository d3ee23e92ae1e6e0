//! The contents of request bodies besides JSON.

use serde_json::Value;
use thiserror::Error;

/// The content type that Go's typed clients prefer.
pub(super) const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// Why a body is not YAML.
#[derive(Debug, Error)]
pub(super) enum YamlError {
    #[error(transparent)]
    Utf8(#[from] std::str::Utf8Error),
    #[error(transparent)]
    Syntax(#[from] serde_saphyr::Error),
}

pub(super) fn yaml(bytes: &[u8]) -> Result<Value, YamlError> {
    let text = std::str::from_utf8(bytes)?;
    Ok(serde_saphyr::from_str(text)?)
}
