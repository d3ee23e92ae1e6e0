//! Shared test helpers: git repositories, faults between a controller and a cluster, waiting.
//!
//! - [`GitRepo`]: a repository in a temporary directory, without the `git` program.
//! - [`FaultProxy`]: a proxy between a client and one API server that delays, refuses, drops or corrupts requests by
//!   rules; a hook lets a test act exactly before or after a request takes effect.
//! - [`HostileServer`]: a TLS server that sends false, slow, oversized or malformed responses, as a script says.
//! - [`fleet::Fleet`]: a management cluster with members and the program under test, for end-to-end tests.
//! - [`SopsTools`]: real sops and age, to encrypt test files.
//! - [`canary::Canary`]: a secret value, and a search for it in any encoding.
//! - [`program`]: the program under test, rebuilt if it is out of date.
//! - [`wait::until`]: waits for a condition and reports the last state on a timeout.
//! - [`Process`] and [`Launch`]: a program under test that can be killed at any time.
//!
//! Control planes to test against come from `starling-controlplane`.

pub mod canary;
mod fault_proxy;
pub mod fleet;
mod git_repo;
mod hostile;
pub mod page;
mod program;
mod sops;
pub mod wait;

pub use fault_proxy::{
    Fault, FaultProxy, FaultProxyError, Hook, Match, RequestInfo, RuleHandle, Stage, Upstream,
};
pub use fleet::{Fleet, FleetOptions};
pub use git_repo::{Change, GitRepo, GitRepoError};
pub use hostile::{Greeting, HOSTILE_TOKEN, HostileServer, ReceivedRequest, Reply};
pub use program::program;
pub use sops::{AgeKey, SopsTools};
pub use starling_controlplane::{Launch, Process, ProcessError, Usage};
