//! The limits of a budget, of each scope.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use starling_api::{DeletionBudget, IntOrPercent};

/// A group without a limit of its own may always lose this many objects: a small application is quickly recreated, and
/// people delete one every day.
const LEAST_OBJECTS: usize = 100;
/// The default share of the objects of a group.
const DEFAULT_OBJECTS: IntOrPercent = IntOrPercent::Percent(50);

/// A limit of a number of objects or clusters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// No limit.
    None,
    /// This number or share.
    At(IntOrPercent),
    /// This share, but at least this number.
    AtLeast(IntOrPercent, usize),
}

impl Limit {
    pub(super) fn of(self, total: usize) -> Option<usize> {
        match self {
            Self::None => None,
            Self::At(limit) => Some(limit.of_rounded_down(total)),
            Self::AtLeast(limit, least) => Some(limit.of_rounded_down(total).max(least)),
        }
    }
}

/// The owner of a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BudgetScope {
    /// One Sync.
    Sync,
    /// All Syncs of a group.
    SyncGroup,
    /// All Syncs of the installation.
    Installation,
}

impl fmt::Display for BudgetScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sync => "the Sync",
            Self::SyncGroup => "the SyncGroup",
            Self::Installation => "the installation (--deletion-budget)",
        })
    }
}

/// The limits of one scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetLimits {
    /// The owner of the budget.
    pub scope: BudgetScope,
    /// The limit of objects.
    pub objects: Limit,
    /// The limit of clusters.
    pub clusters: Limit,
    /// The length of the window.
    pub window: Duration,
}

impl BudgetLimits {
    /// Returns the limits of a Sync. The default has none: a Sync that is deleted loses all of its objects, and a prune
    /// of more than half of them requires an approval anyway ([`crate::apply::budget`]).
    #[must_use]
    pub fn of_sync(budget: Option<DeletionBudget>) -> Self {
        Self::of(BudgetScope::Sync, budget, Limit::None)
    }

    /// Returns the limits of a group.
    #[must_use]
    pub fn of_group(budget: Option<DeletionBudget>) -> Self {
        let default = Limit::AtLeast(DEFAULT_OBJECTS, LEAST_OBJECTS);
        Self::of(BudgetScope::SyncGroup, budget, default)
    }

    fn of(scope: BudgetScope, budget: Option<DeletionBudget>, default: Limit) -> Self {
        let budget = budget.unwrap_or_default();
        Self {
            scope,
            objects: budget.objects.map_or(default, Limit::At),
            clusters: budget.clusters.map_or(Limit::None, Limit::At),
            window: if budget.window.is_zero() {
                // Of an object that is older than the rule: nothing would ever add up.
                DeletionBudget::default().window.as_std()
            } else {
                budget.window.as_std()
            },
        }
    }
}

/// A text that is not a budget of an installation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}; write numbers such as objects=500,clusters=20,window=1h")]
pub struct BudgetError {
    problem: String,
}

/// The limits of an installation, as `objects=500,clusters=20,window=1h`. Each is optional; one of objects and clusters
/// is required.
impl FromStr for BudgetLimits {
    type Err = BudgetError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let bad = |problem: String| BudgetError { problem };
        let mut limits = Self::of(BudgetScope::Installation, None, Limit::None);
        let mut seen: Vec<&str> = Vec::new();
        for part in text.split(',') {
            let (key, value) = part
                .split_once('=')
                .ok_or_else(|| bad(format!("{part:?} has no value")))?;
            if seen.contains(&key) {
                return Err(bad(format!("{key} is given twice")));
            }
            seen.push(key);
            let number = || {
                let number = value
                    .parse()
                    .map_err(|_| bad(format!("{key}={value} is no number")))?;
                Ok(Limit::At(IntOrPercent::Int(number)))
            };
            match key {
                "objects" => limits.objects = number()?,
                "clusters" => limits.clusters = number()?,
                "window" => {
                    let window: starling_api::Duration = value
                        .parse()
                        .map_err(|_| bad(format!("window={value} is no duration")))?;
                    if window.is_zero() {
                        return Err(bad("the window has no length".into()));
                    }
                    limits.window = window.as_std();
                }
                _ => return Err(bad(format!("{key:?} is unknown"))),
            }
        }
        if (limits.objects, limits.clusters) == (Limit::None, Limit::None) {
            return Err(bad("no limit of objects or clusters is given".into()));
        }
        Ok(limits)
    }
}
