//! The limits that an administrator puts on the rights of those who write SyncGroups and Syncs.

use starling_core::account::AccountRules;
use starling_core::controlled_label::LabelRules;
use starling_core::gate::job::JobAccounts;

/// The limits of the rights of users.
#[derive(Clone, Debug, Default)]
pub struct Rights {
    /// The ServiceAccounts that Jobs of gates may run as; none: no Job gates.
    pub job_accounts: JobAccounts,
    /// The labels that grant rights and that manifests may carry.
    pub labels: LabelRules,
    /// The ServiceAccounts of Syncs that name none.
    pub accounts: AccountRules,
    /// Checks whether the admission policies are in force that verify who creates approvals and operator actions.
    pub check_policies: bool,
}
