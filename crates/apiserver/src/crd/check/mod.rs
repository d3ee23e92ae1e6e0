//! Whether a definition is one.

use serde_json::Value;

use crate::cause::Cause;

pub(super) fn check(_definition: &Value, _old: Option<&Value>) -> Vec<Cause> {
    Vec::new()
}
