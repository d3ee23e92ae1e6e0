//! Whether the admission policies of the management cluster are those that Starling ships.
//!
//! Only the API server knows who creates an approval. A policy requires `spec.by` to be this user; without the policy,
//! `spec.by` is what anybody wrote.

use jiff::Timestamp;
use serde_json::Value;

/// What an API server adds to a policy or a binding that does not set these fields.
const DEFAULTS: [(&str, &str); 2] = [("matchPolicy", "Equivalent"), ("scope", "*")];

/// An object of the policies: a ValidatingAdmissionPolicy or its binding.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyObject {
    /// The kind and the name, for messages.
    pub what: String,
    /// `spec` as Starling ships it.
    pub spec: Value,
}

/// An object of the policies on the API server.
#[derive(Clone, Debug, PartialEq)]
pub struct LivePolicyObject {
    /// `spec`, with defaults.
    pub spec: Value,
    /// The creation time.
    pub created_at: Timestamp,
    /// Whether the object is being deleted.
    pub is_deleting: bool,
}

/// The state of the policies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Policies {
    /// They are in force, all of them since this time.
    InForce {
        /// The creation time of the youngest object.
        since: Timestamp,
    },
    /// They are not, for this reason.
    Missing {
        /// The object, and what is wrong with it.
        why: String,
    },
}

impl Policies {
    /// Returns the state for the objects of the policies; `None`: the object does not exist.
    pub fn of<'a>(
        objects: impl IntoIterator<Item = (&'a PolicyObject, Option<&'a LivePolicyObject>)>,
    ) -> Self {
        let mut since = Timestamp::UNIX_EPOCH;
        for (shipped, live) in objects {
            let what = &shipped.what;
            let missing = |problem: &str| Self::Missing {
                why: format!("{what} {problem}"),
            };
            match live {
                None => return missing("not found"),
                Some(live) if live.is_deleting => return missing("is being deleted"),
                Some(live) if !is_unchanged(&shipped.spec, &live.spec) => {
                    return missing("differs from that of deploy/manifests");
                }
                Some(live) => since = since.max(live.created_at),
            }
        }
        Self::InForce { since }
    }

    /// Returns whether an object that was created at this time was admitted by the policies.
    #[must_use]
    pub fn admitted(&self, created_at: Timestamp) -> bool {
        match self {
            Self::InForce { since } => created_at >= *since,
            Self::Missing { .. } => false,
        }
    }
}

/// Returns whether a live value is the shipped one. Fields that only the live value has may be empty, or defaults: any
/// other may narrow what the policy matches.
fn is_unchanged(shipped: &Value, live: &Value) -> bool {
    match (shipped, live) {
        (Value::Object(shipped), Value::Object(live)) => {
            let kept = shipped
                .iter()
                .all(|(key, value)| live.get(key).is_some_and(|live| is_unchanged(value, live)));
            let added = live.iter().filter(|(key, _)| !shipped.contains_key(*key));
            kept && added.into_iter().all(|(key, value)| is_default(key, value))
        }
        (Value::Array(shipped), Value::Array(live)) => {
            let mut pairs = shipped.iter().zip(live);
            shipped.len() == live.len() && pairs.all(|(shipped, live)| is_unchanged(shipped, live))
        }
        _ => shipped == live,
    }
}

fn is_default(key: &str, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        Value::String(text) => DEFAULTS.contains(&(key, text)),
        Value::Bool(_) | Value::Number(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shipped() -> PolicyObject {
        PolicyObject {
            what: "ValidatingAdmissionPolicy p".into(),
            spec: json!({
                "failurePolicy": "Fail",
                "matchConstraints": {"resourceRules": [{"resources": ["a", "b"]}]},
                "validations": [{"expression": "x"}],
            }),
        }
    }

    fn live(change: impl Fn(&mut Value)) -> LivePolicyObject {
        let mut spec = json!({
            "failurePolicy": "Fail",
            "matchConstraints": {
                "matchPolicy": "Equivalent", "namespaceSelector": {}, "objectSelector": {},
                "resourceRules": [{"resources": ["a", "b"], "scope": "*"}],
            },
            "validations": [{"expression": "x"}],
        });
        change(&mut spec);
        LivePolicyObject {
            spec,
            created_at: Timestamp::from_second(100).unwrap(),
            is_deleting: false,
        }
    }

    #[test]
    fn tenant_a_policy_with_defaults_is_in_force_and_any_other_is_not() {
        let shipped = shipped();
        let state = |live: Option<&LivePolicyObject>| Policies::of([(&shipped, live)]);
        let since = Timestamp::from_second(100).unwrap();
        assert_eq!(state(Some(&live(|_| ()))), Policies::InForce { since });
        type Change = fn(&mut Value);
        let changes: [Change; 8] = [
            |spec| spec["failurePolicy"] = "Ignore".into(),
            |spec| spec["validations"] = json!([]),
            |spec| spec["validations"][0]["expression"] = "true".into(),
            |spec| spec["matchConditions"] = json!([{"name": "never", "expression": "false"}]),
            |spec| spec["paramKind"] = json!({"kind": "P"}),
            |spec| spec["matchConstraints"]["resourceRules"][0]["resources"] = json!(["a"]),
            |spec| spec["matchConstraints"]["namespaceSelector"] = json!({"matchLabels": {"x": "y"}}),
            |spec| spec["matchConstraints"]["excludeResourceRules"] = json!([{"resources": ["a"]}]),
        ];
        for change in changes {
            let live = live(change);
            let found = state(Some(&live));
            assert!(
                matches!(&found, Policies::Missing { why } if why.contains("differs")),
                "{live:?}"
            );
        }
        let mut deleting = live(|_| ());
        deleting.is_deleting = true;
        for found in [state(None), state(Some(&deleting))] {
            assert!(matches!(found, Policies::Missing { .. }), "{found:?}");
        }
    }

    #[test]
    fn tenant_an_object_from_before_the_policy_was_not_admitted_by_it() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let in_force = Policies::InForce { since: at(100) };
        assert!(!in_force.admitted(at(99)));
        assert!(in_force.admitted(at(100)));
        let missing = Policies::Missing { why: String::new() };
        assert!(!missing.admitted(at(100)));
    }
}
