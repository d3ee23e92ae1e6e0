//! Validates Sources. Pure: code that accesses the repository takes a [`ValidSource`].

use starling_api::Source;
use starling_core::revision::{AdvanceRules, OnRewrite, PolicyError, RefFields, RefPolicy};
use starling_core::unimplemented;

use super::super::not_implemented;

/// A Source that can be reconciled: not suspended, no unimplemented fields, one policy.
pub(super) struct ValidSource<'a> {
    pub(super) source: &'a Source,
    pub(super) policy: RefPolicy,
    pub(super) rules: AdvanceRules,
}

/// The reason why a Source is not reconciled until it is edited.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SourceBlocked {
    /// `suspend`.
    #[error("suspended: the last revision is kept")]
    Suspended,
    /// Fields of the contract that are not implemented (I10).
    #[error("{}", not_implemented(.0))]
    NotImplemented(Vec<String>),
    /// `ref` is not a policy.
    #[error(transparent)]
    Policy(#[from] PolicyError),
}

impl SourceBlocked {
    /// Returns the reason of Ready.
    pub(super) const fn reason(&self) -> &'static str {
        match self {
            Self::Suspended => "Suspended",
            Self::NotImplemented(_) => "NotImplemented",
            Self::Policy(_) => "InvalidRef",
        }
    }
}

/// Validates a Source.
///
/// # Errors
/// The first [`SourceBlocked`], in the order of the variants.
pub(super) fn validate(source: &Source) -> Result<ValidSource<'_>, SourceBlocked> {
    let spec = &source.spec;
    if spec.suspend {
        return Err(SourceBlocked::Suspended);
    }
    let unimplemented = unimplemented::of_source(spec);
    if !unimplemented.is_empty() {
        return Err(SourceBlocked::NotImplemented(unimplemented));
    }
    let policy = RefPolicy::from_fields(RefFields {
        branch: spec.reference.branch.as_deref(),
        semver: spec.reference.semver.as_deref(),
        tag: spec.reference.tag.as_deref(),
        commit: spec.reference.commit.as_deref(),
    })?;
    let on_rewrite = match spec.on_rewrite {
        Some(starling_api::OnRewrite::Follow) => OnRewrite::Follow,
        Some(starling_api::OnRewrite::Hold) => OnRewrite::Hold,
        None => OnRewrite::default_for(&policy),
    };
    Ok(ValidSource {
        source,
        policy,
        rules: AdvanceRules {
            on_rewrite,
            allow_downgrade: spec.allow_downgrade,
        },
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "reads like the literal it is given")]
    fn mk_source(spec: Value) -> Source {
        let mut base = json!({"url": "https://git.example/app.git"});
        base.as_object_mut()
            .unwrap()
            .extend(spec.as_object().unwrap().clone());
        serde_json::from_value(json!({
            "apiVersion": "starling.dev/v1alpha1", "kind": "Source",
            "metadata": {"name": "app", "namespace": "shop"}, "spec": base,
        }))
        .unwrap()
    }

    #[test]
    fn suspension_comes_before_what_is_invalid() {
        let two = json!({"branch": "main", "tag": "v1"});
        let suspended = mk_source(json!({"ref": two, "suspend": true}));
        assert_eq!(validate(&suspended).err(), Some(SourceBlocked::Suspended));
        let blocked = validate(&mk_source(json!({"ref": two}))).err().unwrap();
        assert_eq!(blocked.reason(), "InvalidRef");
    }

    #[test]
    fn a_branch_may_be_rewritten_and_a_tag_may_not_unless_the_spec_says_so() {
        let on_rewrite = |spec: Value| {
            let source = mk_source(spec);
            let valid = validate(&source).unwrap_or_else(|blocked| panic!("{blocked}"));
            valid.rules.on_rewrite
        };
        let branch = json!({"branch": "main"});
        let given = json!({"ref": branch, "onRewrite": "Hold"});
        assert_eq!(on_rewrite(given), OnRewrite::Hold);
        let policy = RefPolicy::from_fields(RefFields {
            branch: Some("main"),
            semver: None,
            tag: None,
            commit: None,
        });
        assert_eq!(
            on_rewrite(json!({"ref": branch})),
            OnRewrite::default_for(&policy.unwrap())
        );
    }
}
