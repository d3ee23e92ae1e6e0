//! Marks on a member: what one client leaves, another client of the same member finds.

use starling_api::IDENTITY_PREFIX;
use tokio::time::Instant;

use super::attempt::Attempt;
use super::error::MemberError;
use super::transport::Member;

impl Member {
    /// Leaves a mark, as the user of the kubeconfig. `name` is unique for its writer.
    ///
    /// # Errors
    /// [`MemberError`]; the mark may exist.
    pub async fn leave_mark(&self, name: &str, text: &str, deadline: Instant) -> Result<(), MemberError> {
        let attempt = Attempt::until(deadline);
        self.as_kubeconfig_user()
            .write_mark(&format!("{IDENTITY_PREFIX}{name}"), text, &attempt)
            .await
    }

    /// Returns the text of a mark; `None`: the member has none.
    ///
    /// # Errors
    /// [`MemberError`].
    pub async fn read_mark(&self, name: &str, deadline: Instant) -> Result<Option<String>, MemberError> {
        let attempt = Attempt::until(deadline);
        self.as_kubeconfig_user()
            .mark(&format!("{IDENTITY_PREFIX}{name}"), &attempt)
            .await
    }

    /// Deletes a mark.
    ///
    /// # Errors
    /// [`MemberError`].
    pub async fn remove_mark(&self, name: &str, deadline: Instant) -> Result<(), MemberError> {
        let attempt = Attempt::until(deadline);
        self.as_kubeconfig_user()
            .delete_mark(&format!("{IDENTITY_PREFIX}{name}"), &attempt)
            .await
    }
}
