//! The authorization mode of a server.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// How a server decides whether a user may send a request, as `--authorization-mode` of kube-apiserver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AuthorizationMode {
    /// Every user with a valid token may do everything. Clusters have no default roles, which keeps them small.
    #[default]
    AlwaysAllow,
    /// Roles and bindings decide.
    Rbac,
}

/// The text names no authorization mode.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("no authorization mode {0:?}; give RBAC or AlwaysAllow")]
pub struct UnknownAuthorizationMode(String);

impl fmt::Display for AuthorizationMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AlwaysAllow => "AlwaysAllow",
            Self::Rbac => "RBAC",
        })
    }
}

impl FromStr for AuthorizationMode {
    type Err = UnknownAuthorizationMode;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        [Self::AlwaysAllow, Self::Rbac]
            .into_iter()
            .find(|mode| mode.to_string() == text)
            .ok_or_else(|| UnknownAuthorizationMode(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_read_as_kube_apiserver_names_them() {
        assert_eq!("RBAC".parse(), Ok(AuthorizationMode::Rbac));
        assert_eq!("AlwaysAllow".parse(), Ok(AuthorizationMode::AlwaysAllow));
        let error = "rbac".parse::<AuthorizationMode>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "no authorization mode \"rbac\"; give RBAC or AlwaysAllow"
        );
    }
}
