//! The conflicts of a server-side apply.

use std::fmt;

use super::entries::Manager;
use crate::fields::{FieldSet, Path};

/// A field that another manager owns and that an apply would change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// The owner of the field.
    pub manager: Manager,
    /// The path of the field.
    pub path: Path,
}

/// All conflicts of an apply, at least one; sorted by manager, then in the order of [`FieldSet::each`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflicts(pub Vec<Conflict>);

impl Conflict {
    /// Returns the message of the conflict's cause, whose field is the path and whose reason is
    /// `FieldManagerConflict`.
    pub fn cause(&self) -> String {
        format!("conflict with {}", self.manager.describe())
    }
}

impl Conflicts {
    pub(super) fn new(mut sets: Vec<(Manager, FieldSet)>) -> Self {
        sets.sort_by_cached_key(|(manager, _)| manager.identifier());
        let mut conflicts = Vec::new();
        for (manager, set) in sets {
            set.each(|path| {
                conflicts.push(Conflict {
                    manager: manager.clone(),
                    path: Path(path.to_vec()),
                });
            });
        }
        Self(conflicts)
    }

    pub(super) fn fields(&self) -> FieldSet {
        self.0.iter().map(|conflict| conflict.path.clone()).collect()
    }
}

/// Formats the message of the response.
impl fmt::Display for Conflicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let [only] = self.0.as_slice() {
            return write!(f, "Apply failed with 1 conflict: {}: {}", only.cause(), only.path);
        }
        write!(f, "Apply failed with {} conflicts:", self.0.len())?;
        let mut between = " ";
        for of_one in self.0.chunk_by(|left, right| left.manager == right.manager) {
            for (place, conflict) in of_one.iter().enumerate() {
                if place == 0 {
                    write!(f, "{between}conflicts with {}:", conflict.manager.describe())?;
                }
                write!(f, "\n- {}", conflict.path)?;
            }
            between = "\n";
        }
        Ok(())
    }
}
