//! Differences that are meant.

use std::path::Path;

/// The list of them.
pub(crate) struct Accepted(Vec<Entry>);

struct Entry {
    command: String,
    /// Whether the command was run, and whether it differed.
    seen: Option<bool>,
}

impl Accepted {
    /// Reads commands in groups, above each of which stands, behind `#`, why they print something else.
    pub(crate) fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap();
        let mut entries = Vec::new();
        let mut reason = false;
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if line.starts_with('#') {
                reason = true;
                continue;
            }
            assert!(
                reason || !entries.is_empty(),
                "{line}: no reason stands before it"
            );
            entries.push(Entry {
                command: line.to_owned(),
                seen: None,
            });
        }
        Self(entries)
    }

    /// Whether a command may differ; takes down whether it does.
    pub(crate) fn is_meant(&mut self, command: &str, same: bool) -> bool {
        match self.0.iter_mut().find(|entry| entry.command == command) {
            Some(entry) => {
                entry.seen = Some(entry.seen.unwrap_or(false) || !same);
                true
            }
            None => false,
        }
    }

    /// How many differed.
    pub(crate) fn used(&self) -> usize {
        self.0.iter().filter(|entry| entry.seen == Some(true)).count()
    }

    /// Fails if an entry is of no use.
    pub(crate) fn check(&self) {
        let useless: Vec<&str> = self
            .0
            .iter()
            .filter(|entry| entry.seen != Some(true))
            .map(|entry| entry.command.as_str())
            .collect();
        assert!(
            useless.is_empty(),
            "these do not differ any more, or are not run:\n{}",
            useless.join("\n")
        );
    }
}
