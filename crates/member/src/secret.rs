//! Secret strings that must not be printed.

use std::fmt;

use jiff::Timestamp;

/// A string that must not be printed.
#[derive(Clone)]
pub(super) struct Hidden(pub(super) String);

/// A token and its expiry. Debug shows the expiry only.
#[derive(Clone)]
pub struct IssuedToken {
    token: Hidden,
    expires_at: Timestamp,
}

impl IssuedToken {
    /// Creates a token that expires at `expires_at`.
    #[must_use]
    pub fn new(token: String, expires_at: Timestamp) -> Self {
        Self {
            token: Hidden(token),
            expires_at,
        }
    }

    /// The expiry, by the clock of the member.
    #[must_use]
    pub fn expires_at(&self) -> Timestamp {
        self.expires_at
    }

    pub(super) fn reveal(&self) -> &str {
        &self.token.0
    }
}

impl fmt::Debug for IssuedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IssuedToken")
            .field("expires_at", &self.expires_at)
            .finish_non_exhaustive()
    }
}
