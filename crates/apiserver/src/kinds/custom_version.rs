//! The versions of custom resources.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::crd::{self, Definition};
use crate::status::Cause;

/// The CustomResourceDefinition that a resource comes from.
#[derive(Debug)]
pub struct Served {
    /// The name of the CustomResourceDefinition.
    pub name: Box<str>,
    /// The UID of the CustomResourceDefinition, which changes if it is recreated.
    pub uid: Box<str>,
}

/// The compiled definitions, by the digest of their spec: clusters with equal definitions share one.
static COMPILED: LazyLock<Mutex<HashMap<[u8; 32], Weak<Definition>>>> = LazyLock::new(Mutex::default);

/// Compiles a stored definition, or returns the shared result for an equal one.
pub(super) fn compiled(definition: &Value) -> Result<Arc<Definition>, Cause> {
    let spec = serde_json::to_vec(&definition["spec"]).unwrap_or_default();
    let digest: [u8; 32] = Sha256::digest(&spec).into();
    let known = || COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(shared) = known().get(&digest).and_then(Weak::upgrade) {
        return Ok(shared);
    }
    let compiled = Arc::new(Definition::compile(definition)?);
    let mut known = known();
    known.retain(|_, shared| shared.strong_count() > 0);
    known.insert(digest, Arc::downgrade(&compiled));
    Ok(compiled)
}

/// A version of a definition.
#[derive(Clone)]
pub struct CustomVersion {
    definition: Arc<Definition>,
    place: usize,
}

impl CustomVersion {
    /// Returns all versions of a definition, served or not.
    pub(super) fn all(definition: &Arc<Definition>) -> Vec<Self> {
        (0..definition.versions().len())
            .map(|place| Self {
                definition: Arc::clone(definition),
                place,
            })
            .collect()
    }

    /// Returns the served versions of a definition, the preferred one first.
    pub(super) fn served(definition: &Arc<Definition>) -> Vec<Self> {
        let mut served = Self::all(definition);
        served.retain(|version| version.get().is_served());
        served.sort_by_key(|version| std::cmp::Reverse(precedence(version.get().name())));
        served
    }

    /// Returns the definition that the version belongs to.
    pub(super) fn definition(&self) -> &Definition {
        &self.definition
    }

    /// Returns the compiled version.
    ///
    /// # Panics
    /// Never: `all` only creates indexes of existing versions.
    pub fn get(&self) -> &crd::Version {
        &self.definition.versions()[self.place]
    }

    /// Returns the deprecation warning of the version; the default text also names the version to use instead.
    pub fn deprecation_warning(&self) -> Option<String> {
        let this = self.get();
        let warning = this.deprecation_warning()?;
        let kind = &self.definition.names().kind;
        let usual = format!("{} {kind} is deprecated", this.api_version());
        let better = self
            .definition
            .versions()
            .iter()
            .filter(|version| version.is_served() && version.deprecation_warning().is_none())
            .max_by_key(|version| precedence(version.name()))
            .filter(|version| precedence(version.name()) > precedence(this.name()));
        Some(match better {
            Some(better) if warning == usual => format!("{usual}; use {} {kind}", better.api_version()),
            _ => warning.to_owned(),
        })
    }
}

/// Returns the precedence of a version: stable before beta before alpha, then by number; other names come last.
pub(crate) fn precedence(name: &str) -> (u8, u64, u64, std::cmp::Reverse<String>) {
    let none = (0, 0, 0, std::cmp::Reverse(name.to_owned()));
    let Some(rest) = name.strip_prefix('v') else {
        return none;
    };
    let digits = rest
        .find(|char: char| !char.is_ascii_digit())
        .unwrap_or(rest.len());
    let Ok(major) = rest[..digits].parse() else {
        return none;
    };
    let (stage, minor) = match &rest[digits..] {
        "" => (3, ""),
        tail if tail.starts_with("beta") => (2, &tail[4..]),
        tail if tail.starts_with("alpha") => (1, &tail[5..]),
        _ => return none,
    };
    match minor {
        "" if stage == 3 => (3, major, 0, std::cmp::Reverse(String::new())),
        minor => match minor.parse() {
            Ok(minor) => (stage, major, minor, std::cmp::Reverse(String::new())),
            Err(_) => none,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_in_the_order_of_kubernetes() {
        let mut names = [
            "v1alpha1",
            "foo",
            "v2",
            "v10beta3",
            "v1",
            "v11alpha2",
            "v10",
            "v3beta1",
            "bar",
        ];
        names.sort_by_key(|name| std::cmp::Reverse(precedence(name)));
        assert_eq!(
            names,
            [
                "v10",
                "v2",
                "v1",
                "v10beta3",
                "v3beta1",
                "v11alpha2",
                "v1alpha1",
                "bar",
                "foo"
            ]
        );
    }
}
