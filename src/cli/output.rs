//! Output formats: tables, JSON and YAML, as kubectl prints them.

#![expect(clippy::print_stdout, reason = "the output of these commands")]

use std::io::Write as _;

use clap::ValueEnum;
use jiff::Timestamp;
use serde::Serialize;

/// Output format of a list of objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Output {
    /// Table
    #[default]
    Table,
    /// Table with more columns
    Wide,
    /// Objects as JSON
    Json,
    /// Objects as YAML
    Yaml,
    /// Kind and name
    Name,
}

/// Output format of a report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Form {
    /// Plain text
    #[default]
    Text,
    /// JSON
    Json,
}

/// A table whose columns are as wide as their widest cell.
#[derive(Debug, Default)]
pub(super) struct Table {
    rows: Vec<Vec<String>>,
}

/// Clusters that a line names; the others are counted.
const NAMED: usize = 8;
/// Spaces between two columns.
const GAP: usize = 3;

impl Table {
    /// A table with these headings.
    pub(super) fn new(headings: &[&str]) -> Self {
        Self {
            rows: vec![headings.iter().map(|heading| (*heading).to_owned()).collect()],
        }
    }

    /// Adds a row.
    pub(super) fn push(&mut self, row: Vec<String>) {
        self.rows.push(row);
    }

    /// The text of the table.
    pub(super) fn text(&self) -> String {
        self.text_with(&self.widths())
    }

    /// The widths of the columns.
    pub(super) fn widths(&self) -> Vec<usize> {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or_default();
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or_default()
        };
        (0..columns).map(width).collect()
    }

    /// The text with columns of at least these widths, so that later rows line up with earlier ones.
    pub(super) fn text_with(&self, widths: &[usize]) -> String {
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(widths) {
                line.push_str(cell);
                let blanks = (width + GAP).saturating_sub(cell.chars().count()).max(1);
                line.extend(std::iter::repeat_n(' ', blanks));
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text
    }
}

/// An age as kubectl prints it, such as `3d4h` or `5m12s`: at most two units.
pub(super) fn age(since: Option<Timestamp>, now: Timestamp) -> String {
    let Some(since) = since else {
        return "<unknown>".to_owned();
    };
    duration(now.duration_since(since).as_secs())
}

/// A duration in at most two units.
pub(super) fn duration(seconds: i64) -> String {
    let seconds = seconds.max(0);
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    let two = |large: i64, unit: char, small: i64, other: char| {
        if small == 0 {
            format!("{large}{unit}")
        } else {
            format!("{large}{unit}{small}{other}")
        }
    };
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, minutes) if minutes < 10 => two(minutes, 'm', seconds % 60, 's'),
        (0, 0, minutes) => format!("{minutes}m"),
        (0, hours, minutes) if hours < 8 => two(hours, 'h', minutes, 'm'),
        (0, hours, _) => format!("{hours}h"),
        (days, hours, _) if days < 8 => two(days, 'd', hours, 'h'),
        (days, ..) => format!("{days}d"),
    }
}

/// `3 clusters (a, b, c)`, `200 clusters (a, b, … and 198 more)`.
pub(super) fn names(clusters: &[String]) -> String {
    let plural = if clusters.len() == 1 { "" } else { "s" };
    let shown = clusters
        .iter()
        .take(NAMED)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ");
    let more = match clusters.len().checked_sub(NAMED) {
        None | Some(0) => String::new(),
        Some(more) => format!(" and {more} more"),
    };
    format!("{} cluster{plural} ({shown}{more})", clusters.len())
}

/// Prints a text; a closed pipe is not an error.
pub(super) fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
}

/// Prints a value as JSON or YAML.
pub(super) fn print_value(value: &impl Serialize, as_yaml: bool) -> anyhow::Result<()> {
    if as_yaml {
        print(&serde_saphyr::to_string(value)?);
    } else {
        println!("{}", serde_json::to_string_pretty(value)?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_they_need_to_be() {
        let mut table = Table::new(&["NAME", "READY"]);
        table.push(vec!["a-long-name".into(), "True".into()]);
        table.push(vec!["ü".into(), String::new()]);
        assert_eq!(table.text(), "NAME          READY\na-long-name   True\nü\n");
    }

    #[test]
    fn ages_are_short() {
        for (seconds, expected) in [
            (-5, "0s"),
            (0, "0s"),
            (59, "59s"),
            (60, "1m"),
            (312, "5m12s"),
            (660, "11m"),
            (3_600, "1h"),
            (7_500, "2h5m"),
            (30_000, "8h"),
            (86_400 * 3 + 3_600 * 4, "3d4h"),
            (86_400 * 40, "40d"),
        ] {
            assert_eq!(duration(seconds), expected, "{seconds}");
        }
    }
}
