//! The format of an inventory in ConfigMaps on the member.
//!
//! A shard is text. The first line has the format version and the number of shards, and in the first shard, since
//! ADR 40, `hub=` and the number of the last write. Each further line is one entry: group, kind, namespace, name and
//! UID, separated by tabs, and, where they are known, the origin (`created` or `adopted`), the number of objects of
//! which the deletion of this one is held, and the Unix time at which the grace before its deletion began. Later
//! versions may add fields to the end of a line and attributes to the first one; a reader ignores what it does not
//! know. An unknown format is an error: reading it as empty would forget the objects on the member.

use std::fmt::Write as _;

use jiff::Timestamp;
use starling_api::{INVENTORY_PREFIX, REMOVALS_PREFIX};
use thiserror::Error;

use super::{Inventory, InventoryEntry, Listed, Origin};
use crate::digest::hash64;
use crate::ids::{InstallationId, OwnerLabel};
use crate::object::ObjectId;
use crate::restore::WriteNumber;

/// The data key of a shard in its ConfigMap.
pub const DATA_KEY: &str = "inventory";
/// The size of one shard in bytes. etcd accepts 1.5 MiB per request and the API server 1 MiB per ConfigMap; half of
/// that leaves room for metadata and `managedFields`.
pub const SHARD_LIMIT: usize = 500 * 1024;
/// The data key of the ConfigMap with the number of the last removal.
pub const REMOVALS_KEY: &str = "lastRemoval";
/// The number of fields that each line has.
const FIELDS: usize = 5;
/// The start of the attribute with the number of the last write.
const NUMBER: &str = "hub=";
/// The start of the first line.
const FORMAT: &str = "starling-inventory/1";

/// The reason why a line is not an entry.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum LineError {
    /// The line ends before the UID.
    #[error("fewer than five fields")]
    FewFields,
    /// An escape is not the code of a character.
    #[error("a broken escape")]
    BrokenEscape,
    /// The kind or the name is empty.
    #[error("no kind or no name")]
    Unnamed,
}

/// The reason why a text is not a shard of an inventory.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum FormatError {
    /// The first line does not name a format.
    #[error("no format version in the first line")]
    NoVersion,
    /// The format is not one that this version can read.
    #[error("unknown inventory format {found:?}: written by a newer Starling, or not an inventory")]
    UnknownVersion {
        /// The start of the first line, at most 64 characters.
        found: String,
    },
    /// The first line has no number of shards.
    #[error("no number of shards in the first line")]
    NoShardCount,
    /// The attribute `hub` of the first line is no write number. Without it, it would not be known whether the
    /// management cluster was set back.
    #[error("the attribute hub of the first line is not a write number")]
    WriteNumber,
    /// A line is not an entry.
    #[error("line {line}: {problem}")]
    Line {
        /// Counted from 1; the first line has the format.
        line: usize,
        /// The error in the line.
        problem: LineError,
    },
}

/// A shard that was read.
#[derive(Debug, PartialEq, Eq)]
pub struct Shard {
    /// The number of shards when this one was written. In the first shard, 1 means that there is no other; any other
    /// number means that shards follow until one is missing.
    pub shards: usize,
    /// The number of the last write; `None`: the shard is not the first one, or was written by an earlier version.
    pub hub: Option<WriteNumber>,
    /// The entries of this shard.
    pub entries: Inventory,
}

/// Returns the name of the ConfigMap with shard `index` of the inventory of an owner.
#[must_use]
pub fn shard_name(owner: &OwnerLabel, index: usize) -> String {
    if index == 0 {
        format!("{INVENTORY_PREFIX}{owner}")
    } else {
        format!("{INVENTORY_PREFIX}{owner}-{index}")
    }
}

/// Returns the owner of the inventory that a ConfigMap is a part of, by its name; `None`: it is no inventory.
#[must_use]
pub fn owner_of(name: &str) -> Option<OwnerLabel> {
    let rest = name.strip_prefix(INVENTORY_PREFIX)?;
    let owner = rest.split_once('-').map_or(rest, |(owner, _)| owner);
    Some(OwnerLabel::new(owner))
}

/// Returns the name of the ConfigMap with the number of the last removal of an inventory of an installation. With the
/// inventory, the number in it is gone.
#[must_use]
pub fn removals_name(installation: &InstallationId) -> String {
    format!("{REMOVALS_PREFIX}{:016x}", hash64(&[installation.as_str()]))
}

/// Encodes an inventory as one or more texts of at most `limit` bytes, in the order of IDs.
///
/// A single entry longer than `limit` still gets a shard of its own: names have 253 characters at most, so this happens
/// only with an unreasonable limit.
#[must_use]
pub fn encode(inventory: &Inventory, limit: usize) -> Vec<String> {
    let bodies = encode_bodies(inventory, limit);
    let shards = bodies.len();
    bodies.iter().map(|body| encode_shard(body, shards)).collect()
}

/// Returns the lines of each shard, without the first one.
pub(super) fn encode_bodies(inventory: &Inventory, limit: usize) -> Vec<String> {
    // The length of the first line depends on the number of shards; 20 digits are enough for any number.
    let available = limit.saturating_sub(FORMAT.len() + " shards=".len() + 20 + 1);
    let mut bodies = vec![String::new()];
    for (key, listed) in &inventory.entries {
        let line = encode_line(key, listed);
        match bodies.last_mut() {
            Some(body) if body.is_empty() || body.len() + line.len() <= available => body.push_str(&line),
            _ => bodies.push(line),
        }
    }
    bodies
}

/// Returns a shard with these lines.
pub(super) fn encode_shard(body: &str, shards: usize) -> String {
    format!("{FORMAT} shards={shards}\n{body}")
}

/// Returns the text of a shard with the number of the last write in its first line.
#[must_use]
pub fn with_number(text: &str, number: &WriteNumber) -> String {
    let (header, body) = text.split_once('\n').unwrap_or((text, ""));
    let mut numbered = String::with_capacity(text.len() + 64);
    for attribute in header
        .split(' ')
        .filter(|attribute| !attribute.starts_with(NUMBER))
    {
        numbered.push_str(attribute);
        numbered.push(' ');
    }
    // `write!` into a String cannot fail.
    let _ = write!(numbered, "{NUMBER}{number}\n{body}");
    numbered
}

/// Parses one shard.
///
/// # Errors
/// [`FormatError`] if the text is not a shard in a known format. An incomplete inventory is never returned.
pub fn parse(text: &str) -> Result<Shard, FormatError> {
    let mut lines = text.split_terminator('\n');
    let mut header = lines.next().unwrap_or_default().split(' ');
    match header.next() {
        None | Some("") => return Err(FormatError::NoVersion),
        Some(FORMAT) => {}
        Some(other) => {
            return Err(FormatError::UnknownVersion {
                found: other.chars().take(64).collect(),
            });
        }
    }
    let attributes: Vec<&str> = header.collect();
    let attribute = |name| {
        attributes
            .iter()
            .find_map(|attribute| attribute.strip_prefix(name))
    };
    let hub = attribute(NUMBER).map(str::parse).transpose();
    let hub = hub.map_err(|_| FormatError::WriteNumber)?;
    let shards = attribute("shards=")
        .and_then(|count| count.parse().ok())
        .filter(|count| *count > 0)
        .ok_or(FormatError::NoShardCount)?;
    let entries = lines
        .enumerate()
        .map(|(index, line)| {
            parse_line(line).map_err(|problem| FormatError::Line {
                line: index + 2,
                problem,
            })
        })
        .collect::<Result<Inventory, _>>()?;
    Ok(Shard { shards, hub, entries })
}

/// Parses the number of the last write in a shard, without the entries.
///
/// # Errors
/// As [`parse`].
pub fn parse_number(text: &str) -> Result<Option<WriteNumber>, FormatError> {
    let header = text.split('\n').next().unwrap_or_default();
    Ok(parse(header)?.hub)
}

fn encode_line(key: &ObjectId, listed: &Listed) -> String {
    let mut line = String::with_capacity(key.group.len() + key.name.len() + 96);
    for (index, field) in [
        key.group.as_str(),
        &key.kind,
        &key.namespace,
        &key.name,
        listed.uid.as_str(),
    ]
    .into_iter()
    .enumerate()
    {
        if index > 0 {
            line.push('\t');
        }
        escape(field, &mut line);
    }
    let origin = match listed.origin {
        Origin::Unknown => "",
        Origin::Created => "created",
        Origin::Adopted => "adopted",
    };
    // Fields at the end that say nothing are left out.
    let held_of = listed.held_of.map(|of| of.to_string()).unwrap_or_default();
    let left_at = listed
        .left_at
        .map(|at| at.as_second().to_string())
        .unwrap_or_default();
    let more = format!("\t{origin}\t{held_of}\t{left_at}");
    line.push_str(more.trim_end_matches('\t'));
    line.push('\n');
    line
}

fn parse_line(line: &str) -> Result<InventoryEntry, LineError> {
    let mut fields = line.split('\t').map(unescape);
    let mut next = || {
        fields
            .next()
            .ok_or(LineError::FewFields)?
            .ok_or(LineError::BrokenEscape)
    };
    let (group, kind, namespace, name, uid) = (next()?, next()?, next()?, next()?, next()?);
    if kind.is_empty() || name.is_empty() {
        return Err(LineError::Unnamed);
    }
    let mut more = line.split('\t').skip(FIELDS);
    let origin = match more.next() {
        Some("created") => Origin::Created,
        Some("adopted") => Origin::Adopted,
        _ => Origin::Unknown,
    };
    let listed = Listed {
        uid: uid.into(),
        origin,
        held_of: more.next().and_then(|of| of.parse().ok()),
        left_at: more.next().and_then(seconds),
    };
    let key = ObjectId {
        group,
        kind,
        namespace,
        name,
    };
    Ok(InventoryEntry { key, listed })
}

fn seconds(text: &str) -> Option<Timestamp> {
    Timestamp::from_second(text.parse().ok()?).ok()
}

/// Escapes control characters. Names that Kubernetes accepts have none, but a manifest may contain others, which must
/// not break the lines.
fn escape(field: &str, line: &mut String) {
    for character in field.chars() {
        if character == '%' || character.is_control() {
            // `write!` into a String cannot fail.
            let _ = write!(line, "%{:02x}.", u32::from(character));
        } else {
            line.push(character);
        }
    }
}

fn unescape(field: &str) -> Option<String> {
    let mut parts = field.split('%');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (code, rest) = part.split_once('.')?;
        plain.push(char::from_u32(u32::from_str_radix(code, 16).ok()?)?);
        plain.push_str(rest);
    }
    Some(plain)
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn merge(texts: &[String]) -> Inventory {
        texts.iter().fold(Inventory::new(), |all, text| {
            all.union(&parse(text).unwrap().entries)
        })
    }

    fn entry(kind: &str, namespace: &str, name: &str, uid: &str) -> InventoryEntry {
        let key = ObjectId {
            group: "apps".into(),
            kind: kind.into(),
            namespace: namespace.into(),
            name: name.into(),
        };
        InventoryEntry::new(key, uid)
    }

    #[test]
    fn the_text_is_stable() {
        let inventory: Inventory = [
            entry("Deployment", "shop", "web", "u-1"),
            entry("Deployment", "", "x", ""),
        ]
        .into_iter()
        .collect();
        let expected =
            "starling-inventory/1 shards=1\napps\tDeployment\t\tx\t\napps\tDeployment\tshop\tweb\tu-1\n";
        assert_eq!(encode(&inventory, SHARD_LIMIT), [expected]);
    }

    #[test]
    fn origin_hold_and_grace_follow_the_uid_where_they_are_known() {
        let mut inventory: Inventory = [
            entry("A", "", "x", "u").with_origin(Origin::Adopted),
            entry("B", "", "x", "u").with_origin(Origin::Created),
            entry("C", "", "x", "u"),
            entry("D", "", "x", "u"),
            entry("E", "", "x", "u").with_origin(Origin::Created),
        ]
        .into_iter()
        .collect();
        inventory.hold(&entry("B", "", "x", "").key, Some(20));
        inventory.hold(&entry("C", "", "x", "").key, Some(3));
        inventory.set_left_at(
            &entry("D", "", "x", "").key,
            Timestamp::from_second(1_800_000_000).ok(),
        );
        inventory.hold(&entry("E", "", "x", "").key, Some(4));
        inventory.set_left_at(&entry("E", "", "x", "").key, Timestamp::from_second(-7).ok());
        let texts = encode(&inventory, SHARD_LIMIT);
        let expected = "starling-inventory/1 shards=1\napps\tA\t\tx\tu\tadopted\napps\tB\t\tx\tu\tcreated\t20\n\
             apps\tC\t\tx\tu\t\t3\napps\tD\t\tx\tu\t\t\t1800000000\napps\tE\t\tx\tu\tcreated\t4\t-7\n";
        assert_eq!(texts, [expected]);
        assert_eq!(parse(&texts[0]).unwrap().entries, inventory);
    }

    #[test]
    fn an_empty_inventory_is_one_shard_without_lines() {
        let texts = encode(&Inventory::new(), SHARD_LIMIT);
        assert_eq!(texts, ["starling-inventory/1 shards=1\n"]);
        assert_eq!(
            parse(&texts[0]),
            Ok(Shard {
                shards: 1,
                hub: None,
                entries: Inventory::new()
            })
        );
    }

    #[test]
    fn later_additions_are_ignored() {
        let shard = parse("starling-inventory/1 color=red shards=2\napps\tDeployment\tshop\tweb\tu\tlater\n")
            .unwrap();
        assert_eq!(shard.shards, 2);
        assert_eq!(
            shard.entries,
            [entry("Deployment", "shop", "web", "u")].into_iter().collect()
        );
    }

    #[test]
    fn the_number_of_the_last_write_is_in_the_first_line() {
        let text = "starling-inventory/1 shards=1\napps\tA\t\tx\tu\n";
        assert_eq!(parse(text).unwrap().hub, None);
        let first: WriteNumber = "a-1/7".parse().unwrap();
        let numbered = with_number(text, &first);
        assert_eq!(
            numbered,
            "starling-inventory/1 shards=1 hub=a-1/7\napps\tA\t\tx\tu\n"
        );
        let parsed = parse(&numbered).unwrap();
        assert_eq!(
            (parsed.hub, parsed.entries),
            (Some(first), parse(text).unwrap().entries)
        );
        let second = "b/1".parse().unwrap();
        assert_eq!(parse(&with_number(&numbered, &second)).unwrap().hub, Some(second));
    }

    #[test]
    fn an_unknown_format_is_an_error_and_not_empty() {
        let unknown = |found: &str| FormatError::UnknownVersion { found: found.into() };
        let line = |line, problem| FormatError::Line { line, problem };
        let cases = [
            ("", FormatError::NoVersion),
            ("\n", FormatError::NoVersion),
            (" shards=1", FormatError::NoVersion),
            ("starling-inventory/2 shards=1\n", unknown("starling-inventory/2")),
            ("{}", unknown("{}")),
            ("starling-inventory/1", FormatError::NoShardCount),
            ("starling-inventory/1 shards=0", FormatError::NoShardCount),
            ("starling-inventory/1 shards=x", FormatError::NoShardCount),
            (
                "starling-inventory/1 shards=1 hub=seven\n",
                FormatError::WriteNumber,
            ),
            ("starling-inventory/1 shards=1\n\n", line(2, LineError::FewFields)),
            (
                "starling-inventory/1 shards=1\na\tB\tc\td\te\na\tB\tc\td\n",
                line(3, LineError::FewFields),
            ),
            (
                "starling-inventory/1 shards=1\na\t\tc\td\te\n",
                line(2, LineError::Unnamed),
            ),
            (
                "starling-inventory/1 shards=1\na\tB\tc\t%zz.\te\n",
                line(2, LineError::BrokenEscape),
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(parse(text), Err(expected), "{text:?}");
        }
    }

    #[test]
    fn shard_names() {
        assert_eq!(shard_name(&OwnerLabel::new("0f"), 0), "starling-inventory-0f");
        assert_eq!(shard_name(&OwnerLabel::new("0f"), 2), "starling-inventory-0f-2");
        for (name, expected) in [
            ("starling-inventory-0f", Some("0f")),
            ("starling-inventory-0f-2", Some("0f")),
            ("starling-hub-3b196fd4907bedf5", None),
        ] {
            assert_eq!(owner_of(name), expected.map(OwnerLabel::new), "{name}");
        }
        assert_eq!(
            removals_name(&InstallationId::new("a")),
            "starling-hub-3b196fd4907bedf5"
        );
    }

    proptest! {
        #[test]
        fn an_inventory_is_read_as_it_was_written(
            entries in vec(("[A-Z]\\PC{0,8}", "\\PC{0,8}|\\t%\\n", "\\PC{1,8}|\\r", "[a-f0-9-]{0,36}"), 0..60),
            limit in 0_usize..600,
        ) {
            let inventory: Inventory =
                entries.iter().map(|(kind, namespace, name, uid)| entry(kind, namespace, name, uid)).collect();
            let texts = encode(&inventory, limit);
            prop_assert_eq!(merge(&texts), inventory);
            for text in &texts {
                let shard = parse(text).unwrap();
                prop_assert_eq!(shard.shards, texts.len());
                prop_assert!(text.len() <= limit || shard.entries.len() <= 1);
            }
        }
    }
}
