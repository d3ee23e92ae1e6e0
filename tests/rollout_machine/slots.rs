//! Slots that lost clusters give back, despite a fault at any effect.

use crate::basic;
use crate::block_on;
use crate::idle::{End, run_until_idle};
use crate::machine::{Machine, Updates};
use crate::scenario::{all_on, with_every_fault};
use crate::world::World;

/// The clusters that are lost with their admission, as many as there are slots.
const DEAD: [&str; 2] = ["c2", "c3"];

fn world() -> World {
    let mut world = basic::world();
    for name in DEAD {
        let cluster = world.api.clusters.get_mut(name).unwrap();
        cluster.dies_with = Some("r0".to_owned());
    }
    world
}

/// The rollout goes on without the dead clusters, and they are admitted once more when they are back.
async fn history(machine: &mut Machine) -> Result<Vec<End>, String> {
    let first = run_until_idle(machine, true).await?;
    for name in DEAD {
        machine.world.come_back(name);
    }
    machine.watch(Updates::ALL);
    let second = run_until_idle(machine, true).await?;
    Ok(vec![first, second])
}

/// A slot that is free because of an admission that is in the ledger, and whose Sync is written: the admission is open
/// until it is recorded again, with another time.
#[test]
fn tenant_a_slot_is_given_back_and_taken_again_despite_a_fault_at_any_effect() {
    block_on(async {
        let (outcome, effects) = with_every_fault(world, history).await;
        assert_eq!(outcome.ends, [End::Succeeded, End::Succeeded]);
        assert_eq!(outcome.clusters, all_on("r0"));
        assert!(effects > 20, "{effects} effects are no history");
    });
}
