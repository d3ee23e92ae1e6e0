//! Histories that the judge has to accept, and histories that the judge has to reject.

mod accepted;
mod fleet;
mod recorded;
mod rejected;
mod removals;
mod script;
mod staged;
mod tamper;

use std::collections::BTreeSet;

use super::{History, Rule, judge};

/// Returns the rules that a history breaks, and the messages of the violations.
fn broken(history: &History) -> (BTreeSet<Rule>, String) {
    let violations = judge(history);
    let message: Vec<String> = violations.iter().map(ToString::to_string).collect();
    let rules = violations.iter().map(|violation| violation.rule).collect();
    (rules, message.join("\n"))
}
