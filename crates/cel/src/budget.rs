//! The budget of the evaluation that runs on this thread.

use std::cell::RefCell;
use std::fmt;
use std::time::{Duration, Instant};

use kube_cel::cel::ExecutionError;

use crate::MAX_VALUE;

/// How many charges pass between two readings of the clock.
const CHARGES_PER_READING: u32 = 256;

/// The limits of one evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// The maximum cost, in units.
    pub cost: u64,
    /// The maximum time. The cost ends almost every evaluation earlier; the time is for a machine that is busy.
    pub time: Duration,
}

impl Default for Budget {
    /// The limits for an expression that a user writes. Kubernetes allows 10,000,000 units for all expressions of one
    /// request (`RuntimeCELCostBudget`); half of it takes less than a second here.
    fn default() -> Self {
        Self {
            cost: 5_000_000,
            time: Duration::from_secs(5),
        }
    }
}

/// The limit that ended an evaluation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// The evaluation costs more than this many units.
    Cost(u64),
    /// The evaluation takes longer than this.
    Time(Duration),
    /// A value would be larger than [`MAX_VALUE`].
    Size,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cost(units) => write!(f, "the expression costs more than {units} units"),
            Self::Time(time) => write!(f, "the expression takes longer than {time:?}"),
            Self::Size => write!(
                f,
                "the expression makes a value that is larger than {MAX_VALUE} units of cost"
            ),
        }
    }
}

struct Meter {
    budget: Budget,
    left: u64,
    ends_at: Instant,
    charges: u32,
    exceeded: Option<Limit>,
}

thread_local! {
    static METER: RefCell<Option<Meter>> = const { RefCell::new(None) };
}

/// Restores the meter of an outer evaluation, also after a panic.
struct Restore(Option<Meter>);

impl Drop for Restore {
    fn drop(&mut self) {
        METER.set(self.0.take());
    }
}

/// Runs an evaluation on a budget. Returns the limit that the evaluation reached, if there is one, and its cost.
pub(crate) fn within<T>(budget: Budget, evaluation: impl FnOnce() -> T) -> (T, Option<Limit>, u64) {
    let meter = Meter {
        budget,
        left: budget.cost,
        ends_at: Instant::now() + budget.time,
        charges: 0,
        exceeded: None,
    };
    let _restore = Restore(METER.replace(Some(meter)));
    let result = evaluation();
    METER.with_borrow(|meter| match meter {
        Some(meter) => (result, meter.exceeded, budget.cost - meter.left),
        None => (result, None, 0),
    })
}

/// Charges units to the current evaluation. Without one there is no budget.
pub(crate) fn charge(units: u64) -> Result<(), ExecutionError> {
    METER.with_borrow_mut(|meter| meter.as_mut().map_or(Ok(()), |meter| meter.charge(units)))
}

/// Charges a value that was made or is going to be made.
pub(crate) fn charge_value(size: u64) -> Result<(), ExecutionError> {
    METER.with_borrow_mut(|meter| {
        let Some(meter) = meter.as_mut() else {
            return Ok(());
        };
        if size > MAX_VALUE {
            meter.exceeded.get_or_insert(Limit::Size);
        }
        meter.charge(size)
    })
}

impl Meter {
    fn charge(&mut self, units: u64) -> Result<(), ExecutionError> {
        self.charges = self.charges.wrapping_add(1);
        if self.exceeded.is_none() {
            self.exceeded = self.limit(units);
        }
        match self.exceeded {
            Some(limit) => Err(ExecutionError::function_error("cost", limit)),
            None => {
                self.left -= units;
                Ok(())
            }
        }
    }

    fn limit(&self, units: u64) -> Option<Limit> {
        if units > self.left {
            return Some(Limit::Cost(self.budget.cost));
        }
        let late = self.charges.is_multiple_of(CHARGES_PER_READING) && Instant::now() > self.ends_at;
        late.then_some(Limit::Time(self.budget.time))
    }
}
