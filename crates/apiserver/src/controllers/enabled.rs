//! Which controllers of a cluster run.

use std::collections::BTreeSet;
use std::str::FromStr;

use thiserror::Error;

use crate::state::Work;

/// A controller that a cluster can do without.
///
/// The controller of CustomResourceDefinitions is not among them: in Kubernetes, it is a part of the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Controller {
    /// Deletes what a deleted namespace holds, and then the namespace.
    Namespace,
    /// Creates the ServiceAccount `default` and the ConfigMap `kube-root-ca.crt` of each namespace.
    ServiceAccount,
    /// Fills the rules of aggregated ClusterRoles.
    ClusterRoleAggregation,
    /// Deletes objects whose owners are gone, and ends foreground and orphaning deletions.
    GarbageCollector,
    /// Reports workloads as healthy, removes Pods after their grace period, and deletes unused claims and volumes.
    Workloads,
}

impl Controller {
    /// All controllers, in the order of messages.
    pub const ALL: [Self; 5] = [
        Self::Namespace,
        Self::ServiceAccount,
        Self::ClusterRoleAggregation,
        Self::GarbageCollector,
        Self::Workloads,
    ];

    /// Returns the name that users write.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Namespace => "namespace",
            Self::ServiceAccount => "serviceaccount",
            Self::ClusterRoleAggregation => "clusterrole-aggregation",
            Self::GarbageCollector => "garbage-collector",
            Self::Workloads => "workloads",
        }
    }
}

/// The controllers that run in a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Controllers(BTreeSet<Controller>);

/// The text names no set of controllers.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ControllersError {
    /// There is no controller of this name.
    #[error("no controller {0:?}; give all, none, or a list of {names}", names = names())]
    Unknown(String),
    /// `all` and `none` stand alone.
    #[error("{0:?} cannot be combined with other controllers; give all, none, or a list of {names}", names = names())]
    Alone(String),
}

fn names() -> String {
    Controller::ALL.map(Controller::name).join(", ")
}

impl Controllers {
    /// Returns all controllers.
    pub fn all() -> Self {
        Controller::ALL.into_iter().collect()
    }

    /// Returns no controllers, as a kube-apiserver without a controller manager.
    pub const fn none() -> Self {
        Self(BTreeSet::new())
    }

    /// Returns whether a controller runs.
    pub fn runs(&self, controller: Controller) -> bool {
        self.0.contains(&controller)
    }

    /// Returns whether a controller runs that handles this key.
    pub(super) fn handle(&self, work: &Work) -> bool {
        match work {
            // The controller of namespaces reads in which of the two roles it acts.
            Work::Namespace(_) => self.runs(Controller::Namespace) || self.runs(Controller::ServiceAccount),
            Work::Aggregation => self.runs(Controller::ClusterRoleAggregation),
            Work::Definition(_) => true,
            Work::Owner { .. } | Work::Dependent { .. } => self.runs(Controller::GarbageCollector),
            Work::Expired { .. } | Work::Unused { .. } | Work::Workload { .. } => {
                self.runs(Controller::Workloads)
            }
        }
    }
}

impl Default for Controllers {
    fn default() -> Self {
        Self::all()
    }
}

impl FromIterator<Controller> for Controllers {
    fn from_iter<I: IntoIterator<Item = Controller>>(controllers: I) -> Self {
        Self(controllers.into_iter().collect())
    }
}

impl FromStr for Controllers {
    type Err = ControllersError;

    /// Reads `all`, `none`, or names that are separated by commas.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let given: Vec<&str> = text.split(',').map(str::trim).collect();
        match given.as_slice() {
            ["all"] => return Ok(Self::all()),
            ["none"] => return Ok(Self::none()),
            _ => {}
        }
        given
            .into_iter()
            .map(|name| {
                if matches!(name, "all" | "none") {
                    return Err(ControllersError::Alone(name.to_owned()));
                }
                Controller::ALL
                    .into_iter()
                    .find(|controller| controller.name() == name)
                    .ok_or_else(|| ControllersError::Unknown(name.to_owned()))
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_controllers_is_read_and_a_wrong_one_names_the_right_ones() {
        let read = |text: &str| text.parse::<Controllers>();
        assert_eq!(read("all"), Ok(Controllers::all()));
        assert_eq!(read("none"), Ok(Controllers::none()));
        assert_eq!(
            read("serviceaccount, namespace"),
            Ok([Controller::Namespace, Controller::ServiceAccount]
                .into_iter()
                .collect())
        );
        let every = "namespace,serviceaccount,clusterrole-aggregation,garbage-collector,workloads";
        assert_eq!(read(every), Ok(Controllers::all()));
        for (wrong, message) in [
            ("deployments", "no controller \"deployments\"; "),
            ("", "no controller \"\"; "),
            ("namespace,", "no controller \"\"; "),
            ("Namespace", "no controller \"Namespace\"; "),
            (
                "none,namespace",
                "\"none\" cannot be combined with other controllers; ",
            ),
            (
                "workloads,all",
                "\"all\" cannot be combined with other controllers; ",
            ),
        ] {
            let error = read(wrong).unwrap_err().to_string();
            assert_eq!(
                error,
                format!(
                    "{message}give all, none, or a list of namespace, serviceaccount, clusterrole-aggregation, garbage-collector, workloads"
                ),
                "{wrong}"
            );
        }
    }
}
