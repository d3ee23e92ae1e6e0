//! The tables that several modules treat specially.

/// The table of Namespaces.
pub(crate) const NAMESPACES: &str = "namespaces";
/// The table of CustomResourceDefinitions.
pub(crate) const DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";
