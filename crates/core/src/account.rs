//! The ServiceAccount of a Sync on its member: the one that it names, or the one that the operator sets.

use serde::{Deserialize, Serialize};

/// The rules of an installation for the accounts of Syncs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct AccountRules {
    /// The account of a Sync that names none; empty: it has the permissions of the kubeconfig.
    pub default: String,
    /// Whether a Sync without an account is refused.
    pub required: bool,
}

/// A Sync names no account, and the operator requires one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("serviceAccountName is empty, and --require-service-account of the controller requires one")]
pub struct AccountRequired;

impl AccountRules {
    /// Returns the account of a Sync that names `named`; empty: nothing is impersonated.
    ///
    /// # Errors
    /// [`AccountRequired`].
    pub fn account<'a>(&'a self, named: &'a str) -> Result<&'a str, AccountRequired> {
        let account = if named.is_empty() { &self.default } else { named };
        if account.is_empty() && self.required {
            return Err(AccountRequired);
        }
        Ok(account)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenant_a_sync_without_an_account_gets_the_default_or_is_refused() {
        let rules = |default: &str, required| AccountRules {
            default: default.to_owned(),
            required,
        };
        for (rules, named, expected) in [
            (rules("", false), "", Ok("")),
            (rules("", false), "own", Ok("own")),
            (rules("tenant", false), "", Ok("tenant")),
            (rules("tenant", true), "", Ok("tenant")),
            (rules("tenant", true), "own", Ok("own")),
            (rules("", true), "own", Ok("own")),
            (rules("", true), "", Err(AccountRequired)),
        ] {
            assert_eq!(rules.account(named), expected, "{rules:?} {named:?}");
        }
    }
}
