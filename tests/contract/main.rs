//! The contract of `starling.dev/v1alpha1` for users: with the real `kubectl`, a real kube-apiserver, and the running
//! program.

mod conditions;
mod deployment;
mod fields;
mod generated;
mod guides;
mod kinds;
mod kubectl;
mod operators;
mod refusal_cases;
mod refusals;
mod running;
mod secrets;
mod server;
mod unreadable;
