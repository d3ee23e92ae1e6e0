//! Reads the journal of the embedded API server.

use starling_apiserver::journal;

use super::history::{Verb, Write};

/// Returns the writes of one cluster, in order.
pub(crate) fn writes<'e>(entries: impl IntoIterator<Item = &'e journal::Entry>) -> Vec<Write> {
    entries.into_iter().map(write).collect()
}

fn write(entry: &journal::Entry) -> Write {
    let head = &entry.object.head;
    Write {
        at: entry.time,
        verb: match entry.verb {
            journal::Verb::Create | journal::Verb::Update | journal::Verb::Patch | journal::Verb::Apply => {
                Verb::Write
            }
            journal::Verb::DeleteBegins => Verb::DeleteBegins,
            journal::Verb::Delete => Verb::Delete,
        },
        group: entry.group.to_string(),
        kind: entry.kind.to_string(),
        namespace: head.namespace.to_string(),
        name: head.name.to_string(),
        manager: entry.manager.to_string(),
        resource_version: entry.revision(),
        object: entry.object.read(),
    }
}
