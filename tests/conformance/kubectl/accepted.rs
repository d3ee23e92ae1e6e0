//! Accepted differences.

use std::path::Path;

/// The list of accepted differences.
pub(crate) struct Accepted(Vec<Entry>);

struct Entry {
    command: String,
    /// The lines that only one side may have; an asterisk at the end matches any text.
    lines: Vec<String>,
    differs: bool,
}

impl Accepted {
    /// Reads groups of commands. A comment (`#`) above a group gives the reason for the difference, and the lines below
    /// a command are the differing lines.
    pub(crate) fn read(path: &Path) -> Self {
        let text = std::fs::read_to_string(path).unwrap();
        let mut entries: Vec<Entry> = Vec::new();
        let mut reason = false;
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            if line.starts_with('#') {
                reason = true;
            } else if line.starts_with(' ') {
                let entry = entries.last_mut().expect("a command above its lines");
                entry.lines.push(normalize_spaces(line));
            } else {
                assert!(reason, "{line}: no reason stands above it");
                entries.push(Entry {
                    command: line.trim().to_owned(),
                    lines: Vec::new(),
                    differs: false,
                });
            }
        }
        Self(entries)
    }

    /// Whether a command may differ in these lines.
    pub(crate) fn is_accepted(&mut self, command: &str, lines: &[String]) -> bool {
        let Some(entry) = self.0.iter_mut().find(|entry| entry.command == command) else {
            return false;
        };
        entry.differs = true;
        lines.iter().all(|line| {
            let line = normalize_spaces(line);
            entry
                .lines
                .iter()
                .any(|accepted| match accepted.strip_suffix('*') {
                    Some(beginning) => line.starts_with(beginning.trim_end()),
                    None => line == *accepted,
                })
        })
    }

    /// The number of used entries.
    pub(crate) fn used(&self) -> usize {
        self.0.iter().filter(|entry| entry.differs).count()
    }

    /// Fails if an entry is unused.
    pub(crate) fn check(&self) {
        let useless: Vec<&str> = self
            .0
            .iter()
            .filter(|entry| !entry.differs)
            .map(|entry| entry.command.as_str())
            .collect();
        assert!(
            useless.is_empty(),
            "these do not differ any more, or are not run:\n{}",
            useless.join("\n")
        );
    }
}

/// Returns a line with single spaces.
fn normalize_spaces(line: &str) -> String {
    line.split_whitespace().collect::<Vec<_>>().join(" ")
}
