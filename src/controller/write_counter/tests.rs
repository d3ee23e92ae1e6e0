//! The counter against a management cluster with one ConfigMap.

#![cfg(test)]

use std::collections::BTreeSet;

use futures::future::join_all;
use serde_json::{Value, json};
use starling_net::clock::Clock;

use super::*;
use crate::controller::hub::testing::{failure, responding};

/// The ConfigMap, and what goes wrong with it.
#[derive(Debug)]
struct Stored {
    map: Value,
    writes: usize,
    uids: usize,
    /// The next writes are done, and their responses are lost.
    lost_responses: usize,
    /// The next requests fail.
    failures: usize,
}

#[derive(Clone, Debug)]
struct Server(Arc<Mutex<Stored>>);

impl Server {
    fn new() -> Self {
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "starling-installation", "uid": "u", "resourceVersion": "1"}, "data": {"id": "i"}});
        Self(Arc::new(Mutex::new(Stored {
            map,
            writes: 0,
            uids: 0,
            lost_responses: 0,
            failures: 0,
        })))
    }

    fn hub(&self) -> Hub {
        let server = self.clone();
        responding(move |parts, body| {
            let mut stored = lock(&server.0);
            if stored.failures > 0 {
                stored.failures -= 1;
                return failure(parts, 500, "InternalError");
            }
            match parts.method.as_str() {
                "POST" if parts.uri.query().is_some_and(|query| query.contains("dryRun")) => {
                    stored.uids += 1;
                    let uid = format!("uid-{}", stored.uids);
                    (201, json!({"metadata": {"name": "n", "uid": uid}}))
                }
                "POST" if parts.uri.path().ends_with("/namespaces") => failure(parts, 409, "AlreadyExists"),
                "POST" => {
                    stored.map = serde_json::from_slice(body).unwrap();
                    stored.map["metadata"]["uid"] = "v".into();
                    stored.next_version();
                    (201, stored.map.clone())
                }
                _ if stored.map.is_null() => failure(parts, 404, "NotFound"),
                "PATCH" => stored.patch(parts, body),
                _ => (200, stored.map.clone()),
            }
        })
    }

    /// A process that counts.
    async fn process(&self) -> (Arc<WriteCounter>, Arc<dyn WriteNumbers>) {
        self.process_at(Clock::system()).await
    }

    async fn process_at(&self, clock: Clock) -> (Arc<WriteCounter>, Arc<dyn WriteNumbers>) {
        let counter = Arc::new(WriteCounter::new(self.hub(), clock, "i".into()));
        counter.load().await.unwrap();
        tokio::spawn(counter.clone().serve());
        let writes = counter.of_cluster(&ObjectKey::new("fleet", "eu-1"));
        (counter, writes)
    }

    fn data(&self) -> Value {
        lock(&self.0).map["data"].clone()
    }

    /// Restores the data of a backup; the version goes on, as with `--bump-revision`.
    fn restore(&self, data: Value) {
        let mut stored = lock(&self.0);
        stored.map["data"] = data;
        stored.next_version();
    }

    /// Restores a backup that has no ConfigMap yet.
    fn lose(&self) {
        lock(&self.0).map = Value::Null;
    }
}

impl Stored {
    fn next_version(&mut self) {
        self.writes += 1;
        self.map["metadata"]["resourceVersion"] = (self.writes + 1).to_string().into();
    }

    fn patch(&mut self, parts: &http::request::Parts, body: &[u8]) -> (u16, Value) {
        let patch: Value = serde_json::from_slice(body).unwrap();
        if patch["metadata"]["resourceVersion"] != self.map["metadata"]["resourceVersion"] {
            return failure(parts, 409, "Conflict");
        }
        for (key, value) in patch["data"].as_object().unwrap() {
            if value.is_null() {
                self.map["data"].as_object_mut().unwrap().remove(key);
            } else {
                self.map["data"][key] = value.clone();
            }
        }
        self.next_version();
        if self.lost_responses > 0 {
            self.lost_responses -= 1;
            return failure(parts, 504, "Timeout");
        }
        (200, self.map.clone())
    }
}

fn is_held(refusal: &NumberError) -> bool {
    matches!(refusal, NumberError::SetBack(_))
}

#[tokio::test(start_paused = true)]
async fn one_write_serves_all_that_wait_and_each_gets_its_own_number() {
    let server = Server::new();
    let (_, writes) = server.process().await;
    let first = writes.take().await.unwrap();
    let before = tokio::time::Instant::now();
    let taken = join_all((0..500).map(|_| writes.take())).await;
    let taken: BTreeSet<WriteNumber> = taken.into_iter().map(Result::unwrap).collect();
    assert_eq!((taken.len(), taken.contains(&first)), (500, false));
    assert_eq!(lock(&server.0).writes, 2);
    assert!(
        before.elapsed() >= waits::WRITE_NUMBERS,
        "ten writes a second at most"
    );
    // Numbers that were given are stored.
    let (_, later) = server.process().await;
    for number in &taken {
        later.check(number).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn processes_that_count_at_the_same_time_know_each_other() {
    let server = Server::new();
    let ((one, a), (two, b)) = (server.process().await, server.process().await);
    for _ in 0..3 {
        let (x, y) = (a.take().await.unwrap(), b.take().await.unwrap());
        assert_ne!(x, y);
        b.check(&x).await.unwrap();
        a.check(&y).await.unwrap();
    }
    assert!(one.held().is_none() && two.held().is_none());
}

/// Guards against a number of the lost past that is known again: the embedded management cluster draws its UIDs from a
/// stored position, so that two starts from one backup draw the same UID.
#[tokio::test(start_paused = true)]
async fn two_starts_from_one_backup_count_in_different_timelines() {
    let server = Server::new();
    let backup = server.data();
    let at = |second: i64| Clock::new(move || jiff::Timestamp::from_second(1_800_000_000 + second).unwrap());
    let mut taken = Vec::new();
    for second in [0, 60] {
        server.restore(backup.clone());
        lock(&server.0).uids = 0;
        let (_, writes) = server.process_at(at(second)).await;
        taken.push(writes.take().await.unwrap());
    }
    assert_ne!(taken[0], taken[1]);
}

/// Guards against a number that is given twice, or taken for lost, because the response to its increment was lost.
#[tokio::test(start_paused = true)]
async fn a_response_that_is_lost_skips_numbers() {
    let server = Server::new();
    let (counter, writes) = server.process().await;
    let first = writes.take().await.unwrap();
    lock(&server.0).lost_responses = 1;
    let refusal = writes.take().await.unwrap_err();
    assert!(matches!(refusal, NumberError::Hub(_)), "{refusal:?}");
    let third = writes.take().await.unwrap();
    assert_eq!(third, first.next().next());
    assert!(counter.held().is_none());
}

#[tokio::test(start_paused = true)]
async fn without_the_management_cluster_there_is_no_number() {
    let server = Server::new();
    let (counter, writes) = server.process().await;
    lock(&server.0).failures = 1;
    let refusal = writes.take().await.unwrap_err();
    assert!(matches!(refusal, NumberError::Hub(_)), "{refusal:?}");
    assert!(counter.held().is_none());
    writes.take().await.unwrap();
}

/// The number of a process that nobody knows: the backup is from before its first write.
#[tokio::test(start_paused = true)]
async fn a_restore_holds_all_processes_until_its_release() {
    let server = Server::new();
    let (_, before) = server.process().await;
    before.take().await.unwrap();
    let backup = server.data();
    let lost = before.take().await.unwrap();
    server.restore(backup);

    let (counter, writes) = server.process().await;
    let own = writes.take().await.unwrap();
    let finding = writes.check(&lost).await.unwrap_err();
    assert!(
        is_held(&finding) && finding.to_string().contains("Cluster fleet/eu-1"),
        "{finding}"
    );
    // No number any more, also for attempts that have one.
    assert!(is_held(&writes.take().await.unwrap_err()) && writes.refusal().is_some());
    // Nor for a number that is known.
    assert!(is_held(&writes.check(&own).await.unwrap_err()));
    // A restart and another process read the finding.
    let (restarted, after) = server.process().await;
    assert!(restarted.held().is_some() && is_held(&after.take().await.unwrap_err()));
    counter.recheck().await.unwrap();
    assert!(counter.held().is_some(), "nobody has released it");

    let hub = server.hub();
    let record = hub.installation_record().await.unwrap().unwrap();
    let mut known = record.known().unwrap();
    known.release([lost.clone()]);
    hub.write_installation(&record, &known, None)
        .await
        .unwrap()
        .unwrap();
    for counter in [&counter, &restarted] {
        counter.recheck().await.unwrap();
        assert_eq!(counter.held(), None);
    }
    writes.check(&lost).await.unwrap();
    assert_ne!(writes.take().await.unwrap(), own.next(), "another timeline");
    let met_later = writes.check(&lost.next()).await.unwrap_err();
    assert!(is_held(&met_later), "only what was shown is released");
}

/// Guards against a process that survives the restore and counts on, past the numbers that it has given before.
#[tokio::test(start_paused = true)]
async fn a_process_that_survives_the_restore_notices_it_with_its_next_number() {
    let server = Server::new();
    let (counter, writes) = server.process().await;
    writes.take().await.unwrap();
    let backup = server.data();
    let lost = writes.take().await.unwrap();
    server.restore(backup);
    let refusal = writes.take().await.unwrap_err();
    assert!(is_held(&refusal), "{refusal}");
    assert_eq!(counter.held().unwrap().number, lost);
    assert!(server.data()["restoreDetected"].is_string(), "{}", server.data());
}

/// Guards against rollouts and gates of a mixture of both pasts: no number may be needed for a long time.
#[tokio::test(start_paused = true)]
async fn a_suspicion_is_checked_at_once() {
    let server = Server::new();
    let (counter, writes) = server.process().await;
    let _checks = tokio::spawn(counter.clone().check_suspicions());
    writes.take().await.unwrap();
    counter.suspicions().raise_by_a_list();
    counter.compare().await.unwrap();
    assert!(counter.held().is_none(), "an API server that lagged");
    let backup = server.data();
    let lost = writes.take().await.unwrap();
    server.restore(backup);
    lock(&server.0).failures = 1;
    let mut held = counter.subscribe();
    counter.suspicions().raise_by_a_list();
    assert!(counter.suspicions().is_pending());
    held.changed().await.unwrap();
    assert_eq!(counter.held().unwrap().number, lost);
    assert!(server.data()["restoreDetected"].is_string(), "{}", server.data());
}

/// Guards against a pass that carries out what it has read before a restore was found, or before a suspicion that is
/// over.
#[tokio::test(start_paused = true)]
async fn a_pass_keeps_to_what_was_known_when_it_began() {
    let server = Server::new();
    let (counter, writes) = server.process().await;
    let _checks = tokio::spawn(counter.clone().check_suspicions());
    writes.take().await.unwrap();
    let before = counter.permit();
    assert!(before.is_valid());
    counter.suspicions().raise_by_a_list();
    let pending = counter.permit();
    assert!(!pending.is_valid() && !before.is_valid());
    tokio::time::sleep(waits::NUMBER_CHECK).await;
    let after = counter.permit();
    assert!(!before.is_valid() && after.is_valid());
    assert!(!pending.is_valid(), "its caches mix two pasts");
    let backup = server.data();
    writes.take().await.unwrap();
    server.restore(backup);
    let _ = writes.take().await.unwrap_err();
    assert!(counter.held().is_some() && !counter.permit().is_valid() && !after.is_valid());
}

/// Guards against an attempt that began before a restore, and writes the release of the lost past.
#[tokio::test(start_paused = true)]
async fn an_attempt_writes_nothing_after_a_suspicion_although_no_number_is_lost() {
    let server = Server::new();
    let (counter, _) = server.process().await;
    let _checks = tokio::spawn(counter.clone().check_suspicions());
    let cluster = ObjectKey::new("fleet", "eu-1");
    let before = counter.of_pass(counter.permit(), &cluster);
    assert!(before.take().await.is_ok() && before.refusal().is_none());
    counter.suspicions().raise_by_a_list();
    assert!(before.refusal().is_some(), "it is pending");
    tokio::time::sleep(waits::NUMBER_CHECK).await;
    assert!(before.refusal().is_some() && before.take().await.is_err());
    let after = counter.of_pass(counter.permit(), &cluster);
    assert!(after.refusal().is_none() && after.take().await.is_ok());
    // No object of the management cluster decides what a probe writes.
    assert!(counter.of_cluster(&cluster).refusal().is_none());
}

/// Guards against an installation that waits for ever after a suspicion that was wrong.
#[tokio::test(start_paused = true)]
async fn a_suspicion_ends_with_a_comparison() {
    let server = Server::new();
    let (counter, writes) = server.process().await;
    writes.take().await.unwrap();
    counter.suspicions().raise_by_a_list();
    counter.suspicions().raise_by_a_list();
    assert!(counter.suspicions().is_pending());
    lock(&server.0).failures = 2;
    let _checks = tokio::spawn(counter.clone().check_suspicions());
    tokio::time::sleep(waits::NUMBER_CHECK).await;
    assert!(counter.suspicions().is_pending(), "nothing was read yet");
    tokio::time::sleep(2 * waits::NUMBER_CHECK_MAX).await;
    assert!(!counter.suspicions().is_pending() && counter.held().is_none());
    assert_eq!(lock(&server.0).failures, 0);
}

/// Guards against a backup from before the first start: the process that goes on can neither count nor compare, and a
/// restart gives the installation another ID.
#[tokio::test(start_paused = true)]
async fn a_management_cluster_that_was_never_installed_gets_its_id_back() {
    let server = Server::new();
    let (counter, writes) = server.process().await;
    server.lose();
    writes.take().await.unwrap();
    assert_eq!(server.data()["id"], "i");
    let lost = writes.take().await.unwrap();
    server.lose();
    let refusal = writes.take().await.unwrap_err();
    assert!(is_held(&refusal), "{refusal}");
    assert_eq!(counter.held().unwrap().number, lost);
    assert_eq!(server.data()["id"], "i");
    assert!(server.data()["restoreDetected"].is_string(), "{}", server.data());
}

/// Guards against a finding that another restore takes away, as if a person had released it.
#[tokio::test(start_paused = true)]
async fn another_restore_releases_nothing() {
    let server = Server::new();
    let (counter, writes) = server.process().await;
    writes.take().await.unwrap();
    let backup = server.data();
    writes.take().await.unwrap();
    for restored in [Some(backup.clone()), Some(backup), None] {
        match restored {
            Some(backup) => server.restore(backup),
            None => server.lose(),
        }
        writes.take().await.unwrap_err();
        counter.recheck().await.unwrap();
        assert!(counter.held().is_some());
        assert!(server.data()["restoreDetected"].is_string(), "{}", server.data());
    }
}

#[tokio::test(start_paused = true)]
async fn a_finding_that_could_not_be_stored_is_stored_later() {
    let server = Server::new();
    let (_, before) = server.process().await;
    let backup = server.data();
    let lost = before.take().await.unwrap();
    server.restore(backup);
    let (counter, writes) = server.process().await;
    let checked = writes.check(&lost).await;
    assert!(checked.is_err());
    // As if the write of the finding had been lost with another restore.
    server.restore(json!({"id": "i"}));
    lock(&counter.state).is_stored = false;
    lock(&server.0).failures = 1;
    counter.recheck().await.unwrap_err();
    assert!(counter.held().is_some());
    counter.recheck().await.unwrap();
    assert!(server.data()["restoreDetected"].is_string());
    assert!(counter.held().is_some());
}
