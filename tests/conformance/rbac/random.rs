//! Random roles, bindings and requests.
//!
//! A round creates roles and bindings, and asks through reviews what random users may do. Then random users try to
//! write random roles and bindings, as dry runs. `STARLING_RANDOM_ROUNDS` and `STARLING_RANDOM_SEED` set the number of
//! rounds and the seed.

use serde_json::{Value, json};
use starling_apiserver::random::Random;

use super::{Both, assert_none};
use crate::requests::script;

/// Reviews in a round.
const REVIEWS: usize = 120;
/// Writes that may be escalations, in a round.
const ESCALATIONS: usize = 30;

const VERBS: [&str; 8] = ["get", "list", "watch", "create", "update", "delete", "use", "*"];
const GROUPS: [&str; 4] = ["", "apps", "x.io", "*"];
const RESOURCES: [&str; 10] = [
    "pods",
    "pods/log",
    "pods/*",
    "deployments",
    "deployments/scale",
    "*/scale",
    "*/log",
    "things",
    "*",
    "nodes",
];
const NAMES: [&str; 3] = ["one", "two", "three"];
const URLS: [&str; 6] = ["/x", "/x/*", "/x/y", "/healthz", "*", "/x*"];
const USERS: [&str; 5] = [
    "ann",
    "bob",
    "system:serviceaccount:a:robot",
    "system:serviceaccount:b:robot",
    "system:serviceaccount:a:default",
];
const TEAMS: [&str; 4] = ["dev", "ops", "system:authenticated", "system:serviceaccounts:a"];
const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";

struct Generator {
    random: Random,
    round: u64,
}

impl Generator {
    fn below(&mut self, count: usize) -> usize {
        usize::try_from(self.random.number() % count as u64).unwrap()
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        let place = self.below(of.len());
        of[place]
    }

    /// One to three different ones.
    fn some(&mut self, of: &[&str]) -> Vec<String> {
        let mut chosen = Vec::new();
        for _ in 0..=self.below(3) {
            let one = self.one(of).to_owned();
            if !chosen.contains(&one) {
                chosen.push(one);
            }
        }
        chosen
    }

    fn rules(&mut self, cluster: bool) -> Value {
        (0..=self.below(2)).map(|_| self.rule(cluster)).collect()
    }

    fn rule(&mut self, cluster: bool) -> Value {
        if cluster && self.below(5) == 0 {
            return json!({"verbs": self.some(&VERBS), "nonResourceURLs": self.some(&URLS)});
        }
        let mut rule = json!({
            "verbs": self.some(&VERBS),
            "apiGroups": self.some(&GROUPS),
            "resources": self.some(&RESOURCES),
        });
        if self.below(3) == 0 {
            rule["resourceNames"] = json!(self.some(&NAMES));
        }
        rule
    }

    fn subject(&mut self) -> Value {
        match self.below(3) {
            0 => json!({"kind": "User", "name": self.one(&USERS)}),
            1 => json!({"kind": "Group", "name": self.one(&TEAMS)}),
            _ => {
                json!({"kind": "ServiceAccount", "namespace": self.one(&["a", "b"]), "name": self.one(&["robot", "default"])})
            }
        }
    }

    fn subjects(&mut self) -> Value {
        (0..self.below(3)).map(|_| self.subject()).collect()
    }

    /// The reference to a role of this round.
    fn role_ref(&mut self, cluster: bool) -> Value {
        let kind = if cluster || self.below(2) == 0 {
            "ClusterRole"
        } else {
            "Role"
        };
        let number = self.below(3);
        json!({"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": format!("r{}-{number}", self.round)})
    }

    /// Roles and bindings: their paths and bodies.
    fn objects(&mut self) -> Vec<(String, Value)> {
        let mut objects = Vec::new();
        for number in 0..3 {
            let name = format!("r{}-{number}", self.round);
            let role = |rules: Value| json!({"metadata": {"name": name}, "rules": rules});
            objects.push((format!("{RBAC}/clusterroles"), role(self.rules(true))));
            for namespace in ["a", "b"] {
                let path = format!("{RBAC}/namespaces/{namespace}/roles");
                objects.push((path, role(self.rules(false))));
            }
        }
        for number in 0..3 {
            let name = format!("r{}-{number}", self.round);
            let binding = |reference: Value, subjects: Value| json!({"metadata": {"name": name}, "roleRef": reference, "subjects": subjects});
            let of_cluster = binding(self.role_ref(true), self.subjects());
            objects.push((format!("{RBAC}/clusterrolebindings"), of_cluster));
            for namespace in ["a", "b"] {
                let path = format!("{RBAC}/namespaces/{namespace}/rolebindings");
                objects.push((path, binding(self.role_ref(false), self.subjects())));
            }
        }
        objects
    }

    fn review(&mut self) -> String {
        let groups: Vec<String> = if self.below(2) == 0 {
            self.some(&TEAMS)
        } else {
            Vec::new()
        };
        let mut spec = json!({"user": self.one(&USERS), "groups": groups});
        if self.below(6) == 0 {
            let path = self.one(&["/x", "/x/y", "/x/y/z", "/healthz", "/xy", "/"]);
            spec["nonResourceAttributes"] = json!({"verb": self.one(&VERBS), "path": path});
        } else {
            let subresource = self.one(&["", "", "log", "scale", "*"]);
            spec["resourceAttributes"] = json!({
                "verb": self.one(&VERBS),
                "group": self.one(&GROUPS),
                "resource": self.one(&["pods", "deployments", "things", "nodes", "*"]),
                "subresource": subresource,
                "namespace": self.one(&["", "a", "b"]),
                "name": self.one(&["", "one", "two"]),
            });
        }
        let review =
            json!({"kind": "SubjectAccessReview", "apiVersion": "authorization.k8s.io/v1", "spec": spec});
        // The identity makes it one that is repeated until the servers agree.
        format!("@x+system:masters POST /apis/authorization.k8s.io/v1/subjectaccessreviews {review}")
    }

    /// A write of a role or a binding by a user who may write all of them.
    fn escalation(&mut self) -> String {
        let identity = format!("{}+{}+writers", self.one(&USERS), self.one(&TEAMS));
        let (namespace, cluster) = match self.below(3) {
            0 => (String::new(), true),
            1 => ("/namespaces/a".to_owned(), false),
            _ => ("/namespaces/b".to_owned(), false),
        };
        let prefix = if cluster { "cluster" } else { "" };
        if self.below(2) == 0 {
            let role = json!({"metadata": {"name": "wanted"}, "rules": self.rules(cluster)});
            format!("@{identity} POST {RBAC}{namespace}/{prefix}roles?dryRun=All {role}")
        } else {
            let binding = json!({"metadata": {"name": "wanted"}, "roleRef": self.role_ref(cluster), "subjects": self.subjects()});
            format!("@{identity} POST {RBAC}{namespace}/{prefix}rolebindings?dryRun=All {binding}")
        }
    }
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().unwrap())
}

/// Sends a review; returns how the decisions differ. If several bindings allow something, the reason of a real server
/// names any of them.
async fn review(both: &mut Both, text: &str, allowed: &mut usize) -> Option<String> {
    let (wanted, found, mut differences) = both.send(&script::step(0, text)).await;
    let reason = |body: &Value| body["status"]["reason"].as_str().unwrap_or_default().to_owned();
    let by_roles = |body: &Value| reason(body).starts_with("RBAC: allowed by ");
    if by_roles(&wanted.body) && by_roles(&found.body) {
        differences.retain(|text| !text.starts_with(".status.reason"));
    }
    *allowed += usize::from(found.body["status"]["allowed"] == true);
    (!differences.is_empty()).then(|| format!("{text}\n    {}", differences.join("\n    ")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_servers_decide_alike_on_random_roles() {
    let (seed, rounds) = (
        number("STARLING_RANDOM_SEED", 1),
        number("STARLING_RANDOM_ROUNDS", 12),
    );
    let mut both = Both::start().await;
    let mut failures = both.run("random.http", include_str!("random.http")).await;
    let (mut allowed, mut granted) = (0, 0);
    for round in 0..rounds {
        let random = Random::named(seed, &format!("rbac-{round}"));
        let mut generator = Generator { random, round };
        let objects = generator.objects();
        let create: String = { objects.iter() }
            .map(|(path, body)| format!("POST {path} {body}\n"))
            .collect();
        failures.extend(both.run(&format!("round {round}"), &create).await);
        for _ in 0..REVIEWS {
            failures.extend(review(&mut both, &generator.review(), &mut allowed).await);
        }
        for _ in 0..ESCALATIONS {
            let text = generator.escalation();
            let (_, found, differences) = both.send(&script::step(0, &text)).await;
            granted += usize::from(found.code == 201);
            if !differences.is_empty() {
                failures.push(format!(
                    "round {round}: {text}\n    {}",
                    differences.join("\n    ")
                ));
            }
        }
        let delete: String = { objects.iter() }
            .map(|(path, body)| format!("DELETE {path}/{}\n", body["metadata"]["name"].as_str().unwrap()))
            .collect();
        failures.extend(both.run(&format!("round {round}"), &delete).await);
    }
    eprintln!("{allowed} reviews allowed something, {granted} writes granted something");
    let reviews = usize::try_from(rounds).unwrap() * REVIEWS;
    assert!(
        (reviews / 20..reviews).contains(&allowed),
        "{allowed} of {reviews}"
    );
    assert!(granted > 0, "no write is allowed");
    assert_none(&failures, both.steps);
    eprintln!("{} steps compared", both.steps);
}
