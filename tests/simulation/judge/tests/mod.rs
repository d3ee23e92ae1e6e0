//! Histories that the judge has to accept, and histories that it has to reject.

mod bad;
mod fleet;
mod good;
mod real;
mod script;
mod steered;
mod tamper;

use std::collections::BTreeSet;

use super::{History, Rule, judge};

/// The rules that a history breaks, and the words about it.
fn broken(history: &History) -> (BTreeSet<Rule>, String) {
    let violations = judge(history);
    let words: Vec<String> = violations.iter().map(ToString::to_string).collect();
    let rules = violations.iter().map(|violation| violation.rule).collect();
    (rules, words.join("\n"))
}
