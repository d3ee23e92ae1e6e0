//! The validation of an object beyond its metadata.

use serde_json::Value;

use super::codec::GoType;
use super::resource::{Form, Resource, Version};
use super::validate;
use crate::crd::Verdict;
use crate::status::Cause;

/// Returns what is wrong with a new object, beyond its metadata.
pub(crate) fn check_create(resource: &Resource, version: &Version, object: &Value) -> Verdict {
    match &version.form {
        Form::Builtin(ty) => {
            let mut causes = validate::finalizers(object);
            causes.extend(validate::create(resource, object));
            add_enumerations(&mut causes, *ty, object, None);
            Verdict {
                causes,
                warnings: Vec::new(),
            }
        }
        Form::Custom(custom) => custom.get().validate(object, None),
    }
}

/// Adds the values that their fields do not allow, unless a check of the kind has found them, or they were stored
/// before: by an earlier version of this server, whose objects must stay writable.
fn add_enumerations(causes: &mut Vec<Cause>, ty: GoType, object: &Value, old: Option<&Value>) {
    let found = validate::enumerations(ty, object);
    if found.is_empty() {
        return;
    }
    let stored = old.map(|old| validate::enumerations(ty, old)).unwrap_or_default();
    for cause in found {
        if !stored.contains(&cause) && !causes.iter().any(|one| one.field == cause.field) {
            causes.push(cause);
        }
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
        Form::Builtin(ty) => {
            let mut causes = validate::finalizers(new);
            causes.extend(validate::update(resource, new, old));
            add_enumerations(&mut causes, *ty, new, Some(old));
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
