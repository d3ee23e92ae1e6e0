//! Histories that the judge has to accept, and histories that the judge has to reject.

mod accepted;
mod approvals;
mod budgets;
mod contents;
mod deletions;
mod fleet;
mod planned;
mod recorded;
mod rejected;
mod removals;
mod restores;
mod script;
mod staged;
mod stopped;
mod tamper;

use std::collections::{BTreeMap, BTreeSet};

use self::script::Script;
use super::{History, Rule, judge};

/// Returns the rules that a history breaks, and the messages of the violations.
fn broken(history: &History) -> (BTreeSet<Rule>, String) {
    let violations = judge(history);
    let message: Vec<String> = violations.iter().map(ToString::to_string).collect();
    let rules = violations.iter().map(|violation| violation.rule).collect();
    (rules, message.join("\n"))
}

/// A history by its name, and the one rule that it breaks.
type BadCase = (&'static str, Rule, fn() -> Script);

/// Without this test a rule could be missing in the list, or in these tests, unnoticed.
#[test]
fn every_rule_rejects_something() {
    let mut counts: BTreeMap<Rule, usize> = Rule::ALL.iter().map(|rule| (*rule, 0)).collect();
    let mine: [&[BadCase]; 8] = [
        &approvals::BAD,
        &budgets::BAD,
        &contents::BAD,
        &deletions::BAD,
        &planned::BAD,
        &removals::BAD,
        &restores::BAD,
        &stopped::BAD,
    ];
    for (_, rule, _) in rejected::CASES.into_iter().chain(mine).flatten() {
        *counts.entry(*rule).or_default() += 1;
    }
    let least = |rule: &Rule| if Rule::OF_DELETIONS.contains(rule) { 3 } else { 1 };
    let few: Vec<_> = counts
        .iter()
        .filter(|(rule, count)| **count < least(rule))
        .collect();
    assert!(few.is_empty(), "{few:?}");
}

/// A history that breaks no rule, by its name.
type GoodCase = (&'static str, fn() -> Script);

fn assert_rejected(cases: &[BadCase]) {
    let mut failures = Vec::new();
    for (name, rule, script) in cases {
        let (rules, message) = broken(&script().end());
        if rules.iter().ne([rule]) {
            failures.push(format!(
                "{name}: expected {rule:?} alone, found {rules:?}\n{message}"
            ));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}

fn assert_accepted(cases: &[GoodCase]) {
    let mut failures = Vec::new();
    for (name, script) in cases {
        let (rules, message) = broken(&script().end());
        if !rules.is_empty() {
            failures.push(format!("{name}:\n{message}"));
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}
