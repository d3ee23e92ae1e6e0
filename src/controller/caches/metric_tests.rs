//! The metric tests of each SyncGroup, each of which is checked once.
//!
//! A check compiles an expression and evaluates it on an example. It costs up to the limit of an evaluation, too much
//! for every pass of a group.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use starling_api::{RolloutStrategy, Stage};
use starling_core::gate::metric::TestError;
use starling_expression::metric;

use crate::controller::expressions;
use crate::controller::keyed::Keyed;
use crate::controller::object_key::ObjectKey;

/// The result of each check, by the text of the test.
pub(in crate::controller) type Checked = BTreeMap<String, Result<(), TestError>>;

/// The metric tests of each SyncGroup.
pub type MetricTests = Keyed<Arc<Checked>>;

/// Returns the results for the tests of a group. Only texts that the group did not have before are checked.
pub(in crate::controller) async fn check(
    cache: &MetricTests,
    group: &ObjectKey,
    strategy: &RolloutStrategy,
) -> Arc<Checked> {
    let known = cache.get(group).unwrap_or_default();
    let mut checked = Checked::new();
    for test in tests(strategy) {
        let result = match known.get(&test) {
            Some(result) => Some(result.clone()),
            None => check_one(&group.namespace, test.clone()).await,
        };
        checked.extend(result.map(|result| (test, result)));
    }
    if checked == *known {
        return known;
    }
    let checked = Arc::new(checked);
    cache.set(group, checked.clone());
    checked
}

fn tests(strategy: &RolloutStrategy) -> BTreeSet<String> {
    let tasks = |stage: &Stage| {
        let tasks = stage.before_stage_tasks.iter().chain(&stage.after_stage_tasks);
        let metrics = tasks.filter_map(|task| task.metric.as_ref());
        metrics.map(|metric| metric.test.clone()).collect::<Vec<_>>()
    };
    strategy.stages.iter().flat_map(tasks).collect()
}

/// Returns the result of a check; `None`: not checked, because the process ends.
async fn check_one(namespace: &str, test: String) -> Option<Result<(), TestError>> {
    expressions::evaluate(namespace, move || metric::check(&test))
        .await
        .ok()
}
