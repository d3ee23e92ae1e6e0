//! What a run takes away: an entry that leaves its groups, clusters that move between groups, policies that delete.
//!
//! The random stream is a separate one, so that the other runs stay the same.

use serde_json::{Value, json};
use starling_apiserver::random::Random;

use crate::script::MEMBERS;

/// A run with removals.
#[derive(Clone, Debug)]
pub(crate) struct Extras {
    /// Fields of the groups.
    pub(crate) group: Value,
    /// Fields of each entry.
    pub(crate) entry: Value,
    /// Whether the entry [`crate::content::EXTRA`] exists at the start.
    pub(crate) starts_with_entry: bool,
    /// Whether its folder has a definition and an instance of it.
    pub(crate) has_definition: bool,
    /// The members that have the namespace of the entry before Starling, with a Secret in it.
    pub(crate) made_before: Vec<usize>,
    /// Delay of an approval of deletions, in seconds.
    pub(crate) approval_delay: i64,
}

impl Extras {
    /// Returns the removals of a seed; half of the seeds have none.
    pub(crate) fn of(seed: u64) -> Option<Self> {
        let mut random = Random::named(seed, "extras");
        (random.below(2) == 0).then(|| Self::draw(&mut random))
    }

    fn draw(random: &mut Random) -> Self {
        let mut group = json!({"deletionPolicy": "Delete"});
        if random.below(3) > 0 {
            group["whenUnselected"] = "Delete".into();
        }
        match random.below(3) {
            0 => {}
            1 => group["maxUnselected"] = "100%".into(),
            _ => group["maxUnselected"] = 2.into(),
        }
        match random.below(6) {
            0 => group["deletionBudget"] = json!({"objects": 20, "window": "2m"}),
            1 => group["deletionBudget"] = json!({"clusters": 3, "window": "1m"}),
            2 => group["deletionBudget"] = json!({"objects": "50%", "window": "2m"}),
            _ => {}
        }
        let mut entry = json!({"deletionPolicy": "Delete", "conflicts": "Override"});
        if random.below(3) == 0 {
            entry["pruneGrace"] = "10s".into();
        }
        Self {
            group,
            entry,
            starts_with_entry: random.below(2) == 0,
            has_definition: random.below(2) == 0,
            made_before: (0..MEMBERS).filter(|_| random.below(3) == 0).collect(),
            approval_delay: i64::try_from(random.below(20)).unwrap_or(0),
        }
    }
}

/// Adds the fields of one object to another.
pub(crate) fn add_fields(to: &mut Value, fields: &Value) {
    for (name, value) in fields.as_object().into_iter().flatten() {
        to[name] = value.clone();
    }
}
