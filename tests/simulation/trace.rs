//! All writes of a run, and all entries of journals, in order. Two runs of one seed are compared by their traces, and a
//! failed run leaves its trace.

use std::fmt::Write as _;
use std::path::PathBuf;

use starling_apiserver::journal::Entry;

use crate::script::{MEMBERS, member};
use crate::world::{HUB, World};

/// Returns the writes of all clusters and the entries of the journals, one per line, each in order.
pub(crate) fn of(world: &World) -> String {
    let mut entries: Vec<(String, Entry)> = Vec::new();
    for name in (0..MEMBERS).map(member).chain([HUB.to_owned()]) {
        if let Ok(cluster) = world.cluster(&name) {
            entries.extend(cluster.journal().into_iter().map(|entry| (name.clone(), entry)));
        }
    }
    entries.sort_by_key(|(_, entry)| entry.number);
    let mut text = String::new();
    for (cluster, entry) in entries {
        let object = entry.object.read().to_string();
        // The key of the certificate authority is the only value from the system's random generator.
        let object = if object.contains("BEGIN CERTIFICATE") {
            "…".to_owned()
        } else {
            object
        };
        let _ = writeln!(
            text,
            "{} {} {cluster} {:?} {}{}{} {} by {}: {object}",
            entry.number,
            entry.time,
            entry.verb,
            entry.kind,
            if entry.subresource.is_empty() { "" } else { "/" },
            entry.subresource,
            entry.key(),
            entry.manager,
        );
    }
    for written in world.ledger.written() {
        let entry = written.entry;
        let _ = writeln!(
            text,
            "journal {}/{} entry {} of rollout {} at {}: {}",
            entry.namespace, entry.name, entry.seq, entry.rollout, written.at, entry.body
        );
    }
    text
}

/// Writes a trace into the build directory. Returns the path.
pub(crate) fn keep(seed: u64, text: &str) -> std::io::Result<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("simulation");
    std::fs::create_dir_all(&folder)?;
    let path = folder.join(format!("seed-{seed}.trace"));
    std::fs::write(&path, text)?;
    Ok(path)
}
