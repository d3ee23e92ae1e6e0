//! The contract of `starling.dev/v1alpha1` as users meet it: with the real `kubectl`, on a real kube-apiserver, and
//! with the program running on it.

mod conditions;
mod deployment;
mod fields;
mod generated;
mod guides;
mod kinds;
mod kubectl;
mod people;
mod refusals;
mod refused;
mod running;
mod secrets;
mod server;
mod unreadable;

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_starling");
