//! The finalizers that the API server sets itself.

/// Keeps an owner until its dependents are deleted.
pub(crate) const FOREGROUND: &str = "foregroundDeletion";
/// Keeps an owner until its dependents no longer name it.
pub(crate) const ORPHAN: &str = "orphan";
/// Keeps a CustomResourceDefinition until its custom resources are deleted.
pub(crate) const CLEANUP: &str = "customresourcecleanup.apiextensions.k8s.io";
