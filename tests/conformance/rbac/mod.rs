//! Compares who may do what: requests of many identities, escalations, reviews and tokens, and random roles.
//!
//! `*.http` have steps in the format of [`script`], most of them of another identity than the administrator.
//! `table.txt` has identities and requests: each request is sent by each identity.
//!
//! A real server reads roles and bindings from a cache that is a moment behind. A step of another identity changes
//! nothing that the next one depends on, and is repeated until both servers respond alike, or for [`SETTLES`].

mod random;

use std::time::Duration;

use starling_apiserver::controllers::Controllers;
use starling_apiserver::listen::Listening;
use starling_apiserver::server::Server;
use starling_controlplane::ControlPlanes;
use tokio::time::Instant;

use crate::requests::script::{self, Step};
use crate::requests::side::{Response, Side, client, client_without_credentials};
use crate::requests::{differences, embedded, normal, real};

/// How far a real server may be behind: it remembers for 10 s to whom a token belongs.
pub(crate) const SETTLES: Duration = Duration::from_secs(15);

/// Both servers.
pub(crate) struct Both {
    real: Side,
    embedded: Side,
    normal: normal::Pair,
    steps: usize,
    /// How long further differences may take to settle; a real one uses [`SETTLES`] of it.
    patience: Duration,
    _planes: ControlPlanes,
    _server: (Server, Listening),
}

impl Both {
    pub(crate) async fn start() -> Self {
        let ((planes, real), server) = tokio::join!(real(true), embedded(Controllers::all()));
        let kubeconfig = planes.get("real").unwrap().kubeconfig_yaml();
        let bare = client_without_credentials(&kubeconfig).await;
        let cluster = server.0.create_cluster("rbac").unwrap().kubeconfig();
        let here = Side::new(&client(&cluster).await, true);
        Self {
            real: Side::new(&real, true).with_bare(bare),
            embedded: here.with_bare(client_without_credentials(&cluster).await),
            normal: normal::Pair::default(),
            steps: 0,
            patience: SETTLES * 4,
            _planes: planes,
            _server: server,
        }
    }

    /// Sends a step to both, once. Values that the servers generate are compared within the responses only.
    pub(crate) async fn once(&mut self, step: &Step) -> (Response, Response, Vec<String>) {
        let (wanted, found) = tokio::join!(self.real.response(step), self.embedded.response(step));
        let differences = differences(step, &wanted, &found, &mut normal::Pair::default());
        (wanted, found, differences)
    }

    /// Sends a step to both, and repeats one of another identity until the responses are alike.
    async fn send(&mut self, step: &Step) -> (Response, Response, Vec<String>) {
        let began = Instant::now();
        let deadline = began + SETTLES.min(self.patience);
        self.steps += 1;
        loop {
            let (wanted, found) = tokio::join!(self.real.response(step), self.embedded.response(step));
            let differences = differences(step, &wanted, &found, &mut self.normal);
            let repeats = step.identity.is_some() && Instant::now() < deadline;
            if differences.is_empty() || !repeats {
                if !differences.is_empty() {
                    self.patience = self.patience.saturating_sub(began.elapsed());
                }
                return (wanted, found, differences);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Runs a script; returns what differs.
    async fn run(&mut self, name: &str, text: &str) -> Vec<String> {
        let mut failures = Vec::new();
        for step in script::read(text) {
            let (_, _, differences) = self.send(&step).await;
            if !differences.is_empty() {
                let line = text.lines().nth(step.line - 1).unwrap_or_default();
                failures.push(format!(
                    "{name}:{} {line}\n    {}",
                    step.line,
                    differences.join("\n    ")
                ));
            }
        }
        failures
    }
}

fn assert_none(failures: &[String], steps: usize) {
    assert!(
        failures.is_empty(),
        "{} of {steps} steps differ (the real server's value stands first):\n{}",
        failures.len(),
        failures.join("\n")
    );
}

/// Each request of the table, sent by each of its identities.
fn table() -> String {
    let text = include_str!("table.txt");
    let lines = |wanted: &str| -> Vec<&str> {
        let (_, section) = text.split_once(wanted).unwrap();
        let section = section.split("\n== ").next().unwrap();
        { section.lines() }
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .collect()
    };
    let (identities, requests) = (lines("== identities"), lines("== requests"));
    let mut steps = String::new();
    for identity in &identities {
        for request in &requests {
            let (mark, request) = match request.strip_prefix('!') {
                Some(request) => ("!", request),
                None => ("", *request),
            };
            steps.push_str(&format!("{mark}@{identity} {request}\n"));
        }
    }
    steps
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_servers_let_the_same_identities_send_the_same_requests() {
    let mut both = Both::start().await;
    let mut failures = both.run("setup.http", include_str!("setup.http")).await;
    failures.extend(both.run("steps.http", include_str!("steps.http")).await);
    failures.extend(both.run("table", &table()).await);
    assert_none(&failures, both.steps);
    eprintln!("{} steps compared", both.steps);
}
