//! Held deletions in the words of status and of previews, so that both say the same.

use starling_api::DeletionHold;

use crate::apply::HeldDeletions;

/// Returns held deletions for status.
#[must_use]
pub fn of(deletions: &HeldDeletions) -> DeletionHold {
    let narrow = |count| u32::try_from(count).unwrap_or(u32::MAX);
    let excess = deletions.excess.as_ref();
    DeletionHold {
        digest: deletions.digest.clone(),
        deletions: narrow(deletions.deletions),
        of: narrow(deletions.of),
        budget: excess.map(|excess| excess.budget.clone()).unwrap_or_default(),
        until: excess
            .and_then(|excess| excess.until)
            .map(|until| until.to_string())
            .unwrap_or_default(),
        objects: deletions.objects.iter().map(ToString::to_string).collect(),
    }
}

/// Returns the reason of the condition.
#[must_use]
pub fn reason(hold: &DeletionHold) -> &'static str {
    match hold.until.as_str() {
        "" => "ApprovalNeeded",
        _ => "BudgetExhausted",
    }
}

/// Returns the message, with the command that approves. `arguments` are those of `starling approve-deletions` that name
/// the group or the Sync.
#[must_use]
pub fn message(arguments: &str, hold: &DeletionHold) -> String {
    let DeletionHold {
        digest,
        deletions,
        of: total,
        budget,
        until,
        objects: _,
    } = hold;
    let why = match (budget.as_str(), until.as_str()) {
        ("", _) => {
            format!("{deletions} of {total} objects are no longer in git and would be deleted; to approve")
        }
        (budget, "") => format!("{deletions} of {total} objects would be deleted: {budget}; to approve"),
        (budget, until) => format!(
            "{deletions} of {total} objects would be deleted: {budget}; continues at {until}. To approve now"
        ),
    };
    format!("{why}: starling approve-deletions {arguments} --digest {digest} --reason \"…\"")
}

/// Returns the names of the objects, as many as are known, and how many more there are.
#[must_use]
pub fn objects(hold: &DeletionHold) -> String {
    let mut objects = hold.objects.clone();
    let total = usize::try_from(hold.deletions).unwrap_or(usize::MAX);
    if let Some(more) = total.checked_sub(objects.len()).filter(|more| *more > 0) {
        objects.push(format!("{more} more"));
    }
    objects.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_names_its_end_and_the_command_that_approves() {
        let hold = |budget: &str, until: &str| DeletionHold {
            digest: "sha256:1".into(),
            deletions: 3,
            of: 20,
            budget: budget.into(),
            until: until.into(),
            objects: vec!["Namespace shop".into()],
        };
        let command = "starling approve-deletions group shop -n fleet --digest sha256:1 --reason \"…\"";
        for (hold, expected, is) in [
            (
                hold("", ""),
                "are no longer in git and would be deleted; to approve: ",
                "ApprovalNeeded",
            ),
            (
                hold("the Sync allows 2", ""),
                "the Sync allows 2; to approve: ",
                "ApprovalNeeded",
            ),
            (
                hold("the Sync allows 2", "12:00"),
                "continues at 12:00. To approve now: ",
                "BudgetExhausted",
            ),
        ] {
            let message = message("group shop -n fleet", &hold);
            assert!(message.ends_with(&format!("{expected}{command}")), "{message}");
            assert_eq!((reason(&hold), &*objects(&hold)), (is, "Namespace shop, 2 more"));
        }
    }
}
