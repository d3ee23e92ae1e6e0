//! Properties of the rollout planner: over random fleets, and over random histories of one fleet.

// clippy.toml lets tests unwrap, but does not count the functions that tests share.
#![allow(clippy::unwrap_used)]

mod arbitrary;

use proptest::prelude::*;
use starling_core::plan::check::check;
use starling_core::plan::plan;

use arbitrary::input;

fn config(cases: u32) -> ProptestConfig {
    ProptestConfig {
        cases,
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config(256))]

    #[test]
    fn every_plan_passes_the_checker(input in input()) {
        let plan = plan(&input);
        prop_assert_eq!(check(&input, &plan), Ok(()), "{:#?}", plan);
    }
}
