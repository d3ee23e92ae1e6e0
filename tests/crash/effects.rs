//! The effects: every write of the program that other programs can see. `docs/effects.md` documents this table.

use http::Method;
use starling_testkit::Match;
use starling_testkit::fleet::MANAGEMENT;

use crate::world::Round;

/// When an effect occurs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trigger {
    /// Once per installation or per member, in the first round.
    FirstRound,
    /// In every round.
    Push,
    /// When the third member leaves the fleet.
    Leave,
    /// When it joins again.
    Join,
}

/// One effect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effect {
    /// The name in `docs/effects.md`.
    pub(crate) name: &'static str,
    /// The server of the write.
    pub(crate) server: &'static str,
    /// When the effect occurs.
    pub(crate) trigger: Trigger,
    /// The request of the effect in a round.
    pub(crate) request: fn(&Round) -> Match,
}

/// All effects, in the order in which they occur in a round.
pub(crate) const EFFECTS: [Effect; 19] = [
    Effect {
        name: "installation ID",
        server: MANAGEMENT,
        trigger: Trigger::FirstRound,
        request: |_| Match::method(Method::POST).path_ends_with("/namespaces/starling-system/configmaps"),
    },
    Effect {
        name: "system namespace",
        server: "m2",
        trigger: Trigger::FirstRound,
        request: |_| patch("/api/v1/namespaces/starling-system"),
    },
    Effect {
        name: "Source status",
        server: MANAGEMENT,
        trigger: Trigger::Push,
        request: |round| patch("/sources/shop/status").body_contains(round.commit.clone()),
    },
    Effect {
        name: "release snapshot",
        server: MANAGEMENT,
        trigger: Trigger::Push,
        request: |_| Match::method(Method::POST).path_ends_with("/controllerrevisions"),
    },
    Effect {
        name: "rollout start",
        server: MANAGEMENT,
        trigger: Trigger::Push,
        // The status with the rollout also has the result of its first plan.
        request: |round| group_status(round, "Progressing").nth(1),
    },
    Effect {
        name: "admission, first",
        server: MANAGEMENT,
        trigger: Trigger::Push,
        request: |round| admission(round).nth(1),
    },
    Effect {
        name: "admission, second",
        server: MANAGEMENT,
        trigger: Trigger::Push,
        request: |round| admission(round).nth(2),
    },
    Effect {
        name: "admission, into a freed slot",
        server: MANAGEMENT,
        trigger: Trigger::Push,
        request: |round| admission(round).nth(3),
    },
    Effect {
        name: "write number",
        server: MANAGEMENT,
        trigger: Trigger::Push,
        request: |_| patch("/configmaps/starling-installation"),
    },
    Effect {
        name: "inventory claim",
        server: "m2",
        trigger: Trigger::Push,
        request: |round| inventory(round.added()).body_contains(round.removed()),
    },
    Effect {
        name: "object apply, new object",
        server: "m2",
        trigger: Trigger::Push,
        request: |round| object("configmaps", &round.added()),
    },
    Effect {
        name: "object apply, changed object",
        server: "m2",
        trigger: Trigger::Push,
        request: |_| object("configmaps", "one"),
    },
    Effect {
        name: "object apply, workload",
        server: "m2",
        trigger: Trigger::Push,
        request: |_| object("deployments", "web"),
    },
    Effect {
        name: "prune delete",
        server: "m2",
        trigger: Trigger::Push,
        request: |round| {
            Match::method(Method::DELETE).path_ends_with(format!("/configmaps/{}", round.removed()))
        },
    },
    Effect {
        name: "inventory shrink",
        server: "m2",
        trigger: Trigger::Push,
        request: |round| {
            let removed = round.removed();
            inventory(round.added())
                .and(move |request| !String::from_utf8_lossy(&request.body).contains(&removed))
        },
    },
    Effect {
        name: "Sync status",
        server: MANAGEMENT,
        trigger: Trigger::Push,
        request: |round| patch("/syncs/shop-app-m2/status").body_contains(round.commit.clone()),
    },
    Effect {
        name: "group status, end",
        server: MANAGEMENT,
        trigger: Trigger::Push,
        request: |round| group_status(round, "Succeeded"),
    },
    Effect {
        name: "Sync delete",
        server: MANAGEMENT,
        trigger: Trigger::Leave,
        request: |_| Match::method(Method::DELETE).path_ends_with("/syncs/shop-app-m3"),
    },
    Effect {
        name: "Cluster status",
        server: MANAGEMENT,
        trigger: Trigger::Join,
        request: |_| patch("/clusters/m3/status"),
    },
];

fn patch(path_end: &str) -> Match {
    Match::method(Method::PATCH)
        .path_ends_with(path_end)
        .and(|request| !request.query.contains("dryRun"))
}

fn group_status(round: &Round, phase: &str) -> Match {
    patch("/syncgroups/shop/status")
        .body_contains(round.commit.clone())
        .body_contains(format!("\"phase\":\"{phase}\""))
}

fn admission(round: &Round) -> Match {
    Match::method(Method::PATCH)
        .query_contains("fieldManager=starling-group")
        .body_contains(round.commit.clone())
}

fn inventory(holding: String) -> Match {
    Match::method(Method::PATCH)
        .path_contains("/configmaps/starling-inventory-")
        .body_contains(holding)
}

fn object(resource: &str, name: &str) -> Match {
    patch(&format!("/namespaces/default/{resource}/{name}"))
}
