//! Starling: one control cluster that keeps any number of Kubernetes clusters in step with git.
//!
//! The adapters `git`, `render`, `member`, `web` and `ledger` do things and do not know each other; `starling-core` decides;
//! `controller` observes, asks core, executes and reports; `cli` wires it all.

pub mod cli;
pub mod clock;
pub mod controller;
pub mod git;
pub mod ledger;
pub mod member;
pub mod render;
pub mod server;
pub mod web;

/// The text of an error and of all that is behind it, without saying anything twice.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let part = source.to_string();
        // Some libraries put their source's text into their own.
        if !text.ends_with(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        next = source.source();
    }
    text
}
