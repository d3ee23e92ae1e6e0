//! Impersonation of a ServiceAccount of the member.

use std::fmt;

use http::{HeaderName, HeaderValue, request};
use starling_core::expand::is_account_name;

use super::error::MemberError;

/// The header with the impersonated user. If no groups are sent, the API server adds those of a ServiceAccount
/// (`system:serviceaccounts`, the one of its namespace, `system:authenticated`). If they were sent, the user of the
/// kubeconfig would need a permission for each group.
const USER: HeaderName = HeaderName::from_static("impersonate-user");

/// The ServiceAccount that requests impersonate.
pub(super) struct Impersonated {
    user: HeaderValue,
}

impl Impersonated {
    /// Creates the header value for the account `name` of `namespace`.
    ///
    /// # Errors
    /// [`MemberError::Account`] if these are not valid names.
    pub(super) fn new(namespace: &str, name: &str) -> Result<Self, MemberError> {
        let refused = || MemberError::Account {
            namespace: namespace.chars().take(63).collect(),
            name: name.chars().take(63).collect(),
        };
        if !is_account_name(name) || !is_account_name(namespace) || namespace.contains('.') {
            return Err(refused());
        }
        let user = format!("system:serviceaccount:{namespace}:{name}");
        let user = HeaderValue::from_str(&user).map_err(|_| refused())?;
        Ok(Self { user })
    }

    /// Adds the impersonation header to a request.
    pub(super) fn set_header(&self, request: request::Builder) -> request::Builder {
        request.header(USER, &self.user)
    }
}

impl fmt::Debug for Impersonated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Impersonated").field(&self.user).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_become_a_user() {
        assert_eq!(
            Impersonated::new("shop", "deployer").unwrap().user,
            "system:serviceaccount:shop:deployer"
        );
        for (namespace, name) in [
            ("shop", ""),
            ("", "deployer"),
            ("shop", "a:b"),
            ("shop:other", "deployer"),
            ("shop.other", "deployer"),
            ("shop", "Deployer"),
            ("shop", "a\r\nX: y"),
        ] {
            let error = Impersonated::new(namespace, name).unwrap_err();
            assert!(matches!(error, MemberError::Account { .. }), "{error}");
        }
    }
}
