//! All that was written in a run, in order: what two runs of one seed are compared by, and what a failed one leaves behind.

use std::fmt::Write as _;
use std::path::PathBuf;

use starling_apiserver::journal::Entry;

use crate::script::{MEMBERS, member};
use crate::world::{HUB, World};

/// The writes of all clusters, one a line, in the order in which they were made.
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
        // The authority's key is the one thing that comes from the system's generator.
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
    text
}

/// Writes a trace where builds go. Returns where.
pub(crate) fn keep(seed: u64, text: &str) -> std::io::Result<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("simulation");
    std::fs::create_dir_all(&folder)?;
    let path = folder.join(format!("seed-{seed}.trace"));
    std::fs::write(&path, text)?;
    Ok(path)
}
