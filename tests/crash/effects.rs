//! The effects: every write of the program that somebody else can see. `docs/effects.md` is this table for people.

use http::Method;
use starling_testkit::Match;
use starling_testkit::fleet::MANAGEMENT;

use crate::world::Round;

/// When an effect comes about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Occasion {
    /// Once per installation or per member, in the first round.
    FirstRound,
    /// In every round.
    Push,
    /// When the third member leaves the fleet.
    Leave,
    /// When it comes back.
    Join,
}

/// One effect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Effect {
    /// As `docs/effects.md` calls it.
    pub(crate) name: &'static str,
    /// The server that it is written to.
    pub(crate) server: &'static str,
    /// When it comes about.
    pub(crate) occasion: Occasion,
    /// Its request in a round.
    pub(crate) request: fn(&Round) -> Match,
}

/// All effects, in the order in which a round brings them about.
pub(crate) const EFFECTS: [Effect; 19] = [
    Effect {
        name: "installation ID",
        server: MANAGEMENT,
        occasion: Occasion::FirstRound,
        request: |_| Match::method(Method::POST).path_ends_with("/namespaces/starling-system/configmaps"),
    },
    Effect {
        name: "system namespace",
        server: "m2",
        occasion: Occasion::FirstRound,
        request: |_| patch("/api/v1/namespaces/starling-system"),
    },
    Effect {
        name: "Source status",
        server: MANAGEMENT,
        occasion: Occasion::Push,
        request: |round| patch("/sources/shop/status").body_contains(round.commit.clone()),
    },
    Effect {
        name: "release kept",
        server: MANAGEMENT,
        occasion: Occasion::Push,
        request: |_| Match::method(Method::POST).path_ends_with("/controllerrevisions"),
    },
    Effect {
        name: "rollout start",
        server: MANAGEMENT,
        occasion: Occasion::Push,
        request: |round| group_status(round, "Pending"),
    },
    Effect {
        name: "admission, first",
        server: MANAGEMENT,
        occasion: Occasion::Push,
        request: |round| admission(round).nth(1),
    },
    Effect {
        name: "admission, second",
        server: MANAGEMENT,
        occasion: Occasion::Push,
        request: |round| admission(round).nth(2),
    },
    Effect {
        name: "admission, into a freed slot",
        server: MANAGEMENT,
        occasion: Occasion::Push,
        request: |round| admission(round).nth(3),
    },
    Effect {
        name: "group status, progress",
        server: MANAGEMENT,
        occasion: Occasion::Push,
        request: |round| group_status(round, "Progressing"),
    },
    Effect {
        name: "inventory claim",
        server: "m2",
        occasion: Occasion::Push,
        request: |round| inventory(round.added()).body_contains(round.removed()),
    },
    Effect {
        name: "object apply, new object",
        server: "m2",
        occasion: Occasion::Push,
        request: |round| object("configmaps", &round.added()),
    },
    Effect {
        name: "object apply, changed object",
        server: "m2",
        occasion: Occasion::Push,
        request: |_| object("configmaps", "one"),
    },
    Effect {
        name: "object apply, workload",
        server: "m2",
        occasion: Occasion::Push,
        request: |_| object("deployments", "web"),
    },
    Effect {
        name: "prune delete",
        server: "m2",
        occasion: Occasion::Push,
        request: |round| {
            Match::method(Method::DELETE).path_ends_with(format!("/configmaps/{}", round.removed()))
        },
    },
    Effect {
        name: "inventory shrink",
        server: "m2",
        occasion: Occasion::Push,
        request: |round| {
            let removed = round.removed();
            inventory(round.added())
                .and(move |request| !String::from_utf8_lossy(&request.body).contains(&removed))
        },
    },
    Effect {
        name: "Sync status",
        server: MANAGEMENT,
        occasion: Occasion::Push,
        request: |round| patch("/syncs/shop-app-m2/status").body_contains(round.commit.clone()),
    },
    Effect {
        name: "group status, end",
        server: MANAGEMENT,
        occasion: Occasion::Push,
        request: |round| group_status(round, "Succeeded"),
    },
    Effect {
        name: "Sync delete",
        server: MANAGEMENT,
        occasion: Occasion::Leave,
        request: |_| Match::method(Method::DELETE).path_ends_with("/syncs/shop-app-m3"),
    },
    Effect {
        name: "Cluster status",
        server: MANAGEMENT,
        occasion: Occasion::Join,
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
