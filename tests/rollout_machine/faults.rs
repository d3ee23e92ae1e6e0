//! The faults of an effect.

use std::sync::{Arc, Mutex, MutexGuard};

use proptest::prelude::*;

/// A fault of one effect, which is a call of the ledger or of the management API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The process dies before it.
    Before,
    /// The process dies after it.
    After,
    /// The effect is done, and the call returns an error.
    ResponseLost,
    /// The effect is not done, and the call returns an error.
    Refused,
}

/// All faults.
pub(crate) const FAULTS: [Fault; 4] = [Fault::Before, Fault::After, Fault::ResponseLost, Fault::Refused];

pub(crate) fn fault() -> impl Strategy<Value = Fault> {
    prop::sample::select(&FAULTS[..])
}

/// Why a pass was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interrupted {
    /// The process died, and lost its memory.
    Crashed,
    /// A call returned an error.
    Failed,
}

/// The faults, by the number of the effect since the start. The ledger and the management API share one count.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// The number of effects so far.
    reached: usize,
    armed: Option<(usize, Fault)>,
    injected: usize,
    /// Whether the process has died. The interpreter continues after some errors; its further calls have no effect.
    is_dead: bool,
}

impl Faults {
    /// One fault, at the effect with this number since the start.
    pub(crate) fn at(effect: usize, fault: Fault) -> Self {
        let faults = Self::default();
        faults.arm(effect, fault);
        faults
    }

    /// Injects a fault some effects from now.
    pub(crate) fn arm(&self, from_now: usize, fault: Fault) {
        let mut state = self.state();
        state.armed = Some((state.reached + from_now, fault));
    }

    /// Removes a fault that has not happened yet.
    pub(crate) fn disarm(&self) {
        self.state().armed = None;
    }

    /// The number of effects so far.
    pub(crate) fn reached(&self) -> usize {
        self.state().reached
    }

    /// The number of injected faults.
    pub(crate) fn injected(&self) -> usize {
        self.state().injected
    }

    /// Whether the process has died.
    pub(crate) fn is_dead(&self) -> bool {
        self.state().is_dead
    }

    /// A new process starts.
    pub(crate) fn revive(&self) {
        self.state().is_dead = false;
    }

    /// Called before an effect.
    pub(crate) fn enter(&self) -> Result<Passage, Interrupted> {
        let mut state = self.state();
        if state.is_dead {
            return Err(Interrupted::Crashed);
        }
        let reached = state.reached;
        let injected_fault = state.armed.take_if(|(at, _)| *at == reached);
        state.reached += 1;
        state.injected += usize::from(injected_fault.is_some());
        match injected_fault.map(|(_, fault)| fault) {
            Some(Fault::Before) => {
                state.is_dead = true;
                Err(Interrupted::Crashed)
            }
            Some(Fault::Refused) => Err(Interrupted::Failed),
            fault @ (Some(Fault::After | Fault::ResponseLost) | None) => Ok(Passage {
                faults: self.clone(),
                fault,
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }
}

/// An effect that is being done.
#[must_use]
pub(crate) struct Passage {
    faults: Faults,
    fault: Option<Fault>,
}

impl Passage {
    /// Called after the effect.
    pub(crate) fn leave(self) -> Result<(), Interrupted> {
        match self.fault {
            Some(Fault::After) => {
                self.faults.state().is_dead = true;
                Err(Interrupted::Crashed)
            }
            Some(Fault::ResponseLost) => Err(Interrupted::Failed),
            Some(Fault::Before | Fault::Refused) | None => Ok(()),
        }
    }
}
