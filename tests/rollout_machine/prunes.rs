//! Prunes after the attempt that the group admitted: each is allowed by a recorded decision.

use starling_core::ids::{ClusterName, SyncName};
use starling_core::plan::{RemovalDecision, RemovalHold};

use crate::basic;
use crate::block_on;
use crate::idle::{End, run_until_idle};
use crate::invariants::Violation;
use crate::machine::{Machine, PassOutcome, Updates};
use crate::order::Order;
use crate::world::{ENTRY, sync_name};

fn name(cluster: &str) -> SyncName {
    sync_name(ENTRY, cluster).into()
}

/// Six clusters with `maxConcurrency` two, all of them on the first release.
async fn machine(order: Order) -> Machine {
    let mut machine = Machine::start(basic::world(), Order::Correct).await;
    assert_eq!(run_until_idle(&mut machine, true).await, Ok(End::Succeeded));
    machine.order = order;
    machine
}

fn allowed(machine: &Machine) -> Vec<&str> {
    let requests = machine.memory.prunes.values();
    let allowed = requests.filter(|request| request.allowed_at.is_some());
    allowed.map(|request| &*request.cluster).collect()
}

/// Guards against the end of a grace: all clusters pruned at once, and no plan said so.
#[test]
fn prunes_of_all_clusters_take_turns() {
    block_on(async {
        let mut machine = machine(Order::Correct).await;
        for n in 1..=6 {
            machine.memory.prune_or_end(ClusterName::new(format!("c{n}")));
        }
        for two in [["c1", "c2"], ["c3", "c4"], ["c5", "c6"]] {
            machine.watch(Updates::ALL);
            assert_eq!(machine.pass().await, PassOutcome::Completed);
            assert_eq!(allowed(&machine), two);
            let now = machine.world.now;
            assert!(machine.memory.recheck_at.is_none_or(|at| at > now));
            let decided = machine.plan_of_now().unwrap().prunes;
            let others = decided.iter().filter(|(sync, _)| !two.map(name).contains(sync));
            let no_slot = |decision: &RemovalDecision| {
                matches!(
                    decision,
                    RemovalDecision::Hold {
                        reason: RemovalHold::NoSlot,
                        ..
                    }
                )
            };
            assert!(
                others.clone().all(|(_, decision)| no_slot(decision)),
                "{decided:?}"
            );
            machine.memory.end_prunes();
        }
        machine.check_history().await;
        assert_eq!(machine.world.violations, []);
    });
}

/// A crash loses the requests, and what was allowed begins again with a decision.
#[test]
fn a_prune_that_a_crash_interrupts_is_decided_again() {
    block_on(async {
        let mut machine = machine(Order::Correct).await;
        machine.memory.prune_or_end("c1".into());
        assert_eq!(machine.pass().await, PassOutcome::Completed);
        assert_eq!(allowed(&machine), ["c1"]);
        machine.check_history().await;
        assert_eq!(allowed(&machine), [""; 0], "the process died");
        machine.memory.prune_or_end("c1".into());
        assert_eq!(machine.pass().await, PassOutcome::Completed);
        assert_eq!(allowed(&machine), ["c1"]);
        machine.check_history().await;
        assert_eq!(machine.world.violations, []);
    });
}

#[test]
fn a_prune_before_its_journal_entry_is_found() {
    block_on(async {
        let mut machine = machine(Order::JournalLast).await;
        machine.memory.prune_or_end("c3".into());
        machine.pass().await;
        let sync = name("c3");
        assert_eq!(machine.world.violations, [Violation::PruneNotInJournal { sync }]);
    });
}
