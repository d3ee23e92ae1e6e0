//! Random sequences of requests.
//!
//! Each sequence has its own namespace and is generated from the seed and its number. A sequence with different
//! responses is shortened by removing steps, and printed; it can be copied into `cases`. `STARLING_RANDOM_REQUESTS` and
//! `STARLING_RANDOM_SEED` set the number of requests and the seed; `STARLING_RANDOM_ONLY` selects one sequence.

mod accepted;
mod generate;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kube::Client;
use starling_apiserver::controllers::Controllers;

use crate::requests::side::{Side, client};
use crate::requests::{normal, script};

/// Steps of a sequence, without lists and watches.
const LENGTH: usize = 20;

/// Concurrent sequences.
const AT_ONCE: usize = 8;

/// Failures that are shortened; for the others, only the last step is printed.
const SHORTENED: usize = 12;

/// The time limit for shortening one failure.
const SHORTENING: Duration = Duration::from_secs(20);

/// Requests of a run in which each accepted difference has to occur.
const REQUESTS: u64 = 5_000;

/// The seed of such a run.
const SEED: u64 = 1;

/// The two servers.
struct World {
    real: Client,
    embedded: Client,
    /// Numbers of namespaces.
    namespaces: AtomicUsize,
    requests: AtomicUsize,
    /// Sequences that ended at an accepted difference.
    ended_early: AtomicUsize,
    /// Sequences with a difference that did not occur again.
    unreproduced: AtomicUsize,
}

/// A step with different responses.
struct Difference {
    place: usize,
    texts: Vec<String>,
}

fn setup(namespace: &str) -> [String; 3] {
    [
        format!("POST /api/v1/namespaces {{\"metadata\":{{\"name\":\"{namespace}\"}}}}"),
        format!("UNTIL /api/v1/namespaces/{namespace}/serviceaccounts/default 200 default"),
        format!("UNTIL /api/v1/namespaces/{namespace}/configmaps/kube-root-ca.crt 200"),
    ]
}

impl World {
    /// Runs the steps in a new namespace, up to the first with different responses.
    async fn run(&self, number: u64, steps: &[String]) -> Option<Difference> {
        let mut real = Side::new(&self.real, true);
        let mut embedded = Side::new(&self.embedded, true);
        let mut normal = normal::Pair::ordered();
        let attempt = self.namespaces.fetch_add(1, Ordering::Relaxed);
        let namespace = format!("random-{number}-{attempt}");
        for (place, text) in setup(&namespace).iter().chain(steps).enumerate() {
            let step = script::step(place, &text.replace("$ns", &namespace));
            let (wanted, found) = tokio::join!(real.response(&step), embedded.response(&step));
            self.requests.fetch_add(1, Ordering::Relaxed);
            let differences = crate::requests::differences(&step, &wanted, &found, &mut normal);
            if differences.is_empty() {
                continue;
            }
            let meant = accepted::is_accepted(text, &differences);
            if meant && wanted.code >= 400 && found.code >= 400 {
                continue;
            }
            // From here on, the objects may differ.
            self.ended_early.fetch_add(usize::from(meant), Ordering::Relaxed);
            return (!meant).then(|| Difference {
                place: place.saturating_sub(3),
                texts: differences,
            });
        }
        None
    }

    /// Removes steps as long as the responses to the last one still differ.
    async fn shorten(
        &self,
        number: u64,
        mut steps: Vec<String>,
        mut difference: Difference,
    ) -> (Vec<String>, Difference) {
        steps.truncate(difference.place + 1);
        let deadline = Instant::now() + SHORTENING;
        let mut at = steps.len() - 1;
        while at > 0 && Instant::now() < deadline {
            at -= 1;
            // A watch waits for this object.
            if steps[at].contains(generate::LAST) {
                continue;
            }
            let mut fewer = steps.clone();
            fewer.remove(at);
            if let Some(still) = self
                .run(number, &fewer)
                .await
                .filter(|found| found.place + 1 == fewer.len())
            {
                (steps, difference) = (fewer, still);
            }
        }
        (steps, difference)
    }
}

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).map_or(otherwise, |text| text.parse().expect("a number"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_sequences_have_equal_responses() {
    let (requests, seed) = (
        number("STARLING_RANDOM_REQUESTS", REQUESTS),
        number("STARLING_RANDOM_SEED", SEED),
    );
    let only = std::env::var("STARLING_RANDOM_ONLY")
        .ok()
        .map(|text| text.parse::<u64>().expect("a number"));
    let sequences = requests.div_ceil(LENGTH as u64);

    let (_planes, real) = crate::requests::real(true).await;
    let (server, _listening) = crate::requests::embedded(Controllers::all()).await;
    let embedded = client(&server.create_cluster("random").unwrap().kubeconfig()).await;
    let world = Arc::new(World {
        real,
        embedded,
        namespaces: AtomicUsize::new(0),
        requests: AtomicUsize::new(0),
        ended_early: AtomicUsize::new(0),
        unreproduced: AtomicUsize::new(0),
    });
    let definition = format!(
        "POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions {}",
        generate::KINDS.definition
    );
    let served = "UNTIL /apis/random.dev/v1/namespaces/default/gadgets 200".to_owned();
    let failed = world.run(0, &[definition.clone(), served]).await;
    assert!(
        failed.is_none(),
        "{:?}",
        failed.map(|difference| difference.texts)
    );

    let begun = Instant::now();
    let next = Arc::new(AtomicU64::new(0));
    let failures: Arc<Mutex<BTreeMap<u64, String>>> = Arc::default();
    let workers: Vec<_> = (0..AT_ONCE)
        .map(|_| {
            let (world, next, failures) = (Arc::clone(&world), Arc::clone(&next), Arc::clone(&failures));
            tokio::spawn(async move {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= sequences {
                        break;
                    }
                    if only.is_some_and(|only| only != number) {
                        continue;
                    }
                    let steps = generate::sequence(seed, number, LENGTH);
                    if world.run(number, &steps).await.is_none() {
                        continue;
                    }
                    // A sequence is deterministic, but the order of two controllers on a busy machine is not.
                    let Some(difference) = world.run(number, &steps).await else {
                        world.unreproduced.fetch_add(1, Ordering::Relaxed);
                        continue;
                    };
                    let many = failures.lock().unwrap().len() >= SHORTENED;
                    let (steps, difference) = if many {
                        (vec![steps[difference.place].clone()], difference)
                    } else {
                        world.shorten(number, steps, difference).await
                    };
                    let mut script = setup("random").join("\n").to_owned();
                    script.push('\n');
                    script.push_str(&steps.join("\n").replace("$ns", "random"));
                    let text = format!(
                        "# sequence {number}\n{script}\n    {}\n",
                        difference.texts.join("\n    ")
                    );
                    failures.lock().unwrap().insert(number, text);
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.unwrap();
    }
    eprintln!(
        "{} requests in {sequences} sequences with the seed {seed}, of which {} ended at a difference that is meant and {} at one that did not come again, {:.1?}",
        world.requests.load(Ordering::Relaxed),
        world.ended_early.load(Ordering::Relaxed),
        world.unreproduced.load(Ordering::Relaxed),
        begun.elapsed()
    );
    let failures = failures.lock().unwrap();
    let texts: Vec<&str> = failures.values().map(String::as_str).collect();
    assert!(
        failures.is_empty(),
        "{} sequences are answered differently (the real server's value stands first); with gadgets, before them:\n{definition}\n\n{}",
        failures.len(),
        texts.join("\n")
    );
    let unmatched: Vec<String> = accepted::matches()
        .into_iter()
        .inspect(|(matches, text)| eprintln!("{matches} times: {text}"))
        .filter(|(matches, _)| *matches == 0)
        .map(|(_, text)| text)
        .collect();
    if (requests, seed, only) == (REQUESTS, SEED, None) {
        assert!(
            unmatched.is_empty(),
            "these do not differ any more:\n{}",
            unmatched.join("\n")
        );
    }
}
