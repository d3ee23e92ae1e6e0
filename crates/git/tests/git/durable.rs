//! What is on disk before it counts, as the system calls show it. A loss of power cannot be staged in a test.

use std::path::Path;
use std::process::Command;

/// The test whose system calls are read: it fetches over http, and fetches again.
const FETCHES: &str = "network::a_poll_is_one_request_and_a_fetch_happens_only_after_a_change";

/// Returns the paths in quotation marks or angle brackets of a call.
fn paths(call: &str) -> impl Iterator<Item = &str> {
    let parts = call.split(['"', '<', '>']);
    parts.filter(|part| part.starts_with('/'))
}

/// Guards against packs that libgit2 does not sync (only those that it joins), while refs to their commits are.
#[test]
fn tenant_packs_and_refs_are_synced_before_they_count() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("calls");
    let traced = Command::new("strace")
        .args([
            "-f",
            "-y",
            "-e",
            "trace=fsync,fdatasync,rename,renameat,renameat2,link,linkat",
            "-o",
        ])
        .arg(&log)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", FETCHES])
        .output();
    let traced = match traced {
        // Without strace there is nothing to read.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
        traced => traced.unwrap(),
    };
    assert!(traced.status.success(), "{traced:?}");
    let calls = std::fs::read_to_string(&log).unwrap();
    let calls: Vec<&str> = calls
        .lines()
        .filter(|call| call.contains("/mirrors/") && call.ends_with("= 0"))
        .collect();
    let is_synced = |before: usize, path: &str| {
        let mut earlier = calls[..before].iter();
        earlier.any(|call| call.contains("sync(") && paths(call).any(|synced| synced == path))
    };
    let (mut packs, mut refs): (Vec<&str>, usize) = (Vec::new(), 0);
    for (place, call) in calls.iter().enumerate() {
        let target = paths(call).last().unwrap();
        if call.contains("link") && [".pack", ".idx"].iter().any(|end| target.ends_with(end)) {
            packs.push(target);
        }
        // A new ref is a link, and a changed one a rename.
        let counts = call.contains("link") || call.contains("rename");
        if !counts || !target.contains("/refs/starling/") {
            continue;
        }
        refs += 1;
        assert!(is_synced(place, &format!("{target}.lock")), "{call}");
        for pack in &packs {
            assert!(is_synced(place, pack), "{pack} before {call}");
            let directory = Path::new(pack).parent().unwrap();
            assert!(
                is_synced(place, directory.to_str().unwrap()),
                "{directory:?} before {call}"
            );
        }
    }
    // Two fetches with a pack and an index each.
    assert_eq!((packs.len(), refs >= 2), (4, true), "{calls:#?}");
}
