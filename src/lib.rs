//! Starling: one control cluster that keeps any number of Kubernetes clusters in step with git.

pub mod git;
pub mod ledger;
pub mod member;
pub mod render;
