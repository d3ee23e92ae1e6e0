//! Every field of every built-in kind, written in protobuf to both servers; stored objects that are read and updated;
//! and objects of the fuzzers of Kubernetes.
//!
//! `crates/apiserver/tests/protobuf_oracle.rs` decodes objects in which all fields of a kind are set, and compares them
//! with Go. A server accepts few of those. Here, small valid objects differ in one field or one part of them, so that
//! the servers accept most, set defaults, and respond.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::Both;
use crate::requests::normal;

/// The page that lists the kinds of which the embedded server accepts variations that a kube-apiserver refuses, with
/// their number: a smaller one is written down there, and a larger one is a fault.
const GAPS: &str = include_str!("../../../docs/apiserver-gaps.md");

/// Fields that both servers drop, since their feature gates are off.
const DROPPED: [&str; 7] = [
    "config",
    "configSource",
    "deprecatedTopology",
    "preferredHolder",
    "stopSignal",
    "strategy",
    "workloadRef",
];

#[derive(Default)]
struct Figures {
    kinds: BTreeSet<String>,
    fields: BTreeSet<String>,
    /// Variations that both servers accept, and whose responses were compared.
    accepted: usize,
    /// Variations that both refuse.
    refused: usize,
    /// Variations that only the embedded server accepts, by kind.
    more: BTreeMap<String, usize>,
    wrong: Vec<String>,
}

impl Figures {
    fn compare(&mut self, real: &Value, embedded: &Value) {
        let kind = embedded["kind"].as_str().unwrap_or_default().to_owned();
        let field = embedded["field"].as_str().unwrap_or_default();
        let name = format!("{kind} {field}");
        let (path, _) = field.rsplit_once(' ').unwrap_or_default();
        self.fields.insert(format!("{kind} {path}"));
        self.kinds.insert(kind.clone());
        let code = |side: &Value| side["code"].as_u64().unwrap_or_default();
        match (code(real), code(embedded)) {
            (wanted, found) if wanted == found && wanted < 300 => {
                self.accepted += 1;
                for form in ["json", "protobuf"] {
                    self.same(&format!("{name} in {form}"), &real[form], &embedded[form]);
                }
            }
            (wanted, found) if wanted < 300 => self.wrong.push(format!(
                "{name}: {wanted} and here {found} {}",
                embedded["json"]["message"]
            )),
            (code, ..300) => {
                *self.more.entry(kind).or_default() += 1;
                let mut sent = embedded["sent"].clone();
                // The status of a new object is not the client's.
                if field.starts_with("fuzzed") {
                    sent["status"] = Value::Null;
                }
                if let Some(lost) = lost("", &embedded["json"], &sent) {
                    let why = &real["json"]["message"];
                    self.wrong
                        .push(format!("{name}: {code} and here accepted without {lost}; {why}"));
                }
            }
            (wanted, found) if wanted != found => {
                let messages = (&real["json"]["message"], &embedded["json"]["message"]);
                self.wrong
                    .push(format!("{name}: {wanted} and here {found}: {messages:?}"));
            }
            _ => self.refused += 1,
        }
    }

    fn same(&mut self, name: &str, real: &Value, embedded: &Value) {
        let (wanted, found) = normal::Pair::default().both(real, embedded);
        let mut differences = Vec::new();
        normal::diff("", &wanted, &found, &mut differences);
        self.wrong.extend(
            differences
                .into_iter()
                .map(|difference| format!("{name}: {difference}")),
        );
    }
}

/// Returns a path of what was sent and an object lacks. What Go writes for nothing need not be there.
fn lost(path: &str, object: &Value, sent: &Value) -> Option<String> {
    if sent.is_null() || sent == "" || sent == 0 || sent == false {
        return None;
    }
    match (object, sent) {
        (Value::Object(_) | Value::Null, Value::Object(sent)) => sent
            .iter()
            .filter(|(name, _)| *name != "metadata" && !DROPPED.contains(&name.as_str()))
            .find_map(|(name, value)| lost(&format!("{path}.{name}"), &object[name], value)),
        (Value::Array(object), Value::Array(sent)) if sent.len() <= object.len() => {
            let both = object.iter().zip(sent).enumerate();
            let mut lost =
                both.filter_map(|(at, (object, sent))| lost(&format!("{path}[{at}]"), object, sent));
            lost.next()
        }
        (Value::Null, Value::Array(sent)) if sent.is_empty() => None,
        (object, sent) => (object != sent).then(|| format!("{path} {sent}")),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_field_of_every_kind_is_written_alike() {
    let both = Both::start(false).await;
    let (real, embedded) = both.run("roundtrip", "").await;
    let (real, embedded) = (real.as_array().unwrap(), embedded.as_array().unwrap());
    assert_eq!(real.len(), embedded.len());
    let mut figures = Figures::default();
    for (real, embedded) in real.iter().zip(embedded) {
        figures.compare(real, embedded);
    }
    let more: usize = figures.more.values().sum();
    eprintln!(
        "{} kinds, {} fields, {} objects: {} accepted by both, {} refused by both, {more} accepted here alone; {} differences",
        figures.kinds.len(),
        figures.fields.len(),
        embedded.len(),
        figures.accepted,
        figures.refused,
        figures.wrong.len(),
    );
    let found: Vec<String> = figures
        .more
        .iter()
        .map(|(kind, count)| format!("| `{kind}` | {count} |"))
        .collect();
    let (_, table) = GAPS.split_once("## Validation by kind").unwrap();
    let listed: Vec<&str> = table
        .lines()
        .skip_while(|line| !line.starts_with("|---"))
        .skip(1)
        .take_while(|line| line.starts_with('|'))
        .collect();
    assert!(
        figures.wrong.is_empty(),
        "{} differences (the real server's value stands first):\n{}",
        figures.wrong.len(),
        figures.wrong.join("\n")
    );
    assert_eq!(
        found, listed,
        "docs/apiserver-gaps.md lists other kinds or numbers"
    );
}
