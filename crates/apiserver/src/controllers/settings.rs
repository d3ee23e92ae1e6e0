//! The settings of a cluster's controllers.

use std::sync::Arc;

use jiff::SignedDuration;

use super::enabled::Controllers;
use crate::store::Stored;

/// When a workload becomes healthy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Health {
    /// The workload becomes healthy this long after its last change.
    After(SignedDuration),
    /// The workload never becomes healthy; its rollout stays in progress.
    Never,
    /// No controller manages the workload; its status stays as clients write it.
    Unattended,
}

/// The settings of a cluster's controllers.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The certificate authority that the controllers publish in every namespace, as PEM; all clusters of a server
    /// share it.
    pub ca: Arc<str>,
    /// The controllers that run; the others leave the objects as clients write them.
    pub controllers: Controllers,
    /// When workloads become healthy that no rule matches.
    pub health: Health,
    /// Exceptions for some objects; the last rule that matches an object applies.
    pub rules: Vec<HealthRule>,
}

/// When the matching workloads become healthy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthRule {
    /// The kind; empty matches every kind.
    pub kind: String,
    /// The namespace; empty matches every namespace.
    pub namespace: String,
    /// The name; empty matches every name.
    pub name: String,
    /// When the matching workloads become healthy.
    pub health: Health,
}

impl Settings {
    /// Returns settings under which every workload is healthy at once.
    pub fn new(ca: Arc<str>) -> Self {
        Self {
            ca,
            controllers: Controllers::all(),
            health: Health::After(SignedDuration::ZERO),
            rules: Vec::new(),
        }
    }

    pub(super) fn health_of(&self, kind: &str, stored: &Stored) -> Health {
        let fits = |pattern: &str, text: &str| pattern.is_empty() || pattern == text;
        self.rules
            .iter()
            .rev()
            .find(|rule| {
                fits(&rule.kind, kind)
                    && fits(&rule.namespace, &stored.head.namespace)
                    && fits(&rule.name, &stored.head.name)
            })
            .map_or(self.health, |rule| rule.health)
    }
}
