//! Connections to servers, within limits, and the clock.
//!
//! The adapters reach git servers, member clusters and the servers of gates with the same code. What is particular to
//! one of them (git's protocol, the connection pool of a member, the network of a simulation) stays in its adapter.
//!
//! - [`dial`]: opens connections; refuses addresses that are never connected to.
//! - [`rules`]: the lists of an operator.
//! - [`tls`]: the trusted certificates, and the client certificate.
//! - [`exchange`]: one request on its own connection; reads bodies within limits.
//! - [`tenant_pool`]: permits of calls, of which one tenant has at most half.
//! - [`web`]: one request to a server that a user names.
//! - [`clock`]: the time, as a parameter.
//! - [`chain`]: the text of an error without credentials.

pub mod clock;
pub mod dial;
mod errors;
pub mod exchange;
pub mod rules;
pub mod tenant_pool;
pub mod tls;
pub mod web;

pub use errors::chain;
