//! The results of requests.

use std::sync::Arc;

use serde_json::Value;

use crate::status::Status;
use crate::store::Stored;
use crate::target::Target;

/// The result of a request.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The HTTP status code.
    pub code: u16,
    /// The object in the response.
    pub body: Body,
    /// The warnings for the client.
    pub warnings: Vec<String>,
}

/// The object in a response.
#[derive(Debug, Clone)]
pub enum Body {
    /// A stored object.
    Stored(Arc<Stored>),
    /// An object that is not stored: the result of a dry run, a `Scale`, a review, a `Status`.
    Value(Value),
}

impl Outcome {
    pub(super) fn stored(code: u16, stored: Arc<Stored>) -> Self {
        Self {
            code,
            body: Body::Stored(stored),
            warnings: Vec::new(),
        }
    }

    pub(crate) fn value(code: u16, value: Value) -> Self {
        Self {
            code,
            body: Body::Value(value),
            warnings: Vec::new(),
        }
    }

    pub(super) fn warning(mut self, warnings: Vec<String>) -> Self {
        self.warnings.extend(warnings);
        self
    }

    /// Returns the object as JSON.
    pub(super) fn object(&self, target: &Target) -> Value {
        match &self.body {
            Body::Stored(stored) => target.read(stored),
            Body::Value(value) => value.clone(),
        }
    }
}

/// Adds warnings to a result, whether it is an object or an error.
pub(super) fn with_warnings(
    outcome: Result<Outcome, Status>,
    warnings: Vec<String>,
) -> Result<Outcome, Status> {
    match outcome {
        Ok(outcome) => Ok(outcome.warning(warnings)),
        Err(status) => Err(status.warning(warnings)),
    }
}
