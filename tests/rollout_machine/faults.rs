//! What can go wrong at an effect.

use proptest::prelude::*;

/// What happens at one effect: a write to the ledger or to the management API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The process dies before it.
    Before,
    /// The process dies after it.
    After,
    /// It is done, and an error comes back.
    AnswerLost,
}

/// All of them.
pub(crate) const FAULTS: [Fault; 3] = [Fault::Before, Fault::After, Fault::AnswerLost];

pub(crate) fn fault() -> impl Strategy<Value = Fault> {
    prop::sample::select(&FAULTS[..])
}

/// Why a look did not come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interrupted {
    /// The process is dead, and with it what it knew.
    Crashed,
    /// An error came back.
    Failed,
}

/// Which effects go wrong, by their number since the beginning.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    /// Effects that were reached so far.
    reached: usize,
    armed: Option<(usize, Fault)>,
    /// Faults that happened.
    pub(crate) struck: usize,
}

impl Faults {
    /// One fault, at an effect by its number from the very first.
    pub(crate) fn at(effect: usize, fault: Fault) -> Self {
        Self {
            armed: Some((effect, fault)),
            ..Self::default()
        }
    }

    /// A fault some effects from now.
    pub(crate) fn arm(&mut self, from_now: usize, fault: Fault) {
        self.armed = Some((self.reached + from_now, fault));
    }

    /// What was armed and did not happen does not happen any more.
    pub(crate) fn disarm(&mut self) {
        self.armed = None;
    }

    /// How many effects were reached.
    pub(crate) fn reached(&self) -> usize {
        self.reached
    }

    /// An effect is about to be done.
    pub(crate) fn enter(&mut self) -> Result<Passage, Interrupted> {
        let strikes = self.armed.take_if(|(at, _)| *at == self.reached);
        self.reached += 1;
        self.struck += usize::from(strikes.is_some());
        match strikes.map(|(_, fault)| fault) {
            Some(Fault::Before) => Err(Interrupted::Crashed),
            other => Ok(Passage(other)),
        }
    }
}

/// An effect that is being done.
#[must_use]
pub(crate) struct Passage(Option<Fault>);

impl Passage {
    /// It was done.
    pub(crate) fn leave(self) -> Result<(), Interrupted> {
        match self.0 {
            Some(Fault::After) => Err(Interrupted::Crashed),
            Some(Fault::AnswerLost) => Err(Interrupted::Failed),
            Some(Fault::Before) | None => Ok(()),
        }
    }
}
