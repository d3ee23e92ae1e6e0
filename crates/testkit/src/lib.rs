//! What the tests of Starling share: git repositories, faults between a controller and a cluster, waiting.
//!
//! - [`GitRepo`]: a repository made in a temporary folder, without the `git` program.
//! - [`FaultProxy`]: stands between a client and one API server and delays, refuses, drops or garbles what a
//!   rule names; a hook lets a test act at the exact moment before or after a request takes effect.
//! - [`fleet::Fleet`]: a management cluster with members and the program under test, for end-to-end tests.
//! - [`canary::Canary`]: a value that must not be seen, and finding it in any encoding.
//! - [`wait::until`]: waits for a condition and says what was missing.
//! - [`Process`] and [`Launch`]: a program under test that can be killed at any moment.
//!
//! Control planes to test against come from `starling-controlplane`.

pub mod canary;
mod fault_proxy;
pub mod fleet;
mod git_repo;
pub mod wait;

pub use fault_proxy::{
    Fault, FaultProxy, FaultProxyError, Hook, Match, RequestInfo, RuleHandle, Stage, Upstream,
};
pub use fleet::{Fleet, FleetOptions};
pub use git_repo::{Change, GitRepo, GitRepoError};
pub use starling_controlplane::{Launch, Process, ProcessError, Usage};
