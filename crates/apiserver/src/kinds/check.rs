//! The validation of an object beyond its metadata.

use serde_json::Value;

use super::resource::{Form, Resource, Version};
use super::validate;
use crate::crd::Verdict;

/// Returns what is wrong with a new object, beyond its metadata.
pub(crate) fn check_create(resource: &Resource, version: &Version, object: &Value) -> Verdict {
    match &version.form {
        Form::Builtin(_) => {
            let mut causes = validate::finalizers(object);
            causes.extend(validate::create(resource, object));
            Verdict {
                causes,
                warnings: Vec::new(),
            }
        }
        Form::Custom(custom) => custom.get().validate(object, None),
    }
}

/// Returns what is wrong with an object that replaces another one, beyond its metadata.
pub(crate) fn check_update(
    resource: &Resource,
    version: &Version,
    subresource: &str,
    new: &Value,
    old: &Value,
) -> Verdict {
    let causes = match &version.form {
        // Only the status can have changed.
        Form::Builtin(_) if subresource == "status" => validate::status(resource, new),
        Form::Builtin(_) => {
            let mut causes = validate::finalizers(new);
            causes.extend(validate::update(resource, new, old));
            causes
        }
        Form::Custom(custom) if subresource == "status" => return custom.get().validate_status(new, old),
        Form::Custom(custom) => return custom.get().validate(new, Some(old)),
    };
    Verdict {
        causes,
        warnings: Vec::new(),
    }
}
